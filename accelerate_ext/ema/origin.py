"""Which training stored weights come from, as far as the files tell: to know results of another one apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from .inputs import Source
from .readers import rank_files


def training_of(sources: Sequence[Source]) -> str:
    """A short text that is the same for the same training: its run, else what its files are.

    Snapshots of ours name their run. Of other files the steps, sizes and times of change are taken together.
    """
    runs = sorted({source.run for source in sources if source.run})
    others = [(source.step, _marks(source.path)) for source in sources if not source.run]
    named = [f"run {run}" for run in runs]
    if others:
        digest = hashlib.sha256(json.dumps(sorted(others)).encode()).hexdigest()[:12]
        named.append(f"{len(others)} files, sizes and times {digest}")
    return ", ".join(named)


def _marks(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each file that the weights are in."""
    files = [path]
    if path.is_dir():
        files = rank_files(path)
    elif path.name.endswith(".index.json"):
        files += sorted({*path.parent.glob("*-of-*.safetensors"), *path.parent.glob("*-of-*.bin")})
    marks = [(file.name, file.stat()) for file in files]
    return [(name, status.st_size, status.st_mtime_ns) for name, status in marks]
