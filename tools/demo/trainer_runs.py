"""The Trainer on an unpatched and on a patched copy of the releases, under the same overflow."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import CannotRun
from ..overflow.compare import Options, jobs, make
from ..overflow.launch import Job, Plan
from ..trainer.released_copy import patched_copy

SCRIPT = Path(__file__).with_name("trainer_six_steps.py")
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")  # the second is the Trainer's default
OVERFLOW_AT = 3


@dataclass(frozen=True)
class Table:
    """What one optimizer's runs came to; `is_right` if nothing moved on a skipped update of the patched release."""

    optimizer: str
    text: str
    is_right: bool


def trainer_tables(
    wheels: Mapping[str, Path], changes: Mapping[str, bytes], python: str = sys.executable
) -> list[Table]:
    """Runs the script finite, with an overflow, and with the overflow on patched copies; once an optimizer.

    Args:
        wheels: the releases by package name.
        changes: the patched files by their path in the upstream repository.
        python: an interpreter that has torch and what else the packages need.
    Raises: CannotRun if the interpreter cannot run the script.
    """
    with tempfile.TemporaryDirectory(prefix="applied-updates-") as folder:
        unpatched, patched = Path(folder) / "unpatched", Path(folder) / "patched"
        for name, wheel in wheels.items():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpatched)
            own = {path: data for path, data in changes.items() if path.startswith(f"src/{name}/")}
            patched_copy(unpatched / name, own, patched)
        return [_table(optimizer, unpatched, patched, python) for optimizer in OPTIMIZERS]


def has_torch() -> bool:
    """Whether this interpreter could run the script. Nothing is imported."""
    return importlib.util.find_spec("torch") is not None


def _table(optimizer: str, unpatched: Path, patched: Path, python: str) -> Table:
    with open(os.devnull, "wb") as nowhere:
        plan = Plan(at=(OVERFLOW_AT,))
        job = Job("", (str(SCRIPT), optimizer), plan, python=python, path=(str(unpatched),), output=nowhere.fileno())
        comparison = make(jobs(job, Options(path=patched)))
    failed = [run.job.name for run in comparison.runs if run.exit_code != 0]
    if failed:
        raise CannotRun(
            f"the Trainer must run here, but these runs failed: {', '.join(failed)}; try {SCRIPT.name} alone"
        )
    return Table(optimizer, comparison.table(), comparison.exit_code() == 0)
