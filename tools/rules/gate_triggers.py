"""Tests on single values of a counter no longer fire again while the counter stands still.

What: `if global_step % N == 0:` (or `== N`, `in (...)`, or a name that holds the answer) behind the step and outside
the gated block, what follows `if global_step % N != 0: continue`, and lines that log or save under the counter.

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

Where the test is turned round, as in `if global_step % N != 0: ... else: save()`, the other arm gets a test inside.

A loop that accumulates runs such a test at every micro-batch; gated it runs once an update, also in runs without an
overflow. Lines that log under the counter at every micro-batch are reported and stay.

Refuses: tests above the step, which run before it is known whether the counter will move, unless they leave the loop
and so cannot fire twice; tests whose arms both matter; other arms that give a name the value which is read below.
"""

from __future__ import annotations

import ast
import re

from ..loop.flag import Flag
from ..loop.leaving import left_by
from ..loop.names import last
from ..loop.obstacles import Refusal
from ..loop.paths import State
from ..loop.scope import Scope
from ..loop.tree import within
from ..loop.window import Window
from ..source import Edit
from ..work import Work
from . import kept_sums, reset_window
from .answers import Answers
from .arms import firing_arm, obstacle
from .exits import ends_the_loop, is_exit
from .gates import gate_run
from .logs import find_flag, gate_log, is_log

_KIND = "trigger outside a block"


def gate_triggers(work: Work) -> None:
    """Gate the tests and the log lines that a counter which stands still would run again."""
    counters = work.counters()
    counters = counters | work.copies(counters)
    closed, logs = work.closed(), []
    gated = set(closed)
    words = sorted({rf"{re.escape(last(item.key))}\b" for item in counters})
    nodes = work.script.statements_with(*map(re.compile, words))
    answers = Answers(work, counters, nodes)
    for node in dict.fromkeys([*nodes, *answers.readers()]):
        if (
            id(node) in gated
            or node not in work.flow.before
            or not _is_open(work, work.script.places[node].scope, closed)
        ):
            continue
        if isinstance(node, ast.If):
            if not work.flow.tests[node].is_flagged and (
                arm := firing_arm(work, node, answers.spelled_out(node), counters)
            ):
                _trigger(work, node, arm, gated)
        elif is_log(work, node):
            logs.append(node)
    for node in [node for node in logs if id(node) not in gated]:  # a test that comes later may hold one
        gate_log(work, node, counters, work.gated() | gated - closed)


def _is_open(work: Work, scope: Scope, closed: set[int]) -> bool:
    """Whether a function attempts updates, or is called behind an attempt where nothing is gated."""
    return scope in work.flow.stepping or not any(id(node) in closed for node, _ in work.script.calls(scope))


def _trigger(work: Work, node: ast.If, arm: list[ast.stmt], gated: set[int]) -> None:
    is_other = arm is node.orelse
    first = arm[0] if is_other else node
    state = work.in_iteration(first)
    if state is None:
        before = work.flow.before[node]
        loop = None if ends_the_loop(arm) else work.script.loop(node)
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
    if all(work.in_iteration(inner) is None for inner in within(arm) if not isinstance(inner, ast.If)):
        return  # asks inside already whether the update was applied
    window = work.window(left_by(work.script, node).certain if is_exit(arm) else [node], node)
    refusal = obstacle(work, node, arm) or window.refusal or _sums_obstacle(work, node, arm, window)
    if refusal is not None:
        work.refuse(node, _KIND, refusal)
        return
    flag = find_flag(work, first, state, _KIND, None if is_other else work.flow.tests[node])
    if flag is not None and work.edit(node, _KIND, lambda: _edits(work, node, arm, state, flag, window)):
        work.keep(flag)
        rest = [*node.orelse, *work.script.places[node].following] if is_exit(arm) else []
        gated.update(id(inner) for inner in within([*arm, *rest]))
        often = work.attempted(state, flag)
        more = "; where the loop accumulates it also no longer fires at every micro-batch" if often else ""
        work.rewritten(
            node, _KIND, "trigger-gated", "test on a held counter, would fire again on a skipped boundary" + more
        )
        reset_window.report(work, node, window)


def _sums_obstacle(work: Work, node: ast.If, arm: list[ast.stmt], window: Window) -> Refusal | None:
    """Why sums that are cleared where a test fires cannot be freed of what skipped updates add."""
    cleared = [*window.kept, *window.cleared]
    if cleared and is_exit(arm):
        return Refusal(
            "window-of-updates",
            f"`{cleared[0]}` gathers over several updates and is cleared behind this exit; put what follows under "
            "the test, turned round, and run this again",
        )
    return kept_sums.refusal(work, node, window)


def _edits(work: Work, node: ast.If, arm: list[ast.stmt], state: State, flag: Flag, window: Window) -> list[Edit]:
    if is_exit(arm):
        test, jump = " or ".join(work.opposite(state, flag)), work.layout.text(arm[0])
        return work.layout.insert_before(node, [f"if {test}:", work.layout.unit(node) + jump])
    if arm is node.orelse:
        return work.layout.wrap(arm[0], arm[-1], " and ".join(work.conditions(state, flag)))
    if window.kept:
        return gate_run(work, [node], state, flag, window)
    return work.layout.prepend_clauses(node, work.conditions(state, flag))
