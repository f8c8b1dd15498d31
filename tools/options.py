"""What a user decides about a rewrite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .work import Work

Rule = Callable[["Work"], None]


@dataclass(frozen=True)
class Options:
    """Choices for `rewrite`.

    Args:
        counted_optimizer: the text of the optimizer whose updates count where several step in one window, such as
            `self.optimizer`.
        follow_arguments: whether a boundary flag that is an argument becomes "update applied". None: where the file
            shows the function and it guards bookkeeping; True: everywhere; False: nowhere.
        rules: the rules to run, in order; None for `tools.rules.RULES`.
        line_length: columns within which a test stays on one line.
    """

    counted_optimizer: str | None = None
    follow_arguments: bool | None = None
    rules: tuple[Rule, ...] | None = None
    line_length: int = 119
