"""What hides an update from the flag, or the flag from a process: fused optimizers, collectives, other files.

What: fused optimizers, collective calls in gated blocks, optimizers that another file prepares.

Why: accelerate reports no skip for a fused optimizer; a collective in a gated block waits for ever if one process
reads another flag; an optimizer that nobody prepares has no flag at all.

Before:

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

After: the same.

Refuses: nothing; these are warnings.
"""

from __future__ import annotations

import ast
import re

from ..loop import names
from ..loop.blocks import Role
from ..loop.tree import calls_of, within
from ..work import Work

_COLLECTIVE = re.compile(
    r"gather|gather_for_metrics|reduce|wait_for_everyone|broadcast|all_reduce|barrier|pad_across\w*"
)
_FUSED = re.compile(r"fused\s*=\s*True")


def warn_flags(work: Work) -> None:
    """Report what hides from the flag."""
    if work.flow.steps:
        _collectives(work)
        _fused(work)
        _prepared_elsewhere(work)


def _collectives(work: Work) -> None:
    for block in work.blocks:
        if not work.gates(block) or block.role is Role.APPLIED:
            continue
        for node in within(block.statements):
            for call in calls_of(node):
                if isinstance(call.func, ast.Attribute) and _COLLECTIVE.fullmatch(call.func.attr):
                    work.warn(
                        call,
                        "collective",
                        "collectives",
                        f"{call.func.attr} inside the gated block: every rank must read the same flag (true for DDP "
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


def _prepared_elsewhere(work: Work) -> None:
    """Optimizers whose preparation this file does not show, under blocks that lean on it."""
    scopes = {block.scope for block in work.blocks if work.gates(block) and block.role is not Role.APPLIED}
    for site in work.flow.steps:
        is_unknown = site.kind == "optimizer" and work.objects.is_prepared(site.who) is None
        if is_unknown and site.scope in scopes and not work.objects.is_opaque:
            text = f"no `prepare` here gives `{site.who.key}` its value; if no other file does, the flag stays False"
            work.warn(site.statement, "optimizer step", "prepared-elsewhere", text)
