"""Ways through an iteration: the attempts that were made on each, and the tests that tell one from another."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from .names import key
from .objects import Identity
from .scope import Scope


@dataclass(frozen=True, eq=False)
class StepSite:
    """One call that attempts an update. `owner` is the optimizer's text where it stands."""

    statement: ast.stmt
    call: ast.Call
    owner: str
    who: Identity
    kind: str  # optimizer, scaler or engine
    scope: Scope
    is_many: bool = False  # the call runs once for each of several optimizers


@dataclass(frozen=True)
class Condition:
    """A test that a path has met, and what it came to."""

    text: str
    value: bool
    node: ast.expr = field(compare=False)
    statement: ast.stmt = field(compare=False)


@dataclass(frozen=True)
class Path:
    """One way to get to a statement: the attempts on it, in order, and the tests that tell it from the others."""

    steps: tuple[StepSite, ...] = ()
    conditions: frozenset[Condition] = frozenset()
    is_looped: bool = False  # an attempt was made in a loop that has ended


@dataclass(frozen=True)
class State:
    """What is known before a statement runs."""

    paths: frozenset[Path] = frozenset({Path()})
    sync: bool | None = None  # True where only boundaries come through, False where none does
    is_gated: bool = False  # only applied updates come through
    is_skipped: bool = False  # none does: what came of the attempts is known, and here it is a skipped one

    @cached_property
    def is_after_step(self) -> bool:
        return any(path.steps for path in self.paths)


def equality(test: ast.expr) -> tuple[str | None, object]:
    """The name and the constant of `name == constant`."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        right = test.comparators[0]
        if isinstance(right, ast.Constant):
            return key(test.left), right.value
    return None, None


def is_wildcard(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None
