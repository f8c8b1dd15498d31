"""Several optimizers under one GradScaler."""

from __future__ import annotations

import functools

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from accelerate_ext.scaling import ScalerTurn, StepProbe, copy_of_scale

INF = float("inf")
ONE = torch.ones(1, 1)


def count_updates(accelerator):
    calls = []
    update = accelerator.scaler.update
    accelerator.scaler.update = lambda *args: (calls.append(1), update(*args))[1]
    return calls


def test_the_scale_is_updated_once_an_attempt_at_its_end(pair):
    accelerator, first, second, one, two = pair()
    calls = count_updates(accelerator)
    with accelerator.attempt(first, second) as update:
        accelerator.backward((first(ONE) + second(ONE)).sum() * INF)
        one.step()
        two.step()
        assert calls == []
    assert calls == [1]
    assert accelerator.scaler.get_scale() == 8.0  # both overflowed: halved once
    assert update.skipped


@pytest.mark.parametrize("bad", [0, 1])
def test_either_optimizer_may_overflow(pair, bad):
    accelerator, first, second, one, two = pair()
    factors = [-2.0, -2.0]
    factors[bad] = INF
    with accelerator.attempt(first, second) as update:
        accelerator.backward(first(ONE).sum() * factors[0] + second(ONE).sum() * factors[1])
        for optimizer in (one, two):
            optimizer.step()
            optimizer.zero_grad()
    weights = [first.weight.item(), second.weight.item()]
    assert weights[bad] == 0.0
    assert weights[1 - bad] == 2.0
    assert [one.step_was_skipped, two.step_was_skipped] == [bad == 0, bad == 1]
    assert [one.applied_step, two.applied_step] == [int(bad == 1), int(bad == 0)]
    assert not update.applied
    assert accelerator.skipped_steps == 1


def test_outside_of_windows_the_scale_waits_for_the_second_step(pair):
    accelerator, first, second, one, two = pair()
    calls = count_updates(accelerator)
    for _ in range(2):
        accelerator.backward(first(ONE).sum() * INF + second(ONE).sum() * -2)
        one.step()
        assert len(calls) == accelerator.attempted_step - 1
        two.step()
        assert len(calls) == accelerator.attempted_step
        one.zero_grad()
        two.zero_grad()
    assert second.weight.item() == 4.0
    assert accelerator.attempted_step == 2


def test_a_second_step_on_the_same_gradients_ends_the_attempt(pair):
    accelerator, first, second, one, two = pair()
    calls = count_updates(accelerator)
    accelerator.backward((first(ONE) + second(ONE)).sum() * -2)
    one.step()
    assert calls == []
    one.step()
    assert calls != []
    two.step()
    assert (one.attempted_step, two.applied_step, second.weight.item()) == (1, 1, 2.0)


def test_outside_of_windows_a_backward_pass_ends_the_attempt(pair):
    accelerator, first, second, one, two = pair()
    for factor in (INF, -2.0):
        for model, optimizer in ((first, one), (second, two)):
            accelerator.backward(model(ONE).sum() * factor)
            optimizer.step()
            optimizer.zero_grad()
    assert (first.weight.item(), second.weight.item()) == (2.0, 2.0)
    assert (one.applied_step, two.applied_step, accelerator.attempted_step) == (1, 1, 4)


def test_a_gan_may_step_twice_within_one_window(pair):
    accelerator, first, second, one, two = pair()
    with accelerator.attempt(first, second) as update:
        accelerator.backward(first(ONE).sum() * INF)
        one.step()
        one.zero_grad()
        two.zero_grad()
        accelerator.backward(second(ONE).sum() * -2)
        two.step()
        two.zero_grad()
    assert (first.weight.item(), second.weight.item()) == (0.0, 2.0)
    assert accelerator.scaler.get_scale() == 8.0
    assert (one.skipped_steps, two.applied_step) == (1, 1)
    assert update.skipped


@pytest.mark.parametrize("factors", [(INF, -2.0), (-2.0, INF), (-2.0, -2.0)])
def test_one_optimizer_may_step_twice_within_one_window(pair, factors):
    accelerator, first, second, one, two = pair()
    with accelerator.attempt(first, second) as update:
        accelerator.backward(second(ONE).sum() * -2)
        for factor in factors:
            accelerator.backward(first(ONE).sum() * factor)
            one.step()
            one.zero_grad()
        two.step()
        two.zero_grad()
    finite = sum(factor != INF for factor in factors)
    assert (first.weight.item(), second.weight.item()) == (2.0 * finite, 2.0)
    assert accelerator.scaler.get_scale() == (16.0 if finite == 2 else 8.0)
    assert (one.attempted_step, one.applied_step) == (2, finite)
    assert update.applied == (finite == 2)


def test_gradients_accumulated_over_micro_batches_keep_one_scale(pair):
    accelerator, first, second, one, two = pair(gradient_accumulation_steps=2)
    for _ in range(2):
        with accelerator.accumulate(first, second):
            accelerator.backward(first(ONE).sum() * INF)
            one.step()
            one.zero_grad()
            accelerator.backward(second(ONE).sum() * -2)
            two.step()
            two.zero_grad()
    assert second.weight.item() == 2.0


def test_a_checkpoint_has_the_scale_after_gradients_that_nobody_stepped_on(pair, tmp_path):
    accelerator, first, second, *_ = pair(mixed_precision="fp16")
    with accelerator.accumulate(first, second):
        accelerator.backward((first(ONE) + second(ONE)).sum() * INF)
        accelerator.clip_grad_norm_([*first.parameters(), *second.parameters()], 100.0)
    accelerator.save_state(str(tmp_path))
    assert accelerator.scaler.get_scale() == 8.0


def test_a_checkpoint_between_two_steps_does_not_end_their_attempt(pair, tmp_path):
    accelerator, first, second, one, two = pair()
    with accelerator.accumulate(first, second):
        accelerator.backward((first(ONE) + second(ONE)).sum() * INF)
        one.step()
        accelerator.save_state(str(tmp_path))
        two.step()
    assert accelerator.scaler.get_scale() == 8.0


def test_a_checkpoint_between_clipping_and_the_step_leaves_gradients_unscaled(pair, tmp_path):
    accelerator, first, second, one, two = pair(mixed_precision="fp16")
    accelerator.backward((first(ONE) + second(ONE)).sum() * -2)
    accelerator.clip_grad_norm_([*first.parameters(), *second.parameters()], 100.0)
    accelerator.save_state(str(tmp_path))
    one.step()
    two.step()
    assert (first.weight.item(), second.weight.item()) == (2.0, 2.0)


class LooksAtTheScale(AcceleratedOptimizer):
    """Somebody's prepared optimizer that notes the loss scale while it steps."""

    def step(self, closure=None):
        self.seen = self.scaler.get_scale(), self.scaler.is_enabled()
        super().step(closure)


def test_the_scaler_can_be_asked_during_a_step(scaled):
    accelerator = scaled()
    model = nn.Linear(1, 1)
    optimizer = LooksAtTheScale(torch.optim.SGD(model.parameters()), scaler=accelerator.scaler)
    optimizer._is_accelerate_prepared = True
    optimizer = accelerator.prepare_optimizer(optimizer)
    accelerator.backward(model(ONE).sum())
    optimizer.step()
    assert (optimizer.seen, optimizer.applied_step) == ((16.0, True), 1)


def test_an_exception_in_the_window_leaves_no_update_behind(pair):
    accelerator, first, second, one, two = pair()

    def fail():
        with accelerator.accumulate(first, second):
            accelerator.backward((first(ONE) + second(ONE)).sum() * -2)
            one.step()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    two.zero_grad()
    with accelerator.accumulate(first, second):
        accelerator.backward((first(ONE) + second(ONE)).sum() * -2)
        one.step()
        two.step()
    assert two.applied_step == 1
    assert accelerator.applied_step == 2


class Told(torch.optim.SGD):
    """Keeps what its `step()` was given."""

    def step(self, *args, **kwargs):
        self.told = args, kwargs
        super().step()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_probe_hands_everything_on_and_leaves_the_optimizer_as_it_was(is_replaced):
    scaler, weight = torch.amp.GradScaler("cpu", init_scale=2.0), nn.Parameter(torch.ones(()))
    optimizer = Told([weight], lr=0.1)
    if is_replaced:
        optimizer.step = functools.partial(Told.step, optimizer)
    before = vars(optimizer).get("step")
    scaler.scale(weight * 3).backward()
    probe = StepProbe(scaler)
    probe.step(optimizer, 1, extra=2)
    assert optimizer.told == ((1,), {"extra": 2})
    assert vars(optimizer).get("step") is before
    assert not probe.verdict.skipped and weight.item() == pytest.approx(0.7)


def test_a_turn_knows_after_which_backward_pass_whose_gradients_were_unscaled():
    scaler, turn = torch.amp.GradScaler("cpu"), ScalerTurn()
    one, two = (torch.optim.SGD([nn.Parameter(torch.ones(()))]) for _ in range(2))
    turn.update()  # nothing is due
    turn.was_unscaled(scaler, one, 3)
    assert [turn.is_unscaled(one, 3), turn.is_unscaled(one, 4), turn.is_unscaled(two, 3)] == [True, False, False]
    assert not turn.is_update_due
    turn.stepped(scaler, one)
    assert turn.is_update_due and turn.has_stepped(one) and not turn.has_stepped(two)


def test_gradients_that_were_unscaled_and_dropped_still_back_the_scale_off():
    scaler, turn = torch.amp.GradScaler("cpu", init_scale=16.0), ScalerTurn()
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight])
    scaler.scale(weight * INF).backward()
    scaler.unscale_(optimizer)
    turn.was_unscaled(scaler, optimizer, 1)
    turn.gradients_dropped(optimizer)
    turn.update()
    turn.update()  # nothing is due any more
    assert scaler.get_scale() == 8.0


def test_gradients_dropped_behind_their_step_leave_the_update_due():
    scaler, turn = torch.amp.GradScaler("cpu"), ScalerTurn()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(()))])
    turn.was_unscaled(scaler, optimizer, 1)
    turn.gradients_dropped(optimizer)  # of which the scaler knows nothing: somebody has updated it
    turn.was_unscaled(scaler, optimizer, 2)
    turn.stepped(scaler, optimizer)
    turn.gradients_dropped(optimizer)
    assert turn.has_stepped(optimizer) and turn.is_update_due


def test_a_copy_of_the_scale_stays_as_it_was():
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    assert copy_of_scale(scaler) is None and copy_of_scale(object()) is None
    scaler.scale(torch.ones(()))
    kept = copy_of_scale(scaler)
    scaler.update(8.0)
    assert (kept.item(), scaler.get_scale()) == (16.0, 8.0)
