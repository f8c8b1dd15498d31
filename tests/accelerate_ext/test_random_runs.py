"""Runs made at random: an update counts exactly when the weights have moved, whatever else was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import accelerate_ext
from accelerate_ext.ema import PostHocEMA
from accelerate_ext.ema.profile import gamma_from_sigma_rel

BATCHES = 18
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5),
    "sgd fused": lambda parameters: torch.optim.SGD(parameters, lr=0.05, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, fused=True),
}


@dataclass(frozen=True)
class Plan:
    """What is drawn: `bad` are batches whose loss is `value`, each for the model of one optimizer."""

    optimizers: tuple[str, ...]
    accumulation: int
    bad: frozenset[tuple[int, int]]
    value: float
    has_scaler: bool
    has_schedulers: bool
    clips: bool
    opens_attempts: bool
    asks_each_update: bool
    saves_after: int  # windows


PLANS = st.builds(
    Plan,
    optimizers=st.lists(st.sampled_from(sorted(OPTIMIZERS)), min_size=1, max_size=2).map(tuple),
    accumulation=st.integers(1, 4),
    bad=st.frozensets(st.tuples(st.integers(0, BATCHES - 1), st.integers(0, 1)), max_size=6),
    value=st.sampled_from([float("inf"), float("-inf"), float("nan")]),
    has_scaler=st.booleans(),
    has_schedulers=st.booleans(),
    clips=st.booleans(),
    opens_attempts=st.booleans(),
    asks_each_update=st.booleans(),
    saves_after=st.integers(0, 3),
)


class Run:
    """A training run that keeps its own account of what has moved."""

    def __init__(self, plan: Plan) -> None:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state(**({"reset_partial_state": True} if state is AcceleratorState else {}))
        torch.manual_seed(0)
        self.plan = plan
        options = {"mixed_precision": "fp16"} if plan.has_scaler else {"skip_nonfinite": True}
        self.accelerator = accelerate_ext.Accelerator(
            cpu=True, gradient_accumulation_steps=plan.accumulation, **options
        )
        if plan.has_scaler:
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
            self.accelerator.native_amp = True
        models: list[Any] = [nn.Linear(3, 2) for _ in plan.optimizers]
        optimizers = [
            OPTIMIZERS[kind](model.parameters()) for kind, model in zip(plan.optimizers, models, strict=True)
        ]
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.97) for optimizer in optimizers]
        self.data = torch.randn(BATCHES, 3)
        self.models = [self.accelerator.prepare(model) for model in models]
        self.optimizers = [self.accelerator.prepare(optimizer) for optimizer in optimizers]
        self.schedulers = [self.accelerator.prepare(scheduler) for scheduler in schedulers if plan.has_schedulers]
        self.average = PostHocEMA(self.models[0], sigma_rel=(0.05, 0.1))
        self.accelerator.register_average(self.average)
        self.attempted = self.applied = 0
        self.seen: list[list[torch.Tensor]] = []  # weights of the first model after each applied update

    def weights(self) -> list[list[torch.Tensor]]:
        return [[parameter.detach().clone() for parameter in model.parameters()] for model in self.models]

    def train(self, first: int, last: int) -> None:
        for index in range(first, last):
            before = self.weights()
            update = self.batch(index)
            pairs = zip(before, self.weights(), strict=True)
            self.look(update, [not all(map(torch.equal, old, new)) for old, new in pairs])

    def batch(self, index: int) -> Any:
        accelerator, plan = self.accelerator, self.plan
        with (accelerator.attempt if plan.opens_attempts else accelerator.accumulate)(*self.models) as update:
            for number, model in enumerate(self.models):
                loss = (model(self.data[index]) - 1).pow(2).mean()
                accelerator.backward(loss * plan.value if (index, number) in plan.bad else loss)
            if plan.clips and accelerator.sync_gradients:
                accelerator.clip_grad_norm_([p for model in self.models for p in model.parameters()], 1.0)
            for item in (*self.optimizers, *self.schedulers):
                item.step()
            for optimizer in self.optimizers:
                optimizer.zero_grad()
        return update

    def look(self, update: Any, moved: list[bool]) -> None:
        """Compare what is said of the batch with what it has done."""
        accelerator, plan = self.accelerator, self.plan
        if not accelerator.sync_gradients:
            assert not any(moved)
            assert update is None or update.outcome == "not attempted"
            return
        self.attempted += 1
        self.applied += all(moved)
        if plan.asks_each_update:
            assert update is None or update.applied is all(moved)
            assert accelerator.update_applied is all(moved)
            assert accelerator.applied_step == self.applied
        self.average.update(accelerator.applied_step_tensor if plan.saves_after % 2 else accelerator.applied_step)
        if all(moved):
            self.seen.append([weight.double() for weight in self.weights()[0]])

    def counts(self) -> tuple[int, int]:
        return self.accelerator.applied_step, self.accelerator.attempted_step

    def averages(self) -> list[list[torch.Tensor]]:
        return [list(self.average.averages(sigma_rel).values()) for sigma_rel in self.average.sigma_rel]


def averaged(seen: list[list[torch.Tensor]], sigma_rel: float) -> list[torch.Tensor]:
    """The power-function average of weights, update by update: arXiv:2312.02696, equation 127."""
    gamma, found = gamma_from_sigma_rel(sigma_rel), seen[0]
    for t, weights in enumerate(seen, 1):
        beta = (1 - 1 / t) ** (gamma + 1)
        found = [beta * old + (1 - beta) * new for old, new in zip(found, weights, strict=True)]
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lambda: tmp_path_factory.mktemp("run")


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(plan=PLANS)
def test_an_update_counts_when_the_weights_have_moved(folders: Any, plan: Plan) -> None:
    run = Run(plan)
    run.train(0, BATCHES)
    assert run.counts() == (run.applied, run.attempted)
    assert run.accelerator.skipped_steps == run.attempted - run.applied
    assert all(torch.isfinite(weight).all() for weights in run.weights() for weight in weights)
    if run.seen:
        for sigma_rel, found in zip(run.average.sigma_rel, run.averages(), strict=True):
            for one, wanted in zip(found, averaged(run.seen, sigma_rel), strict=True):
                torch.testing.assert_close(one.double(), wanted, rtol=2e-6, atol=2e-6)
    assert_resumed_run_is_the_same(run, folders())


def assert_resumed_run_is_the_same(whole: Run, folder: Path) -> None:
    """A run that is saved between two windows and goes on in another process's place ends with the same bits."""
    plan = whole.plan
    place = plan.saves_after * plan.accumulation
    first = Run(plan)
    first.train(0, place)
    first.accelerator.save_state(str(folder))
    second = Run(plan)
    second.accelerator.load_state(str(folder))
    second.applied, second.attempted = first.applied, first.attempted
    second.train(place, BATCHES)
    assert second.counts() == whole.counts()
    for one, other in ((whole.weights(), second.weights()), (whole.averages(), second.averages())):
        assert all(all(map(torch.equal, left, right)) for left, right in zip(one, other, strict=True))
