"""Actions at the end of the data, such as a checkpoint of every epoch: tied to no counter of updates."""

from __future__ import annotations

import ast

from ..loop.blocks import Block
from ..loop.names import called, key
from ..loop.obstacles import Refusal
from ..loop.tree import walk, within
from ..work import Work


def leave_end_of_data(work: Work, block: Block) -> bool:
    """Whether a block acts at the end of the data; it is left, or refused where it counts as well."""
    node, kind = block.node, block.role.value
    assert isinstance(node, ast.If)
    tests = [item for item in within(block.statements) if isinstance(item, ast.If)]
    inner = [item for item in tests if _asks_for_the_end(work, item) and _acts(work, item)]
    if not inner and not _asks_for_the_end(work, node):
        return False
    if inner or block.has_else or any(map(work.traits.counts, block.statements)):
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
    test = node.test
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    scope = work.script.places[node].scope
    for part in parts:
        held = work.script.bindings(scope, part.id) if isinstance(part, ast.Name) else []
        if any(_is_last(value, targets) for value in (part, *(item.value for item in held)) if value is not None):
            return True
    return False


def _is_last(part: ast.expr, targets: set[str | None]) -> bool:
    if (key(part) or "").endswith(".end_of_dataloader"):
        return True
    if not (isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], (ast.Eq, ast.GtE))):
        return False
    sides = [part.left, part.comparators[0]]
    reads = [any(key(item) in targets for item in walk(side)) for side in sides]
    counts = [any(isinstance(item, ast.Call) and called(item) == "len" for item in walk(side)) for side in sides]
    return (reads[0] and counts[1]) or (reads[1] and counts[0])
