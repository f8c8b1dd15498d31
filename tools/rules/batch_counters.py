"""Counters of batches and of rounds that a loop uses as its step count: reported, since no flag makes them right.

What: `global_step = epoch * len(loader) + step`, logs under the variable of a loop, and bookkeeping
behind an inner loop over the micro-batches.

Why: the first two count batches, and skipped updates with them. Behind the last the flag tells about the last attempt
of the inner loop only, and whether that was the one attempt of the window cannot be seen.

Before:

    for _ in range(accumulation_steps):
        with accelerator.accumulate(model):
            optimizer.step()
    global_step += 1

After: the same.

Refuses: all three; count in the iteration of the step, under its flag.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.names import class_of, key
from ..loop.obstacles import Refusal
from ..loop.tree import calls_of, expressions, walk, within
from ..work import Work

_WHOLE = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)


def batch_counters(work: Work) -> None:
    """Report what counts batches or rounds in the place of updates."""
    counted = work.counting_loops()
    for statements in work.flow.stepping.values():
        loops = {
            loop: None
            for node in statements
            for loop in work.script.ancestors(node)
            if isinstance(loop, (ast.For, ast.AsyncFor))
        }
        _places_in_the_data(work, list(loops), counted)
        _variables_of_loops(work, list(loops), counted)
        for loop in loops:
            _behind_inner_loop(work, loop)


def _places_in_the_data(work: Work, stepping: list[ast.stmt], counted: set[int]) -> None:
    for node in within(stepping):
        if not isinstance(node, ast.Assign) or not _is_whole(node.value):
            continue
        name = key(node.targets[0])
        if name is None or names.counts_data(name) or not names.suggests_counter(name):
            continue
        loops = [loop for loop in work.script.ancestors(node) if isinstance(loop, (ast.For, ast.AsyncFor))]
        variables = {item.id for loop in loops for item in ast.walk(loop.target) if isinstance(item, ast.Name)}
        read = {item.id for item in expressions(node) if isinstance(item, ast.Name)} & variables
        if not read or not work.traits.steps(loops[0]):
            continue
        text = f"`{name}` is computed from the place in the data, so it counts batches, those of skipped updates too"
        if id(loops[0]) in counted:
            work.warn(node, "data counter", "data-counter", text)
        else:
            advice = "; count behind the step, under the flag, where applied updates are meant"
            work.refuse(node, "counter of batches", Refusal("counts-batches", text + advice))


def _is_whole(value: ast.expr) -> bool:
    """Whether a value is computed as whole numbers that grow are: no part of an epoch, no mask, no turn."""
    operators = (type(item.op) for item in walk(value) if isinstance(item, ast.BinOp))
    return isinstance(value, ast.BinOp) and all(item in _WHOLE for item in operators)


def _variables_of_loops(work: Work, stepping: list[ast.stmt], counted: set[int]) -> None:
    """Report logs under the number of the batch, as in `for step in count(): ... log(..., step=step)`."""
    variables = {loop: found for loop in stepping if id(loop) not in counted and (found := _numbers(loop))}
    for node in within([*variables]):
        loop = work.script.loop(node)
        if (
            loop is None
            or id(loop) in counted
            or work.in_iteration(node) is None
            or not work.traits.logs_or_saves(node)
        ):
            continue
        numbers = [name for outer in work.script.ancestors(node) for name in variables.get(outer, ())]
        values = [
            item.value for call in calls_of(node) for item in call.keywords if item.arg in ("step", "global_step")
        ]
        for name in dict.fromkeys(key(item) for value in values for item in ast.walk(value)):
            if name in numbers:
                text = f"`{name}` is the variable of a loop, so it counts batches, those of skipped updates too"
                advice = "; count behind the step, under the flag, where applied updates are meant"
                work.refuse(node, "counter of batches", Refusal("counts-batches", text + advice))


def _numbers(loop: ast.stmt) -> list[str]:
    """The variables of a loop that number its rounds: those of `enumerate` and `count`."""
    assert isinstance(loop, (ast.For, ast.AsyncFor))
    if not isinstance(loop.iter, ast.Call):
        return []
    word, targets = class_of(loop.iter), [loop.target]
    if word == "zip" and isinstance(loop.target, ast.Tuple):
        pairs = zip(loop.target.elts, loop.iter.args, strict=False)
        targets = [target for target, value in pairs if class_of(value) == "count"]
    elif word == "enumerate" and isinstance(loop.target, ast.Tuple):
        targets = loop.target.elts[:1]
    elif word != "count":
        return []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _behind_inner_loop(work: Work, loop: ast.For | ast.AsyncFor) -> None:
    if work.script.loop(loop) is None:
        return
    is_micro = isinstance(loop.iter, ast.Call) and key(loop.iter.func) == "range"
    if not (is_micro or re.search(r"accum|micro", work.layout.text(loop.iter))):
        return
    if any(work.traits.counts(node) for node in within(loop.body)):
        return
    for node in work.script.places[loop].following:
        if work.traits.counts(node):
            line = next(iter(work.flow.sites_inside(loop))).statement.lineno
            text = f"the step of line {line} runs in an inner loop; behind that the flag tells only about the last "
            advice = "attempt. Count in the inner loop, under its flag"
            work.refuse(node, "unguarded counter", Refusal("step-in-inner-loop", text + advice))
            return
