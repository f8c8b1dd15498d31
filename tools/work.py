"""What the rules share while one file is rewritten: the reading of it, the edits so far and the sites to report."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .layout import Layout, LayoutError
from .loop.blocks import Block, Blocks, Role
from .loop.clauses import Clause, Clauses
from .loop.flag import Flag, Flags
from .loop.flow import Flow
from .loop.lifetimes import left_unbound, read_by_turns, stays_true
from .loop.names import key, last, root, word_pattern
from .loop.objects import Identity, Objects
from .loop.obstacles import Refusal
from .loop.paths import State, StepSite
from .loop.scope import Scope
from .loop.script import Script
from .loop.stamps import keep_time
from .loop.traits import Traits
from .loop.tree import assigned, expressions, walk, within
from .loop.window import Window, Windows
from .options import Options
from .site import Outcome, Site
from .source import Edit, Source


@dataclass
class Work:
    """One file under the rules. A rule reads `blocks`, adds to `edits` and reports with `report` and its kin."""

    source: Source
    options: Options
    edits: list[Edit] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    kept_flags: list[StepSite] = field(default_factory=list)  # steps behind which their flag is to be kept

    def __post_init__(self) -> None:
        self.script = Script(self.source)
        self.objects = Objects(self.script)
        self.clauses = Clauses(self.objects)
        self.flow = Flow(self.objects, self.clauses)
        self.flow.run()
        self.traits = Traits(self.flow)
        self.windows = Windows(self.traits)
        self.flags = Flags(self.flow, self.options.counted_optimizer)
        self.layout = Layout(self.script, self.options.line_length)
        self.blocks: list[Block] = Blocks(self.flow, self.traits).read()

    def report(self, node: ast.AST, kind: str, code: str, outcome: Outcome, message: str) -> None:
        """Note a site at a node, once."""
        line, col = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        start = self.source.line_starts[line - 1]
        site = Site(line, self.source.offset(line, col) - start + 1, kind, code, outcome, message)
        if site not in self.sites:
            self.sites.append(site)

    def refuse(self, node: ast.AST, kind: str, refusal: Refusal) -> None:
        self.report(node, kind, refusal.code, Outcome.REFUSED, refusal.message)

    def warn(self, node: ast.AST, kind: str, code: str, message: str) -> None:
        self.report(node, kind, code, Outcome.LEFT, message)

    def rewritten(self, node: ast.AST, kind: str, code: str, message: str) -> None:
        self.report(node, kind, code, Outcome.REWRITTEN, message)

    def edit(self, node: ast.AST, kind: str, make: Callable[[], Iterable[Edit]]) -> bool:
        """Take the edits that `make` gives, all or none; a layout that it cannot follow is refused."""
        try:
            self.edits += list(make())
        except LayoutError as error:
            self.refuse(node, kind, Refusal("layout", f"{error}; put it on lines of its own and run this again"))
            return False
        return True

    def flag(self, block: Block, guard: str | None = None) -> Flag | None:
        """The flag for a block; a refusal is reported and gives None."""
        found = self.flags.find(block.node, block.state, block.test, guard)
        if isinstance(found, Refusal):
            self.refuse(block.node, block.role.value, found)
            return None
        return found

    def flag_and_window(
        self, block: Block, sync: Clause, *obstacles: Callable[[Window], Refusal | None]
    ) -> tuple[Flag, Window] | None:
        """The flag and the window of a block whose guard asks `sync`; an obstacle is reported and gives None."""
        flag = self.flag(block, sync.owner)
        if flag is None:
            return None
        window = self.window(block.statements, block.node)
        refusal = window.refusal or next(filter(None, (obstacle(window) for obstacle in obstacles)), None)
        if refusal is not None:
            self.refuse(block.node, block.role.value, refusal)
            return None
        return flag, window

    def window(self, statements: list[ast.stmt], anchor: ast.stmt) -> Window:
        """What statements clear for the next window, with the time stamps that they set anew for it."""
        window = self.windows.read(statements, anchor)
        keep_time(statements, window, self.traits.counters_in(statements))
        return window

    def keep(self, flag: Flag) -> None:
        """Note which steps the kept flag of a gated place needs."""
        self.kept_flags += [site for site in flag.sites if site not in self.kept_flags]

    def left_unbound(self, block: Block, statements: list[ast.stmt]) -> Refusal | None:
        """Why statements cannot wait for an applied update: a name of theirs is read behind them."""
        stale = self._stays_true(block, statements) or self._by_turns(block, statements)
        if stale is not None or left_unbound(self.script, statements, block.scope, set()) is None:
            return stale
        spared = {
            id(node)
            for other in self.blocks
            if other.role in (Role.BOOKKEEPING, Role.CONTINUE, Role.APPLIED)
            for node in within(other.statements)
        }
        counters = self.traits.counters_in(statements)
        loop = self.script.loop(statements[0])
        for node in within(loop.body if loop is not None else []):
            if isinstance(node, ast.If) and self.traits.asks_counter(node.test, counters):
                spared |= {id(inner) for inner in within(node.body)}
        return left_unbound(self.script, statements, block.scope, spared)

    def _by_turns(self, block: Block, statements: list[ast.stmt]) -> Refusal | None:
        """Why the counter cannot stay behind where the loop takes turns by it."""
        counters, loop = self.traits.counters_in(statements), self.script.loop(statements[0])
        if not counters or loop is None:
            return None
        seen = [node for node in self.flow.tests if isinstance(node, ast.If) and loop.lineno < node.lineno]
        end = loop.end_lineno or 0
        tests = [node for node in seen if node.lineno <= end and self.traits.asks_counter(node.test, counters)]
        if len(tests) < 2:
            return None
        return read_by_turns(block.scope, tests, {id(node) for node in within([*statements, block.node])})

    def _stays_true(self, block: Block, statements: list[ast.stmt]) -> Refusal | None:
        """Why the answer of a test on the counter cannot wait for an applied update."""
        counters = self.traits.counters_in(statements)
        others = [item for item in self.blocks if item.role in (Role.BOOKKEEPING, Role.CONTINUE, Role.APPLIED)]
        inside = {id(node) for node in within([*statements, block.node])}
        spared = {id(node) for item in others for node in (item.node, *within(item.statements))}
        answers = {
            name
            for node in within(statements)
            for target, value in assigned(node)
            if (name := key(target)) is not None and self.traits.trigger(value, counters)
        }
        return stays_true(self.script, statements[0], answers, inside, spared)

    def gates(self, block: Block) -> bool:
        return block.is_gated and block.role in (Role.BOOKKEEPING, Role.CONTINUE, Role.TAIL, Role.APPLIED)

    def take_in(self, gated: Block) -> None:
        """Take the blocks inside a block that has just been gated for gated with it: they stay as they are."""
        inside = {id(node) for node in within(gated.statements)}
        for block in self.blocks:
            is_open = block.role in (Role.BOOKKEEPING, Role.CONTINUE, Role.TAIL) and not block.is_gated
            if is_open and block is not gated and id(block.node) in inside:
                block.is_gated = True
                text = f"stands among what line {gated.node.lineno} gates as a whole"
                self.warn(block.node, block.role.value, "inside-gate", text)

    def gated(self) -> set[int]:
        """Ids of all statements that run for applied updates only."""
        return {id(node) for block in self.blocks if self.gates(block) for node in within(block.statements)}

    def closed(self) -> set[int]:
        """Ids of all statements that no rule may gate on their own: gated already, or in a block that was refused."""
        refused = {
            (site.line, site.kind) for site in self.sites if site.outcome is Outcome.REFUSED or site.code == "boundary"
        }
        blocks = [block for block in self.blocks if (block.node.lineno, block.role.value) in refused]
        blocks += [block for block in self.blocks if block.role is Role.NORM_LOG]
        return self.gated() | {id(node) for block in blocks for node in within(block.statements)}

    def counters(self) -> dict[Identity, Block]:
        """Counters that now count applied updates, each with the first block that does so."""
        found: dict[Identity, Block] = {}
        for block in self.blocks:
            if self.gates(block):
                for name in self.traits.counters_in(block.statements):
                    found.setdefault(self.objects.identity(block.scope, name), block)
        return found

    def counting_loops(self) -> set[int]:
        """Ids of the loops in which a gated block counts."""
        blocks = [block for block in self.blocks if self.gates(block) and self.traits.counters_in(block.statements)]
        return {id(self.script.loop(block.node)) for block in blocks}

    def copies(self, counters: dict[Identity, Block]) -> dict[Identity, Block]:
        """Names that hold such a counter as it was before the update, like `steps = int(self.steps)`."""
        words = sorted({last(who.key) for who in counters})
        found: dict[Identity, Block] = {}
        for node in self.script.statements_with(*(re.compile(word_pattern(word)) for word in words)):
            state = self.flow.before.get(node) if isinstance(node, ast.Assign) else None
            if state is None or state.is_after_step or not isinstance(node, ast.Assign):
                continue
            scope, name = self.script.places[node].scope, key(node.targets[0])
            others = {item.id for item in walk(node.value) if isinstance(item, ast.Name)} - {"int", "self"}
            read = self.names_of(scope, counters, node.value)
            is_only = name is not None and len(read) == 1 and others <= {root(read[0])}
            if is_only and name is not None and scope in self.flow.stepping and len(scope.bindings.get(name, ())) == 1:
                block = next(item for who, item in counters.items() if who == self.objects.identity(scope, read[0]))
                found[self.objects.identity(scope, name)] = block
        return {who: block for who, block in found.items() if who not in counters}

    def names_of(self, scope: Scope, counters: Iterable[Identity], node: ast.AST) -> list[str]:
        """How those of the counters that an expression or a statement reads are called there."""
        wanted = set(counters)
        words = {last(who.key) for who in wanted}
        items = expressions(node) if isinstance(node, ast.stmt) else walk(node)
        found = [name for item in items if (name := key(item)) is not None and last(name) in words]
        return [name for name in dict.fromkeys(found) if self.objects.identity(scope, name) in wanted]

    def conditions(self, state: State, flag: Flag) -> list[str]:
        """Clauses that hold only right after an applied update."""
        sync = [] if state.sync else [f"{flag.accelerator}.sync_gradients"]
        return [*sync, *flag.clauses]

    def attempted(self, state: State, flag: Flag) -> list[str]:
        """Clauses that hold only right after an attempt, applied or skipped; none where an attempt is sure."""
        return [clause for clause in self.conditions(state, flag) if clause != f"not {flag.text}"]

    def opposite(self, state: State, flag: Flag) -> list[str]:
        """Clauses of which one holds whenever no update was applied."""
        sync = [] if state.sync else [f"not {flag.accelerator}.sync_gradients"]
        return [*sync, *flag.opposite]

    def in_iteration(self, node: ast.stmt) -> State | None:
        """The state before a statement that runs in the iteration of an attempt, behind it; else None."""
        state = self.flow.before.get(node)
        if state is None or not state.is_after_step or state.sync is False or state.is_gated or state.is_skipped:
            return None
        return None if any(path.is_looped for path in state.paths) else state


Rule = Callable[[Work], None]
"""Adds edits and reports sites; `rules.RULES` says which rules there are and in which order they run."""
