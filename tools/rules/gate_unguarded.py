"""Counters, averages and progress behind a step that nothing guards run only for updates that were applied.

What: statements behind the optimizer step, in its own iteration, that count updates without asking for a boundary:
loops without accumulation, loops that accumulate by a modulo of their own, steps in a function of their own.

Why: a dropped update counts like an applied one, and the EMA averages weights that have not moved.

Before:

    optimizer.step()
    optimizer.zero_grad()
    ema.update()
    global_step += 1

After, where everything to the end of the loop's body is bookkeeping:

    optimizer.step()
    optimizer.zero_grad()
    if accelerator.optimizer_step_was_skipped:
        continue
    ema.update()
    global_step += 1

and otherwise with `if not accelerator.optimizer_step_was_skipped:` round the statements that count.

A guard among those statements needs no gate of its own.

Refuses: counters that a `range` loop is tied to; tests that count and return; what `gate_bookkeeping` refuses.
Counters of batches are left to `leave_batches`.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from ..loop.blocks import Block, Role
from ..loop.flag import Flag
from ..loop.obstacles import Refusal
from ..loop.window import Window
from ..work import Work
from . import kept_sums, reset_window
from .exits import leaving
from .gates import gate_tail
from .guards import is_range_bound, why_unread
from .tails import Tail, counts_batches, is_by_modulo, is_gateable, read_tail


def gate_unguarded(work: Work) -> None:
    """Gate the bookkeeping that stands behind a step without a guard."""
    for block in work.blocks:
        if block.role is Role.TAIL and not block.is_gated:
            if is_gateable(work, block):
                _gate(work, block)
            elif (refusal := why_unread(work, block)) is not None:
                work.refuse(block.node, block.role.value, refusal)


def _gate(work: Work, block: Block) -> None:
    block.statements = [node for node in block.statements if not is_range_bound(work, block, node)]
    if not block.statements:
        return
    block.node = only = block.statements[0]
    if len(block.statements) == 1 and isinstance(only, ast.If):
        block.test = work.flow.tests[only]  # may be the very test that the step stands under
    kind = block.role.value
    if counts_batches(work, block):
        return
    flag = work.flag(block)
    if flag is None:
        return
    tail, window = _tail_and_window(work, block, flag)
    refusal = _refusal(work, block, tail, window)
    if refusal is not None:
        work.refuse(block.node, kind, refusal)
        return
    if flag.condition is None and is_by_modulo(work, block):
        tail.is_rest = False
        flag = replace(flag, text=f"({flag.accelerator}.sync_gradients and {flag.text})")
        block.state = replace(block.state, sync=True)
    block.statements = tail.statements
    if work.edit(block.node, kind, lambda: gate_tail(work, block, tail, flag, window)):
        block.is_gated = True
        work.take_in(block)
        work.keep(flag)
        how = "`continue` skips all that follows" if tail.is_rest else "gated"
        every = "no accumulation: every iteration is a boundary; " if work.objects.accumulation == "none" else ""
        work.rewritten(block.node, kind, "gated", f"{every}{how} on a skipped update: `{flag.text}`{flag.remark}")
        reset_window.report(work, block.node, window)


def _tail_and_window(work: Work, block: Block, flag: Flag) -> tuple[Tail, Window]:
    """What is gated with a block, and the window state in it.

    Where the test of a block is that of the step, the flag is old wherever it does not hold. Sums over several
    updates must not go back there, and what logs at every micro-batch goes on, so the gate ends with that test.
    """
    tail = read_tail(work, block)
    window = work.window(tail.statements, block.node)
    if (window.kept or window.lines) and work.attempted(block.state, flag):
        tail = replace(tail, is_rest=False)  # what lies between attempts must not run what a skipped one needs
    is_narrow = window.kept or any(work.traits.logs_or_saves(node) for node in tail.statements)
    if is_narrow and work.flags.find(block.node, block.state, None, None) != flag:
        tail = Tail([block.statements], is_rest=False, is_test_of_step=True)
        window = work.window(tail.statements, block.node)
    return tail, window


def _refusal(work: Work, block: Block, tail: Tail, window: Window) -> Refusal | None:
    refusal = window.refusal or kept_sums.refusal(work, block.node, window)
    if refusal is None and not tail.is_rest:
        refusal = leaving(work, tail.statements)
    if refusal is not None:
        return refusal
    if len(tail.runs) > 1 and (window.kept or window.lines):
        return Refusal("window-of-updates", "window state is cleared among statements that must run at every boundary")
    return work.left_unbound(block, tail.statements)
