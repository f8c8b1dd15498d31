"""Why a step is not made in every iteration: the mode of the run, a period, or what the data showed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from enum import Enum

from .calls import means_same
from .counters import counter_of
from .names import called, key, root
from .obstacles import Refusal
from .paths import Condition, Path
from .scope import Scope
from .script import Script
from .tree import assigned, expressions, within

_SETTINGS = re.compile(
    r"^(args|arguments|cfg|conf|config|options?|opts?|hparams|settings|params|flags|self|cls)$", re.I
)
_PURE_CALLS = re.compile(r"(^|\.)(isfinite|isnan|isinf|bool|len|int|float|abs|item|any|all|min|max|is_main_process)$")
_STEADY_CALLS = ("isinstance", "hasattr", "len", "bool", "int", "getattr", "callable")


class Nature(Enum):
    """What decides about a condition."""

    MODE = "mode"  # the same in every iteration: the step is made elsewhere, or not at all
    PERIOD = "period"  # goes by a counter or by the place in the data
    DATA = "data"  # what this iteration has computed


def nature(script: Script, condition: Condition) -> Nature:
    """What decides about a condition, as far as the function that tests it shows."""
    scope = script.places[condition.statement].scope
    loop = script.loop(condition.statement)
    varying = _varying(script, scope, loop)
    counters = _counters(script, scope, loop)
    items = list(ast.walk(condition.node))
    read = {name for item in items if (name := key(item)) is not None and not _is_called(item, items)}
    if any(name in counters or root(name) in counters for name in read):
        return Nature.PERIOD
    if any(isinstance(item, ast.Call) and key(item.func) not in _STEADY_CALLS for item in items):
        return Nature.DATA
    return Nature.DATA if any(name in varying or root(name) in varying for name in read) else Nature.MODE


class Conditions:
    """What must hold at a place for a step to have been attempted, in one script."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def needed(self, paths: list[Path], node: ast.stmt, follows_count: bool) -> str | None | Refusal:
        """What must also hold where some paths make no attempt: nothing, a clause, or no way to say it."""
        busy = [path for path in paths if path.steps]
        idle = [path for path in paths if not path.steps and not self._is_other_mode(path, busy)]
        if not idle:
            return None
        line = min(site.statement.lineno for path in busy for site in path.steps)
        shared = set.intersection(*(set(path.conditions) for path in busy))
        for condition in sorted(shared, key=lambda item: (item.statement.lineno, item.value)):
            opposite = [c for path in idle for c in path.conditions if c == _flipped(condition)]
            if len(opposite) == len(idle) and self.is_stable(condition, node):
                is_turn = self._is_turn(condition) or nature(self.script, condition) is Nature.PERIOD
                if is_turn and not follows_count:
                    return self._by_period(condition, line)
                return _as_clause(self.script.source.segment(condition.node), condition)
        return Refusal(
            "conditional-step",
            f"the step of line {line} is not always made (a condition of the script's own); "
            "where it is not, the flag keeps the answer of an earlier attempt. Note whether "
            "it was made, and test that here too",
        )

    def _is_other_mode(self, path: Path, busy: list[Path]) -> bool:
        """Whether a path without a step belongs to another way to run the script, such as a step in a hook.

        A run is in one mode from start to end, so the flag is either that of its step or never set: no path with a
        step may belong to the mode of this one.
        """
        modes = [_flipped(item) for item in path.conditions if nature(self.script, item) is Nature.MODE]
        return all(any(mode in other.conditions for mode in modes) for other in busy)

    def _by_period(self, condition: Condition, line: int) -> Refusal:
        text = self.script.source.segment(condition.node)
        return Refusal(
            "conditional-step",
            f"the step of line {line} is made only where `{text}` says so, and this runs in other iterations too; "
            "with that test in it a run without an overflow would count otherwise. Put it under the same test first",
        )

    def _is_turn(self, condition: Condition) -> bool:
        """Whether a condition picks some of the batches by number, so that what stands here counts them all."""
        name = key(condition.node)
        scope = self.script.places[condition.statement].scope
        values = [item.value for item in self.script.bindings(scope, name)] if name is not None else [condition.node]
        return any(
            isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod)
            for value in values
            if value is not None
            for item in ast.walk(value)
        )

    def is_stable(self, condition: Condition, node: ast.stmt) -> bool:
        """Whether a condition still has, at `node`, the value that it had when it was tested."""
        if any(isinstance(item, ast.Call) and not _is_pure(item) for item in ast.walk(condition.node)):
            return False
        if not self._has_names(condition, node):
            return False
        read = _first_names(_read(condition.node))
        return not any(read & _first_names(_set_by(inner)) for inner in self._between(condition, node))

    def _between(self, condition: Condition, node: ast.stmt) -> Iterator[ast.stmt]:
        """The statements that may run between a test and a place, from one call to the next where they are apart."""
        here, there = self.script.places[node].scope, self.script.places[condition.statement].scope
        is_here = here is there
        for inner in within(here.node.body):
            if inner.lineno < node.lineno and (not is_here or condition.statement.lineno <= inner.lineno):
                yield inner
        for inner in within(there.node.body) if not is_here else ():
            if inner.lineno >= condition.statement.lineno:
                yield inner

    def _has_names(self, condition: Condition, node: ast.stmt) -> bool:
        """Whether what a test reads is called at a place what the test calls it."""
        here, there = self.script.places[node].scope, self.script.places[condition.statement].scope
        read = _read(condition.node) - {"self", "cls"}
        return here is there or all(means_same(self.script, here, there, name) for name in read)


def _is_called(item: ast.AST, items: list[ast.AST]) -> bool:
    return any(isinstance(call, ast.Call) and call.func is item for call in items)


def _body(scope: Scope, loop: ast.stmt | None) -> list[ast.stmt]:
    return getattr(loop, "body", None) or scope.node.body


def _varying(script: Script, scope: Scope, loop: ast.stmt | None) -> set[str]:
    """Names that an iteration (without a loop: a call) gives a value, and attributes that other methods set."""
    found = {name for node in within(_body(scope, loop)) for name in _set_by(node)}
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        found |= set(_names(loop.target))
    if loop is None:
        found |= {name for name in scope.parameters if not _SETTINGS.match(name)}
    lineage = script.lineage(scope.owner) if scope.owner is not None else ()
    for name, bindings in (item for owner in lineage for item in owner.bindings.items()):
        homes = [script.places[item.statement].scope for item in bindings if item.statement in script.places]
        if any(home.is_function and home.name not in ("__init__", "__post_init__", "setup") for home in homes):
            found.add(name)
    return found


def _counters(script: Script, scope: Scope, loop: ast.stmt | None) -> set[str]:
    """What counts iterations: counters that move in them, the variable of `range`, the index of `enumerate`."""
    found = {name for node in within(_body(scope, loop)) if (name := counter_of(node)) is not None}
    loops = [item for item in script.ancestors(loop) if isinstance(item, (ast.For, ast.AsyncFor))] if loop else []
    for item in [loop, *loops]:
        source = getattr(item, "iter", None)
        called = key(source.func) if isinstance(source, ast.Call) else None
        targets = list(_names(item.target)) if isinstance(item, (ast.For, ast.AsyncFor)) else []
        if called in ("range", "trange") or (called in ("count", "itertools.count")):
            found |= set(targets)
        elif isinstance(source, ast.Call) and re.search(r"\benumerate\b", ast.dump(source)):
            found |= set(targets[:1])
    return found


def _set_by(node: ast.stmt) -> Iterator[str]:
    targets = [target for target, _ in assigned(node)]
    if isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor)):
        targets.append(node.target)
    if isinstance(node, (ast.With, ast.AsyncWith)):
        targets += [item.optional_vars for item in node.items if item.optional_vars is not None]
    targets += [item.target for item in expressions(node) if isinstance(item, ast.NamedExpr)]
    for target in targets:
        yield from _names(target)


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _names(item)
    elif (name := key(target.value if isinstance(target, ast.Starred) else target)) is not None:
        yield name


def normal(condition: Condition) -> tuple[str, bool]:
    node, value = condition.node, condition.value
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node, value = node.operand, not value
    return ast.dump(node), value


def _flipped(condition: Condition) -> Condition:
    return Condition(condition.text, not condition.value, condition.node, condition.statement)


def _as_clause(text: str, condition: Condition) -> str:
    if not condition.value:
        node = condition.node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return re.sub(r"^not\s+", "", text)
        return f"not {text}" if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) else f"not ({text})"
    return f"({text})" if isinstance(condition.node, (ast.BoolOp, ast.IfExp, ast.NamedExpr)) else text


def _is_pure(call: ast.Call) -> bool:
    return bool(_PURE_CALLS.search(called(call)))


def _read(node: ast.expr) -> set[str]:
    """The keys that an expression reads, those of what holds them too."""
    items = [item for item in ast.walk(node) if isinstance(getattr(item, "ctx", None), ast.Load)]
    return {name for item in items if (name := key(item)) is not None}


def _first_names(found: Iterable[str]) -> set[str]:
    """The first names of keys; what `self` holds one by one."""
    return {root(name) if root(name) not in ("self", "cls") else name for name in found}
