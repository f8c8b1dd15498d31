"""The edits that put unguarded bookkeeping under a gate: an early `continue`, another clause, or a test round it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..loop.blocks import Block
from ..loop.flag import Flag
from ..loop.window import Window
from ..source import Edit
from ..work import Work
from . import reset_window
from .tails import Tail


def gate_tail(work: Work, block: Block, tail: Tail, flag: Flag, window: Window) -> list[Edit]:
    """The edits for all runs of a tail, with what its window needs at skipped boundaries."""
    if tail.is_rest:
        return _leave_rest(work, block, tail, flag, window)
    clauses = work.conditions(block.state, flag)
    edits: list[Edit] = []
    for run in tail.runs:
        only = run[0]
        is_one_test = len(run) == 1 and isinstance(only, ast.If) and not only.orelse
        if isinstance(only, ast.If) and is_one_test and (not window.kept or tail.is_test_of_step):
            edits += work.layout.prepend_clauses(only, clauses) + _other_arm(work, block, only, window)
        else:
            edits += work.layout.wrap(run[0], run[-1], " and ".join(clauses)) + _end(work, block, run, window)
    return edits


def _leave_rest(work: Work, block: Block, tail: Tail, flag: Flag, window: Window) -> list[Edit]:
    layout = work.layout
    test, unit = " or ".join(work.opposite(block.state, flag)), layout.unit(block.node)
    lines = [*reset_window.lines(work, window), "continue"]
    edits = reset_window.keep_sums(work, block, window)
    return edits + layout.insert_before(
        tail.statements[0], [f"if {test}:", *(unit + line.replace("\0", unit) for line in lines)]
    )


def _other_arm(work: Work, block: Block, node: ast.If, window: Window) -> list[Edit]:
    """The arm of a test that got the flag: what was due under that test, and the sums as they were."""
    lines = reset_window.lines(work, window)
    if not lines:
        return []
    layout, number = work.layout, len(window.lines)
    edits = reset_window.starts(work, block, window)
    for line in reset_window.kept_lines(work, window):
        edits += layout.insert_after(node.body[-1], line)
    due = [line[1:] for line in lines[1:number]]  # those of the one test come first, and stand under it
    return edits + layout.add_arm(node, f"elif {layout.raw_test(node)}:", [*due, *lines[number:]])


def _end(work: Work, block: Block, run: Sequence[ast.stmt], window: Window) -> list[Edit]:
    lines = reset_window.lines(work, window)
    if not lines:
        return []
    kept = reset_window.kept_lines(work, window)
    return reset_window.starts(work, block, window) + work.layout.end_wrapped(run[0], run[-1], kept, lines)
