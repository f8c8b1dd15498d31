"""Modules, classes and functions: what they bind and define, and where statements stand in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .bindings import Binding
from .names import key

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_ANNOTATED = re.compile(r"(?:None \| )?(?:(?:typing\.)?Optional\[)?['\"]?(\w+)['\"]?\]?(?: \| None)?['\"]?")


@dataclass(eq=False)
class Scope:
    """A module, a class or a function, with what it binds and which functions it defines."""

    node: ast.Module | ast.ClassDef | FunctionNode
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    functions: dict[str, Scope] = field(default_factory=dict)
    classes: dict[str, Scope] = field(default_factory=dict)
    outer_names: set[str] = field(default_factory=set)  # `nonlocal` and `global`

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "")

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef))

    @property
    def is_class_method(self) -> bool:
        return any(key(item) == "classmethod" for item in getattr(self.node, "decorator_list", ()))

    @property
    def does_nothing(self) -> bool:
        """Whether a function is only there for another to be put in its place."""
        return all(isinstance(item, (ast.Pass, ast.Raise)) or _is_constant(item) for item in self.node.body)

    @property
    def owner(self) -> Scope | None:
        """The class that this function is a method of, also from inside a nested function."""
        scope = self.parent
        while scope is not None and scope.is_function:
            scope = scope.parent
        return scope if scope is not None and isinstance(scope.node, ast.ClassDef) else None

    @property
    def parameters(self) -> list[str]:
        if not isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return []
        arguments = self.node.args
        return [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    def annotation(self, parameter: str) -> ast.expr | None:
        """What a parameter is said to be."""
        arguments = getattr(self.node, "args", None)
        found = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if arguments is not None else ()
        return next((item.annotation for item in found if item.arg == parameter), None)

    def default(self, parameter: str) -> ast.expr | None:
        """What a parameter is where a call hands nothing to it."""
        arguments = getattr(self.node, "args", None)
        if arguments is None:
            return None
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(positional[::-1], arguments.defaults[::-1], strict=False)]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return next((value for item, value in pairs if item.arg == parameter), None)

    @property
    def own(self) -> str:
        """What a method calls the object that it is called on; an empty text for any other function."""
        node = self.node
        is_method = self.parent is not None and isinstance(self.parent.node, ast.ClassDef)
        if not is_method or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return ""
        is_static = any(key(item) == "staticmethod" for item in node.decorator_list)
        positional = [*node.args.posonlyargs, *node.args.args]
        return positional[0].arg if positional and not is_static else ""

    def enclosing(self) -> Iterator[Scope]:
        """The scopes whose functions and classes this one sees, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            if not isinstance(scope.node, ast.ClassDef):
                yield scope
            scope = scope.parent

    def bind(self, name: str, binding: Binding) -> None:
        if name in self.outer_names:
            return
        self.bindings.setdefault(name, []).append(binding)


@dataclass(eq=False, slots=True)  # one for each statement: a frozen one takes twice as long to make
class Place:
    """Where a statement stands: the list that holds it, its index there, the statement round it, its scope."""

    block: list[ast.stmt]
    index: int
    parent: ast.stmt | None
    arm: str
    scope: Scope

    @property
    def following(self) -> list[ast.stmt]:
        return self.block[self.index + 1 :]


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def argument_of(function: Scope, call: ast.Call, parameter: str) -> ast.expr | None:
    """The expression that a call hands to a parameter, or None."""
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    parameters = function.parameters
    if (function.own or parameters[:1] in (["self"], ["cls"])) and not names_own(function, call):
        parameters = parameters[1:]
    index = parameters.index(parameter) if parameter in parameters else -1
    if 0 <= index < len(call.args) and not any(isinstance(item, ast.Starred) for item in call.args[: index + 1]):
        return call.args[index]
    return None


def is_spread(call: ast.Call) -> bool:
    """Whether a call hands over what the file does not write out, by `*` or `**`."""
    return any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords)


def names_own(function: Scope, call: ast.Call) -> bool:
    """Whether a call names the object of a method as its first argument, as `Base.method(self)` does."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_class = isinstance(owner, ast.Name) and function.parent is not None and owner.id == function.parent.name
    return is_class and not function.is_class_method


def annotated_class(annotation: ast.expr | None) -> str:
    """The class that an annotation names, with None or without: empty for a container and for several."""
    text = annotation.value if isinstance(annotation, ast.Constant) else annotation and ast.unparse(annotation)
    found = _ANNOTATED.fullmatch(text) if isinstance(text, str) else None
    return found.group(1) if found is not None else ""
