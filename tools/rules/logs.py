"""Lines that log or save under a counter, outside every block: they run again while the counter stands still."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..loop.clauses import Test
from ..loop.flag import Flag
from ..loop.lifetimes import read_elsewhere
from ..loop.names import called, key, last
from ..loop.objects import Identity
from ..loop.obstacles import Refusal
from ..loop.paths import State
from ..loop.traits import is_log_word
from ..loop.tree import assigned, call_of, calls_of, is_loop, walk, within
from ..work import Work

_SAVES = re.compile(r"(^|_)(save|dump)(_|$)|^save[A-Z]|^write_(checkpoint|ckpt)")
_ASKS = re.compile(r"(^|_)(should|is|can|must|needs?|has|get|path|name|dir|folder|steps|interval|every)(_|$)")


def is_log(work: Work, node: ast.stmt) -> bool:
    """Whether a statement logs or saves. One that keeps an answer names a step or saves, as `torch.log` does not."""
    if isinstance(node, ast.Expr) or (_is_kept(node) and _is_dropped(work, node)):
        return work.traits.logs_or_saves(node)
    return _is_kept(node) and any(_SAVES.search(word) or names_step(call) for call, word in _acting(node))


def _is_kept(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return))


def _acting(node: ast.stmt) -> list[tuple[ast.Call, str]]:
    """The calls that log or save, with their last words; one that only answers what and where is none."""
    words = [(call, last(called(call))) for call in calls_of(node)]
    return [(call, word) for call, word in words if is_log_word(word) and not _ASKS.search(word)]


def names_step(call: ast.Call) -> bool:
    """Whether a call says under which step it logs."""
    return any(keyword.arg in ("step", "global_step") for keyword in call.keywords)


def _is_dropped(work: Work, node: ast.stmt) -> bool:
    """Whether nobody reads what a statement keeps: the name `_`, or what no call of the function takes."""
    if isinstance(node, ast.Return):
        calls = work.script.calls(work.script.places[node].scope)
        return bool(calls) and all(call_of(at) is call and isinstance(at, ast.Expr) for at, call in calls)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return all(isinstance(target, ast.Name) and target.id == "_" for target in targets)


def is_free_to_wait(work: Work, node: ast.stmt) -> bool:
    """Whether a line that logs may be left out after a skipped update: it returns nothing that a caller takes."""
    return not isinstance(node, ast.Return) or _is_dropped(work, node)


def _asks(work: Work, node: ast.stmt) -> bool:
    """Whether a flag in the statement decides if it logs: that is an expression to be followed."""
    is_choice = isinstance(getattr(node, "value", None), (ast.IfExp, ast.BoolOp))
    return is_choice and any(word.search(work.layout.text(node)) for word in work.clauses.words)


def _is_done_once(work: Work, node: ast.stmt) -> bool:
    """Whether a test round a statement reads what its body sets: `if step - last >= N: save(); last = step`."""
    for outer in work.script.ancestors(node):
        if is_loop(outer):
            return False
        if isinstance(outer, ast.If):
            read = {name for item in walk(outer.test) if (name := key(item)) is not None}
            if any(key(target) in read for inner in within(outer.body) for target, _ in assigned(inner)):
                return True
    return False


def gate_log(work: Work, node: ast.stmt, counters: Iterable[Identity], gated: set[int]) -> None:
    """Gate or report one such line. `gated` are ids of the statements that by now run for applied updates only."""
    scope = work.script.places[node].scope
    state = work.in_iteration(node)
    named = work.names_of(scope, counters, node)
    if state is None or not named or _asks(work, node) or _is_done_once(work, node):
        return
    kind = "log outside a block"
    writes = any(map(names_step, calls_of(node)))
    if not is_free_to_wait(work, node):
        text = f"is returned, and so runs after a skipped update too, under `{named[0]}`; log on a line of its own"
        work.warn(node, kind, "held-log", text)
        return
    held = f"runs at every batch under `{named[0]}`, and so again while the counter stands still"
    if work.objects.accumulation == "maybe" or not (writes or "save" in work.layout.text(node)):
        work.warn(node, kind, "held-log", held)
        return
    loop = work.script.loop(node)
    behind = within(loop.body if loop is not None else [])
    spared = [item for item in behind if item.lineno > node.lineno and id(item) in gated]
    refusal = read_elsewhere(work.script, node, scope, spared)
    if refusal is not None:
        work.refuse(node, kind, refusal)
        return
    flag = find_flag(work, node, state, kind)
    if flag is None:
        return
    if flag.condition is not None:  # by which the script accumulates, or leaves attempts out
        work.warn(node, kind, "held-log", held)
        return
    test = " and ".join(work.conditions(state, flag))
    if work.edit(node, kind, lambda: work.layout.wrap(node, node, test)):
        work.keep(flag)
        work.rewritten(node, kind, "log-gated", f"would write `{named[0]}` again after a skipped update")


def find_flag(work: Work, node: ast.stmt, state: State, kind: str, test: Test | None = None) -> Flag | None:
    found = work.flags.find(node, state, test, None, follows_count=True)
    if isinstance(found, Refusal):
        work.refuse(node, kind, found)
        return None
    return found
