"""Places in a source file, found by the shape of the code around them, and edits at those places.

A pattern is a piece of Python in which the name `ANY` stands for every expression and a body of `...` for every
body. A place must be there exactly once: what is missing or ambiguous raises `ShapeError`, and nothing is guessed.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ..source import Edit, Source

NodeT = TypeVar("NodeT", bound=ast.AST)


class ShapeError(ValueError):
    """A place that is not there as expected; `line` is where it was looked for, from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def only(found: Iterable[NodeT], what: str, where: str, line: int = 1) -> NodeT:
    """The one node that was found. Raises: ShapeError if there is none or there are several."""
    nodes = list(found)
    if len(nodes) != 1:
        raise ShapeError(f"there must be exactly one {what} in {where}, found {len(nodes)}", line)
    return nodes[0]


def class_named(source: Source, name: str) -> ast.ClassDef:
    """The module's class of that name."""
    classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return only(classes, f"class `{name}`", "the module")


def method(source: Source, owner: str, name: str) -> ast.FunctionDef:
    """A class's method of that name."""
    scope = class_named(source, owner)
    methods = [node for node in scope.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return only(methods, f"method `{name}`", f"`{owner}`", scope.lineno)


def find(scope: ast.AST, pattern: str, where: str) -> Any:
    """The one statement or expression inside `scope` that looks like the pattern."""
    wanted = _parse(pattern)
    found = [node for node in ast.walk(scope) if _matches(node, wanted)]
    return only(found, f"`{pattern.strip().splitlines()[0]}`", where, getattr(scope, "lineno", 1))


def statement(scope: ast.AST, pattern: str, where: str) -> Any:
    """The one statement inside `scope` that is nothing but an expression that looks like the pattern."""
    wanted = _parse(pattern)
    found = [node for node in ast.walk(scope) if isinstance(node, ast.Expr) and _matches(node.value, wanted)]
    return only(found, f"`{pattern}`", where, getattr(scope, "lineno", 1))


def siblings(scope: ast.AST, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
    """The body that a statement stands in, and its index there."""
    for node in ast.walk(scope):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(body, list) and any(item is statement for item in body):
                return body, next(index for index, item in enumerate(body) if item is statement)
    raise ShapeError("the statement is not inside the scope that was given", statement.lineno)


def before(source: Source, statement: ast.stmt, text: str) -> Edit:
    """Puts lines in front of a statement's first line, indented like it."""
    start = source.line_starts[statement.lineno - 1]
    return Edit(start, start, _indented(source, text, source.indentation(statement)))


def above(source: Source, statement: ast.stmt, text: str) -> Edit:
    """As `before`, but also in front of the comment that stands directly above the statement."""
    line = statement.lineno
    while source.text[source.line_starts[line - 2] : source.line_end(line - 1)].lstrip().startswith("#"):
        line -= 1
    start = source.line_starts[line - 1]
    return Edit(start, start, _indented(source, text, source.indentation(statement)))


def after(source: Source, statement: ast.stmt, text: str) -> Edit:
    """Puts lines behind a statement's last line, indented like the statement."""
    assert statement.end_lineno is not None
    start = source.next_line(statement.end_lineno)
    return Edit(start, start, _indented(source, text, source.indentation(statement)))


def method_after(source: Source, definition: ast.FunctionDef, text: str) -> Edit:
    """Puts a method behind another one, with a blank line between them."""
    edit = after(source, definition, text)
    return Edit(edit.start, edit.end, source.newline + edit.text)


def imported(source: Source, module: str) -> Edit:
    """Puts `import module` where it belongs among the plain imports at the top, in the order of the alphabet."""
    imports = [node for node in source.tree.body if isinstance(node, ast.Import) and not node.names[0].asname]
    if any(node.names[0].name == module for node in imports):
        raise ShapeError(f"`{module}` must not be imported yet")
    later = [node for node in imports if node.names[0].name > module]
    if not later:
        raise ShapeError(f"there must be a plain import behind which `import {module}` does not belong")
    return before(source, later[0], f"import {module}\n")


def instead(source: Source, node: ast.expr | ast.stmt, text: str) -> Edit:
    """Puts text in the place of a node, as it is; lines behind the first are indented by the caller."""
    start, end = source.span(node)
    return Edit(start, end, text.replace("\n", source.newline))


def header(source: Source, compound: ast.For | ast.If, text: str) -> Edit:
    """Puts lines in the place of a compound statement's first line or lines, up to its body; the body stays."""
    start, end = source.line_starts[compound.lineno - 1], source.line_starts[compound.body[0].lineno - 1]
    between = source.text[source.span(compound.iter if isinstance(compound, ast.For) else compound.test)[1] : end]
    if between.strip() != ":":
        raise ShapeError("a comment stands between the statement's first line and its body", compound.lineno)
    return Edit(start, end, _indented(source, text, source.indentation(compound)))


def without_test(source: Source, block: ast.If) -> Edit:
    """Takes an `if` without `else` away and keeps its body, one level further out."""
    if block.orelse:
        raise ShapeError("the test to be removed has an `else`", block.lineno)
    assert block.end_lineno is not None
    start, end = source.line_starts[block.lineno - 1], source.next_line(block.end_lineno)
    first = source.next_line(block.lineno)
    outer, inner = source.indentation(block), source.indentation(block.body[0])
    lines = source.text[first:end].splitlines(keepends=True)
    if not all(line.startswith(inner) or not line.strip() for line in lines):
        raise ShapeError("a line of the block to be moved out is indented less than the block", block.lineno)
    return Edit(start, end, "".join(outer + line[len(inner) :] if line.strip() else line for line in lines))


def entry_end(source: Source, scope: ast.ClassDef | ast.FunctionDef, name: str) -> tuple[int, str]:
    """Where the docstring's paragraph about an argument ends (the offset behind its last line), and its indent."""
    docstring = docstring_of(scope)
    start, end = source.span(docstring)
    pattern = re.compile(rf"^( +){re.escape(name)} ?\(.*\n((?:\1 +\S.*\n)+)", re.MULTILINE)
    found = list(pattern.finditer(source.text, start, end))
    if len(found) != 1:
        message = f"the docstring of `{scope.name}` must describe `{name}` exactly once, found {len(found)}"
        raise ShapeError(message, docstring.lineno)
    return found[0].end(), found[0].group(1)


def docstring_of(scope: ast.ClassDef | ast.FunctionDef) -> ast.Expr:
    """The statement that holds a docstring. Raises: ShapeError if there is none."""
    first = scope.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    raise ShapeError(f"`{scope.name}` must have a docstring", scope.lineno)


def docstring_tail(source: Source, scope: ast.FunctionDef, text: str) -> Edit:
    """Adds lines to the end of a docstring whose closing quotes stand on a line of their own."""
    docstring = docstring_of(scope)
    assert docstring.end_lineno is not None
    start = source.line_starts[docstring.end_lineno - 1]
    if source.text[start : source.span(docstring)[1]].strip() != '"""':
        raise ShapeError(f"the docstring of `{scope.name}` must end on a line of its own", docstring.lineno)
    return Edit(start, start, _indented(source, text, source.indentation(docstring)))


def _indented(source: Source, text: str, indent: str) -> str:
    return textwrap.indent(textwrap.dedent(text).lstrip("\n"), indent).replace("\n", source.newline)


def _parse(pattern: str) -> ast.AST:
    statement = only(ast.parse(pattern).body, "statement", "a pattern")
    return statement.value if isinstance(statement, ast.Expr) else statement


def _matches(node: Any, wanted: Any) -> bool:
    if isinstance(wanted, ast.Name) and wanted.id == "ANY":
        return isinstance(node, ast.expr)
    if isinstance(wanted, ast.AST):
        if type(node) is not type(wanted):
            return False
        fields = [name for name in wanted._fields if name not in ("ctx", "type_comment", "kind")]
        return all(_matches(getattr(node, name, None), getattr(wanted, name, None)) for name in fields)
    if isinstance(wanted, list):
        return isinstance(node, list) and (_is_any_body(wanted) or _all_match(node, wanted))
    return type(node) is type(wanted) and node == wanted


def _all_match(nodes: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(nodes) == len(wanted) and all(_matches(*pair) for pair in zip(nodes, wanted, strict=True))


def _is_any_body(body: list[Any]) -> bool:
    return len(body) == 1 and isinstance(body[0], ast.Expr) and _is_ellipsis(body[0].value)


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
