"""Runs a script alone or beside its patched form, and says what moved."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import CannotRun
from .advice import shortfall
from .launch import Finished, Job, describe, run, script_of
from .table import has_begun, runs_table, unproven, verdict_lines
from .verdicts import judge


@dataclass(frozen=True)
class Options:
    """What a comparison is against: one of the three, or nothing."""

    script: Path | None = None  # a patched copy of the script
    paths: tuple[Path, ...] = ()  # folders with patched packages, as they shall stand on sys.path
    rewrite: bool = False  # the script, rewritten by our rules


@dataclass
class Comparison:
    """All runs of one call, in the order in which they are made; the last one is judged.

    There are fewer than `num_wanted` if one of them ended before its first attempt.
    """

    runs: list[Finished] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    num_wanted: int = 1

    def table(self) -> str:
        """The table of all runs with the verdicts below; no table if the first run failed before its first attempt."""
        first = self.runs[0]
        if first.exit_code != 0 and not has_begun(first):
            return "\n".join([*verdict_lines(first, []), *self.remarks]) + "\n"
        lines = [runs_table([(run.job.name, run) for run in self.runs], self._columns()), ""]
        for finished in self.runs:
            lines += verdict_lines(finished, judge(finished.timeline))
        return "\n".join([*lines, *shortfall(self.runs), *self.remarks]) + "\n"

    def _columns(self) -> list[str]:
        """Counters that are asked for and found; else the first one that only ever went up."""
        grown = [name for run in self.runs for name in run.timeline.counters if run.timeline.grows(name)]
        asked = self.runs[0].job.shown
        found = [name for name in asked if name in grown] or sorted(set(grown), key=self.runs[0].job.counters.index)[
            :1
        ]
        return found or list(asked[:1])

    def exit_code(self) -> int:
        """0 if nothing moved on a skipped update in the last run, 1 if something did.

        A script that ends by a signal or with another exit code than 0 hands it on; in a comparison that is 2, and
        so is a 1 before the first attempt, which would read as a finding.
        """
        is_alone = max(self.num_wanted, len(self.runs)) == 1
        for finished in self.runs:
            if finished.interrupted_by is not None and finished.exit_code != 0:
                return finished.exit_code or 128 + finished.interrupted_by
            if finished.exit_code != 0:
                if finished.exit_code is None or (finished.exit_code == 1 and not has_begun(finished)):
                    return 2
                return finished.exit_code if is_alone else 2
            if not finished.timeline.attempts or unproven(finished):
                return 2
        return int(judged_wrong(self.runs[-1]))


def judged_wrong(finished: Finished) -> bool:
    """Whether anything moved on a skipped update."""
    return any(verdict.is_defect for verdict in judge(finished.timeline))


def jobs(job: Job, against: Options) -> list[Job]:
    """The runs to make: the job alone, or finite, overflow and patched.

    Raises: CannotRun if the patched form is not there or the comparison has no overflow to show.
    """
    wanted = [against.script is not None, bool(against.paths), against.rewrite]
    if not any(wanted):
        return [_named(job, str(job.plan))]
    if sum(wanted) > 1:
        raise CannotRun("one of --compare, --compare-rewrite and --compare-path must be given, not several at once")
    if not job.plan.is_active:
        raise CannotRun("a comparison must have an overflow to compare: say --at 4, or --rate 0.05 --seed 13")
    name = str(job.plan)
    finite = _named(replace(job, plan=job.plan.finite()), "finite")
    return [finite, _named(job, name), _patched(job, name, against)]


def _patched(job: Job, name: str, against: Options) -> Job:
    if against.paths:
        for path in against.paths:
            if not path.is_dir():
                raise CannotRun(f"--compare-path must be a folder with the patched packages, got {path}")
        patched = replace(job, path=(*(str(path.resolve()) for path in against.paths), *job.path))
    elif against.script is not None:
        patched = replace(job, command=_with_script(job.command, against.script))
    else:
        return _named(replace(job, replaced=_rewritten(job)), f"{name}, rewritten")
    return _named(patched, f"{name}, patched")


def _named(job: Job, name: str) -> Job:
    """The job under this name; `{run}` in its arguments becomes finite, overflow or patched."""
    kind = "patched" if name.endswith(("patched", "rewritten")) else "overflow" if job.plan.is_active else "finite"
    return replace(job, name=name, command=tuple(word.replace("{run}", kind) for word in job.command))


def _with_script(command: Sequence[str], script: Path) -> tuple[str, ...]:
    original = script_of(command)
    if original is None:
        raise CannotRun("--compare must have a script that is a Python file, to run the patched one in its place")
    if not script.is_file():
        raise CannotRun(f"--compare must name the patched script, got {script}, which is no file")
    index = command.index(str(original))
    return (*command[:index], str(script), *command[index + 1 :])


def _rewritten(job: Job) -> bytes:
    """The script's text after our rules."""
    from ..rewrite import Options as RewriteOptions
    from ..rewrite import rewrite
    from ..source import SourceError

    script = script_of(job.command)
    if script is None:
        raise CannotRun("--compare-rewrite must have a script that is a Python file")
    try:
        return rewrite(script.read_bytes(), RewriteOptions(counted_optimizer=job.plan.optimizer)).after
    except SourceError as error:
        place = f"{script}:{error.line}" if error.line else str(script)
        raise CannotRun(f"{place}: the script must be one that can be rewritten: {error}") from error


class Progress:
    """Lines on stderr: when a run starts, when an update is skipped, every ten seconds, and at the end."""

    def __init__(self, name: str, seconds: float = 10.0) -> None:
        self.name = name
        self.seconds = seconds
        self.told = 0
        self.next = time.monotonic() + seconds
        self._say("started")

    def _say(self, text: str) -> None:
        print(f"[{self.name}] {text}", file=sys.stderr, flush=True)

    def update(self, finished: Finished) -> None:
        """Say what is new."""
        timeline = finished.timeline
        for attempt in timeline.attempts[self.told :]:
            if not attempt.applied:
                self._say(f"attempt {attempt.number} {attempt.outcome}")
        is_new = len(timeline.attempts) > self.told
        self.told = len(timeline.attempts)
        applied = sum(attempt.applied for attempt in timeline.attempts)
        if finished.returncode is not None:
            self._say(f"{describe(finished)}: {self.told} attempts, {applied} applied")
        elif is_new and time.monotonic() >= self.next:
            self.next = time.monotonic() + self.seconds
            self._say(f"attempt {self.told}, {applied} applied")


def make(wanted: Sequence[Job], on_progress: Callable[[Sequence[Finished]], None] = lambda runs: None) -> Comparison:
    """Make the runs one after the other. One that a signal ended, or that came to no attempt, is the last.

    Raises: CannotRun if the interpreter cannot be started.
    """
    comparison = Comparison(num_wanted=len(wanted))
    for job in wanted:
        progress = Progress(job.name)
        comparison.runs.append(Finished(job))

        def update(finished: Finished, progress: Progress = progress) -> None:
            comparison.runs[-1] = finished
            progress.update(finished)
            on_progress(comparison.runs)

        finished = run(job, update)
        if (finished.interrupted_by is not None and finished.exit_code != 0) or not has_begun(finished):
            break
    comparison.remarks += _disagreements(comparison.runs)
    return comparison


def _disagreements(runs: Sequence[Finished]) -> list[str]:
    """Runs in which the ranks did not skip the same updates: their weights are not the same any more."""
    found = []
    for finished in runs:
        outcomes = {rank: [a.outcome for a in timeline.attempts] for rank, timeline in finished.timelines.items()}
        trained = {rank: seen for rank, seen in outcomes.items() if seen}
        if len({tuple(seen) for seen in trained.values()}) > 1:
            found.append(f"{finished.job.name}: ranks {', '.join(map(str, trained))} did not skip the same updates")
    return found


def unchanged_by(job: Job) -> bool:
    """Whether a rewritten job runs the very text that it started from."""
    script = script_of(job.command)
    return (
        job.replaced is not None
        and script is not None
        and os.path.exists(script)
        and script.read_bytes() == job.replaced
    )
