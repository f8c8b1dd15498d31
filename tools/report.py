"""Sites of one or many files as text, as JSON (schemas/report.schema.json) or as SARIF 2.1.0."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from .codes import CODES
from .site import Outcome, Site

FORMAT = "applied-updates.report/1"
SYNTAX_CODE = "unreadable"
INFORMATION = "https://github.com/huggingface/diffusers/issues/15112"


@dataclass(frozen=True)
class Failure:
    """Why a file could not be read; `line` and `col` count from 1 where they are known."""

    message: str
    line: int | None = None
    col: int | None = None


@dataclass(frozen=True)
class FileReport:
    """All that is to be said about one file. A file that could not be read has a failure and no sites."""

    path: str
    sites: tuple[Site, ...] = ()
    failure: Failure | None = None

    @property
    def needs_change(self) -> bool:
        """Whether something in the file counts skipped updates, rewritten here or refused."""
        return any(site.outcome in (Outcome.REWRITTEN, Outcome.REFUSED) for site in self.sites)


def totals(files: Iterable[FileReport]) -> dict[str, int]:
    """How many files and sites of each outcome there are."""
    files = list(files)
    counts = Counter(site.outcome.value for file in files for site in file.sites)
    failures = sum(file.failure is not None for file in files)
    return {
        "files": len(files),
        **{outcome.value: counts[outcome.value] for outcome in Outcome},
        "unreadable": failures,
    }


def text_line(path: str, site: Site, *, is_done: bool = True) -> str:
    """`path:line:col: code: message`, with the outcome and what stands there.

    `is_done` says whether a rewrite was made or would be made.
    """
    moved = f" ({'now' if is_done else 'then'} line {site.new_line})" if site.new_line not in (None, site.line) else ""
    outcome = "would rewrite" if site.outcome is Outcome.REWRITTEN and not is_done else site.outcome.value
    return f"{path}:{site.line}:{site.col}: {site.code}: {outcome} {site.kind}{moved}: {site.message}"


def failure_line(file: FileReport) -> str:
    """The line for a file that could not be read."""
    assert file.failure
    place = [str(part) for part in (file.failure.line, file.failure.col) if part is not None]
    return ":".join([file.path, *place]) + f": {SYNTAX_CODE}: {file.failure.message}"


def as_text(files: Iterable[FileReport]) -> str:
    """A line a site, then the totals. What can be rewritten has not been: it is said as what would be done."""
    files = list(files)
    lines = [text_line(file.path, site, is_done=False) for file in files for site in file.sites]
    return "\n".join([*lines, summary(files, is_done=False)]) + "\n"


def summary(files: Iterable[FileReport], *, is_done: bool = True) -> str:
    """The totals in one line; `is_done` says whether the rewrites were made or would be made."""
    count = totals(files)
    words = {outcome: outcome.value for outcome in Outcome} | ({} if is_done else {Outcome.REWRITTEN: "to rewrite"})
    outcomes = ", ".join(f"{count[outcome.value]} {word}" for outcome, word in words.items())
    failures = f", {count['unreadable']} unreadable" if count["unreadable"] else ""
    return f"{count['files']} file{'' if count['files'] == 1 else 's'}: {outcomes}{failures}"


def document(files: Iterable[FileReport], **about: str) -> dict[str, Any]:
    """The JSON document, ready to be dumped; `about` stands in front (the upstream, its base, the series)."""
    files = list(files)
    return {
        "format": FORMAT,
        **about,
        "totals": totals(files),
        "files": [
            {
                "path": file.path,
                "failure": vars(file.failure) if file.failure else None,
                "sites": [_site(site) for site in file.sites],
            }
            for file in files
        ],
    }


def as_json(content: Mapping[str, Any]) -> str:
    """JSON with a fixed order and layout: the same document gives the same bytes."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def _site(site: Site) -> dict[str, Any]:
    return {
        "line": site.line,
        "col": site.col,
        "new_line": site.new_line,
        "kind": site.kind,
        "code": site.code,
        "outcome": site.outcome.value,
        "message": site.message,
    }


def sarif(files: Iterable[FileReport]) -> dict[str, Any]:
    """The SARIF 2.1.0 log for code scanning: what needs a change, and what could not be read."""
    files = list(files)
    results = [_result(file.path, site) for file in files for site in file.sites if _is_finding(site)]
    codes = {site.code: site.kind for file in files for site in file.sites if _is_finding(site)}
    failures = [_notification(file) for file in files if file.failure]
    run = {
        "tool": {
            "driver": {
                "name": "accelerate-ext tools",
                "informationUri": INFORMATION,
                "rules": [
                    {"id": code, "name": kind, "shortDescription": {"text": CODES.get(code, kind)}}
                    for code, kind in sorted(codes.items())
                ],
            }
        },
        "invocations": [{"executionSuccessful": not failures, "toolExecutionNotifications": failures}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }


def _is_finding(site: Site) -> bool:
    return site.outcome in (Outcome.REWRITTEN, Outcome.REFUSED)


def _result(path: str, site: Site) -> dict[str, Any]:
    """A rewritten site is a warning that `rewrite --write` takes away; a refused one needs a person."""
    return {
        "ruleId": site.code,
        "level": "warning" if site.outcome is Outcome.REWRITTEN else "error",
        "message": {"text": f"{site.kind}: {site.message}"},
        "locations": [_location(path, site.line, site.col)],
        "properties": {"outcome": site.outcome.value},
    }


def _notification(file: FileReport) -> dict[str, Any]:
    assert file.failure
    location = _location(file.path, file.failure.line or 1, file.failure.col or 1)
    return {"level": "error", "message": {"text": file.failure.message}, "locations": [location]}


def _location(path: str, line: int, col: int) -> dict[str, Any]:
    pure = PurePath(path)
    uri = pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())
    region = {"startLine": line, "startColumn": max(col, 1)}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
