"""What a person should know next to the rewrite: bounds that lean on a counter, and counters above the step.

What: `while` bounds and `range` loops on the counter, progress bars of a fast-forward, counters that move before the
step.

Why: a counter of applied updates can stand still. A loop that ends by it may not end if every update overflows.

Before:

    while global_step < max_train_steps:

After: the same.

Refuses: counters that move before the update is attempted, where the loop has no other.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import assigned, expressions, walk, within
from ..work import Work

_BOUNDS = (re.compile("while"), re.compile("range"))


def warn_counters(work: Work) -> None:
    """Report what leans on the counters."""
    _bounds(work)
    _early_counters(work)


def _bounds(work: Work) -> None:
    counters = work.counters()
    for pattern in _BOUNDS:
        for node in work.script.statements_with(pattern):
            scope = work.script.places[node].scope
            if scope not in work.flow.stepping:
                continue
            if isinstance(node, ast.While) and (
                work.names_of(scope, counters, node.test) or _stands_still(work, node)
            ):
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


def _given_in(work: Work, loop: ast.stmt | None, node: ast.stmt, name: str) -> list[ast.expr]:
    """The values that a loop itself gives a name, by other statements than this one, and not from its old value."""
    bound = work.script.bindings(work.script.places[node].scope, name)
    others = [item for item in bound if item.statement is not node and work.script.loop(item.statement) is loop]
    values = [item.value for item in others if item.value is not None]
    return [value for value in values if not any(key(item) == name for item in walk(value))]


def _stands_still(work: Work, loop: ast.While) -> bool:
    """Whether a bound reads a count that the loop sets for applied updates only, as by `step = finish(step)`."""
    read = {name for item in ast.walk(loop.test) if (name := key(item)) is not None and names.suggests_counter(name)}
    gated = work.gated() | {id(block.node) for block in work.blocks if work.gates(block)}  # a test may hold a `:=`
    for name in read:
        setting = [node for node in within(loop.body) if name in _given(node)]
        if setting and all(id(node) in gated for node in setting):
            return True
    return False


def _given(node: ast.stmt) -> list[str | None]:
    """The keys that a statement itself gives a value."""
    targets = [target for target, _ in assigned(node)] + ([node.target] if isinstance(node, ast.AugAssign) else [])
    return [key(target) for target in targets] + [
        key(item.target) for item in expressions(node) if isinstance(item, ast.NamedExpr)
    ]


def _early_counters(work: Work) -> None:
    """Counters above the step, and progress bars that a fast-forward moves there."""
    counted = work.counting_loops()
    for statements in work.flow.stepping.values():
        # not by a loop's header: a generator may make the attempts there
        stepping = {loop: None for node in statements for loop in work.script.ancestors(node)}
        for node in within([node for node in stepping if work.script.places[node].parent not in stepping]):
            state = work.flow.before.get(node)
            if state is None or state.is_after_step or (loop := work.script.loop(node)) not in stepping:
                continue
            name = work.traits.counter(node)
            given = _given_in(work, loop, node, name) if name is not None else []
            if work.traits.shows_progress(node):
                work.warn(node, "resume fast-forward", "fast-forward", "moves the bar where no update is attempted")
            elif name is not None and names.counts_data(name):
                work.warn(node, "data counter", "data-counter", f"{name} counts data, not updates: kept")
            elif name is not None and any(not isinstance(value, ast.Constant) for value in given):
                continue  # a value of the batch, whatever is added to it
            elif name is not None and names.suggests_counter(name) and given:
                text = f"{name} is set back in this loop: it counts since then, not the updates of the run"
                work.warn(node, "data counter", "data-counter", text)
            elif name is not None and id(loop) in counted:
                in_handler = any(work.script.places[n].arm == "handlers" for n in (node, *work.script.ancestors(node)))
                where = "where an exception was caught" if in_handler else "above the step"
                text = f"{name} moves {where}; updates are counted elsewhere"
                work.warn(node, "data counter", "data-counter", text)
            elif name is not None and names.suggests_counter(name):
                line = next(site.statement.lineno for site in work.flow.sites_inside(loop))
                work.refuse(
                    node,
                    "counter before the step",
                    Refusal(
                        "before-step",
                        f"`{name}` advances before the update of line {line} is attempted; count behind "
                        "the step, under the flag",
                    ),
                )
