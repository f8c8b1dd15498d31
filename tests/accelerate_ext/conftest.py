"""A small training loop in which chosen attempts overflow, for plain Accelerate and for this package."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

import accelerate_ext


@pytest.fixture(autouse=True)
def _own_accelerate_state() -> Iterator[None]:
    """Accelerate keeps its state in classes: every test starts without any."""
    reset()
    yield
    reset()


def reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def make_optimizer(kind: str, parameters: Any, lr: float = 0.05) -> torch.optim.Optimizer:
    """An optimizer by name; "silent" is one whose `step()` returns None."""
    if kind == "schedulefree":
        schedulefree = pytest.importorskip("schedulefree", reason="needs the package schedulefree")
        optimizer = schedulefree.AdamWScheduleFree(parameters, lr=lr)
        optimizer.train()
        return optimizer
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=lr),
        "adamw fused": lambda: torch.optim.AdamW(parameters, lr=lr, fused=True),
        "sgd": lambda: torch.optim.SGD(parameters, lr=lr),
        "sgd fused": lambda: torch.optim.SGD(parameters, lr=lr, fused=True),
        "silent": lambda: SilentSGD(parameters, {"lr": lr}),
    }
    return makers[kind]()


class SilentSGD(torch.optim.Optimizer):
    """Gradient descent whose `step()` returns None."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"])


@dataclass
class Record:
    """What a run left behind."""

    accelerator: Any
    optimizer: Any
    scheduler: Any
    model: nn.Module
    weights: list[torch.Tensor] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)

    def optimizer_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()


@dataclass
class Loop:
    """The usual loop round `accumulate()`; in `infinite` attempts (from 0) every loss is infinite."""

    accelerator_class: type = accelerate_ext.Accelerator
    optimizer: str = "adamw"
    infinite: Sequence[int] = ()
    batches: int = 12
    accumulation: int = 1
    clip: float | None = None
    scaler: dict[str, Any] | None = field(default_factory=lambda: {"init_scale": 16.0})
    options: dict[str, Any] = field(default_factory=dict)
    window: str = "accumulate"
    seed: int = 0
    bad_value: float = float("inf")
    on_boundary: Callable[[Record], None] | None = None

    def prepare(self) -> tuple[Record, Any]:
        reset()
        seed_all(self.seed)
        options = dict(self.options)
        if self.clip is not None and self.scaler is not None:
            options.setdefault("mixed_precision", "fp16")
        accelerator = self.accelerator_class(cpu=True, gradient_accumulation_steps=self.accumulation, **options)
        if self.scaler is not None:
            accelerator.scaler = torch.amp.GradScaler("cpu", **self.scaler)
            accelerator.native_amp = True
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = make_optimizer(self.optimizer, model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        data = torch.randn(self.batches * 2, 4)
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=False)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        return Record(accelerator, optimizer, scheduler, model), loader

    def run(self) -> Record:
        record, loader = self.prepare()
        self.train(record, loader)
        return record

    def train(self, record: Record, loader: Any, first_attempt: int = 0) -> None:
        attempt = first_attempt
        for batch in loader:
            with getattr(record.accelerator, self.window)(record.model) as update:
                self.micro_batch(record, batch, attempt)
            if update is not None:
                record.outcomes.append(update.outcome)
            if record.accelerator.sync_gradients:
                attempt += 1
                if self.on_boundary is not None:
                    self.on_boundary(record)
        record.weights = [parameter.detach().clone() for parameter in record.model.parameters()]

    def micro_batch(self, record: Record, batch: torch.Tensor, attempt: int) -> None:
        accelerator, optimizer = record.accelerator, record.optimizer
        loss = record.model(batch).float().pow(2).mean()
        record.losses.append(loss.item())
        accelerator.backward(loss * self.bad_value if attempt in self.infinite else loss)
        if accelerator.sync_gradients and self.clip is not None:
            accelerator.clip_grad_norm_(record.model.parameters(), self.clip)
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wants a step before the scheduler's, skipped or not
            record.scheduler.step()
        optimizer.zero_grad()
        record.flags.append(optimizer.step_was_skipped)
        record.lrs.append(record.scheduler.get_last_lr()[0])
        if accelerator.scaler is not None:
            record.scales.append(accelerator.scaler.get_scale())


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture
def loop() -> type[Loop]:
    return Loop


@pytest.fixture
def make() -> Callable[..., torch.optim.Optimizer]:
    return make_optimizer


@pytest.fixture
def forget() -> Callable[[], None]:
    """Resets what Accelerate keeps in classes."""
    return reset


@pytest.fixture(params=[accelerate.Accelerator, accelerate_ext.Accelerator], ids=["plain", "ours"])
def either(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def scaled() -> Callable[..., Any]:
    """An Accelerator of this package with a GradScaler on the CPU: `scaled(init_scale=..., options={...})`."""

    def make_scaled(
        cls: type = accelerate_ext.Accelerator, options: dict[str, Any] | None = None, **scaler: Any
    ) -> Any:
        accelerator = cls(cpu=True, **(options or {}))
        accelerator.scaler = torch.amp.GradScaler("cpu", **{"init_scale": 16.0, **scaler})
        accelerator.native_amp = True
        return accelerator

    return make_scaled


@pytest.fixture
def plain_class() -> type:
    return accelerate.Accelerator


@pytest.fixture(params=["sgd", "sgd fused"])
def pair(request, scaled, make):
    """An Accelerator with two models and two optimizers: `pair(scale=..., mixed_precision=...)`."""

    def make_pair(**options):
        scaler = options.pop("scaler", {})
        accelerator = scaled(options=options, **scaler)
        models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
        for model in models:
            nn.init.zeros_(model.weight)
        optimizers = [make(request.param, model.parameters(), lr=1.0) for model in models]
        return accelerator, *accelerator.prepare(*models, *optimizers)

    return make_pair
