"""Where patterns match in the text of one file."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from functools import lru_cache

from ..source import Source

_BEFORE_ARGUMENTS = ("(", " ", "\t", "\f", "\\", "\r", "\n")


class Search:
    """Looks for each pattern once, however often it is asked for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._offsets: dict[re.Pattern[str], list[int]] = {}

    def offsets(self, pattern: re.Pattern[str]) -> list[int]:
        """The offsets that a pattern matches at, in order."""
        if pattern not in self._offsets:
            text = self.source.text
            start = text.find(_literal(pattern))  # many times faster than the pattern, and most are not there
            self._offsets[pattern] = [match.start() for match in pattern.finditer(text, start)] if start >= 0 else []
        return self._offsets[pattern]

    def lines(self, pattern: re.Pattern[str]) -> list[int]:
        """The lines (from 1) that a pattern matches on, in order."""
        return [bisect_right(self.source.line_starts, offset) for offset in self.offsets(pattern)]

    def lines_calling(self, name: str) -> list[int]:
        """The lines that call something by a name, or by another that ends in it: faster than a pattern for it."""
        text, found = self.source.text, []
        start = text.find(name)
        while start >= 0:
            end = start + len(name)
            if text[end : end + 1] in _BEFORE_ARGUMENTS:
                found.append(bisect_right(self.source.line_starts, start))
            start = text.find(name, end)
        return found

    @property
    def lines_in_other_letters(self) -> list[int]:
        """The lines in which a name may be written in other letters than the tree has for it."""
        text, starts = self.source.text, self.source.line_starts
        if unicodedata.is_normalized("NFKC", text):
            return []
        ends = [*starts[1:], len(text)]
        return [line for line, (a, b) in enumerate(zip(starts, ends, strict=True), 1) if not text[a:b].isascii()]


def has_line(lines: list[int], first: int, last: int) -> bool:
    """Whether one of the lines, which are in order, lies in a span of them."""
    index = bisect_left(lines, first)
    return index < len(lines) and lines[index] <= last


@lru_cache(maxsize=1024)
def _literal(pattern: re.Pattern[str]) -> str:
    """The letters that every match of a pattern begins with."""
    found = re.match(r"\w*(?![*?+{|\w])|", pattern.pattern)
    return found.group() if found and "|" not in pattern.pattern and not pattern.flags & re.IGNORECASE else ""
