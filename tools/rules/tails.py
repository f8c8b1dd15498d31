"""How far a gate over unguarded bookkeeping may reach: which statements behind a step need not run after a skip."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ..loop.blocks import Block
from ..loop.gathering import gathers
from ..loop.names import key
from ..loop.tree import calls_of, expressions, operands, within
from ..work import Work
from .logs import is_free_to_wait, is_log


@dataclass
class Tail:
    """Runs of statements to gate."""

    runs: list[list[ast.stmt]]
    is_rest: bool  # one run that goes to the end of the loop's body
    is_test_of_step: bool = False  # one test, and the step is made only where it holds

    @property
    def statements(self) -> list[ast.stmt]:
        return [node for run in self.runs for node in run]


def read_tail(work: Work, block: Block) -> Tail:
    """The statements that the gate of an unguarded block takes in."""
    place = work.script.places[block.statements[0]]
    rest = [block.statements[0], *place.following]
    counters = work.traits.counters_in(block.statements)
    reader = _Reader(work, counters, rest)
    is_body = isinstance(place.parent, (ast.For, ast.AsyncFor, ast.While)) and place.arm == "body"
    if is_body and len(rest) > 1 and all(reader.is_gateable(node) or reader.is_neutral(node) for node in rest):
        return Tail([rest], True)
    runs: list[list[ast.stmt]] = []
    current: list[ast.stmt] = []
    for node in [*rest, None]:
        if node is not None and (node in block.statements or reader.is_gateable(node)):
            current.append(node)
            continue
        if any(item in block.statements for item in current):
            runs.append(current)
        current = []
    return Tail(runs, False)


def is_gateable(work: Work, block: Block) -> bool:
    """Whether the step before an unguarded block is one that an accelerator of the file answers for."""
    return work.flags.reaches_accelerator(block.scope) or _is_prepared(work, block)


def _is_prepared(work: Work, block: Block) -> bool:
    """Whether the step is that of an optimizer which an accelerator of the file prepared, in reach or not."""
    sites = [site for path in block.state.paths for site in path.steps]
    made = [item.accelerator for site in sites for item in work.objects.preparations_of(site.who)]
    return any(work.objects.kind(who.scope, who.key) == "accelerator" for who in made)


def counts_batches(work: Work, block: Block) -> bool:
    """Whether an unguarded block of a loop that accumulates runs at every micro-batch."""
    return block.state.sync is None and work.objects.accumulation == "maybe" and not is_by_modulo(work, block)


def is_by_modulo(work: Work, block: Block) -> bool:
    """Whether the statements run at the boundaries of the script's own modulo, next to `accumulate`.

    Such a boundary need not be one of the accelerator's, so the flag is asked only where it is one.
    """
    if block.state.sync is not None or work.objects.accumulation != "maybe":
        return False
    nodes = [*([block.node] if block.test is not None else []), *work.script.ancestors(block.node)]
    for test in [part for node in nodes if isinstance(node, ast.If) for part in operands(node.test)]:
        name = key(test)
        values = [item.value for item in work.script.bindings(block.scope, name)] if name is not None else [test]
        if any(value is not None and re.search(r"%[^=]*accum", work.layout.text(value)) for value in values):
            return True
    return False


class _Reader:
    def __init__(self, work: Work, counters: list[str], rest: list[ast.stmt]) -> None:
        self.work, self.traits = work, work.traits
        self.counters = counters
        inside = {id(node) for node in within(rest)}
        body = work.script.places[rest[0]].scope.node.body
        self.read_elsewhere = {
            name
            for node in within(body)
            if id(node) not in inside
            for item in expressions(node)
            if isinstance(getattr(item, "ctx", None), ast.Load) and (name := key(item)) is not None
        }

    def is_gateable(self, node: ast.stmt) -> bool:
        """Whether a statement has no business after a skipped update."""
        if self.traits.steps(node) or any(self.traits.must_run(inner) for inner in within([node])):
            return False
        if self.work.traits.counts(node) or self.traits.is_raw_scheduler(node):
            return True
        if isinstance(node, ast.If):
            if node.orelse or any(isinstance(inner, (ast.Return, ast.Raise)) for inner in within([node])):
                return False
            if self.traits.trigger(node.test, self.counters):
                return True
            return all(self.is_gateable(inner) for inner in node.body)
        if is_log(self.work, node) and self.traits.reads(node, self.counters):
            return is_free_to_wait(self.work, node)
        grown = gathers(node)
        return (
            bool(grown) and isinstance(node, ast.AugAssign) and not any(name in self.read_elsewhere for name in grown)
        )

    def is_neutral(self, node: ast.stmt) -> bool:
        """Whether a statement may as well not run after a skipped update: a stop test, a line of output."""
        if isinstance(node, ast.If):
            stops = all(isinstance(inner, (ast.Break, ast.Pass)) for inner in node.body) and not node.orelse
            return stops and self.traits.reads(node, self.counters)
        if isinstance(node, (ast.Pass, ast.Continue)) or self.traits.scheduler(node):
            return True
        return isinstance(node, ast.Expr) and any(
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("set_postfix", "set_description", "info", "debug")
            for call in calls_of(node)
        )
