"""Actions at the end of the data, such as a checkpoint of every epoch: tied to no counter of updates."""

from __future__ import annotations

import ast

from ..loop.blocks import Block
from ..loop.names import called, key
from ..loop.obstacles import Refusal
from ..loop.scope import Scope
from ..loop.tree import operands, walk, within
from ..work import Work


def leave_end_of_data(work: Work, block: Block) -> bool:
    """Whether a block acts at the end of the data; it is left, or refused where it counts as well."""
    node, kind = block.node, block.role.value
    assert isinstance(node, ast.If)
    tests = [item for item in within(block.statements) if isinstance(item, ast.If)]
    inner = [item for item in tests if _asks_for_the_end(work, item) and _acts(work, item)]
    if not inner and not _asks_for_the_end(work, node):
        return False
    if inner or block.has_else or _is_choice(node.test) or any(map(work.traits.counts, block.statements)):
        line = (inner[0] if inner else node).lineno
        text = (
            f"line {line} asks for the end of the data, which comes whether the last update is applied or not; put "
            "what is done there and what counts updates in blocks of their own"
        )
        work.refuse(node, kind, Refusal("unclear-test", text))
    else:
        work.warn(node, kind, "boundary", "acts at the end of the data, whether the last update was applied or not")
    return True


def _acts(work: Work, node: ast.If) -> bool:
    """Whether a test inside a block does more than to count updates, or data that is counted on a skip as well."""
    nodes = [item for item in within(node.body) if not isinstance(item, ast.If)]
    is_kept = any(map(work.traits.must_run, nodes)) and not any(map(work.traits.logs_or_saves, nodes))
    return not is_kept and not work.traits.counts(node)


def _asks_for_the_end(work: Work, node: ast.If) -> bool:
    """Whether a part of a test compares the variable of a loop with the length of what it runs over."""
    loops = [item for item in work.script.ancestors(node) if isinstance(item, (ast.For, ast.AsyncFor))]
    targets = {key(item) for loop in loops for item in ast.walk(loop.target)} - {None}
    scope = work.script.places[node].scope
    for part in operands(node.test):
        held = work.script.bindings(scope, part.id) if isinstance(part, ast.Name) else []
        values = [value for value in (part, *(item.value for item in held)) if value is not None]
        if any(_is_last(work, scope, value, targets) for value in values):
            return True
    return False


def _is_choice(test: ast.expr) -> bool:
    """Whether a test also holds where the data does not end: `global_step % N == 0 or step == len(loader) - 1`."""
    return any(isinstance(item, ast.BoolOp) and isinstance(item.op, ast.Or) for item in walk(test))


def _is_last(work: Work, scope: Scope, part: ast.expr, targets: set[str | None]) -> bool:
    if (key(part) or "").endswith(".end_of_dataloader"):
        return True
    if not (isinstance(part, ast.Compare) and len(part.ops) == 1):
        return False
    place, bound = part.left, part.comparators[0]
    if not _reads(place, targets):
        place, bound = bound, place
    fitting = (ast.Eq, ast.GtE, ast.Gt) if place is part.left else (ast.Eq, ast.LtE, ast.Lt)
    return isinstance(part.ops[0], fitting) and _reads(place, targets) and _is_length(work, scope, bound)


def _reads(side: ast.expr, targets: set[str | None]) -> bool:
    return any(key(item) in targets for item in walk(side))


def _is_length(work: Work, scope: Scope, side: ast.expr) -> bool:
    """Whether a side of a comparison counts items, or reads the name of such a count: `num_batches = len(loader)`."""
    return any(_counts_items(item) or _holds_length(work, scope, item) for item in walk(side))


def _holds_length(work: Work, scope: Scope, item: ast.AST, depth: int = 3) -> bool:
    """Whether a name stands for a count of items, or for so many of them: what is divided by one is no such count."""
    name = key(item) if depth else None
    held = work.script.bindings(scope, name) if name is not None else []
    for binding in held:
        if binding.value is None or binding.position >= 0:
            return False
        value = _first_operand(binding.value)
        if isinstance(value, ast.Call) and not _counts_items(value) and len(value.args) == 1:
            value = _first_operand(value.args[0])  # `math.ceil(len(loader) / n)`
        if not (
            _counts_items(value) or _holds_length(work, work.script.places[binding.statement].scope, value, depth - 1)
        ):
            return False
    return bool(held)


def _first_operand(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.BinOp):
        value = value.left
    return value


def _counts_items(value: ast.AST) -> bool:
    """Whether a value is `len(...)`, or `sum(1 for _ in ...)`."""
    if not isinstance(value, ast.Call):
        return False
    only = value.args[0] if value.args else None
    is_sum = called(value) == "sum" and isinstance(only, ast.GeneratorExp) and isinstance(only.elt, ast.Constant)
    return called(value) == "len" or is_sum
