"""The JSON of a run or a comparison: schemas/overflow.schema.json."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import CannotRun
from .launch import Finished
from .table import attempts_and_applied, average_calls, remarks
from .timeline import Attempt, Timeline
from .verdicts import judge

FORMAT = "applied-updates.overflow/1"


def as_json(runs: Sequence[Finished], complete: bool, exit_code: int | None) -> dict[str, Any]:
    """Everything that is known so far. `complete` says that nothing will follow."""
    return {"format": FORMAT, "complete": complete, "exit_code": exit_code, "runs": [_run(run) for run in runs]}


def _run(finished: Finished) -> dict[str, Any]:
    job, timeline = finished.job, finished.timeline
    plan = asdict(job.plan)
    return {
        "name": job.name,
        "command": list(job.command),
        "plan": {**plan, "at": list(plan["at"])},
        "complete": finished.complete,
        "exit_code": finished.exit_code,
        "rank": timeline.rank,
        "ranks": sorted(finished.timelines),
        "python": timeline.python,
        "versions": timeline.versions,
        "optimizers": [asdict(optimizer) for optimizer in timeline.optimizers.values()],
        "totals": _totals(timeline),
        "attempts": [_attempt(attempt) for attempt in timeline.attempts],
        "events": [event for event in timeline.events if event["event"] != "attempt"],
        "verdicts": [asdict(verdict) for verdict in judge(timeline)],
        "notes": remarks(finished),
    }


def _totals(timeline: Timeline) -> dict[str, Any]:
    outcomes = Counter(attempt.outcome for attempt in timeline.attempts)
    attempts, applied = attempts_and_applied(timeline)
    return {
        "attempts": sum(attempts),
        "applied": sum(applied),
        "skipped": outcomes["skipped"],
        "dropped": outcomes["dropped"],
        "injected": sum(attempt.injected for attempt in timeline.attempts),
        "average_calls": average_calls(timeline),
        "counters": timeline.counters,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return value if value is None or abs(value) < float("inf") else str(value)

    fields = asdict(attempt)
    fields["losses"] = [plain(loss) for loss in attempt.losses]
    fields["scale"] = None if attempt.scale is None else [plain(scale) for scale in attempt.scale]
    return fields


class JsonFile:
    """Keeps a file up to date while runs go on: whole at every moment, and marked incomplete until the end.

    Raises: CannotRun where it cannot be written, before anything runs if that can be seen then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = 0.0
        if not path.absolute().parent.is_dir():
            raise CannotRun(f"--json must name a file in a folder that is there, got {path}")
        try:
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}.") as file:
                file.write(b"{}")
                file.flush()
        except OSError as error:
            raise self._told(error) from error

    def write(self, runs: Sequence[Finished], exit_code: int | None = None) -> None:
        """Write: with an exit code for the last time; without one at most once a second, seldom where it is large."""
        begin = time.monotonic()
        if exit_code is None and begin < self._next:
            return
        complete = exit_code is not None and all(run.complete for run in runs)
        content = json.dumps(as_json(runs, complete, exit_code), indent=1, allow_nan=False) + "\n"
        try:
            self._replace(content)
        except OSError as error:
            raise self._told(error) from error
        now = time.monotonic()
        self._next = now + max(1.0, 20 * (now - begin))

    def _told(self, error: OSError) -> CannotRun:
        return CannotRun(f"--json must name a file that can be written, got {self.path}: {error.strerror}")

    def _replace(self, content: str) -> None:
        """Write beside the file, then put that in its place. Raises: OSError, and nothing is left."""
        handle, temporary = tempfile.mkstemp(dir=self.path.absolute().parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
