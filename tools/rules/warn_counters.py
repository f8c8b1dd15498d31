"""What a person should know next to the rewrite: bounds, budgets and arithmetic that lean on a counter of updates.

What: `while` bounds and `range` loops on the counter, epoch budgets, resume arithmetic, progress bars of a
fast-forward, counters that move before the step.

Why: a counter of applied updates can stand still. A loop that ends by it may not end if every update overflows; a
budget of epochs may end a few updates short; a resumed run may see batches again.

Before:

    num_train_epochs = math.ceil(max_train_steps / num_update_steps_per_epoch)

After: the same.

Refuses: counters that move before the update is attempted, where the loop has no other.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import expressions, is_loop, within
from ..work import Work

_BUDGET = re.compile(r"ceil\s*\(")
_STEPS = re.compile(r"max\w*_?steps|total\w*_?(steps|updates)")
_BOUNDS = (re.compile(r"while\b"), re.compile(r"range\b"))


def warn_counters(work: Work) -> None:
    """Report what leans on the counters."""
    if work.flow.steps:
        _budgets(work)
        _bounds(work)
        _early_counters(work)


def _budgets(work: Work) -> None:
    for node in work.script.statements_with(_BUDGET):
        targets = [key(target) or "" for target in getattr(node, "targets", ())]
        text = work.layout.text(node)
        if any("epoch" in target for target in targets) and _STEPS.search(text):
            short = f"epoch budget `{text}`: with k skipped updates the run can end k updates short"
            work.warn(node, "epoch budget", "epoch-budget", short)
    _resume_arithmetic(work)


def _resume_arithmetic(work: Work) -> None:
    """Places in the data that are computed from a counter; what is only shown is none."""
    counters = work.counters()
    words = sorted({rf"{re.escape(names.last(who.key))}\W*//" for who in counters})
    for node in work.script.statements_with(*map(re.compile, words)):
        divisions = [item for item in expressions(node) if isinstance(item, ast.BinOp)]
        counted = [item.left for item in divisions if isinstance(item.op, ast.FloorDiv)]
        scope = work.script.places[node].scope
        if (
            isinstance(node, ast.Assign)
            and any(work.names_of(scope, counters, left) for left in counted)
            and not _is_only_shown(work, node)
        ):
            text = f"`{work.layout.text(node)}`: after a skipped update the data position is ahead "
            advice = "of the counter; a resume replays batches unless attempts are saved too"
            work.warn(node, "resume arithmetic", "resume-arithmetic", text + advice)


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


def _bounds(work: Work) -> None:
    counters = work.counters()
    for pattern in _BOUNDS:
        for node in work.script.statements_with(pattern):
            scope = work.script.places[node].scope
            if scope not in work.flow.stepping:
                continue
            if isinstance(node, ast.While) and work.names_of(scope, counters, node.test):
                text = work.layout.text(node.test)
                work.warn(
                    node,
                    "loop bound",
                    "while-bound",
                    f"while bound `{text}` now counts applied updates: if every update overflows the "
                    "loop never ends; add a cap on consecutive skips",
                )
            if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and key(node.iter.func) == "range":
                for name in work.names_of(scope, counters, node.iter):
                    inside = work.gated() & {id(inner) for inner in within(node.body)}
                    if inside:
                        work.warn(
                            node,
                            "loop bound",
                            "range-bound",
                            f"`{name}` is tied to this range: skipped updates count toward its total",
                        )


def _early_counters(work: Work) -> None:
    """Counters above the step, and progress bars that a fast-forward moves there."""
    gated = work.gated()
    counted = work.counting_loops()
    for statements in work.flow.stepping.values():
        # not by a loop's header: a generator may make the attempts there
        stepping = {loop: None for node in statements for loop in work.script.ancestors(node)}
        outermost = [loop for loop in stepping if is_loop(loop) and work.script.loop(loop) is None]
        for node in within(outermost):
            state = work.flow.before.get(node)
            loop = work.script.loop(node) if state is not None else None
            if state is None or loop is None or state.is_after_step or id(node) in gated or loop not in stepping:
                continue
            name = work.traits.counter(node)
            if work.traits.shows_progress(node):
                work.warn(node, "resume fast-forward", "fast-forward", "moves the bar where no update is attempted")
            elif name is not None and names.counts_data(name):
                work.warn(node, "data counter", "data-counter", f"{name} counts data, not updates: kept")
            elif name is not None and id(loop) in counted:
                in_handler = any(work.script.places[n].arm == "handlers" for n in (node, *work.script.ancestors(node)))
                where = "where an exception was caught" if in_handler else "above the step"
                text = f"{name} moves {where}; updates are counted elsewhere"
                work.warn(node, "data counter", "data-counter", text)
            elif name is not None and names.suggests_counter(name):
                step = next((site for site in work.flow.sites_inside(loop)), None)
                line = step.statement.lineno if step else loop.lineno
                work.refuse(
                    node,
                    "counter before the step",
                    Refusal(
                        "before-step",
                        f"`{name}` advances before the update of line {line} is attempted; count behind "
                        "the step, under the flag",
                    ),
                )
