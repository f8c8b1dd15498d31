"""The skip flag of Accelerate's optimizer, for every optimizer and scaler."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

FUSED = pytest.mark.accelerate
UNFUSED = pytest.mark.finite  # right on the unpatched release too

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {}),
    "sgd": (torch.optim.SGD, {}),
    "fused adam": (torch.optim.Adam, {"fused": True}),
    "fused adamw": (torch.optim.AdamW, {"fused": True}),
    "fused sgd": (torch.optim.SGD, {"fused": True}),
    "fused adagrad": (torch.optim.Adagrad, {"fused": True}),
}
KINDS = [pytest.param(name, marks=FUSED if "fused" in name else UNFUSED) for name in OPTIMIZERS]
ONLY_FUSED = [name for name in OPTIMIZERS if "fused" in name]


class Loop:
    """One or more optimizers of one weight each, under one scaler."""

    def __init__(self, *kinds: str, scale: float = 16.0, enabled: bool = True, **options) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        self.accelerator = Accelerator(cpu=True)
        options = {"growth_interval": 2000, **options}
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled, **options)
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"
        self.weights = [torch.nn.Parameter(torch.ones(2)) for _ in kinds]
        made = [
            OPTIMIZERS[kind][0]([w], lr=0.1, **OPTIMIZERS[kind][1])
            for kind, w in zip(kinds, self.weights, strict=True)
        ]
        self.optimizers = [self.accelerator.prepare_optimizer(optimizer) for optimizer in made]

    @property
    def scaler(self):
        return self.accelerator.scaler

    def backward(self, *slopes: float) -> None:
        for weight, slope in zip(self.weights, slopes, strict=True):
            # a power: the gradient alone is infinite or NaN, the loss is of no interest
            self.scaler.scale((weight * torch.tensor([slope, 1.0])).sum()).backward()

    def attempt(self, *slopes: float, unscale: bool = False) -> list[bool]:
        """One step of each optimizer; whether the weights of each stood still."""
        before = [weight.detach().clone() for weight in self.weights]
        self.backward(*slopes)
        if unscale:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer.optimizer)
        for optimizer in self.optimizers:
            optimizer.step()
        for weight in self.weights:
            weight.grad = None
        return [torch.equal(old, new.detach()) for old, new in zip(before, self.weights, strict=True)]

    @property
    def flags(self) -> list[bool]:
        return [optimizer.step_was_skipped for optimizer in self.optimizers]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slope", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_step_is_reported_as_skipped_when_the_weights_stand_still(kind, slope, unscale):
    loop = Loop(kind)
    for slopes, expected in ((1.0, False), (slope, True), (slope, True), (1.0, False)):
        assert loop.attempt(slopes, unscale=unscale) == [expected]
        assert loop.flags == [expected]
        assert loop.accelerator.optimizer_step_was_skipped is expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_flag_is_a_bool(kind):
    loop = Loop(kind)
    loop.attempt(math.inf)
    assert loop.optimizers[0].step_was_skipped is True


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_that_cannot_fall_any_more_hides_no_skip(kind):
    loop = Loop(kind, backoff_factor=1 - 1e-9)
    loop.attempt(math.inf)
    assert (loop.flags, loop.scaler.get_scale()) == ([True], 16.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_of_zero_hides_no_skip(kind):
    loop = Loop(kind, scale=1.0)
    loop.scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    loop.scaler._scale.fill_(0.0)
    loop.attempt(math.nan)
    assert loop.flags == [True]


@pytest.mark.finite
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("factor", [2.0, 1 + 1e-9])
def test_a_scale_that_grows_in_the_same_update_is_no_skip(kind, factor):
    loop = Loop(kind, growth_interval=1, growth_factor=factor)
    loop.attempt(1.0)
    assert loop.flags == [False]
    assert loop.scaler.get_scale() == pytest.approx(16.0 * factor)


@pytest.mark.parametrize("kind", KINDS)
def test_a_growing_scale_hides_no_skip(kind):
    loop = Loop(kind, growth_interval=1)
    loop.attempt(1.0)
    loop.attempt(math.inf)
    assert loop.flags == [True]


@pytest.mark.parametrize(
    "kinds", [pytest.param((kind, other), marks=FUSED) for kind in ONLY_FUSED for other in ONLY_FUSED]
)
@pytest.mark.parametrize("bad", [0, 1])
def test_of_two_optimizers_only_the_one_that_overflowed_is_reported(kinds, bad):
    loop = Loop(*kinds)
    slopes = [math.inf if index == bad else 1.0 for index in (0, 1)]
    still = loop.attempt(*slopes, unscale=True)
    assert still == loop.flags == [bad == 0, bad == 1]


@pytest.mark.finite
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_without_a_scaler_that_is_enabled_nothing_is_skipped(kind):
    loop = Loop(kind, enabled=False)
    loop.attempt(1.0)
    assert loop.flags == [False]


@pytest.mark.accelerate
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_that_only_accumulates_skipped_nothing(kind):
    loop = Loop(kind)
    loop.attempt(math.inf)
    assert loop.flags == [True]
    loop.accelerator.gradient_state._set_sync_gradients(False)
    loop.backward(1.0)
    loop.optimizers[0].step()
    assert loop.flags == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_the_flag_survives_pickling(kind):
    loop = Loop(kind)
    loop.attempt(math.inf)
    copy = pickle.loads(pickle.dumps(loop.optimizers[0]))
    assert copy.step_was_skipped is True


@pytest.mark.finite  # fused or not: torch forgets while pickling that an optimizer applies the scale
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_pickled_optimizer_reports_its_own_steps(kind):
    loop = Loop(kind)
    (optimizer,) = loop.optimizers = [pickle.loads(pickle.dumps(loop.optimizers[0]))]
    loop.accelerator.scaler = optimizer.scaler
    loop.weights = [optimizer.param_groups[0]["params"][0]]
    assert loop.attempt(math.inf) == loop.flags == [True]
    assert loop.attempt(1.0) == loop.flags == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_the_prepared_scheduler_waits_for_an_applied_step(kind):
    loop = Loop(kind)
    schedule = torch.optim.lr_scheduler.LambdaLR(loop.optimizers[0].optimizer, lambda step: 1.0)
    scheduler = loop.accelerator.prepare_scheduler(schedule)
    counts = []
    for slope in (1.0, math.inf, 1.0):
        loop.attempt(slope)
        scheduler.step()
        counts.append(schedule.last_epoch)
    assert counts == [1, 1, 2]


def device_reads(call) -> int:
    """How often the call waited for a value of a tensor."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return sum(event.count for event in profile.key_averages() if event.key == "aten::_local_scalar_dense")


@pytest.mark.accelerate
@pytest.mark.parametrize("kind", ONLY_FUSED)
def test_a_step_reads_nothing_from_the_device_and_the_flag_once(kind):
    loop = Loop(kind)
    loop.attempt(1.0)
    loop.backward(math.inf)
    flag = lambda: loop.optimizers[0].step_was_skipped  # noqa: E731
    steps = device_reads(loop.optimizers[0].step)
    assert (steps, device_reads(flag), device_reads(flag)) == (0, 1, 0)
    assert flag() is True
