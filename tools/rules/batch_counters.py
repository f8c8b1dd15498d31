"""Counters of batches and of rounds that a loop uses as its step count: reported, since no flag makes them right.

What: `global_step = epoch * len(loader) + step`, and bookkeeping behind an inner loop over the micro-batches.

Why: the first counts batches, and skipped updates with them. Behind the second the flag tells about the last attempt
of the inner loop only, and whether that was the one attempt of the window cannot be seen.

Before:

    for _ in range(accumulation_steps):
        with accelerator.accumulate(model):
            optimizer.step()
    global_step += 1

After: the same.

Refuses: both; count in the iteration of the step, under its flag.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import expressions, within
from ..work import Work


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
        for loop in loops:
            _behind_inner_loop(work, loop)


def _places_in_the_data(work: Work, stepping: list[ast.stmt], counted: set[int]) -> None:
    for node in within(stepping):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
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
