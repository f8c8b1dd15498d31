"""Tests on a counter: which arm fires at single values, and can it be gated without a change to what others mean."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..loop.bindings import bound_by
from ..loop.lifetimes import left_unbound
from ..loop.objects import Identity
from ..loop.obstacles import Refusal
from ..loop.tree import within
from ..work import Work
from .exits import is_exit, lets_single_values_past


def firing_arm(work: Work, node: ast.If, test: ast.expr, counters: Iterable[Identity]) -> list[ast.stmt]:
    """The arm of an `if` that runs at single values of a counter; empty where none does. `test` is what it asks."""
    read = work.names_of(work.script.places[node].scope, counters, test)
    if any(work.traits.steps(inner) or work.traits.must_run(inner) for inner in within([*node.body, *node.orelse])):
        return []  # lets the step through, or clears the gradients: that is due whether the update is applied or not
    lets_past = lets_single_values_past(work, test, read)
    if is_exit(node.body):  # one at single values leaves where the counter has brought it before
        return node.body if lets_past else []
    if node.orelse and lets_past:
        return [] if is_exit(node.orelse) else node.orelse
    return node.body if work.traits.trigger(test, read) else []


def obstacle(work: Work, node: ast.If, arm: list[ast.stmt]) -> Refusal | None:
    """Why the arm of an `if` that fires at single values cannot be kept from skipped updates alone."""
    if is_exit(arm):
        return _by_elif("stands behind another one", "an `if` of its own") if _is_elif(work, node) else None
    if arm is not node.orelse:
        if not node.orelse:
            return None
        return Refusal(
            "else-arm",
            "the test has another arm, which would run for skipped updates; put `not ...step_was_skipped` round both "
            "by hand",
        )
    if _is_elif(work, arm[0]):
        return _by_elif("leads to another one", "an `else` and an `if` inside it")
    chosen = _bound_in(node.body) & _bound_in(arm)
    if chosen:
        text = f"both arms give `{min(chosen)}` its value; put `not ...step_was_skipped` round what uses it by hand"
        return Refusal("else-arm", text)
    return left_unbound(work.script, arm, work.script.places[node].scope, set())


def _by_elif(why: str, advice: str) -> Refusal:
    return Refusal("else-arm", f"the test {why} by `elif`; make that {advice} and run this again")


def _is_elif(work: Work, node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and work.layout.text(node).startswith("elif")


def _bound_in(arm: list[ast.stmt]) -> set[str]:
    return {name for node in within(arm) for name, _ in bound_by(node)}
