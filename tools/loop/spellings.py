"""Expressions that say the same in another way than the readers look for."""

from __future__ import annotations

import ast

from .names import key


def as_bool_op(node: ast.expr) -> ast.BoolOp | None:
    """`all([a, b])` and `any((a, b))` as what they mean; None for anything else."""
    operator = {"all": ast.And, "any": ast.Or}.get(key(node.func) or "") if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or operator is None or len(node.args) != 1 or node.keywords:
        return None
    values = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []
    is_written_out = bool(values) and not any(isinstance(item, ast.Starred) for item in values)
    return ast.BoolOp(operator(), values) if is_written_out else None


def as_attribute(node: ast.expr) -> ast.expr:
    """`getattr(accelerator, "sync_gradients", True)` as the attribute that it reads; anything else as it is."""
    if isinstance(node, ast.Call) and key(node.func) == "getattr" and len(node.args) in (2, 3):
        word = node.args[1]
        if isinstance(word, ast.Constant) and isinstance(word.value, str):
            return ast.Attribute(node.args[0], word.value, ast.Load())
    return node
