"""The proof that the main command ends with: a Trainer run on an unpatched and on a patched release."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CannotRun
from .compare import judged_wrong
from .launch import Finished, Job, Plan, describe, run
from .table import attempts_and_applied, runs_table
from .verdicts import judge

SCRIPT = Path(__file__).parent / "scripts" / "trainer_six.py"
REQUESTED = 6
OVERFLOW = Plan(at=(3,))
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")  # the second is the Trainer's default


@dataclass(frozen=True)
class Proof:
    """The table as text, and whether the patched release did and counted all that was requested."""

    text: str
    is_right: bool


def trainer_table(
    unpatched: Sequence[Path],
    patched: Sequence[Path],
    python: str = sys.executable,
    on_run: Callable[[str], None] = lambda name: None,
) -> Proof:
    """Run six requested updates with an overflow at the third attempt, with each optimizer and on each release.

    Args:
        unpatched, patched: folders that come first on the script's sys.path; empty for the installed packages.
        python: an interpreter that has torch, transformers and accelerate.
        on_run: called with the name of each run before it starts, such as a progress bar's.
    Raises: CannotRun if a run fails, with the end of its output.
    """
    runs = []
    for optimizer in OPTIMIZERS:
        for release, folders in (("unpatched", unpatched), ("patched", patched)):
            name = f"{release} release, {optimizer}"
            on_run(name)
            path = tuple(str(folder) for folder in folders)
            runs.append(observed(Job(name, (str(SCRIPT), "--optim", optimizer), OVERFLOW, path=path, python=python)))
    lines = [f"Trainer, {REQUESTED} updates requested, {OVERFLOW}:", ""]
    lines += [runs_table([(run.job.name, run) for run in runs], ["global_step"]), ""]
    for finished in runs:
        wrong = [verdict.message for verdict in judge(finished.timeline) if verdict.is_defect]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        lines.append(f"{finished.job.name}: {wrong[0] + more if wrong else 'nothing moved on a skipped update'}")
    return Proof(
        "\n".join(lines) + "\n",
        all(_is_right(finished) for finished in runs if finished.job.name.startswith("patched")),
    )


def observed(job: Job) -> Finished:
    """One run whose output is shown only if it fails."""
    with tempfile.TemporaryFile() as output:
        job = Job(**{**vars(job), "output": output.fileno(), "environment": {"HF_HUB_OFFLINE": "1"}})
        finished = run(job)
        if finished.exit_code != 0 or not finished.timeline.attempts:
            output.seek(0)
            tail = output.read().decode(errors="replace").strip().splitlines()[-15:]
            raise CannotRun("\n".join([f"the Trainer run must end well ({job.name}): {describe(finished)}", *tail]))
    return finished


def _is_right(finished: Finished) -> bool:
    _, applied = attempts_and_applied(finished.timeline)
    counted = finished.timeline.counters.get("global_step")
    return applied == [REQUESTED] and counted == REQUESTED and not judged_wrong(finished)
