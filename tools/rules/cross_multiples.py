"""A test on multiples of a counter asks whether one was crossed, where it is asked at some updates only.

What: `if global_step % N == 0:` in a gated block that runs for one of two optimizers that take turns, while the
counter counts the updates of both.

Why: the block sees every second value of the counter. One skipped update shifts the parity, and with an even N the
test never comes true again: logging and checkpoints stop without a word.

Before:

    if accelerator.sync_gradients and not generator_step:
        if global_step % args.log_steps == 0:
            ...

After:

    last_global_step = global_step                      # above the outermost loop
    ...
    if accelerator.sync_gradients and not discr_optimizer.step_was_skipped and not generator_step:
        if global_step // args.log_steps > last_global_step // args.log_steps:
            ...
        last_global_step = global_step

Where N is odd, or an epoch holds an odd number of windows, the block then also runs at multiples that it used to miss.

Refuses: counters that are no plain names, blocks with another arm.
"""

from __future__ import annotations

import ast
import re

from ..loop.blocks import Block, Role
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import within
from ..source import Edit
from ..work import Work

_KIND = "trigger on multiples"


def cross_multiples(work: Work) -> None:
    """Rewrite tests on multiples in gated blocks that only some updates reach."""
    for block in work.blocks:
        if (
            block.role is Role.BOOKKEEPING
            and block.is_gated
            and work.flags.is_partial(block.node, block.state, block.test)
        ):
            _block(work, block)


def _block(work: Work, block: Block) -> None:
    own = {work.objects.identity(block.scope, name) for name in work.traits.counters_in(block.statements)}
    others = [who for who in work.counters() if who not in own]
    found: dict[str, list[ast.Compare]] = {}
    for node in within(block.statements):
        if isinstance(node, ast.If):
            for name in work.names_of(block.scope, others, node.test):
                found.setdefault(name, []).extend(_multiples(node.test, name))
    for name, tests in found.items():
        if tests and (block.has_else or not name.isidentifier() or _is_left_early(block)):
            refusal = Refusal(
                "crossing",
                f"waits for multiples of `{name}` at some of its values only and may miss them "
                "all after a skipped update; ask whether a multiple was crossed",
            )
            work.refuse(block.node, _KIND, refusal)
        elif tests:
            _rewrite(work, block, name, tests)


def _multiples(test: ast.expr, name: str) -> list[ast.Compare]:
    """The comparisons `name % N == 0` of a test."""
    return [
        item
        for item in ast.walk(test)
        if isinstance(item, ast.Compare)
        and isinstance(item.left, ast.BinOp)
        and isinstance(item.left.op, ast.Mod)
        and key(item.left.left) == name
        and len(item.ops) == 1
        and isinstance(item.ops[0], ast.Eq)
        and isinstance(item.comparators[0], ast.Constant)
        and item.comparators[0].value == 0
    ]


def _is_left_early(block: Block) -> bool:
    """Whether a block is left before its end, where the last value would be noted."""
    return any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in within(block.statements))


def _rewrite(work: Work, block: Block, name: str, tests: list[ast.Compare]) -> None:
    last = f"last_{name}"
    while re.search(rf"\b{last}\b", work.source.text):
        last = f"previous_{last}"
    if work.edit(block.node, _KIND, lambda: _edits(work, block, name, last, tests)):
        for test in tests:
            work.rewritten(
                test,
                _KIND,
                "multiple-crossed",
                f"asks whether a multiple was crossed since `{last}`: after an odd number of "
                f"skipped updates `{name}` would miss every even multiple here. Where the number "
                "is odd it now also fires at multiples that it used to miss",
            )


def _edits(work: Work, block: Block, name: str, last: str, tests: list[ast.Compare]) -> list[Edit]:
    edits = []
    for test in tests:
        assert isinstance(test.left, ast.BinOp)
        number = work.layout.text(test.left.right)
        if isinstance(test.left.right, (ast.BinOp, ast.IfExp, ast.BoolOp)):
            number = f"({number})"
        start, end = work.source.span(test)
        edits.append(Edit(start, end, f"{name} // {number} > {last} // {number}"))
    loops = [
        node for node in work.script.ancestors(block.node) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))
    ]
    edits += work.layout.insert_before(loops[-1], [f"{last} = {name}"])
    assert isinstance(block.node, ast.If)
    return edits + work.layout.add_at_end(block.node, [f"{last} = {name}"])
