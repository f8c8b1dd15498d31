"""The prepared optimizer that knows whether its last update was applied."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from accelerate.optimizer import AcceleratedOptimizer

from .backward import BackwardPasses
from .scaling import ScalerTurn, StepProbe
from .tally import Tally
from .update import Update, Verdict

if TYPE_CHECKING:
    from torch.amp import GradScaler

_OWN = ("attempts", "passes", "tally", "_passes_used", "_last", "_step_before")

_CLASSES: dict[type, type[CountedOptimizer]] = {}


class Listener(Protocol):
    """Who is told what an optimizer does: the attempts of an Accelerator."""

    scaler_turn: ScalerTurn

    @property
    def guard(self) -> GradScaler | None:
        """What decides about updates where Accelerate has no scaler."""

    @property
    def update(self) -> Update:
        """The current attempt."""

    def stepped(self, optimizer: CountedOptimizer, verdict: Verdict, scaler: GradScaler | None = None, /) -> None:
        """It has stepped on complete gradients. May raise SkippedUpdatesError."""

    def warn_without_scaler(self) -> None:
        """It steps, and no scaler decides about that."""

    def restart(self, state: dict[str, int] | None = None) -> None:
        """Its run begins anew, at zero or at stored counts."""


class CountedOptimizer(AcceleratedOptimizer):
    """A prepared optimizer with counts of its own.

    It steps exactly like `accelerate.optimizer.AcceleratedOptimizer`. Counts travel with a copy or a pickle of it;
    the tie to its Accelerator does not, so a copy counts for itself.
    """

    counts_for: type[AcceleratedOptimizer] = AcceleratedOptimizer
    optimizer: torch.optim.Optimizer
    scaler: GradScaler | None
    attempts: Listener | None
    passes: BackwardPasses | None
    tally: Tally
    _last: Verdict | None
    _step_before: Callable[..., None] | None = None

    def __init_subclass__(cls) -> None:
        if "counts_for" in vars(cls):
            _CLASSES[cls.counts_for] = cls

    @property
    def applied_step(self) -> int:
        """How many of this optimizer's updates were applied. Fetches what a fused optimizer left on the device."""
        return self.tally.read().applied

    @property
    def attempted_step(self) -> int:
        """How many updates of this optimizer were attempted."""
        return self.tally.attempted + self._is_left_out_now()

    @property
    def skipped_steps(self) -> int:
        """How many of this optimizer's updates were skipped."""
        return self.tally.read().skipped + self._is_left_out_now()

    @property
    def applied_step_tensor(self) -> torch.Tensor:
        """`applied_step` as an int64 tensor on the device of the parameters, without synchronising."""
        return self.tally.applied_on_device(self.param_groups[0]["params"][0].device)

    @property
    def step_was_skipped(self) -> bool:
        """Whether this optimizer's update was skipped in the current attempt; False before it is attempted."""
        if self.attempts is not None:
            return self.attempts.update.was_skipped_for(self)
        return self._last is not None and self._last.skipped

    @property
    def scaler_in_use(self) -> GradScaler | None:
        """What decides about this optimizer's updates: Accelerate's scaler, else the guard, if there is one."""
        if self.scaler is None and self.attempts is not None:
            return self.attempts.guard
        return self.scaler

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """As in Accelerate; the update is counted when gradients are complete and a backward pass made them.

        Raises: SkippedUpdatesError if too many updates in a row were skipped and no window is open.
        """
        if not self.gradient_state.sync_gradients:
            if self.attempts is None:
                self._last = None
            self._plain_step(closure)
            return
        scaler, used = self.scaler_in_use, self._passes_used
        if closure is None and not self._has_gradients_after(used):
            if scaler is not None and self.attempts is not None:
                self.attempts.scaler_turn.update()
            self._plain_step()
            return
        verdict = self._step_and_tell(scaler, closure)
        if not self._has_gradients_after(used):  # a closure makes its own, or none
            return
        self.use_up_gradients()
        self._last = verdict
        self.tally.record(verdict)
        if self.attempts is not None:
            self.attempts.stepped(self, verdict, scaler)
        elif scaler is not None:
            scaler.update()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(set_to_none=set_to_none)
        if self.gradient_state.sync_gradients:
            self.use_up_gradients()
            if self.attempts is not None:
                self.attempts.scaler_turn.gradients_dropped(self.optimizer)

    def use_up_gradients(self) -> None:
        """The gradients so far make no further attempt: they were stepped on, or dropped."""
        if self.passes is not None:
            self._passes_used = self.passes.count

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self.passes is not None:
            self.passes.watch(self.param_groups[-1]["params"])

    def start_counting(self, attempts: Listener | None, passes: BackwardPasses | None) -> None:
        """Tie the optimizer to an Accelerator's attempts; without a source of `passes` every step is an attempt."""
        self.attempts = attempts
        self.passes = passes
        self._passes_used = passes.count if passes is not None else 0
        self._last = None
        if "tally" not in self.__dict__:
            self.tally = Tally()

    def counts(self) -> dict[str, int]:
        """All counts of this optimizer, in the form of a ledger's state."""
        in_a_row = self.tally.read().skipped_in_a_row
        counts = {"attempted": self.attempted_step, "applied": self.applied_step, "skipped": self.skipped_steps}
        return counts | {"skipped_in_a_row": in_a_row + counts["skipped"] - self.tally.read().skipped}

    def restart(self, state: dict[str, int]) -> None:
        """Continue from stored counts."""
        self.tally = Tally()
        self.tally.read().load_state_dict(state)
        self._last = None
        self.use_up_gradients()

    def _plain_step(self, closure: Callable[[], Any] | None = None) -> None:
        """Accelerate's step, or what somebody had put in its place before counting began."""
        given = () if closure is None else (closure,)  # engines' optimizers take none
        if self._step_before is not None:
            self._step_before(*given)
        else:
            super().step(*given)

    def _has_gradients_after(self, used: int) -> bool:
        """Whether a backward pass came after the first `used` ones; always where nobody tells of them."""
        return self.passes is None or self.passes.count > used

    def _step_and_tell(self, scaler: GradScaler | None, closure: Callable[[], Any] | None) -> Verdict:
        if scaler is None:
            if self.attempts is not None:
                self.attempts.warn_without_scaler()
            self._plain_step(closure)
            return Verdict(skipped=self._is_skipped_by_its_engine())
        if self.attempts is not None:
            self.attempts.scaler_turn.before_step(scaler, self.optimizer)
        probe = StepProbe(scaler)
        if self.scaler is None:  # the guard is no scaler of Accelerate's: it comes into play here only
            if closure is not None:
                raise ValueError(
                    "`skip_nonfinite` cannot look at gradients that a closure makes within `step(closure)`: call "
                    "`backward` before `step()`, or leave `skip_nonfinite` off with an optimizer that needs a closure"
                )
            probe.step(self.optimizer)
            return probe.verdict
        self.scaler = probe  # type: ignore[assignment]
        try:
            self._plain_step(closure)
        finally:
            self.scaler = scaler
        return probe.verdict

    def _is_skipped_by_its_engine(self) -> bool:
        """What a wrapper that knows better than Accelerate's own says of the step, such as Megatron-LM's."""
        own = self.counts_for.step_was_skipped
        return own is not AcceleratedOptimizer.step_was_skipped and bool(own.fget(self))

    def _is_left_out_now(self) -> bool:
        """Whether the attempt that has just ended had no step of it, which the tally learns with the next one."""
        return self.attempts is not None and any(self is other for other in self.attempts.update.left_out)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["_is_overflow"] = self.step_was_skipped
        ties = ("attempts", "passes", "step", "_step_before")  # they lead to other objects than a copy
        return {name: value for name, value in state.items() if name not in ties}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.start_counting(None, None)
        self._last = Verdict(skipped=state["_is_overflow"])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (self.counts_for,), self.__getstate__()


_CLASSES[AcceleratedOptimizer] = CountedOptimizer


def count_steps_of(optimizer: AcceleratedOptimizer) -> CountedOptimizer:
    """Turn a prepared optimizer into one that counts. It stays the same object, so schedulers keep their tie to it."""
    if not isinstance(optimizer, CountedOptimizer):
        optimizer.__class__ = counted_class(type(optimizer))
        assert isinstance(optimizer, CountedOptimizer)
        before = vars(optimizer).get("step")
        if before is not None and not _calls_class_step(before):  # a scheduler has replaced it, to notice steps
            optimizer._step_before = before
            optimizer.step = _call_class_step(optimizer, like=before)  # type: ignore[method-assign]
    return optimizer


def stop_counting_steps_of(optimizer: CountedOptimizer) -> None:
    """Undo `count_steps_of`. The optimizer keeps saying whether its last step was skipped, as Accelerate does."""
    optimizer._is_overflow = optimizer.step_was_skipped
    now, before = vars(optimizer).get("step"), optimizer._step_before
    if before is not None:
        optimizer.step = before  # type: ignore[method-assign]
    elif now is not None:  # a scheduler has wrapped the step that counts
        optimizer.step = _call_class_step(optimizer, like=now)  # type: ignore[method-assign]
    for name in _OWN:
        optimizer.__dict__.pop(name, None)
    optimizer.__class__ = optimizer.counts_for


def _call_class_step(optimizer: AcceleratedOptimizer, like: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for `optimizer.step` that does what the class does, with the marks of another replacement."""
    tie = weakref.ref(optimizer)

    @functools.wraps(like)
    def step(*args: Any, **kwargs: Any) -> Any:
        owner: Any = tie()
        owner._opt_called = True  # what torch's schedulers look for
        return type(owner).step(owner, *args, **kwargs)

    step.is_ours = step  # type: ignore[attr-defined]
    return step


def _calls_class_step(step: Callable[..., Any]) -> bool:
    """Whether this is a replacement of ours. A wrapper round it may have copied its marks, but is another object."""
    return getattr(step, "is_ours", None) is step


def counted_class(cls: type[AcceleratedOptimizer]) -> type[CountedOptimizer]:
    """The class that counts for a class of prepared optimizers, made from the nearest one that is known."""
    if cls not in _CLASSES:
        base = next(_CLASSES[parent] for parent in cls.__mro__ if parent in _CLASSES)
        type(f"Counted{cls.__name__}", (base, cls), {"counts_for": cls, "__module__": cls.__module__})
    return _CLASSES[cls]


def _blank(cls: type[AcceleratedOptimizer]) -> CountedOptimizer:
    """For unpickling: classes made above have no importable name."""
    return object.__new__(counted_class(cls))
