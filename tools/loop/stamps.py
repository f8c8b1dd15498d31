"""Rates: a sum that is divided by the time since a stamp; the stamp is set anew where the sum is cleared."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .names import called, key, last
from .obstacles import Refusal
from .repeats import derived
from .tree import assigned, expressions, walk, within
from .window import Window

_CLOCKS = {
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "now", "utcnow",
}  # fmt: skip


def keep_time(block: list[ast.stmt], window: Window, counters: list[str]) -> None:
    """Let the arm for skipped boundaries set a time stamp with the sum that it clears, or refuse."""
    if window.refusal is not None:
        return
    for node, name, value in _stamps(block, counters):
        if any(_is_rate(block, total, name) for total in window.kept):
            window.refusal = Refusal(
                "window-of-updates",
                f"`{window.kept[0]}` gathers over several updates and is measured against the time since `{name}`, "
                "which a skipped update cannot give back; clear both at every update",
            )
        elif any(_is_rate(block, total, name) for total in window.cleared):
            text = _anew(block, value) if node in block else None
            if text is None:
                window.refusal = Refusal(
                    "mixed-reset",
                    f"line {node.lineno} sets `{name}` for the next window in a way that cannot be repeated for "
                    "skipped updates; set it by a call like `time.time()` next to the sum that is cleared",
                )
            else:
                window.lines.append(f"{name} = {text}")
                window.cleared.append(name)


def _stamps(block: list[ast.stmt], counters: list[str]) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Statements that set to the present what the block subtracts from the present."""
    spans = [item for item in _operations(block, ast.Sub) if key(item.right) is not None]
    for node in within(block):
        for target, value in assigned(node):
            name = key(target)
            mine = [item for item in spans if key(item.right) == name and key(item.left) not in counters]
            if name is not None and any(_is_clock(value) or _same(item.left, value) for item in mine):
                yield node, name, value


def _is_rate(block: list[ast.stmt], total: str, stamp: str) -> bool:
    """Whether what comes of a sum is divided by what comes of a stamp, or the other way round."""
    nodes = list(within(block))
    sums, times = derived(nodes, [total]), derived(nodes, [stamp])
    return any(
        (_reads(item.left, sums) and _reads(item.right, times))
        or (_reads(item.left, times) and _reads(item.right, sums))
        for item in _operations(block, ast.Div)
    )


def _anew(block: list[ast.stmt], value: ast.expr) -> str | None:
    """How the present is asked for in an arm that runs nothing else of the block."""
    if _is_clock(value):
        return ast.unparse(value)
    name = key(value)
    given = [held for node in within(block) for target, held in assigned(node) if key(target) == name]
    if name is None or len(given) > 1 or not all(map(_is_clock, given)):
        return None
    return ast.unparse(given[0]) if given else name


def _operations(block: list[ast.stmt], operator: type[ast.operator]) -> list[ast.BinOp]:
    return [
        item
        for node in within(block)
        for item in expressions(node)
        if isinstance(item, ast.BinOp) and isinstance(item.op, operator)
    ]


def _is_clock(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and not value.args and last(called(value)) in _CLOCKS


def _same(one: ast.expr, other: ast.expr) -> bool:
    return key(one) is not None and key(one) == key(other)


def _reads(node: ast.expr, wanted: list[str]) -> bool:
    return any(key(item) in wanted for item in walk(node))
