"""Optimizers and their attempts: what was tried, whether the update ran, and whether any weight really moved."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

from .events import plain
from .lookup import frames, variables
from .plan import parameters_of
from .weights import Weights, all_finite


def innermost(optimizer: Any) -> Any:
    """The torch optimizer under Accelerate's wrappers."""
    wrapper = getattr(sys.modules.get("accelerate.optimizer"), "AcceleratedOptimizer", ())
    while isinstance(optimizer, wrapper) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def innermost_scaler(scaler: Any) -> Any:
    """The GradScaler behind an object that stands in for it while an optimizer steps."""
    base = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", ())
    if scaler is None or isinstance(scaler, base):
        return scaler
    return next((value for value in getattr(scaler, "__dict__", {}).values() if isinstance(value, base)), scaler)


def scale_of(scaler: Any) -> float | None:
    scale = getattr(scaler, "_scale", None)
    return None if scale is None else plain(float(scale))


@dataclass
class Attempt:
    """One attempt while it is under way."""

    weights: Weights
    scaler: Any
    scale: float | None
    injected: bool
    ran: bool = False
    found_inf: Any = None
    is_raw: bool = False  # begun by the optimizer's own step, without Accelerate or a scaler


@dataclass
class Record:
    """What is known of one optimizer."""

    number: int
    optimizer: Any  # weak reference to the innermost optimizer
    name: str
    kind: str
    prepared: bool = False
    scaler: str | None = None  # whose scaler checks its gradients: "script", "installed", or nobody's
    announced: bool = False
    attempts: int = 0
    applied: int = 0
    backwards: int = 0  # backward passes that had been seen at the last attempt
    injected: int = 0  # the attempt that was last made to overflow
    current: Attempt | None = None
    engine: Any = None  # weak reference to the DeepSpeed engine that holds it
    labels: set[str] = field(default_factory=set)

    def parameters(self) -> list[Any]:
        """What it updates: its own parameters, or its engine's model's."""
        if self.engine is not None:
            return list(self.engine().module.parameters())
        return parameters_of(self.optimizer())

    @property
    def names(self) -> set[str]:
        """Every name that `--optimizer` may use for it."""
        return {self.name, self.kind, str(self.number), *self.labels}


class Optimizers:
    """All optimizers that were made or stepped, by the innermost one."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}

    def __iter__(self) -> Any:
        return iter([record for record in self._records.values() if record.optimizer() is not None])

    def of(self, optimizer: Any) -> Record:
        inner = innermost(optimizer)
        record = self._records.get(id(inner))
        if record is None or record.optimizer() is not inner:
            number = sum(known.announced for known in self._records.values()) + 1
            record = Record(number, weakref.ref(inner), "", type(inner).__name__)
            self._records[id(inner)] = record
        return record

    def only_one(self) -> Record | None:
        """The optimizer, if the process has a single one; an engine's counts alone."""
        alive = [record for record in self if record.engine is not None] or list(self)
        return alive[0] if len(alive) == 1 else None

    def identify(self, record: Record) -> None:
        """Find the variable that holds the optimizer; done once, from a frame of the script."""
        if record.name:
            return
        record.number = sum(bool(known.name) for known in self._records.values()) + 1
        inner = record.optimizer()
        for frame in frames():
            known = variables(frame)
            held = getattr(known.get("self"), "__dict__", {})
            pairs = [*known.items(), *held.items()]
            names = [name for name, value in pairs if _is_or_wraps(value, inner) and name != "self"]
            if names:
                record.labels.update(names)
                record.name = record.name or names[0]
        record.name = record.name or record.kind


def _is_or_wraps(value: Any, inner: Any) -> bool:
    if value is inner:
        return True
    wrapper = getattr(sys.modules.get("accelerate.optimizer"), "AcceleratedOptimizer", ())
    return isinstance(value, wrapper) and innermost(value) is inner


def outcome_of(attempt: Attempt, inner: Any) -> dict[str, Any]:
    """What became of an attempt. `applied` needs moved weights, or an update that ran on finite gradients.

    A fused optimizer runs on every attempt and drops the update in its kernel: then `found_inf` was set and no weight
    moved.
    """
    changed = attempt.weights.changed()
    found_inf = None if attempt.found_inf is None else bool(float(attempt.found_inf) > 0)
    gradients = [parameter.grad for parameter in parameters_of(inner) if parameter.grad is not None]
    if changed:
        outcome = "applied"
    elif not attempt.ran or found_inf:
        outcome = "skipped"
    else:  # weights that are NaN already do not change any more
        outcome = "applied" if all_finite(gradients) or not all_finite(parameters_of(inner)) else "skipped"
    poisoned = changed and attempt.injected and not all_finite(parameters_of(inner))
    return {
        "outcome": outcome,
        "ran": attempt.ran,
        "found_inf": found_inf,
        "weights_changed": changed,
        "weights_finite": not poisoned,
    }
