"""The dtypes that averages are stored in, by any of their names."""

from __future__ import annotations

from collections.abc import Sequence

import torch

SNAPSHOTS = ("float32", "bfloat16", "float16")
RESULTS = (*SNAPSHOTS, "float64")
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def dtype_of(given: torch.dtype | str, known: Sequence[str] = SNAPSHOTS) -> torch.dtype:
    """The dtype by torch's own object, its name, or its short name such as "bf16".

    Raises: ValueError unless it is one of `known`.
    """
    if (name := name_of(given)) not in known:
        raise ValueError(f"`dtype` must be one of {', '.join(known)}, got {given!r}")
    found: torch.dtype = getattr(torch, name)
    return found


def name_of(given: torch.dtype | str) -> str:
    """The name of a dtype without `torch.`; other text as it is."""
    return _SHORT.get(given, given) if isinstance(given, str) else str(given).removeprefix("torch.")
