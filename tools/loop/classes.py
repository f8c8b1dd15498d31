"""Which class of a file an object belongs to, and which methods stand in for each other where classes inherit."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod

from ..source import Source
from .bindings import Binding
from .index import Index
from .names import key, last
from .scope import Scope, annotated_class, argument_of, is_spread
from .tree import within

_PLAIN_BASES = ("object", "ABC", "Module", "Protocol", "Generic", "NamedTuple", "TypedDict", "Enum", "")
_DEPTH = 4  # names, attributes and parameters that are followed to an object


class Classes(Index, ABC):
    """The index over one source file, with the classes of its objects; `Script` adds the calls."""

    def __init__(self, source: Source) -> None:
        self._inheriting: dict[Scope, list[Scope]] = {}
        super().__init__(source)

    @abstractmethod
    def calls(self, function: Scope) -> list[tuple[ast.stmt, ast.Call]]:
        """Every call of a function of this file that the text shows: they tell what its parameters hold."""

    def _overrides(self, scope: Scope, target: ast.expr) -> list[Scope]:
        """The methods that classes put in the place of one which a method of their base calls on its own object."""
        owner = scope.owner
        if owner is None or not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            return []
        heirs = self._heirs(owner) if target.value.id in ("self", "cls", scope.own) else ()
        found = [heir.functions[target.attr] for heir in heirs if target.attr in heir.functions]
        return [item for item in found if not item.does_nothing]

    def leaves_to_a_base(self, owner: Scope, statements: list[ast.stmt]) -> bool:
        """Whether a class has a base in another file, and none of its own methods makes one of these statements."""
        if not isinstance(owner.node, ast.ClassDef):
            return False
        lineage = self.lineage(owner)
        bases = {key(base) or "" for item in lineage for base in getattr(item.node, "bases", ())}
        if all(name in self.module.classes or last(name) in _PLAIN_BASES for name in bases):
            return False
        return not any(self.places[node].scope.owner in lineage for node in statements)

    def _heirs(self, owner: Scope) -> list[Scope]:
        """The classes that inherit from one."""
        if owner not in self._inheriting:
            classes = self.module.classes.values()
            self._inheriting[owner] = [item for item in classes if item is not owner and owner in self.lineage(item)]
        return self._inheriting[owner]

    def _method(self, owner: Scope | None, name: str) -> Scope | None:
        return first_method(self.lineage(owner), name) if owner is not None else None

    @staticmethod
    def _class_named(scope: Scope, name: str) -> Scope | None:
        return next((found.classes[name] for found in scope.enclosing() if name in found.classes), None)

    def class_of(self, scope: Scope, name: str, depth: int = _DEPTH) -> Scope | None:
        """The one class of this file whose object a key holds, whether now and then it holds None or not."""
        if name in ("self", "cls", scope.own):
            return scope.owner
        home = self.home(scope, name)
        found = [item for item in home.bindings.get(name, ()) if not _is_none(item.value)] if depth > 0 else []
        if any(item.is_parameter for item in found):
            return self._class_passed(home, name, depth) if len(found) == 1 else None
        if not found and depth > 0 and "." in name:
            return self._class_held(scope, name, depth)
        classes = {self._class_set(item, depth) for item in found}
        return classes.pop() if len(classes) == 1 else None

    def _class_built(self, value: ast.expr | None, position: int, scope: Scope, depth: int) -> Scope | None:
        if position >= 0 or value is None:
            return None
        if isinstance(value, ast.Call):
            return self._class_named(scope, key(value.func) or "") or self._class_made(scope, value, depth)
        if isinstance(value, ast.IfExp):
            arms = {
                self._class_built(arm, -1, scope, depth) for arm in (value.body, value.orelse) if not _is_none(arm)
            }
            return arms.pop() if len(arms) == 1 else None
        alias = key(value)
        return self.class_of(scope, alias, depth - 1) if alias is not None else None

    def _class_made(self, scope: Scope, call: ast.Call, depth: int) -> Scope | None:
        """The class of what a function or a class method of this file returns, as in `state = make_state()`."""
        name = key(call.func) or ""
        owner, _, word = name.rpartition(".")
        if name == scope.own and scope.is_class_method:
            return scope.owner
        made = self._method(self._class_named(scope, owner), word) if owner else self._function_named(scope, name)
        if made is None or depth <= 0:
            return None
        returned = [node.value for node in within(self.read(made).node.body) if isinstance(node, ast.Return)]
        classes = {self._class_built(value, -1, made, depth - 1) for value in returned if not _is_none(value)}
        named = self._class_named(made, annotated_class(getattr(made.node, "returns", None)))
        return named or (classes.pop() if len(classes) == 1 else None)

    @staticmethod
    def _function_named(scope: Scope, name: str) -> Scope | None:
        return next((outer.functions[name] for outer in scope.enclosing() if name in outer.functions), None)

    def _class_held(self, scope: Scope, name: str, depth: int) -> Scope | None:
        """The class of an attribute of an object of this file, as by `trainer.state`."""
        owner, _, word = name.rpartition(".")
        holder = self.class_of(scope, owner, depth - 1)
        if holder is None:
            return None
        for method in [item for base in self.lineage(holder) for item in base.functions.values()]:
            self.read(method)
        for there in (f"self.{word}", word):  # what a method sets, or the field of a dataclass
            found = self.keeper(holder, there).bindings.get(there, ())
            classes = {self._class_set(item, depth) for item in found if not _is_none(item.value)}
            if classes:
                return classes.pop() if len(classes) == 1 else None
        return None

    def _class_set(self, binding: Binding, depth: int) -> Scope | None:
        """The class of what a binding gives: by the annotation beside it, or by the value."""
        scope = self.places[binding.statement].scope
        annotation = getattr(binding.statement, "annotation", None)
        named = self._class_named(scope, annotated_class(annotation)) if annotation is not None else None
        return named or self._class_built(binding.value, binding.position, scope, depth)

    def _class_passed(self, function: Scope, parameter: str, depth: int) -> Scope | None:
        """The class of a parameter: of all that calls in the file hand to it, or else the one of its annotation."""
        classes = set()
        for node, call in self.calls(function):
            value = argument_of(function, call, parameter)
            value = function.default(parameter) if value is None and not is_spread(call) else value
            if not _is_none(value):
                classes.add(self._class_built(value, -1, self.places[node].scope, depth))
        if len(classes) == 1 and (only := classes.pop()) is not None:
            return only
        return self._class_named(function, annotated_class(function.annotation(parameter)))


def first_method(classes: tuple[Scope, ...], name: str) -> Scope | None:
    """The method of the first class that has it."""
    return next((found.functions[name] for found in classes if name in found.functions), None)


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
