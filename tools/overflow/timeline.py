"""What a run did, read from the lines that the observer wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that made at least one attempt."""

    number: int
    name: str
    kind: str
    prepared: bool
    fused: bool
    scaler: str | None  # "script", "installed", or None if nobody checks its gradients
    chosen: bool


@dataclass(frozen=True)
class Attempt:
    """One attempt: `index` counts those of all optimizers, `number` those of its own, both from 1."""

    index: int
    number: int
    optimizer: int
    outcome: str  # applied, skipped or dropped
    injected: bool
    losses: tuple[float, ...] = ()
    weights_changed: bool | None = None
    weights_finite: bool = True
    ran: bool | None = None
    said_skipped: bool | None = None
    scale: tuple[float | None, ...] | None = None

    @property
    def applied(self) -> bool:
        return self.outcome == "applied"


@dataclass
class Timeline:
    """The attempts of one process and all that happened between them, in order."""

    rank: int = 0
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    optimizers: dict[int, Optimizer] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event["event"] in kinds]

    def grouped(self, kind: str, by: str) -> dict[Any, list[Event]]:
        """The events of a kind, by what they say under a name."""
        groups: dict[Any, list[Event]] = {}
        for event in self.of(kind):
            groups.setdefault(event[by], []).append(event)
        return groups

    def attempts_of(self, optimizers: Iterable[int]) -> list[Attempt]:
        """Attempts of these optimizers, of all if none is given."""
        wanted = set(optimizers)
        return [attempt for attempt in self.attempts if not wanted or attempt.optimizer in wanted]

    def grows(self, name: str) -> bool:
        """Whether a counter only ever went up; one that goes back counts within a window."""
        values = [event["value"] for event in self.of("counter") if event["name"] == name]
        return values == sorted(values)

    @property
    def counters(self) -> dict[str, int]:
        """Last value of each counter that was found."""
        return {event["name"]: event["value"] for event in self.of("counter")}


def number(value: Any) -> Any:
    """The inverse of how the observer writes numbers that JSON lacks."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def _attempt(event: Event, index: int) -> Attempt:
    scale = event.get("scale")
    return Attempt(
        index=index,
        number=event["number"],
        optimizer=event["optimizer"],
        outcome=event["outcome"],
        injected=event["injected"],
        losses=tuple(map(number, event["losses"])),
        weights_changed=event.get("weights_changed"),
        weights_finite=event.get("weights_finite", True),
        ran=event.get("ran"),
        said_skipped=event.get("said_skipped"),
        scale=None if scale is None else tuple(map(number, scale)),
    )


def add(timeline: Timeline, event: Event) -> None:
    """Put one event into the timeline."""
    kind = event["event"]
    if kind == "start":
        timeline.rank, timeline.python, timeline.versions = event["rank"], event["python"], event["versions"]
    elif kind == "optimizer":
        fields = {name: event[name] for name in Optimizer.__dataclass_fields__}
        timeline.optimizers[event["number"]] = Optimizer(**fields)
    elif kind == "note":
        timeline.notes.append(event["text"])
    elif kind == "end":
        timeline.complete = True
    else:
        if kind == "attempt":
            timeline.attempts.append(_attempt(event, len(timeline.attempts) + 1))
        timeline.events.append(event)


class Reader:
    """Follows the files of a run while they grow; only what is new is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._timelines: dict[Path, Timeline] = {}
        self._read: dict[Path, int] = {}

    def read(self) -> dict[int, Timeline]:
        """Rank -> its timeline. Of several processes of one rank, the one with the most attempts is the training."""
        found: dict[int, Timeline] = {}
        for path in sorted(self._folder.glob("*.jsonl")):
            timeline = self._timelines.setdefault(path, Timeline())
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")  # a line that is being written waits
            self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                add(timeline, json.loads(line))
            known = found.get(timeline.rank)
            if known is None or len(timeline.attempts) > len(known.attempts):
                found[timeline.rank] = timeline
        return found
