"""When to write snapshots of a run, and of which averages, by the error to expect of what is built from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
import torch

from ..arguments import number_problem, whole
from .dtypes import SNAPSHOTS, dtype_of, name_of
from .fit import distance_from_model, fit
from .profile import MAX_SIGMA_REL, check_sigma_rel, gamma_from_sigma_rel

Spacing = Literal["end", "even"]

WIDTHS = (0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.20)
"""Widths that `plan` chooses from."""
DENSITIES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
NUM_WANTED = 13
MAX_COUNT = 1024
MANY = 128  # snapshots
ROUNDING = {"float32": 0.0, "bfloat16": 1.7e-3, "float16": 2.1e-4}
"""Root mean square rounding of stored weights over their root mean square; what float32 costs is lost in the rest."""
DISTANCE = 0.01
"""Of an average 0.05 wide from the model at the end of a run, over the norm of the weights, as small runs show it."""


@dataclass(frozen=True)
class Plan:
    """Times of snapshots, rising, the last one being the end of the run; and what they will be good for.

    `errors`: wanted width -> expected error of the average built at the end, as a fraction of its distance from the
    model's own weights, for weights that move like a random walk and are stored in `dtype`.
    """

    times: tuple[int, ...]
    sigma_rel: tuple[float, ...]
    errors: dict[float, float]
    dtype: str = "float32"

    @property
    def worst_error(self) -> float:
        """The largest expected error over the wanted range."""
        return max(self.errors.values())

    def is_due(self, before: int, now: int) -> bool:
        """Whether a planned time lies after `before` and not after `now`."""
        return any(before < time <= now for time in self.times)

    def num_bytes(self, num_parameters: int) -> int:
        """Space that the snapshots take on disk, without frozen parameters, buffers and headers."""
        return len(self.times) * len(self.sigma_rel) * num_parameters * dtype_of(self.dtype).itemsize


@dataclass(frozen=True)
class _Aim:
    """What a plan is judged by."""

    total: int
    widths: Sequence[float]
    spacing: Spacing
    dtype: str
    distance: float

    def plan(self, times: tuple[int, ...], kept: tuple[float, ...]) -> Plan:
        rounding = ROUNDING[self.dtype] / self.distance
        return Plan(times, kept, expected_errors(times, kept, self.widths, rounding), self.dtype)


def plan(
    total: int,
    count: int | None = None,
    *,
    sigma_rel: float | Iterable[float] | None = None,
    wanted: tuple[float, float] = (0.02, 0.25),
    spacing: Spacing = "end",
    max_error: float | None = None,
    num_averages: int = 2,
    dtype: torch.dtype | str = "float32",
    distance: float = DISTANCE,
) -> Plan:
    """The best plan for a run of `total` applied updates (or images).

    Args:
        count: number of snapshots; the smallest that keeps `max_error` unless given.
        sigma_rel: widths of the averages to keep; the best `num_averages` of plan.WIDTHS unless given.
        wanted: smallest and largest width that will be asked for.
        spacing: "end" is denser towards the end, best for averages that end with the run; "even" serves averages
            that end anywhere equally.
        max_error: largest expected error allowed over the wanted range.
        dtype: of the snapshots. Rounding to 16 bits is part of the expected error, and decides it where weights move
            little.
        distance: of an average 0.05 wide from the model at the end of the run, over the norm of the weights, which is
            what the rounding is compared with. Half of it doubles what 16 bits cost.
    Raises: ValueError or TypeError saying what must hold, also when `max_error` cannot be reached.
    Example:
        >>> plan(100_000, 16, sigma_rel=(0.05, 0.10)).worst_error < 0.01
        True
    """
    total, count = whole("total", total), None if count is None else whole("count", count)
    num_averages, dtype = whole("num_averages", num_averages), name_of(dtype)
    _check(total, count, wanted, spacing, max_error, num_averages, dtype, distance)
    aim = _Aim(total, wanted_widths(wanted), spacing, dtype, distance)
    candidates = _candidates(sigma_rel, num_averages)
    best = _smallest(aim, candidates, max_error) if count is None else _best(aim, count, candidates)
    if max_error is not None and best.worst_error > max_error:
        raise ValueError(_too_far(best, wanted, max_error, dtype, is_free=count is None))
    return best


def _candidates(sigma_rel: float | Iterable[float] | None, num_averages: int) -> list[tuple[float, ...]]:
    if sigma_rel is None:
        return list(itertools.combinations(WIDTHS, num_averages))
    return [tuple(check_sigma_rel(width) for width in distinct_widths(sigma_rel))]


def _too_far(best: Plan, wanted: tuple[float, float], max_error: float, dtype: str, is_free: bool) -> str:
    way_out = "no number of them comes near enough: allow a larger error" if is_free else "allow more snapshots"
    return (
        f"{len(best.times)} snapshots of {best.sigma_rel} give an expected error of {best.worst_error:.2g} over "
        f"{wanted}, above max_error={max_error:g}; {way_out}, more averages or a narrower range"
        + ("" if dtype == "float32" else f", or store float32 instead of {dtype}")
    )


def distinct_widths(sigma_rel: float | Iterable[float]) -> tuple[float, ...]:
    """One or several widths as a tuple. Raises: ValueError unless there is one, and no two are alike."""
    if isinstance(sigma_rel, str):
        raise TypeError(f"`sigma_rel` must be numbers, got the text {sigma_rel!r}")
    widths = tuple(float(width) for width in (sigma_rel if isinstance(sigma_rel, Iterable) else (sigma_rel,)))
    if not widths or len({f"{width:.6f}" for width in widths}) < len(widths):
        raise ValueError(f"`sigma_rel` must be one or several widths that differ by 1e-6 or more, got {widths}")
    return widths


def _smallest(aim: _Aim, candidates: list[tuple[float, ...]], max_error: float | None) -> Plan:
    """The plan of the fewest snapshots that keeps the error; where none does, one of so many that it can be seen."""
    limit = math.inf if max_error is None else max_error
    most = min(aim.total, MAX_COUNT)
    low, high = 0, 1
    while (best := _best(aim, high, candidates)).worst_error > limit and high < most:
        if high >= MANY:  # each doubling takes eight times as long
            if best.worst_error * (high / most) ** 4 > limit:  # it falls by less than the fourth power of the number
                return best
            candidates = [best.sigma_rel]  # which widths are best has settled by now
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        tried = _best(aim, middle, candidates)
        if tried.worst_error <= limit:
            best, high = tried, middle
        else:
            low = middle
    return best


def _best(aim: _Aim, count: int, candidates: list[tuple[float, ...]]) -> Plan:
    densities = DENSITIES if aim.spacing == "end" else (1.0,)
    plans = [
        aim.plan(times, kept)
        for kept in candidates
        for times in {_times(aim.total, count, density): None for density in densities}
    ]
    return min(plans, key=lambda made: made.worst_error)


def expected_errors(
    times: Sequence[int], sigma_rel: Sequence[float], widths: Sequence[float], rounding: float = 0.0
) -> dict[float, float]:
    """Expected error of each width, built at the last time from snapshots of every average at all times.

    Args:
        rounding: of the stored values, root mean square, over the distance of an average 0.05 wide from the model.
    """
    t, gamma = zip(*itertools.product(times, map(gamma_from_sigma_rel, sigma_rel)), strict=True)
    end = [times[-1]] * len(widths)
    noise = (rounding * distance_from_model(times[-1], gamma_from_sigma_rel(0.05))) ** 2
    made = fit(t, gamma, end, [gamma_from_sigma_rel(width) for width in widths], noise=noise)
    return dict(zip(widths, made.predicted_error.tolist(), strict=True))


def _times(total: int, count: int, density: float) -> tuple[int, ...]:
    """`count` times up to `total`; with a density above 1, gaps shrink towards the end."""
    fractions = 1 - (1 - np.arange(1, count + 1) / count) ** density
    times = np.unique(np.clip(np.round(fractions * total).astype(np.int64), 1, total))
    return tuple(times.tolist())


def wanted_widths(wanted: tuple[float, float]) -> list[float]:
    """Widths that stand for the wanted range."""
    return [float(width) for width in np.geomspace(*wanted, NUM_WANTED)]


def range_problem(wanted: object) -> str | None:
    """What is wrong with a wanted range; None if it is one."""
    is_pair = isinstance(wanted, Sequence) and len(wanted) == 2 and all(isinstance(width, Real) for width in wanted)
    if is_pair and 0 < wanted[0] <= wanted[1] <= MAX_SIGMA_REL:  # type: ignore[index]
        return None
    return f"`wanted` must be two rising widths in (0, {MAX_SIGMA_REL:.4f}], got {wanted}"


def _check(
    total: int,
    count: int | None,
    wanted: object,
    spacing: str,
    max_error: object,
    num_averages: int,
    dtype: str,
    distance: object,
) -> None:
    wrong = [range_problem(wanted), number_problem("distance", distance)]
    if total < 1:
        wrong.append(f"`total` must be 1 or more, got {total}")
    if count is not None and not 1 <= count <= min(total, MAX_COUNT):
        wrong.append(f"`count` must lie between 1 and `total` (and {MAX_COUNT}), got {count}")
    if count is None and max_error is None:
        wrong.append("give `count` (--count), or `max_error` (--max-error) for the smallest count that keeps it")
    if max_error is not None:
        wrong.append(number_problem("max_error", max_error))
    if spacing not in ("end", "even"):
        wrong.append(f"`spacing` must be 'end' or 'even', got {spacing!r}")
    if not 1 <= num_averages <= 3:
        wrong.append(f"`num_averages` must be 1, 2 or 3, got {num_averages}")
    if dtype not in SNAPSHOTS:
        wrong.append(f"`dtype` must be one of {', '.join(SNAPSHOTS)}, got {dtype!r}")
    if said := [problem for problem in wrong if problem]:
        raise ValueError("; ".join(said))
