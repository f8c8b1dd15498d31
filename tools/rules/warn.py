"""What a person should know next to the rewrite: bounds, budgets and arithmetic that lean on a counter of updates.

What: `while` bounds and `range` loops on the counter, epoch budgets, resume arithmetic, progress bars of a
fast-forward, collectives in gated blocks, fused optimizers, counters that move before the step.

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
from ..loop.blocks import Role
from ..loop.names import key
from ..loop.obstacles import Refusal
from ..loop.tree import calls_of, expressions, within
from ..work import Work

_COLLECTIVE = re.compile(
    r"^(gather|gather_for_metrics|reduce|wait_for_everyone|broadcast|all_reduce|barrier|pad_across\w*)$"
)
_COLLECTIVES = re.compile(r"gather|reduce|wait_for_everyone|broadcast|barrier|pad_across")
_BUDGET = re.compile(r"ceil\s*\(")
_FUSED = re.compile(r"fused\s*=\s*True")


def warn(work: Work) -> None:
    """Report what leans on the counters, and what hides from the flag."""
    if not work.flow.steps:
        return
    _budgets(work)
    _bounds(work)
    _collectives(work)
    _fused(work)
    _early_counters(work)
    _prepared_elsewhere(work)


def _budgets(work: Work) -> None:
    for node in work.script.statements_with(_BUDGET):
        targets = [key(target) or "" for target in getattr(node, "targets", ())]
        text = work.layout.text(node)
        if any("epoch" in target for target in targets) and re.search(
            r"max\w*_?steps|total\w*_?(steps|updates)", text
        ):
            work.warn(
                node,
                "epoch budget",
                "epoch-budget",
                f"epoch budget `{text}`: with k skipped updates the run can end k updates short",
            )
    counters = work.counters()
    words = "|".join(sorted({rf"{re.escape(names.last(who.key))}\W*//" for who in counters}))
    for node in work.script.statements_with(re.compile(words)) if words else ():
        for item in expressions(node):
            is_division = isinstance(item, ast.BinOp) and isinstance(item.op, ast.FloorDiv)
            if (
                is_division
                and isinstance(node, ast.Assign)
                and work.names_of(
                    work.script.places[node].scope,
                    counters,
                    item.left,  # type: ignore[attr-defined]
                )
            ):
                work.warn(
                    node,
                    "resume arithmetic",
                    "resume-arithmetic",
                    f"`{work.layout.text(node)}`: after a skipped update the data position is ahead "
                    "of the counter; a resume replays batches unless attempts are saved too",
                )


def _bounds(work: Work) -> None:
    counters = work.counters()
    for scope in work.flow.stepping:
        for node in within(scope.node.body):
            is_while = isinstance(node, ast.While) and work.names_of(scope, counters, node.test)
            if is_while and isinstance(node, ast.While):
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


def _collectives(work: Work) -> None:
    for block in work.blocks:
        if not work.gates(block) or block.role is Role.APPLIED:
            continue
        for node in within(block.statements):
            for call in calls_of(node) if _COLLECTIVES.search(work.layout.text(node)) else ():
                name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
                if _COLLECTIVE.match(name):
                    work.warn(
                        call,
                        "collective",
                        "collectives",
                        f"{name} inside the gated block: every rank must read the same flag (true for DDP "
                        "and FSDP scalers; not for gradients kept local)",
                    )


def _fused(work: Work) -> None:
    for node in work.script.statements_with(_FUSED):
        for call in calls_of(node):
            is_fused = any(
                item.arg == "fused" and isinstance(item.value, ast.Constant) and item.value.value is True
                for item in call.keywords
            )
            if is_fused and names.builds_optimizer(call):
                work.warn(
                    call,
                    "fused optimizer",
                    "fused-optimizer",
                    "accelerate always calls a fused optimizer and reports no skip "
                    "(huggingface/accelerate#4242): the flag stays False when the kernel drops an "
                    "update",
                )


def _early_counters(work: Work) -> None:
    """Counters above the step, and progress bars that a fast-forward moves there."""
    gated = work.gated()
    counted = {id(work.script.loop(block.node)) for block in work.blocks if work.gates(block)}
    for scope in work.flow.stepping:
        for node in within(scope.node.body):
            state = work.flow.before.get(node)
            loop = work.script.loop(node) if state is not None else None
            if (
                state is None
                or loop is None
                or state.is_after_step
                or id(node) in gated
                or not work.traits.steps(loop)
            ):
                continue
            name = work.traits.counter(node)
            if work.traits.shows_progress(node):
                work.warn(node, "resume fast-forward", "fast-forward", "moves the bar where no update is attempted")
            elif name is not None and names.counts_data(name):
                work.warn(node, "data counter", "data-counter", f"{name} counts data, not updates: kept")
            elif name is not None and id(loop) in counted:
                work.warn(
                    node, "data counter", "data-counter", f"{name} moves above the step; updates are counted elsewhere"
                )
            elif name is not None and work.traits.is_step_word(name):
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


def _prepared_elsewhere(work: Work) -> None:
    """Optimizers whose preparation this file does not show, under blocks that lean on it."""
    scopes = {block.scope for block in work.blocks if work.gates(block) and block.role is not Role.APPLIED}
    for site in work.flow.steps:
        is_unknown = site.kind == "optimizer" and work.objects.is_prepared(site.who) is None
        if is_unknown and site.scope in scopes and not work.objects.is_opaque:
            text = f"no `prepare` in this file gives `{site.who.key}` its value; if no other file does, the flag stays False"
            work.warn(site.statement, "optimizer step", "prepared-elsewhere", text)
