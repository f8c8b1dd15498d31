"""What a block that asks the flag already clears, and a skipped update leaves standing.

A block may have been gated by hand, or a patch may have been merged into a fork that calls its sums by other names:
the arm for skipped updates then clears what nobody adds to, or is not there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..loop import names
from ..loop.blocks import Block
from ..loop.calls import all_reached
from ..loop.gathering import cleared, gathers, reads
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import assigned, within
from ..work import Work


def missing_reset(work: Work, block: Block) -> Refusal | None:
    """Why a block is not right although it asks the flag: window state, or gradients, that a skipped update keeps."""
    window = work.windows.read(block.statements, block.node)
    state = dict.fromkeys([*window.cleared, *window.kept, *window.hidden])
    zeroes = any(map(_zeroes, within(block.statements)))
    if not state and not zeroes:
        return None
    loop = work.script.loop(block.node)
    gated, on_skips = work.gated(), _on_skips(work)
    free = [node for node in within(loop.body if loop is not None else block.scope.node.body) if id(node) not in gated]
    growing = [node for node in free if id(node) not in on_skips]
    standing = [
        name
        for name in state
        if _any(work, growing, name, lambda node, name: name in gathers(node)) and not _any(work, free, name, _sets)
    ]
    if standing:
        what = ", ".join(f"`{name}`" for name in standing)
        return Refusal(
            "reset-missing",
            f"clears {what} for applied updates only: what a skipped update added goes into the next value. Clear it "
            "at skipped boundaries too, in an arm `elif ...sync_gradients:` of this test",
        )
    if zeroes and not any(map(_zeroes, _running(work, free))):
        return Refusal(
            "reset-missing",
            "clears the gradients for applied updates only: those of a skipped update stay, infinite as they are, and "
            "every later update is skipped too. Clear them behind each step",
        )
    return None


def _on_skips(work: Work) -> set[int]:
    """Ids of the statements that run for skipped updates and never for applied ones."""
    arms: list[ast.stmt] = []
    for node, test in work.flow.tests.items():
        if not isinstance(node, ast.If):
            continue
        if test.find("skip", True) and not (test.is_any and len(test.clauses) > 1):
            arms += node.body
        if test.needs_applied:
            arms += node.orelse
    return {id(inner) for inner in within(arms)}


def _running(work: Work, nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, and those of the functions that they call."""
    yield from nodes
    for node in nodes:
        for called in all_reached(work.script, node):
            yield from called.statements


def _any(work: Work, nodes: list[ast.stmt], name: str, holds: Callable[[ast.stmt, str], bool]) -> bool:
    """Whether something holds for a name and one of the statements, or one in a function that they call."""
    return any(holds(node, name) for node in nodes) or any(
        holds(inner, there)
        for node in nodes
        for called in all_reached(work.script, node)
        if (there := called.inside(name)) is not None
        for inner in called.statements
    )


def _sets(node: ast.stmt, name: str) -> bool:
    """Whether a statement clears a name, or gives it or what holds it a value that does not go on from its own."""
    wanted = {name, names.root(name)}
    fresh = any(_whole(target) in wanted and not reads(value, name) for target, value in assigned(node))
    return fresh or bool(cleared(node, {name}))


def _whole(target: ast.expr) -> str | None:
    """The key that a target gives a value, or whose items it gives one, all of them: `name[:]`."""
    whole = isinstance(target, ast.Subscript) and ast.dump(target.slice) == "Slice()"
    return key(target.value if whole and isinstance(target, ast.Subscript) else target)


def _zeroes(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
