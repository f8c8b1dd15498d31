"""Where one update attempt ends and the next begins, and what is known about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .backward import BackwardPasses
from .errors import SkippedUpdatesError
from .scaling import ScalerTurn, copy_of_scale, holds_gradients, owns_any
from .streak import UnseenSteps, too_many_skips
from .tally import Tally
from .update import Update, Verdict, sent

if TYPE_CHECKING:
    from torch.amp import GradScaler

    from .nonfinite import NonFiniteGuard
    from .optimizer import CountedOptimizer


class Attempts:
    """The attempts of one Accelerator.

    Inside a window (`attempt()` or `accumulate()`) everything that steps belongs to one attempt. Outside of windows
    an attempt reaches from a backward pass to the steps that follow it. A window whose gradients were complete and
    that nobody stepped on is an attempt that was skipped, unless the steps come right behind it.
    """

    def __init__(
        self, optimizers: Callable[[], Sequence[CountedOptimizer]], max_consecutive_skips: int | None
    ) -> None:
        self.optimizers = optimizers
        self.max_consecutive_skips = max_consecutive_skips
        self.guard: NonFiniteGuard | None = None
        self.warning_without_scaler: str | None = None  # once, at the first step that no scaler decides about
        self.passes = BackwardPasses()
        self.scaler_turn = ScalerTurn()
        self.tally = Tally()
        self._unseen = UnseenSteps()
        self._update = Update()
        self._depth = 0
        self._models: tuple[torch.nn.Module, ...] = ()
        self._pass_at_last_step = 0
        self._pass_at_end = 0  # a later backward pass, outside of windows, begins the next attempt
        self._scale_before_skips: torch.Tensor | float | None = None
        self._has_warned = False

    @property
    def update(self) -> Update:
        """The current attempt: the last one until a backward pass or a window begins a new one."""
        self._roll()
        return self._update

    @property
    def attempted(self) -> int:
        """How many there were, the current one included. Never synchronises."""
        return self.tally.attempted + self.update.attempted

    @property
    def applied(self) -> int:
        """How many were applied. Fetches what is still on the device, as the next two do."""
        return self.tally.read().applied + self.update.applied

    @property
    def skipped(self) -> int:
        """How many were skipped."""
        return self.tally.read().skipped + self.update.skipped

    @property
    def skipped_in_a_row(self) -> int:
        """How many were skipped since the last one that was applied."""
        in_a_row = self.tally.read().skipped_in_a_row
        if not self.update.attempted:
            return in_a_row
        return in_a_row + 1 if self.update.skipped else 0

    def applied_on_device(self, device: torch.device) -> torch.Tensor:
        """The number of applied updates as an int64 tensor, without synchronising."""
        count = self.tally.applied_on_device(device)
        if self.update.has_steps:
            verdict = self._update.verdict
            if verdict.is_known:
                return count + (not verdict.skipped)
            assert verdict.found_inf is not None
            count = count + sent(verdict.found_inf.reshape(()) == 0, device)
        return count

    def open_window(self, models: tuple[torch.nn.Module, ...]) -> Update:
        """A window begins, or one inside of it. Returns the update that its steps belong to."""
        if self._depth == 0:
            self._next()
            self._models = models
        self._depth += 1
        return self._update

    def close_window(self, is_boundary: bool) -> None:
        """A window ends; with the outermost one, if its gradients were complete, an attempt.

        Raises: SkippedUpdatesError if too many attempts in a row were skipped.
        """
        self._depth -= 1
        if self._depth:
            return
        if self.scaler_turn.is_update_due:
            self.scaler_turn.update()
        if is_boundary and not self._update.attempted and self.passes.count > self._pass_at_last_step:
            owners = self._owners_of(self._models)
            if owners:  # else somebody steps an optimizer that was not prepared: nothing is known about it
                self._update.close_without_step(owners)
                self._unseen.missed(self._models)
            elif not self.optimizers():
                self._warn_of_no_optimizer()
        self._pass_at_end = self.passes.count
        self._check_streak()

    def _warn_of_no_optimizer(self) -> None:
        """Once: a loop that waits for `update.applied` would wait for ever."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "an optimizer must be prepared for its updates to be counted, and none is: `update.applied` stays "
                "False and `applied_step` 0. Give it to `accelerator.prepare`",
                RuntimeWarning,
                stacklevel=4,
            )

    def abandon_window(self) -> None:
        """The block was left by an exception: what stepped counts, what did not is no attempt."""
        self._depth -= 1
        if not self._depth:
            self.scaler_turn.update()
            self._pass_at_last_step = self._pass_at_end = self.passes.count

    def before_backward(self) -> None:
        """`Accelerator.backward` was called."""
        self.passes.report()
        if not self._depth and self.scaler_turn.is_update_due:
            self.scaler_turn.update()

    def stepped(
        self,
        optimizer: CountedOptimizer | None,
        verdict: Verdict,
        scaler: GradScaler | None = None,
        scale_before: float | None = None,
    ) -> None:
        """An optimizer has stepped on complete gradients.

        Raises: SkippedUpdatesError if too many attempts in a row were skipped; inside a window that waits for its end.
        """
        self._roll()
        self._unseen.seen(self._models)
        self._update.add(optimizer, verdict)
        self._pass_at_last_step = self._pass_at_end = self.passes.count
        self._note_scale(verdict, scaler, scale_before)
        if scaler is not None and optimizer is not None:
            self.scaler_turn.stepped(scaler, optimizer.optimizer)
            if self._may_update_scale():
                self.scaler_turn.update()
        if not self._depth:
            self._check_streak()

    def warn_without_scaler(self) -> None:
        """Called before a step that no scaler decides about. At most one warning, if there is something to say."""
        if self.warning_without_scaler is not None:
            text, self.warning_without_scaler = self.warning_without_scaler, None
            warnings.warn(text, stacklevel=4)

    def settle(self) -> None:
        """Before a checkpoint: an optimizer without gradients makes no attempt, whatever a helper does with it."""
        was_left_unused = self._update.attempted and not self._update.has_steps
        if not self._depth and (self.scaler_turn.is_update_due or was_left_unused):
            self.scaler_turn.update()
        for optimizer in self.optimizers():
            if not holds_gradients(optimizer):
                optimizer.use_up_gradients()

    def restart(self, state: dict[str, int] | None = None) -> None:
        """Begin anew, at zero or at stored counts."""
        self.settle()
        self._pass_at_last_step = self._pass_at_end = self.passes.count
        self.tally = Tally()
        self._update = Update()
        self._scale_before_skips = None
        if state is not None:
            self.tally.read().load_state_dict(state)

    def counts_by_name(self) -> dict[str, int]:
        """What all ranks must agree about."""
        counts = {"attempted_step": self.attempted, "applied_step": self.applied}
        for index, optimizer in enumerate(self.optimizers()):
            counts[f"applied_step of optimizer {index}"] = optimizer.applied_step
        return counts

    def state_dict(self) -> dict[str, int]:
        """The counts, in the form of a ledger's state."""
        return {
            "attempted": self.attempted,
            "applied": self.applied,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle: the counts. What is under way, and whatever is known by the identity of an object, is not."""
        names = ("optimizers", "max_consecutive_skips", "guard", "warning_without_scaler")
        return {name: getattr(self, name) for name in names} | {"counts": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["optimizers"], state["max_consecutive_skips"])  # type: ignore[misc]
        self.guard = state["guard"]
        self.warning_without_scaler = state["warning_without_scaler"]
        self.tally.read().load_state_dict(state["counts"])

    def _roll(self) -> None:
        """Outside of windows a backward pass after the end of an attempt begins the next one."""
        if not self._depth and self._update.attempted and self.passes.count > self._pass_at_end:
            self._next()

    def _next(self) -> None:
        update, self._update = self._update, Update()
        if not update.attempted:
            return
        self.tally.record(update.verdict)
        if not update.has_steps:
            self._pass_at_last_step = self.passes.count
            self.scaler_turn.update()  # gradients that were unscaled and not used
            for optimizer in self.optimizers():
                if update.was_skipped_for(optimizer):
                    optimizer.tally.record(Verdict(skipped=True))

    def _may_update_scale(self) -> bool:
        """With one optimizer at once; with several when the window ends or, outside, when all of them have stepped."""
        optimizers = self.optimizers()
        if len(optimizers) < 2:
            return True
        return not self._depth and all(self.scaler_turn.has_stepped(other.optimizer) for other in optimizers)

    def _owners_of(self, models: tuple[torch.nn.Module, ...]) -> tuple[object, ...]:
        """The optimizers that hold parameters of these models; all of them when no model is named."""
        optimizers = tuple(self.optimizers())
        if not models or len(optimizers) < 2:
            return optimizers
        wanted = {id(parameter) for model in models for parameter in model.parameters()}
        return tuple(optimizer for optimizer in optimizers if owns_any(optimizer, wanted))

    def _note_scale(self, verdict: Verdict, scaler: GradScaler | None, scale_before: float | None) -> None:
        """Remember the loss scale from before a streak of skips, for the message about it."""
        if not verdict.is_known or not verdict.skipped:
            self._scale_before_skips = None
        elif self._scale_before_skips is None:
            self._scale_before_skips = scale_before if scaler is None else copy_of_scale(scaler)

    def _check_streak(self) -> None:
        limit = self.max_consecutive_skips
        if limit is None or not self._update.attempted:
            return
        verdict = self._update.verdict
        if verdict.is_known and not verdict.skipped:
            return
        in_a_row = self.tally.seen_so_far.skipped_in_a_row + verdict.is_known
        if in_a_row >= limit:
            seen = (self._scale_before_skips, self._unseen.in_a_row)
            raise SkippedUpdatesError(too_many_skips(in_a_row, limit, self.optimizers(), *seen))
