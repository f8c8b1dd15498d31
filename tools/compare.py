"""Holds an edit against the syntax tree: what no edit touches must come out of a rewrite as it went in."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .source import Edit, Source

_ARMS = ("body", "orelse", "finalbody", "handlers", "cases")
_Holder = ast.stmt | ast.excepthandler | ast.match_case


@dataclass(frozen=True)
class _Entry:
    """A statement without the statements inside it, and the arms that it stands in, outermost first."""

    node: _Holder
    start: int
    end: int
    arms: tuple[tuple[int, str], ...]


def unaccounted(before: Source, after: Source, edits: Iterable[Edit]) -> list[str]:
    """Differences of the two trees that the edits do not explain; an empty list where all is well.

    Every statement of `before` must stand in `after` at the place the edits move it to, in the same arms and with the
    same content, unless an edit reaches into it; statements that are new must lie in the text of an edit. Whole lines
    that no edit touches have the same text on both sides: only statements that hold edits are parsed again.

    Raises: SourceError if the new text does not parse.
    """
    moves = _Moves(sorted(edits, key=lambda edit: (edit.start, edit.end)))
    if before.edited(moves.edits).text != after.text:
        return ["the text differs from what the edits give"]
    faults: list[str] = []
    for block in _touched(before, moves):
        faults += _compare(before, after, moves, block)
    return faults


def _touched(before: Source, moves: _Moves) -> list[list[ast.stmt]]:
    """Runs of statements, each in one list and on lines of its own, that hold all edits; as deep as one run does."""
    block, runs = before.tree.body, _runs(before, before.tree.body, moves)
    while len(runs) == 1 and len(runs[0]) == 1:
        node = runs[0][0]
        inner = [child for arm in ("body", "orelse") for child in getattr(node, arm, None) or () if _holds(child)]
        is_plain = not any(getattr(node, arm, None) for arm in ("orelse", "finalbody", "handlers", "cases"))
        ends_outside = any(edit.start >= before.span(node)[1] for edit in moves.edits)  # may belong to this list
        deeper = _runs(before, inner, moves) if is_plain and inner and not ends_outside else []
        if not deeper or not _holds_all(before, deeper, moves):
            break
        block, runs = inner, deeper
    return runs if block else []


def _runs(before: Source, block: list[ast.stmt], moves: _Moves) -> list[list[ast.stmt]]:
    runs: list[list[ast.stmt]] = []
    previous = -1
    first = moves.edits[0].start if moves.edits else len(before.text)
    for index, node in enumerate(block):
        if before.next_line(node.end_lineno or node.lineno) >= first and moves.touches(*_lines(before, node)):
            if runs and (previous == index - 1):
                runs[-1].append(node)
            else:
                runs.append([node])
            previous = index
    return runs


def _holds_all(before: Source, runs: list[list[ast.stmt]], moves: _Moves) -> bool:
    """Whether every edit lies in one of the runs, and each run begins and ends on lines of its own."""
    spans = [(_lines(before, run[0])[0], _lines(before, run[-1])[1]) for run in runs]
    for run in runs:
        if (
            before.indentation(run[0]).strip()
            or ";" in before.text[before.span(run[-1])[1] : _lines(before, run[-1])[1]]
        ):
            return False
    return all(any(start <= edit.start and edit.end <= end for start, end in spans) for edit in moves.edits)


def _lines(before: Source, node: ast.stmt) -> tuple[int, int]:
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    return before.line_starts[first - 1], before.next_line(node.end_lineno or node.lineno)


def _compare(before: Source, after: Source, moves: _Moves, block: list[ast.stmt]) -> list[str]:
    start, end = _lines(before, block[0])[0], _lines(before, block[-1])[1]
    shift = moves.moved_before(start)
    text = after.text[shift : moves.moved(end)]
    if before.indentation(block[0]):
        text = f"if 1:{before.newline}{text}"  # lets an indented list of statements stand alone
    shift -= len(text) - (moves.moved(end) - moves.moved_before(start))
    part = Source(text)
    body = part.tree.body
    if before.indentation(block[0]):
        body = body[0].body if len(body) == 1 and isinstance(body[0], ast.If) else []
    old = list(_entries(before, block))
    new = [entry for entry in _entries(part, body) if not moves.is_new(entry.start + shift)]
    faults = []
    if len(old) != len(new):
        faults.append(f"{len(old)} statements went in and {len(new)} came out")
    for was, now in zip(old, new, strict=False):
        place = f"line {bisect_right(before.line_starts, was.start)}: a {type(was.node).__name__}"
        arms = tuple((moves.moved(start), arm) for start, arm in was.arms)
        kept = tuple((start + shift, arm) for start, arm in now.arms if not moves.is_new(start + shift))
        if moves.moved(was.start) != now.start + shift or type(was.node) is not type(now.node):
            faults.append(f"{place} has moved or become a {type(now.node).__name__}")
        elif arms != kept:
            faults.append(f"{place} stands in another block")
        elif not _same(was, now, moves, shift):
            faults.append(f"{place} that no edit is meant to change has changed")
    return faults


def _same(was: _Entry, now: _Entry, moves: _Moves, shift: int) -> bool:
    """Whether a statement's content is the same, or changed by an edit that says more than white space.

    Content with the same text between the same ends has the same tree; where only white space went in, it is compared.
    """
    touching = moves.inside(was.start, was.end)
    if not touching:
        return moves.moved(was.end) == now.end + shift
    return any(edit.text.strip() or edit.end > edit.start for edit in touching) or _header(was.node) == _header(
        now.node
    )


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
        """Where the character at an offset stands afterwards: behind what is inserted there."""
        return offset + self._shifts[bisect_right(self._starts, offset)]

    def moved_before(self, offset: int) -> int:
        """Where what is inserted at an offset begins afterwards."""
        return offset + self._shifts[bisect_left(self._starts, offset)]

    def is_new(self, offset: int) -> bool:
        index = bisect_right(self._new, (offset, float("inf"))) - 1
        return index >= 0 and self._new[index][0] <= offset < self._new[index][1]

    def touches(self, start: int, end: int) -> bool:
        return any(start <= edit.end and edit.start <= end for edit in self.edits)

    def inside(self, start: int, end: int) -> list[Edit]:
        """The edits that reach into a statement, its end included and its start not."""
        return [edit for edit in self.edits if edit.start <= end and edit.end >= start
                and not (edit.end == start and edit.start == start)]  # fmt: skip


def _entries(source: Source, body: Sequence[ast.stmt]) -> Iterator[_Entry]:
    stack: list[tuple[_Holder, tuple[tuple[int, str], ...]]] = [(node, ()) for node in reversed(body)]
    while stack:
        node, arms = stack.pop()
        start, end = _span(source, node)
        inner = [(arm, child) for arm in _ARMS for child in getattr(node, arm, None) or () if _holds(child)]
        if inner and not isinstance(node, ast.match_case):
            end = min(end, _span(source, inner[0][1])[0])
        yield _Entry(node, start, end, arms)
        stack += [(child, (*arms, (start, arm))) for arm, child in reversed(inner)]


def _holds(node: object) -> bool:
    return isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case))


def _span(source: Source, node: _Holder) -> tuple[int, int]:
    if isinstance(node, ast.match_case):
        start = source.offset(node.pattern.lineno, node.pattern.col_offset)
        return start, start
    return source.span(node)


def _header(node: _Holder) -> str:
    """The node's content without the statements inside it; a lambda or a comprehension counts as content."""
    parts = []
    for name, value in ast.iter_fields(node):
        items = [item for item in value if not _holds(item)] if isinstance(value, list) else [value]
        parts += [f"{name}:{ast.dump(item) if isinstance(item, ast.AST) else repr(item)}" for item in items]
    return "|".join(parts)
