"""Values that repeated statements read: what a block assigns before it clears or counts must be assigned again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .bindings import bound_by
from .names import key
from .obstacles import Refusal
from .script import Script
from .tree import assigned, expressions, walk, within

_PLAIN = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.IfExp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_FUNCTIONS = ("len", "int", "float", "bool", "abs", "min", "max", "round", "sum")
_METHODS = ("size", "numel", "dim", "item")

Repeated = list[tuple[ast.stmt, list[str]]]
"""The statements of a block in order, each with the lines of it that are repeated."""


def derived(block: list[ast.stmt], counters: Iterable[str]) -> list[str]:
    """The counters, and what the statements of a block compute from them."""
    found = list(counters)
    for node in block:
        for target, value in assigned(node):
            name = key(target)
            if name is not None and name not in found and any(key(item) in found for item in walk(value)):
                found.append(name)
    return found


def with_values(found: Repeated, counters: Iterable[str]) -> tuple[list[ast.stmt], Refusal | None]:
    """The assignments of a block that must be repeated too, or why its lines cannot be."""
    again: list[ast.stmt] = []
    wanted: set[str] = set()
    user: ast.stmt | None = None
    for node, lines in reversed(found):
        if lines:
            reads, binds = _of_lines(lines)
            wanted, user = (wanted - binds) | reads, node
        elif given := _bound(node) & wanted:
            if user is not None and not _is_repeatable(node):
                return again, _refusal(user, min(given), node)
            again.append(node)
            wanted = (wanted - given) | _reads([node])
    wanted -= set(counters)  # what stands still is not late
    for node, lines in found:  # behind its reader: a skip leaves it older than it was
        if user is not None and not lines and node not in again and (late := _bound(node) & wanted):
            return again, _refusal(user, min(late), node)
    return again, None


def set_at_boundaries(script: Script, lines: list[str], block: ast.stmt, others: list[ast.stmt]) -> Refusal | None:
    """Why lines cannot be repeated that read what another block sets, which may run for applied updates only."""
    reads, _ = _of_lines(lines)
    for node in others if reads else []:
        given = reads.intersection(_binds(node))
        if given and any(
            isinstance(outer, ast.If) and "sync_gradients" in script.source.segment(outer.test)
            for outer in script.ancestors(node)
        ):
            return _refusal(block, min(given), node)
    return None


def _bound(node: ast.stmt) -> set[str]:
    """The keys that a statement and those inside it give a value."""
    return {name for inner in within([node]) for name in _binds(inner)}


def _of_lines(lines: list[str]) -> tuple[set[str], set[str]]:
    """The keys that repeated lines read from outside themselves, and those that they surely set."""
    try:
        tree = ast.parse("\n".join(line.replace("\0", "    ") for line in lines))
    except SyntaxError:  # the check of the rewritten file takes these back
        return set(), set()
    reads, sure = set[str](), set[str]()
    for node in tree.body:
        reads |= _reads([node]) - sure
        if not isinstance(node, ast.If):
            sure |= set(_binds(node))
    return reads, sure


def _reads(block: list[ast.stmt]) -> set[str]:
    """The keys that statements read, but for what their own loops hand out."""
    found, own = set[str](), set[str]()
    for node in within(block):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            own |= {name for name, _ in bound_by(node)}
        for item in expressions(node):
            if isinstance(getattr(item, "ctx", None), ast.Load) and (name := key(item)) is not None:
                found.add(name)
    return found - own


def _binds(node: ast.stmt) -> Iterator[str]:
    """The keys that a statement itself gives a value."""
    yield from (name for name, _ in bound_by(node))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((item.asname or item.name).partition(".")[0] for item in node.names)
    yield from (item.target.id for item in expressions(node) if isinstance(item, ast.NamedExpr))


def _is_repeatable(node: ast.stmt) -> bool:
    """Whether an assignment may be made twice."""
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_plain(node.value)


def is_plain(value: ast.expr) -> bool:
    """Whether an expression computes from what is there and does nothing else."""
    items = walk(value)
    return all(_is_plain_call(item) if isinstance(item, ast.Call) else isinstance(item, _PLAIN) for item in items)


def _is_plain_call(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in _FUNCTIONS
    return isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS and not call.keywords


def _refusal(user: ast.stmt, name: str, node: ast.stmt) -> Refusal:
    return Refusal(
        "nested-reset",
        f"line {user.lineno} must run for skipped updates too and needs `{name}`, which line {node.lineno} sets in a "
        f"way that cannot be repeated for them; set `{name}` before the block",
    )
