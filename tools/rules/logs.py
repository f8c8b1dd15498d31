"""Lines that log or save under a counter, outside every block: they run again while the counter stands still."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..loop.clauses import Test
from ..loop.flag import Flag
from ..loop.objects import Identity
from ..loop.obstacles import Refusal
from ..loop.paths import State
from ..loop.tree import calls_of
from ..work import Work


def _asks(work: Work, node: ast.Expr) -> bool:
    """Whether a flag in the statement decides if it logs: that is an expression to be followed."""
    is_choice = isinstance(node.value, (ast.IfExp, ast.BoolOp))
    return is_choice and any(word.search(work.layout.text(node)) for word in work.clauses.words)


def gate_log(work: Work, node: ast.Expr, counters: Iterable[Identity]) -> None:
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
    flag = find_flag(work, node, state, kind)
    if flag is None:
        return
    test = " and ".join(work.conditions(state, flag))
    if work.edit(node, kind, lambda: work.layout.wrap(node, node, test)):
        work.keep(flag)
        work.rewritten(node, kind, "log-gated", f"would write `{named[0]}` again after a skipped update")


def find_flag(work: Work, node: ast.stmt, state: State, kind: str, test: Test | None = None) -> Flag | None:
    found = work.flags.find(node, state, test, None, follows_count=True)
    if isinstance(found, Refusal):
        work.refuse(node, kind, found)
        return None
    return found
