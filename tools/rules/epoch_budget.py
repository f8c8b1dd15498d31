"""Lets a gated loop run the epochs that it needs to reach the wanted number of applied updates, and no more.

What: the epoch loop of a script that counts applied updates already.

Why: the number of epochs is `ceil(max_train_steps / updates_per_epoch)`. A skipped update takes one attempt from that
budget, so the run can end below `max_train_steps`. A larger range alone would train one update too many in every
further epoch, because the step limit breaks out of the inner loop only.

Before:

    for epoch in range(first_epoch, args.num_train_epochs):
        for batch in loader:
            ...
            if global_step >= args.max_train_steps:
                break

After:

    epoch_start_step = -1
    for epoch in range(first_epoch, args.num_train_epochs + args.max_train_steps):
        # Skipped updates take further epochs: stop at the last step, or when a whole epoch applied nothing.
        if global_step >= args.max_train_steps or (epoch >= args.num_train_epochs and global_step == epoch_start_step):
            break
        epoch_start_step = global_step
        for batch in loader:
            ...

Each further epoch needs an applied update in the one before it, so there are at most `max_train_steps` of them: the
range is a bound, not a wish. A run without skipped updates takes the epochs that it took before.

Refuses: a loop without the gate; one that the body measures against the number of epochs; one that has an `else` or no
plain bound.
"""

from __future__ import annotations

import ast
from bisect import bisect_right

from ..site import Outcome, Site
from ..source import Edit, Source
from .epoch_loops import START, Budget, is_extended, is_gated, is_plain, read_budget

KIND = "epoch budget"
WIDTH = 119
COMMENT = "# Skipped updates take further epochs: stop at the last step, or when a whole epoch applied nothing."


def extend_epochs(source: Source) -> tuple[list[Edit], list[Site]]:
    """Edits and sites of all epoch loops in a gated script; nothing for a file without one."""
    edits: list[Edit] = []
    sites: list[Site] = []
    for loop in [node for node in ast.walk(source.tree) if isinstance(node, ast.For)]:
        budget = read_budget(source, loop)
        if budget is None:
            continue
        refusal = _refusal(budget)
        if refusal:
            sites.append(_site(source, loop, *refusal))
        else:
            edits += _edits(source, budget)
            sites.append(
                _site(source, loop, "epoch-budget-extended", Outcome.REWRITTEN, "skipped updates get further epochs")
            )
    return edits, sites


def _site(source: Source, loop: ast.For, code: str, outcome: Outcome, message: str) -> Site:
    col = source.offset(loop.lineno, loop.col_offset) - source.line_starts[loop.lineno - 1] + 1
    new_line = loop.lineno + 1 if outcome is Outcome.REWRITTEN else None
    return Site(loop.lineno, col, KIND, code, outcome, message, new_line)


def _refusal(budget: Budget) -> tuple[str, Outcome, str] | None:
    """Why the loop stays as it is; None if it can be extended."""
    loop, stop = budget.loop, budget.stop
    if is_extended(loop):
        return "epoch-budget-already", Outcome.RIGHT, "the loop runs until the updates are applied"
    if not is_gated(loop, budget.counter):
        return "epoch-budget-needs-gate", Outcome.REFUSED, "the counter must count applied updates first"
    if not is_plain(stop) or not isinstance(loop.target, ast.Name):
        return (
            "epoch-budget-unclear",
            Outcome.REFUSED,
            "the number of epochs must be a plain name, so that it can be a bound",
        )
    if loop.orelse:
        return "epoch-budget-unclear", Outcome.REFUSED, "the loop has an `else`; extend it by hand"
    if any(
        isinstance(node, ast.expr) and ast.unparse(node) == ast.unparse(stop)
        for part in loop.body
        for node in ast.walk(part)
    ):
        return (
            "epoch-budget-compared",
            Outcome.REFUSED,
            "the body asks for the last epoch, which is not known beforehand any more",
        )
    return None


def _edits(source: Source, budget: Budget) -> list[Edit]:
    loop, newline = budget.loop, source.newline
    stop, epoch = source.segment(budget.stop), ast.unparse(loop.target)
    outer, inner = source.indentation(loop), source.indentation(loop.body[0])
    step = inner.removeprefix(outer)
    first, second = f"{budget.counter} >= {budget.limit}", f"{epoch} >= {stop} and {budget.counter} == {START}"
    test = [f"if {first} or ({second}):"]
    if len(inner.expandtabs(4) + test[0]) > WIDTH:
        test = [f"if {first} or (", f"{step}{second}", "):"]
    body = [COMMENT, *test, f"{step}break", f"{START} = {budget.counter}"]
    line_start = source.line_starts[loop.lineno - 1]
    head_end = source.next_line(_head_line(source, loop))
    return [
        Edit(line_start, line_start, f"{outer}{START} = -1{newline}"),
        Edit(source.span(budget.stop)[1], source.span(budget.stop)[1], f" + {budget.limit}"),
        Edit(head_end, head_end, "".join(f"{inner}{line}{newline}" for line in body)),
    ]


def _head_line(source: Source, loop: ast.For) -> int:
    """The line on which the loop's head ends: the one of the colon behind its iterator."""
    return bisect_right(source.line_starts, source.text.index(":", source.span(loop.iter)[1]))
