"""Early exits: at all but single values of a counter, at those values, and at the end of a test that counts."""

from __future__ import annotations

import ast

from ..loop.obstacles import Refusal
from ..loop.tree import within
from ..work import Work

_JUMPS = (ast.Continue, ast.Break, ast.Return, ast.Raise)


def is_exit(arm: list[ast.stmt]) -> bool:
    """Whether all that an arm of an `if` does is to leave the iteration or the function."""
    return isinstance(arm[0], (ast.Continue, ast.Return))


def ends_the_loop(arm: list[ast.stmt]) -> bool:
    """Whether an arm that runs is the last part of its loop to run: its test cannot bring it there a second time."""
    ends = isinstance(arm[-1], (ast.Break, ast.Return, ast.Raise))
    return ends and not any(isinstance(inner, ast.Continue) for inner in within(arm))


def lets_single_values_past(work: Work, test: ast.expr, counters: list[str]) -> bool:
    """Whether a test, as in `if global_step % N != 0: continue`, holds at all but single values of a counter.

    What follows such an exit is what fires at them. An exit *at* single values is another thing: nothing fires there.
    """
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(lets_single_values_past(work, value, counters) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        return work.traits.trigger(inner, counters) and not lets_single_values_past(work, inner, counters)
    if isinstance(test, ast.Compare):
        if isinstance(test.ops[0], ast.NotEq):
            return work.traits.asks_counter(test, counters)
        if isinstance(test.ops[0], ast.NotIn):
            return work.traits.asks_counter(test.left, counters)
        return isinstance(test.ops[0], ast.Gt) and work.traits.trigger(test.left, counters)
    return isinstance(test, ast.BinOp) and work.traits.trigger(test, counters)


def leaving(work: Work, statements: list[ast.stmt]) -> Refusal | None:
    """Why a test that always ends the function or the iteration stays: what follows it would run after a skip."""
    for node in statements:
        for last in [*node.body, *node.orelse] if isinstance(node, ast.If) else ():
            is_answer = isinstance(last, ast.Return) and last.value is not None
            if is_answer or (isinstance(last, _JUMPS) and work.script.has_rest(node)):
                return Refusal(
                    "leaves",
                    f"line {node.lineno} counts and ends by `{work.layout.text(last)}`; a skipped update would go on "
                    "with what follows. Put what counts in a block of its own",
                )
    return None
