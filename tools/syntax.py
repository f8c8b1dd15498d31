"""Says what a syntax error is about where the file is only newer than the Python that runs the tools."""

from __future__ import annotations

import re
import sys

# What newer grammars brought, with the first Python that parses it. Looked for from the failing line on upwards.
_NEWER = (
    ((3, 11), r"^\s*except\s*\*", "`except*`"),
    ((3, 11), r"\[[^\]]*\*\w+[^\]]*\]", "an unpacked index (`x[*y]`)"),
    ((3, 12), r"^\s*type\s+\w+\s*(\[.*\])?\s*=", "a `type` statement"),
    ((3, 12), r"^\s*(async\s+)?def\s+\w+\s*\[", "type parameters of a function"),
    ((3, 12), r"^\s*class\s+\w+\s*\[", "type parameters of a class"),
    ((3, 12), r"""\b[rR]?[fF][rR]?(["']).*\{[^{}]*\1[^{}]*\1""", "the same quotes inside an f-string"),
    ((3, 13), r"\[\s*\w+\s*(:\s*\w+)?\s*=[^=]", "a default of a type parameter"),
    ((3, 14), r"""(?<!\w)[rR]?[tT][rR]?["']""", "a t-string"),
    ((3, 14), r"^\s*except\s+[\w.]+\s*,", "`except` with several types and no parentheses"),
    ((3, 15), r"^\s*lazy\s+(import|from)\b", "a lazy import"),
)


def newer_syntax(data: bytes, line: int | None, running: tuple[int, int] = sys.version_info[:2]) -> str | None:
    """The newer construct that seems to stand where a syntax error is, with the Python that it needs, or None."""
    if line is None:
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    for text in reversed(lines[max(line - 2, 0) : line]):
        for version, pattern, what in _NEWER:
            if version > running and re.search(pattern, text):
                needs, here = (".".join(map(str, numbers)) for numbers in (version, running))
                return f"this looks like {what}, which needs Python {needs}, and this is {here}; run a newer one"
    return None
