"""Expressions that say the same in another way than the readers look for."""

from __future__ import annotations

import ast

from .names import key

_OPERATORS: dict[str | None, type[ast.boolop]] = {"all": ast.And, "any": ast.Or}


def as_bool_op(node: ast.expr) -> ast.BoolOp | None:
    """`all([a, b])` and `any((a, b))` as what they mean; None for anything else."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    operator, items = _OPERATORS.get(key(node.func)), node.args[0]
    values = items.elts if isinstance(items, (ast.List, ast.Tuple)) else []
    if operator is None or not values or any(isinstance(item, ast.Starred) for item in values):
        return None
    return ast.BoolOp(operator(), values)


def as_attribute(node: ast.expr) -> ast.expr:
    """`getattr(accelerator, "sync_gradients", True)` as the attribute that it reads; anything else as it is."""
    if isinstance(node, ast.Call) and key(node.func) == "getattr" and len(node.args) in (2, 3):
        word = node.args[1]
        if isinstance(word, ast.Constant) and isinstance(word.value, str):
            return ast.Attribute(node.args[0], word.value, ast.Load())
    return node
