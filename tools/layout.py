"""Edits that keep a file's layout: new clauses in a test, new arms, new lines, a test put round statements."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Sequence

from .loop.script import Script
from .loop.tree import inner_blocks
from .source import Edit, Source

_SPANS_LINES = re.compile(r"'''|\\\n|" + '"""')  # without one of these no string goes over the end of its line


class LayoutError(ValueError):
    """The text is laid out in a way that an edit cannot follow, such as two statements on one line."""


class Layout:
    """Makes edits to one script. Lines stay within `width` columns where a test can be broken."""

    def __init__(self, script: Script, width: int) -> None:
        self.script = script
        self.source: Source = script.source
        self.width = width

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.source.segment(node)

    def clause_text(self, node: ast.expr) -> str:
        """The text of an expression, in parentheses if `and` would take it apart."""
        text = self.text(node)
        return f"({text})" if isinstance(node, (ast.IfExp, ast.Lambda, ast.NamedExpr)) or _is_or(node) else text

    def indent(self, node: ast.stmt) -> str:
        """The white space before a statement that begins its line. Raises: LayoutError if it does not."""
        indent = self.source.indentation(node)
        if indent.strip():
            raise LayoutError("it shares its line with other code")
        return indent

    def unit(self, node: ast.stmt) -> str:
        """One step of indentation, as it is used nearest to a statement."""
        for outer in (node, *self.script.ancestors(node)):
            for _, block in inner_blocks(outer):
                deep, shallow = self.source.indentation(block[0]), self.source.indentation(outer)
                if not deep.strip() and deep.startswith(shallow) and len(deep) > len(shallow):
                    return deep[len(shallow) :]
        match = re.search(r"^([ \t]+)\S", self.source.text, re.MULTILINE)
        return match.group(1) if match and match.group(1)[0] == "\t" else "    "

    def add_clauses(self, node: ast.If, anchor: ast.expr, clauses: Sequence[str], word: str = "and") -> list[Edit]:
        """Puts clauses behind one clause of a test (`anchor`), a clause a line where the test is or gets long."""
        start, end = self.source.span(node.test)
        anchor = _outside_not(node.test, anchor)
        if anchor is node.test and isinstance(anchor, ast.NamedExpr):
            return self._behind_walrus(node, clauses, word)
        at = self._past_parentheses(anchor, end)
        if node.test.lineno == node.test.end_lineno:
            text = self.source.text
            whole = text[start:at] + "".join(f" {word} {item}" for item in clauses) + text[at:end]
            if self._fits(node, whole):
                return [Edit(at, at, "".join(f" {word} {item}" for item in clauses))]
            return self._exploded(node, self._split(node.test, word, at, clauses), word)
        if self._is_parenthesised(node) and self._ends_line(at):
            line = anchor.end_lineno or anchor.lineno
            at = self.source.line_end(line)  # a comment stays with its clause
            indent = self._line_indent(line)
            return [Edit(at, at, "".join(f"{self.source.newline}{indent}{word} {item}" for item in clauses))]
        return [Edit(at, at, "".join(f" {word} {item}" for item in clauses))]

    def _behind_walrus(self, node: ast.If, clauses: Sequence[str], word: str) -> list[Edit]:
        """Clauses behind `(name := value)`, outside its parentheses, so that the name keeps its value."""
        start, end = self.source.span(node.test)
        more = "".join(f" {word} {item}" for item in clauses)
        if self._is_parenthesised(node):
            at = self._closed(end)
            return [Edit(at, at, more)]
        return [Edit(start, start, "("), Edit(end, end, f"){more}")]

    def prepend_clauses(self, node: ast.If, clauses: Sequence[str]) -> list[Edit]:
        """Puts clauses, joined by `and`, before the whole test of an `if`."""
        start, end = self.source.span(node.test)
        old = self.clause_text(node.test)
        if node.test.lineno == node.test.end_lineno:
            if self._fits(node, " and ".join([*clauses, old])):
                if old.startswith("(") and _is_or(node.test):
                    return [Edit(start, start, " and ".join(clauses) + " and ("), Edit(end, end, ")")]
                return [Edit(start, start, " and ".join(clauses) + " and ")]
            return self._exploded(node, [*clauses, *self._split(node.test, "and", -1, ())], "and")
        opens, closes = ("(", ")") if old != self.text(node.test) else ("", "")
        first = f" and {opens}"
        if self._is_parenthesised(node) and self.source.text[:start].rstrip(" \t").endswith(("\n", "\r")):
            line = f"{self.source.newline}{self._line_indent(node.test.lineno)}"
            return [Edit(start, start, f"{line}and ".join(clauses) + f"{line}and {opens}"), *_tail(end, closes)]
        return [Edit(start, start, " and ".join(clauses) + first), *_tail(end, closes)]

    def _split(self, test: ast.expr, word: str, at: int, more: Sequence[str]) -> list[str]:
        kind = ast.And if word == "and" else ast.Or
        values = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, kind) else [test]
        _, end = self.source.span(test)
        parts: list[str] = []
        for value in values:
            start, stop = self.source.span(value)
            text = self.source.text[start:stop]
            parts.append(
                f"({text})" if isinstance(value, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)) else text
            )
            if self._past_parentheses(value, end) == at:
                parts += more
        return parts

    def _fits(self, node: ast.If, test: str) -> bool:
        """Whether a test stays on its line: within the width, or with a comment behind it that must not get lost."""
        end = self.source.span(node.test)[1]
        if self._is_parenthesised(node) and "#" in self.source.text[end : self._closed(end)]:
            return True
        rest = re.match(r"[\s)]*:", self.source.text[end:])
        start = self.source.line_starts[node.lineno - 1]
        head = self.source.text[start : self.source.span(node.test)[0]]
        return len(head) + len(test) + (len(rest.group()) if rest else 1) <= self.width

    def _exploded(self, node: ast.If, clauses: Sequence[str], word: str) -> list[Edit]:
        start, end = self.source.span(node.test)
        newline, indent = self.source.newline, self._line_indent(node.lineno)
        inner = f"{newline}{indent}{self.unit(node)}"
        body = inner + f"{inner}{word} ".join(clauses) + f"{newline}{indent}"
        if self._is_parenthesised(node):
            return [Edit(start, self._closed(end) - 1, body)]
        return [Edit(start, end, f"({body})")]

    def _is_parenthesised(self, node: ast.If) -> bool:
        head = self.source.text[self.source.span(node)[0] : self.source.span(node.test)[0]]
        return "(" in re.sub(r"#[^\r\n]*", "", head)

    def _past_parentheses(self, node: ast.expr, limit: int) -> int:
        """Where a clause ends, with the parentheses round it that belong to it."""
        start, end = self.source.span(node)
        while (
            (match := re.compile(r"\s*\)").match(self.source.text, end, limit))
            and (before := self.source.text[:start].rstrip()).endswith("(")
        ):  # fmt: skip
            start, end = len(before) - 1, match.end()
        return end

    def _ends_line(self, offset: int) -> bool:
        rest = re.compile(r"[^\r\n]*").match(self.source.text, offset)
        return rest is not None and not re.sub(r"#.*", "", rest.group()).strip()

    def _line_indent(self, line: int) -> str:
        match = re.compile(r"[ \t\f]*").match(self.source.text, self.source.line_starts[line - 1])
        return match.group() if match else ""

    def insert_text(self, offset: int, text: str) -> list[Edit]:
        return [Edit(offset, offset, text)]

    def insert_before(self, node: ast.stmt, lines: Sequence[str]) -> list[Edit]:
        """New lines above a statement and above the comment that belongs to it. Lines come without indentation."""
        indent, line = self.indent(node), node.lineno
        while line > 1 and self._line(line - 1).startswith(f"{indent}#"):
            line -= 1
        at = self.source.line_starts[line - 1]
        return [Edit(at, at, "".join(f"{indent}{text}{self.source.newline}" for text in lines))]

    def insert_after(self, node: ast.stmt, line: str) -> list[Edit]:
        """One simple statement behind another one: on a line of its own, or behind `;` where the line is shared."""
        end = self.source.span(node)[1]
        if self.source.indentation(node).strip() or not self._ends_line(end):
            return [Edit(end, end, f"; {line}")]
        return self._below(node, [f"{self.indent(node)}{line}"])

    def _below(self, node: ast.stmt, lines: Sequence[str]) -> list[Edit]:
        """Whole lines under the last line of a statement and under the deeper comments that end it."""
        line, own = node.end_lineno or node.lineno, len(self._line_indent(node.lineno))
        block = inner_blocks(node)
        deep = len(self._line_indent(block[-1][1][-1].lineno)) if block else own + 1
        following = line + 1
        while block and following <= len(self.source.line_starts) and (
            (text := self._line(following)).strip().startswith("#") or not text.strip()
        ):  # fmt: skip
            if text.strip():
                if len(self._line_indent(following)) < deep or deep <= own:
                    break
                line = following
            following += 1
        at = self.source.line_end(line)
        newline = self.source.newline
        return [Edit(at, at, "".join(f"{newline}{text}" for text in lines))]

    def _line(self, line: int) -> str:
        return self.source.text[self.source.line_starts[line - 1] : self.source.line_end(line)]

    def add_arm(self, node: ast.If, header: str, statements: Sequence[str]) -> list[Edit]:
        """A last arm (`elif ...:` or `else:`) under an `if` that has none."""
        indent = self._line_indent(node.lineno)
        inner = indent + self.unit(node)
        return self._below(
            node, [f"{indent}{header}", *(inner + text.replace("\0", self.unit(node)) for text in statements)]
        )

    def add_block(self, node: ast.stmt, header: str, statements: Sequence[str]) -> list[Edit]:
        """A new compound statement behind another one."""
        indent, unit = self.indent(node), self.unit(node)
        return self._below(node, [indent + header, *(indent + unit + text.replace("\0", unit) for text in statements)])

    def end_wrapped(
        self, first: ast.stmt, last: ast.stmt, more: Sequence[str], header: str, other: Sequence[str]
    ) -> list[Edit]:
        """The end of what `wrap` put round statements: more statements, and another arm."""
        indent, unit = self.indent(first), self.unit(first)
        lines = [indent + unit + text for text in more]
        lines += [indent + header, *(indent + unit + text.replace("\0", unit) for text in other)]
        return self._below(last, lines)

    def arm_inside(self, last: ast.stmt, indent: str, header: str, statements: Sequence[str]) -> list[Edit]:
        """An arm for a test that `wrap` puts round statements which end with `last`."""
        unit = self.unit(last)
        lines = [f"{indent}{header}", *(indent + unit + text.replace("\0", unit) for text in statements)]
        return self._below(last, lines)

    def raw_test(self, node: ast.If) -> str:
        """The test of an `if` as it is written, with the parentheses round it."""
        start = self.source.span(node)[0]
        head = re.compile(r"(?:el)?if\s*").match(self.source.text, start)
        end = self.source.span(node.test)[1]
        while (closed := self._closed(end)) > end:
            end = closed
        return self.source.text[head.end() if head else start : end]

    def _closed(self, offset: int) -> int:
        """Where the next parenthesis closes, behind white space and comments only; the offset itself if none does."""
        found = re.compile(r"(?:[\s\\]|#[^\r\n]*)*\)").match(self.source.text, offset)
        return found.end() if found else offset

    def add_at_end(self, node: ast.If, statements: Sequence[str]) -> list[Edit]:
        """Statements at the end of the body of an `if` that has no other arm."""
        last = node.body[-1]
        if self.source.indentation(last).strip():
            end = self.source.span(last)[1]
            return [Edit(end, end, "".join(f"; {text}" for text in statements))]
        return self._below(last, [f"{self.indent(last)}{text}" for text in statements])

    def wrap(self, first: ast.stmt, last: ast.stmt, test: str) -> list[Edit]:
        """Puts `if test:` round whole lines. Text inside strings that span lines stays where it is."""
        indent, unit, newline = self.indent(first), self.unit(first), self.source.newline
        end_line = last.end_lineno or last.lineno
        if not self._ends_line(self.source.span(last)[1]):
            raise LayoutError("it shares its line with other code")
        at = self.source.line_starts[first.lineno - 1]
        edits = [Edit(at, at, f"{indent}if {test}:{newline}")]
        inside = self._inside_strings(first.lineno, end_line)
        for line in range(first.lineno, end_line + 1):
            if line not in inside and self._line(line).strip():
                start = self.source.line_starts[line - 1]
                edits.append(Edit(start, start, unit))
        return edits

    def _inside_strings(self, first: int, last: int) -> set[int]:
        """Those of the lines of whole statements that begin inside a string."""
        text = self.source.text[self.source.line_starts[first - 1] : self.source.next_line(last)]
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not _SPANS_LINES.search(text):
            return set()
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING or tokenize.tok_name[token.type].endswith("STRING_MIDDLE"):
                found.update(range(first + token.start[0], first + token.end[0]))
        return found


def _outside_not(test: ast.expr, anchor: ast.expr) -> ast.expr:
    """The clause that an expression stands in: a `not` round it and others would turn what is put behind it."""
    while isinstance(test, ast.BoolOp) and test is not anchor:
        test = next(value for value in test.values if any(item is anchor for item in ast.walk(value)))
    return test


def _is_or(node: ast.expr) -> bool:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)


def _tail(end: int, text: str) -> list[Edit]:
    return [Edit(end, end, text)] if text else []
