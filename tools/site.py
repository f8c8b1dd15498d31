"""What the tools found at one place of a source file, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """What became of a site. Everything that was looked at is reported; what is not understood is refused."""

    REWRITTEN = "rewritten"  # changed by this run
    RIGHT = "right"  # already counts applied updates
    REFUSED = "refused"  # needs a change that cannot be made safely; the message says why and what to do
    LEFT = "left"  # right as it stands, or not this tool's business; a message may still warn


@dataclass(frozen=True)
class Site:
    """One place. `line` and `col` count from 1, in the source before the rewrite.

    `code` is stable: programs and documents may rely on it. `kind` says what stands there ("clip guard",
    "bookkeeping block", ...), `message` why the outcome is what it is and, where a user can act, what to do.
    """

    line: int
    col: int
    kind: str
    code: str
    outcome: Outcome
    message: str
    new_line: int | None = None  # where the place stands after the rewrite, if it was rewritten
