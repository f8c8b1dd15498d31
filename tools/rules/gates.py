"""The edits that gate statements without a guard: an early `continue`, another clause, or a test round them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..loop.blocks import Block
from ..loop.flag import Flag
from ..loop.paths import State
from ..loop.window import Window
from ..source import Edit
from ..work import Work
from . import kept_sums, reset_window
from .tails import Tail


def gate_tail(work: Work, block: Block, tail: Tail, flag: Flag, window: Window) -> list[Edit]:
    """The edits for all runs of a tail, with what its window needs at skipped boundaries."""
    if tail.is_rest:
        return _leave_rest(work, block, tail, flag, window)
    edits: list[Edit] = []
    for run in tail.runs:
        only = run[0] if len(run) == 1 else None
        if isinstance(only, ast.If) and not only.orelse and (not window.kept or tail.is_test_of_step):
            edits += work.layout.prepend_clauses(only, work.conditions(block.state, flag))
            edits += _other_arm(work, only, window)
        else:
            edits += gate_run(work, run, block.state, flag, window)
    return edits


def gate_run(work: Work, run: Sequence[ast.stmt], state: State, flag: Flag, window: Window) -> list[Edit]:
    """A test round statements, and an arm of it for what skipped boundaries must run."""
    edits = work.layout.wrap(run[0], run[-1], " and ".join(work.conditions(state, flag)))
    lines = reset_window.lines(work, window)
    if not lines:
        return edits
    attempted = work.attempted(state, flag)
    header = f"elif {' and '.join(attempted)}:" if attempted else "else:"
    edits += kept_sums.starts(work, run[0], window)
    return edits + work.layout.end_wrapped(run[0], run[-1], kept_sums.remember(work, window), header, lines)


def _leave_rest(work: Work, block: Block, tail: Tail, flag: Flag, window: Window) -> list[Edit]:
    layout = work.layout
    test, unit = " or ".join(work.opposite(block.state, flag)), layout.unit(block.node)
    lines = [*reset_window.lines(work, window), "continue"]
    edits = kept_sums.keep(work, block, window)
    return edits + layout.insert_before(
        tail.statements[0], [f"if {test}:", *(unit + line.replace("\0", unit) for line in lines)]
    )


def _other_arm(work: Work, node: ast.If, window: Window) -> list[Edit]:
    """The arm of a test that got the flag: what was due under that test, and the sums as they were."""
    lines = reset_window.lines(work, window)
    if not lines:
        return []
    layout, number = work.layout, len(window.lines)
    edits = kept_sums.starts(work, node, window)
    for line in kept_sums.remember(work, window):
        edits += layout.insert_after(node.body[-1], line)
    due = [line[1:] for line in lines[1:number]]  # those of the one test come first, and stand under it
    return edits + layout.add_arm(node, f"elif {layout.raw_test(node)}:", [*due, *lines[number:]])
