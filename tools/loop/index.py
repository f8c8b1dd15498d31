"""Where each statement of a file stands, what each scope binds, and which classes inherit from which."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from ..source import Source
from .bindings import Binding, bound_by
from .names import key, root
from .scope import Place, Scope
from .search import Search, has_line
from .tree import DEFINITIONS, SIMPLE, inner_blocks

Loop = ast.For | ast.AsyncFor | ast.While
_BINDING = (ast.Assign, ast.AugAssign, ast.AnnAssign)
_SIGNS = tuple(  # each begins with letters, which the search is fast for
    re.compile(word)
    for word in (r"step\s*\(", "sync_gradients", "step_was_skipped", r"prepare\w*\s*\(", r"Accelerator\s*\(",
                 "zero_grad", r"backward\s*\(")
)  # fmt: skip


class Index:
    """What one source file holds. Functions that show no sign of training are read when somebody asks for them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.places: dict[ast.stmt, Place] = {}
        self.scopes: list[Scope] = []
        self._unread: dict[Scope, None] = {}
        self._ordered: list[ast.stmt] = []
        self._lines: list[int] = []
        self._search = Search(source)
        self._matches: dict[tuple[re.Pattern[str], ...], list[ast.stmt]] = {}
        self._lineages: dict[Scope, tuple[Scope, ...]] = {}
        self.signs = sorted({line for pattern in _SIGNS for line in self.lines_with(pattern)})
        self._function_names: set[str] = set()
        self._has_walrus = ":=" in source.text
        self.module = Scope(source.tree)
        self._enter(self.module)

    def release(self) -> None:
        """Cut the links down the scopes, for no cycle to hold the tree: it is freed with its last reader."""
        for scope in self.scopes:
            scope.functions.clear()
            scope.classes.clear()

    def lines_with(self, pattern: re.Pattern[str]) -> list[int]:
        """The lines (from 1) that a pattern matches on, in order."""
        return self._search.lines(pattern)

    def _enter(self, scope: Scope) -> None:
        self.scopes.append(scope)
        for name in scope.parameters:
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                scope.bind(name, Binding(scope.node, None, is_parameter=True))
        node = scope.node
        if scope.is_function and not isinstance(node, ast.Module):
            if scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef):
                node = scope.parent.node  # one method says what the others' attributes are
            if not self.shows_signs(node):
                self._unread[scope] = None
                return
        elif isinstance(node, ast.ClassDef) and node.bases and self.shows_signs(node):
            for method in [item for base in self.lineage(scope)[1:] for item in base.functions.values()]:
                self.read(method)  # what the class inherits
        self._index(scope.node.body, scope, None, "body")

    def shows_signs(self, node: ast.stmt) -> bool:
        """Whether a statement's lines hold a word of training: a step, a flag, a backward, something prepared."""
        return has_line(self.signs, node.lineno, node.end_lineno or 0)

    def read(self, scope: Scope) -> Scope:
        """The scope, with its statements in the index."""
        if scope in self._unread:
            del self._unread[scope]
            self._index(scope.node.body, scope, None, "body")
            self._ordered = []
            self._matches = {}
        return scope

    def _index(self, block: list[ast.stmt], scope: Scope, parent: ast.stmt | None, arm: str) -> None:
        for index, node in enumerate(block):
            self.places[node] = Place(block, index, parent, arm, scope)
            kind = type(node)
            if kind in SIMPLE:
                if isinstance(node, (ast.Nonlocal, ast.Global)):
                    scope.outer_names.update(node.names)
                elif kind in _BINDING:
                    self._bind(node, scope)
            elif kind in DEFINITIONS and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = Scope(node, scope)
                (scope.classes if isinstance(node, ast.ClassDef) else scope.functions)[node.name] = inner
                self._function_names.add(node.name)
                self._enter(inner)
            else:
                if kind not in (ast.If, ast.While) or self._has_walrus:
                    self._bind(node, scope)
                for name, inner_block in inner_blocks(node):
                    self._index(inner_block, scope, node, name)

    def _bind(self, node: ast.stmt, scope: Scope) -> None:
        if type(node) is ast.Assign and len(node.targets) == 1 and isinstance(target := node.targets[0], ast.Name):
            scope.bind(target.id, Binding(node, node.value))  # what most statements are
            return
        for name, binding in bound_by(node):
            first = root(name)
            is_attribute = first != name and first in ("self", "cls")
            if isinstance(node, ast.AugAssign) and not is_attribute and name not in scope.bindings:
                continue  # counts up what an enclosing scope binds
            owner = scope.owner if is_attribute else None
            (self.keeper(owner, name) if owner is not None else scope).bind(name, binding)

    def home(self, scope: Scope, name: str) -> Scope:
        """The scope whose bindings a key refers to when it is read in `scope`."""
        first = root(name)
        if first != name and first in ("self", "cls") and (owner := scope.owner) is not None:
            return self.keeper(owner, name)
        found: Scope | None = scope
        while found is not None:
            if (found is scope or not isinstance(found.node, ast.ClassDef)) and (
                name in found.bindings or first in found.bindings
            ):
                return found
            found = found.parent
        return scope

    def keeper(self, owner: Scope, name: str) -> Scope:
        """The class that gives an attribute its value: the first of those that one inherits from, or itself."""
        lineage = self.lineage(owner)
        return next((found for found in reversed(lineage[1:]) if name in found.bindings), owner)

    def lineage(self, owner: Scope) -> tuple[Scope, ...]:
        """A class and those of this file that it inherits from, nearest first."""
        if owner not in self._lineages:
            self._lineages[owner] = tuple(dict.fromkeys(self._ancestry(owner, 5)))
        return self._lineages[owner]

    def _ancestry(self, owner: Scope, depth: int) -> Iterator[Scope]:
        yield owner
        for base in getattr(owner.node, "bases", ()) if depth > 1 else ():
            found = self.module.classes.get(key(base) or "")
            if found is not None and found is not owner:
                yield from self._ancestry(found, depth - 1)

    def bindings(self, scope: Scope, name: str) -> list[Binding]:
        """Every place that gives a key its value; empty where the file has none."""
        return self.home(scope, name).bindings.get(name, [])

    def statements_with(self, *patterns: re.Pattern[str]) -> list[ast.stmt]:
        """The innermost statement round each match, each once, in the order of the text. Faster than `a|b` for two."""
        if patterns not in self._matches:
            starts = self.source.line_starts
            found: dict[ast.stmt, None] = {}
            for offset in sorted(offset for pattern in patterns for offset in self._search.offsets(pattern)):
                node = self.statement_at(bisect_right(starts, offset), offset)
                if node is not None:
                    found[node] = None
            self._matches[patterns] = list(found)
        return self._matches[patterns]

    def statement_at(self, line: int, offset: int) -> ast.stmt | None:
        """The innermost statement that covers an offset."""
        if not self._ordered:
            self._ordered = sorted(self.places, key=attrgetter("lineno"))
            self._lines = [node.lineno for node in self._ordered]
        index = bisect_right(self._lines, line) - 1
        while index > 0 and self._lines[index] == line and self.source.span(self._ordered[index])[0] > offset:
            index -= 1
        node = self._ordered[index] if index >= 0 else None
        while node is not None and not self._covers(node, line, offset):
            place = self.places[node]
            outer = place.parent or place.scope.node
            node = None if isinstance(outer, ast.Module) else outer
        return node

    def _covers(self, node: ast.stmt, line: int, offset: int) -> bool:
        if (node.end_lineno or 0) < line:
            return False
        start, end = self.source.span(node)
        return start <= offset < end

    def text_of(self, scope: Scope) -> str:
        """The text of a function or a class; all of it for the module."""
        return self.source.text if isinstance(scope.node, ast.Module) else self.source.segment(scope.node)

    def _read_lines(self, lines: list[int]) -> None:
        """Read the functions that hold some of the lines, and the functions inside those."""
        known = 0
        while known != len(self.scopes):
            known = len(self.scopes)
            for scope in list(self._unread):
                first, last = scope.node.body[0].lineno, scope.node.body[-1].end_lineno or 0
                if has_line(lines, first, last):
                    self.read(scope)

    def loop(self, node: ast.stmt) -> Loop | None:
        """The innermost loop round a statement, in its own function."""
        parent = self.places[node].parent
        while parent is not None and not isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
            parent = self.places[parent].parent
        return parent

    def has_rest(self, node: ast.stmt) -> bool:
        """Whether anything follows a statement in its iteration, or in its function where no loop is round it."""
        for inner in (node, *self.ancestors(node)):
            if isinstance(inner, (ast.For, ast.AsyncFor, ast.While)) and inner is not node:
                return False
            if self.places[inner].following:
                return True
        return False

    def ancestors(self, node: ast.stmt) -> Iterator[ast.stmt]:
        """The statements round a statement in its own function, innermost first."""
        parent = self.places[node].parent
        while parent is not None:
            yield parent
            parent = self.places[parent].parent
