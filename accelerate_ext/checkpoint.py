"""`applied_step.json`: the counts, beside what Accelerate's `save_state` writes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError
from .ledger import Ledger
from .staging import write_whole

FILE_NAME = "applied_step.json"
_FORMAT = "accelerate_ext.applied_step/1"
_NAMES = {
    "attempted": "attempted_step",
    "applied": "applied_step",
    "skipped": "skipped_steps",
    "skipped_in_a_row": "skipped_in_a_row",
}


@dataclass
class StoredCounts:
    """The counts of a checkpoint, in the form of ledger states."""

    attempts: dict[str, int]
    optimizers: list[dict[str, int]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        content = {"format": _FORMAT, **_to_file(self.attempts), "optimizers": [_to_file(o) for o in self.optimizers]}
        text = json.dumps(content, indent=2) + "\n"
        write_whole(folder / FILE_NAME, lambda path: path.write_text(text, encoding="utf-8"))

    @classmethod
    def read(cls, folder: Path) -> StoredCounts | None:
        """The counts in a checkpoint; None when it was written without them.

        Raises: CheckpointError if the file is damaged.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("format") != _FORMAT:
                given = content.get("format") if isinstance(content, dict) else content
                raise ValueError(f"`format` must be {_FORMAT!r}, got {given!r}")
            stored = cls(_from_file(content), [_from_file(counts) for counts in content["optimizers"]])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} must hold the counts that `save_state` wrote: {error}. Restore the file, or delete it to "
                "take the counts from the optimizer's state"
            ) from error
        return stored


def counts_from_states(optimizers: Sequence[torch.optim.Optimizer]) -> StoredCounts:
    """What the optimizers' own state says about applied updates; skipped ones have left no trace in it."""
    counts = [_applied_according_to(optimizer) for optimizer in optimizers]
    return StoredCounts(_all_applied(max(counts, default=0)), [_all_applied(count) for count in counts])


def warn_about_missing(folder: str, taken: StoredCounts) -> None:
    """Say where the counts come from when a checkpoint has none."""
    warnings.warn(
        f"{folder} has no {FILE_NAME} (written by plain Accelerate?): continuing at {taken.attempts['applied']} "
        "applied updates, as the optimizer's state says. Updates that were skipped before are unknown, so "
        "`attempted_step` may be too small: check where in the data you resume",
        UserWarning,
        stacklevel=3,
    )


def _applied_according_to(optimizer: torch.optim.Optimizer) -> int:
    """The largest step count in an optimizer's state; 0 when it keeps none, as plain SGD."""
    states = [state for state in optimizer.state.values() if isinstance(state, Mapping)]
    found: list[Any] = [state["step"] for state in states if "step" in state]
    if not found:  # some count once a group: fused ones of other packages "step", schedule-free ones "k"
        found = [group[name] for group in optimizer.param_groups for name in ("step", "k") if name in group]
    return max((int(step) for step in found), default=0)


def _all_applied(count: int) -> dict[str, int]:
    return {"attempted": count, "applied": count, "skipped": 0, "skipped_in_a_row": 0}


def _to_file(state: Mapping[str, int]) -> dict[str, int]:
    return {in_file: state[in_ledger] for in_ledger, in_file in _NAMES.items()}


def _from_file(content: Mapping[str, Any]) -> dict[str, int]:
    ledger = Ledger()
    ledger.load_state_dict({in_ledger: content[in_file] for in_ledger, in_file in _NAMES.items()})
    return ledger.state_dict()
