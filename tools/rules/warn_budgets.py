"""What is computed from numbers of updates beforehand: epochs that leave no room for skips, places in the data.

What: epoch budgets and resume arithmetic.

Why: a counter of applied updates can stand still. A budget of epochs may end a few updates short; a resumed run may
see batches again.

Before:

    num_train_epochs = math.ceil(max_train_steps / num_update_steps_per_epoch)

After: the same. Where the loop over these epochs goes on already until the updates are applied, that is right.

Refuses: nothing.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.names import key
from ..loop.tree import assigned, expressions
from ..site import Outcome
from ..work import Work
from .epoch_loops import START, is_extended

_BUDGET = re.compile(r"ceil\s*\(")
_STEPS = re.compile(r"max\w*_?steps|total\w*_?(steps|updates)")
_RHYTHM = re.compile(r"(^|_)(every|interval|freq|frequency)(_|$)")
_START = re.compile(START)


def warn_budgets(work: Work) -> None:
    """Report what is computed from numbers of updates."""
    if work.flow.steps:
        _budgets(work)
        _resume_arithmetic(work)


def _budgets(work: Work) -> None:
    for node in work.script.statements_with(_BUDGET):
        targets = [name for target, _ in assigned(node) if (name := key(target)) is not None]
        text = work.layout.text(node)
        if any("epoch" in target for target in targets) and _STEPS.search(text):
            extended = _extended(work, node, targets)
            if extended is None:
                short = f"epoch budget `{text}`: with k skipped updates the run can end k updates short"
                work.warn(node, "epoch budget", "epoch-budget", short)
            else:
                enough = f"`{text}` is no limit: line {extended.lineno} goes on until the updates are applied"
                work.report(node, "epoch budget", "epoch-budget-already", Outcome.RIGHT, enough)


def _extended(work: Work, node: ast.stmt, targets: list[str]) -> ast.For | None:
    """The loop over a number of epochs, if it takes further ones until the updates are applied."""
    scope = work.script.places[node].scope
    for inner in work.script.statements_with(_START):
        loops = [loop for loop in work.script.ancestors(inner) if isinstance(loop, ast.For) and is_extended(loop)]
        for loop in loops:
            if work.script.places[loop].scope is scope and any(key(item) in targets for item in ast.walk(loop.iter)):
                return loop
    return None


def _resume_arithmetic(work: Work) -> None:
    """Places in the data that are computed from a counter; what is only shown is none."""
    counters = work.counters()
    words = sorted({rf"{re.escape(names.last(who.key))}\W*//" for who in counters})
    for node in work.script.statements_with(*map(re.compile, words)):
        divisions = [item for item in expressions(node) if isinstance(item, ast.BinOp)]
        counted = [item.left for item in divisions if isinstance(item.op, ast.FloorDiv) and not _is_rhythm(item.right)]
        scope = work.script.places[node].scope
        if (
            isinstance(node, ast.Assign)
            and any(work.names_of(scope, counters, left) for left in counted)
            and not _is_only_shown(work, node)
        ):
            text = f"`{work.layout.text(node)}`: after a skipped update the data position is ahead "
            advice = "of the counter; a resume replays batches unless attempts are saved too"
            work.warn(node, "resume arithmetic", "resume-arithmetic", text + advice)


def _is_rhythm(divisor: ast.expr) -> bool:
    """Whether something is divided by the distance of saves or logs, which gives their number and no place."""
    return bool(_RHYTHM.search(names.last(key(divisor) or "")))


def _is_only_shown(work: Work, node: ast.Assign) -> bool:
    """Whether what a statement computes goes into logs and messages and nowhere else."""
    targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
    if len(targets) != len(node.targets):
        return False
    words = [re.compile(names.word_pattern(name)) for name in targets]
    readers = [
        inner
        for inner in work.script.statements_with(*words)
        if inner is not node and any(isinstance(item, ast.Name) and item.id in targets for item in expressions(inner))
    ]
    return bool(readers) and all(work.traits.shows(inner) for inner in readers)
