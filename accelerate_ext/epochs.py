"""Epochs until enough updates are applied."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

from .arguments import count
from .streak import MAX_CONSECUTIVE_SKIPS


class EpochPlan:
    """When to begin another epoch.

    The budget is the number of epochs that would do if nothing were skipped. Past it every epoch has to earn the
    next one: one without a single attempt ends the loop, and so does a streak of skipped updates that is a whole
    epoch long, and at least `patience` updates.
    """

    def __init__(self, max_applied_steps: int, updates_per_epoch: int, patience: int | None) -> None:
        self._max_applied_steps = count("max_applied_steps", max_applied_steps)
        self._updates_per_epoch = count("updates_per_epoch", updates_per_epoch, 1)
        self._patience = max(self._updates_per_epoch, MAX_CONSECUTIVE_SKIPS if patience is None else patience)

    def first_epoch(self, attempted: int) -> int:
        """Where to go on: data are used up by attempts, applied or not."""
        return attempted // self._updates_per_epoch

    def budget(self) -> int:
        return math.ceil(self._max_applied_steps / self._updates_per_epoch)

    def is_done(self, applied: int) -> bool:
        return applied >= self._max_applied_steps

    def reason_to_give_up(self, epochs: int, attempts_in_last_epoch: int, skipped_in_a_row: int) -> str | None:
        """Why there is no point in another epoch after so many; None when there is."""
        if epochs < self.budget():
            return None
        if not attempts_in_last_epoch:
            return "the last epoch attempted no update"
        if skipped_in_a_row >= self._patience:
            return f"the last {skipped_in_a_row} updates were all skipped"
        return None


def run_epochs(plan: EpochPlan, read_counts: Callable[[], dict[str, int]]) -> Iterator[int]:
    """Yields epoch numbers by `plan`; `read_counts` gives the state of a ledger."""
    counts = read_counts()
    epoch = plan.first_epoch(counts["attempted"])
    while not plan.is_done(counts["applied"]):
        before = counts["attempted"]
        yield epoch
        epoch += 1
        counts = read_counts()
        if plan.is_done(counts["applied"]):
            return
        reason = plan.reason_to_give_up(epoch, counts["attempted"] - before, counts["skipped_in_a_row"])
        if reason is not None:
            warnings.warn(
                f"epochs() ends after epoch {epoch - 1} with {counts['applied']} updates applied in place of "
                f"{plan._max_applied_steps}: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
