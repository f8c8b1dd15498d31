"""Tests that are asked by name: `is_due = global_step % N == 0`, and behind the step `if is_due: save()`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from ..loop.bindings import Binding
from ..loop.names import key, word_pattern
from ..loop.objects import Identity
from ..loop.tree import assigned
from ..work import Work


class Answers:
    """Names that hold the answer of a test on the single values of a counter."""

    def __init__(self, work: Work, counters: Iterable[Identity], nodes: Iterable[ast.stmt]) -> None:
        """Read them off the statements that mention a counter."""
        self.work, self.counters = work, list(counters)
        self.tests: dict[Identity, ast.expr] = {}
        for node in nodes:
            for target, value in assigned(node):
                self._read(node, target, value)

    def _read(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        scope, name = self.work.script.places[node].scope, key(target)
        if name is None or scope not in self.work.flow.stepping or not self._fires(node, value):
            return
        others = [item for item in self.work.script.bindings(scope, name) if item.statement is not node]
        if self.work.script.loop(node) is not None and all(map(self._is_no, others)):
            self.tests[self.work.objects.identity(scope, name)] = value

    def _fires(self, node: ast.stmt, value: ast.expr) -> bool:
        read = self.work.names_of(self.work.script.places[node].scope, self.counters, value)
        return bool(read) and self.work.traits.trigger(value, read)

    @staticmethod
    def _is_no(binding: Binding) -> bool:
        return isinstance(binding.value, ast.Constant) and not binding.value.value

    def readers(self) -> list[ast.stmt]:
        """The `if`s behind a step that ask by such a name."""
        words = [re.compile(word_pattern(who.key)) for who in self.tests]
        found = self.work.script.statements_with(*words) if words else []
        return [
            node
            for node in found
            if isinstance(node, ast.If) and self.work.in_iteration(node) is not None and self.names(node)
        ]

    def names(self, node: ast.If) -> list[str]:
        """The names in a test that hold such an answer."""
        return self.work.names_of(self.work.script.places[node].scope, self.tests, node.test)

    def spelled_out(self, node: ast.If) -> ast.expr:
        """The test of an `if`, with what the names stand for in their place."""
        names = self.names(node) if self.tests else []
        if not names:
            return node.test
        scope = self.work.script.places[node].scope
        meant = {name: self.tests[self.work.objects.identity(scope, name)] for name in names}
        found: ast.expr = _Spelling(meant).visit(deepcopy(node.test))
        return found


class _Spelling(ast.NodeTransformer):
    def __init__(self, meant: dict[str, ast.expr]) -> None:
        self.meant = meant

    def visit(self, node: ast.AST) -> Any:
        name = key(node)
        return self.meant[name] if name in self.meant else super().visit(node)
