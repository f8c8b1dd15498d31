"""Judges a timeline: what moved although the update before it was skipped."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .losses import loss_windows
from .timeline import Attempt, Event, Timeline


@dataclass(frozen=True)
class Verdict:
    """One finding. A defect decides the exit code, a note does not. `attempt` counts as `--at` does."""

    code: str
    severity: str  # "defect" or "note"
    attempt: int | None
    message: str

    @property
    def is_defect(self) -> bool:
        return self.severity == "defect"


def named(attempt: Attempt, timeline: Timeline) -> str:
    """`attempt 4`, and whose if there are several optimizers."""
    several = len(timeline.optimizers) > 1
    return f"attempt {attempt.number}" + (f" of {timeline.optimizers[attempt.optimizer].name}" if several else "")


def between(timeline: Timeline, before: int, after: int, optimizers: Sequence[int] = ()) -> list[Attempt]:
    """The attempts that lie between two events, by how many attempts each of them came after."""
    wanted = set(optimizers)
    return [a for a in timeline.attempts[max(before, 0) : after] if not wanted or a.optimizer in wanted]


def only_skipped(attempts: Sequence[Attempt]) -> bool:
    return bool(attempts) and not any(attempt.applied for attempt in attempts)


def counted(timeline: Timeline) -> list[int]:
    """The optimizers whose updates count: those that `--optimizer` names, where it leaves any out."""
    chosen = [optimizer.number for optimizer in timeline.optimizers.values() if optimizer.chosen]
    return chosen if len(chosen) < len(timeline.optimizers) else []


def judge(timeline: Timeline) -> list[Verdict]:
    """All findings, defects first, each in the order of the run."""
    found = [verdict for rule in RULES for verdict in rule(timeline)]
    return sorted(found, key=lambda verdict: not verdict.is_defect)


def averages(timeline: Timeline) -> Iterator[Verdict]:
    """A call of an average that changed it, with no applied update since its last call."""
    groups = timeline.grouped("average", "number")
    for number, events in groups.items():
        name = "EMA" if len(groups) == 1 else f"EMA {number} ({events[0]['kind']})"
        before, idle = 0, 0
        for event in events:
            since = between(timeline, before, event["after"], event["optimizers"])
            before = event["after"]
            if only_skipped(since) and event["moved"]:
                where = named(since[-1], timeline)
                yield Verdict(
                    "average-moved", "defect", since[-1].number, f"{name} moved on a skipped update at {where}"
                )
            elif not since and event["moved"]:
                idle += 1
        if idle:
            yield Verdict(
                "average-idle", "note", None, f"{name} moved {idle} times with no attempt since its last move"
            )


def schedulers(timeline: Timeline) -> Iterator[Verdict]:
    """A scheduler that steps once an update, and stepped on a skipped one. One that steps once an epoch is left."""
    groups = timeline.grouped("scheduler", "number")
    for number, events in groups.items():
        name = "scheduler" if len(groups) == 1 else f"scheduler {number} ({events[0]['kind']})"
        moves = sum(bool(event["moved"]) for event in events)
        if 2 * moves < len(timeline.attempts_of(events[0]["optimizers"])):
            continue
        before = 0
        for event in events:
            since = between(timeline, before, event["after"], event["optimizers"])
            before = event["after"]
            if only_skipped(since) and event["moved"]:
                where = named(since[-1], timeline)
                text = f"{name} stepped on a skipped update at {where}"
                yield Verdict("scheduler-moved", "defect", since[-1].number, text)


def counters(timeline: Timeline) -> Iterator[Verdict]:
    """A counter such as `global_step` that went on with no applied update since it last did."""
    for name, events in timeline.grouped("counter", "name").items():
        for _, attempt in moves_on_skips(timeline, events):
            text = f"{name} moved on a skipped update at {named(attempt, timeline)}"
            yield Verdict("counter-moved", "defect", attempt.number, text)


def moves_on_skips(timeline: Timeline, events: Sequence[Event]) -> Iterator[tuple[Event, Attempt]]:
    """The increases of one counter that only skipped attempts came before. The first event tells where it stood.

    There is at least one event: a counter is known by its first.
    """
    before, value = events[0]["after"] - 1, events[0]["value"]
    for event in events[1:]:
        since = between(timeline, before, event["after"], counted(timeline))
        if event["value"] > value and only_skipped(since):
            yield event, since[-1]
        before, value = event["after"], event["value"]


def progress_bars(timeline: Timeline) -> Iterator[Verdict]:
    """A bar that moves at most once an attempt, and moved on a skipped one."""
    groups = timeline.grouped("bar", "number")
    for events in groups.values():
        moves = [event for event in events if event["moved"]]
        places = [event["after"] for event in moves]
        if len(places) != len(set(places)) or 2 * len(places) < len(timeline.attempts_of(counted(timeline))):
            continue
        title = f" ({moves[0]['title']})" if moves[0]["title"] and len(groups) > 1 else ""
        before = 0
        for event in moves:
            since = between(timeline, before, event["after"], counted(timeline))
            before = event["after"]
            if only_skipped(since):
                text = f"progress bar{title} moved on a skipped update at {named(since[-1], timeline)}"
                yield Verdict("progress-moved", "defect", since[-1].number, text)


def logs(timeline: Timeline) -> Iterator[Verdict]:
    """A tracker step that is new although nothing was applied; one that is only repeated is a note."""
    groups: dict[str, list[Event]] = defaultdict(list)
    for event in timeline.of("log"):
        if event["step"] is not None:
            groups[event["how"]].append(event)
    for events in groups.values():
        before = 0
        highest: float | None = None
        told: set[float] = set()
        for event in events:
            since = between(timeline, before, event["after"], counted(timeline))
            step = event["step"]
            if only_skipped(since) and (highest is None or step > highest):
                text = f"tracker step {step} was logged on a skipped update at {named(since[-1], timeline)}"
                yield Verdict("log-moved", "defect", since[-1].number, text)
            elif only_skipped(since) and step == highest and step not in told:
                told.add(step)
                text = f"tracker step {step} was logged again after the skipped {named(since[-1], timeline)}"
                yield Verdict("log-repeated", "note", since[-1].number, text)
            before = event["after"]
            highest = step if highest is None else max(step, highest)


def checkpoints(timeline: Timeline) -> Iterator[Verdict]:
    """A name that is written again although no update came between."""
    written: dict[str, int] = {}
    for event in timeline.of("save"):
        since = between(timeline, written.setdefault(event["name"], event["after"]), event["after"], counted(timeline))
        if only_skipped(since):
            text = f"{short_name(event)} was written again after the skipped {named(since[-1], timeline)}"
            yield Verdict("checkpoint-repeated", "defect", since[-1].number, text)
        written[event["name"]] = event["after"]


def short_name(event: Event) -> str:
    """The last part of a checkpoint's path."""
    return re.split(r"[/\\]", event["name"].rstrip("/\\"))[-1]


def checkpoint_numbers(timeline: Timeline) -> Iterator[Verdict]:
    """A checkpoint named after a counter that has counted skipped updates."""
    groups = timeline.grouped("counter", "name").values()
    moved = {id(event) for events in groups for event, _ in moves_on_skips(timeline, events)}
    values: dict[str, int] = {}
    ahead: dict[str, int] = defaultdict(int)
    for event in timeline.events:
        if event["event"] == "counter":
            values[event["name"]] = event["value"]
            ahead[event["name"]] += id(event) in moved
        elif event["event"] == "save":
            yield from _wrong_number(event, values, ahead)


def _wrong_number(event: Event, values: dict[str, int], ahead: dict[str, int]) -> Iterator[Verdict]:
    short = short_name(event)
    digits = re.search(r"(\d+)\D*$", short)
    for name, value in values.items():
        if digits and value == int(digits.group(1)) and ahead[name]:
            were = "1 skipped update was" if ahead[name] == 1 else f"{ahead[name]} skipped updates were"
            text = f"{short} holds the weights of update {value - ahead[name]}: {were} counted before it"
            yield Verdict("checkpoint-number", "defect", None, text)
            return


def evaluations(timeline: Timeline) -> Iterator[Verdict]:
    """An evaluation that ran again at a step that stands still."""
    seen: dict[int, int] = {}
    for event in timeline.of("evaluate"):
        since = between(timeline, seen.setdefault(event["step"], event["after"]), event["after"])
        if only_skipped(since):
            text = f"step {event['step']} was evaluated again after the skipped {named(since[-1], timeline)}"
            yield Verdict("evaluation-repeated", "defect", since[-1].number, text)
        seen[event["step"]] = event["after"]


def losses(timeline: Timeline) -> Iterator[Verdict]:
    """A logged loss that holds the losses of skipped attempts."""
    for finding in loss_windows(timeline):
        yield Verdict("loss-window", "defect", finding.attempt, finding.message)


def weights(timeline: Timeline) -> Iterator[Verdict]:
    """An overflow that reached the weights, and flags that do not say what happened."""
    for attempt in timeline.attempts:
        if not attempt.weights_finite:
            text = f"{named(attempt, timeline)} was applied with an infinite gradient: no scaler checks this optimizer"
            yield Verdict("weights-lost", "defect", attempt.number, text)
    wrong = [a for a in timeline.attempts if a.outcome == "skipped" and a.said_skipped is False]
    if wrong:
        text = (
            f"accelerate said that {named(wrong[0], timeline)} was applied, but no weight moved: the optimizer "
            "applies the scale itself, and accelerate does not see its skips (huggingface/accelerate#4242)"
        )
        yield Verdict("flag-wrong", "note", wrong[0].number, text)


RULES = (
    averages,
    schedulers,
    counters,
    progress_bars,
    logs,
    checkpoints,
    checkpoint_numbers,
    evaluations,
    losses,
    weights,
)
