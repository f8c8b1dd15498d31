"""Averages of `accelerate_ext.ema` in a loop, in checkpoints, and in a Trainer."""

from __future__ import annotations

import pytest
import torch

from accelerate_ext.ema import EMA, PostHocEMA
from benchmarks.device_reads import DeviceReads

INFINITE = (0, 3, 4, 9)


def make_ema(model):
    return EMA(model, decay=0.9)


def make_post_hoc(model):
    return PostHocEMA(model, (0.05, 0.10))


def averages_of(ema):
    return ema.state_dict()["averages"]


def assert_same(one, other):
    for left, right in zip(averages_of(one), averages_of(other), strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(params=[make_ema, make_post_hoc], ids=["EMA", "PostHocEMA"])
def start(request, loop):
    """A training with an average that is told the applied step after every batch."""

    def start_training(**options):
        training = loop(accumulation=2, batches=22, infinite=INFINITE, **options)
        record, loader = training.prepare()
        ema = request.param(record.model)
        record.accelerator.register_average(ema)
        return training, record, list(loader), ema

    return start_training


def train(training, record, batches, ema):
    accelerator = record.accelerator
    for batch in batches:
        with accelerator.attempt(record.model) as update:
            training.micro_batch(record, batch, accelerator.attempted_step)
        if update.applied:
            ema.update(accelerator.applied_step)


def test_stopping_and_going_on_equals_never_having_stopped(start, tmp_path):
    training, record, batches, whole = start()
    train(training, record, batches, whole)
    training, record, batches, first = start()
    train(training, record, batches[:10], first)
    record.accelerator.save_state(str(tmp_path))
    training, record, batches, second = start()
    record.accelerator.load_state(str(tmp_path))
    assert second.step == record.accelerator.applied_step == 2
    train(training, record, batches[10:], second)
    assert second.step == whole.step == 7
    assert_same(second, whole)


def test_being_told_after_every_batch_is_the_same_as_after_applied_updates(start):
    training, record, batches, guarded = start()
    train(training, record, batches, guarded)
    training, record, batches, told = start()
    for batch in batches:
        with record.accelerator.accumulate(record.model):
            training.micro_batch(record, batch, record.accelerator.attempted_step)
        told.update(record.accelerator.applied_step)
    assert_same(guarded, told)


def test_the_tensor_of_applied_steps_tells_it_without_reading(start):
    training, record, batches, guarded = start(optimizer="adamw fused")
    train(training, record, batches, guarded)
    training, record, batches, told = start(optimizer="adamw fused")
    reads = DeviceReads()
    for batch in batches:
        with record.accelerator.accumulate(record.model):
            loss = record.model(batch).float().pow(2).mean()
            bad = record.accelerator.attempted_step in INFINITE
            record.accelerator.backward(loss * float("inf") if bad else loss)
            record.optimizer.step()
            record.optimizer.zero_grad()
        with reads:
            told.update(record.accelerator.applied_step_tensor)
    assert reads.count == 0
    assert told.step == guarded.step
