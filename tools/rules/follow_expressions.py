"""A counter that grows by the boundary flag grows by "update applied".

What: `global_step += int(accelerator.sync_gradients)`, `progress.update(1 if accelerator.sync_gradients else 0)`,
`accelerator.sync_gradients and ema.step(...)` behind the step.

Why: these are guards in the shape of an expression, and they count dropped updates as well.

Before:

    global_step += int(accelerator.sync_gradients)

After:

    global_step += int(accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped)

Refuses: any other use of the flag behind the step, so that none goes unseen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..loop.clauses import Clause, Test
from ..loop.counters import growth_of
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import assigned, expressions
from ..site import Outcome
from ..work import Work

_KIND = "flag in an expression"
_NUMBERS = ("int", "float", "bool")


def follow_expressions(work: Work) -> None:
    """Change expressions that count by the boundary flag; refuse the uses that are not understood."""
    gated = work.closed()
    for node in work.script.statements_with(*work.clauses.words):
        state = work.in_iteration(node)
        if (
            state is None
            or id(node) in gated
            or not isinstance(node, (ast.Expr, ast.AugAssign, ast.Assign, ast.Return))
        ):
            continue
        scope = work.script.places[node].scope
        for value, clause in _uses(work, node):
            flag = work.flags.find(node, state, None, clause.owner)
            if isinstance(flag, Refusal):
                work.refuse(value, _KIND, flag)
            else:
                clauses = "".join(f" and {clause}" for clause in flag.clauses)
                work.edits += work.layout.insert_text(work.source.span(value)[1], clauses)
                work.keep(flag)
                work.rewritten(value, _KIND, "expression-gated", f"counts applied updates: `not {flag.text}`")
        is_alias = any(work.clauses.read(value, scope, node).is_flagged for _, value in assigned(node))
        if is_alias or any(site.line == node.lineno for site in work.sites):
            continue
        if _asks_both(work, node):
            work.report(node, _KIND, "applied", Outcome.RIGHT, "already gated: asks whether the update was applied")
        else:
            _refuse(work, node)


def boundary_of(test: Test) -> Clause | None:
    """The clause of a value that asks for the boundary, where no part of the value asks for a skip as well."""
    return test.needs_sync if all(item.kind in ("sync", "other") for item in test.clauses) else None


def _uses(work: Work, node: ast.stmt) -> Iterator[tuple[ast.expr, Clause]]:
    """Places where the flag alone decides how far a statement counts."""
    candidates = _whole(work, node)
    if isinstance(node, (ast.AugAssign, ast.Expr)) or growth_of(node) is not None:
        for item in expressions(node):
            if isinstance(item, ast.IfExp):
                candidates.append(item.test)
            elif isinstance(item, ast.Call) and key(item.func) in _NUMBERS and len(item.args) == 1:
                candidates.append(item.args[0])
    for item in candidates:
        clause = boundary_of(work.clauses.read(item, work.script.places[node].scope, node))
        if clause is not None and key(item) is not None:
            yield item, clause


def _whole(work: Work, node: ast.stmt) -> list[ast.expr]:
    """What decides about all of a statement: its amount, what comes before its last `and`, how far a bar moves."""
    scope, value = work.script.places[node].scope, node.value if isinstance(node, ast.Expr) else None
    if isinstance(node, ast.AugAssign):
        return [node.value]
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And):
        return value.values[:-1] if work.clauses.read(value, scope, node).needs_applied is None else []
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and len(value.args) == 1:
        bar = key(value.func.value)
        return [*value.args] if bar is not None and work.objects.kind(scope, bar) == "bar" else []
    return []


def _asks_both(work: Work, node: ast.stmt) -> bool:
    """Whether each boundary flag of a statement stands next to the skip flag, so that applied updates count."""
    scope, items = work.script.places[node].scope, expressions(node)
    tests = [(item, work.clauses.read(item, scope, node)) for item in items if isinstance(item, ast.expr)]
    both = [item for item, test in tests if test.needs_sync is not None and test.needs_applied is not None]
    inside = {id(part) for item in both for part in ast.walk(item)}
    flags = [item for item in items if isinstance(item, ast.Attribute) and item.attr == "sync_gradients"]
    return bool(both) and all(id(item) in inside for item in flags)


def _is_choice(work: Work, node: ast.stmt) -> bool:
    """Whether another name of the boundary flag chooses what a statement does: `ema.step() if synced else None`."""
    scope = work.script.places[node].scope
    tests = [item.test for item in expressions(node) if isinstance(item, ast.IfExp)]
    return any(work.clauses.read(test, scope, node).needs_sync is not None for test in tests)


def _refuse(work: Work, node: ast.stmt) -> None:
    is_asked = re.search(r"\bsync_gradients\b", work.layout.text(node)) or _is_choice(work, node)
    if is_asked and not work.traits.shows(node):
        work.refuse(
            node,
            _KIND,
            Refusal(
                "unclear-use",
                "what becomes of the boundary flag here is not plain; if it counts updates, ask the skip flag as well",
            ),
        )
