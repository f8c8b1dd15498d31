"""Attempts from the first backward pass of a window to what became of the update."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .events import plain
from .journal import Journal
from .optimizers import Attempt, Optimizers, Record, innermost, innermost_scaler, outcome_of, scale_of
from .plan import Plan, SpoiledBackward, parameters_of, spoil_first
from .weights import Weights


def is_unscaled(scaler: Any, inner: Any) -> bool:
    """Whether the scaler has divided this optimizer's gradients already: too late to inject."""
    states = getattr(scaler, "_per_optimizer_states", {})
    return id(inner) in states and getattr(states[id(inner)].get("stage"), "name", "") == "UNSCALED"


def engine_scale(engine: Any) -> float | None:
    """The loss scale of a DeepSpeed engine."""
    scale = getattr(engine.optimizer, "loss_scale", None)
    return None if scale is None else plain(float(scale))


class Attempts:
    """Counts backward passes and attempts of all optimizers, and writes down each attempt when it is over."""

    def __init__(self, journal: Journal, plan: Plan, installed: Container[Any]) -> None:
        self.journal = journal
        self.plan = plan
        self.installed = installed  # scalers that the script did not make or enable
        self.optimizers = Optimizers()
        self.backwards = 0
        self._in_window = 0
        self._losses: list[Any] = []

    def applied_by(self, numbers: list[int]) -> int:
        """Applied updates of these optimizers, of all of them if the list is empty."""
        return sum(record.applied for record in self.optimizers if not numbers or record.number in numbers)

    def loss(self, loss: Any) -> None:
        """The loss that a backward pass starts from, before any scale."""
        if sys.modules["torch"].is_tensor(loss) and loss.numel():
            self._losses.append(loss.detach().float().mean())

    def backward(self, is_boundary: bool) -> AbstractContextManager[Any]:
        """Called before a backward pass, which then runs within the context that is returned."""
        self.backwards += 1
        self._in_window += 1
        record = self.optimizers.only_one()
        if record is None or not is_boundary or not self.plan.is_active:
            return nullcontext()
        self._close_if_dropped(record)
        self.optimizers.identify(record)
        number = record.attempts + 1
        if record.injected == number or not self.plan.chooses(number) or not self.plan.means(record.names):
            return nullcontext()
        return self._injecting(record, number)

    @contextlib.contextmanager
    def _injecting(self, record: Record, number: int) -> Iterator[None]:
        with SpoiledBackward(record.parameters()) as spoiled:
            yield
        if spoiled.done:
            record.injected = number

    def _close_if_dropped(self, record: Record) -> None:
        """A window whose overflow the script threw away without a step: the infinite gradient is gone."""
        if record.injected != record.attempts + 1:
            return
        gradients = [p.grad for p in record.parameters() if p.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            self._in_window -= 1
            self._close(record, True, {"outcome": "dropped"})
            self._in_window = 1

    def inject_into(self, optimizer: Any) -> None:
        """Called where gradients are about to be unscaled or used, if the backward pass did not inject already."""
        plan = self.plan
        if not plan.is_active:
            return
        record = self.optimizers.of(optimizer)
        self.optimizers.identify(record)
        number = record.attempts + 1
        if record.injected == number or not plan.means(record.names):
            return
        chosen = plan.chooses(number)
        if not chosen and plan.rank is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            chosen = plan.on_every_rank().chooses(number)
            if chosen and len(list(self.optimizers)) > 1:
                self.journal.note(
                    "with several optimizers an overflow can only be put in after gradients were reduced over the "
                    "ranks, so every rank got it, as a reduction would have done"
                )
            elif chosen:
                return
        if chosen and spoil_first(innermost(optimizer)):
            record.injected = number

    def begin(
        self, optimizer: Any, scaler: Any = None, prepared: bool = False, closure: bool = False
    ) -> Record | None:
        """Begin an attempt; None if one of this optimizer is under way or no backward pass came before it."""
        record = self.optimizers.of(optimizer)
        inner = innermost(optimizer)
        scaler = innermost_scaler(scaler)
        if record.current is not None or not (closure or self._has_gradients(record, inner)):
            return None
        record.prepared = record.prepared or prepared
        if scaler is not None and getattr(scaler, "_enabled", True):
            record.scaler = "installed" if scaler in self.installed else "script"
        self.optimizers.identify(record)
        if scaler is None or not is_unscaled(scaler, inner):
            self.inject_into(inner)
        injected = record.injected == record.attempts + 1
        record.current = Attempt(Weights(parameters_of(inner)), scaler, scale_of(scaler), injected)
        return record

    def _has_gradients(self, record: Record, inner: Any) -> bool:
        """A step that no backward pass came before is an attempt only if somebody has set gradients by hand.

        Helpers that load checkpoints step once on zeros to make the optimizer's state.
        """
        if record.backwards < self.backwards:
            return True
        return any(bool(p.grad.any()) for p in parameters_of(inner) if p.grad is not None)

    def ran(self, inner: Any) -> None:
        """The optimizer's own step is being called."""
        attempt = self.optimizers.of(inner).current
        if attempt is not None:
            attempt.ran = True
            attempt.found_inf = getattr(inner, "found_inf", None)

    def end(self, record: Record | None, flag: Any = None) -> None:
        """End the attempt that `begin` gave; `flag` is what Accelerate says of it."""
        if record is None or record.current is None:
            return
        attempt = record.current
        record.current = None
        found = outcome_of(attempt, record.optimizer())
        found["said_skipped"] = None if flag is None else bool(flag)
        if attempt.scaler is not None:
            found["scale"] = [attempt.scale, scale_of(attempt.scaler)]
        self._close(record, attempt.injected, found)

    def adopt(self, engine: Any) -> None:
        """A DeepSpeed engine: it holds optimizer and scaler, and its steps are the attempts."""
        record = self.optimizers.of(engine.optimizer)
        record.engine = weakref.ref(engine)
        record.kind = f"DeepSpeed {record.kind}"
        record.prepared, record.scaler = True, "script"

    def engine_step(self, engine: Any, weights: Weights, scale: Any, was_skipped: bool) -> None:
        """An attempt of an engine; an update may be too small to move 16-bit weights, then the engine is believed."""
        record = self.optimizers.of(engine.optimizer)
        changed = weights.changed()
        found = {
            "outcome": "skipped" if was_skipped and not changed else "applied",
            "said_skipped": was_skipped,
            "weights_changed": changed,
            "scale": [scale, engine_scale(engine)],
        }
        self._close(record, record.injected == record.attempts + 1, found)

    def abandon(self, record: Record | None) -> None:
        """The step raised: nothing is known of it."""
        if record is not None:
            record.current = None

    def _close(self, record: Record, injected: bool, found: dict[str, Any]) -> None:
        record.attempts += 1
        record.backwards = self.backwards
        record.applied += found["outcome"] == "applied"
        self.journal.done += 1
        self._announce(record)
        losses = [plain(float(loss)) for loss in self._losses]
        fields = {"number": record.attempts, "optimizer": record.number, "injected": injected, "losses": losses}
        self.journal.tell("attempt", may_search=True, backwards=self._in_window, **fields, **found)
        self._in_window = 0
        self._losses = []

    def _announce(self, record: Record) -> None:
        if record.announced:
            return
        self.optimizers.identify(record)
        record.announced = True
        self.journal.recorder.write(
            "optimizer",
            number=record.number,
            name=record.name,
            kind=record.kind,
            prepared=record.prepared,
            scaler=record.scaler,
            fused=bool(getattr(record.optimizer(), "_step_supports_amp_scaling", False)),
            chosen=self.plan.means(record.names),
        )
