"""Counts of update attempts, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .arguments import count_problem


@dataclass
class Ledger:
    """How many updates were attempted, applied and skipped, and how many were skipped since the last applied one."""

    attempted: int = 0
    applied: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0

    def record(self, skipped: bool) -> None:
        self.attempted += 1
        if skipped:
            self.skipped += 1
            self.skipped_in_a_row += 1
        else:
            self.applied += 1
            self.skipped_in_a_row = 0

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over stored counts.

        Raises: ValueError if a count is missing, is no whole number from 0 up, or if they do not add up; the ledger
            is then as it was.
        """
        names = [field.name for field in fields(self)]
        wrong = [problem for name in names if (problem := count_problem(name, state.get(name)))]
        if not wrong and state["attempted"] != state["applied"] + state["skipped"]:
            wrong = [
                f"`attempted` must be `applied` + `skipped`, got {state['attempted']} for "
                f"{state['applied']} + {state['skipped']}"
            ]
        if not wrong and state["skipped_in_a_row"] > state["skipped"]:
            wrong = [f"`skipped_in_a_row` must not exceed `skipped`, got {state['skipped_in_a_row']}"]
        if wrong:
            raise ValueError("; ".join(wrong))
        for name in names:
            setattr(self, name, state[name])
