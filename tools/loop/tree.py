"""Walks over statements and expressions that stop where another function or class begins."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_BODIES = ("body", "orelse", "finalbody")
SIMPLE = {
    ast.Expr,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Return,
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.Raise,
    ast.Delete,
    ast.Assert,
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
}
_LEAVES = {ast.Name, ast.Constant}
_CLOSED = {*_LEAVES, ast.Lambda}
DEFINITIONS = {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef}


def inner_blocks(node: ast.stmt) -> list[tuple[str, list[ast.stmt]]]:
    """The statement lists inside a statement, with the names of their arms; functions and classes keep theirs."""
    kind = type(node)
    if kind in SIMPLE or kind in DEFINITIONS:
        return []
    blocks = [(arm, block) for arm in _BODIES if (block := getattr(node, arm, None))]
    if kind in (ast.If, ast.With, ast.For, ast.While):
        return blocks
    blocks[1:1] = [("handlers", handler.body) for handler in getattr(node, "handlers", ())]  # behind the body
    return blocks + [("cases", case.body) for case in getattr(node, "cases", ())]


def within(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a list and of the lists inside it, in the order of the text."""
    stack = block[::-1]
    while stack:
        node = stack.pop()
        yield node
        if type(node) not in SIMPLE:
            for _, inner in reversed(inner_blocks(node)):
                stack += inner[::-1]


def is_loop(node: ast.stmt) -> bool:
    return isinstance(node, (ast.For, ast.AsyncFor, ast.While))


def headers(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement that do not belong to a statement inside it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for _, value in ast.iter_fields(node):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.expr):
                yield item
            elif isinstance(item, ast.withitem):
                yield item.context_expr


def parts(node: ast.AST) -> list[ast.AST]:
    """The nodes that an expression is made of, without what only says how it is used (`ast.Load` and its kin)."""
    kind = type(node)
    if kind is ast.Attribute or kind is ast.keyword:  # these and calls are what most nodes are
        return [node.value]  # type: ignore[attr-defined]
    if kind is ast.Call:
        return [node.func, *node.args, *node.keywords]  # type: ignore[attr-defined]
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and name != "ctx":
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """An expression and every node inside it, in the order of the text."""
    stack = [node]
    while stack:
        item = stack.pop()
        yield item
        if type(item) not in _LEAVES:
            stack += parts(item)[::-1]


def expressions(node: ast.stmt) -> list[ast.AST]:
    """Every expression node of a statement itself, outside lambdas. Kept with the node, which many rules ask."""
    found: list[ast.AST] | None = getattr(node, "_expressions", None)
    if found is None:
        found = []
        stack: list[ast.AST] = [*headers(node)]
        stack.reverse()
        while stack:
            item = stack.pop()
            found.append(item)
            if type(item) not in _CLOSED:
                stack += parts(item)[::-1]
        node._expressions = found  # type: ignore[attr-defined]
    return found


def call_of(node: ast.stmt) -> ast.Call | None:
    """The one call that a statement consists of, or whose result it assigns."""
    value = getattr(node, "value", None) if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign)) else None
    if isinstance(value, ast.Await):
        value = value.value
    return value if isinstance(value, ast.Call) else None


def calls_of(node: ast.stmt) -> list[ast.Call]:
    """The calls that a statement itself makes. Kept with the node as well."""
    found: list[ast.Call] | None = getattr(node, "_calls", None)
    if found is None:
        found = [item for item in expressions(node) if type(item) is ast.Call]
        node._calls = found  # type: ignore[attr-defined]
    return found


def of_variable(call: ast.Call) -> tuple[str, str]:
    """The variable whose method a call runs, and the method: also by `getattr` with a name that is written out."""
    function, word = call.func, "__call__"
    target = function
    if isinstance(function, ast.Attribute):
        target, word = function.value, function.attr
    elif isinstance(function, ast.Call) and getattr(function.func, "id", "") == "getattr" and len(function.args) > 1:
        name = function.args[1]
        target, word = function.args[0], str(name.value) if isinstance(name, ast.Constant) else ""
    return (target.id, word) if isinstance(target, ast.Name) else ("", "")


def assigned(node: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """Targets with their values, element by element where both sides of an assignment are written out."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        if (
            isinstance(target, (ast.Tuple, ast.List))
            and isinstance(node.value, (ast.Tuple, ast.List))
            and len(target.elts) == len(node.value.elts)
        ):
            pairs += zip(target.elts, node.value.elts, strict=True)
        else:
            pairs.append((target, node.value))
    return pairs


def by_chance(node: ast.stmt) -> set[int]:
    """Ids of the calls that the expressions of a statement make or not: behind `and` or `or`, in an arm of `if else`.

    What a boundary flag decides about is no chance: between boundaries a step does nothing.
    """
    found: set[int] = set()
    for item in expressions(node):
        if isinstance(item, ast.BoolOp):
            tests, arms = item.values[:1], item.values[1:]
        elif isinstance(item, ast.IfExp):
            tests, arms = [item.test], [item.body, item.orelse]
        else:
            continue
        if not any("sync_gradients" in ast.dump(test) for test in tests):
            found |= {id(inner) for arm in arms for inner in ast.walk(arm) if isinstance(inner, ast.Call)}
    return found


def operands(test: ast.expr) -> list[ast.expr]:
    """What `and` and `or` join in a test, to the innermost; the test itself where they join nothing."""
    return [part for value in test.values for part in operands(value)] if isinstance(test, ast.BoolOp) else [test]
