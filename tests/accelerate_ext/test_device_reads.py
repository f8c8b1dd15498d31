"""How often the host waits for the device, counted."""

from __future__ import annotations

import accelerate
import pytest
import torch

from accelerate_ext import Accelerator
from benchmarks.device_reads import DeviceReads


def reads_of(loop, cls, kind, scheduler=False, watch=None, **options):
    """Reads in 20 updates, two of them skipped, without those of the loop's own."""
    training = loop(cls, optimizer=kind, batches=20, **options)
    record, loader = training.prepare()
    reads = DeviceReads()
    for attempt, batch in enumerate(loader):
        with reads, record.accelerator.accumulate(record.model):
            loss = record.model(batch).pow(2).mean()
            record.accelerator.backward(loss * float("inf") if attempt in (3, 11) else loss)
            record.optimizer.step()
            if scheduler:
                record.scheduler.step()
            record.optimizer.zero_grad()
        with reads:
            if watch is not None:
                watch(record.accelerator)
    return reads.count, record


@pytest.mark.parametrize("kind", ["adamw", "sgd", "silent"])
def test_an_optimizer_that_is_not_fused_costs_what_grad_scaler_costs(loop, kind, plain_class):
    plain, _ = reads_of(loop, plain_class, kind, scheduler=True)
    ours, record = reads_of(loop, Accelerator, kind, scheduler=True, watch=ask_everything)
    assert plain > 0
    assert ours == plain
    assert record.accelerator.applied_step == 18


def ask_everything(accelerator):
    return (
        accelerator.update_applied,
        accelerator.applied_step,
        accelerator.skipped_steps,
        accelerator.attempted_step,
        accelerator.applied_step_tensor,
        accelerator._optimizers[0].step_was_skipped,
    )


def test_without_a_scaler_nothing_is_read(loop):
    count, _ = reads_of(loop, Accelerator, "sgd", watch=ask_everything, scaler=None)
    assert count == 0


@pytest.mark.parametrize("kind", ["adamw fused", "sgd fused"])
def test_a_fused_optimizer_costs_nothing_until_somebody_asks(loop, kind, plain_class):
    plain, _ = reads_of(loop, plain_class, kind)
    ours, record = reads_of(loop, Accelerator, kind)
    assert (plain, ours) == (0, 0)
    assert record.accelerator.attempted_step == 20
    assert record.accelerator.applied_step == 18


def test_the_tensor_of_applied_steps_costs_nothing(loop):
    steps = []
    count, _ = reads_of(
        loop,
        Accelerator,
        "adamw fused",
        watch=lambda accelerator: steps.append(accelerator.applied_step_tensor),
    )
    assert count == 0
    expected = [applied for attempt in range(20) for applied in [attempt + 1 - (attempt >= 3) - (attempt >= 11)]]
    assert torch.stack(steps).tolist() == expected


def test_a_fused_optimizer_costs_one_read_an_update_when_asked(loop):
    count, _ = reads_of(loop, Accelerator, "adamw fused", scheduler=True, watch=ask_everything)
    assert count == 20


@pytest.mark.parametrize(("kind", "expected"), [("sgd", 20), ("sgd fused", 0), ("adamw fused", 0)])
def test_the_guard_reads_once_an_update_and_not_at_all_when_fused(loop, kind, expected):
    options = {"skip_nonfinite": True}
    count, record = reads_of(loop, Accelerator, kind, scaler=None, options=options)
    assert count == expected
    assert record.accelerator.applied_step == 18


def test_the_counter_counts(plain_class):
    assert plain_class is accelerate.Accelerator
    tensor = torch.ones(())
    with DeviceReads() as reads:
        tensor.item()
        bool(tensor)
        if tensor:
            float(tensor)
    assert reads.count >= 4


def test_verdicts_on_the_device_take_bounded_memory(loop):
    _, record = reads_of(loop, Accelerator, "adamw fused")
    tally = record.accelerator._attempts.tally
    assert len(tally._waiting) <= 8
    assert tally.seen_so_far.attempted >= 20 - 16
