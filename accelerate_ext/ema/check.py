"""A test of the stored averages against each other, without knowing what training would have given."""

from __future__ import annotations

import contextlib
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
from .readers import Reader
from .reconstruct import Inputs

WORST_RATIO = 4.0
ROUNDING = 1e-3


@dataclass(frozen=True)
class Check:
    """How close a stored average is to what the others make of it.

    ``predicted_error`` is the expected error. It and the measured one are fractions of the distance between the
    average and the model's own weights at that step, which the drift of the stored weights gives.
    ``relative_difference`` is the distance from the stored average over its norm.
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
    with prepare(others, chosen.t, [chosen.gamma], fit) as prepared, contextlib.closing(chosen.open()) as stored:
        difference = _Difference(stored)
        total = prepared.num_elements
        with tqdm(total=total, unit=" elements", unit_scale=True, disable=not progress) as bar:
            prepared.sums(torch.float32).run(difference, workers or min(8, os.cpu_count() or 1), bar.update)
        distance = expected_distance(prepared, 0)
    root = math.sqrt(difference.squares / total)
    return Check(
        source=chosen,
        step=chosen.step,
        sigma_rel=sigma_rel_from_gamma(chosen.gamma),
        predicted_error=float(prepared.fit.predicted_error[0]),
        measured_error=root / distance if distance else (0.0 if root == 0 else math.inf),
        relative_difference=math.sqrt(difference.squares / difference.norm) if difference.norm else 0.0,
    )


class _Difference:
    """Compares what is rebuilt with what is stored, piece by piece."""

    def __init__(self, stored: Reader):
        self.squares = self.norm = 0.0
        self._stored, self._lock = stored, threading.Lock()

    def __call__(self, name: str, start: int, values: torch.Tensor) -> None:
        kept = torch.empty(values.shape[1], dtype=torch.float64)
        self._stored.read(name, start, start + values.shape[1], kept)
        squares, norm = float(((values[0].double() - kept) ** 2).sum()), float((kept**2).sum())
        with self._lock:
            self.squares += squares
            self.norm += norm


def _choose(sources: list[Source], step: float | None, sigma_rel: float | None) -> Source:
    """The average that is asked for, else the widest at the latest step that the others reach."""
    averages = [source for source in sources if source.gamma >= 0 and not math.isinf(source.gamma)]
    wanted = averages if step is None else [source for source in averages if source.step == step]
    if sigma_rel is not None:
        gamma = gamma_from_sigma_rel(sigma_rel)
        wanted = [source for source in wanted if abs(source.gamma - gamma) < 1e-6 * (1 + gamma)]
    reachable = [s for s in wanted if any(other is not s and other.t >= s.t for other in sources)]
    if not reachable:
        found = ", ".join([f"{step:g}" for step in dict.fromkeys(source.step for source in averages)][-10:])
        asked = [] if step is None else [f"step {step:g}"]
        asked += [] if sigma_rel is None else [f"sigma_rel {sigma_rel:g}"]
        raise SnapshotError(
            "a check needs a stored average and others at its step or after it to rebuild it from; "
            + (f"asked for {' and '.join(asked)}, " if asked else "")
            + (f"averages are stored at the steps {found}" if found else "there are checkpoints only, no average")
        )
    return max(reachable, key=lambda source: (source.t, -source.gamma))
