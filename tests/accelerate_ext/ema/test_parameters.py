"""What is averaged, what is copied, and a model that changed."""

import pytest
import torch
from torch import nn

from accelerate_ext.ema import EMA, ParameterSetError, PostHocEMA
from accelerate_ext.ema.parameters import ParameterSet


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.frozen = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("cache", torch.ones(2), persistent=False)


def test_trainable_parameters_are_averaged_once_and_the_rest_is_copied():
    parameters = ParameterSet(Tied())
    assert list(parameters.averaged) == ["embed.weight", "norm.weight", "norm.bias"]
    assert parameters.tied == {"head.weight": "embed.weight"}
    assert set(parameters.copied()) == {
        "frozen.weight",
        "frozen.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


def test_frozen_parameters_are_averaged_on_request():
    assert "frozen.bias" in ParameterSet(Tied(), include_frozen=True).averaged


def test_names_are_those_of_the_users_own_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    plain = list(ParameterSet(model).averaged)
    model[1] = torch.compile(model[1])
    assert list(ParameterSet(torch.compile(nn.DataParallel(model))).averaged) == plain


def test_parameters_without_a_module_are_known_by_position_or_by_the_names_given():
    model = nn.Linear(2, 2)
    assert list(ParameterSet(model.parameters()).averaged) == ["0", "1"]
    assert list(ParameterSet(model.named_parameters()).averaged) == ["weight", "bias"]
    assert list(ParameterSet(dict(model.named_parameters())).averaged) == ["weight", "bias"]


@pytest.mark.parametrize(
    "given", [[], [torch.zeros(2)], nn.ReLU(), [nn.Parameter(torch.zeros(2), requires_grad=False)]]
)
def test_nothing_to_average_is_an_error(given):
    with pytest.raises(ParameterSetError, match="no trainable floating-point parameter"):
        EMA(given)


def test_what_are_no_tensors_is_an_error_that_names_them():
    with pytest.raises(TypeError, match=r"1: builtins\.str"):
        EMA([nn.Parameter(torch.zeros(2)), "weights"])


def test_parameters_on_the_meta_device_are_refused():
    with pytest.raises(ParameterSetError, match="meta device hold no values yet: weight, bias"):
        EMA(nn.Linear(2, 2, device="meta"))


def test_parameters_that_deepspeed_has_taken_apart_are_refused():
    model = nn.Linear(2, 2)
    model.weight.ds_id = 0
    with pytest.raises(ParameterSetError, match="ZeRO-3 has taken these parameters apart: weight;"):
        EMA(model)


def add_parameter(model):
    model.extra = nn.Parameter(torch.zeros(3))
    return "extra: added"


def add_module(model):
    model.add_module("adapter", nn.Linear(2, 2))
    return "adapter.bias: added"


def replace_module(model):
    model[0] = nn.Linear(2, 5)
    return r"0.bias: \[2\] became \[5\]"


def remove_module(model):
    model[1] = nn.ReLU()
    return "1.weight: removed"


def unfreeze(model):
    model[2].requires_grad_(True)
    return "2.bias: added or made trainable"


def resize_in_place(model):
    model[1].weight.data = torch.zeros(7, 2)
    return r"1.weight: \[2, 2\] became \[7, 2\]"


@pytest.mark.parametrize(
    "change",
    [add_parameter, add_module, replace_module, remove_module, unfreeze, resize_in_place],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("make", [EMA, PostHocEMA])
def test_a_changed_model_is_an_error_that_names_what_changed(make, change):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    ema = make(model)
    ema.update(1)
    before = {name: average.clone() for name, average in ema.averages().items()}
    text = change(model)
    with pytest.raises(ParameterSetError, match=text):
        ema.update(2)
    assert ema.t == 1
    assert all(torch.equal(before[name], average) for name, average in ema.averages().items())


def test_parameter_objects_that_were_replaced_by_like_ones_are_followed():
    model = nn.Linear(2, 2)
    weight, bias = (parameter.detach().clone() for parameter in model.parameters())
    ema = EMA(model, decay=0.5)
    ema.update(1)
    model.load_state_dict({"weight": torch.full((2, 2), 8.0), "bias": torch.zeros(2)}, assign=True)
    ema.update(2)
    model.weight.data = torch.full((2, 2), 4.0)  # the same object, other memory
    ema.update(3)
    torch.testing.assert_close(ema.averages()["weight"], weight / 4 + 4.0)
    torch.testing.assert_close(ema.averages()["bias"], bias / 4)
    with torch.no_grad():
        model.weight.fill_(1e6)
    ema.update(1_000)
    torch.testing.assert_close(ema.averages()["weight"], torch.full((2, 2), 1e6))


def test_a_module_that_moved_to_another_dtype_is_still_averaged_in_its_first():
    model = nn.Linear(3, 3)
    ema = EMA(model, decay=0.0)
    model.to(torch.float64)
    ema.update(1)
    assert ema.averages()["weight"].dtype == torch.float32
    assert torch.equal(ema.averages()["weight"], model.weight.float())


def test_the_digest_tells_names_and_shapes_but_not_values():
    one, other = ParameterSet(nn.Linear(2, 3)), ParameterSet(nn.Linear(2, 3))
    assert one.digest == other.digest
    assert one.digest != ParameterSet(nn.Linear(3, 2)).digest
