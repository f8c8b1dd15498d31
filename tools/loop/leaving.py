"""What an early exit jumps over."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .script import Script
from .tree import is_loop


@dataclass(frozen=True)
class Rest:
    """Statements between an early exit and the end of what it leaves.

    `certain` are those that run whenever the exit is reached and not taken, and in no other way; `shared` stand behind
    a test round the exit and are reached past it as well.
    """

    certain: list[ast.stmt] = field(default_factory=list)
    shared: list[ast.stmt] = field(default_factory=list)


def left_by(script: Script, node: ast.stmt) -> Rest:
    """What a `continue`, `break` or `return` in the body of an `if` jumps over: to the end of the loop's body."""
    rest = Rest([*script.places[node].following])
    is_certain = True
    for outer in script.ancestors(node):
        if is_loop(outer):
            break
        is_certain = is_certain and isinstance(outer, (ast.With, ast.AsyncWith))
        (rest.certain if is_certain else rest.shared).extend(script.places[outer].following)
    return rest
