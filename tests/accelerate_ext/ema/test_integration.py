"""Averages in real training: a GradScaler that skips updates, Accelerate's checkpoints, the Trainer."""

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

import accelerate_ext
from accelerate_ext.ema import EMA, PostHocEMA, list_snapshots


@pytest.fixture(autouse=True)
def _own_accelerate_state():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


class Run:
    """A small training run under a real GradScaler, in which chosen attempts overflow."""

    def __init__(self, make=PostHocEMA):
        torch.manual_seed(0)
        self.accelerator = accelerate_ext.Accelerator(cpu=True)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=10**6)
        self.accelerator.native_amp = True
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05))
        self.ema = make(self.model)
        self.accelerator.register_average(self.ema)

    def attempt(self, data, is_overflow=False, as_tensor=False):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(data))
        loss = self.model(inputs).square().mean() * (float("inf") if is_overflow else 1.0)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        step = self.accelerator.applied_step_tensor if as_tensor else self.accelerator.applied_step
        self.ema.update(step)

    def averages(self):
        widths = getattr(self.ema, "sigma_rel", (None,))
        return [{name: a.clone() for name, a in self.ema.averages(width).items()} for width in widths]


def assert_same(one, other):
    for left, right in zip(one, other, strict=True):
        assert [name for name in left if not torch.equal(left[name], right[name])] == []


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
    assert_same(with_skips.averages(), without.averages())


def test_the_applied_step_as_a_tensor_gives_the_same(tmp_path):
    by_number, by_tensor = Run(), Run()
    for attempt in range(12):
        by_number.attempt(attempt, attempt in (4, 5))
        by_tensor.attempt(attempt, attempt in (4, 5), as_tensor=True)
    for left, right in zip(by_number.averages(), by_tensor.averages(), strict=True):
        for name, average in left.items():
            torch.testing.assert_close(right[name], average, rtol=1e-6, atol=1e-7)
    assert by_tensor.ema.step == 10


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
    assert_same(straight.averages(), resumed.averages())
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
    last = [{name: a.clone() for name, a in ema.averages(width).items()} for width in ema.sigma_rel]

    torch.manual_seed(0)
    again = transformers.GPT2LMHeadModel(config)
    resumed = PostHocEMA(again)
    callback = accelerate_ext.AppliedStepCallback(ema=resumed)
    trainer = transformers.Trainer(again, arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (resumed.step, resumed.run) == (6, "trainer")
    assert_same(last, [resumed.averages(width) for width in resumed.sigma_rel])
