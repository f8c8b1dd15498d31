"""Loops over epochs whose inner loop stops at a number of updates."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..source import Source

START = "epoch_start_step"  # what the counter was when an epoch began, in a loop that takes further epochs


@dataclass(frozen=True)
class Budget:
    """An epoch loop and the texts that its new head is made of."""

    loop: ast.For
    stop: ast.expr  # the number of epochs
    counter: str
    limit: str  # the number of updates


def read_budget(source: Source, loop: ast.For) -> Budget | None:
    """The loop as a budget if it runs over a range, and its inner loop stops at a limit of a counter."""
    call = loop.iter
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
        return None
    if not 1 <= len(call.args) <= 2 or call.keywords:
        return None
    inner = [node for node in loop.body if isinstance(node, (ast.For, ast.While))]
    for test in (node.test for part in inner for node in ast.walk(part) if isinstance(node, ast.If) and _breaks(node)):
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.GtE):
            counter, limit = source.segment(test.left), source.segment(test.comparators[0])
            if is_plain(test.left) and is_plain(test.comparators[0]) and _counts(loop, counter):
                return Budget(loop, call.args[-1], counter, limit)
    return None


def _breaks(node: ast.If) -> bool:
    return any(isinstance(statement, ast.Break) for statement in node.body)


def is_plain(node: ast.expr) -> bool:
    """A name or a dotted name."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and is_plain(node.value))


def _counts(loop: ast.For, counter: str) -> bool:
    return any(isinstance(node, ast.AugAssign) and ast.unparse(node.target) == counter for node in ast.walk(loop))


def is_gated(loop: ast.For, counter: str) -> bool:
    """Whether the counter moves under a test that asks whether the update was applied."""
    return any(
        isinstance(node, ast.If)
        and "step_was_skipped" in ast.unparse(node.test)
        and any(isinstance(part, ast.AugAssign) and ast.unparse(part.target) == counter for part in ast.walk(node))
        for node in ast.walk(loop)
    )


def is_extended(loop: ast.For) -> bool:
    """Whether a loop goes on already until the updates are applied: it notes the counter at the head of each epoch."""
    notes = [node for node in loop.body if isinstance(node, ast.Assign) and is_plain(node.value)]
    return any(ast.unparse(node.targets[0]) == START for node in notes)
