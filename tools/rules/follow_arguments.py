"""A boundary flag that is handed to bookkeeping becomes "update applied".

What: `accelerator.sync_gradients`, or a name for it and more, as an argument of a call behind the step, of a function
that this file shows and that tests the parameter before it averages, counts, logs or saves.

Why: the function does its bookkeeping for updates that were dropped, whatever the guards round the call say.

Before:

    self.on_optimizer_step(model, accelerator.sync_gradients)

After:

    self.on_optimizer_step(model, accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped)

Functions that another file overrides get the new meaning too; the report names the parameter.

Refuses: functions that this file does not show (`--follow-arguments` follows them all the same), and functions that
clip, step or clear gradients under the parameter.
"""

from __future__ import annotations

import ast

from ..loop.names import called, key, last
from ..loop.obstacles import Refusal
from ..loop.scope import Scope, argument_of
from ..loop.tree import calls_of, within
from ..work import Work
from .follow_expressions import boundary_of

_KIND = "flag as argument"
_SHOWS = ("bool", "int", "float", "str", "repr", "print", "write", "debug", "info")  # what is shown decides nothing


def follow_arguments(work: Work) -> None:
    """Change the boundary flags that are arguments of bookkeeping."""
    gated = work.closed()
    for node in work.script.statements_with(*work.clauses.words):
        state = work.in_iteration(node)
        if state is None or id(node) in gated or not isinstance(node, (ast.Expr, ast.Assign)):
            continue
        for call in calls_of(node):
            for value in [*call.args, *(item.value for item in call.keywords)]:
                clause = boundary_of(work.clauses.read(value, work.script.places[node].scope, node))
                if clause is not None and key(value) is not None:
                    _follow(work, node, call, value, clause.owner)


def _follow(work: Work, node: ast.stmt, call: ast.Call, value: ast.expr, owner: str | None) -> None:
    scope = work.script.places[node].scope
    name = last(called(call)) or "the function"
    function = work.script.function(scope, call)
    parameter = _parameter(function, call, value)
    bar = key(call.func.value) if isinstance(call.func, ast.Attribute) and len(call.args) == 1 else None
    if bar is not None and work.objects.kind(scope, bar) == "bar":
        return  # an expression that counts
    if name in _SHOWS or (function is None and work.traits.logs_or_saves(node)):
        return
    refusal = _refusal(work, function, parameter, name)
    if work.options.follow_arguments is False or (refusal is not None and not work.options.follow_arguments):
        text = refusal or f"`{name}` gets the boundary flag, and following arguments is switched off"
        work.refuse(value, _KIND, Refusal("flag-passed", text))
        return
    flag = work.flags.find(node, work.flow.before[node], None, owner)
    if isinstance(flag, Refusal):
        work.refuse(value, _KIND, flag)
        return
    end = work.source.span(value)[1]
    work.edits += work.layout.insert_text(end, "".join(f" and {clause}" for clause in flag.clauses))
    work.keep(flag)
    text = (
        f"`{parameter or 'the argument'}` of `{name}` now says that the update was applied; so do all overrides of it"
    )
    work.rewritten(value, _KIND, "flag-argument", text)


def _parameter(function: Scope | None, call: ast.Call, value: ast.expr) -> str | None:
    if function is None:
        return next((item.arg for item in call.keywords if item.value is value), None)
    return next((name for name in function.parameters if argument_of(function, call, name) is value), None)


def _refusal(work: Work, function: Scope | None, parameter: str | None, name: str) -> str | None:
    if function is None or parameter is None:
        return (
            f"`{name}` gets the boundary flag and this file does not show what it does with "
            "it; bookkeeping inside it still runs for skipped updates. `--follow-arguments` "
            "hands it `update applied` instead"
        )
    body = list(within(function.node.body))
    if any(work.traits.clips([item]) or work.traits.must_run(item) for item in body) or function in work.flow.stepping:
        return f"`{name}` clips, steps or clears gradients under `{parameter}`; split it into two parameters by hand"
    tested = [item for item in body if isinstance(item, ast.If) and parameter in _names(item.test)]
    if not tested:
        return (
            f"`{name}` does not test `{parameter}` itself; `--follow-arguments` hands it `update applied` all the same"
        )
    return None


def _names(node: ast.expr) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
