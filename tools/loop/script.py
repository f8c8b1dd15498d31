"""A file as the readers see it: its index, and which of its functions are called where."""

from __future__ import annotations

import ast
import re

from ..source import Source
from .classes import Classes, first_method
from .names import is_super, key, last
from .scope import Scope, argument_of
from .search import has_line
from .tree import assigned, calls_of, of_variable

_GROWING = ("append", "extend", "insert", "remove", "pop")
_DEPTH = 4  # names and parameters that are followed to a list


class Script(Classes):
    """The index over one source file, with the calls of its functions."""

    def __init__(self, source: Source) -> None:
        self._run: dict[ast.Call, list[Scope]] = {}
        self._called: dict[ast.stmt, list[tuple[ast.Call, Scope]]] = {}
        self._calls: dict[Scope, list[tuple[ast.stmt, ast.Call]]] = {}
        self._sought: set[Scope] = set()  # functions whose calls are being looked for
        self._sought_names: set[str] = set()
        self._calling: list[int] = []  # lines that have one of them
        super().__init__(source)

    def function(self, scope: Scope, call: ast.Call | ast.Attribute) -> Scope | None:
        """The function of this file that a call runs, or that an attribute is (a property), if that is plain."""
        found = self._function(scope, call)
        return self.read(found) if found is not None else None

    def runs(self, scope: Scope, call: ast.Call) -> list[Scope]:
        """Every function of this file that a call may run: the plain one, then those that heirs put in its place.

        Those of a list that a loop runs one after another all run.
        """
        if self._is_foreign(call.func) and of_variable(call)[0] not in scope.bindings:
            return []  # most calls: of another file, and by no variable of a loop over hooks
        if call not in self._run:
            found = [self.read(item) for item in self._runs(scope, call)]
            if self._sought:
                return found  # not all that is asked for here is known yet
            self._run[call] = found
        return self._run[call]

    def _runs(self, scope: Scope, call: ast.Call) -> list[Scope]:
        if self._is_foreign(call.func):
            return self.listed(scope, call) or []
        found = self._function(scope, call)
        others = self._overrides(scope, call.func) or (self.listed(scope, call) or [] if found is None else [])
        if found is not None and found not in others:
            others[:0] = [] if others and found.does_nothing else [found]
        return others

    def called(self, node: ast.stmt) -> list[tuple[ast.Call, Scope]]:
        """The calls of a statement itself that run functions of this file, with these."""
        if node not in self._called:
            scope = self.places[node].scope
            calls = calls_of(node) if self._may_call(node) else []
            self._called[node] = [(call, function) for call in calls for function in self.runs(scope, call)]
        return self._called[node]

    def _may_call(self, node: ast.stmt) -> bool:
        """Whether a line of a statement calls something by the name of a function of this file: few of them do."""
        sought = self._function_names - self._sought_names
        if sought:
            found = [line for name in sought for line in self._search.lines_calling(name)]
            self._calling = sorted({*self._calling, *found, *self._search.lines_in_other_letters})
            self._sought_names |= sought
        return has_line(self._calling, node.lineno, node.end_lineno or 0) or "__call__" in self._function_names

    def _is_foreign(self, target: ast.expr) -> bool:
        """Whether what is called has no name of a function of this file: most calls are of other files."""
        word = getattr(target, "attr", getattr(target, "id", ""))
        return word not in self._function_names and "__call__" not in self._function_names

    def _function(self, scope: Scope, call: ast.Call | ast.Attribute) -> Scope | None:
        target = call.func if type(call) is ast.Call else call
        if self._is_foreign(target):
            return None  # before the key is made
        if isinstance(target, ast.Attribute) and is_super(target.value):
            return first_method(self.lineage(scope.owner)[1:], target.attr) if scope.owner is not None else None
        name = key(target)
        if name is None:
            return None
        owner, _, word = name.rpartition(".")
        if owner:
            method = self._method(self.class_of(scope, owner) or self._class_named(scope, owner), word)
            others = self._overrides(scope, target) if method is None or method.does_nothing else []
            return others[0] if len(others) == 1 else method or self._method(self.class_of(scope, name), "__call__")
        for found in scope.enclosing():
            if name in found.functions:
                return found.functions[name]
            if name in found.classes:
                return self._method(found.classes[name], "__init__")
        return self._method(self.class_of(scope, name), "__call__")

    def listed(self, scope: Scope, call: ast.Call) -> list[Scope] | None:
        """What a loop runs one after another, as by `for hook in hooks: hook()`; None where the file hides some."""
        name, word = of_variable(call)
        bound = scope.bindings.get(name, ())
        if len(bound) != 1 or not isinstance(bound[0].statement, (ast.For, ast.AsyncFor)) or bound[0].value is None:
            return None
        items = self._items(scope, bound[0].value, _DEPTH) if isinstance(bound[0].statement.target, ast.Name) else None
        found = [item if item.is_function else self._method(item, word) for item in items or ()]
        return [item for item in found if item is not None] if found and None not in found else None

    def _items(self, scope: Scope, value: ast.expr, depth: int) -> list[Scope] | None:
        """The functions and the classes of the objects that a list holds; None where it does not show all of them."""
        if isinstance(value, (ast.List, ast.Tuple)):
            held = [self._item(scope, item, depth) for item in value.elts]
            return None if None in held else [item for item in held if item is not None]
        name = key(value) if depth > 0 else None
        home = self.home(scope, name) if name is not None else scope
        bound = home.bindings.get(name, ()) if name is not None else ()
        if name is None or len(bound) != 1 or any(f"{last(name)}.{word}(" in self.source.text for word in _GROWING):
            return None
        if not bound[0].is_parameter:
            there = self.places[bound[0].statement].scope
            return self._items(there, bound[0].value, depth - 1) if bound[0].value is not None else None
        calls = [(node, argument_of(home, call, name)) for node, call in self.calls(home)]
        node, handed = calls[0] if len(calls) == 1 else (None, None)
        return (
            self._items(self.places[node].scope, handed, depth - 1)
            if node is not None and handed is not None
            else None
        )

    def _item(self, scope: Scope, value: ast.expr, depth: int) -> Scope | None:
        return self._function_named(scope, key(value) or "") or self._class_built(value, -1, scope, depth)

    def calls(self, function: Scope) -> list[tuple[ast.stmt, ast.Call]]:
        """Every call of a function of this file that the text shows."""
        if function in self._calls:
            return self._calls[function]
        if function in self._sought:
            return []  # asks for its own calls, through an object that a parameter holds
        self._sought.add(function)
        found = []
        patterns = [re.compile(rf"{re.escape(name)}\s*\(") for name in self._names_of(function)]
        for pattern in patterns:
            self._read_lines(self.lines_with(pattern))
        for node in self.statements_with(*patterns):
            scope = self.places[node].scope
            found += [(node, call) for call in calls_of(node) if self._may_run(scope, call, function)]
        self._sought.discard(function)
        if not self._sought:
            self._calls[function] = found
        return found

    def _may_run(self, scope: Scope, call: ast.Call, function: Scope) -> bool:
        return self._function(scope, call) is function or function in self._overrides(scope, call.func)

    def _names_of(self, function: Scope) -> list[str]:
        """What a function is called by: a constructor also by its class and its heirs, `__call__` by what is built."""
        owner = function.owner
        if owner is not None and function.name == "__call__":
            building = self.statements_with(re.compile(rf"{re.escape(owner.name)}\s*\("))
            return [
                last(name) for node in building for target, _ in assigned(node) if (name := key(target)) is not None
            ]
        if function.name != "__init__" or owner is None:
            return [function.name]
        heirs = [item.name for item in self._heirs(owner)]
        return [owner.name, *heirs, *(["__init__"] if heirs else [])]
