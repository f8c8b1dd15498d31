"""What a method does to the object that it is called on, in the names that the caller has for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import names
from .gathering import cleared
from .names import key
from .obstacles import Refusal
from .scope import Scope
from .script import Script
from .tree import calls_of, within

_DEPTH = 3  # calls that are followed


def cleared_by_method(
    script: Script, scope: Scope, call: ast.Call, gathered: set[str]
) -> tuple[Scope | None, set[str]]:
    """The method that a call runs, and those of the gathered keys, attributes of its object, that it sets to nothing.

    Methods that it calls of the same object count too. A call on `self` is not one of these: there the names agree.
    """
    owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
    inside = [name for name in gathered if name.startswith(f"{owner}.")] if owner not in (None, "self", "cls") else []
    method = script.method(scope, call) if inside else None
    if owner is None or method is None or not method.parameters:
        return None, set()
    own = method.parameters[0]
    names_inside = {own + name.removeprefix(owner): name for name in inside}
    found = [name for node in _statements(script, method, own, _DEPTH) for name in cleared(node, set(names_inside))]
    return method, {names_inside[name] for name in found}


def hidden_reset(node: ast.stmt, function: Scope, hidden: set[str]) -> Refusal:
    """Why a block stays as it is that calls what clears these keys, or gradients, out of its sight."""
    what = ", ".join(f"`{name}`" for name in sorted(hidden)) if hidden else "gradients or counts data"
    return Refusal(
        "nested-reset",
        f"line {node.lineno} calls `{function.name}`, which clears {what} in a way that "
        "cannot be repeated for skipped updates; do it in the block itself",
    )


def _statements(script: Script, method: Scope, own: str, depth: int) -> Iterator[ast.stmt]:
    for node in within(method.node.body):
        yield node
        for call in calls_of(node) if depth else ():
            name = names.called(call)
            inner = method.owner.functions.get(names.last(name)) if method.owner is not None else None
            inner = script.function(method, call) if inner is None else script.read(inner)
            if inner is not None and names.root(name) == own:
                yield from _statements(script, inner, own, depth - 1)
