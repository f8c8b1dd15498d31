"""What has happened in an iteration when a statement is reached at a sync boundary: which optimizers have stepped."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from .calls import leading_to, may_reach
from .clauses import FLAGS, Clause, Clauses, Test
from .names import key
from .objects import Objects
from .paths import Condition, Path, State, StepSite, equality, is_wildcard
from .scope import Scope
from .script import Script
from .tree import by_chance, calls_of, inner_blocks

STEP = re.compile(r"step\s*\(")
_ENVIRONMENT = re.compile(r"deepspeed|hasattr|distributed_type|DistributedType|is_xla|is_tpu", re.IGNORECASE)
_MOST_PATHS = 64
_KNOWN = ("is_gated", "is_skipped")


class Flow:
    """The states of every statement in the functions that attempt updates or look at the flags."""

    def __init__(self, objects: Objects, clauses: Clauses) -> None:
        self.objects = objects
        self.script: Script = objects.script
        self.clauses = clauses
        self.before: dict[ast.stmt, State] = {}
        self.tests: dict[ast.stmt, Test] = {}
        self.steps: list[StepSite] = []
        self.entries: dict[Scope, list[State]] = {}
        self.too_many_paths: set[Scope] = set()
        self._exits: list[Path] = []
        self._summaries: dict[Scope, frozenset[Path]] = {}
        self._open: set[Scope] = set()
        self._sites: dict[ast.stmt, list[StepSite]] = {}
        self._read_steps()
        self.stepping = leading_to(self.script, [site.statement for site in self.steps])
        self._attempting = {node for statements in self.stepping.values() for node in statements}
        self.base_sync = True if objects.accumulation == "none" else None

    def _read_steps(self) -> None:
        """Find the attempts. A `step` of a class of this file is one itself unless it makes one inside."""
        found = [
            site
            for node in self.script.statements_with(STEP)
            for call in calls_of(node)
            if (site := self._site(node, call)) is not None
        ]
        optimizers = [site for site in found if site.kind == "optimizer"]
        shown = {site: function for site in optimizers if (function := self.script.function(site.scope, site.call))}
        self.steps = [site for site in found if site not in shown]
        outer = leading_to(self.script, [site.statement for site in self.steps]) if shown else {}
        self.steps = [site for site in found if shown.get(site) not in outer]
        for site in self.steps:
            self._sites.setdefault(site.statement, []).append(site)

    def _site(self, node: ast.stmt, call: ast.Call) -> StepSite | None:
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
            return None
        scope = self.script.places[node].scope
        owner = key(call.func.value)
        if owner is None:
            return None
        kind = self.objects.kind(scope, owner)
        if kind == "scaler" and len(call.args) == 1 and key(call.args[0]):
            owner = key(call.args[0]) or owner
        elif kind != "optimizer" and (kind != "engine" or self.script.function(scope, call) is not None):
            return None
        who = self.objects.identity(scope, owner)
        found = self.script.bindings(scope, owner)
        is_many = bool(found) and all(isinstance(item.statement, (ast.For, ast.AsyncFor)) for item in found)
        return StepSite(node, call, owner, who, kind, scope, is_many)

    def run(self) -> None:
        """Walk the functions that step, then those that they call after a step."""
        wanted = set(self.stepping)
        wanted |= {self.script.places[node].scope for node in self.script.statements_with(*FLAGS)}
        for scope in [item for item in self.script.scopes if item in wanted]:
            self.summary(scope)
        called = [scope for scope in self.script.scopes if scope in self.entries and scope not in self.stepping]
        for scope in called:
            states = self.entries[scope]
            if len(states) == len(self.script.calls(scope)) and all(state.is_after_step for state in states):
                paths = frozenset(path for state in states for path in state.paths)
                sync = True if all(state.sync for state in states) else self.base_sync
                is_gated, is_skipped = (all(getattr(state, name) for state in states) for name in _KNOWN)
                self._walk_scope(scope, State(paths, sync, is_gated, is_skipped))

    def summary(self, scope: Scope) -> frozenset[Path]:
        """The attempts that a call of a function makes, one path for each way through it."""
        if scope not in self._summaries:
            if scope in self._open:
                return frozenset({Path()})
            self._open.add(scope)
            self._summaries[scope] = self._walk_scope(scope, State(sync=self.base_sync))
            self._open.discard(scope)
        return self._summaries[scope]

    def _walk_scope(self, scope: Scope, entry: State) -> frozenset[Path]:
        exits, self._exits = self._exits, []
        end = self.walk(scope.node.body, entry)
        paths = frozenset((*self._exits, *(end.paths if end is not None else ())))
        self._exits = exits
        return paths

    def walk(self, block: list[ast.stmt], state: State | None) -> State | None:
        """The state after a list of statements; None where nothing gets past it."""
        for node in block:
            if state is None:
                break
            self.before[node] = state
            state = self._through(node, state)
        return state

    def _through(self, node: ast.stmt, state: State) -> State | None:
        if type(node) in (ast.Expr, ast.Assign, ast.AugAssign):
            return self._called(node, state) if state.is_after_step or node in self._attempting else state
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return state
        if isinstance(node, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            state = self._called(node, state)
            if isinstance(node, ast.Return):
                self._exits += state.paths
            return None
        if isinstance(node, ast.If):
            return self._if(node, self._called(node, state))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return self.walk(node.body, self._called(node, state))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, state)
        blocks = inner_blocks(node)
        if blocks:
            return self._branches(node, blocks, state)
        return self._called(node, state)

    def _called(self, node: ast.stmt, state: State) -> State:
        """The state after the calls that a statement itself makes."""
        if node in self._attempting:
            state = replace(state, is_gated=False, is_skipped=False)  # what comes of this attempt is not known
            unsure = by_chance(node)
            for site in self._sites.get(node, ()):
                made = frozenset(replace(p, steps=(*p.steps, site)) for p in state.paths)
                state = replace(state, paths=made | state.paths if id(site.call) in unsure else made)
            alternatives: dict[ast.Call, list[Scope]] = {}
            for call, function in self.script.called(node):
                alternatives.setdefault(call, []).append(function)
            for call, functions in alternatives.items():
                if any(function in self.stepping for function in functions):
                    ends = [self._joined(state, self.summary(f)) if f in self.stepping else state for f in functions]
                    state = self._union([*ends, *([state] if id(call) in unsure else [])], state) or state
        elif state.is_after_step:
            for one in may_reach(self.script, node):
                self.entries.setdefault(one.function, []).append(state)
        return state

    def _joined(self, state: State, more: frozenset[Path]) -> State:
        paths = frozenset(
            Path(first.steps + then.steps, first.conditions | then.conditions, first.is_looped or then.is_looped)
            for first in state.paths
            for then in more
        )
        return replace(state, paths=paths)

    def _if(self, node: ast.If, state: State) -> State | None:
        inside, outside = state, state
        if self.clauses.is_plain(node, node.test):
            test = Test((Clause(node.test, "other", True),))
        else:
            test = self.clauses.read(node.test, self.script.places[node].scope, node)
            inside, outside = self._sides(test, state)
        self.tests[node] = test
        body, other = self.walk(node.body, inside), self.walk(node.orelse, outside)
        if not node.orelse and self._is_exhausted(node):
            other = None
        return self._merged(node, test, state, body, other)

    @staticmethod
    def _sides(test: Test, state: State) -> tuple[State, State]:
        """The states where a test that shows a flag holds, and where it does not."""
        inside, outside = state, state
        if test.needs_sync:
            inside = replace(inside, sync=True)
            outside = replace(outside, sync=False) if len(test.clauses) == 1 else outside
        elif test.holds_without_sync:
            inside = replace(inside, sync=False) if len(test.clauses) == 1 else inside
            outside = replace(outside, sync=True)
        if test.needs_applied or test.spares_only_skips:
            inside = replace(inside, is_gated=True)
        if test.holds_on_skip:
            outside = replace(outside, is_gated=True)
        if test.shuts_applied_out:
            inside = replace(inside, is_skipped=True)
        if test.lets_all_applied_in:
            outside = replace(outside, is_skipped=True)
        return inside, outside

    def _is_exhausted(self, node: ast.If) -> bool:
        """Whether the arms up to this one compare a name with every constant that the function gives it."""
        tested: dict[str, set[object]] = {}
        arm: ast.stmt | None = node
        while isinstance(arm, ast.If):
            name, value = equality(arm.test)
            if name is None:
                return False
            tested.setdefault(name, set()).add(value)
            place = self.script.places[arm]
            parent = place.parent
            arm = parent if isinstance(parent, ast.If) and parent.orelse == [arm] else None
        if len(tested) != 1:
            return False
        (name, values), scope = next(iter(tested.items())), self.script.places[node].scope
        given = [item.value for item in self.script.bindings(scope, name)]
        return (
            len(values) > 1 and bool(given) and all(isinstance(v, ast.Constant) and v.value in values for v in given)
        )

    def _merged(self, node: ast.If, test: Test, state: State, body: State | None, other: State | None) -> State | None:
        if body is None:
            return other
        if other is None:
            return body
        if body.paths == state.paths == other.paths:
            return state
        kinds = {item.kind for item in test.clauses}
        if (kinds == {"sync"} and test.needs_sync) or (not node.orelse and _ENVIRONMENT.search(ast.dump(node.test))):
            return replace(state, paths=body.paths)
        if kinds == {"sync"} and test.holds_without_sync:
            return replace(state, paths=other.paths)
        condition = Condition(ast.dump(node.test), True, node.test, node)
        yes = {replace(path, conditions=path.conditions | {condition}) for path in body.paths}
        no = {replace(p, conditions=p.conditions | {replace(condition, value=False)}) for p in other.paths}
        return self._bounded(node, replace(state, paths=frozenset(yes | no)))

    def _bounded(self, node: ast.stmt, state: State) -> State:
        if len(state.paths) > _MOST_PATHS:
            self.too_many_paths.add(self.script.places[node].scope)
            return replace(state, paths=frozenset(replace(path, conditions=frozenset()) for path in state.paths))
        return state

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State:
        """The state after a loop: what it attempts is looped, but a loop over optimizers attempts one update."""
        state, inner = self._called(node, state), self.sites_inside(node)
        self.walk(node.body, State(sync=self.base_sync) if inner else state)
        self.walk(node.orelse, state)
        if inner:
            is_each = len(inner) == 1 and inner[0].is_many
            paths = (Path((*p.steps, *inner), p.conditions, p.is_looped or not is_each) for p in state.paths)
            state = replace(state, paths=frozenset(paths))
        return state

    def sites_inside(self, node: ast.stmt) -> tuple[StepSite, ...]:
        """The attempts that stand, or are called, inside a statement."""
        scope = self.script.places[node].scope
        found: list[StepSite] = []
        for inner in self.stepping.get(scope, ()):
            if node.lineno <= inner.lineno <= (node.end_lineno or 0):
                found += self._sites.get(inner, ())
                for _, function in self.script.called(inner):
                    if function in self.stepping:
                        found += [site for path in self.summary(function) for site in path.steps]
        return tuple(sorted(set(found), key=lambda site: (site.statement.lineno, site.call.col_offset)))

    def steps_inside(self, node: ast.stmt) -> bool:
        """Whether an update is attempted inside a statement, directly or through a call."""
        scope = self.script.places[node].scope
        return any(node.lineno <= inner.lineno <= (node.end_lineno or 0) for inner in self.stepping.get(scope, ()))

    def _branches(self, node: ast.stmt, blocks: list[tuple[str, list[ast.stmt]]], state: State) -> State | None:
        """`try` and `match`: the body and whatever may run in its place."""
        if isinstance(node, ast.Match):
            ends = [self.walk(block, state) for _, block in blocks]
            ends = [*ends, state] if not any(is_wildcard(case) for case in node.cases) else ends
            return self._union(ends, state)
        arms = dict(blocks)
        main = self.walk(arms.get("body", []), state)
        if "orelse" in arms:
            main = self.walk(arms["orelse"], main)
        ends = [main, *(self.walk(block, state) for arm, block in blocks if arm == "handlers")]
        end = self._union(ends, state)
        last = self.walk(arms.get("finalbody", []), end or state)
        return last if end is not None else None

    @staticmethod
    def _union(ends: list[State | None], state: State) -> State | None:
        alive = [end for end in ends if end is not None]
        if not alive:
            return None
        return replace(state, paths=frozenset(path for end in alive for path in end.paths))
