"""Averages in checkpoints."""

from __future__ import annotations

import gc
import math
import warnings
import weakref

import pytest
import torch
from safetensors.torch import save_file

from accelerate_ext import CheckpointError
from accelerate_ext.averages import Averages, read_state, write_states


class Mean:
    """An average as simple as they come."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.shadow = [parameter.detach().clone() for parameter in self.parameters]
        self.t_last = 0

    def update(self, t: int) -> None:
        if t > self.t_last:
            for mean, parameter in zip(self.shadow, self.parameters, strict=True):
                mean.lerp_(parameter.detach(), 1 / t)
            self.t_last = t

    def state_dict(self):
        return {"shadow": self.shadow, "t_last": self.t_last, "by group": {0: ("a", None, True), 1: math.inf}}

    def load_state_dict(self, state) -> None:
        assert state["by group"] == {0: ("a", None, True), 1: math.inf}
        for mean, stored in zip(self.shadow, state["shadow"], strict=True):
            mean.copy_(stored)
        self.t_last = state["t_last"]


def test_an_average_travels_with_the_checkpoint(loop, tmp_path):
    def prepare():
        training = loop(infinite=[1], batches=4)
        record, loader = training.prepare()
        mean = Mean(record.model)
        record.accelerator.register_average(mean)
        training.on_boundary = lambda record: mean.update(record.accelerator.applied_step)
        return training, record, loader, mean

    training, record, loader, mean = prepare()
    training.train(record, loader)
    assert mean.t_last == 3
    record.accelerator.save_state(str(tmp_path))
    assert (tmp_path / "average_ema.safetensors").is_file()
    _, other, _, loaded = prepare()
    other.accelerator.load_state(str(tmp_path))
    assert loaded.t_last == 3
    assert all(torch.equal(one, two) for one, two in zip(mean.shadow, loaded.shadow, strict=True))


def test_a_checkpoint_without_the_average_loads_with_a_warning(loop, tmp_path):
    loop(batches=1).run().accelerator.save_state(str(tmp_path))
    record, _ = loop().prepare()
    mean = Mean(record.model)
    record.accelerator.register_average(mean, "slow")
    with pytest.warns(UserWarning, match=r"has no average_slow\.safetensors: the average 'slow' stays as it is"):
        record.accelerator.load_state(str(tmp_path))
    assert mean.t_last == 0


def test_averages_that_nobody_has_registered_are_no_hindrance_and_are_named(loop, tmp_path):
    record = loop(batches=1).run()
    for name in ("ema", "fast", "slow"):
        record.accelerator.register_average(Mean(record.model), name)
    record.accelerator.save_state(str(tmp_path))
    other, _ = loop().prepare()
    other.accelerator.register_average(Mean(other.model), "fast")
    with pytest.warns(UserWarning, match=r"holds the averages 'ema', 'slow', which nobody has registered"):
        other.accelerator.load_state(str(tmp_path))
    other.accelerator.register_average(Mean(other.model), "ema")
    other.accelerator.register_average(Mean(other.model), "slow")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        other.accelerator.load_state(str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back_bit_for_bit(tmp_path, dtype):
    tensor = torch.randn(3, 4).to(dtype)
    shared = {
        "one": tensor,
        "view": tensor[:, 1:3],
        "again": tensor,
        "empty": torch.zeros(0, 2),
        "scalar": tensor[0, 0],
    }
    write_states(tmp_path, {"x": shared})
    loaded = read_state(tmp_path / "average_x.safetensors")
    for name, value in shared.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "ä"])
def test_a_name_that_is_no_part_of_a_file_name_is_refused(name):
    with pytest.raises(ValueError, match="`name` must be made of letters"):
        Averages().add(name, Mean(torch.nn.Linear(1, 1)))


def test_a_name_is_used_once():
    averages = Averages()
    mean = Mean(torch.nn.Linear(1, 1))
    averages.add("ema", mean)
    averages.add("ema", mean)
    with pytest.raises(ValueError, match="'ema' is registered already"):
        averages.add("ema", Mean(torch.nn.Linear(1, 1)))


def test_a_model_is_no_average():
    with pytest.raises(TypeError, match="an average must have `update`; Linear is a module without one"):
        Averages().add("ema", torch.nn.Linear(1, 1))
    Averages().add("ema", torch.optim.swa_utils.AveragedModel(torch.nn.Linear(1, 1)))


def test_what_is_given_is_looked_at_before_its_name():
    with pytest.raises(TypeError, match="must have `state_dict`"):
        Averages().add("a/b", object())


def test_an_object_without_a_state_is_refused():
    with pytest.raises(TypeError, match="must have `state_dict` and `load_state_dict`, got object"):
        Averages().add("ema", object())


def test_a_state_that_needs_pickle_is_refused(tmp_path):
    with pytest.raises(TypeError, match="must hold tensors, numbers, strings, lists and dicts, got"):
        write_states(tmp_path, {"x": {"f": print}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "average_x.safetensors"
    write_states(tmp_path, {"x": {"t": torch.ones(100)}})
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        save_file({"t": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match=r"average_x\.safetensors must hold an average"):
        read_state(path)


def test_words_and_numbers_are_keys_and_come_back_as_what_they_were(tmp_path):
    state = {"a": {1: torch.zeros(2), 0.5: torch.Size([2, 3])}, "b": [(1, [2])]}
    write_states(tmp_path, {"mine": state})
    got = read_state(tmp_path / "average_mine.safetensors")
    assert list(got["a"]) == [1, 0.5]
    assert (got["a"][0.5], got["b"]) == ((2, 3), [(1, [2])])


@pytest.mark.parametrize("key", [("a", 1), None, b"a"])
def test_a_key_that_would_not_come_back_is_refused_when_it_is_saved(tmp_path, key):
    with pytest.raises(TypeError, match="must have words or numbers as keys"):
        write_states(tmp_path, {"mine": {key: 1}})
    assert not list(tmp_path.iterdir())


def test_a_damaged_average_is_named_before_anything_is_loaded(loop, tmp_path):
    record = loop(batches=2, scaler=None).run()
    record.accelerator.register_average(Mean(record.model))
    record.accelerator.save_state(str(tmp_path))
    (tmp_path / "average_ema.safetensors").write_bytes(b"not this")
    other, _ = loop(seed=5, scaler=None).prepare()
    other.accelerator.register_average(Mean(other.model))
    before = [parameter.detach().clone() for parameter in other.model.parameters()]
    with pytest.raises(CheckpointError, match=r"average_ema\.safetensors must hold an average"):
        other.accelerator.load_state(str(tmp_path))
    assert all(torch.equal(one, two) for one, two in zip(before, other.model.parameters(), strict=True))


def test_a_second_training_has_averages_of_its_own(loop, tmp_path):
    """As in `find_executable_batch_size`, which runs a whole training again after it has freed the memory."""
    record, _ = loop(scaler=None).prepare()
    for _ in range(2):
        record.accelerator.free_memory()
        model, _ = record.accelerator.prepare(
            torch.nn.Linear(1, 1), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        )
        last = Mean(model)
        record.accelerator.register_average(last)
    gone = weakref.ref(record.accelerator._counts_in_checkpoints.averages._by_name["ema"])
    assert gone() is last
    del last, model
    record.accelerator.free_memory()
    gc.collect()
    assert gone() is None
