"""Holds an edit against the syntax tree: what no edit touches must come out of a rewrite as it went in."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .source import Edit, Source

_ARMS = ("body", "orelse", "finalbody", "handlers", "cases")
_Holder = ast.stmt | ast.excepthandler | ast.match_case


@dataclass(frozen=True)
class _Entry:
    """A statement without the statements inside it, and the arms that it stands in, outermost first."""

    start: int
    header_end: int
    kind: str
    header: str
    arms: tuple[tuple[int, str], ...]


def unaccounted(before: Source, after: Source, edits: Iterable[Edit]) -> list[str]:
    """Differences of the two trees that the edits do not explain; an empty list where all is well.

    Every statement of `before` must stand in `after` at the place the edits move it to, in the same arms and with the
    same content, unless an edit reaches into it; statements that are new must lie in the text of an edit.
    """
    moves = _Moves(sorted(edits, key=lambda edit: (edit.start, edit.end)))
    if before.edited(moves.edits).text != after.text:
        return ["the text differs from what the edits give"]
    old = list(_entries(before))
    new = [entry for entry in _entries(after) if not moves.is_new(entry.start)]
    faults = []
    if len(old) != len(new):
        faults.append(f"{len(old)} statements went in and {len(new)} came out")
    for was, now in zip(old, new, strict=False):
        place = f"line {bisect_right(before.line_starts, was.start)}"
        arms = tuple((moves.moved(start), arm) for start, arm in was.arms)
        if moves.moved(was.start) != now.start or was.kind != now.kind:
            faults.append(f"{place}: a {was.kind} became a {now.kind} or moved")
        elif arms != tuple(arm for arm in now.arms if not moves.is_new(arm[0])):
            faults.append(f"{place}: a {was.kind} stands in another block")
        elif was.header != now.header and not moves.touches(was.start, was.header_end):
            faults.append(f"{place}: a {was.kind} that no edit touches has changed")
    return faults


class _Moves:
    """Where offsets go under a set of edits."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = edits
        self._starts = [edit.start for edit in edits]
        self._shifts = [0]
        self._new: list[tuple[int, int]] = []
        for edit in edits:
            start = edit.start + self._shifts[-1]
            self._new.append((start, start + len(edit.text)))
            self._shifts.append(self._shifts[-1] + len(edit.text) - (edit.end - edit.start))

    def moved(self, offset: int) -> int:
        return offset + self._shifts[bisect_right(self._starts, offset)]

    def is_new(self, offset: int) -> bool:
        index = bisect_right(self._new, (offset, float("inf"))) - 1
        return index >= 0 and self._new[index][0] <= offset < self._new[index][1]

    def touches(self, start: int, end: int) -> bool:
        return any(edit.start <= end and edit.end >= start for edit in self.edits)


def _entries(source: Source) -> Iterator[_Entry]:
    stack: list[tuple[_Holder, tuple[tuple[int, str], ...]]] = [(node, ()) for node in reversed(source.tree.body)]
    while stack:
        node, arms = stack.pop()
        start, end = _span(source, node)
        inner = [(arm, child) for arm in _ARMS for child in getattr(node, arm, None) or () if _holds(child)]
        if inner and not isinstance(node, ast.match_case):
            end = min(end, _span(source, inner[0][1])[0])
        yield _Entry(start, end, type(node).__name__, _header(node), arms)
        stack += [(child, (*arms, (start, arm))) for arm, child in reversed(inner)]


def _holds(node: object) -> bool:
    return isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case))


def _span(source: Source, node: _Holder) -> tuple[int, int]:
    if isinstance(node, ast.match_case):
        pattern = node.pattern
        return source.offset(pattern.lineno, pattern.col_offset), source.offset(pattern.lineno, pattern.col_offset)
    return source.span(node)


def _header(node: _Holder) -> str:
    """The node's content without the statements inside it; a lambda or a comprehension counts as content."""
    parts = []
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            parts += [f"{name}:{ast.dump(item)}" if isinstance(item, ast.AST) else repr(item)
                      for item in value if not _holds(item)]  # fmt: skip
        else:
            parts.append(f"{name}:{ast.dump(value) if isinstance(value, ast.AST) else value!r}")
    return "|".join(parts)
