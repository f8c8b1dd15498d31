"""Names that a block or a statement gives a value and that are read outside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from .index import Loop
from .names import key
from .obstacles import Refusal
from .scope import Scope
from .script import Script
from .tree import assigned, expressions, within

_WORD = re.compile(r"[A-Za-z_]\w*")


def left_unbound(script: Script, block: list[ast.stmt], scope: Scope, spared: set[int]) -> Refusal | None:
    """Why a block cannot be left out of the first iterations: a name that it alone binds is read outside it.

    `spared` are ids of statements that are left out together with the block.
    """
    inside = {id(node) for node in within(block)}
    mine = {
        name
        for name, bindings in scope.bindings.items()
        if name.isidentifier() and all(id(item.statement) in inside for item in bindings)
    }
    loop = script.loop(block[0])
    if not mine or loop is None or not _is_written_outside(script, block, loop, mine):
        return None
    for node in within(loop.body):
        if id(node) in spared or id(node) in inside:
            continue
        for name in _reads(node, mine):
            return Refusal(
                "late-name",
                f"`{name}` gets its value in this block alone and line {node.lineno} reads it in every iteration; if "
                f"the first update is skipped it has none. Give `{name}` a value before the loop",
            )
    return None


def stays_true(
    script: Script, first: ast.stmt, answers: set[str], inside: set[int], spared: set[int]
) -> Refusal | None:
    """Why a name that answers a test on a counter cannot be left as it was: it is read behind the block, again true.

    A name that an iteration sets to a constant outside the block does not stay so.
    """
    loop = script.loop(first)
    if not answers or loop is None:
        return None
    outside = [node for node in within(loop.body) if id(node) not in inside]
    put_back = {key(target) for node in outside for target, value in assigned(node) if isinstance(value, ast.Constant)}
    for node in outside:
        found = {key(item) for item in expressions(node) if isinstance(getattr(item, "ctx", None), ast.Load)}
        for name in sorted((answers - put_back) & found) if id(node) not in spared else ():
            return Refusal(
                "late-name",
                f"`{name}` answers a test on the counter in this block and line {node.lineno} reads it in every "
                f"iteration; after a skipped update it would still be true. Set `{name} = False` before the block",
            )
    return None


def read_by_turns(scope: Scope, tests: list[ast.If], inside: set[int]) -> Refusal | None:
    """Why a counter cannot wait for an applied update: by its value one test gives a name, and another one reads it.

    `tests` are those of the loop that read the counter, `inside` ids of statements that wait with it. In a loop that
    takes turns by its counter each turn reads what its own half has set; held back, it leads to the other half.
    """
    free = [test for test in tests if id(test) not in inside]
    names = {name for name in scope.bindings if name.isidentifier()}
    for reader in [test for test in free if test.orelse]:
        givers = [test for test in free if test is not reader and not _is_in_one_arm(test, [reader])]
        for node in within([*reader.body, *reader.orelse]):
            for name in _reads(node, names):
                setters = [item.statement for item in scope.bindings[name]]
                for giver in [test for test in givers if _is_in_one_arm(test, setters)]:
                    text = (
                        f"line {node.lineno} reads `{name}`, which line {giver.lineno} gives a value by turns of the "
                    )
                    advice = (
                        f"same counter: after a skipped update it may have none. Give `{name}` one before the loop"
                    )
                    return Refusal("late-name", text + advice)
    return None


def _is_in_one_arm(test: ast.If, nodes: list[ast.stmt]) -> bool:
    arms = [arm for arm in (test.body, test.orelse) if arm]
    return any(all(arm[0].lineno <= node.lineno <= (arm[-1].end_lineno or 0) for node in nodes) for arm in arms)


def read_elsewhere(script: Script, node: ast.stmt, scope: Scope, spared: Iterable[ast.stmt]) -> Refusal | None:
    """Why an assignment cannot be left out of some iterations: what it sets is read outside it and what is spared.

    A sum stays as it was, which is right. Anything else is old then, or has no value yet.
    """
    inside = {id(item) for outer in (node, *spared) for item in ast.walk(outer)}
    for target in _set_by(node):
        home: ast.AST = script.source.tree
        if isinstance(target, ast.Name) and target.id not in scope.outer_names:
            home = script.home(scope, target.id).node
        for item in ast.walk(home):
            if isinstance(item, type(target)) and id(item) not in inside and _is_read_as(item, target):
                return Refusal(
                    "late-name",
                    f"line {item.lineno} reads `{ast.unparse(target)}`, which a skipped update would leave as it was, "
                    "or without a value; put both under `if not ...step_was_skipped:` by hand",
                )
    return None


def _set_by(node: ast.stmt) -> list[ast.Name | ast.Attribute]:
    """The names and attributes that an assignment gives a value, or an item."""
    found: list[ast.Name | ast.Attribute] = []
    stack: list[ast.expr] = [target for target, _ in assigned(node)]
    while stack:
        target = stack.pop()
        if isinstance(target, (ast.Name, ast.Attribute)):
            found.append(target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            stack += target.elts
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            stack.append(target.value)
    return found


def _is_read_as(item: ast.Name | ast.Attribute, target: ast.Name | ast.Attribute) -> bool:
    if not isinstance(item.ctx, ast.Load):
        return False
    name = target.id if isinstance(target, ast.Name) else target.attr
    return name == (item.id if isinstance(item, ast.Name) else item.attr)


def _is_written_outside(script: Script, block: list[ast.stmt], loop: Loop, names: set[str]) -> bool:
    """Whether a name stands in the text of the loop around the block. Spares most blocks the search in the tree."""
    source = script.source
    start, end = source.span(loop)
    spans = [source.span(node) for node in block]
    begins, ends = [start, *(span[1] for span in spans)], [*(span[0] for span in spans), end]
    text = " ".join(source.text[begin:end] for begin, end in zip(begins, ends, strict=True))
    return not text.isascii() or not names.isdisjoint(_WORD.findall(text))  # Python normalises other letters


def _reads(node: ast.stmt, names: set[str]) -> Iterable[str]:
    return (
        item.id
        for item in expressions(node)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and item.id in names
    )
