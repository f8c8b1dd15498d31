"""When to write snapshots of a run, and of which averages, by the error to expect of what is built from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np

from .clock import whole
from .fit import fit
from .profile import MAX_SIGMA_REL, check_sigma_rel, gamma_from_sigma_rel

Spacing = Literal["end", "even"]

WIDTHS = (0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.20)
"""Widths that `plan` chooses from."""
DENSITIES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
NUM_WANTED = 13
MAX_COUNT = 1024


@dataclass(frozen=True)
class Plan:
    """Times of snapshots, rising, the last one being the end of the run; and what they will be good for.

    `errors`: wanted width -> expected error of the average built at the end, as a fraction of its distance from the
    model's own weights, for weights that move like a random walk and are stored without rounding.
    """

    times: tuple[int, ...]
    sigma_rel: tuple[float, ...]
    errors: dict[float, float]

    @property
    def worst_error(self) -> float:
        """The largest expected error over the wanted range."""
        return max(self.errors.values())

    def is_due(self, before: int, now: int) -> bool:
        """Whether a planned time lies after `before` and not after `now`."""
        return any(before < time <= now for time in self.times)

    def num_bytes(self, num_parameters: int, bytes_each: int = 4) -> int:
        """Space that the snapshots take on disk."""
        return len(self.times) * len(self.sigma_rel) * num_parameters * bytes_each


def plan(
    total: int,
    count: int | None = None,
    *,
    sigma_rel: float | Iterable[float] | None = None,
    wanted: tuple[float, float] = (0.02, 0.25),
    spacing: Spacing = "end",
    max_error: float | None = None,
    num_averages: int = 2,
) -> Plan:
    """The best plan for a run of `total` applied updates (or images).

    Args:
        count: number of snapshots; the smallest that keeps `max_error` unless given.
        sigma_rel: widths of the averages to keep; the best `num_averages` of plan.WIDTHS unless given.
        wanted: smallest and largest width that will be asked for.
        spacing: "end" is denser towards the end, best for averages that end with the run; "even" serves averages
            that end anywhere equally.
        max_error: largest expected error allowed over the wanted range.
    Raises: ValueError or TypeError saying what must hold, also when `max_error` cannot be reached.
    Example:
        >>> plan(100_000, 16, sigma_rel=(0.05, 0.10)).worst_error < 0.01
        True
    """
    total, count = whole(total, "total"), None if count is None else whole(count, "count")
    num_averages = whole(num_averages, "num_averages")
    _check(total, count, wanted, spacing, max_error, num_averages)
    widths = _wanted_widths(*wanted)
    if sigma_rel is None:
        candidates = list(itertools.combinations(WIDTHS, num_averages))
    else:
        candidates = [tuple(check_sigma_rel(width) for width in distinct_widths(sigma_rel))]
    if count is not None:
        best = _best(total, count, candidates, widths, spacing)
    else:
        best = _smallest(total, candidates, widths, spacing, max_error or 0.01)
    if max_error is not None and best.worst_error > max_error:
        raise ValueError(
            f"{len(best.times)} snapshots of {best.sigma_rel} give an expected error of {best.worst_error:.2g} over "
            f"{wanted}, above max_error={max_error:g}; allow more snapshots, more averages or a narrower range"
        )
    return best


def distinct_widths(sigma_rel: float | Iterable[float]) -> tuple[float, ...]:
    """One or several widths as a tuple. Raises: ValueError unless there is one, and no two are alike."""
    widths = tuple(float(width) for width in (sigma_rel if isinstance(sigma_rel, Iterable) else (sigma_rel,)))
    if not widths or len({f"{width:.6f}" for width in widths}) < len(widths):
        raise ValueError(f"`sigma_rel` must be one or several widths that differ by 1e-6 or more, got {widths}")
    return widths


def _smallest(
    total: int, candidates: list[tuple[float, ...]], widths: list[float], spacing: Spacing, max_error: float
) -> Plan:
    low, high = 1, 2
    while (best := _best(total, high, candidates, widths, spacing)).worst_error > max_error and high < MAX_COUNT:
        low, high = high, min(2 * high, total, MAX_COUNT)
        if low == high:
            return best
    while high - low > 1:
        middle = (low + high) // 2
        tried = _best(total, middle, candidates, widths, spacing)
        if tried.worst_error <= max_error:
            best, high = tried, middle
        else:
            low = middle
    return best


def _best(total: int, count: int, candidates: list[tuple[float, ...]], widths: list[float], spacing: Spacing) -> Plan:
    densities = DENSITIES if spacing == "end" else (1.0,)
    plans = [
        Plan(times, kept, predicted_errors(times, kept, widths))
        for kept in candidates
        for times in {_times(total, count, density): None for density in densities}
    ]
    return min(plans, key=lambda made: made.worst_error)


def predicted_errors(times: Sequence[int], sigma_rel: Sequence[float], widths: Sequence[float]) -> dict[float, float]:
    """Expected error of each width, built at the last time from snapshots of every average at all times."""
    t, gamma = zip(*itertools.product(times, map(gamma_from_sigma_rel, sigma_rel)), strict=True)
    end = [times[-1]] * len(widths)
    made = fit(t, gamma, end, [gamma_from_sigma_rel(width) for width in widths])
    return dict(zip(widths, made.predicted_error.tolist(), strict=True))


def _times(total: int, count: int, density: float) -> tuple[int, ...]:
    """`count` times up to `total`; with a density above 1, gaps shrink towards the end."""
    fractions = 1 - (1 - np.arange(1, count + 1) / count) ** density
    times = np.unique(np.clip(np.round(fractions * total).astype(np.int64), 1, total))
    return tuple(times.tolist())


def _wanted_widths(low: float, high: float) -> list[float]:
    return [float(width) for width in np.geomspace(low, high, NUM_WANTED)]


def _check(
    total: int,
    count: int | None,
    wanted: tuple[float, float],
    spacing: str,
    max_error: float | None,
    num_averages: int,
) -> None:
    wrong = []
    if total < 1:
        wrong.append(f"`total` must be 1 or more, got {total}")
    if count is not None and not 1 <= count <= min(total, MAX_COUNT):
        wrong.append(f"`count` must lie between 1 and `total` (and {MAX_COUNT}), got {count}")
    if count is None and max_error is None:
        wrong.append("give `count`, or `max_error` for the smallest count that keeps it")
    if max_error is not None and not (isinstance(max_error, Real) and 0 < max_error < math.inf):
        wrong.append(f"`max_error` must be a number above 0, got {max_error!r}")
    if not _is_range(wanted):
        wrong.append(f"`wanted` must be two rising widths in (0, {MAX_SIGMA_REL:.4f}], got {wanted}")
    if spacing not in ("end", "even"):
        wrong.append(f"`spacing` must be 'end' or 'even', got {spacing!r}")
    if not 1 <= num_averages <= 3:
        wrong.append(f"`num_averages` must be 1, 2 or 3, got {num_averages}")
    if wrong:
        raise ValueError("; ".join(wrong))


def _is_range(wanted: object) -> bool:
    if not (isinstance(wanted, Sequence) and len(wanted) == 2 and all(isinstance(width, Real) for width in wanted)):
        return False
    return 0 < wanted[0] <= wanted[1] <= MAX_SIGMA_REL
