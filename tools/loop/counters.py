"""Statements that count: what they add to which key, and by how much."""

from __future__ import annotations

import ast

from .calls import may_reach
from .names import class_of, is_step_count, key, last, suggests_counter
from .scope import Scope, argument_of
from .script import Script

_NUMBERS = ("tensor", "ones", "LongTensor", "IntTensor", "int", "int32", "int64")  # calls that make a number of one
_GROWING = {"add_", "update", "replace", "_replace"}
_FIXED = ("num_processes", "world_size")


def growth_of(node: ast.stmt) -> tuple[str, ast.expr] | None:
    """The key that a statement adds to, and what it adds; None for any other statement."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        name = key(node.target)
        return (name, node.value) if name else None
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        return grown(key(node.targets[0]), node.value)
    call = getattr(node, "value", None)
    if isinstance(call, ast.Call) and isinstance(call.func, (ast.Attribute, ast.Name)):
        return _grown_by_call(node, call)
    return None


def _grown_by_call(node: ast.stmt, call: ast.Call) -> tuple[str, ast.expr] | None:
    """What `count.add_(1)`, `state = replace(state, step=state.step + 1)` and `state.update(step=...)` add to."""
    word = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if word not in _GROWING:
        return None
    owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if isinstance(node, ast.Expr) and word == "add_" and len(call.args) == 1 and owner is not None:
        return owner, call.args[0]
    target = key(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if isinstance(node, ast.Expr) and word == "update" and not call.args and owner is not None:
        pattern = f"{owner}[%r]"
    elif word in ("replace", "_replace") and target is not None and target in (owner, *map(key, call.args[:1])):
        pattern = f"{target}.%s"
    else:
        return None
    for item in call.keywords:
        found = grown(pattern % item.arg, item.value) if item.arg is not None else None
        if found is not None:
            return found if len(call.keywords) == 1 else (found[0], call)  # sets something else as well
    return None


def grown(name: str | None, value: ast.expr) -> tuple[str, ast.expr] | None:
    """The key and what is added to it where it is given `name + value` or `value + name`."""
    if name is not None and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        for old, by in ((value.left, value.right), (value.right, value.left)):
            if key(old) == name:
                return name, by
    return None


def counter_of(node: ast.stmt) -> str | None:
    """The key that a statement counts up by a fixed amount, or None."""
    found = growth_of(node)
    return found[0] if found is not None and is_fixed(*found) else None


def drawn(script: Script, node: ast.stmt) -> str | None:
    """The key that a statement gives the next number of an `itertools.count`, or None."""
    if type(node) is not ast.Assign or type(node.value) is not ast.Call or len(node.targets) != 1:
        return None
    name = key(node.targets[0])
    is_count = name is not None and suggests_counter(name) and draws(script, script.places[node].scope, node.value)
    return name if is_count else None


def draws(script: Script, scope: Scope, call: ast.Call) -> str | None:
    """The key of the `itertools.count` that a call takes the next number of, or None."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "next" and len(call.args) == 1):
        return None
    name = key(call.args[0])
    held = script.bindings(scope, name) if name is not None else []
    is_count = bool(held) and all(class_of(item.value) == "count" and item.position < 0 for item in held)
    return name if is_count else None


def is_fixed(name: str, amount: ast.expr) -> bool:
    """Whether what is added to a key is a whole number; for a count of steps by its name, also what holds one."""
    if isinstance(amount, ast.Constant):
        return isinstance(amount.value, int) and not isinstance(amount.value, bool)
    if not isinstance(amount, (ast.Call, ast.Name, ast.Attribute)) or not is_step_count(name):
        return False
    if isinstance(amount, ast.Call):
        is_number = len(amount.args) == 1 and isinstance(amount.args[0], ast.Constant)
        return is_number and class_of(amount) in _NUMBERS
    return last(key(amount) or "") in _FIXED


def returned(script: Script, node: ast.stmt) -> str | None:
    """The key that a statement gives the next number of by a function of this file: `step = advance(step)`."""
    found = may_reach(script, node) if type(node) is ast.Assign and len(node.targets) == 1 else []
    if len(found) != 1 or not isinstance(node, ast.Assign):
        return None
    called = found[0]
    last_one = called.function.node.body[-1]
    value = last_one.value if isinstance(last_one, ast.Return) else None
    for parameter in called.function.parameters:
        growth = grown(parameter, value) if value is not None else None
        if growth is not None and is_fixed(*growth):
            handed = key(argument_of(called.function, called.call, parameter))
            return handed if handed is not None and handed == key(node.targets[0]) else None
    return None
