"""What to make of a comparison that shows no repair, or one update too few."""

from __future__ import annotations

from collections.abc import Sequence

from ..options import Options
from ..rewrite import rewrite
from ..site import Site
from ..source import SourceError
from .inside.patches import TRAINER_COUNTER
from .launch import Finished, script_of
from .table import attempts_and_applied, joined
from .verdicts import judge


def shortfall(runs: Sequence[Finished]) -> list[str]:
    """A note below the last run if it ended with fewer updates than the finite one made, and why if that is known."""
    if len(runs) < 2 or any(run.exit_code != 0 for run in runs):
        return []
    (most, wanted), (attempts, made) = (attempts_and_applied(run.timeline) for run in (runs[0], runs[-1]))
    if sum(made) >= sum(wanted):
        return []
    why = ""
    if any(verdict.code == "counter-moved" for verdict in judge(runs[-1].timeline)):
        why = ": what it skipped was counted as an update"
    elif any(site.code == "epoch-budget" for site in _sites(runs[-1])):
        why = ": the number of epochs leaves no room for skipped updates; `report` names it as `epoch-budget`"
    elif sum(attempts) == sum(most):
        why = ": the loop makes a fixed number of attempts, so each one that is skipped is an update fewer"
    return [f"  note: it applied {joined(made)} updates, the finite run {joined(wanted)}{why}"]


def why_unchanged(finished: Finished) -> str:
    """Why there is no rewritten run of a script in which the rules change nothing, and what to compare with."""
    left_out = "no rewritten run was made: the rules change nothing in this script"
    if _has_trainer(finished):
        return (
            f"{left_out}, because its loop is the Trainer's; compare with patched packages: `generate` or `apply` the"
            " series of accelerate and of transformers, and name their folders with --compare-path"
        )
    if _sites(finished):
        return f"{left_out}; `report` says why"
    return (
        f"{left_out} and find no loop with an Accelerator in it: it is in another file, or steps without Accelerate,"
        " as through a GradScaler of its own, which the rules do not read"
    )


def _has_trainer(finished: Finished) -> bool:
    """Whether `transformers.Trainer` trained, or a class made from it."""
    events = [event for timeline in finished.timelines.values() for event in timeline.of("counter")]
    return any(event["where"] == TRAINER_COUNTER for event in events)


def _sites(finished: Finished) -> Sequence[Site]:
    """What `report` tells of the script; nothing where it is no file, or cannot be read."""
    script = script_of(finished.job.command)
    try:
        return rewrite(script.read_bytes(), Options(finished.job.plan.optimizer)).sites if script else ()
    except (OSError, SourceError):
        return ()
