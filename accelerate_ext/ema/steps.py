"""The applied steps of plain checkpoints: from a table, from the counts beside them, or from their names."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path

from ..checkpoint import StoredCounts
from .header import SnapshotError

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
NAMED_STEP = re.compile(r"(?:steps?|iter|iteration|checkpoint|ckpt)[=_-]?(\d+)", re.IGNORECASE)

StepTable = Mapping[str, float] | str | Path


def step_from_name(path: Path) -> int | None:
    """The step that a file or folder name states: after a word such as ``step``, else the last number."""
    named = NAMED_STEP.findall(path.name)
    numbers = named or re.findall(r"\d+", path.name)
    return int(numbers[-1]) if numbers else None


def step_of(named: Path, weights: Path, table: Mapping[str, float]) -> float:
    """The step of a checkpoint, whose weights may lie deeper than what names it; from the table if there is one.

    Raises: SnapshotError naming the checkpoint if nothing says a step above 0.
    """
    if table:
        for name in (str(named), named.name or named.resolve().name, str(weights), weights.name):
            if name in table:
                return table[name]
        listed = ", ".join(list(table)[:10])
        raise SnapshotError(f"{named} is not in the table of steps; add it or move it away. It lists: {listed}")
    if counted := StoredCounts.read(named):
        if not counted.attempts["applied"]:
            raise SnapshotError(f"{named}: no update was applied before this checkpoint; leave it out")
        return counted.attempts["applied"]
    step = step_from_name(named)
    if not step:
        name = named.name or named.resolve().name  # `.` has none of its own
        raise SnapshotError(
            f"{named} has no step above 0 in its name; move it away, or give a table of the steps of all (--steps "
            f"FILE.csv with a line for each, as `{name},10000`; in Python steps={{{name!r}: 10000, ...}})"
        )
    return step


def read_table(steps: StepTable | None) -> dict[str, float]:
    """Steps by file or folder name; empty where no table is given.

    Raises: SnapshotError naming the table if it lists none, one twice, or something that is no step.
    """
    if steps is None:
        return {}
    if isinstance(steps, Mapping):
        return _checked("`steps`", steps.items())
    path = Path(steps)
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin theirs with a byte order mark
        if path.suffix == ".json":
            rows = json.loads(text, object_pairs_hook=list)
            return _checked(str(path), [(name, float(step)) for name, step in rows])
        lines = [row for row in csv.reader(text.splitlines()) if row]
        body = lines[1:] if lines and not _is_number(lines[0][1]) else lines
        return _checked(str(path), [(row[0].strip(), float(row[1])) for row in body])
    except SnapshotError:
        raise
    except (ValueError, IndexError, TypeError) as error:
        raise SnapshotError(f"{path} must list names and steps, as CSV or as a JSON object ({error})") from error


def _checked(table: str, rows: Iterable[tuple[str, object]]) -> dict[str, float]:
    steps: dict[str, float] = {}
    wrong = []
    for name, step in rows:
        if name in steps:
            wrong.append(f"it lists {name!r} twice")
        elif not (isinstance(step, Real) and 0 < float(step) < math.inf):
            wrong.append(f"the step of {name!r} must be a finite number above 0, got {step!r}")
        else:
            steps[name] = float(step)
    if not steps and not wrong:
        wrong.append("it lists no step")
    if wrong:
        raise SnapshotError(f"{table} must say the applied step of each checkpoint: {'; '.join(wrong)}")
    return steps


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
