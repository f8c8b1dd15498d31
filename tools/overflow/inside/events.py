"""Writes what happened, one JSON object a line, so that a killed process leaves all that it had seen."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any


def plain(value: Any) -> Any:
    """A number that JSON can hold: NaN and infinities become the strings "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def scalar(value: Any) -> Any:
    """The number that a value is, if it is one (also NumPy's, or a tensor's of one element); else None."""
    if isinstance(value, (bool, str, bytes)):
        return None
    if isinstance(value, (int, float)):
        return plain(value)
    try:
        return plain(value.item()) if value.shape in ((), (1,)) else None
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


class Recorder:
    """Appends to `<folder>/<rank>-<pid>.jsonl`. No file without an event; a fork gets its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = 0
        self._file = -1

    @property
    def started(self) -> bool:
        return self._pid == os.getpid()

    def write(self, event: str, /, **fields: Any) -> None:
        if not self.started:
            self._open()
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}, default=str)
        os.write(self._file, line.encode() + b"\n")

    def _open(self) -> None:
        self._pid = os.getpid()
        rank = os.environ.get("RANK", "0")
        path = os.path.join(self._folder, f"{rank}-{self._pid}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        modules = ("torch", "accelerate", "transformers", "diffusers")
        found = {name: getattr(sys.modules.get(name), "__version__", None) for name in modules}
        self.write(
            "start",
            rank=int(rank),
            python=sys.version.split()[0],
            versions={name: str(version) for name, version in found.items() if version},
        )
