"""Counters that objects move of which the file does not show what they are: reported, so that none goes unseen.

What: behind the step, a loop that calls what a list of hooks holds, where a class of this file counts in a method of
that name; calls of functions with such a loop; methods of one object, where all that have this name count.

Why: which objects these are cannot be seen, or some of a list do more than count: a gate would take all of them in.

Before:

    for callback in self.callbacks:
        callback.on_step_end(self)

After: the same. Where the file shows all that the list holds, and all of it counts or logs, the loop is gated.

Refuses: all of it; put the loop or the call under the flag, and what every boundary must do in front of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..loop.calls import may_reach
from ..loop.names import key, root
from ..loop.obstacles import Refusal
from ..loop.scope import Scope, argument_of
from ..loop.tree import calls_of, of_variable, within
from ..work import Work

_KIND = "hidden counter"
_SEEN = {ast.For, ast.AsyncFor, ast.Expr}
_COMMON = ("update", "add", "append", "step", "log", "write", "reset", "close", "forward", "train", "eval")


def hidden_counters(work: Work) -> None:
    """Report loops over hooks that count, and calls of methods that may."""
    if not work.script.module.classes:
        return
    closed, told = work.closed(), set()
    for node in [node for node in work.flow.before if type(node) in _SEEN and id(node) not in closed]:
        if _is_loop(node) and work.in_iteration(node) is not None:
            told |= {id(node)} if _report(work, node, _counting(work, node, None)) else set()
        elif isinstance(node, ast.Expr) and (found := _method_that_counts(work, node)):
            _report(work, node, iter([found]), "this may run")
    for function in [item for item in work.flow.entries if item not in work.flow.stepping]:
        inner = [node for node in within(function.node.body) if _is_loop(node) and id(node) not in told]
        for node, call in work.script.calls(function) if inner and closed.isdisjoint(map(id, inner)) else ():
            if id(node) not in closed and work.in_iteration(node) is not None:
                for loop in inner:
                    _report(work, node, _counting(work, loop, (function, call)))


def _is_loop(node: ast.stmt) -> bool:
    return isinstance(node, (ast.For, ast.AsyncFor)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.ListComp)
    )


def _report(work: Work, node: ast.stmt, found: Iterator[Scope], how: str = "a list of hooks runs") -> bool:
    """Report what counts among the hooks, and whether anything does."""
    for function in found:
        assert isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.owner is not None
        where = f"`{function.owner.name}.{function.name}` (line {function.node.lineno})"
        text = f"{where} counts, and {how} it for skipped updates too"
        advice = ". If applied updates are meant, put this under `sync_gradients and not optimizer_step_was_skipped`"
        work.refuse(node, _KIND, Refusal("unclear-count", text + advice))
        return True
    return False


def _method_that_counts(work: Work, node: ast.Expr) -> Scope | None:
    """The method of a class here that a call may run, where its object is unknown and all of this name count."""
    call = node.value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return None
    word, owner, scope = call.func.attr, key(call.func.value), work.script.places[node].scope
    methods = [item.functions[word] for item in work.script.module.classes.values() if word in item.functions]
    if not methods or owner is None or word in _COMMON or work.in_iteration(node) is None:
        return None
    if may_reach(work.script, node) or work.objects.kind(scope, owner) or _is_imported(work, scope, owner):
        return None
    return methods[0] if all(work.traits.function_counts(work.script.read(item)) for item in methods) else None


def _is_imported(work: Work, scope: Scope, owner: str) -> bool:
    """Whether nothing in the file gives an object its name."""
    return not work.script.bindings(scope, owner) and not work.script.bindings(scope, root(owner))


def _counting(work: Work, loop: ast.stmt, through: tuple[Scope, ast.Call] | None) -> Iterator[Scope]:
    """Methods of classes of this file that a loop over hooks may run and that count."""
    target = loop.target if isinstance(loop, (ast.For, ast.AsyncFor)) else loop
    variables = {
        item.id for item in ast.walk(target) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    classes = work.script.module.classes.values()
    for call in [call for node in within([loop]) for call in calls_of(node)]:
        name, word = of_variable(call)
        if name in variables and name:
            word = word or _handed_word(call, through)
            methods = [item.functions[word] for item in classes if word in item.functions]
            yield from (item for item in methods if work.traits.function_counts(work.script.read(item)))


def _handed_word(call: ast.Call, through: tuple[Scope, ast.Call] | None) -> str:
    """The method that a call of a function names for its loop over hooks, as in `fire("on_step_end")`."""
    name = call.func.args[1] if isinstance(call.func, ast.Call) else None
    if through is None or not isinstance(name, ast.Name):
        return ""
    handed = argument_of(*through, name.id)
    return str(handed.value) if isinstance(handed, ast.Constant) else ""
