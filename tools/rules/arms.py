"""Tests on a counter with more than one arm: which of them can be gated without a change to what the others mean."""

from __future__ import annotations

import ast

from ..loop.bindings import bound_by
from ..loop.lifetimes import left_unbound
from ..loop.obstacles import Refusal
from ..loop.tree import within
from ..work import Work
from .exits import is_exit


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
