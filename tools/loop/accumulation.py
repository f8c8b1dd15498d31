"""Whether a script accumulates gradients, so that a step is not an attempt in every iteration."""

from __future__ import annotations

import ast
import re

from . import names
from .script import Script
from .tree import calls_of

_ACCUMULATE = ("sync_gradients", "accumulate(")
_CONSTRUCTED = re.compile(r"Accelerator\s*\(")
_ACCUMULATION = (
    "gradient_accumulation_steps",
    "gradient_accumulation_plugin",
    "deepspeed_plugin",
    "megatron_lm_plugin",
)


def accumulation(script: Script) -> str:
    """`none` if every iteration is a boundary, `one` if the script asks for no accumulation, else `maybe`."""
    if not any(word in script.source.text for word in _ACCUMULATE):
        return "none"
    calls = [
        call
        for node in script.statements_with(_CONSTRUCTED)
        for call in calls_of(node)
        if names.builds_accelerator(call)
    ]
    if not calls or any(_accumulates(call) for call in calls):
        return "maybe"
    return "one"


def _accumulates(call: ast.Call) -> bool:
    """Whether a constructor of an accelerator asks for accumulation, or may do so in a way that cannot be seen."""
    for keyword in call.keywords:
        is_one = isinstance(keyword.value, ast.Constant) and keyword.value.value in (1, None)
        if keyword.arg is None or (keyword.arg in _ACCUMULATION and not is_one):
            return True
    return any(isinstance(item, ast.Starred) for item in call.args)
