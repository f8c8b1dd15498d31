"""Reads the test of an `if`: which of its clauses ask for a sync boundary and which for a skipped update."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Literal

from . import names
from .names import key
from .objects import Identity, Objects
from .scope import Scope
from .spellings import as_attribute, as_bool_op
from .tree import assigned, expressions

Kind = Literal["sync", "skip", "mixed", "other"]
FLAGS = (re.compile("sync_gradients"), re.compile("step_was_skipped"))
_KINDS: dict[str, Kind] = {"sync_gradients": "sync", "optimizer_step_was_skipped": "skip", "step_was_skipped": "skip"}


@dataclass(frozen=True)
class Clause:
    """One clause. `node` is the expression as the test has it, negation left out; an alias keeps its statement."""

    node: ast.expr
    kind: Kind
    positive: bool
    owner: str | None = None  # the text of the accelerator or the optimizer that is asked
    alias: ast.stmt | None = None  # the statement that gave the alias its value


@dataclass(frozen=True)
class Test:
    """Clauses that must all hold, or (`is_any`) of which one must hold."""

    clauses: tuple[Clause, ...]
    is_any: bool = False

    def find(self, kind: Kind, positive: bool) -> Clause | None:
        return next((item for item in self.clauses if item.kind == kind and item.positive == positive), None)

    @property
    def needs_sync(self) -> Clause | None:
        """The clause that lets only sync boundaries through."""
        return None if self.is_any else self.find("sync", True)

    @property
    def needs_applied(self) -> Clause | None:
        """The clause that keeps a skipped update out."""
        return None if self.is_any else self.find("skip", False)

    @property
    def holds_without_sync(self) -> Clause | None:
        """The clause that makes the test true between boundaries."""
        return self.find("sync", False) if self.is_any or len(self.clauses) == 1 else None

    @property
    def holds_on_skip(self) -> Clause | None:
        """The clause that makes the test true on a skipped update."""
        return self.find("skip", True) if self.is_any or len(self.clauses) == 1 else None

    @property
    def shuts_applied_out(self) -> bool:
        """Whether the test never holds after an applied update."""
        if self.is_any:
            return all(item.kind == ("skip" if item.positive else "sync") for item in self.clauses)
        return self.find("skip", True) is not None

    @property
    def lets_all_applied_in(self) -> bool:
        """Whether the test holds after every applied update, and asks for one."""
        is_plain = all(item.kind == ("sync" if item.positive else "skip") for item in self.clauses)
        return (self.needs_applied is not None and is_plain) or self.spares_only_skips

    @property
    def spares_only_skips(self) -> bool:
        """Whether the test is true but on a skipped update: `not (sync and skipped)`."""
        kinds = [item.kind for item in self.clauses if not item.positive]
        return self.is_any and kinds.count("skip") == 1 and kinds.count("sync") == len(self.clauses) - 1

    @property
    def others(self) -> tuple[Clause, ...]:
        return tuple(item for item in self.clauses if item.kind == "other")

    @property
    def is_flagged(self) -> bool:
        return any(item.kind != "other" for item in self.clauses)


@dataclass
class Clauses:
    """Reads tests of one script; aliases are looked up at the place where they are read."""

    objects: Objects
    _lines: list[int] | None = None
    _askers: dict[str, list[tuple[Scope, ast.stmt, ast.expr]]] = field(default_factory=dict)
    _aliases: dict[tuple[Scope, str], list[tuple[ast.stmt, ast.expr]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        script = self.objects.script
        self._find_askers()
        for node in script.statements_with(*FLAGS):
            self._collect(node)
        if self._aliases:
            known = re.compile("|".join(names.word_pattern(name) for _, name in list(self._aliases)))
            for node in script.statements_with(known):
                self._collect(node)

    def _collect(self, node: ast.stmt) -> None:
        scope = self.objects.script.places[node].scope
        pairs = assigned(node)
        pairs += [(item.target, item.value) for item in expressions(node) if isinstance(item, ast.NamedExpr)]
        for target, value in pairs:
            name = key(target)
            if name is None or not self.read(value, scope, node).is_flagged:
                continue
            home = self.objects.script.home(scope, name)
            found = self._aliases.setdefault((home, name), [])
            if all(item is not node for item, _ in found):
                found.append((node, value))

    def is_plain(self, node: ast.stmt, test: ast.expr) -> bool:
        """Whether the lines of a test show no flag and no alias of one."""
        if self._lines is None:
            words = [*FLAGS, *(re.compile(re.escape(name)) for name in self.alias_names())]
            self._lines = sorted(line for word in words for line in self.objects.script.lines_with(word))
        index = bisect_left(self._lines, node.lineno)
        return index == len(self._lines) or self._lines[index] > (test.end_lineno or node.lineno)

    @property
    def words(self) -> list[re.Pattern[str]]:
        """What any use of a flag shows in the text: its name, or that of an alias."""
        return [*FLAGS, *(re.compile(names.word_pattern(name)) for name in sorted(self.alias_names()))]

    def alias_names(self) -> set[str]:
        return {name for _, name in self._aliases} | set(self._askers)

    def _find_askers(self) -> None:
        """Functions, properties and lambdas that do nothing but return a flag."""
        script = self.objects.script
        for node in script.statements_with(*FLAGS):
            scope = script.places[node].scope
            if isinstance(node, ast.Return) and node.value is not None and scope.is_function:
                body = [item for item in scope.node.body if not _is_docstring(item)]
                if body == [node]:
                    self._askers.setdefault(scope.name, []).append((scope, node, node.value))
            for target, value in assigned(node):
                name = key(target)
                if isinstance(value, ast.Lambda) and name is not None and name.isidentifier():
                    self._askers.setdefault(name, []).append((scope, node, value.body))

    def _asked(self, node: ast.expr, scope: Scope, positive: bool) -> Test | None:
        """The test behind a call or a property that only returns a flag, where its words mean the same here."""
        called = node.func if isinstance(node, ast.Call) and not node.args and not node.keywords else None
        name = key(called if called is not None else node) or ""
        for home, statement, value in self._askers.get(names.last(name), ()):
            is_property = any(key(item) == "property" for item in getattr(home.node, "decorator_list", ()))
            is_lambda = not isinstance(statement, ast.Return)
            if is_property == (called is not None) or (called is None and not isinstance(node, ast.Attribute)):
                continue
            owner = scope.owner if names.root(name) == "self" else None
            if owner is not None and (home.owner is not owner or name != f"self.{home.name}"):
                continue
            if owner is None and not is_lambda and name != home.name:
                continue
            inner = self.read(value, home, statement, positive)
            owners = [item.owner for item in inner.clauses if item.kind in ("sync", "skip") and item.owner is not None]
            if len(owners) == len(inner.clauses) and all(self._means_same(home, scope, text) for text in owners):
                clauses = (replace(item, node=node) for item in inner.clauses)
                return replace(inner, clauses=tuple(clauses))
        return None

    def read(self, test: ast.expr, scope: Scope, at: ast.stmt, positive: bool = True) -> Test:
        """The clauses of a test that stands in the statement `at`."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.read(test.operand, scope, at, not positive)
        if isinstance(test, ast.BoolOp):
            return self._read_all(test, scope, at, positive)
        if (listed := as_bool_op(test)) is not None:
            inner = self._read_all(listed, scope, at, positive)
            return replace(inner, clauses=tuple(replace(item, node=test) for item in inner.clauses))
        if isinstance(test, ast.NamedExpr):
            inner = self.read(test.value, scope, at, positive)
            return replace(inner, clauses=tuple(replace(item, node=test) for item in inner.clauses))
        asked = self._asked(test, scope, positive) if self._askers else None
        if asked is not None:
            return asked
        clause = self._atom(test, scope, positive)
        name = key(test)
        if clause.kind == "other" and name is not None:
            alias = self._alias(scope, name, at)
            if alias is not None:
                inner = self.read(alias[1], scope, alias[0], positive)
                parts = (replace(item, node=test, alias=alias[0]) for item in inner.clauses)
                return replace(inner, clauses=tuple(parts))
        return Test((clause,))

    def _read_all(self, test: ast.BoolOp, scope: Scope, at: ast.stmt, positive: bool) -> Test:
        is_any = isinstance(test.op, ast.Or) == positive
        clauses: list[Clause] = []
        for value in test.values:
            inner = self.read(value, scope, at, positive)
            if len(inner.clauses) == 1 or inner.is_any == is_any:
                clauses += inner.clauses
            elif (skip := inner.find("skip", False)) and inner.spares_only_skips and not is_any:
                clauses.append(replace(skip, node=value))
            else:
                clauses.append(Clause(value, "mixed" if inner.is_flagged else "other", positive))
        return Test(tuple(clauses), is_any and len(clauses) > 1)

    def _means_same(self, home: Scope, scope: Scope, text: str) -> bool:
        first, script = names.root(text), self.objects.script
        return home.owner is scope.owner if first == "self" else script.home(home, first) is script.home(scope, first)

    def _alias(self, scope: Scope, name: str, at: ast.stmt) -> tuple[ast.stmt, ast.expr] | None:
        """The last flagged value that a name was given above `at`; None if something else may have come between."""
        home = self.objects.script.home(scope, name)
        found = self._aliases.get((home, name), [])
        above = [item for item in found if item[0].lineno < at.lineno]
        if not above:
            return None
        latest = max(above, key=lambda item: item[0].lineno)
        others = [item for item in home.bindings.get(name, []) if not any(node is item.statement for node, _ in found)]
        if any(latest[0].lineno < item.statement.lineno < at.lineno for item in others):
            return None
        return latest

    def _atom(self, node: ast.expr, scope: Scope, positive: bool) -> Clause:
        plain = Clause(node, "other", positive)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant):
            value = node.comparators[0].value
            if isinstance(node.ops[0], (ast.Is, ast.Eq)) and isinstance(value, bool):
                inner = self._atom(node.left, scope, positive == value)
                return replace(inner, node=node) if inner.kind != "other" else plain
        if isinstance(node, ast.Call) and key(node.func) == "bool" and len(node.args) == 1:
            return replace(self._atom(node.args[0], scope, positive), node=node)
        node = as_attribute(node)
        if not isinstance(node, ast.Attribute):
            return plain
        owner = key(node.value)
        if owner is not None and self.objects.is_lookalike(scope, owner):
            return plain
        kind = _KINDS.get(node.attr)
        if kind is None:
            return plain
        if kind == "sync" and owner is not None:
            owner = self.accelerator_behind(scope, owner)
        return replace(plain, kind=kind, owner=owner)

    def accelerator_behind(self, scope: Scope, owner: str) -> str | None:
        """The text of the accelerator whose gradient state, or which itself, is called `owner` here."""
        if owner.endswith(".gradient_state"):
            return owner.removesuffix(".gradient_state")
        who = self.objects.identity(scope, owner)
        if who.key.endswith(".gradient_state"):
            name = who.key.removesuffix(".gradient_state")
            return name if self.objects.identity(scope, name) == self.objects.identity(who.scope, name) else None
        if names.last(owner) == "gradient_state" or _is_gradient_state(who):
            return self.only_accelerator(scope)
        return owner

    def only_accelerator(self, scope: Scope) -> str | None:
        """The name of the one accelerator that `scope` can read, or None."""
        found: list[str] = []
        here: Scope | None = scope
        while here is not None:
            found = [name for name in here.bindings if self.objects.kind(here, name) == "accelerator"]
            if found:
                break
            here = here.parent
        return found[0] if len(found) == 1 else None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_gradient_state(who: Identity) -> bool:
    return any(names.class_of(item.value) == "GradientState" for item in who.scope.bindings.get(who.key, []))
