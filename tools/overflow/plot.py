"""Draws what moved when: a column an attempt, a row each thing that should move with applied updates only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .curves import draw_curves
from .launch import Finished
from .table import crashed
from .timeline import Timeline
from .verdicts import Verdict, judge, short_name

_MOST_COLUMNS = 40  # with more attempts the columns would be too narrow to read
APPLIED, WRONG, IDLE, INK, FAINT, BAND = "#2a9d5c", "#d62839", "#8d99ae", "#222222", "#e9ecef", "#fbe3e4"
_MARKS = {
    APPLIED: "moved with an applied update",
    WRONG: "moved on a skipped one, or wrong because of it",
    BAND: "skipped attempt (inf: overflow put in)",
    IDLE: "came at a skipped one, not as an update",
}


@dataclass
class Row:
    """One thing over time: a word in each attempt's column where it moved."""

    title: str
    total: str
    cells: dict[int, str] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)
    plain: bool = False  # a value, not a move

    def colours(self, timeline: Timeline) -> dict[int, str]:
        """The colour of each column's word: whether it is wrong, or else came with an applied update."""
        found, before = {}, 0
        for column in sorted(self.cells):
            is_right = any(attempt.applied for attempt in timeline.attempts[before:column])
            found[column] = WRONG if column in self.wrong else APPLIED if is_right else IDLE
            before = column
        return found


def draw(runs: Sequence[Finished], path: Path) -> None:
    """Write the figure: one panel a run, over the same attempts. The file's ending names the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = max([len(run.timeline.attempts) for run in runs] + [1])
    if columns > _MOST_COLUMNS:
        figure = draw_curves(pyplot, runs)
    else:
        figure = _panels(pyplot, runs, columns)
    figure.savefig(path, dpi=150, facecolor="white")
    pyplot.close(figure)


def _panels(pyplot: Any, runs: Sequence[Finished], columns: int) -> Any:
    rows = [rows_of(run.timeline) for run in runs]
    heights = [len(found) + 1.7 for found in rows]
    inches = 0.36 * sum(heights) + 0.6
    width = min(max(9.0, 4.6 + 0.62 * columns), 30.0)
    figure, axes = pyplot.subplots(len(runs), 1, figsize=(width, inches), height_ratios=heights, squeeze=False)
    has_idle = False
    for panel, run, found in zip(axes[:, 0], runs, rows, strict=True):
        _draw_panel(panel, run, found, columns)
        has_idle |= any(IDLE in row.colours(run.timeline).values() for row in found if not row.plain)
    _legend(figure, pyplot, has_idle)
    edges = {"left": 1.7 / width, "right": 1 - 1.3 / width, "top": 1 - 0.1 / inches, "bottom": 0.5 / inches}
    figure.subplots_adjust(**edges, hspace=0.02)
    return figure


def rows_of(timeline: Timeline) -> list[Row]:
    """What the run shows, from the weights down to the checkpoints; what the script does not have is left out."""
    verdicts = judge(timeline)
    applied = [attempt.applied for attempt in timeline.attempts]
    weights = Row("weights", f"{sum(applied)} updates")
    updates = iter(range(1, len(applied) + 1))
    for attempt in timeline.attempts:
        if attempt.applied:
            weights.cells[attempt.index] = str(next(updates))
    weights.wrong = {attempt.index for attempt in timeline.attempts if not attempt.weights_finite}
    rows = [weights, *_numbered(timeline, verdicts)]
    rows += _counters(timeline, verdicts)
    rows.append(_scale(timeline))
    rows.append(_row(timeline, verdicts, "log", "logged step", "log-moved", lambda event: f"{event['step']}"))
    rows.append(_row(timeline, verdicts, "save", "checkpoint", "checkpoint-repeated", _save_name))
    return [row for row in rows if row.cells or row is weights]


def _row(
    timeline: Timeline, verdicts: Sequence[Verdict], kind: str, title: str, code: str, word: Callable[[Any], str]
) -> Row:
    row = Row(title, "")
    for event in timeline.of(kind):
        if kind != "log" or event["step"] is not None:
            row.cells[max(event["after"], 1)] = word(event)
    row.total = f"{len(row.cells)} {'logged' if kind == 'log' else 'saved'}"
    row.wrong = _wrong(timeline, verdicts, code) | (
        _wrong_saves(timeline, verdicts) if kind == "save" else _wrong(timeline, verdicts, "loss-window", after=True)
    )
    return row


def _save_name(event: Any) -> str:
    short = short_name(event)
    digits = "".join(character for character in short if character.isdigit())
    return digits if short.startswith("checkpoint") and digits else short[:9]


def _wrong(timeline: Timeline, verdicts: Sequence[Verdict], code: str, after: bool = False) -> set[int]:
    """Columns of the attempts that findings of one kind name; with `after`, the next applied attempt's."""
    numbers = {verdict.attempt for verdict in verdicts if verdict.code == code}
    columns = {attempt.index for attempt in timeline.attempts if attempt.number in numbers and not attempt.applied}
    if not after:
        return columns
    applied = [attempt.index for attempt in timeline.attempts if attempt.applied]
    return {next((index for index in applied if index > column), column) for column in columns}


def _wrong_saves(timeline: Timeline, verdicts: Sequence[Verdict]) -> set[int]:
    messages = [verdict.message for verdict in verdicts if verdict.code == "checkpoint-number"]
    names = {message.split(" ", 1)[0] for message in messages}
    return {event["after"] for event in timeline.of("save") if short_name(event) in names}


def _numbered(timeline: Timeline, verdicts: Sequence[Verdict]) -> list[Row]:
    """Averages, schedulers and bars: the number of moves so far in each column."""
    rows: dict[tuple[str, int], Row] = {}
    titles = {
        "average": ("EMA", "average-moved"),
        "scheduler": ("scheduler", "scheduler-moved"),
        "bar": ("progress bar", "progress-moved"),
    }
    for kind, (title, code) in titles.items():
        events = timeline.of(kind)
        several = len({event["number"] for event in events}) > 1
        counts: dict[int, int] = {}
        for event in events:
            if event["moved"] in (False, 0):
                continue
            number = event["number"]
            counts[number] = counts.get(number, 0) + int(event["moved"] if kind == "bar" else 1)
            name = f"{title} {number}" if several else title
            row = rows.setdefault((kind, number), Row(name, "", wrong=_wrong(timeline, verdicts, code)))
            row.cells[max(event["after"], 1)] = str(counts[number])
            row.total = f"{counts[number]} moves" if kind != "average" else f"{counts[number]} calls"
    return list(rows.values())[:8]


def _counters(timeline: Timeline, verdicts: Sequence[Verdict]) -> list[Row]:
    rows = []
    for name, events in timeline.grouped("counter", "name").items():
        row = Row(name, f"at {events[-1]['value']}", wrong=_wrong(timeline, verdicts, "counter-moved"))
        for event in events[1:] if len(events) > 1 else events:
            row.cells[max(event["after"], 1)] = str(event["value"])
        rows.append(row)
    return rows


def _scale(timeline: Timeline) -> Row:
    """The loss scale where it changes."""
    row, before = Row("loss scale", "", plain=True), None
    for attempt in timeline.attempts:
        after = attempt.scale[-1] if attempt.scale else None
        if after is not None and after != before:
            power = math.log2(after) if after > 0 else 0.5
            row.cells[attempt.index] = f"$2^{{{power:.0f}}}$" if power == int(power) else f"{after:.3g}"
            before = after
    return row


def _draw_panel(panel: Any, run: Finished, rows: Sequence[Row], columns: int) -> None:
    timeline = run.timeline
    has_defects = any(verdict.is_defect for verdict in judge(timeline))
    panel.set_xlim(0.5, columns + 0.5)
    top, bottom = -1.3, len(rows) + 0.4
    panel.set_ylim(bottom, top)
    panel.axis("off")
    panel.text(0.5, -1.05, run.job.name, fontsize=11, fontweight="bold", color=INK, va="center")
    panel.text(
        columns + 0.5,
        -1.05,
        headline(run),
        fontsize=9.5,
        color=WRONG if has_defects or crashed(run) else APPLIED,
        va="center",
        ha="right",
    )
    panel.text(0.4, -0.35, "attempt", fontsize=9, color=IDLE, ha="right", va="center")
    for attempt in timeline.attempts:
        if not attempt.applied:
            low, high = attempt.index - 0.5, attempt.index + 0.5
            panel.fill_between([low, high], -0.6, len(rows) + 0.1, color=BAND, linewidth=0, zorder=0)
        panel.text(attempt.index, -0.35, str(attempt.number), fontsize=9, color=IDLE, ha="center", va="center")
    for line, row in enumerate(rows):
        _draw_row(panel, row, line + 0.5, timeline, columns)


def headline(run: Finished) -> str:
    """The verdict on a run in one line."""
    defects = [verdict.message for verdict in judge(run.timeline) if verdict.is_defect]
    if defects:
        more = f"  (+{len(defects) - 1} more)" if len(defects) > 1 else ""
        return defects[0].split(":")[0] + more
    if crashed(run):
        return "the script failed: the run proves nothing"
    is_finite = all(attempt.applied for attempt in run.timeline.attempts)
    return "no update was skipped" if is_finite else "nothing moved on a skipped update"


def _draw_row(panel: Any, row: Row, y: float, timeline: Timeline, columns: int) -> None:
    if not row.plain:
        panel.plot([0.6, columns + 0.4], [y, y], color=FAINT, linewidth=1.5, zorder=1)
    panel.text(0.4, y, row.title, fontsize=9.5, color=INK, ha="right", va="center")
    panel.text(columns + 0.6, y, row.total, fontsize=9.5, color=INK, ha="left", va="center")
    size = 8.5 if columns <= 25 else 7
    colours = row.colours(timeline)
    for column, word in row.cells.items():
        if row.plain:
            panel.text(column, y, word, fontsize=size, color=INK, ha="center", va="center", zorder=3)
            continue
        shape = "square,pad=0.3" if colours[column] == WRONG else "round,pad=0.28"
        box = {"boxstyle": shape, "facecolor": colours[column], "edgecolor": "none"}
        panel.text(column, y, word, fontsize=size, color="white", ha="center", va="center", bbox=box, zorder=3)
    if row.title != "weights":
        return
    for attempt in timeline.attempts:
        if not attempt.applied:
            word = "inf" if attempt.injected else attempt.outcome
            panel.text(
                attempt.index,
                y,
                word,
                fontsize=size,
                color=WRONG,
                fontweight="bold",
                ha="center",
                va="center",
                zorder=3,
            )


def _legend(figure: Any, pyplot: Any, has_idle: bool) -> None:
    """The colours below the panels, in two lines where the seldom one is among them."""
    marks = {colour: text for colour, text in _MARKS.items() if has_idle or colour != IDLE}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in marks]
    look = {"loc": "lower center", "frameon": False, "fontsize": 8.5, "handlelength": 1.0}
    figure.legend(handles, list(marks.values()), ncols=2 if has_idle else 3, **look)
