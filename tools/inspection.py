"""One file of a user's through the rewriter: its report, and its new bytes if there are any."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .options import Options
from .report import Failure, FileReport
from .rewrite import rewrite
from .source import SourceError
from .syntax import newer_syntax


@dataclass(frozen=True)
class Inspected:
    """A file with what was found. `before` and `after` are set only if the rewrite changes something."""

    path: Path
    report: FileReport
    before: bytes | None = None
    after: bytes | None = None


def inspect(path: Path, options: Options) -> Inspected:
    """Reads and rewrites a file in memory. One that cannot be read or parsed gets a report with a failure."""
    name = os.fsencode(path).decode("utf-8", "replace")
    try:
        data = path.read_bytes()
    except OSError as error:
        return Inspected(path, FileReport(name, failure=Failure(f"the file cannot be read: {error.strerror}")))
    try:
        result = rewrite(data, options)
    except SourceError as error:
        newer = newer_syntax(data, error.line)
        message = f"{error}: {newer}" if newer else str(error)
        return Inspected(path, FileReport(name, failure=Failure(message, error.line, error.col)))
    found = FileReport(name, tuple(result.sites))
    if result.before == result.after:
        return Inspected(path, found)
    return Inspected(path, found, result.before, result.after)
