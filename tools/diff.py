"""Two versions of a file to a unified diff that git applies. Pure text work: no git is called and no clock is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from difflib import SequenceMatcher


def blob_id(data: bytes) -> str:
    """The id under which git stores these bytes as a file (SHA-1 object format)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def unified_diff(path: str, before: bytes, after: bytes, *, context: int = 3, mode: str = "100644") -> bytes:
    """The diff of one file as git writes it, with full blob ids; empty if nothing differs.

    `context` is the number of unchanged lines round a change. With 0 the result holds removed and added lines only
    and goes through `git apply --unidiff-zero` onto exactly `before`. Line ends are kept, and no text follows a
    hunk's ranges, so that no unchanged line is quoted.
    Raises: ValueError if the path or `context` cannot stand in a diff.
    """
    if context < 0:
        raise ValueError(f"`context` must be 0 or more lines, got {context}")
    if not path or path.startswith("/") or any(ord(char) < 32 or char in '"\\' for char in path):
        raise ValueError(f"a path in a diff must be relative and free of quotes and control characters, got {path!r}")
    if before == after:
        return b""
    tail = b"\t" if " " in path else b""  # git ends a name that holds a space with a tab
    name = path.encode()
    head = [
        b"diff --git a/%b b/%b\n" % (name, name),
        b"index %b..%b %b\n" % (blob_id(before).encode(), blob_id(after).encode(), mode.encode()),
        b"--- a/%b%b\n" % (name, tail),
        b"+++ b/%b%b\n" % (name, tail),
    ]
    return b"".join([*head, *_hunks(split_lines(before), split_lines(after), context)])


def split_lines(data: bytes) -> list[bytes]:
    """Lines as git sees them: they end with a line feed and with nothing else. The last one may lack it."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _hunks(before: list[bytes], after: list[bytes], context: int) -> Iterator[bytes]:
    """The hunks, one after the other."""
    for group in _groups(before, after, context):
        first, last = group[0], group[-1]
        old, new = _range(first[1], last[2]), _range(first[3], last[4])
        yield f"@@ -{old} +{new} @@\n".encode()
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (_line(b" ", line) for line in before[i1:i2])
                continue
            yield from (_line(b"-", line) for line in before[i1:i2])
            yield from (_line(b"+", line) for line in after[j1:j2])


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> str:
    """A hunk's range. An empty one names the line before it, as git does."""
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _groups(before: list[bytes], after: list[bytes], context: int) -> Iterator[list[tuple[str, int, int, int, int]]]:
    """Changes with the unchanged lines round them; two changes that share context stand in one group."""
    head, tail = _common(before, after)
    matcher = SequenceMatcher(None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False)
    changes = [
        (tag, i1 + head, i2 + head, j1 + head, j2 + head)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]
    group: list[tuple[str, int, int, int, int]] = []
    for change in changes:
        lead = context if not group else min(2 * context, change[1] - group[-1][2])
        if group and change[1] - group[-1][2] > 2 * context:
            yield [*group, _trailing(group[-1], len(before), context)]
            group, lead = [], context
        lead = min(lead, change[1])
        group += [("equal", change[1] - lead, change[1], change[3] - lead, change[3]), change]
    if group:
        yield [*group, _trailing(group[-1], len(before), context)]


def _trailing(change: tuple[str, int, int, int, int], num_lines: int, context: int) -> tuple[str, int, int, int, int]:
    _, _, old, _, new = change
    length = min(context, num_lines - old)
    return ("equal", old, old + length, new, new + length)


def _common(before: list[bytes], after: list[bytes]) -> tuple[int, int]:
    """How many lines the two share at the start, and how many of the rest at the end."""
    shorter = min(len(before), len(after))
    head = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    return head, tail
