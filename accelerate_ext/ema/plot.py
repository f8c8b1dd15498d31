"""Figures: averaging profiles, a fit against what was asked for, errors to expect, and a metric over widths.

Needs matplotlib, the extra ``plot``. Every function returns a figure; ``save`` writes it by the ending of the name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..staging import write_whole
from .fit import fit
from .profile import cumulative, density, gamma_from_sigma_rel
from .result import Reconstruction
from .sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COUNTS = (4, 6, 8, 12, 16, 24, 32, 48, 64)
WANTED = (0.02, 0.05, 0.075, 0.10, 0.15, 0.20, 0.25)


def plot_profiles(sigma_rel: Sequence[float]) -> Figure:
    """The weight that averages of these widths give to each part of the run."""
    figure, axes = _figure()
    tau = np.linspace(0, 1, 1001)
    for width in sigma_rel:
        gamma = gamma_from_sigma_rel(width)
        axes.plot(tau, density(tau, 1, gamma), label=f"{width:g} (gamma {gamma:.2f})")
    axes.set(
        xlabel="part of training", ylabel="weight (area 1)", title="Averaging profiles", xlim=(0, 1), ylim=(0, None)
    )
    axes.legend(title="sigma_rel")
    return figure


def plot_fit(result: Reconstruction) -> Figure:
    """What was built against what was asked for, as the weight up to each step, and the difference."""
    figure, (upper, lower) = _figure(rows=2, sharex=True)
    end = max(source.t for source in result.sources)
    steps = np.unique(np.concatenate([np.linspace(0, end, 2001), [source.t for source in result.sources]]))
    for column, width in enumerate(result.sigma_rel):
        wanted = cumulative(steps, _end(result), gamma_from_sigma_rel(width))
        built = sum(
            weight * cumulative(steps, source.t, source.gamma)
            for weight, source in zip(result.weights[:, column], result.sources, strict=True)
        )
        (line,) = upper.plot(steps, built, label=f"{width:g}: expected error {result.predicted_error[column]:.2g}")
        upper.plot(steps, wanted, linestyle=":", color="black", linewidth=1)
        lower.plot(steps, built - wanted, color=line.get_color())
    upper.set(ylabel="weight up to the step", title=f"Fit ({result.fit}); dotted: asked for")
    lower.set(xlabel="step", ylabel="difference")
    upper.legend(title="sigma_rel")
    return figure


def plot_errors(
    stored: Sequence[float] = (0.05, 0.10), wanted: Sequence[float] = WANTED, counts: Sequence[int] = COUNTS
) -> Figure:
    """The error to expect of each wanted width against the number of evenly spaced snapshots of the stored ones."""
    figure, axes = _figure()
    targets = [gamma_from_sigma_rel(width) for width in wanted]
    errors = []
    for count in counts:
        t = np.repeat(np.arange(1, count + 1) / count, len(stored))
        gamma = np.tile([gamma_from_sigma_rel(width) for width in stored], count)
        errors.append(fit(t, gamma, 1.0, targets).predicted_error)
    for width, line in zip(wanted, np.array(errors).T, strict=True):
        if line.any():  # a stored width has no error
            axes.plot(counts, line, marker="o", label=f"{width:g}")
    axes.set(xscale="log", yscale="log", xlabel="snapshots of each width", ylabel="expected relative error")
    axes.set_xticks(list(counts), [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_title(f"Stored: sigma_rel {', '.join(f'{width:g}' for width in stored)}")
    axes.legend(title="wanted")
    return figure


def plot_sweeps(sweeps: Sequence[Sweep], metric: str = "metric") -> Figure:
    """The metric against the width, a line a run (a learning rate, say), with the best width of each marked."""
    if not sweeps or not any(math.isfinite(point.value) for each in sweeps for point in each.points):
        raise ValueError("there is nothing to plot: no sweep has a finite value")
    figure, axes = _figure()
    for number, each in enumerate(sweeps):
        points = [point for point in each.points if math.isfinite(point.value)]
        label = each.label or f"run {number + 1}"
        (line,) = axes.plot([p.sigma_rel for p in points], [p.value for p in points], marker="o", label=label)
        if best := each.best():
            axes.plot(*best, marker="*", markersize=14, color=line.get_color(), zorder=3)
            axes.annotate(f"{best[0]:.3f}", best, textcoords="offset points", xytext=(0, 10), ha="center")
    axes.set(
        xlabel="sigma_rel",
        ylabel=metric,
        title=_title(sweeps),
    )
    axes.legend()
    return figure


def _title(sweeps: Sequence[Sweep]) -> str:
    """What the stars are."""
    found = [each for each in sweeps if each.best() is not None]
    if all(each.is_estimated for each in found):
        return "Star: the best width, by a parabola through the points around it"
    text = "Star: the best width measured"
    if any(each.is_estimated for each in found):
        text = "Star: the best width, by a parabola where points surround it"
    return text + (";\nat an end of a line the best one may lie outside" if any(each.edge for each in found) else "")


def save(figure: Figure, path: str | Path) -> Path:
    """Writes the figure in the format of the name's ending, whole or not at all.

    Raises: ValueError naming the endings that work; OSError naming the file.
    """
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise ValueError(f"{path} must end in one of {', '.join(sorted(known))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(path, functools.partial(figure.savefig, format=path.suffix.removeprefix(".")))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def _figure(rows: int = 1, **options: Any) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib: install it, or this package with the extra `plot`, which is "
            '`pip install "accelerate-ext[plot]"`, and in a clone `pip install ".[plot]"`'
        ) from error
    figure = Figure(figsize=(7, 4.5 if rows == 1 else 6), layout="constrained", dpi=120)
    axes = figure.subplots(rows, **options)
    for each in np.atleast_1d(axes):
        _style(each)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _end(result: Reconstruction) -> float:
    """The wanted averages' end on the clock of the stored ones."""
    return next((source.t for source in result.sources if source.step == result.step), result.step)
