"""Lending averages to a model, and giving its own weights back."""

import copy

import pytest
import torch
from torch import nn

from accelerate_ext.ema import EMA, ParameterSetError, PostHocEMA


def trained(make=EMA, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).requires_grad_(False)).to(dtype)
    ema = make(model)
    for step in range(1, 8):
        with torch.no_grad():
            model(torch.randn(6, 3).to(dtype))
            for parameter in model[:2].parameters():
                parameter.add_(torch.randn_like(parameter))
        ema.update(step)
    return model, ema


def test_inside_the_context_the_model_has_the_average_and_behind_it_its_own_weights_bit_for_bit():
    model, ema = trained(PostHocEMA)
    before = copy.deepcopy(model.state_dict())
    for width in (0.05, 0.10):
        with ema.averaged_weights(width):
            assert torch.equal(model[0].weight, ema.averages(width)["0.weight"])
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_own_weights_come_back_after_an_error_too():
    model, ema = trained()
    before = model[0].weight.clone()

    def evaluate():
        raise KeyError("metric")

    with pytest.raises(KeyError), ema.averaged_weights():
        evaluate()
    assert torch.equal(model[0].weight, before)


def test_lent_weights_are_not_averaged():
    _, ema = trained()
    with ema.averaged_weights(), pytest.raises(RuntimeError, match="must not be averaged: call `restore` first"):
        ema.update(9)
    ema.update(9)
    assert ema.t == 9


def test_store_copy_and_restore_take_parameters_as_emamodel_does():
    model, ema = trained()
    before = model[0].weight.clone()
    ema.store(model.parameters())
    ema.copy_to(model.parameters())
    assert torch.equal(model[0].weight, ema.averages()["0.weight"])
    ema.restore(model.parameters())
    assert torch.equal(model[0].weight, before)
    with pytest.raises(RuntimeError, match="no stored weights"):
        ema.restore(model.parameters())


def test_only_trainable_parameters_may_be_given():
    model, ema = trained()
    ema.copy_to([parameter for parameter in model.parameters() if parameter.requires_grad])
    assert torch.equal(model[0].weight, ema.averages()["0.weight"])


def test_another_model_becomes_complete_with_frozen_parameters_and_buffers():
    model, ema = trained()
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    ema.copy_to(other)
    assert torch.equal(other[0].weight, ema.averages()["0.weight"])
    assert torch.equal(other[1].running_mean, model[1].running_mean)
    assert torch.equal(other[2].weight, model[2].weight)


def test_an_average_is_rounded_to_the_dtype_of_the_model():
    model, ema = trained(PostHocEMA, torch.bfloat16)
    assert ema.averages()["0.weight"].dtype == torch.float32
    ema.copy_to()
    assert torch.equal(model[0].weight, ema.averages()["0.weight"].bfloat16())


def test_a_model_that_does_not_fit_is_an_error_that_names_parameters_and_stays_as_it_was():
    _, ema = trained()
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False))
    before = other[0].weight.clone()
    with pytest.raises(ParameterSetError, match=r"(?s)1\.weight: missing.*1\.bias: missing"):
        ema.copy_to(other)
    with pytest.raises(ParameterSetError, match=r"0\.weight: must have shape \[4, 3\], has \[5, 3\]"):
        ema.copy_to(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(4)))
    assert torch.equal(other[0].weight, before)


def test_weights_are_lent_once_at_a_time_and_the_own_ones_are_kept():
    model = nn.Linear(2, 1)
    ema = EMA(model, decay=0.9)
    ema.update(1)
    with torch.no_grad():
        model.weight.add_(1)
    own = model.weight.detach().clone()
    with ema.averaged_weights():
        with pytest.raises(RuntimeError, match=r"stored already.* call `restore` first"), ema.averaged_weights():
            pass
        with pytest.raises(RuntimeError, match="stored already"):
            ema.store()
    assert torch.equal(model.weight, own)
