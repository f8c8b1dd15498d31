"""The text of a Python file and exact edits to it: every byte outside an edit stays as it was."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

_LINE_END = re.compile(r"\r\n|\r|\n")


class SourceError(ValueError):
    """A file that cannot be read as Python source; `line` and `col` count from 1 where they are known."""

    def __init__(self, message: str, line: int | None = None, col: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.col = col


@dataclass(frozen=True, order=True)
class Edit:
    """Puts `text` in place of the characters from `start` up to `end`; an insertion has start == end."""

    start: int
    end: int
    text: str

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"an edit must run from start to a later end, got {self.start} to {self.end}")


@dataclass(frozen=True)
class Source:
    """A decoded file. Offsets count characters of `text`, in which line ends are kept as the file has them."""

    text: str
    encoding: str = "utf-8"
    bom: bool = False

    @classmethod
    def from_bytes(cls, data: bytes) -> Source:
        """Decode as Python does: byte order mark, then the PEP 263 line, then UTF-8.

        Raises: SourceError if the bytes are a notebook, or no text in the encoding that the file declares.
        """
        if b"\0" in data:
            raise SourceError("a Python source file must not contain NUL bytes; this looks like a binary file")
        is_notebook = data.lstrip()[:1] == b"{" and b'"cells"' in data and b'"nbformat"' in data
        if is_notebook:  # its JSON parses as Python too
            raise SourceError("this is a notebook: make a script of it first, as with `jupyter nbconvert --to script`")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except (SyntaxError, LookupError) as error:
            raise SourceError(f"the encoding of the file cannot be used: {error}", 1) from error
        bom = data.startswith(codecs.BOM_UTF8)
        codec = "utf-8" if encoding == "utf-8-sig" else encoding
        try:
            text = (data[len(codecs.BOM_UTF8) :] if bom else data).decode(codec)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise SourceError(f"the file is not {codec} text at byte {error.start}: {error.reason}", line) from error
        return cls(text, codec, bom)

    def to_bytes(self) -> bytes:
        """The bytes that `from_bytes` read, unless an edit brought a character that the encoding lacks."""
        return (codecs.BOM_UTF8 if self.bom else b"") + self.text.encode(self.encoding)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. Raises: SourceError where the text does not parse."""
        try:
            return ast.parse(self.text)
        except SyntaxError as error:
            raise SourceError(f"syntax error: {error.msg}", error.lineno, error.offset) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise SourceError(f"the file cannot be parsed: {error or type(error).__name__}") from error

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the first character of each line, line 1 first."""
        if "\r" not in self.text:
            lengths = map(len, self.text.split("\n")[:-1])
            return [start + ends for ends, start in enumerate(accumulate(lengths, initial=0))]
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def line_at(self, offset: int) -> int:
        """The line (from 1) of a character."""
        if "\r" not in self.text:
            return self.text.count("\n", 0, offset) + 1
        return bisect_right(self.line_starts, offset)

    @cached_property
    def newline(self) -> str:
        """The line end that the file uses first, `\\n` if it has none."""
        match = _LINE_END.search(self.text)
        return match.group() if match else "\n"

    def offset(self, line: int, byte_col: int) -> int:
        """Offset of a place that the syntax tree names: `line` from 1, `byte_col` in UTF-8 bytes from 0."""
        start = self.line_starts[line - 1]
        if self.text.isascii():
            return start + byte_col
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        head = self.text[start:end]
        if head.isascii():
            return start + byte_col
        return start + len(head.encode("utf-8")[:byte_col].decode("utf-8"))

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler) -> tuple[int, int]:
        """Offsets of a node's first character and of the one after its last."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node, line ends as in the file."""
        start, end = self.span(node)
        return self.text[start:end]

    def indentation(self, node: ast.stmt) -> str:
        """The white space that a statement's line begins with (tabs and form feeds kept)."""
        start = self.line_starts[node.lineno - 1]
        return self.text[start : self.offset(node.lineno, node.col_offset)]

    def line_end(self, line: int) -> int:
        """Offset where the text of `line` (from 1) ends, before its line end."""
        match = _LINE_END.search(self.text, self.line_starts[line - 1])
        return match.start() if match else len(self.text)

    def next_line(self, line: int) -> int:
        """Offset of the first character after `line`'s line end; the end of the text if it has none."""
        return self.line_starts[line] if line < len(self.line_starts) else len(self.text)

    def edited(self, edits: Iterable[Edit]) -> Source:
        """A new source with all edits made at once; insertions at one place keep the order they are given in.

        Raises: ValueError if two edits overlap.
        """
        pieces: list[str] = []
        position = 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < position:
                raise ValueError(f"edits must not overlap, got two that both cover offset {edit.start}")
            pieces += [self.text[position : edit.start], edit.text]
            position = edit.end
        pieces.append(self.text[position:])
        return Source("".join(pieces), self.encoding, self.bom)
