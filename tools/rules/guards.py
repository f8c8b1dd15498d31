"""What stands round an unguarded counter: the tests over it, and the `range` loop that it may be tied to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..loop.blocks import Block
from ..loop.clauses import FLAGS
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import is_loop, walk, within
from ..work import Work

_WIDTH = 60


def is_range_bound(work: Work, block: Block, node: ast.stmt) -> bool:
    """Whether a counter runs along with the variable of a `range` loop; that is reported and left."""
    name = work.traits.counter(node)
    for loop in work.script.ancestors(node):
        if not (isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and key(loop.iter.func) == "range"):
            continue
        if name is not None and any(key(item) == name for item in ast.walk(loop.iter)):
            text = f"`{name}` is tied to the range of line {loop.lineno}: skipped updates count toward its total. Use "
            advice = f"`while {name} < ...` with a cap on skips in a row to reach that many applied updates"
            work.refuse(node, block.role.value, Refusal("range-bound", text + advice))
            return True
    return False


def why_unread(work: Work, block: Block) -> Refusal | None:
    """Why a counter under a test that asks for the boundary in a form of its own is left; None without such a test."""
    for node, test in tests_round(work, block, block.statements):
        seen = _looks_at_a_flag(work, node, test)
        if seen is not None:
            return Refusal(
                "unread-test",
                f"line {test.lineno} asks {seen}, and what that says about the boundary cannot be followed here; ask "
                "the accelerator's `sync_gradients` in an `if` and run this again",
            )
    return None


def tests_round(work: Work, block: Block, statements: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """The tests that decide whether one of these statements of a block counts, innermost first."""
    inside = [node for node in within(statements) if work.traits.counts(node)]
    for node in [*reversed(inside), block.node, *work.script.ancestors(block.node)]:
        if is_loop(node) and work.traits.steps(node):
            return
        yield from ((node, test) for test in _asked_by(node))
        place = work.script.places[node]
        for earlier in reversed(place.block[: place.index]):
            if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], (ast.Continue, ast.Break, ast.Return)):
                yield earlier, earlier.test


def _asked_by(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.While)):
        return [node.test]
    if isinstance(node, ast.Match):
        return [node.subject, *(case.guard for case in node.cases if case.guard is not None)]
    return []


def _looks_at_a_flag(work: Work, node: ast.stmt, test: ast.expr) -> str | None:
    """How a test asks for the boundary all the same: the test itself, or the function of this file that it calls."""
    text, scope = work.layout.text(test), work.script.places[node].scope
    if work.flags.reaches_accelerator(scope) and any(pattern.search(text) for pattern in work.clauses.words):
        return f"`{short_text(work, test)}`"
    for item in walk(test):
        function = work.script.function(scope, item) if isinstance(item, (ast.Call, ast.Attribute)) else None
        if function is not None and any(flag.search(work.script.text_of(function)) for flag in FLAGS):
            assert not isinstance(function.node, ast.Module)
            return f"`{function.name}` (line {function.node.lineno})"
    return None


def short_text(work: Work, test: ast.expr) -> str:
    """The text of a test in one short line."""
    text = re.sub(r"\s+", " ", work.layout.text(test))
    return text if len(text) <= _WIDTH else text[:_WIDTH].rsplit(" ", 1)[0] + " ..."
