"""Sums over several updates: put back, after a skipped update, to what they were after the last applied one.

Each is remembered under another name, where it starts and after every applied update. Refused where its start cannot
be found, or where a function without a loop gathers it over calls.
"""

from __future__ import annotations

import ast
import re

from ..loop.blocks import Block
from ..loop.gathering import is_empty
from ..loop.names import key, last
from ..loop.obstacles import Refusal
from ..loop.tree import assigned, is_loop, within
from ..loop.window import Window
from ..source import Edit
from ..work import Work


def refusal(work: Work, node: ast.stmt, window: Window) -> Refusal | None:
    """Why the sums over several updates that a gated statement clears cannot be kept, or None."""
    if not window.kept:
        return None
    if isinstance(node, ast.If) and node.orelse:
        return Refusal(
            "window-of-updates", f"`{window.kept[0]}` gathers over several updates in a block with another arm"
        )
    for name in window.kept:
        if not _starts(work, node, name) and _loop_over(work, node, name) is None:
            return Refusal(
                "window-of-updates",
                f"`{name}` gathers over several updates, and where it gets its first value cannot be seen: neither in "
                "this function outside the loop nor in another method",
            )
    return None


def _starts(work: Work, anchor: ast.stmt, name: str) -> list[ast.stmt]:
    """Statements outside the innermost loop that set a sum to nothing; none where each call is an iteration."""
    loop = work.script.loop(anchor)
    if loop is None:
        return []
    inside = {id(node) for node in within(loop.body)}
    return [
        node
        for node in within(work.script.places[anchor].scope.node.body)
        if id(node) not in inside and any(key(target) == name and is_empty(value) for target, value in assigned(node))
    ]


def _loop_over(work: Work, anchor: ast.stmt, name: str) -> ast.stmt | None:
    """The outermost loop round a statement, where a sum comes into it with a value that it surely has."""
    loops = [outer for outer in work.script.ancestors(anchor) if is_loop(outer)]
    if not loops:
        return None
    place = work.script.places[loops[-1]]
    for item in work.script.bindings(place.scope, name):
        if item.is_parameter or item.statement in place.block[: place.index]:
            return loops[-1]
        is_elsewhere = work.script.places[item.statement].scope is not place.scope
        if is_elsewhere and item.value is not None and is_empty(item.value):
            return loops[-1]
    return None


def _kept_name(work: Work, name: str) -> str:
    wanted = f"applied_{last(name)}"
    while re.search(rf"\b{wanted}\b", work.source.text):
        wanted = f"last_{wanted}"
    return wanted


def put_back(work: Work, window: Window) -> list[str]:
    """The statements that take out of each sum what was added since the last applied update."""
    kept = {name: _kept_name(work, name) for name in window.kept}
    return [f"{name}[:] = {old}" if name in window.lists else f"{name} = {old} + 0" for name, old in kept.items()]


def remember(work: Work, window: Window) -> list[str]:
    """The statements that remember each sum after an applied update."""
    return [_remembering(work, name, window) for name in window.kept]


def _remembering(work: Work, name: str, window: Window) -> str:
    return f"{_kept_name(work, name)} = " + (f"list({name})" if name in window.lists else f"{name} + 0")


def starts(work: Work, anchor: ast.stmt, window: Window) -> list[Edit]:
    """Edits that remember each sum where it starts, or before the loop that it comes into."""
    edits = []
    for name in window.kept:
        line, found = _remembering(work, name, window), _starts(work, anchor, name)
        for node in found:
            edits += work.layout.insert_after(node, line)
        if not found and (loop := _loop_over(work, anchor, name)) is not None:
            edits += work.layout.insert_before(loop, [line])
    return edits


def keep(work: Work, block: Block, window: Window) -> list[Edit]:
    """Edits that remember each sum where it starts and at the end of a gated block."""
    edits = starts(work, block.node, window)
    for line in remember(work, window):
        edits += work.layout.insert_after(block.statements[-1], line)
    return edits
