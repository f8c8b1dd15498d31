"""A patch as a mail that `git am` reads: the same bytes for the same input, on any machine and with any git."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from .diff import unified_diff
from .patch import Patch

WIDTH = 72
_NO_COMMIT = "0" * 40
_EPOCH = "Mon Sep 17 00:00:00 2001"  # the date that git itself writes into the first line of every mail
_VERBATIM = re.compile(r"    |\t|[|>]|```|[A-Z][a-z]+-[A-Za-z-]+: ")  # commands, tables, quotes, trailers


@dataclass(frozen=True)
class Envelope:
    """What all mails of a series share. `base` is the line that names it: `Base-Commit: ...`."""

    author: str
    date: str  # RFC 2822
    base: str


def format_mail(
    patch: Patch, envelope: Envelope, number: int, total: int, *, context: int, modes: Mapping[str, str] | None = None
) -> bytes:
    """The mail of patch `number` of `total`, with `context` unchanged lines round each change.

    Raises: ValueError if the subject or the body would not come out of `git am` as they went in.
    """
    _check(patch)
    prefix = "PATCH" if total == 1 else f"PATCH {number}/{total}"
    body = wrap(patch.body)
    lines = [
        f"From {_NO_COMMIT} {_EPOCH}",
        f"From: {envelope.author}",
        f"Date: {envelope.date}",
        f"Subject: [{prefix}] {patch.subject}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        "Content-Transfer-Encoding: 8bit",
        "",
        *([body, ""] if body else []),
        envelope.base,
        "---",
    ]
    diffs = [
        unified_diff(path, change.before, change.after, context=context, mode=(modes or {}).get(path, "100644"))
        for path, change in sorted(patch.changes.items())
    ]
    return "\n".join(lines).encode() + b"\n" + b"".join(diffs)


def wrap(body: str) -> str:
    """The body with its paragraphs filled to 72 columns; tables, commands and trailers stay as they are."""
    return "\n\n".join(_fill(block) for block in re.split(r"\n[ \t]*\n", body.strip("\n")) if block.strip())


def _fill(block: str) -> str:
    lines = block.rstrip().split("\n")
    if any(_VERBATIM.match(line) for line in lines):
        return "\n".join(line.rstrip() for line in lines)
    items = re.split(r"\n(?=- |\d+\. )", "\n".join(lines))
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            WIDTH,
            subsequent_indent="  " if re.match(r"- |\d+\. ", item) else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )


def _check(patch: Patch) -> None:
    """What `git am` would take for something else must not stand in a subject or body."""
    if not patch.subject.isascii() or "\n" in patch.subject or not patch.subject.strip():
        raise ValueError(f"a subject must be one line of ASCII, got {patch.subject!r}")
    if re.match(r"\s|\[|re:", patch.subject, re.IGNORECASE):
        raise ValueError(f"git am cuts brackets and `Re:` off the start of a subject, got {patch.subject!r}")
    for line in patch.body.splitlines():
        if re.match(r"---|diff -|Index: |From |(From|Date|Subject): |>8", line):
            raise ValueError(f"git am reads this line of a body as something else; word it differently: {line!r}")
    if not any(change.before != change.after for change in patch.changes.values()):
        raise ValueError(f"a patch must change something, {patch.name!r} does not")
