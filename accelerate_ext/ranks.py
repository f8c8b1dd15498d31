"""Do all processes of a run count the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import accelerate
from accelerate.utils import DistributedType, gather_object

from .errors import RankDisagreementError

Counts = Mapping[str, int]


def gather_counts(counts: Counts, accelerator: accelerate.Accelerator) -> list[Counts]:
    """The counts of every process, in order of rank. Every process must call it.

    On XLA devices, where Accelerate gathers no objects, a process sees its own counts only.
    """
    if accelerator.num_processes == 1 or accelerator.distributed_type == DistributedType.XLA:
        return [counts]
    gathered: list[Counts] = gather_object([dict(counts)])
    return gathered


def check_agreement(counts: Sequence[Counts]) -> None:
    """Make sure that all ranks counted the same.

    Raises: RankDisagreementError naming each count they disagree about and what each rank has; on every rank.
    """
    names = dict.fromkeys(name for of_rank in counts for name in of_rank)
    disagreements = []
    for name in names:
        values: list[Any] = [of_rank.get(name) for of_rank in counts]
        if any(value != values[0] for value in values):
            disagreements.append(f"{name}: {_by_value(values)}")
    if disagreements:
        raise RankDisagreementError(
            f"all ranks must have counted the same updates, but they disagree about {'; '.join(disagreements)}. "
            "Some rank applied an update that another one skipped, so their weights have parted. Skip on all ranks or "
            "on none: agree about a hand-written guard over all ranks (`accelerator.reduce`), or use "
            "`Accelerator(skip_nonfinite=True)`; then restart from a checkpoint on which they agreed"
        )


def _by_value(values: Sequence[Any]) -> str:
    """`rank 1 has 6, ranks 0 and 2 to 3 have 7`, fewest ranks first."""
    ranks_of: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_of.setdefault(value, []).append(rank)
    parts = []
    for value, ranks in sorted(ranks_of.items(), key=lambda item: (len(item[1]), item[1])):
        shown = "nothing" if value is None else value
        parts.append(f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {shown}")
    return ", ".join(parts)


def _ranks(ranks: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    shown = [str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans]
    words = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {words}"
