"""A test of the stored averages against each other, without knowing what training would have given."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass

import torch
from tqdm import tqdm

from .fit import Kind
from .header import SnapshotError
from .inputs import InputOptions, Source, find_sources
from .prepare import expected_distance, prepare
from .profile import gamma_from_sigma_rel, sigma_rel_from_gamma
from .reconstruct import Inputs

WORST_RATIO = 4.0
ROUNDING = 1e-3


@dataclass(frozen=True)
class Check:
    """How close a stored average is to what the others make of it.

    Both errors are fractions of the distance between the average and the model's own weights at that step, which the
    drift of the stored weights gives. ``relative_difference`` is the distance from the stored average over its norm.
    """

    source: Source
    step: float
    sigma_rel: float
    predicted_error: float
    measured_error: float
    relative_difference: float

    @property
    def bound(self) -> float:
        """The largest measured error to expect of good snapshots: what real runs have shown, and some rounding."""
        return WORST_RATIO * self.predicted_error + ROUNDING


def check(
    inputs: Inputs,
    step: float | None = None,
    sigma_rel: float | None = None,
    fit: Kind = "walk",
    *,
    options: InputOptions | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Check:
    """Rebuilds one stored average from all others and measures the difference.

    Args:
        step, sigma_rel: which one; unless given, the widest of those at the latest step at which something remains to
            build it from.

    Raises: SnapshotError if there is no such average, or nothing to build it from.
    """
    sources = find_sources(inputs, options)
    chosen = _choose(sources, step, sigma_rel)
    others = [source for source in sources if source is not chosen]
    with prepare(others, chosen.t, [chosen.gamma], fit) as prepared:
        stored, lock = chosen.open(), threading.Lock()
        squares = {"difference": 0.0, "stored": 0.0}

        def compare(name: str, start: int, values: torch.Tensor) -> None:
            kept = torch.empty(values.shape[1], dtype=torch.float64)
            stored.read(name, start, start + values.shape[1], kept)
            difference = float(((values[0].double() - kept) ** 2).sum())
            with lock:
                squares["difference"] += difference
                squares["stored"] += float((kept**2).sum())

        total = prepared.num_elements
        try:
            with tqdm(total=total, unit=" elements", unit_scale=True, disable=not progress, desc="check") as bar:
                prepared.sums(torch.float32).run(compare, workers or min(8, os.cpu_count() or 1), bar.update)
        finally:
            stored.close()
        distance = expected_distance(prepared, 0)
        root = math.sqrt(squares["difference"] / total)
        return Check(
            source=chosen,
            step=chosen.step,
            sigma_rel=sigma_rel_from_gamma(chosen.gamma),
            predicted_error=float(prepared.fit.predicted_error[0]),
            measured_error=root / distance if distance else (0.0 if root == 0 else math.inf),
            relative_difference=math.sqrt(squares["difference"] / squares["stored"]) if squares["stored"] else 0.0,
        )


def _choose(sources: list[Source], step: float | None, sigma_rel: float | None) -> Source:
    """The average that is asked for, else the widest at the latest step that the others reach."""
    averages = [source for source in sources if source.gamma >= 0 and not math.isinf(source.gamma)]
    wanted = averages if step is None else [source for source in averages if source.step == step]
    if sigma_rel is not None:
        gamma = gamma_from_sigma_rel(sigma_rel)
        wanted = [source for source in wanted if abs(source.gamma - gamma) < 1e-6 * (1 + gamma)]
    reachable = [s for s in wanted if any(other is not s and other.t >= s.t for other in sources)]
    if not reachable:
        found = ", ".join(f"{source.step:g}" for source in averages[-10:]) or "none"
        raise SnapshotError(
            "a check needs a stored average and others at its step or after it to rebuild it from; "
            f"asked for step {step} and sigma_rel {sigma_rel}, averages are stored at the steps: {found}"
        )
    return max(reachable, key=lambda source: (source.t, -source.gamma))
