"""What stands as it is: guards of the step, boundary blocks, flags that are asked already. Reported, not changed.

What: every other test on a boundary or on a skip flag, with the reason why it keeps its text.

Why: most scripts clip under the very test that guards their bookkeeping. What tells the two apart is what they do and
where they stand, and a reader of the report should see that each was looked at.

Before:

    if accelerator.sync_gradients:
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

After: the same.

Refuses: counters above the step, flags that are asked without the boundary, and blocks that ask the flag and clear a
window which a skipped update leaves standing.
"""

from __future__ import annotations

from ..loop.blocks import Block, Role
from ..loop.obstacles import Refusal
from ..site import Outcome
from ..work import Work
from .add_resets import add_reset
from .missing_resets import missing_reset
from .refuse_guards import does_bookkeeping
from .tails import is_by_modulo

_LEFT = {
    Role.CLIP: (
        "clip-guard",
        "clips before the step: with the flag in it, training would stop after the first overflow",
    ),
    Role.CLIP_AND_STEP: (
        "step-guard",
        "clips and steps: with the flag in it, training would stop after the first overflow",
    ),
    Role.STEP: (
        "step-guard",
        "lets the step through: with the flag in it, training would stop after the first overflow",
    ),
    Role.BEFORE: ("before-attempt", "runs before the update is attempted"),
    Role.NORM_LOG: (
        "gradient-norm",
        "logs the gradients of the attempt, applied or not, under a counter that may stand still",
    ),
    Role.BOUNDARY: ("boundary", "does nothing that has to do with an applied update"),
}


def leave(work: Work) -> None:
    """Report the places that no other rule has changed."""
    for block in work.blocks:
        if block.role is Role.BEFORE and any(work.traits.counts(node) for node in block.statements):
            work.refuse(
                block.node,
                block.role.value,
                Refusal(
                    "before-step",
                    "counts above the step, where it is not known whether the update will be "
                    "applied; count behind the step",
                ),
            )
        elif block.role in _LEFT:
            code, text = _LEFT[block.role]
            work.warn(block.node, block.role.value, code, text)
        elif block.role is Role.APPLIED and not _asks_boundary(work, block):
            work.refuse(
                block.node,
                block.role.value,
                Refusal(
                    "flag-without-sync",
                    "asks the flag without the boundary: it keeps its answer through the "
                    "micro-batches that follow. Ask `sync_gradients` as well",
                ),
            )
        elif block.role is Role.APPLIED and (refusal := missing_reset(work, block)) is not None:
            if not add_reset(work, block):
                work.refuse(block.node, block.role.value, refusal)
        elif block.role is Role.APPLIED:
            work.report(
                block.node,
                block.role.value,
                "applied",
                Outcome.RIGHT,
                "already gated: asks whether the update was applied",
            )


def _asks_boundary(work: Work, block: Block) -> bool:
    """Whether a test on the flag runs, or holds, at boundaries only."""
    assert block.test is not None
    if block.state.sync or work.objects.accumulation != "maybe" or is_by_modulo(work, block):
        return True
    return any(item.kind == "sync" for item in block.test.clauses) or not does_bookkeeping(work, block)
