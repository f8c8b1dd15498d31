"""What statements give a value to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .names import key


@dataclass(slots=True)
class Binding:
    """One place that gives a key its value. `position` is the index in an unpacked value, -1 where it is whole."""

    statement: ast.stmt
    value: ast.expr | None
    position: int = -1
    is_parameter: bool = False


def bound_by(node: ast.stmt) -> Iterator[tuple[str, Binding]]:
    """The keys that a statement itself gives a value, each with where it comes from."""
    pairs: list[tuple[ast.expr, ast.expr | None, bool]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value, True) for target in node.targets]
    elif isinstance(node, ast.AnnAssign):
        pairs = [(node.target, node.value, True)]
    elif isinstance(node, ast.AugAssign):
        pairs = [(node.target, None, True)]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        pairs = [(node.target, node.iter, False)]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        pairs = [(item.optional_vars, item.context_expr, True) for item in node.items if item.optional_vars]
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        pairs = [(item.target, item.value, True) for item in ast.walk(node.test) if isinstance(item, ast.NamedExpr)]
    for target, value, is_whole in pairs:
        if isinstance(target, ast.Name):
            yield target.id, Binding(node, value, -1 if is_whole else 0)
        else:
            yield from _targets(node, target, value, -1 if is_whole else 0)


def _targets(node: ast.stmt, target: ast.expr, value: ast.expr | None, position: int) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) and position < 0 else None
        starred = any(isinstance(item, ast.Starred) for item in (*target.elts, *(values or ())))
        for index, item in enumerate(target.elts):
            if values is not None and len(values) == len(target.elts) and not starred:
                yield from _targets(node, item, values[index], -1)
            else:
                yield from _targets(node, item, value, index)
        return
    name = key(target.value if isinstance(target, ast.Starred) else target)
    if name is not None:
        yield name, Binding(node, value, position)
