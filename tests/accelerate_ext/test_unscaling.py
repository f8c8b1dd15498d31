"""Clipping and unscaling with several optimizers under one GradScaler: once each, by the scale that its loss had."""

from __future__ import annotations

import pytest
import torch
from torch import nn

INF = float("inf")
ONE = torch.ones(1, 1)


def test_clipping_each_model_unscales_each_optimizer_once(pair):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    with accelerator.accumulate(first, second):
        accelerator.backward(first(ONE).sum() * -2 + second(ONE).sum() * -3)
        norms = [accelerator.clip_grad_norm_(model.parameters(), 100.0).item() for model in (first, second)]
        one.step()
        two.step()
    assert norms == [2.0, 3.0]
    assert (first.weight.item(), second.weight.item()) == (2.0, 3.0)


@pytest.mark.parametrize(
    "clip",
    [
        lambda accelerator, model: accelerator.clip_grad_norm_(model.parameters(), 100.0),
        lambda accelerator, model: accelerator.clip_grad_value_(model.weight, 100.0),
    ],
    ids=["norm of all", "values of one tensor"],
)
def test_clipping_by_turns_leaves_the_other_models_next_gradients_scaled(pair, clip):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    with accelerator.accumulate(first, second):
        for model, optimizer in ((first, one), (second, two)):
            accelerator.backward(first(ONE).sum() * -2 + second(ONE).sum() * -2)  # reaches both, as through a GAN
            clip(accelerator, model)
            optimizer.step()
            one.zero_grad()
            two.zero_grad()
    assert (first.weight.item(), second.weight.item()) == (2.0, 2.0)


def test_unscaling_all_by_hand_and_dropping_gradients_starts_over(pair):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    with accelerator.accumulate(first, second):
        accelerator.backward((first(ONE) + second(ONE)).sum() * -2)
        accelerator.unscale_gradients()
        one.step()
        two.zero_grad()
        accelerator.backward(second(ONE).sum() * -2)
        two.step()
    assert (first.weight.item(), second.weight.item()) == (2.0, 2.0)


def test_unscaling_all_leaves_out_what_has_no_gradients_yet(pair):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    with accelerator.accumulate(first, second):
        for model, optimizer in ((first, one), (second, two)):
            accelerator.backward(model(ONE).sum() * -2)
            accelerator.unscale_gradients()
            optimizer.step()
            optimizer.zero_grad()
    assert (first.weight.item(), second.weight.item()) == (2.0, 2.0)


def test_unscaling_all_behind_one_unscales_the_other_and_one_that_was_not_prepared(pair):
    accelerator, first, second, one, _ = pair(mixed_precision="fp16")
    third = nn.Linear(1, 1, bias=False)
    accelerator.backward((first(ONE) + second(ONE) + third(ONE)).sum() * -2)
    accelerator.unscale_gradients(one)
    accelerator.unscale_gradients()
    accelerator.unscale_gradients([torch.optim.SGD(third.parameters())])
    assert [model.weight.grad.item() for model in (first, second, third)] == [-2.0] * 3


def test_clipping_by_value_unscales_once(pair):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    with accelerator.accumulate(first, second):
        accelerator.backward((first(ONE) + second(ONE)).sum() * -2)
        accelerator.clip_grad_value_([*first.parameters(), *second.parameters()], 1.5)
        one.step()
        two.step()
    assert (first.weight.item(), second.weight.item()) == (1.5, 1.5)


def test_unscaling_before_gradients_are_complete_is_still_an_error(pair):
    accelerator, first, _, one, _ = pair(mixed_precision="fp16")
    with accelerator.accumulate(first):
        accelerator.backward(first(ONE).sum())
        accelerator.unscale_gradients(one)
        accelerator.backward(first(ONE).sum())
        with pytest.raises(RuntimeError, match="unscale_"):
            accelerator.unscale_gradients(one)


def test_a_guard_by_hand_behind_clipping_backs_the_scale_off_and_goes_on(pair):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    for factor in (INF, -2.0):
        with accelerator.accumulate(first, second):
            accelerator.backward((first(ONE) + second(ONE)).sum() * factor)
            norm = accelerator.clip_grad_norm_([*first.parameters(), *second.parameters()], 100.0)
            if norm.isfinite():
                one.step()
                two.step()
            one.zero_grad()
            two.zero_grad()
    assert (first.weight.item(), second.weight.item()) == (2.0, 2.0)
    assert accelerator.scaler.get_scale() == 8.0
    assert (accelerator.applied_step, accelerator.skipped_steps) == (1, 1)
    assert [(optimizer.attempted_step, optimizer.applied_step) for optimizer in (one, two)] == [(2, 1)] * 2


def test_clipping_twice_in_one_attempt_unscales_once(pair):
    accelerator, first, _, one, _ = pair(mixed_precision="fp16")
    with accelerator.attempt(first) as update:
        accelerator.backward(first(ONE).sum() * -2)
        norms = [accelerator.clip_grad_norm_(first.parameters(), 100.0).item() for _ in range(2)]
        one.step()
    assert (norms, first.weight.item(), update.applied) == ([2.0, 2.0], 2.0, True)


@pytest.mark.parametrize("value", [INF, float("nan")])
@pytest.mark.parametrize("bad", [0, 1])
def test_optimizers_that_are_clipped_by_one_norm_skip_together(pair, bad, value):
    """The norm is not finite and goes into all gradients: the other weights would become NaN, or move by decay alone."""
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    factors = [2.0, 2.0]
    factors[bad] = value
    with accelerator.attempt(first, second) as update:
        accelerator.backward(first(ONE).sum() * factors[0] + second(ONE).sum() * factors[1])
        accelerator.clip_grad_norm_([first.weight, second.weight], 1.0)
        one.step()
        two.step()
    assert update.skipped
    assert (one.step_was_skipped, two.step_was_skipped) == (True, True)
    assert first.weight.item() == second.weight.item() == 0.0
