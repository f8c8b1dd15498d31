"""The Accelerator: what is counted, and when."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import accelerate_ext

INF = float("inf")


def test_the_signature_shows_accelerates_arguments_and_ours():
    parameters = inspect.signature(accelerate_ext.Accelerator).parameters
    assert {"mixed_precision", "gradient_accumulation_steps", "skip_nonfinite", "max_consecutive_skips"} <= set(
        parameters
    )


@pytest.mark.parametrize("kind", ["adamw", "adamw fused", "sgd", "sgd fused", "silent", "schedulefree"])
@pytest.mark.parametrize("accumulation", [1, 3, 4])
@pytest.mark.parametrize(
    "infinite", [[], [0], [1], [-1], [0, 1], [1, 2], [0, 1, -1]], ids=lambda where: "skip " + " ".join(map(str, where))
)
def test_exactly_the_updates_that_moved_the_weights_are_counted(loop, kind, accumulation, infinite):
    batches = 4 * accumulation + (2 if accumulation > 2 else 0)  # a short last window
    attempts = 4 + (accumulation > 2)
    infinite = [where % attempts for where in infinite]
    moved = []
    before = []

    def watch(record):
        now = [parameter.detach().clone() for parameter in record.model.parameters()]
        moved.append(not all(torch.equal(left, right) for left, right in zip(before[-1], now, strict=True)))
        before.append(now)
        assert record.accelerator.update_applied == moved[-1]
        assert record.optimizer.step_was_skipped != moved[-1]
        assert record.accelerator.applied_step == record.optimizer.applied_step == sum(moved)
        assert record.accelerator.attempted_step == len(moved)

    training = loop(optimizer=kind, batches=batches, accumulation=accumulation, infinite=infinite, window="attempt")
    training.on_boundary = watch
    record, loader = training.prepare()
    before.append([parameter.detach().clone() for parameter in record.model.parameters()])
    training.train(record, loader)
    assert moved == [attempt not in infinite for attempt in range(attempts)]
    assert record.accelerator.skipped_steps == len(infinite)
    outcomes = [outcome for outcome in record.outcomes if outcome != "not attempted"]
    assert outcomes == ["applied" if applied else "skipped" for applied in moved]


def test_growth_in_the_update_that_recovers_does_not_hide_a_skip(loop):
    record = loop(infinite=[0, 2], batches=4, scaler={"init_scale": 16.0, "growth_interval": 1}).run()
    assert record.scales == [8.0, 16.0, 8.0, 16.0]
    assert record.flags == [True, False, True, False]


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
@pytest.mark.parametrize("backoff", [0.25, 0.999, 1 - 1e-9])
def test_any_backoff_factor_will_do(loop, kind, backoff):
    record = loop(
        optimizer=kind, infinite=[1], batches=3, scaler={"init_scale": 16.0, "backoff_factor": backoff}
    ).run()
    assert record.flags == [False, True, False]
    assert record.accelerator.applied_step == 2


def test_a_scale_that_is_zero_already_does_not_hide_a_skip(loop):
    record = loop(optimizer="adamw fused", infinite=[0], batches=1, scaler={"init_scale": 0.0}).run()
    assert record.flags == [True]


def test_a_nan_counts_like_an_infinity(loop):
    record = loop(infinite=[1], batches=3, bad_value=float("nan")).run()
    assert record.accelerator.applied_step == 2


def test_a_disabled_scaler_skips_nothing(loop):
    record = loop(batches=3, scaler={"enabled": False}).run()
    assert record.accelerator.applied_step == 3


def test_a_micro_batch_is_never_applied(loop):
    seen = []
    training = loop(batches=4, accumulation=2)
    record, loader = training.prepare()
    for batch in loader:
        with record.accelerator.accumulate(record.model):
            inside_before = record.accelerator.update_applied
            training.micro_batch(record, batch, 0)
        seen.append((inside_before, record.accelerator.update_applied, record.accelerator.sync_gradients))
    assert seen == [(False, False, False), (False, True, True)] * 2


def test_the_answer_may_be_asked_for_as_often_as_one_likes(loop):
    record = loop(batches=1).run()
    assert [record.accelerator.update_applied for _ in range(3)] == [True] * 3
    assert [record.accelerator.applied_step for _ in range(3)] == [1] * 3


def test_a_step_behind_the_window_belongs_to_it(loop):
    record, loader = loop(batches=4, accumulation=2).prepare()
    accelerator = record.accelerator
    applied = []
    for batch in loader:
        with accelerator.attempt(record.model) as update:
            accelerator.backward(record.model(batch).mean())
        record.optimizer.step()
        record.optimizer.zero_grad()
        applied.append((update.outcome, accelerator.applied_step, accelerator.skipped_steps))
    assert applied == [("not attempted", 0, 0), ("applied", 1, 0), ("not attempted", 1, 0), ("applied", 2, 0)]


def test_a_loop_that_calls_backward_on_the_loss_is_counted(loop):
    record, loader = loop(batches=3, scaler=None).prepare()
    for batch in loader:
        record.model(batch).mean().backward()
        assert not record.accelerator.update_applied  # a new attempt has begun
        record.optimizer.step()
        assert record.accelerator.update_applied
        record.optimizer.zero_grad()
    assert (record.accelerator.applied_step, record.optimizer.applied_step) == (3, 3)


def test_a_step_without_a_backward_pass_is_no_attempt(loop):
    record, _ = loop(scaler=None).prepare()
    for parameter in record.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    record.optimizer.step()
    record.optimizer.zero_grad()
    record.optimizer.step()
    assert record.accelerator.attempted_step == 0


def test_a_second_step_on_the_same_gradients_is_no_second_attempt(loop):
    record, loader = loop(scaler=None, batches=1).prepare()
    for batch in loader:
        record.accelerator.backward(record.model(batch).mean())
        record.optimizer.step()
        record.optimizer.step()
    assert record.accelerator.applied_step == 1


def test_a_batch_that_is_left_out_before_the_backward_pass_is_no_attempt(loop):
    record, loader = loop(batches=3).prepare()
    outcomes = []
    for number, batch in enumerate(loader):
        with record.accelerator.attempt(record.model) as update:
            if number != 1:
                record.accelerator.backward(record.model(batch).mean())
                record.optimizer.step()
                record.optimizer.zero_grad()
        outcomes.append(update.outcome)
    assert outcomes == ["applied", "not attempted", "applied"]


def test_an_exception_in_the_block_passes_and_is_no_attempt(loop):
    record, loader = loop(batches=2).prepare()
    updates = []

    def fail():
        with record.accelerator.attempt(record.model) as update:
            updates.append(update)
            record.accelerator.backward(record.model(next(iter(loader))).mean())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not updates[0].attempted
    with record.accelerator.attempt(record.model) as update:
        pass
    assert update.outcome == "not attempted"
    assert record.accelerator.attempted_step == 0
    loop.train(loop(), record, loader)
    assert record.accelerator.applied_step == 2


def test_windows_one_in_the_other_are_one(loop):
    record, loader = loop(batches=2).prepare()
    for batch in loader:
        with record.accelerator.accumulate(record.model), record.accelerator.accumulate(record.model):
            record.accelerator.backward(record.model(batch).mean())
            record.optimizer.step()
            record.optimizer.zero_grad()
    assert record.accelerator.applied_step == 2


def test_a_guard_by_hand_leaves_out_only_the_optimizers_of_the_named_models(scaled):
    accelerator = scaled()
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    first, second, one, two = accelerator.prepare(
        first, second, torch.optim.SGD(first.parameters()), torch.optim.SGD(second.parameters())
    )
    with accelerator.accumulate(first):
        accelerator.backward(first(torch.ones(1, 1)).sum() * INF)
    assert (one.step_was_skipped, two.step_was_skipped) == (True, False)
    assert (one.skipped_steps, two.skipped_steps) == (1, 0)


def test_with_one_optimizer_the_named_model_need_not_hold_its_parameters(scaled):
    accelerator = scaled()
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    with accelerator.attempt(nn.Sequential()) as update:
        accelerator.backward(model(torch.ones(1, 1)).sum())
    assert (update.outcome, optimizer.skipped_steps) == ("skipped", 1)


def test_the_tensor_of_applied_steps_is_on_the_device_of_the_accelerator_whatever_the_default(loop):
    record = loop(batches=2).run()
    with torch.device("meta"):
        assert record.accelerator.applied_step_tensor.device.type == "cpu"


def test_the_tensor_of_applied_steps_follows_the_count(loop):
    for kind in ("adamw", "adamw fused"):
        record = loop(optimizer=kind, infinite=[1, 4], batches=25, scaler={"init_scale": 16.0}).run()
        assert record.accelerator.applied_step_tensor.dtype == torch.int64
        assert record.accelerator.applied_step_tensor.item() == record.accelerator.applied_step == 23
        assert record.optimizer.applied_step_tensor.item() == 23


def test_freeing_memory_begins_at_zero(loop):
    training = loop(batches=2)
    record, loader = training.prepare()
    training.train(record, loader)
    record.accelerator.free_memory()
    assert (record.accelerator.attempted_step, record.accelerator.applied_step) == (0, 0)
    model = nn.Linear(4, 1)
    record.model, record.optimizer = record.accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    for batch in loader:
        with record.accelerator.attempt(record.model) as update:
            record.accelerator.backward(record.model(batch).mean())
        record.optimizer.step()
        assert update.applied
    assert (record.accelerator.attempted_step, record.accelerator.applied_step) == (2, 2)


@pytest.mark.filterwarnings("ignore:an optimizer must be prepared:RuntimeWarning")
def test_an_optimizer_that_was_not_prepared_is_neither_counted_nor_blamed():
    accelerator = accelerate_ext.Accelerator(cpu=True, max_consecutive_skips=1)
    model = accelerator.prepare(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        with accelerator.attempt(model) as update:
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
        assert not update.attempted
    assert accelerator.attempted_step == 0


def test_an_attempt_takes_modules_only():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    with pytest.raises(TypeError, match="the models that are trained, got str, list"):
        accelerator.attempt(nn.Linear(1, 1), "model", [nn.Linear(1, 1)])


def test_a_block_that_cannot_be_entered_leaves_no_window_open(loop, monkeypatch):
    record, loader = loop(batches=2).prepare()

    def refuse(model):
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(record.accelerator, "no_sync", refuse)
        record.accelerator.gradient_accumulation_steps = 5
        with pytest.raises(ZeroDivisionError), record.accelerator.accumulate(record.model):
            pass
    record.accelerator.gradient_state._set_sync_gradients(True)
    for batch in loader:
        record.accelerator.backward(record.model(batch).mean())
        record.optimizer.step()
        record.optimizer.zero_grad()
    assert record.accelerator.applied_step == 2
