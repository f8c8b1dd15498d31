"""Which functions of the file a statement reaches through its calls, and what things are called in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .names import is_super, key, root
from .scope import Scope, argument_of, names_own
from .script import Script
from .tree import call_of, expressions, within

_DEPTH = 3  # calls that are followed


@dataclass(frozen=True)
class Reached:
    """A function that a call runs, and what its names are where the first of the calls that lead to it stands."""

    script: Script
    function: Scope
    caller: Scope
    call: ast.Call
    through: Reached | None = None  # the call that led to the caller

    @property
    def statements(self) -> list[ast.stmt]:
        return list(within(self.function.node.body))

    def outside(self, name: str) -> str | None:
        """What a key of the function is called outside; None for what does not outlive the call, or has no name."""
        first = root(name)
        there: str | None = name
        if first in self.function.parameters:
            held = self._held(first)
            is_own = first == self.function.own or first != name  # a parameter by itself is a name of the function
            there = held + name[len(first) :] if held is not None and is_own else None
        elif not means_same(self.script, self.function, self.caller, name):
            there = None
        return self.through.outside(there) if self.through is not None and there is not None else there

    def inside(self, name: str) -> str | None:
        """What a key from outside is called in the function; None where it has no name there."""
        there = self.through.inside(name) if self.through is not None else name
        if there is None:
            return None
        for parameter in self.function.parameters:
            held = self._held(parameter)
            if held is not None and there.startswith((f"{held}.", f"{held}[")):
                return parameter + there[len(held) :]
        is_own = root(there) in self.function.parameters
        return there if not is_own and means_same(self.script, self.function, self.caller, there) else None

    def is_literal(self, node: ast.stmt) -> bool:
        """Whether a statement of the function would do the same outside: its names mean there what they mean here."""
        return all(self.outside(item.id) == item.id for item in expressions(node) if isinstance(item, ast.Name))

    def _held(self, parameter: str) -> str | None:
        """The caller's key for the object that a parameter holds."""
        if parameter != self.function.own or names_own(self.function, self.call):
            return key(argument_of(self.function, self.call, parameter))
        owner = self.call.func.value if isinstance(self.call.func, ast.Attribute) else None
        return (self.caller.own or "self") if is_super(owner) else key(owner)


def means_same(script: Script, one: Scope, other: Scope, name: str) -> bool:
    """Whether two functions mean the same thing by a key: one that neither keeps for itself."""
    return _home(script, one, name) is _home(script, other, name)


def _home(script: Script, scope: Scope, name: str) -> Scope:
    first = root(name)
    if first != name and first in ("self", "cls") and scope.owner is not None:
        return script.keeper(scope.owner, name)
    home = script.home(scope, first)
    return home if first in home.bindings else script.module  # imported, or bound where this file does not show


def reached(script: Script, node: ast.stmt) -> Reached | None:
    """The function of this file that a statement runs which is one call, if that is plain."""
    call = call_of(node)
    if call is None:
        return None
    scope = script.places[node].scope
    function = script.function(scope, call)
    return Reached(script, function, scope, call) if function is not None else None


def may_reach(script: Script, node: ast.stmt) -> list[Reached]:
    """The functions of this file of which a statement that is one call runs one: several where classes inherit."""
    call = call_of(node)
    if call is None:
        return []
    scope = script.places[node].scope
    found = script.runs(scope, call)
    return [Reached(script, function, scope, call) for function in found] if found else []


def all_reached(script: Script, node: ast.stmt) -> Iterator[Reached]:
    """The functions of this file that a statement's own calls run, with those that these call in turn."""
    scope = script.places[node].scope
    for call, function in script.called(node):
        yield from with_inner(Reached(script, function, scope, call))


def with_inner(outer: Reached, depth: int = _DEPTH - 1) -> Iterator[Reached]:
    """A function that is reached, and those that are reached through it."""
    yield outer
    for node in outer.statements if depth else ():
        for call, function in outer.script.called(node):
            yield from with_inner(Reached(outer.script, function, outer.function, call, outer), depth - 1)


def leading_to(script: Script, nodes: Iterable[ast.stmt]) -> dict[Scope, set[ast.stmt]]:
    """The functions that run some of the statements, directly or through calls, each with its own that do so."""
    found: dict[Scope, set[ast.stmt]] = {}
    for node in nodes:
        found.setdefault(script.places[node].scope, set()).add(node)
    queue = [scope for scope in found if scope.is_function]
    while queue:
        function = queue.pop()
        for node, _ in script.calls(function):
            scope = script.places[node].scope
            if scope not in found and scope.is_function:
                queue.append(scope)
            found.setdefault(scope, set()).add(node)
    return found
