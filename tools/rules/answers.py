"""Tests that are asked by name: `is_due = global_step % N == 0`, and behind the step `if is_due: save()`.

The same for functions of the file that return such an answer, as in `if divides(N, global_step): save()`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from ..loop.bindings import Binding
from ..loop.names import key, word_pattern
from ..loop.objects import Identity
from ..loop.scope import Scope, argument_of
from ..loop.script import Script
from ..loop.tree import assigned, walk
from ..work import Work


class Answers:
    """Names that hold, and functions that return, the answer of a test on the single values of a counter."""

    def __init__(self, work: Work, counters: Iterable[Identity], nodes: Iterable[ast.stmt]) -> None:
        """Read them off the statements that mention a counter."""
        self.work, self.counters = work, list(counters)
        self.tests: dict[Identity, ast.expr] = {}
        self.functions: list[str] = []
        for node in nodes:
            for target, value in assigned(node):
                self._read(node, target, self._written_out(node, value, {}))
            scope = work.script.places[node].scope
            if isinstance(node, ast.Return) and _answer(scope) is node.value and self._fires(node, node.value):
                self.functions.append(scope.name)

    def _read(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        scope, name = self.work.script.places[node].scope, key(target)
        if name is None or scope not in self.work.flow.stepping or not self._fires(node, value):
            return
        others = [item for item in self.work.script.bindings(scope, name) if item.statement is not node]
        if self.work.script.loop(node) is not None and all(map(self._is_no, others)):
            self.tests[self.work.objects.identity(scope, name)] = value

    def _fires(self, node: ast.stmt, value: ast.expr | None) -> bool:
        if value is None:
            return False
        read = self.work.names_of(self.work.script.places[node].scope, self.counters, value)
        return bool(read) and self.work.traits.trigger(value, read)

    @staticmethod
    def _is_no(binding: Binding) -> bool:
        return isinstance(binding.value, ast.Constant) and not binding.value.value

    def readers(self) -> list[ast.stmt]:
        """The `if`s behind a step that may ask by such a name, or call such a function."""
        words = [re.compile(word_pattern(who.key)) for who in self.tests]
        words += [re.compile(rf"{name}\s*\(") for name in self.functions]
        found = self.work.script.statements_with(*words) if words else []
        return [node for node in found if isinstance(node, ast.If) and self.work.in_iteration(node) is not None]

    def spelled_out(self, node: ast.If) -> ast.expr:
        """The test of an `if`, with what the names and the functions in it stand for in their place."""
        scope = self.work.script.places[node].scope
        names = self.work.names_of(scope, self.tests, node.test) if self.tests else []
        meant = {name: self.tests[self.work.objects.identity(scope, name)] for name in names}
        return self._written_out(node, node.test, meant)

    def _written_out(self, node: ast.stmt, value: ast.expr, meant: dict[str, ast.expr]) -> ast.expr:
        script, scope = self.work.script, self.work.script.places[node].scope
        calls = [item for item in walk(value) if isinstance(item, ast.Call)] if not meant else []
        if not meant and not any(script.function(scope, call) for call in calls):
            return value
        spelling = _Spelling(meant, script, scope)
        found: ast.expr = spelling.visit(deepcopy(value))
        return found


class _Spelling(ast.NodeTransformer):
    """Puts what names mean and what functions of the file return in their place; functions one deep."""

    def __init__(self, meant: dict[str, ast.expr], script: Script | None = None, scope: Scope | None = None) -> None:
        self.meant, self.script, self.scope = meant, script, scope

    def visit(self, node: ast.AST) -> Any:
        name = key(node)
        return self.meant[name] if name in self.meant else super().visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        function = self.script.function(self.scope, node) if self.script and self.scope else None
        value = _answer(function) if function is not None else None
        if function is None or value is None:
            return self.generic_visit(node)
        handed = {name: argument_of(function, node, name) for name in function.parameters}
        return _Spelling({name: item for name, item in handed.items() if item is not None}).visit(deepcopy(value))


def _answer(function: Scope) -> ast.expr | None:
    """What a function returns, where that is all that it does."""
    body = [node for node in function.node.body if not _is_text(node)]
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
