"""fp16 that was asked for where Accelerate makes no GradScaler: it is said once, when the first update is made."""

from __future__ import annotations

import copy
import pickle
import warnings

import accelerate
import pytest
import torch
from accelerate.utils import DistributedType

import accelerate_ext
from accelerate_ext import attach

FP16 = {"mixed_precision": "fp16"}


def prepared(accelerator):
    model = torch.nn.Linear(1, 1)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def train(accelerator, model, optimizer, factors=(1.0,)):
    outcomes = []
    for factor in factors:
        with accelerator.attempt(model) as update:
            accelerator.backward(model(torch.ones(1, 1)).sum() * factor)
            optimizer.step()
            optimizer.zero_grad()
        outcomes.append(update.outcome)
    return outcomes


@pytest.mark.parametrize("make", [accelerate_ext.Accelerator, lambda **o: attach(accelerate.Accelerator(**o))])
def test_fp16_without_a_scaler_is_said_once_at_the_first_update(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator = make(cpu=True, **FP16)
        model, optimizer = prepared(accelerator)
    with pytest.warns(UserWarning, match="no GradScaler") as said:
        assert train(accelerator, model, optimizer, (1.0, float("inf"), 1.0)) == ["applied"] * 3
    (warning,) = said
    text = str(warning.message)
    assert 'mixed_precision="fp16"' in text and "no GradScaler" in text and "(cpu)" in text
    assert all(way in text for way in ("skip_nonfinite=True", "bf16", "accelerator.scaler", "prepare"))
    assert warning.filename == __file__


def test_a_micro_batch_that_only_accumulates_says_nothing_yet():
    accelerator = accelerate_ext.Accelerator(cpu=True, gradient_accumulation_steps=2, **FP16)
    model, optimizer = prepared(accelerator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(accelerator, model, optimizer)
    with pytest.warns(UserWarning, match="no GradScaler"):
        train(accelerator, model, optimizer)


def test_a_scaler_that_comes_after_prepare_is_none_for_the_optimizer():
    accelerator = accelerate_ext.Accelerator(cpu=True, **FP16)
    model, optimizer = prepared(accelerator)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with pytest.warns(UserWarning, match="before `prepare`"):
        train(accelerator, model, optimizer)


@pytest.mark.parametrize("options", [{}, {"mixed_precision": "no"}, {"mixed_precision": "bf16"}])
def test_what_asks_for_no_scaler_is_told_of_none(options):
    accelerator = accelerate_ext.Accelerator(cpu=True, **options)
    model, optimizer = prepared(accelerator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(accelerator, model, optimizer) == ["applied"]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_of_ones_own_is_a_scaler_even_switched_off(scaled, enabled):
    accelerator = scaled(options=FP16, enabled=enabled)
    model, optimizer = prepared(accelerator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(accelerator, model, optimizer) == ["applied"]


def test_skip_nonfinite_skips_so_there_is_nothing_to_say():
    accelerator = accelerate_ext.Accelerator(cpu=True, skip_nonfinite=True, **FP16)
    model, optimizer = prepared(accelerator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(accelerator, model, optimizer, (float("inf"), 1.0)) == ["skipped", "applied"]


@pytest.mark.parametrize("kind", [DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM])
def test_an_engine_has_a_scale_of_its_own(kind):
    accelerator = accelerate.Accelerator(cpu=True, **FP16)
    accelerator.state.distributed_type = kind
    assert attach(accelerator)._attempts.warning_without_scaler is None


def test_a_pickle_that_has_not_said_it_yet_says_it():
    accelerator = accelerate_ext.Accelerator(cpu=True, **FP16)
    accelerator, (model, optimizer) = pickle.loads(pickle.dumps((accelerator, prepared(accelerator))))
    with pytest.warns(UserWarning, match="no GradScaler"):
        train(accelerator, model, optimizer)


def test_a_copy_and_a_pickle_do_not_say_it_again():
    accelerator = accelerate_ext.Accelerator(cpu=True, **FP16)
    model, optimizer = prepared(accelerator)
    with pytest.warns(UserWarning, match="no GradScaler"):
        train(accelerator, model, optimizer)
    for again in (copy.deepcopy(accelerator), pickle.loads(pickle.dumps(accelerator))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(again, *prepared(again))
