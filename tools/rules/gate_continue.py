"""What follows an early `continue` between boundaries is skipped after a dropped update as well.

What: `if not sync_gradients: continue` (or `return`) behind the optimizer step; everything below it is bookkeeping.

Why: the lines below run at every boundary, also when the update was dropped. The same line above the step is another
thing and stays: with the flag in it the loop would never step again.

Before:

    if not accelerator.sync_gradients:
        continue
    global_step += 1

After:

    if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:
        continue
    global_step += 1

Where the lines below clear window state, or the early exit does something itself, a second test follows the first:

    if accelerator.optimizer_step_was_skipped:
        running_loss = 0.0
        continue

Refuses: what `gate_bookkeeping` refuses.
"""

from __future__ import annotations

import ast

from ..loop.blocks import Block, Role
from ..loop.clauses import Clause
from ..loop.flag import Flag
from ..loop.leaving import left_by
from ..loop.obstacles import Refusal
from ..loop.window import Window
from ..source import Edit
from ..work import Work
from . import kept_sums, reset_window


def gate_continue(work: Work) -> None:
    """Gate what follows every early exit that leaves between boundaries."""
    for block in work.blocks:
        if block.role is Role.CONTINUE and block.statements:
            _gate(work, block)


def _gate(work: Work, block: Block) -> None:
    node, test = block.node, block.test
    assert isinstance(node, ast.If)
    assert test is not None
    sync = test.holds_without_sync
    assert sync is not None
    found = work.flag_and_window(
        block,
        sync,
        lambda window: kept_sums.refusal(work, block.node, window),
        lambda _: _jumps_over_resets(work, node),
        lambda window: work.left_unbound(block, block.statements),
    )
    if found is None:
        return
    flag, window = found
    if work.edit(node, block.role.value, lambda: _edits(work, block, node, sync, flag, window)):
        block.is_gated = True
        work.take_in(block)
        work.keep(flag)
        text = f"also left after a skipped update: `{flag.text}`{flag.remark}"
        work.rewritten(node, block.role.value, "gated", text)
        reset_window.report(work, block.node, window)


def _jumps_over_resets(work: Work, node: ast.If) -> Refusal | None:
    """Why an exit cannot be taken after a skipped update: it jumps over resets that it does not decide about alone."""
    shared = left_by(work.script, node).shared
    window = work.window(shared, node)
    if not (window.refusal or window.lines or window.kept):
        return None
    return Refusal(
        "leaves",
        f"`{work.layout.text(node.body[-1])}` also jumps over line {shared[0].lineno} and what follows, which clears "
        "state at every boundary and is reached in other ways too; put that in front of this test",
    )


def _edits(work: Work, block: Block, node: ast.If, sync: Clause, flag: Flag, window: Window) -> list[Edit]:
    lines = reset_window.lines(work, window)
    edits = kept_sums.keep(work, block, window)
    if not lines and len(node.body) == 1:
        return edits + work.layout.add_clauses(node, sync.node, flag.opposite, "or")
    jump = work.layout.text(node.body[-1])
    return edits + work.layout.add_block(node, f"if {' or '.join(flag.opposite)}:", [*lines, jump])
