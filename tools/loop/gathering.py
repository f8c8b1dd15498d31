"""What statements do to sums and buffers: add to them, or set them back to nothing."""

from __future__ import annotations

import ast
import re

from . import names
from .names import key
from .tree import assigned, walk

_GATHER = ("append", "extend", "add", "update", "insert", "appendleft")
_CLEAR = ("clear", "zero_", "reset")
_EMPTY = re.compile(r"zeros|tensor|empty|dict|^list$|^set$|deque|Counter|Meter|Metric|Tracker|Accumulator|float|int")


def gathers(node: ast.stmt) -> list[str]:
    """Keys that a statement adds something to."""
    if isinstance(node, ast.AugAssign):
        return _with_owner(node.target)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        if node.value.func.attr in _GATHER:
            return _with_owner(node.value.func.value)
        return []
    return [
        name
        for target, value in assigned(node)
        if isinstance(value, (ast.BinOp, ast.IfExp, ast.Call))
        and (name := key(target) or container(target))
        and reads(value, name)
    ]


def container(target: ast.expr) -> str | None:
    """The key of what holds an item with a computed index."""
    return key(target.value) if isinstance(target, ast.Subscript) else None


def _with_owner(target: ast.expr) -> list[str]:
    """The key of what grows, and that of the container whose item it is."""
    owner = target.value if isinstance(target, ast.Subscript) else None
    return [name for item in (target, owner) if (name := key(item)) is not None]


def cleared(node: ast.stmt, gathered: set[str] | None) -> list[str]:
    """Those of the gathered keys (None: of any) that a statement sets back to nothing."""

    def is_wanted(name: str | None) -> bool:
        return name is not None and (gathered is None or name in gathered or names.root(name) in gathered)

    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        name = key(node.value.func.value)
        return [name] if node.value.func.attr in _CLEAR and name is not None and is_wanted(name) else []
    if isinstance(node, ast.AugAssign):
        name = key(node.target)
        is_itself = isinstance(node.op, ast.Sub) and key(node.value) == name
        is_zero = isinstance(node.op, ast.Mult) and isinstance(node.value, ast.Constant) and node.value.value == 0
        return [name] if name is not None and (is_itself or is_zero) and is_wanted(name) else []
    if isinstance(node, ast.Delete):
        found = [key(item.value) for item in node.targets if isinstance(item, ast.Subscript)]
        return [name for name in found if name is not None and is_wanted(name)]
    result = []
    for target, value in assigned(node):
        name = key(target) or container(target)
        if name is not None and is_wanted(name) and is_empty(value):
            result.append(name)
    return result


def is_empty(value: ast.expr) -> bool:
    """Whether an expression is what a sum or a buffer starts from."""
    if isinstance(value, (ast.Constant, ast.UnaryOp)):
        return isinstance(getattr(value, "operand", value), ast.Constant)
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return all(is_empty(item) for item in value.elts)
    if isinstance(value, ast.Dict):
        return all(is_empty(item) for item in value.values)
    if isinstance(value, ast.DictComp):
        return is_empty(value.value)
    if isinstance(value, ast.ListComp):
        return is_empty(value.elt)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return is_empty(value.left)
    return isinstance(value, ast.Call) and bool(_EMPTY.search(names.last(names.called(value))))


def reads(value: ast.expr, name: str) -> bool:
    if name.isidentifier():
        return any(type(item) is ast.Name and item.id == name for item in walk(value))
    return any(key(item) == name for item in walk(value))
