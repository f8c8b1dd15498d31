"""Which averaging length is best: a metric over a grid of widths, measured once each, kept on disk, resumable."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shlex
import subprocess
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from .fit import Kind
from .header import SnapshotError
from .inputs import InputOptions
from .profile import check_sigma_rel
from .reconstruct import Inputs, reconstruct
from .result import REFUSE_ABOVE, Reconstruction, ReconstructionWarning

FORMAT = "accelerate_ext.ema.sweep/1"
GRID = (0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.09, 0.11, 0.13, 0.16, 0.20, 0.25)
POINTS_OF_THE_FIT = 5
REACH_OF_THE_FIT = 2.0  # a metric is much like a parabola this far from the best width, as a factor, and not farther

Direction = Literal["min", "max"]
Metric = Callable[[Path], float] | str | Sequence[str]


class MetricError(RuntimeError):
    """The metric could not be measured. What was measured before is kept."""


@dataclass(frozen=True)
class Point:
    """The metric at one width; nan where it gave no finite number."""

    sigma_rel: float
    value: float
    predicted_error: float


@dataclass(frozen=True)
class Sweep:
    """A metric over widths. ``settings`` say what was measured; only sweeps with the same ones continue each other."""

    settings: dict[str, Any]
    points: tuple[Point, ...] = ()
    label: str = ""
    direction: Direction = "min"

    def best(self) -> tuple[float, float] | None:
        """Width and value at the optimum of a parabola in log sigma_rel through the points around the best one.

        The best point itself where these do not surround an optimum; None without a finite value.
        """
        points = [point for point in self.points if math.isfinite(point.value)]
        if not points:
            return None
        sign = 1.0 if self.direction == "min" else -1.0
        top = min(points, key=lambda point: sign * point.value)
        near = _around(top, points)
        if len(near) >= 3:
            x = np.array([math.log(point.sigma_rel / top.sigma_rel) for point in near])
            y = np.array([sign * point.value for point in near])
            curve, slope, level = np.polyfit(x, y, 2)
            at = -slope / (2 * curve) if curve > 0 else math.inf
            if x.min() <= at <= x.max():
                return float(top.sigma_rel * math.exp(at)), float(sign * (level - slope**2 / (4 * curve)))
        return top.sigma_rel, top.value

    def with_point(self, point: Point) -> Sweep:
        """This sweep with one measurement more."""
        return replace(self, points=tuple(sorted((*self.points, point), key=lambda p: p.sigma_rel)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; nan becomes None."""
        best = self.best()
        return {
            "format": FORMAT,
            "label": self.label,
            "direction": self.direction,
            "settings": self.settings,
            "points": [
                {
                    "sigma_rel": point.sigma_rel,
                    "value": point.value if math.isfinite(point.value) else None,
                    "predicted_error": point.predicted_error,
                }
                for point in self.points
            ],
            "best": None if best is None else {"sigma_rel": best[0], "value": best[1]},
        }

    def to_csv(self) -> str:
        """One line a width, with a header line."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["label", "sigma_rel", "value", "predicted_error"])
        rows.writerows([self.label, p.sigma_rel, p.value, p.predicted_error] for p in self.points)
        return text.getvalue()

    @classmethod
    def load(cls, path: str | Path) -> Sweep:
        """A sweep that was kept on disk. Raises: SnapshotError naming the file if it is none."""
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            if stored["format"] != FORMAT:
                raise ValueError(f"its format is {stored['format']!r}")
            points = [
                Point(p["sigma_rel"], math.nan if p["value"] is None else p["value"], p["predicted_error"])
                for p in stored["points"]
            ]
            return cls(stored["settings"], tuple(points), stored["label"], stored["direction"])
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{path} must be the results of a sweep, format {FORMAT!r} ({error})") from error

    def save(self, path: Path) -> None:
        """Replaces the file, whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, path)


def sweep(
    inputs: Inputs,
    metric: Metric,
    results: str | Path,
    sigma_rel: Iterable[float] = GRID,
    *,
    step: float | None = None,
    fit: Kind = "walk",
    dtype: str = "float32",
    direction: Direction = "min",
    label: str = "",
    folder: str | Path | None = None,
    keep: bool = False,
    batch: int = 4,
    options: InputOptions | None = None,
    force: bool = False,
    progress: bool = False,
) -> Sweep:
    """Measures the metric for each width and finds the best one. Widths that ``results`` already has are not repeated.

    Args:
        metric: called with the path of a ``.safetensors`` file, returns a number; or a command, in which ``{path}``
            and ``{sigma_rel}`` are filled in and whose last line of output is the number.
        results: JSON file that is replaced after every measurement.
        folder: where the averages are built, ``batch`` at once, and left if ``keep``; beside ``results`` unless given.
        force: also measure widths whose predicted error is above 50 %; these are left out otherwise.

    Raises: MetricError if the metric fails; SnapshotError if ``results`` is of another sweep.
    """
    widths, results = _checked(sigma_rel, direction, batch), Path(results)
    place = Path(folder) if folder else results.parent / f"{results.stem}-averages"

    def build(some: Sequence[float], dry_run: bool = False) -> Reconstruction:
        chosen: dict[str, Any] = {"step": step, "fit": fit, "output": place, "dtype": dtype, "options": options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReconstructionWarning)  # the predicted errors are part of the results
            return reconstruct(inputs, some, force=True, overwrite=True, dry_run=dry_run, **chosen)

    expected = build(widths, dry_run=True)
    done = _started(results, Sweep(_settings(inputs, metric, expected, dtype), (), label, direction))
    errors = dict(zip(widths, expected.predicted_error, strict=True))
    measured = {point.sigma_rel for point in done.points}
    missing = [width for width in widths if width not in measured and (force or errors[width] <= REFUSE_ABOVE)]
    with tqdm(total=len(missing), unit=" widths", disable=not progress) as bar:
        for at in range(0, len(missing), batch):
            for point in _points(build(missing[at : at + batch]), metric, keep):
                done = done.with_point(point)
                done.save(results)
                bar.update()
    return done


def _points(built: Reconstruction, metric: Metric, keep: bool) -> Iterator[Point]:
    """The metric of each average that was built; the files go afterwards unless they are to be kept."""
    try:
        for width, path, error in zip(built.sigma_rel, built.paths, built.predicted_error, strict=True):
            yield Point(width, measure(metric, path, width), error)
    finally:
        for path in [] if keep else built.paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is left where something is in it
            built.paths[0].parent.rmdir()


def _around(top: Point, points: Sequence[Point]) -> list[Point]:
    """The nearest points, and of those that are farther away only the two next to the best one."""

    def distance(point: Point) -> float:
        return abs(math.log(point.sigma_rel / top.sigma_rel))

    lower = max((p for p in points if p.sigma_rel < top.sigma_rel), key=lambda p: p.sigma_rel, default=top)
    upper = min((p for p in points if p.sigma_rel > top.sigma_rel), key=lambda p: p.sigma_rel, default=top)
    limit = math.log(REACH_OF_THE_FIT) + 1e-9
    near = [point for point in points if distance(point) <= limit or point in (lower, upper)]
    return sorted(near, key=distance)[:POINTS_OF_THE_FIT]


def measure(metric: Metric, path: Path, width: float) -> float:
    """The metric of one file; nan where it is not finite. Raises: MetricError if it cannot be measured."""
    if callable(metric):
        value = float(metric(path))
        return value if math.isfinite(value) else math.nan
    words = shlex.split(metric) if isinstance(metric, str) else list(metric)
    command = [word.replace("{path}", str(path)).replace("{sigma_rel}", f"{width:g}") for word in words]
    if command == words:
        raise MetricError(f"the command must say where the file goes, with {{path}}; got: {shlex.join(words)}")
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MetricError(f"cannot run {shlex.join(command)}: {error}") from error
    lines = ran.stdout.strip().splitlines()
    if ran.returncode:
        tail = "\n".join((ran.stderr.strip() or ran.stdout.strip()).splitlines()[-5:]) or "(it printed nothing)"
        raise MetricError(f"{shlex.join(command)} ended with exit code {ran.returncode}:\n{tail}")
    try:
        value = float(lines[-1])
    except (IndexError, ValueError) as error:
        found = repr(lines[-1]) if lines else "nothing"
        raise MetricError(f"the last line of {shlex.join(command)} must be a number, it is {found}") from error
    return value if math.isfinite(value) else math.nan


def _checked(sigma_rel: Iterable[float], direction: str, batch: int) -> list[float]:
    widths = sorted({check_sigma_rel(width) for width in sigma_rel})
    if not widths or direction not in ("min", "max") or batch < 1:
        raise ValueError(
            "a sweep needs one width or more, the direction 'min' or 'max', and a batch of 1 or more; got "
            f"{len(widths)} widths, {direction!r} and {batch}"
        )
    return widths


def _settings(inputs: Inputs, metric: Metric, expected: Reconstruction, dtype: str) -> dict[str, Any]:
    """What must be the same for one sweep to continue another."""
    paths = [str(inputs)] if isinstance(inputs, str | Path) else [str(path) for path in inputs]
    named = getattr(metric, "__qualname__", repr(metric)) if callable(metric) else metric
    command = named if isinstance(named, str) else shlex.join(named)
    return {"inputs": paths, "step": expected.step, "fit": expected.fit, "dtype": dtype, "metric": command}


def _started(results: Path, new: Sweep) -> Sweep:
    """What the file of results has so far; the new sweep where there is none."""
    if not results.exists():
        return new
    found = Sweep.load(results)
    before, now = ({**each.settings, "direction": each.direction} for each in (found, new))
    differing = [f"{name}: {before.get(name)!r}, now {now[name]!r}" for name in now if before.get(name) != now[name]]
    if differing:
        raise SnapshotError(f"{results} has the results of another sweep ({'; '.join(differing)}); name another file")
    return replace(found, label=new.label or found.label)
