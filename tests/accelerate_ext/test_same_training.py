"""The same training as plain Accelerate, bit for bit, when all is finite; and when the same updates are skipped."""

from __future__ import annotations

import accelerate
import accelerate.tracking
import pytest
import torch
from torch import nn

import accelerate_ext


def assert_same(one, other) -> None:
    """Bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize("kind", ["adamw", "adamw fused", "sgd", "sgd fused", "silent", "schedulefree"])
@pytest.mark.parametrize("accumulation", [1, 3, 4])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("scaler", [None, {"init_scale": 16.0, "growth_interval": 2}], ids=["fp32", "scaled"])
def test_a_finite_run_is_bit_identical_to_plain_accelerate(loop, kind, accumulation, clip, scaler):
    options = {"optimizer": kind, "accumulation": accumulation, "clip": clip, "scaler": scaler}
    options["batches"] = 10  # with 3 and 4 the last window is short
    plain = loop(accelerate.Accelerator, **options).run()
    ours = loop(accelerate_ext.Accelerator, **options).run()
    for name in ("weights", "lrs", "losses", "scales", "flags"):
        assert_same(getattr(plain, name), getattr(ours, name))
    assert_same(plain.optimizer_state(), ours.optimizer_state())
    assert ours.accelerator.applied_step == ours.accelerator.attempted_step == -(-10 // accumulation)


def two_optimizers(cls, scaled, clip):
    """Two models under one loss, two optimizers, two schedulers, accumulation, a short last window."""
    torch.manual_seed(0)
    options = {"mixed_precision": "fp16"} if scaled else {}
    accelerator = cls(cpu=True, gradient_accumulation_steps=3, **options)
    if scaled:
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        accelerator.native_amp = True
    models = [nn.Linear(4, 4) for _ in range(2)]
    optimizers = [torch.optim.AdamW(models[0].parameters(), lr=0.1), torch.optim.SGD(models[1].parameters(), lr=0.1)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9) for optimizer in optimizers]
    loader = torch.utils.data.DataLoader(torch.randn(20, 4), batch_size=2)
    first, second, one, two, s1, s2, loader = accelerator.prepare(*models, *optimizers, *schedulers, loader)
    for batch in loader:
        with accelerator.accumulate(first, second):
            accelerator.backward(second(first(batch)).float().pow(2).mean())
            if clip and accelerator.sync_gradients and (cls is accelerate_ext.Accelerator or not scaled):
                accelerator.clip_grad_norm_([*first.parameters(), *second.parameters()], 1e6)
            for what in (one, two, s1, s2):
                what.step()
            one.zero_grad()
            two.zero_grad()
    states = [optimizer.state_dict() for optimizer in (one, two)]
    return accelerator, [model.state_dict() for model in models], states, [s.get_last_lr() for s in (s1, s2)]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_a_finite_run_with_two_optimizers_is_bit_identical(forget, scaled, clip):
    # clipping below the limit: with a scaler, plain Accelerate would unscale the second model's gradients twice
    plain = two_optimizers(accelerate.Accelerator, scaled, clip)
    forget()
    ours = two_optimizers(accelerate_ext.Accelerator, scaled, clip)
    for one, other in zip(plain[1:], ours[1:], strict=True):
        assert_same(one, other)
    assert ours[0].applied_step == 4


class Tracker(accelerate.tracking.GeneralTracker):
    """Keeps what is logged."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    @property
    def tracker(self):
        return self.kept

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **kwargs):
        self.kept.append((values, step))


def test_logs_are_bit_identical_and_can_be_put_at_applied_steps(loop):
    logs = []
    for cls in (accelerate.Accelerator, accelerate_ext.Accelerator):
        tracker = Tracker()
        training = loop(cls, batches=4, options={"log_with": [tracker]})
        training.on_boundary = lambda record: record.accelerator.log({"loss": record.losses[-1]}, len(record.losses))
        record, loader = training.prepare()
        record.accelerator.init_trackers("project")
        training.train(record, loader)
        logs.append(tracker.kept)
    assert len(logs[0]) == 4
    assert logs[0] == logs[1]


def test_an_attempt_changes_nothing_either(loop):
    plain = loop(accelerate.Accelerator, infinite=[1]).run()
    record = loop(infinite=[1], window="attempt").run()
    assert_same(plain.weights, record.weights)
    assert (record.accelerator.attempted_step, record.accelerator.applied_step) == (12, 11)


def test_a_loop_without_windows_is_counted(loop):
    plain = loop(accelerate.Accelerator, infinite=[1]).run()
    record = no_window(loop)
    assert_same(plain.weights, record.weights)
    assert (record.accelerator.attempted_step, record.accelerator.applied_step) == (12, 11)


def no_window(loop):
    """The same training by a loop that opens no window."""
    training = loop(infinite=[1])
    record, loader = training.prepare()
    for attempt, batch in enumerate(loader):
        training.micro_batch(record, batch, attempt)
    record.weights = [parameter.detach().clone() for parameter in record.model.parameters()]
    return record


def test_the_same_skips_give_the_same_weights_as_plain_accelerate(loop):
    options = {"infinite": [0, 2, 3, 5], "batches": 11, "accumulation": 2}
    plain = loop(accelerate.Accelerator, **options).run()
    ours = loop(**options).run()
    for name in ("weights", "lrs", "losses", "scales"):
        assert_same(getattr(plain, name), getattr(ours, name))
    assert_same(plain.optimizer_state(), ours.optimizer_state())
    accelerator = ours.accelerator
    assert (accelerator.attempted_step, accelerator.applied_step, accelerator.skipped_steps) == (6, 2, 4)
