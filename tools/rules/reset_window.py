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
repeated; a meter over several updates; what `kept_sums` refuses.
"""

from __future__ import annotations

import ast

from ..loop.window import Window
from ..work import Work
from . import kept_sums


def lines(work: Work, window: Window) -> list[str]:
    """The statements that a boundary without an applied update must run."""
    return [*window.lines, *kept_sums.put_back(work, window)]


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
