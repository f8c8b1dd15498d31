"""Bookkeeping behind a sync guard runs only for updates that were applied.

What: a block under `sync_gradients`, behind the optimizer step, that counts, averages, logs or saves.

Why: at a boundary the update may have been dropped (an overflow under fp16). The block counts it all the same, the EMA
averages weights that have not moved, and a checkpoint is named after an update that never was. The clip guard above
the step has the same test and must keep it: with the flag in it training would stop after the first overflow.

Before:

    if accelerator.sync_gradients:
        global_step += 1

After:

    if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
        global_step += 1

What the block clears for the next window is cleared at skipped boundaries too, in an arm of its own (see
`reset_window`). A block with an `else` keeps its test and gets a second one inside.

Refuses: optimizers that are not prepared, several that step in one window, steps of engines, own GradScalers, steps in
hooks, steps that are made under a condition that cannot be repeated, tests that mix the boundary with something else.
"""

from __future__ import annotations

import ast

from ..layout import Layout
from ..loop.blocks import Block, Role
from ..loop.clauses import Clause
from ..loop.flag import Flag
from ..loop.obstacles import Refusal
from ..loop.window import Window
from ..source import Edit
from ..work import Work
from . import kept_sums, reset_window
from .end_of_data import leave_end_of_data


def gate_bookkeeping(work: Work) -> None:
    """Gate every bookkeeping block that can be gated safely."""
    for block in work.blocks:
        if block.role is Role.BOOKKEEPING and not block.is_gated and not leave_end_of_data(work, block):
            _gate(work, block)


def _gate(work: Work, block: Block) -> None:
    node, test = block.node, block.test
    assert isinstance(node, ast.If)
    assert test is not None
    sync = test.needs_sync
    assert sync is not None
    found = work.flag_and_window(
        block,
        sync,
        lambda window: kept_sums.refusal(work, block.node, window),
        lambda window: _leaving(work, node, window),
        lambda window: work.left_unbound(block, block.statements),
    )
    if found is None:
        return
    flag, window = found
    if any(item.kind == "mixed" for item in test.clauses):
        work.refuse(
            node,
            block.role.value,
            Refusal("unclear-test", "part of the test asks for the boundary as well; split it in two"),
        )
        return
    make = _nest if block.has_else else _join
    if work.edit(node, block.role.value, lambda: make(work, block, node, sync, flag, window)):
        _report(work, block, flag, window)


def _leaving(work: Work, node: ast.If, window: Window) -> Refusal | None:
    """A block that ends the iteration keeps what follows it from boundaries; a skipped update must not get there."""
    jumps = (ast.Continue, ast.Break, ast.Return, ast.Raise)
    last = next((item for item in node.body if isinstance(item, jumps)), None)
    if last is None or not work.script.has_rest(node):
        return None
    if isinstance(last, ast.Continue):
        window.lines.append("continue")
        return None
    return Refusal(
        "leaves",
        f"the block always ends by `{work.layout.text(last)}`; on a skipped update what follows it would run, which "
        "so far no boundary reaches. Put the bookkeeping in a block of its own",
    )


def _join(work: Work, block: Block, node: ast.If, sync: Clause, flag: Flag, window: Window) -> list[Edit]:
    layout = work.layout
    edits = layout.add_clauses(node, sync.node, flag.clauses)
    edits += kept_sums.keep(work, block, window)
    lines = reset_window.lines(work, window)
    if lines:
        edits += layout.add_arm(node, f"elif {_same_test(layout, node)}:", lines)
    return edits


def _nest(work: Work, block: Block, node: ast.If, sync: Clause, flag: Flag, window: Window) -> list[Edit]:
    """The second test inside the first, so that the other arms keep their meaning."""
    layout = work.layout
    edits = layout.wrap(node.body[0], node.body[-1], " and ".join(flag.clauses))
    if window.lines:
        indent = layout.indent(node.body[0])
        edits += layout.arm_inside(node.body[-1], indent, "else:", window.lines)
    return edits


def _same_test(layout: Layout, node: ast.If) -> str:
    """The test of an `if` once more; a name that it gives a value is only read."""
    if isinstance(node.test, ast.NamedExpr):
        return layout.text(node.test.target)
    return layout.raw_test(node)


def _report(work: Work, block: Block, flag: Flag, window: Window) -> None:
    block.is_gated = True
    work.keep(flag)
    where = " inside the test that is there, whose other arm keeps its meaning" if block.has_else else ""
    extra = flag.remark
    if flag.condition:
        extra += f"; the step is made only if `{flag.condition}`"
    work.rewritten(
        block.node, block.role.value, "gated", f"runs only for applied updates: `not {flag.text}`{where}{extra}"
    )
    reset_window.report(work, block.node, window)
