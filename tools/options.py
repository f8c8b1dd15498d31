"""What a user decides about a rewrite."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Choices for `rewrite`.

    Args:
        counted_optimizer: the text of the optimizer whose updates count where several step in one window, such as
            `self.optimizer`.
        follow_arguments: whether a boundary flag that is an argument becomes "update applied". None: where the file
            shows the function and it guards bookkeeping; True: everywhere; False: nowhere.
        line_length: columns within which a test stays on one line.
    """

    counted_optimizer: str | None = None
    follow_arguments: bool | None = None
    line_length: int = 119
