"""Finds the places of a training loop: guards, early continues, tails behind a step, flags that are asked already."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .clauses import Test
from .flow import Flow
from .gathering import cleared
from .leaving import left_by
from .paths import State
from .scope import Scope
from .traits import Traits
from .tree import inner_blocks, within


class Role(Enum):
    """What a place is in its loop."""

    CLIP = "clip guard"
    CLIP_AND_STEP = "clip and step guard"
    STEP = "step guard"
    BEFORE = "guard before the step"
    NO_STEP = "guard without a step"
    NORM_LOG = "gradient-norm log"
    BOUNDARY = "boundary block"
    BOOKKEEPING = "bookkeeping block"
    CONTINUE = "early continue"  # what follows it is the block
    TAIL = "unguarded counter"  # statements behind a step that no test asks about the boundary
    APPLIED = "applied-update test"  # asks the flag already
    STALE = "stale flag"  # asks the flag where no attempt of this iteration has been made
    UNCLEAR = "unclear test"


@dataclass(eq=False)
class Block:
    """One place: the statement that it is reported at, its test, and the statements that belong to it."""

    role: Role
    node: ast.stmt
    scope: Scope
    state: State
    statements: list[ast.stmt]
    test: Test | None = None
    is_gated: bool = False  # set by the rule that gates it, or from the start where the flag is asked already
    takes_rest: bool = False  # the block is what follows the statement

    @property
    def has_else(self) -> bool:
        return isinstance(self.node, ast.If) and bool(self.node.orelse)


class Blocks:
    """Reads the places of one script in the order of the text."""

    def __init__(self, flow: Flow, traits: Traits) -> None:
        self.flow = flow
        self.traits = traits
        self.script = flow.script

    def read(self) -> list[Block]:
        found: list[Block] = []
        for scope in self.script.scopes:
            body = scope.node.body
            if body and (body[0] in self.flow.before) and not isinstance(scope.node, ast.ClassDef):
                found += self._visit(body, scope)
        return sorted(found, key=lambda block: (block.node.lineno, block.node.col_offset))

    def _visit(self, block: list[ast.stmt], scope: Scope) -> Iterator[Block]:
        tail: list[ast.stmt] = []
        for node in block:
            state = self.flow.before.get(node)
            if state is None or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            is_of_interest = state.is_after_step or self.script.shows_signs(node) or self.traits.steps(node)
            if state.sync is False or not is_of_interest:
                continue  # never reached at a boundary, or nothing to see
            if state.is_skipped and state.is_after_step and not self.traits.steps(node):
                if isinstance(node, ast.If) and self.flow.tests[node].is_flagged:
                    yield Block(Role.BOUNDARY, node, scope, state, node.body, self.flow.tests[node])
                continue  # whatever it counts, it counts no applied updates
            if state.is_gated and not self.traits.steps(node):
                continue  # runs for applied updates only
            if isinstance(node, ast.If) and self.flow.tests[node].is_flagged:
                result = self._flagged(node, self.flow.tests[node], state, scope)
                yield from result
                if any(item.takes_rest for item in result):
                    break
                continue
            is_open = state.is_after_step and self._is_in_iteration(state) and not state.is_gated
            if is_open and self._is_tail(node):
                tail.append(node)
                continue
            for _, inner in inner_blocks(node):
                yield from self._visit(inner, scope)
        if tail and scope in self.flow.stepping:  # a function that is called behind a step is gated where it is called
            state = self.flow.before[tail[0]]
            yield Block(Role.TAIL, tail[0], scope, state, tail)

    def _is_tail(self, node: ast.stmt) -> bool:
        """Whether a statement counts and asks no flag; an `elif` cannot be put under a test, so what it holds is."""
        is_elif = isinstance(node, ast.If) and self.script.source.segment(node).startswith("elif")
        return not is_elif and self._counts_in_every_arm(node) and not self._asks(node)

    def _counts_in_every_arm(self, node: ast.stmt) -> bool:
        """Whether a statement counts, and an `if` with several arms in each: another arm runs after a skip too."""
        if not isinstance(node, ast.If) or not node.orelse:
            return self.traits.counts(node)
        return all(any(self.traits.counts(item) for item in arm) for arm in (node.body, node.orelse))

    @staticmethod
    def _is_in_iteration(state: State) -> bool:
        return not any(path.is_looped for path in state.paths)

    def _asks(self, node: ast.stmt, kind: str = "") -> bool:
        """Whether a flag (of one kind, or any) is asked in a test inside a statement."""
        tests = [self.flow.tests[inner] for inner in within([node]) if inner is not node and inner in self.flow.tests]
        return any(item.kind == kind if kind else item.kind != "other" for test in tests for item in test.clauses)

    def _flagged(self, node: ast.If, test: Test, state: State, scope: Scope) -> list[Block]:
        leaves = isinstance(node.body[-1], (ast.Continue, ast.Return, ast.Break, ast.Raise))
        if test.find("skip", True) or test.needs_applied or test.spares_only_skips:
            return self._asking(node, test, state, scope, leaves)
        if test.needs_sync:
            return self._guard(node, test, state, scope)
        if test.holds_without_sync and leaves and not node.orelse:
            return self._early(node, test, state, scope)
        role = self._unclear(node, test, state)
        blocks = [] if role is Role.UNCLEAR else inner_blocks(node)
        inner = [found for _, block in blocks for found in self._visit(block, scope)]
        return [Block(role, node, scope, state, node.body, test), *inner]

    def _unclear(self, node: ast.If, test: Test, state: State) -> Role:
        if self.traits.clips(node.body):
            return Role.CLIP
        if test.holds_without_sync and len(test.clauses) == 1:
            return Role.BOUNDARY  # its body runs between boundaries only
        return Role.UNCLEAR if state.is_after_step else Role.BEFORE

    def _asking(self, node: ast.If, test: Test, state: State, scope: Scope, leaves: bool) -> list[Block]:
        alias = next((item.alias for item in test.clauses if item.kind == "skip" and item.alias is not None), None)
        asked = self.flow.before.get(alias, state) if alias is not None else state
        if any(path.is_looped for path in asked.paths) or not asked.is_after_step:
            return [Block(Role.STALE, node, scope, asked, node.body, test)]
        if test.holds_on_skip and leaves and not node.orelse:
            rest = left_by(self.script, node).certain
            return [Block(Role.APPLIED, node, scope, state, rest, test, is_gated=True, takes_rest=True)]
        body = node.orelse if test.find("skip", True) else node.body
        arm = node.body if body is node.orelse else node.orelse
        return [Block(Role.APPLIED, node, scope, state, body, test, is_gated=True), *self._visit(arm, scope)]

    def _guard(self, node: ast.If, test: Test, state: State, scope: Scope) -> list[Block]:
        role = self._role(node, state)
        blocks = [node.body, node.orelse] if role is not Role.BOOKKEEPING else [node.orelse]
        inner = [found for block in blocks for found in self._visit(block, scope)]
        return [Block(role, node, scope, state, node.body, test), *inner]

    def _role(self, node: ast.If, state: State) -> Role:
        clips, steps = self.traits.clips(node.body), any(self.traits.steps(item) for item in node.body)
        if steps:
            return Role.CLIP_AND_STEP if clips else Role.STEP
        if clips:
            return Role.CLIP
        if not state.is_after_step:
            return Role.BEFORE if self._has_step_later(node) else Role.NO_STEP
        if self._asks(node, "skip"):
            return Role.BOUNDARY  # the flag is asked inside: that is where it is looked at
        if self.traits.logs_gradients(node.body):
            return Role.NORM_LOG
        if all(self._is_boundary(item) for item in within(node.body)):
            return Role.BOUNDARY
        return Role.BOOKKEEPING

    def _is_boundary(self, node: ast.stmt) -> bool:
        """Whether a statement does nothing that has to do with an applied update."""
        if inner_blocks(node):
            return True  # its parts are looked at one by one
        if self.traits.must_run(node) or isinstance(node, (ast.Pass, ast.Continue)) or cleared(node, None):
            return True
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and self.traits.counter(node) is None:
            return not any(isinstance(item, ast.Call) for item in ast.walk(node)) and not self.traits.averages(node)
        return False

    def _has_step_later(self, node: ast.stmt) -> bool:
        loop = self.script.loop(node)
        if loop is not None:
            return self.traits.steps(loop)
        return node in self.flow.before and self.script.places[node].scope in self.flow.stepping

    def _early(self, node: ast.If, test: Test, state: State, scope: Scope) -> list[Block]:
        rest = left_by(self.script, node)
        if not state.is_after_step:
            return [Block(Role.BEFORE, node, scope, state, node.body, test)]
        if any(self.traits.steps(item) for item in (*rest.certain, *rest.shared)):
            return [Block(Role.STEP, node, scope, state, node.body, test)]
        if any(self._leaves_on_skip(item) for item in rest.certain):
            return [Block(Role.BOUNDARY, node, scope, state, node.body, test)]
        return [Block(Role.CONTINUE, node, scope, state, rest.certain, test, takes_rest=True)]

    def _leaves_on_skip(self, node: ast.stmt) -> bool:
        """Whether a statement asks for a skipped update and leaves the list on one."""
        test = self.flow.tests.get(node)
        leaves = isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Continue, ast.Return, ast.Break))
        return test is not None and leaves and test.holds_on_skip is not None
