"""A scheduler that was not prepared no longer steps for an update that was dropped.

What: `lr_scheduler.step()` behind the optimizer step, where the file builds the scheduler and prepares it nowhere.

Why: a prepared scheduler asks the flag itself; one that is not runs ahead of the updates, and with it the learning
rate.

Before:

    optimizer.step()
    lr_scheduler.step()

After, in a loop that accumulates (it steps between boundaries as it did):

    optimizer.step()
    if not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped):
        lr_scheduler.step()

Refuses: what `gate_bookkeeping` refuses. Prepared schedulers, and those that another file may prepare, are left.
"""

from __future__ import annotations

import ast

from ..loop.flow import STEP
from ..loop.obstacles import Refusal
from ..loop.paths import State
from ..work import Work

_KIND = "scheduler step"


def gate_scheduler(work: Work) -> None:
    """Gate the steps of schedulers that were not prepared; report the others."""
    gated = work.closed()
    for node in work.script.statements_with(STEP):
        owner, state = work.traits.scheduler(node), work.in_iteration(node)
        if owner is not None and state is not None and id(node) not in gated:
            _gate(work, node, owner, state)


def _gate(work: Work, node: ast.stmt, owner: str, state: State) -> None:
    scope = work.script.places[node].scope
    if not work.flags.reaches_accelerator(scope):
        return
    if not work.traits.is_raw_scheduler(node):
        is_prepared = work.objects.is_prepared(work.objects.identity(scope, owner))
        code = "prepared-scheduler" if is_prepared else "scheduler-unknown"
        text = (
            "a prepared scheduler asks the flag itself" if is_prepared else "whether it is prepared is not seen here"
        )
        work.warn(node, _KIND, code, f"`{owner}`: {text}")
        return
    flag = work.flags.find(node, state, None, None)
    if isinstance(flag, Refusal):
        work.refuse(node, _KIND, flag)
        return
    test = " and ".join(flag.clauses) if state.sync else f"not ({flag.accelerator}.sync_gradients and {flag.text})"
    if work.edit(node, _KIND, lambda: work.layout.wrap(node, node, test)):
        work.keep(flag)
        work.rewritten(
            node, _KIND, "scheduler-gated", f"`{owner}` is not prepared and stepped for skipped updates too"
        )
