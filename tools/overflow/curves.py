"""The figure of a long run: how far each thing runs ahead of the applied updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .launch import Finished
from .timeline import Timeline

_RIGHT = "#2a9d5c"
_COLOURS = ("#d62839", "#e09f3e", "#7b2d8b", "#3a6ea5")


def ahead(timeline: Timeline) -> dict[str, list[int]]:
    """Name -> for each attempt, the moves of that thing minus the applied updates, up to the next attempt."""
    applied, total = [], 0
    for attempt in timeline.attempts:
        total += attempt.applied
        applied.append(total)
    moves: dict[str, list[int]] = {}
    names = {"average": "EMA calls", "scheduler": "scheduler steps", "bar": "progress bar"}
    for event in timeline.of("average", "scheduler", "bar"):
        if event["moved"] not in (False, 0) and event["after"] > 0:
            name = names[event["event"]] + (f" {event['number']}" if event["number"] > 1 else "")
            moves.setdefault(name, [0] * len(applied))[event["after"] - 1] += 1
    for name, events in timeline.grouped("counter", "name").items():
        value = events[0]["value"]
        steps = moves.setdefault(name, [0] * len(applied))
        for event in events[1:]:
            if event["after"] > 0:
                steps[event["after"] - 1] += event["value"] - value
            value = event["value"]
    curves = {}
    for name, steps in moves.items():
        so_far, curve = 0, []
        for step, done in zip(steps, applied, strict=True):
            so_far += step
            curve.append(so_far - done)
        curves[name] = curve
    return curves


def together(curves: dict[str, list[int]]) -> dict[str, list[int]]:
    """Things that run ahead by the same at every attempt share one line."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, curve in curves.items():
        groups.setdefault(tuple(curve), []).append(name)
    return {
        f"{', '.join(names)}: {curve[-1]:+d}" if any(curve) else ", ".join(names): list(curve)
        for curve, names in groups.items()
    }


def draw_curves(pyplot: Any, runs: Sequence[Finished]) -> Any:
    """One panel a run: skipped attempts as marks, and lines that stay at zero where only applied updates count."""
    shape = {"figsize": (11, 2.6 * len(runs) + 0.3), "squeeze": False, "constrained_layout": True}
    figure, axes = pyplot.subplots(len(runs), 1, sharex=True, sharey=True, **shape)
    for panel, run in zip(axes[:, 0], runs, strict=True):
        _draw_panel(panel, run)
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(min(low, -0.5), max(high * 1.25, 1.5))
    axes[0, 0].yaxis.get_major_locator().set_params(integer=True)
    axes[-1, 0].set_xlabel("attempt (a vertical line marks a skipped one)")
    return figure


def _draw_panel(panel: Any, run: Finished) -> None:
    timeline = run.timeline
    skipped = [attempt.index for attempt in timeline.attempts if not attempt.applied]
    for index in skipped:
        panel.axvline(index, color="#f3b6bb", linewidth=1, zorder=0)
    colours = iter(_COLOURS)
    for label, curve in together(ahead(timeline)).items():
        colour = next(colours, "#555555") if any(curve) else _RIGHT
        panel.step(range(1, len(curve) + 1), curve, where="post", label=label, color=colour, linewidth=2.5)
    applied = len(timeline.attempts) - len(skipped)
    title = f"{run.job.name}: {len(timeline.attempts)} attempts, {applied} applied, {len(skipped)} skipped"
    panel.set_title(title, loc="left", fontsize=11, fontweight="bold")
    panel.set_ylabel("moves beyond the\napplied updates")
    panel.spines[["top", "right"]].set_visible(False)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="upper left", frameon=False, fontsize=9)
