"""Which averaging length is best: a metric over a grid of widths, measured once each, kept on disk, resumable."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from ..staging import write_whole
from .dtypes import name_of
from .fit import Kind
from .header import SnapshotError
from .inputs import InputOptions
from .metric import Measure, Metric
from .origin import training_of
from .profile import check_sigma_rel
from .reconstruct import Inputs, reconstruct
from .result import REFUSE_ABOVE, Reconstruction, ReconstructionWarning

FORMAT = "accelerate_ext.ema.sweep/1"
GRID = (0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.09, 0.11, 0.13, 0.16, 0.20, 0.25)
POINTS_OF_THE_FIT = 5
REACH_OF_THE_FIT = 2.0  # a metric is much like a parabola this far from the best width, as a factor, and not farther

Direction = Literal["min", "max"]
Edge = Literal["smallest", "largest", "only"]


@dataclass(frozen=True)
class Point:
    """The metric at one width, nan where it gave no finite number, and the expected error of that average."""

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

    @property
    def is_estimated(self) -> bool:
        """Whether the best width lies between measured ones, where the parabola has its optimum."""
        best = self.best()
        return best is not None and all(point.sigma_rel != best[0] for point in self.points)

    @property
    def edge(self) -> Edge | None:
        """Which end of the measured widths the best one is: the optimum may lie outside of them. None inside."""
        best, widths = self.best(), [point.sigma_rel for point in self.points if math.isfinite(point.value)]
        if best is None or min(widths) < best[0] < max(widths):
            return None
        if len(widths) == 1:
            return "only"
        return "smallest" if best[0] == min(widths) else "largest"

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
            "best": None if best is None else {"sigma_rel": best[0], "value": best[1], "edge": self.edge},
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
                Point(*(math.nan if p[name] is None else float(p[name]) for name in Point.__annotations__))
                for p in stored["points"]
            ]
            if stored["direction"] not in ("min", "max"):
                raise ValueError(f"its direction is {stored['direction']!r}")
            return cls(dict(stored["settings"]), tuple(points), str(stored["label"]), stored["direction"])
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{path} must be the results of a sweep, format {FORMAT!r} ({error})") from error

    def save(self, path: Path) -> None:
        """Replaces the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def sweep(
    inputs: Inputs,
    metric: Metric,
    results: str | Path,
    sigma_rel: Iterable[float] = GRID,
    *,
    step: float | None = None,
    fit: Kind = "walk",
    dtype: torch.dtype | str = "float32",
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
            and ``{sigma_rel}`` are filled in and whose last line of output is the number. A number that is not finite
            is kept as missing, and not measured again.
        results: JSON file that is replaced after every measurement.
        folder: where the averages are built, ``batch`` at once, and left if ``keep``; beside ``results`` unless given.
        force: also measure widths whose expected error is above 50 %; these are left out otherwise.

    Raises: MetricError if the metric fails; SnapshotError if ``results`` is of another sweep.
    Warns: ReconstructionWarning naming widths that are left out.
    """
    widths, results, measure = _checked(sigma_rel, direction, batch), Path(results), Measure(metric)
    place = Path(folder) if folder else results.parent / f"{results.stem}-averages"
    build = functools.partial(_build, inputs, step=step, fit=fit, output=place, dtype=dtype, options=options)
    expected = build(widths, dry_run=True)
    settings = _settings(inputs, measure, expected, name_of(dtype), options)
    done = _started(results, Sweep(settings, (), label, direction))
    missing = _missing(done, dict(zip(widths, expected.predicted_error, strict=True)), force)
    with tqdm(total=len(missing), unit=" widths", disable=not progress) as bar:
        for at in range(0, len(missing), batch):
            for point in _points(build(missing[at : at + batch]), measure, keep):
                done = done.with_point(point)
                done.save(results)
                bar.update()
    return done


def _build(inputs: Inputs, widths: Sequence[float], **chosen: Any) -> Reconstruction:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReconstructionWarning)  # the expected errors are part of the results
        return reconstruct(inputs, widths, force=True, overwrite=True, **chosen)


def _missing(done: Sweep, errors: Mapping[float, float], force: bool) -> list[float]:
    """The widths that are not measured yet, without those that cannot be built well enough."""
    measured = {point.sigma_rel for point in done.points}
    missing = [width for width in errors if width not in measured]
    far = [] if force else [width for width in missing if not errors[width] <= REFUSE_ABOVE]
    if far:
        listed = ", ".join(f"sigma_rel {width:g} ({errors[width]:.0%})" for width in far)
        warnings.warn(
            f"left out, with an expected error above {REFUSE_ABOVE:.0%}: {listed}; measure them all the same with "
            "force=True, --force",
            ReconstructionWarning,
            stacklevel=3,
        )
    return [width for width in missing if width not in far]


def _points(built: Reconstruction, measure: Measure, keep: bool) -> Iterator[Point]:
    """The metric of each average that was built; its file goes then, unless it is to be kept."""
    try:
        for width, path, error in zip(built.sigma_rel, built.paths, built.predicted_error, strict=True):
            value = measure(path, width)
            if not keep:
                path.unlink()
            yield Point(width, value, error)
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


def _checked(sigma_rel: Iterable[float], direction: str, batch: int) -> list[float]:
    widths = sorted({check_sigma_rel(width) for width in sigma_rel})
    if not widths or direction not in ("min", "max") or batch < 1:
        raise ValueError(
            "a sweep needs one width or more, the direction 'min' or 'max', and a batch of 1 or more; got "
            f"{len(widths)} widths, {direction!r} and {batch}"
        )
    return widths


def _settings(
    inputs: Inputs, measure: Measure, expected: Reconstruction, dtype: str, options: InputOptions | None
) -> dict[str, Any]:
    """What must be the same for one sweep to continue another, as it reads when it comes back from JSON."""
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    named = {"inputs": [str(Path(path)) for path in paths], "step": expected.step, "fit": expected.fit}
    given = {name: value for name, value in asdict(options or InputOptions()).items() if value is not None}
    named |= {"dtype": dtype, "metric": measure.name, "training": training_of(expected.sources)}
    text = json.dumps(named | given, default=str)
    return dict(json.loads(text))


def _started(results: Path, new: Sweep) -> Sweep:
    """What the file of results has so far; the new sweep where there is none."""
    if not results.exists():
        return new
    found = Sweep.load(results)
    if "training" not in found.settings:
        raise SnapshotError(
            f"{results} does not say which training it measured: an earlier version wrote it; name another file"
        )
    before, now = ({**each.settings, "direction": each.direction} for each in (found, new))
    differing = [
        f"{name}: {before.get(name)!r}, now {now.get(name)!r}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if differing:
        raise SnapshotError(f"{results} has the results of another sweep ({'; '.join(differing)}); name another file")
    return replace(found, label=new.label or found.label)
