"""Tests on single values of a counter no longer fire again while the counter stands still.

What: `if global_step % N == 0:` (or `== N`, `in (...)`) behind the step and outside the gated block, what follows
`if global_step % N != 0: continue`, and lines that log or save under the counter.

Why: after a skipped update the counter keeps its value, so validation runs twice and a checkpoint is written twice.

Before:

    if completed_steps % checkpointing_steps == 0:
        accelerator.save_state(f"step_{completed_steps}")

After:

    if (
        accelerator.sync_gradients
        and not accelerator.optimizer_step_was_skipped
        and completed_steps % checkpointing_steps == 0
    ):

A loop that accumulates runs such a test at every micro-batch; gated it runs once an update, also in runs without an
overflow. Lines that log under the counter at every micro-batch are reported and stay.

Refuses: tests above the step, which run before it is known whether the counter will move, unless they leave the loop
and so cannot fire twice; tests with another arm.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..loop.flag import Flag
from ..loop.names import last
from ..loop.objects import Identity
from ..loop.obstacles import Refusal
from ..loop.paths import State
from ..loop.tree import within
from ..source import Edit
from ..work import Work
from .exits import ends_the_loop, is_exit, lets_single_values_past
from .logs import find_flag, gate_log

_KIND = "trigger outside a block"


def gate_triggers(work: Work) -> None:
    """Gate the tests and the log lines that a counter which stands still would run again."""
    counters = work.counters()
    counters = counters | work.copies(counters)
    gated = work.closed()
    words = sorted({rf"{re.escape(last(item.key))}\b" for item in counters})
    for node in work.script.statements_with(*map(re.compile, words)):
        if (
            id(node) in gated
            or node not in work.flow.before
            or work.script.places[node].scope not in work.flow.stepping
        ):
            continue
        if isinstance(node, ast.If):
            if not work.flow.tests[node].is_flagged and _is_trigger(work, node, counters):
                _trigger(work, node, gated)
        elif isinstance(node, ast.Expr) and work.traits.logs_or_saves(node):
            gate_log(work, node, counters)


def _is_trigger(work: Work, node: ast.If, counters: Iterable[Identity]) -> bool:
    read = work.names_of(work.script.places[node].scope, counters, node.test)
    if any(work.traits.steps(inner) or work.traits.must_run(inner) for inner in within([*node.body, *node.orelse])):
        return (
            False  # lets the step through, or clears the gradients: that is due whether the update is applied or not
        )
    if is_exit(node):  # one at single values leaves where the counter has brought it before
        return lets_single_values_past(work, node.test, read)
    return work.traits.trigger(node.test, read)


def _trigger(work: Work, node: ast.If, gated: set[int]) -> None:
    state = work.in_iteration(node)
    if state is None:
        before = work.flow.before[node]
        loop = None if ends_the_loop(node) else work.script.loop(node)
        if not before.is_after_step and before.sync is not False and loop is not None and work.traits.steps(loop):
            work.refuse(
                node,
                _KIND,
                Refusal(
                    "trigger-before-step",
                    "fires at the top of an iteration on a value that the counter keeps after a "
                    "skipped update, and so twice; move it behind the step",
                ),
            )
        return
    if node.orelse:
        work.refuse(
            node,
            _KIND,
            Refusal(
                "else-arm",
                "the test has another arm, which would run for skipped updates; put `not "
                "...step_was_skipped` round both by hand",
            ),
        )
        return
    flag = find_flag(work, node, state, _KIND, work.flow.tests[node])
    if flag is not None and work.edit(node, _KIND, lambda: _edits(work, node, state, flag)):
        work.keep(flag)
        rest = work.script.places[node].following if is_exit(node) else []
        gated.update(id(inner) for inner in within([*node.body, *rest]))
        more = (
            "; where the loop accumulates it also no longer fires at every micro-batch" if state.sync is None else ""
        )
        work.rewritten(
            node, _KIND, "trigger-gated", "test on a held counter, would fire again on a skipped boundary" + more
        )


def _edits(work: Work, node: ast.If, state: State, flag: Flag) -> list[Edit]:
    if is_exit(node):
        test, jump = " or ".join(work.opposite(state, flag)), work.layout.text(node.body[0])
        return work.layout.insert_before(node, [f"if {test}:", work.layout.unit(node) + jump])
    return work.layout.prepend_clauses(node, work.conditions(state, flag))
