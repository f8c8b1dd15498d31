"""Finds logged losses that hold the losses of skipped attempts as well as those of applied ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from .timeline import Attempt, Timeline, number

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_LEAST_DIFFERENCE = 1e-3  # relative; loggers round
_MUCH_CLOSER = 0.15


@dataclass(frozen=True)
class Finding:
    """A logged loss that fits the sum or mean over all attempts, and not the one over the applied attempts."""

    attempt: int
    message: str


@dataclass(frozen=True)
class Logged:
    """One value that was logged, and the attempts since the same key was logged before."""

    key: str
    step: object
    value: float
    attempts: tuple[Attempt, ...]

    @property
    def applied(self) -> list[float]:
        return [fmean(attempt.losses) for attempt in self.attempts if attempt.applied]

    @property
    def all(self) -> list[float]:
        return [fmean(attempt.losses) for attempt in self.attempts]


def loss_windows(timeline: Timeline) -> Iterator[Finding]:
    """How a script makes its logged value from a window's losses is learnt from the windows without a skip."""
    for logged in _logged(timeline).values():
        clean = [entry for entry in logged if all(attempt.applied for attempt in entry.attempts)]
        of_sums = _factor([entry.value / sum(entry.applied) for entry in clean if sum(entry.applied)])
        of_means = _factor([entry.value / fmean(entry.applied) for entry in clean if sum(entry.applied)])
        for entry in logged:
            if entry.applied and len(entry.applied) < len(entry.all):
                yield from _judge(entry, of_sums, of_means, is_each=all(len(other.attempts) == 1 for other in clean))


def _logged(timeline: Timeline) -> dict[tuple[str, str], list[Logged]]:
    found: dict[tuple[str, str], list[Logged]] = defaultdict(list)
    before: dict[tuple[str, str], int] = {}
    for event in timeline.of("log"):
        for key, value in event["values"].items():
            if "loss" not in key.lower() or key.lower().startswith(("eval", "val", "test", "train_loss_total")):
                continue
            name = (event["how"], key)
            attempts = tuple(timeline.attempts[before.get(name, 0) : event["after"]])
            before[name] = event["after"]
            value = float(number(value))
            if attempts and math.isfinite(value) and all(_usable(attempt) for attempt in attempts):
                found[name].append(Logged(key, event["step"], value, attempts))
    return found


def _usable(attempt: Attempt) -> bool:
    return bool(attempt.losses) and all(math.isfinite(loss) for loss in attempt.losses)


def _factor(ratios: Sequence[float]) -> float | None:
    """The factor that all windows agree on within a few percent; None if they do not, or there is none."""
    if not ratios:
        return None
    middle = median(ratios)
    agree = sum(abs(ratio - middle) <= 0.05 * abs(middle) for ratio in ratios)
    return middle if middle and 2 * agree > len(ratios) else None


def _judge(entry: Logged, of_sums: float | None, of_means: float | None, is_each: bool) -> Iterator[Finding]:
    right, wrong = [], []
    if of_sums is not None:
        right.append(of_sums * sum(entry.applied))
        wrong.append(of_sums * sum(entry.all))
    if of_means is not None:
        right.append(of_means * fmean(entry.applied))
        wrong.append(of_means * fmean(entry.all))
    if not right:
        return
    scale = abs(entry.value) or 1.0
    from_right = min(abs(entry.value - value) / scale for value in right)
    from_wrong = min(abs(entry.value - value) / scale for value in wrong)
    if from_right < _LEAST_DIFFERENCE or from_wrong > _MUCH_CLOSER * from_right:
        return
    skipped = [attempt for attempt in entry.attempts if not attempt.applied]
    windows = len(entry.attempts)
    best = min(right, key=lambda value: abs(entry.value - value))
    if is_each and len(entry.applied) == 1:
        count = _NUMBERS[windows] if windows < len(_NUMBERS) else str(windows)
        what = f"loss window of step {entry.step} holds {count} windows"
    else:
        what = f"loss window of step {entry.step} holds the skipped window of attempt {skipped[-1].number}"
    yield Finding(skipped[-1].number, f"{what}: {entry.key} {entry.value:.4g} in place of {best:.4g}")
