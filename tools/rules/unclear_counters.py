"""Counters that no gate can be put round: reported, so that none goes unseen.

What: a counter that a test or a call moves by `:=`, and a counter of steps that grows behind the step by something
else than a whole number.

Why: the first moves whenever the expression is read, for a skipped update too, and in the test of a loop before the
update is even attempted. What the second counts cannot be seen.

Before:

    while (step := step + 1) < max_steps:
        optimizer.step()

After: the same.

Refuses: both; count on a line of its own behind the step, under the flag.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.counters import draws, grown, growth_of, is_fixed
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import calls_of, expressions, walk
from ..work import Work

_KIND = "unclear counter"
_WALRUS = re.compile(":=")
_NEXT = re.compile(r"next\s*\(")
_GROWS = tuple(  # each begins with letters, which the search is fast for
    re.compile(rf"{word}(?:s|ations?)?\W*(?:\+=|=(?!=)|add_)") for word in ("step", "update", "iter")
)


def unclear_counters(work: Work) -> None:
    """Report counters that move inside expressions, and those that grow by an amount that is not plain."""
    walruses = work.script.statements_with(_WALRUS)
    drawing = work.script.statements_with(_NEXT)
    growing = [node for node in work.script.statements_with(*_GROWS) if _grows_unclearly(node)]
    closed = work.closed()
    for node in walruses:
        if id(node) not in closed:
            _in_expression(work, node)
    for node in drawing:
        if id(node) not in closed and work.in_iteration(node) is not None:
            _by_drawing(work, node)
    for node in growing:
        is_told = any(site.line == node.lineno for site in work.sites)  # an amount that asks a flag has had its turn
        if id(node) not in closed and not is_told and work.in_iteration(node) is not None:
            _by_amount(work, node)


def _in_expression(work: Work, node: ast.stmt) -> None:
    loop = node if isinstance(node, ast.While) else work.script.loop(node)
    if loop is None or not work.traits.steps(loop):
        return
    for item in expressions(node):
        if not isinstance(item, ast.NamedExpr):
            continue
        found = grown(key(item.target), item.value)
        if found is None or not is_fixed(*found) or names.counts_data(found[0]) or _is_guarded(work, node, item):
            continue
        when = "each time this is read, for skipped updates too"
        if node is loop:
            line = next(site.statement.lineno for site in work.flow.sites_inside(loop))
            when = f"each time the loop's test is read, before the update of line {line} is attempted"
        advice = "count on a line of its own behind the step, under the flag"
        work.refuse(item, _KIND, Refusal("counted-in-test", f"`{found[0]}` moves {when}; {advice}"))


def _by_drawing(work: Work, node: ast.stmt) -> None:
    """Report a step that is named by the next number of a count, as in `log(..., step=next(ticks))`."""
    scope = work.script.places[node].scope
    for call in calls_of(node):
        for item in call.keywords:
            name = draws(work.script, scope, item.value) if isinstance(item.value, ast.Call) else None
            if name is not None and item.arg is not None and names.suggests_counter(item.arg):
                text = f"`{name}` moves each time this is read, for skipped updates too"
                advice = "; draw the number on a line of its own behind the step, under the flag"
                work.refuse(item.value, _KIND, Refusal("counted-in-test", text + advice))


def _is_guarded(work: Work, node: ast.stmt, item: ast.expr) -> bool:
    """Whether a clause on a flag stands before a part of a test, and keeps it from being read."""
    test = work.flow.tests.get(node)
    clause = (test.needs_sync or test.needs_applied) if test is not None else None
    return clause is not None and _place(clause.node) < _place(item)


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _grows_unclearly(node: ast.stmt) -> bool:
    """Whether a count of steps grows by something that is no whole number, and no data either."""
    found = growth_of(node)
    if found is None or is_fixed(*found) or not names.is_step_count(found[0]):
        return False
    words = [name for item in walk(found[1]) if (name := key(item)) is not None]
    return not any(names.counts_data(name) or names.last(name) == "loss" for name in words)


def _by_amount(work: Work, node: ast.stmt) -> None:
    found = growth_of(node)
    assert found is not None
    name, amount = found
    text = f"`{name}` grows by `{work.layout.text(amount)}`; whether it counts updates is not plain"
    advice = ". If it does, put it under `sync_gradients and not optimizer_step_was_skipped`"
    work.refuse(node, _KIND, Refusal("unclear-count", text + advice))
