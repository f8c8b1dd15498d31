"""The tables and words that a person reads: runs side by side, and what moved in each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .launch import Finished, describe
from .timeline import Timeline
from .verdicts import Verdict

_SHOWN = 3  # findings of one kind that are printed; the JSON has all


def joined(values: Sequence[object]) -> str:
    """One value for each of several optimizers or averages; a dash if there is none."""
    return " + ".join(map(str, values)) if values else "-"


def attempts_and_applied(timeline: Timeline) -> tuple[list[int], list[int]]:
    """Numbers of attempts and of applied updates, one each optimizer, in the order in which they first stepped."""
    by_optimizer = [timeline.attempts_of([number]) for number in timeline.optimizers]
    return [len(made) for made in by_optimizer], [sum(a.applied for a in made) for made in by_optimizer]


def has_begun(finished: Finished) -> bool:
    """Whether any process of the run made an attempt."""
    return any(timeline.attempts for timeline in finished.timelines.values())


def average_calls(timeline: Timeline) -> list[int]:
    """Calls of each average."""
    calls: dict[int, int] = defaultdict(int)
    for event in timeline.of("average"):
        calls[event["number"]] += 1
    return list(calls.values())


def runs_table(runs: Sequence[tuple[str, Finished]], counters: Sequence[str]) -> str:
    """The table of huggingface/diffusers#15112, as Markdown that is aligned for a terminal too."""
    head = ["run", "attempts", "applied updates", "EMA calls", *(f"final `{name}`" for name in counters), "exit code"]
    rows = [head]
    for name, finished in runs:
        timeline = finished.timeline
        attempts, applied = attempts_and_applied(timeline)
        values = [joined(attempts), joined(applied), joined(average_calls(timeline))]
        last = [str(timeline.counters.get(counter, "-")) for counter in counters]
        rows.append([name, *values, *last, str(finished.exit_code) if finished.complete else describe(finished)])
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    """Text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"

    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:]), ""])
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def verdict_lines(finished: Finished, verdicts: Sequence[Verdict]) -> list[str]:
    """The run's name with what moved below it, then what a reader should know."""
    skipped = [attempt for attempt in finished.timeline.attempts if not attempt.applied]
    defects = _shortened([verdict for verdict in verdicts if verdict.is_defect])
    if not finished.timeline.attempts:
        is_failed = finished.exit_code != 0 and not has_begun(finished)
        defects = [_failed_early(finished) if is_failed else "no optimizer attempt was seen"]
    elif not defects:
        defects = [_ended_early(finished) if crashed(finished) else _nothing_moved(bool(skipped))]
    notes = [*_shortened([verdict for verdict in verdicts if not verdict.is_defect]), *remarks(finished)]
    return [finished.job.name, *(f"  {text}" for text in defects), *(f"  note: {text}" for text in notes)]


def crashed(finished: Finished) -> bool:
    """Whether the script ended with an error, so that a run in which nothing moved proves nothing."""
    return finished.exit_code not in (0, None)


def _nothing_moved(is_skipped: bool) -> str:
    return "nothing moved on a skipped update" if is_skipped else "no update was skipped"


def _ended_early(finished: Finished) -> str:
    applied = sum(attempt.applied for attempt in finished.timeline.attempts)
    made = f"{len(finished.timeline.attempts)} attempts, {applied} of them applied"
    return f"the script failed ({describe(finished)}) after {made}: the run proves nothing"


def _failed_early(finished: Finished) -> str:
    how = describe(finished)
    ended = f"ended with {how}" if finished.complete else f"was {how}"
    return f"the script {ended} before its first attempt, see above"


def _shortened(verdicts: Sequence[Verdict]) -> list[str]:
    """The messages in order; of many with one code the first few, and how many more there are."""
    groups: dict[str, list[str]] = defaultdict(list)
    for verdict in verdicts:
        groups[verdict.code].append(verdict.message)
    lines = []
    for messages in groups.values():
        shown = messages if len(messages) <= _SHOWN + 1 else messages[:_SHOWN]
        more = len(messages) - len(shown)
        lines += [*shown, *([f"... and {more} more like it"] if more else [])]
    return lines


def unproven(finished: Finished) -> bool:
    """Whether an overflow was asked for and none was put in, so that nothing can be said."""
    timeline, plan = finished.timeline, finished.job.plan
    if plan.rank is not None and plan.rank not in finished.timelines:
        return True
    return plan.is_active and not any(attempt.injected for attempt in timeline.attempts)


def remarks(finished: Finished) -> list[str]:
    """How the run was set up and how it ended, where that is not plain."""
    timeline, plan = finished.timeline, finished.job.plan
    found = list(timeline.notes)
    if any(optimizer.scaler == "installed" for optimizer in timeline.optimizers.values()):
        found.append("the script has no working scaler here, so a GradScaler was installed for this run")
    if plan.rank is not None and finished.timelines and plan.rank not in finished.timelines:
        found.append(f"no process had rank {plan.rank}; seen: {', '.join(map(str, sorted(finished.timelines)))}")
    if plan.is_active and timeline.optimizers and not any(o.chosen for o in timeline.optimizers.values()):
        names = ", ".join(optimizer.name for optimizer in timeline.optimizers.values())
        found.append(f"no optimizer is called {plan.optimizer!r}; there is {names}")
    for name in finished.job.shown[1:] if timeline.attempts else ():
        if name not in timeline.counters:
            there = f"there is {', '.join(timeline.counters)}" if timeline.counters else "none was seen"
            found.append(f"no counter is called {name!r}; {there}")
    made = {attempt.number for attempt in timeline.attempts if attempt.injected}
    never = [str(number) for number in plan.at if number not in made]
    if never and timeline.attempts and plan.rank in (None, timeline.rank):
        found.append(f"no overflow was put into attempt {', '.join(never)}: it was not made, or it had no gradient")
    if timeline.attempts and unproven(finished):
        found.append("the run proves nothing, because no attempt overflowed as it was asked for")
    if not finished.complete:
        found.append(f"the run is incomplete: {describe(finished)}")
    return found
