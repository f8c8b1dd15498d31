"""What stands as it is: guards of the step, boundary blocks, flags that are asked already. Reported, not changed.

What: every other test on a boundary or on a skip flag, with the reason why it keeps its text.

Why: most scripts clip under the very test that guards their bookkeeping. What tells the two apart is what they do and
where they stand, and a reader of the report should see that each was looked at.

Before:

    if accelerator.sync_gradients:
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

After: the same.

Refuses: guards without any step before them (hooks, engines, other files), flags that are asked before the attempt
they should tell about, tests that join the boundary with something else by `or`.
"""

from __future__ import annotations

import re

from ..loop.blocks import Block, Role
from ..loop.obstacles import Refusal
from ..loop.script import Scope
from ..loop.tree import calls_of, within
from ..site import Outcome
from ..work import Work
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
        elif block.role is Role.APPLIED:
            work.report(
                block.node,
                block.role.value,
                "applied",
                Outcome.RIGHT,
                "already gated: asks whether the update was applied",
            )
        elif block.role is Role.STALE:
            _stale(work, block)
        elif block.role is Role.UNCLEAR:
            _unclear(work, block)
        elif block.role is Role.NO_STEP:
            _no_step(work, block)


def _asks_boundary(work: Work, block: Block) -> bool:
    """Whether a test on the flag runs, or holds, at boundaries only."""
    test = block.test
    if block.state.sync or work.objects.accumulation != "maybe" or test is None or is_by_modulo(work, block):
        return True
    return any(item.kind in ("sync", "mixed") for item in test.clauses) or not _does_bookkeeping(work, block)


def _stale(work: Work, block: Block) -> None:
    kind = block.role.value
    if any(path.is_looped for path in block.state.paths):
        work.warn(
            block.node,
            kind,
            "epoch-flag",
            "the flag is asked once an epoch: only the last batch's flag is read, and one "
            "overflow there drops whatever the block does for the whole epoch",
        )
        return
    loop = work.script.loop(block.node)
    if loop is not None and work.traits.steps(loop):
        work.refuse(
            block.node,
            kind,
            Refusal(
                "stale-flag",
                "asks the flag before the step of this iteration, so it tells about an earlier "
                "attempt; ask it behind the step",
            ),
        )
        return
    work.report(
        block.node, "applied-update test", "applied", Outcome.RIGHT, "asks the flag; the step is made elsewhere"
    )


def _unclear(work: Work, block: Block) -> None:
    if not _does_bookkeeping(work, block):
        work.warn(block.node, block.role.value, "boundary", "does nothing that has to do with an applied update")
        return
    work.refuse(
        block.node,
        block.role.value,
        Refusal(
            "unclear-test",
            "joins the boundary with something else by `or`, so part of it also runs between "
            "boundaries; split the test in two",
        ),
    )


def _no_step(work: Work, block: Block) -> None:
    if not _does_bookkeeping(work, block):
        work.warn(block.node, block.role.value, "boundary", "does nothing that has to do with an applied update")
        return
    for scope in work.flow.stepping:
        line = _hook_line(work, scope)
        if line is not None and scope is not block.scope:
            steps = ", ".join(f"`{site.owner}`" for site in work.flow.steps if site.scope is scope)
            work.refuse(
                block.node,
                block.role.value,
                Refusal(
                    "step-in-hook",
                    f"{steps} step(s) in `{scope.name}`, which line {line} hands on as a hook: fused backward pass, "
                    "no single applied/skipped answer",
                ),
            )
            return
    work.refuse(
        block.node,
        block.role.value,
        Refusal(
            "no-step",
            "no optimizer step comes before this in the iteration, in this file; the flag "
            "would tell about an earlier attempt, or about none",
        ),
    )


def _hook_line(work: Work, scope: Scope) -> int | None:
    """The line that hands a function on as a hook, if one does."""
    if not scope.is_function or work.script.calls(scope):
        return None
    for use in re.finditer(rf"(?<!def )\b{re.escape(scope.name)}\b(?!\s*\()", work.source.text):
        line = work.source.text.count("\n", 0, use.start()) + 1
        text = work.source.text[work.source.line_starts[line - 1] : work.source.line_end(line)]
        if "hook" in text.replace(scope.name, "", 1) or "hook" in scope.name:
            return line
    return None


def _does_bookkeeping(work: Work, block: Block) -> bool:
    return any(
        work.traits.counts(node) or work.traits.logs_or_saves(node) or bool(calls_of(node))
        for node in within(block.statements)
        if not work.traits.must_run(node)
    )
