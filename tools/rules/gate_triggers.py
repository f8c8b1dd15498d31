"""Tests on single values of a counter no longer fire again while the counter stands still.

What: `if global_step % N == 0:` (or `== N`, `in (...)`) behind the step and outside the gated block, and lines that
log or save under the counter.

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

Refuses: tests above the step, which run before it is known whether the counter will move; tests with another arm.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..loop.clauses import Test
from ..loop.flag import Flag
from ..loop.names import last
from ..loop.objects import Identity
from ..loop.obstacles import Refusal
from ..loop.paths import State
from ..loop.tree import calls_of, within
from ..source import Edit
from ..work import Work
from .exits import is_exit, lets_single_values_past

_KIND = "trigger outside a block"


def gate_triggers(work: Work) -> None:
    """Gate the tests and the log lines that a counter which stands still would run again."""
    counters = work.counters()
    if not counters:
        return
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
            _log(work, node, counters, gated)


def _is_trigger(work: Work, node: ast.If, counters: Iterable[Identity]) -> bool:
    scope = work.script.places[node].scope
    if is_exit(node) and not lets_single_values_past(work, node.test, work.names_of(scope, counters, node.test)):
        return False  # leaves at single values, where the counter has brought it before
    if any(work.traits.steps(inner) or work.traits.must_run(inner) for inner in within([*node.body, *node.orelse])):
        return (
            False  # lets the step through, or clears the gradients: that is due whether the update is applied or not
        )
    return work.traits.trigger(node.test, work.names_of(scope, counters, node.test))


def _trigger(work: Work, node: ast.If, gated: set[int]) -> None:
    state = work.in_iteration(node)
    if state is None:
        before = work.flow.before[node]
        loop = work.script.loop(node)
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
    flag = _flag(work, node, state, _KIND, work.flow.tests[node])
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


def _flag(work: Work, node: ast.stmt, state: State, kind: str, test: Test | None = None) -> Flag | None:
    found = work.flags.find(node, state, test, None, follows_count=True)
    if isinstance(found, Refusal):
        work.refuse(node, kind, found)
        return None
    return found


def _edits(work: Work, node: ast.If, state: State, flag: Flag) -> list[Edit]:
    if is_exit(node):
        test, jump = " or ".join(work.opposite(state, flag)), work.layout.text(node.body[0])
        return work.layout.insert_before(node, [f"if {test}:", work.layout.unit(node) + jump])
    return work.layout.prepend_clauses(node, work.conditions(state, flag))


def _asks(work: Work, node: ast.Expr) -> bool:
    """Whether a flag in the statement decides if it logs: that is an expression to be followed."""
    is_choice = isinstance(node.value, (ast.IfExp, ast.BoolOp))
    return is_choice and any(word.search(work.layout.text(node)) for word in work.clauses.words)


def _log(work: Work, node: ast.Expr, counters: Iterable[Identity], gated: set[int]) -> None:
    scope = work.script.places[node].scope
    state = work.in_iteration(node)
    named = work.names_of(scope, counters, node)
    if state is None or not named or _asks(work, node):
        return
    kind = "log outside a block"
    writes = any(keyword.arg in ("step", "global_step") for call in calls_of(node) for keyword in call.keywords)
    if work.objects.accumulation == "maybe" or not (writes or "save" in work.layout.text(node)):
        work.warn(
            node,
            kind,
            "held-log",
            f"runs at every batch under `{named[0]}`, and so again while the counter stands still",
        )
        return
    flag = _flag(work, node, state, kind)
    if flag is None:
        return
    test = " and ".join(work.conditions(state, flag))
    if work.edit(node, kind, lambda: work.layout.wrap(node, node, test)):
        work.keep(flag)
        gated.add(id(node))
        work.rewritten(node, kind, "log-gated", f"would write `{named[0]}` again after a skipped update")
