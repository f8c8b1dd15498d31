"""Tests on a flag that nothing can be done about here: no step before them, a step in a hook, an `or`, a stale flag.

What: guards without a step in this file, flags that are asked before the attempt they should tell about, tests that
join the boundary with something else by `or`.

Why: a gate there would ask about another attempt, or about none, and count wrongly without a sign.

Before:

    model.register_post_accumulate_grad_hook(step_and_clear)
    ...
    if accelerator.sync_gradients:
        global_step += 1

After: the same.

Refuses: all of it, each with its reason.
"""

from __future__ import annotations

import re

from ..loop.blocks import Block, Role
from ..loop.obstacles import Refusal
from ..loop.scope import Scope
from ..loop.tree import calls_of, within
from ..site import Outcome
from ..work import Work


def refuse_guards(work: Work) -> None:
    """Report the tests on flags that cannot be gated, and why."""
    for block in work.blocks:
        if block.role is Role.STALE:
            _stale(work, block)
        elif block.role is Role.UNCLEAR:
            _unclear(work, block)
        elif block.role is Role.NO_STEP:
            _no_step(work, block)


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
    if not does_bookkeeping(work, block):
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
    if not does_bookkeeping(work, block):
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
        line = work.source.line_at(use.start())
        if "hook" in work.source.text[work.source.line_starts[line - 1] : work.source.line_end(line)]:
            return line
    return None


def does_bookkeeping(work: Work, block: Block) -> bool:
    """Whether a block counts or calls anything."""
    return any(
        work.traits.counts(node) or bool(calls_of(node))
        for node in within(block.statements)
        if not work.traits.must_run(node)
    )
