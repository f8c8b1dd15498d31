"""What a block clears for the next window is cleared at skipped boundaries too.

What: sums, token counts and buffers that every micro-batch adds to and that a gated block clears.

Why: with the block gated and nothing else, the loss of a skipped window is added to the next one: the loss logged at
that step comes out twice too high. Gradients that the block clears, and data that it counts, belong to every boundary.

Before:

    if accelerator.sync_gradients:
        accelerator.log({"train_loss": train_loss}, step=global_step)
        train_loss = 0.0

After:

    if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
        accelerator.log({"train_loss": train_loss}, step=global_step)
        train_loss = 0.0
    elif accelerator.sync_gradients:
        train_loss = 0.0

A sum that is cleared only every N updates is put back to what it was after the last applied update:

    if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
        ...
        applied_total_loss = total_loss + 0
    elif accelerator.sync_gradients:
        total_loss = applied_total_loss + 0

(`+ 0` makes a copy of a tensor, which `+=` would otherwise change in both places. A list is copied by `list`.)

Refuses: a statement that clears such state and does something else; state that is cleared under a test that cannot be
repeated; a meter over several updates; a sum over several updates whose start cannot be found, or that a function
without a loop gathers over calls.
"""

from __future__ import annotations

import ast
import re

from ..loop.blocks import Block
from ..loop.gathering import is_empty
from ..loop.names import key, last
from ..loop.obstacles import Refusal
from ..loop.tree import assigned, within
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
        if not _starts(work, node, name):
            return Refusal(
                "window-of-updates",
                f"`{name}` gathers over several updates and no statement of this function outside "
                "the loop gives it its first value",
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


def _kept_name(work: Work, name: str) -> str:
    wanted = f"applied_{last(name)}"
    while re.search(rf"\b{wanted}\b", work.source.text):
        wanted = f"last_{wanted}"
    return wanted


def lines(work: Work, window: Window) -> list[str]:
    """The statements that a boundary without an applied update must run."""
    kept = {name: _kept_name(work, name) for name in window.kept}
    return [
        *window.lines,
        *(f"{name}[:] = {old}" if name in window.lists else f"{name} = {old} + 0" for name, old in kept.items()),
    ]


def kept_lines(work: Work, window: Window) -> list[str]:
    """The statements that remember each sum after an applied update."""
    return [_keeping(work, name, window) for name in window.kept]


def _keeping(work: Work, name: str, window: Window) -> str:
    return f"{_kept_name(work, name)} = " + (f"list({name})" if name in window.lists else f"{name} + 0")


def starts(work: Work, anchor: ast.stmt, window: Window) -> list[Edit]:
    """Edits that remember each sum where it starts."""
    edits = []
    for name in window.kept:
        for node in _starts(work, anchor, name):
            edits += work.layout.insert_after(node, _keeping(work, name, window))
    return edits


def keep_sums(work: Work, block: Block, window: Window) -> list[Edit]:
    """Edits that remember each sum where it starts and at the end of the gated block."""
    edits = starts(work, block.node, window)
    for line in kept_lines(work, window):
        edits += work.layout.insert_after(block.statements[-1], line)
    return edits


def report(work: Work, node: ast.stmt, window: Window) -> None:
    """Say what else happens at skipped boundaries, and which sums nobody clears."""
    kind = "window state"
    if window.cleared:
        names = ", ".join(dict.fromkeys(window.cleared))
        work.rewritten(node, kind, "reset-added", f"loss reset added for skipped boundaries ({names})")
    if window.data:
        work.rewritten(node, kind, "data-kept", "still runs at skipped boundaries: " + "; ".join(window.data))
    if window.kept:
        names = ", ".join(window.kept)
        work.rewritten(
            node,
            kind,
            "sums-kept",
            f"loss window of several updates ({names}): what a skipped update added is taken "
            "out again by going back to the value after the last applied update",
        )
    for name in window.never_cleared:
        work.warn(
            node,
            kind,
            "never-reset",
            f"`{name}` is added to by every batch, read in this block and cleared nowhere in "
            "the loop; no reset is added",
        )
