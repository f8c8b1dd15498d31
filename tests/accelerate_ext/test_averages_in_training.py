"""Averages of `accelerate_ext.ema` in a loop whose GradScaler skips updates, in checkpoints, and in a Trainer."""

from __future__ import annotations

import pytest
import torch

import accelerate_ext
from accelerate_ext.ema import EMA, PostHocEMA, list_snapshots
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
            training.micro_batch(record, batch, record.accelerator.attempted_step)
        with reads:
            told.update(record.accelerator.applied_step_tensor)
    assert reads.count == 0
    assert told.step == guarded.step
    for left, right in zip(averages_of(guarded), averages_of(told), strict=True):
        for name, average in left.items():
            torch.testing.assert_close(right[name], average, rtol=1e-6, atol=1e-7)


class Run:
    """A small training run under a real GradScaler, in which chosen attempts overflow."""

    def __init__(self, make=PostHocEMA):
        torch.manual_seed(0)
        self.accelerator = accelerate_ext.Accelerator(cpu=True)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=10**6)
        self.accelerator.native_amp = True
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05))
        self.ema = make(self.model)
        self.accelerator.register_average(self.ema)

    def attempt(self, data, is_overflow=False):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(data))
        loss = self.model(inputs).square().mean() * (float("inf") if is_overflow else 1.0)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.update(self.accelerator.applied_step)


@pytest.mark.parametrize("overflows", [{0, 1}, {3}, {2, 5, 8, 11}, {5, 6, 7, 8}, {14}])
@pytest.mark.parametrize("make", [PostHocEMA, lambda model: EMA(model, decay=0.9, use_ema_warmup=True)])
def test_skipped_updates_leave_exactly_the_average_of_a_run_without_them(make, overflows):
    with_skips, without = Run(make), Run(make)
    data = 0
    for attempt in range(15):
        is_overflow = attempt in overflows
        with_skips.attempt(data, is_overflow)
        if not is_overflow:
            without.attempt(data)
            data += 1
    assert with_skips.accelerator.skipped_steps == len(overflows)
    assert with_skips.ema.step == 15 - len(overflows)
    assert_same(with_skips.ema, without.ema)


def test_a_checkpoint_of_accelerate_carries_the_averages_and_their_run_goes_on_exactly(tmp_path):
    straight = Run()
    for attempt in range(20):
        straight.attempt(attempt, attempt in (3, 12))
        if attempt == 9:
            straight.ema.snapshot(tmp_path / "snapshots")
            straight.accelerator.save_state(tmp_path / "checkpoint")
    straight.ema.snapshot(tmp_path / "snapshots")
    resumed = Run()
    resumed.accelerator.load_state(tmp_path / "checkpoint")
    assert resumed.ema.run == straight.ema.run
    assert resumed.ema.step == resumed.accelerator.applied_step == 9
    for attempt in range(10, 20):
        resumed.attempt(attempt, attempt == 12)
    assert_same(straight.ema, resumed.ema)
    resumed.ema.snapshot(tmp_path / "snapshots")
    assert sorted({snapshot.t for snapshot in list_snapshots(tmp_path / "snapshots")}) == [9, 18]
    assert len(list((tmp_path / "snapshots" / "set-aside").rglob("*.safetensors"))) == 2


def test_the_trainer_keeps_averages_by_a_callback(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the Trainer")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    ema = PostHocEMA(model, run="trainer")
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(12)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=6, save_steps=3, report_to=[], use_cpu=True
    )
    callback = accelerate_ext.AppliedStepCallback(ema=ema)
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    assert ema.step == 6
    torch.manual_seed(0)
    again = transformers.GPT2LMHeadModel(config)
    resumed = PostHocEMA(again)
    callback = accelerate_ext.AppliedStepCallback(ema=resumed)
    trainer = transformers.Trainer(again, arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (resumed.step, resumed.run) == (6, "trainer")
    assert_same(resumed, ema)
