"""What a method does to the object that it is called on, in the names that the caller has for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import names
from .gathering import cleared
from .names import key
from .scope import Scope
from .script import Script
from .tree import calls_of, within

_DEPTH = 3  # calls that are followed


def cleared_by_method(script: Script, method: Scope, call: ast.Call, gathered: set[str]) -> set[str]:
    """Those of the gathered keys, attributes of an object, that a method of the object sets back to nothing.

    Methods that it calls of the same object count too. A call on `self` is not one of these: there the names agree.
    """
    owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if owner is None or owner in ("self", "cls") or method.owner is None or not method.parameters:
        return set()
    own = method.parameters[0]
    inside = {own + name.removeprefix(owner): name for name in gathered if name.startswith(f"{owner}.")}
    if not inside:
        return set()
    return {inside[name] for node in _statements(script, method, own, _DEPTH) for name in cleared(node, set(inside))}


def _statements(script: Script, method: Scope, own: str, depth: int) -> Iterator[ast.stmt]:
    for node in within(method.node.body):
        yield node
        for call in calls_of(node) if depth else ():
            name = names.called(call)
            inner = method.owner.functions.get(names.last(name)) if method.owner is not None else None
            inner = script.function(method, call) if inner is None else script.read(inner)
            if inner is not None and names.root(name) == own:
                yield from _statements(script, inner, own, depth - 1)
