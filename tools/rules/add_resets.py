"""A block that asks the flag already gets what it clears cleared for skipped updates too.

Before:

    if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
        global_step += 1
        train_loss = 0.0

After:

    if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
        global_step += 1
        train_loss = 0.0
    elif accelerator.sync_gradients:
        train_loss = 0.0

Where the block is what follows an early exit on a skipped update, a test of its own goes above that exit. What
`missing_resets` finds and this cannot place is refused as `reset-missing`.
"""

from __future__ import annotations

import ast

from ..loop.blocks import Block
from ..loop.clauses import Test
from ..loop.window import Window
from ..source import Edit
from ..work import Work
from . import kept_sums, reset_window


def add_reset(work: Work, block: Block) -> bool:
    """Clear for skipped updates what one leaves standing; False where the test has no place for it."""
    node, test = block.node, block.test
    if (
        not isinstance(node, ast.If)
        or test is None
        or any(isinstance(item, ast.NamedExpr) for item in ast.walk(node.test))
    ):
        return False
    window = work.window(block.statements, node)
    anchor = block.statements[0]
    if window.refusal or not reset_window.lines(work, window) or kept_sums.refusal(work, anchor, window):
        return False
    make = _before_exit if block.takes_rest else _in_arm
    if not _has_place(work, node, test, block) or not work.edit(
        node, block.role.value, lambda: [*kept_sums.keep(work, block, window), *make(work, node, test, window)]
    ):
        return False
    reset_window.report(work, node, window)
    return True


def _has_place(work: Work, node: ast.If, test: Test, block: Block) -> bool:
    if block.takes_rest:
        return all(item.kind == ("skip" if item.positive else "sync") for item in test.clauses)
    return test.needs_applied is not None and (not node.orelse or _arm_of_skips(work, node, test) is not None)


def _before_exit(work: Work, node: ast.If, test: Test, window: Window) -> list[Edit]:
    layout = work.layout
    header = f"if {' and '.join(layout.clause_text(item.node) for item in test.clauses)}:"  # each the other way round
    unit = layout.unit(node)
    lines = [unit + line.replace("\0", unit) for line in reset_window.lines(work, window)]
    return layout.insert_before(node, [header, *lines])


def _in_arm(work: Work, node: ast.If, test: Test, window: Window) -> list[Edit]:
    layout, lines, other = work.layout, reset_window.lines(work, window), _arm_of_skips(work, node, test)
    if other is not None:
        return layout.add_at_end(other, lines)
    others = [item for item in test.clauses if item.kind != "skip"]
    texts = [layout.clause_text(item.node) if item.positive else f"not {layout.text(item.node)}" for item in others]
    return layout.add_arm(node, f"elif {' and '.join(texts)}:" if texts else "else:", lines)


def _arm_of_skips(work: Work, node: ast.If, test: Test) -> ast.If | None:
    """The one other arm of a test, where it asks the same but for the flag."""
    other = node.orelse[0] if len(node.orelse) == 1 else None
    if not isinstance(other, ast.If) or other.orelse:
        return None
    wanted = [(ast.dump(item.node), item.positive) for item in test.clauses if item.kind != "skip"]
    asked = work.flow.tests[other]
    return other if not asked.is_any and [(ast.dump(c.node), c.positive) for c in asked.clauses] == wanted else None
