"""What statements do, as far as counting updates goes: clip, step, count, average, reset, log, save."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from . import names
from .calls import may_reach
from .counters import counter_of, drawn, returned
from .flow import Flow
from .names import key
from .repeats import is_plain
from .scope import Scope
from .tree import call_of, calls_of, expressions, walk, within

_CLIP = re.compile(r"clip_grad|\bclip_", re.IGNORECASE)
_NORM = re.compile(r"norm_?grad|grad.*norm", re.IGNORECASE)
_LOG = re.compile(r"(^|_)log(_|$|ger|ging|s$)|add_scalars?$|^report|track", re.IGNORECASE)
_SAVE = re.compile(r"save|checkpoint|ckpt|dump", re.IGNORECASE)
_EMA_FUNCTIONS = re.compile(r"(^|_)(update|step|apply)_(ema|average|swa)|(^|_)ema_(update|step)$", re.IGNORECASE)
_EMA_MODULE = re.compile(r"(^|_)ema$", re.IGNORECASE)  # called for what it does, not for what it returns
_EMA_METHODS = ("step", "update", "update_parameters", "update_average", "update_averages", "__call__", "lerp")
_SHOW = ("print", "write", "debug", "info", "set_postfix", "set_description")
_IMAGES = re.compile(r"(^|[._])images$")  # a count of them, or a list
_MULTIPLE = re.compile(r"divisible|multiple", re.IGNORECASE)  # `divisible_by(step, N)` of another file
_FLAG = re.compile(r"sync_gradients\b|step_was_skipped\b")


class Traits:
    """Answers questions about single statements of one script."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.script = flow.script
        self.objects = flow.objects
        self._counted: dict[ast.stmt, str | None] = {}
        self._counting: dict[Scope, bool] = {}
        self._counters: dict[tuple[int, ...], list[str]] = {}

    def clips(self, block: Iterable[ast.stmt]) -> bool:
        nodes = [node for node in block if _CLIP.search(self.script.source.segment(node))]
        return any(_CLIP.search(names.called(call)) for node in within(nodes) for call in calls_of(node))

    def steps(self, node: ast.stmt) -> bool:
        """Whether a statement attempts an update, itself, inside it or in what it calls."""
        return self.flow.steps_inside(node)

    def counter(self, node: ast.stmt) -> str | None:
        """The key that a statement counts up by a fixed amount, or gives the next number; None for any other."""
        if node not in self._counted:
            self._counted[node] = counter_of(node) or drawn(self.script, node) or returned(self.script, node)
        return self._counted[node]

    def averages(self, node: ast.stmt) -> bool:
        """Whether a statement moves an average of the weights."""
        call = call_of(node)
        if call is None:
            return False
        scope, word = self.script.places[node].scope, names.called(call)
        if _EMA_FUNCTIONS.search(word) or (isinstance(node, ast.Expr) and _EMA_MODULE.search(names.last(word))):
            return True
        if isinstance(call.func, ast.Attribute) and call.func.attr in _EMA_METHODS:
            owner = key(names.unwrapped(call.func.value))
            if owner is not None and (self.objects.kind(scope, owner) == "ema" or _says_ema(owner)):
                return True
        name = key(call.func)
        return name is not None and isinstance(node, ast.Expr) and self.objects.kind(scope, name) == "ema"

    def shows_progress(self, node: ast.stmt) -> bool:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            return False
        function = node.value.func
        owner = key(function.value) if isinstance(function, ast.Attribute) and function.attr == "update" else None
        return (
            owner is not None
            and not self._asks_flag(node)
            and self.objects.kind(self.script.places[node].scope, owner) == "bar"
        )

    def _asks_flag(self, node: ast.stmt) -> bool:
        """Whether a boundary flag decides how far a call moves something."""
        scope, clauses = self.script.places[node].scope, self.flow.clauses
        items = [item for item in expressions(node) if isinstance(item, (ast.Name, ast.Attribute))]
        return any(clauses.read(item, scope, node).is_flagged for item in items)

    def scheduler(self, node: ast.stmt) -> str | None:
        """The scheduler that a statement steps, or None."""
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            return None
        function = node.value.func
        owner = key(function.value) if isinstance(function, ast.Attribute) and function.attr == "step" else None
        is_one = owner is not None and self.objects.kind(self.script.places[node].scope, owner) == "scheduler"
        return owner if is_one else None

    def is_raw_scheduler(self, node: ast.stmt) -> bool:
        """Whether a statement steps a scheduler that the file builds and never prepares."""
        owner = self.scheduler(node)
        if owner is None:
            return False
        who = self.objects.identity(self.script.places[node].scope, owner)
        built = [item for item in who.scope.bindings.get(who.key, []) if names.builds_scheduler(item.value)]
        return bool(built) and self.objects.is_prepared(who) is False

    def logs_or_saves(self, node: ast.stmt) -> bool:
        return any(is_log_word(names.last(names.called(call))) for call in calls_of(node))

    def shows(self, node: ast.stmt) -> bool:
        """Whether a statement only tells a person or a tracker something."""
        call = call_of(node) if isinstance(node, ast.Expr) else None
        return call is not None and (self.logs_or_saves(node) or names.last(names.called(call)) in _SHOW)

    def logs_gradients(self, block: list[ast.stmt]) -> bool:
        """Whether all that a block does is to log the norm of gradients, which belongs to the attempt."""
        return bool(block) and all(
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and bool(_NORM.search(ast.dump(node)))
            for node in block
        )

    def must_run(self, node: ast.stmt) -> bool:
        """Whether a statement belongs to every boundary, applied or not: gradients cleared, data counted."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr == "zero_grad":
                return True
        name = key(node.target) if isinstance(node, ast.AugAssign) else None
        if name is None or not isinstance(node, ast.AugAssign):
            return False
        return names.counts_data(name) or (bool(_IMAGES.search(name)) and _is_amount(node))

    def counts(self, node: ast.stmt) -> bool:
        """Whether a statement, or one inside it, counts updates: a counter, an average, a progress bar."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or self.steps(node):
            return False
        for inner in within([node]):
            name = self.counter(inner)
            if name is not None and not names.counts_data(name):
                return True
            if self.averages(inner) or self.shows_progress(inner) or self._calls_counting(inner):
                return True
        return False

    def _calls_counting(self, node: ast.stmt) -> bool:
        found = [item.function for item in may_reach(self.script, node)]
        counting = [function for function in found if self.function_counts(function)]
        if not counting or (isinstance(node, (ast.Expr, ast.Assign)) and self._asks_flag(node)):
            return False
        call, scope = call_of(node), self.script.places[node].scope
        is_list = len(found) > len(counting) and call is not None and self.script.listed(scope, call) is not None
        return not is_list or all(function in counting or self._only_tells(function) for function in found)

    def _only_tells(self, function: Scope) -> bool:
        """Whether a function does nothing but to tell a person or a tracker something."""
        nodes = [node for node in within(function.node.body) if not isinstance(node, (ast.If, ast.Pass))]
        return all(self.shows(node) or isinstance(getattr(node, "value", None), ast.Constant) for node in nodes)

    def function_counts(self, function: Scope) -> bool:
        """Whether a function counts shared state without asking for a boundary itself."""
        if function not in self._counting:
            self._counting[function] = False
            if not _FLAG.search(self.script.text_of(function)) and function not in self.flow.stepping:
                shared = [node for node in function.node.body if self.counts(node) and self._is_shared(node, function)]
                self._counting[function] = bool(shared)
        return self._counting[function]

    def _is_shared(self, node: ast.stmt, function: Scope) -> bool:
        """Whether what a statement counts outlives the call."""
        for inner in within([node]):
            name = self.counter(inner)
            if name is not None and (names.root(name) != name or name not in function.bindings):
                return True
            if self.averages(inner) or self.shows_progress(inner) or self._calls_counting(inner):
                return True
        return False

    def counters_in(self, block: list[ast.stmt]) -> list[str]:
        """Keys that a list of statements counts up, those of called functions included."""
        marks = tuple(map(id, block))
        if marks not in self._counters:
            self._counters[marks] = []  # what a function that calls itself adds to itself
            self._counters[marks] = self._counters_in(block)
        return self._counters[marks]

    def _counters_in(self, block: list[ast.stmt]) -> list[str]:
        found: list[str] = []
        for node in within(block):
            name = self.counter(node)
            if name is not None and not names.counts_data(name):
                found.append(name)
            for called in may_reach(self.script, node):
                if self.function_counts(called.function):
                    found += filter(None, map(called.outside, self.counters_in(called.function.node.body)))
        return list(dict.fromkeys(found))

    def trigger(self, test: ast.expr, counters: Iterable[str]) -> bool:
        """Whether a test comes true at single values of a counter, and so again while the counter stands still."""
        wanted = set(counters)
        for item in walk(test):
            if (
                isinstance(item, ast.Call)
                and _MULTIPLE.search(names.last(names.called(item)))
                and _reads(item, wanted)
            ):
                return True
            if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod) and _reads(item.left, wanted):
                return True
            if isinstance(item, ast.Compare) and isinstance(item.ops[0], (ast.Eq, ast.In)):
                sides = [item.left, *(item.comparators if isinstance(item.ops[0], ast.Eq) else ())]
                if any(_reads(side, wanted) for side in sides):
                    return True
        return False

    def asks_counter(self, test: ast.expr, counters: Iterable[str]) -> bool:
        """Whether a test reads one of the counters."""
        return _reads(test, set(counters))

    def reads(self, node: ast.stmt, counters: Iterable[str]) -> bool:
        wanted = set(counters)
        return any(key(item) in wanted for inner in within([node]) for item in expressions(inner))


def is_log_word(word: str) -> bool:
    """Whether what is called by a word may log or save."""
    return bool(_LOG.search(word) or _SAVE.search(word))


def _reads(node: ast.expr, wanted: set[str]) -> bool:
    return any(key(item) in wanted for item in walk(node))


def _is_amount(node: ast.AugAssign) -> bool:
    """Whether a number of things is added, not the things themselves."""
    is_things = isinstance(node.value, (ast.List, ast.Tuple)) or _IMAGES.search(key(node.value) or "")
    return isinstance(node.op, ast.Add) and not is_things and is_plain(node.value)


def _says_ema(owner: str) -> bool:
    return any(names.suggests_ema(part) for part in re.findall(r"\w+", owner))
