"""Unguarded counters of a loop that accumulates: they move at every micro-batch and keep doing so.

What: statements behind the step that count under no test on the boundary, where the loop accumulates.

Why: they count batches. Gated on the boundary they would count something else, also in runs without an overflow.

Before:

    with accelerator.accumulate(model):
        optimizer.step()
    global_step += 1

After: the same.

Refuses: such a counter, unless a gated block of the same loop counts the updates; beside one it is reported and left.
"""

from __future__ import annotations

from ..loop.blocks import Block, Role
from ..loop.obstacles import Refusal
from ..loop.tree import within
from ..work import Work
from .guards import short_text, tests_round, why_unread
from .tails import counts_batches, is_gateable


def leave_batches(work: Work) -> None:
    """Report counters of batches: refused where the loop has no other, left where updates are counted elsewhere."""
    for block in work.blocks:
        if block.role is Role.TAIL and block.statements and is_gateable(work, block) and counts_batches(work, block):
            _report(work, block)


def _report(work: Work, block: Block) -> None:
    loop = work.script.loop(block.node)
    gating = [item for item in work.blocks if work.gates(item) and work.script.loop(item.node) is loop]
    others = [item for item in gating if any(map(work.traits.counts, item.statements))]  # not a scheduler's alone
    refusal = _why_batches(work, block)
    twice = _counted_twice(work, block, others)
    if twice is not None:
        work.refuse(block.node, block.role.value, twice)
    elif others and any(map(work.traits.averages, within(block.statements))):
        text = "averages at every micro-batch, also where no weights have moved; move it to where updates are counted"
        work.refuse(block.node, block.role.value, Refusal("counts-batches", text))
    elif any(_numbers_updates(work, item) for item in others) and refusal.code == "counts-batches":
        text = "counts beside the updates that a guard counts; no test on the boundary stands round it"
        work.warn(block.node, block.role.value, "data-counter", text)
    else:
        work.refuse(block.node, block.role.value, refusal)


def _numbers_updates(work: Work, block: Block) -> bool:
    """Whether a block counts updates by a number or shows them, and does not only average."""
    return bool(work.traits.counters_in(block.statements)) or any(
        map(work.traits.shows_progress, within(block.statements))
    )


def _counted_twice(work: Work, block: Block, others: list[Block]) -> Refusal | None:
    """Why a counter is not left that moves at every micro-batch and at boundaries: it is right in neither place."""
    for other in others:
        for name in work.traits.counters_in(other.statements):
            if name in work.traits.counters_in(block.statements):
                text = f"`{name}` moves here at every micro-batch and again under the guard of line "
                return Refusal("counts-batches", f"{text}{other.node.lineno}; count in one place, under the guard")
    return None


def _why_batches(work: Work, block: Block) -> Refusal:
    """Why an unguarded counter of a loop that accumulates is left: as sure as the tests round it allow."""
    unread = why_unread(work, block)
    if unread is not None:
        return unread
    _, test = next(tests_round(work, block, block.statements[:1]), (None, None))
    if test is not None:
        return Refusal(
            "counts-batches",
            f"that line {test.lineno} (`{short_text(work, test)}`) lets only sync boundaries through cannot be seen "
            "here; if it does not, this counts batches. Put it under `if accelerator.sync_gradients:` first",
        )
    return Refusal(
        "counts-batches",
        "no test guards it, so it counts batches, not updates; move it under `if accelerator.sync_gradients:` first",
    )
