"""State of one window or of several: what an iteration gathers, and what a block clears when it is done with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import names, repeats, several, sums
from .calls import Reached, may_reach, with_inner
from .gathering import cleared, gathers
from .names import key
from .obstacles import Refusal
from .scope import Scope
from .script import Script
from .traits import Traits
from .tree import assigned, inner_blocks, within


@dataclass
class Window:
    """`lines` must run at every boundary that does not run the block; `kept` are sums over several updates."""

    lines: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    lists: set[str] = field(default_factory=set)  # those of the kept that are lists
    never_cleared: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # cleared where it cannot be repeated, as in a method
    values: list[str] = field(default_factory=list)  # assignments that are repeated for the others to read
    refusal: Refusal | None = None

    def keep(self, other: Window) -> None:
        """Keep the sums that another window keeps."""
        self.kept += [name for name in other.kept if name not in self.kept]
        self.lists |= other.lists


class Windows:
    """Reads the windows of the blocks of one script."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits
        self.script: Script = traits.script
        self._direct: set[int]  # statements of the block itself
        self._scope: Scope  # the function of the block
        self._restarted: set[str]  # keys that an iteration sets anew under a condition
        self._open: set[Scope] = set()  # functions that are being read
        self._summed: dict[Scope, set[str]] = {}

    def read(self, block: list[ast.stmt], anchor: ast.stmt) -> Window:
        """The window state of a block that is going to run at applied updates only."""
        loop = self.script.loop(anchor)
        self._scope = scope = self.script.places[anchor].scope
        outer = loop.body if loop is not None else scope.node.body
        inside = {id(node) for node in within(block)}
        self._direct = {id(node) for node in block}
        wanted = {name for node in within(block) for name in cleared(node, None)}
        wanted |= {name for node in within(block) for name in several.emptied_by_name(scope, node)}
        wanted |= sums.cleared_in_calls(self.script, block)
        gathered, self._restarted = sums.gathered_in(self.script, outer, inside, wanted)
        window = Window()
        counters = self.traits.counters_in(outer)
        derived = repeats.derived([*within(outer)], counters)
        window.lines = list(self._lines(block, gathered, derived, window))
        others = [node for node in within(outer) if id(node) not in inside]
        window.refusal = window.refusal or repeats.set_at_boundaries(self.script, window.lines, anchor, others)
        if window.kept and any(isinstance(node, ast.Continue) for node in within(block)):
            window.refusal = Refusal(
                "window-of-updates",
                f"`{window.kept[0]}` gathers over several updates and the block can be left by `continue`",
            )
        self._note_reads(block, gathered, window, outer, inside)
        return window

    def _lines(self, block: list[ast.stmt], gathered: set[str], counters: list[str], window: Window) -> Iterator[str]:
        """What of a block must run at every boundary, with the assignments before it that it needs."""
        counters = repeats.derived(block, counters)
        found = [(node, list(self._of(node, gathered, counters, window))) for node in block]
        again, refusal = repeats.with_values(found, counters)
        window.refusal = window.refusal or refusal
        window.values += [self.script.source.segment(node) for node in again]
        for node, lines in found:
            yield from self._text(node) if node in again else lines

    def _of(self, node: ast.stmt, gathered: set[str], counters: list[str], window: Window) -> Iterator[str]:
        if isinstance(node, ast.If):
            yield from self._conditional(node, gathered, counters, window)
            return
        names_cleared = cleared(node, gathered) or self._emptied(node)
        window.refusal = window.refusal or several.set_to_name(self.script.places[node].scope, node, gathered)
        if self.traits.must_run(node):
            window.data.append(self.script.source.segment(node))
            yield from self._text(node)
        elif names_cleared:
            targets = [name for target, _ in assigned(node) if (name := key(target))]
            if any(name not in names_cleared for name in targets):
                window.refusal = Refusal(
                    "mixed-reset",
                    f"line {node.lineno} clears {_list(names_cleared)} together with something else; "
                    "put the reset on a line of its own",
                )
            window.cleared += names_cleared
            yield from self._text(node)
        else:
            yield from self._in_call(node, gathered, counters, window)
            for _, inner in inner_blocks(node):
                yield from self._nested(node, inner, gathered, counters, window)

    def _in_call(self, node: ast.stmt, gathered: set[str], counters: list[str], window: Window) -> Iterator[str]:
        """What a function of this file clears that the block calls, in names that mean the same here."""
        found = may_reach(self.script, node)
        for called in found:
            if called.function is not called.caller and called.function not in self._open:
                yield from self._in_function(node, called, len(found) == 1, gathered, counters, window)

    def _in_function(
        self, node: ast.stmt, called: Reached, is_only: bool, gathered: set[str], counters: list[str], window: Window
    ) -> Iterator[str]:
        hidden, is_due, is_literal = self._cleared_in(called, gathered)
        if not hidden and not is_due:
            return
        is_literal &= is_only
        deeper, function = Window(), called.function
        if is_literal:
            self._open.add(function)
            shared = {name for name in gathered if called.inside(name) == name}
            counters = [*counters, *self.traits.counters_in(function.node.body)]
            lines = list(self._lines(function.node.body, shared, counters, deeper))
            self._open.discard(function)
        if not is_literal or deeper.refusal or deeper.values or hidden - {*deeper.cleared, *deeper.kept}:
            window.refusal = _hidden_reset(node, function, hidden)
            window.hidden += sorted(hidden)
            return
        window.cleared += deeper.cleared
        window.data += deeper.data
        window.keep(deeper)
        yield from lines

    def _cleared_in(self, called: Reached, gathered: set[str]) -> tuple[set[str], bool, bool]:
        """Which of the gathered keys a call clears, whether it does what every boundary must, and both literally."""
        hidden: set[str] = set()
        is_due, is_literal = False, True
        for item in with_inner(called):
            if item.function in self._open:
                continue
            names_inside = {there for name in gathered if (there := item.inside(name)) is not None}
            for inner in item.statements:
                found = cleared(inner, names_inside) if names_inside else []
                must_run = self.traits.must_run(inner)
                if found or must_run:
                    hidden |= {item.outside(name) or name for name in found}
                    is_due |= must_run
                    is_literal &= item.is_literal(inner)
        return hidden, is_due, is_literal

    def _emptied(self, node: ast.stmt) -> list[str]:
        """What a statement of the block empties although nobody here is seen to fill it, such as `bank.clear()`.

        A forward pass may have filled it, so it is due at every boundary, as it was.
        """
        if id(node) in self._direct and isinstance(node, ast.Expr) and not getattr(node.value, "args", None):
            found = cleared(node, None)
            scope = self.script.places[node].scope
            return [name for name in found if self.traits.objects.kind(scope, name) != "bar"]
        return []

    def _nested(
        self, node: ast.stmt, inner: list[ast.stmt], gathered: set[str], counters: list[str], window: Window
    ) -> Iterator[str]:
        """What a loop or a `with` in the block clears: a loop over the state is repeated whole."""
        deeper = Window()
        if id(node) in self._direct and isinstance(node, ast.For):
            self._direct |= {id(item) for item in inner}  # `for meter in meters: meter.reset()`
        lines = list(self._lines(inner, gathered, counters, deeper))
        if not lines and not deeper.kept and deeper.refusal is None:
            return
        if not isinstance(node, (ast.For, ast.AsyncFor)) or node.orelse or deeper.kept or deeper.refusal:
            window.refusal = Refusal(
                "nested-reset",
                f"line {node.lineno} clears window state in a way that cannot be repeated for "
                "skipped updates; reset it in the block itself",
            )
            window.hidden += [*deeper.cleared, *deeper.kept, *deeper.hidden]
            return
        window.cleared += deeper.cleared
        if len(lines) == len(list(within(inner))):
            yield from self._text(node)
        else:  # what the loop does besides is left out
            yield f"for {self.script.source.segment(node.target)} in {self.script.source.segment(node.iter)}:"
            yield from (f"\0{line}" for line in lines)

    def _conditional(self, node: ast.If, gathered: set[str], counters: list[str], window: Window) -> Iterator[str]:
        inner = Window()
        lines = list(self._lines(node.body, gathered, counters, inner))
        other = Window()
        more = list(self._lines(node.orelse, gathered, counters, other))
        window.refusal = window.refusal or inner.refusal or other.refusal
        window.hidden += [*inner.hidden, *other.hidden]
        window.keep(inner)
        window.keep(other)
        if not lines and not more:
            return
        if self.traits.trigger(node.test, counters) or self.traits.asks_counter(node.test, counters):
            zeroed = any("zero_grad" in line for line in (*lines, *more))
            if zeroed:
                window.refusal = Refusal(
                    "nested-reset",
                    f"gradients are cleared under the test of line {node.lineno}, which a skipped "
                    "update does not reach",
                )
            self._keep(node, [*inner.cleared, *other.cleared], window)
            return
        if any(isinstance(item, (ast.Call, ast.NamedExpr)) for item in ast.walk(node.test)) or more:
            window.refusal = Refusal(
                "nested-reset",
                f"window state is cleared under the test of line {node.lineno}, which cannot be "
                "repeated safely; reset it in the block itself",
            )
            window.hidden += [*inner.cleared, *other.cleared]
            return
        window.cleared += inner.cleared
        window.data += inner.data
        yield f"if {self.script.source.segment(node.test)}:"
        yield from (f"\0{line}" for line in lines)  # one step of indentation

    def _keep(self, node: ast.stmt, found: list[str], window: Window) -> None:
        """Note what is cleared every N updates: sums and lists can be put back, other things cannot."""
        scope = self.script.places[node].scope
        sums = self._sums(scope) | self._sums(self._scope)
        for name in dict.fromkeys(found):
            is_list = several.is_list(self.script, scope, name)
            if is_list or name in sums:
                window.kept += [name] if name not in window.kept else []
                window.lists |= {name} if is_list else set()
            elif self.traits.objects.kind(scope, name) != "bar" and not several.measures_time(name):
                window.refusal = several.no_way_back(name)
                window.hidden.append(name)

    def _sums(self, scope: Scope) -> set[str]:
        """Keys that grow by arithmetic in a function."""
        if scope not in self._summed:
            self._summed[scope] = {
                name
                for inner in within(scope.node.body)
                if isinstance(inner, (ast.AugAssign, ast.Assign, ast.AnnAssign))
                for name in gathers(inner)
            }
        return self._summed[scope]

    def _text(self, node: ast.stmt) -> list[str]:
        """A statement's lines, the first without indentation, the others relative to it."""
        indent = self.script.source.indentation(node)
        lines = re.split(r"\r\n|\r|\n", self.script.source.segment(node))
        return [lines[0], *(line.removeprefix(indent) for line in lines[1:])]

    def _note_reads(
        self, block: list[ast.stmt], gathered: set[str], window: Window, outer: list[ast.stmt], inside: set[int]
    ) -> None:
        """State that the block reads and that nobody in the iteration clears."""
        handled = {*window.cleared, *window.kept, *self._restarted, *self.traits.counters_in(outer)}
        text = "\n".join(self.script.source.segment(node) for node in block)
        read = {name for name in gathered if re.search(names.word_pattern(name, r"[\w.]"), text)}
        handled |= {names.root(name) for name in window.cleared}  # an item that is cleared stands for its container
        for name in sorted(read - handled):
            if name in self._sums(self._scope) and not _counts(name) and not self._holds_counts(name, gathered):
                window.never_cleared.append(name)

    @staticmethod
    def _holds_counts(name: str, gathered: set[str]) -> bool:
        """Whether all that grows in a container are counts, such as `state["step"]` in `state`."""
        items = [item for item in gathered if item != name and names.root(item) == name]
        return bool(items) and all(map(_counts, items))


def _counts(name: str) -> bool:
    return names.counts_data(name) or names.is_step_count(name)


def _hidden_reset(node: ast.stmt, function: Scope, hidden: set[str]) -> Refusal:
    """Why a block stays as it is that calls what clears these keys, or gradients, out of its sight."""
    what = _list(sorted(hidden)) if hidden else "gradients or counts data"
    return Refusal(
        "nested-reset",
        f"line {node.lineno} calls `{function.name}`, which clears {what} in a way that "
        "cannot be repeated for skipped updates; do it in the block itself",
    )


def _list(items: list[str]) -> str:
    return ", ".join(f"`{item}`" for item in items)
