"""Which flag tells, at one place, whether the update that was just attempted has been applied."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from . import names
from .clauses import Test
from .conditions import Conditions, normal
from .flow import Flow
from .names import word_pattern
from .objects import Identity
from .obstacles import Refusal, lines_of, several, unprepared, unusable
from .paths import Path, State, StepSite
from .scope import Scope


@dataclass(frozen=True)
class Flag:
    """`text` is true where the update was skipped. `sites` are steps behind which the flag must first be kept."""

    text: str
    accelerator: str
    sites: tuple[StepSite, ...] = ()
    condition: str | None = None  # must hold too: the step was not attempted otherwise
    note: str = ""

    @property
    def clauses(self) -> list[str]:
        """What holds only after an applied update, at a boundary."""
        return [f"not {self.text}", *([self.condition] if self.condition else [])]

    @property
    def opposite(self) -> list[str]:
        """Of these one holds whenever no update was applied at a boundary."""
        return [self.text, *([negated(self.condition)] if self.condition else [])]

    @property
    def remark(self) -> str:
        """The note as it ends a message; empty without one."""
        return f"; {self.note}" if self.note else ""


class Flags:
    """Finds flags for places of one script."""

    def __init__(self, flow: Flow, counted: str | None) -> None:
        self.flow = flow
        self.script = flow.script
        self.objects = flow.objects
        self.counted = counted
        self.conditions = Conditions(flow.script)
        self._accelerators: dict[Scope, str | None] = {}
        self._undecided: set[Scope] = set()  # where several accelerators are in reach and nothing says which one
        self.variable = _free_name(flow.script.source.text)

    def find(
        self, node: ast.stmt, state: State, test: Test | None, accelerator: str | None, follows_count: bool = False
    ) -> Flag | Refusal:
        """The flag for a place whose own test is `test`; `accelerator` is the text that its guard reads, if any.

        A place that `follows_count` has business only when a counter has moved; another one may count batches, and a
        condition that picks batches by their number is then no part of its test.
        """
        scope = self.script.places[node].scope
        if scope in self.flow.too_many_paths:
            return Refusal(
                "too-many-paths",
                "too many different ways lead here to tell which optimizer stepped; count right behind each step",
            )
        paths = [path for path in state.paths if not self._is_ruled_out(path, test, node)]
        sites = _unique(site for path in paths for site in path.steps)
        refusal = unusable(paths, sites)
        if refusal is not None:
            return refusal
        paths, sites = self._of_guard(scope, paths, sites, accelerator)
        chosen = self._chosen(scope, paths, sites)
        if isinstance(chosen, Refusal):
            return chosen
        paths, sites = chosen
        raw = [site for site in sites if self.objects.is_prepared(site.who) is False]
        if raw:
            return unprepared(raw[0])
        condition = self.conditions.needed(paths, node, follows_count)
        if isinstance(condition, Refusal):
            return condition
        owner = self._accelerator(scope, sites, accelerator)
        if isinstance(owner, Refusal):
            return owner
        return self._flag(scope, sites, owner, condition)

    def is_partial(self, node: ast.stmt, state: State, test: Test | None) -> bool:
        """Whether the test of a place lets through the updates of some optimizers only."""
        kept = [path for path in state.paths if not self._is_ruled_out(path, test, node)]
        everyone = {site.who for path in state.paths for site in path.steps}
        return len({site.who for path in kept for site in path.steps}) < len(everyone)

    def _is_ruled_out(self, path: Path, test: Test | None, node: ast.stmt) -> bool:
        """Whether a clause of the test says that this path was not taken."""
        if test is None or test.is_any:
            return False
        known = {ast.dump(item.node): item.positive for item in test.others}
        for condition in path.conditions:
            text, value = normal(condition)
            if text in known and known[text] != value and self.conditions.is_stable(condition, node):
                return True
        return False

    def _of_guard(
        self, scope: Scope, paths: list[Path], sites: list[StepSite], accelerator: str | None
    ) -> tuple[list[Path], list[StepSite]]:
        """Paths and steps without those of other accelerators, where the guard asks one of several."""
        if accelerator is None or len(sites) < 2:
            return paths, sites
        who = self.objects.identity(scope, accelerator)
        made = {site: {item.accelerator for item in self.objects.preparations_of(site.who)} for site in sites}
        mine = [site for site in sites if made[site] == {who}]
        if not mine or not all(made.values()) or len(mine) == len(sites):
            return paths, sites
        return [replace(path, steps=tuple(site for site in path.steps if site in mine)) for path in paths], mine

    def _chosen(
        self, scope: Scope, paths: list[Path], sites: list[StepSite]
    ) -> tuple[list[Path], list[StepSite]] | Refusal:
        """The paths and steps of the optimizer that counts."""
        together = [path for path in paths if len({site.who for site in path.steps}) > 1]
        if self.counted is not None:
            mine = [site for site in sites if self._is_counted(site)]
            if mine:
                paths = [Path(tuple(site for site in p.steps if site in mine), p.conditions) for p in paths]
                sites, together = mine, []
            elif together or len({site.who for site in sites}) > 1:
                return several(sites, f"`--counted-optimizer {self.counted}` names none of them")
        if together:
            owners = " or ".join(dict.fromkeys(f"--counted-optimizer {site.owner}" for site in sites))
            return several(sites, f"say which one counts: {owners}")
        twice = [path for path in paths if len(path.steps) > 1]
        if twice:
            return Refusal(
                "several-attempts",
                f"`{sites[0].owner}` steps more than once before this (lines {lines_of(sites)}); "
                "the flag tells only about the last attempt. Count behind each of them",
            )
        return paths, sites

    def _is_counted(self, site: StepSite) -> bool:
        return self.counted in (site.owner, site.who.key)

    def _accelerator(self, scope: Scope, sites: list[StepSite], guard: str | None) -> str | Refusal:
        made = {item.accelerator for site in sites for item in self.objects.preparations_of(site.who)}
        if guard is not None:
            who = self.objects.identity(scope, guard)
            if made and who not in made and all(self.objects.kind(m.scope, m.key) == "accelerator" for m in made):
                other = min(item.key for item in made)
                if any(self._is_built(item) for item in made) and self._is_built(who):
                    return Refusal(
                        "other-accelerator",
                        f"the test asks `{guard}`, but `{sites[0].owner}` was prepared by `{other}`; ask "
                        "the accelerator whose optimizer stepped",
                    )
            return guard
        found = self.accelerator_text(scope, made)
        if found is None and scope in self._undecided:
            text = "several accelerators are in reach here, and the file does not show which one prepared "
            return Refusal("unknown-accelerator", text + f"`{sites[0].owner}`")
        if found is None:
            return Refusal(
                "unknown-accelerator", "no accelerator is in reach here, so its flag cannot be read; hand it over"
            )
        return found

    def _is_built(self, who: Identity) -> bool:
        return any(isinstance(item.value, ast.Call) for item in who.scope.bindings.get(who.key, []))

    def reaches_accelerator(self, scope: Scope) -> bool:
        """Whether a scope can read an accelerator, one or several."""
        return self.accelerator_text(scope, set()) is not None or scope in self._undecided

    def accelerator_text(self, scope: Scope, wanted: set[Identity]) -> str | None:
        """How an accelerator is called in a scope: one of those wanted, or else the only one in reach."""
        if not wanted:
            if scope not in self._accelerators:
                self._accelerators[scope] = self._accelerator_text(scope, wanted)
            return self._accelerators[scope]
        return self._accelerator_text(scope, wanted)

    def _accelerator_text(self, scope: Scope, wanted: set[Identity]) -> str | None:
        here: Scope | None = scope
        named: list[str] = []
        while here is not None:
            named += self.objects.accelerators_in(here, scope) if not isinstance(here.node, ast.ClassDef) else []
            here = here.parent
        for owner in self._owners(scope):
            named += self.objects.accelerators_in(owner, scope)
        fitting = [name for name in named if self.objects.identity(scope, name) in wanted]
        if fitting or len({self.objects.identity(scope, name) for name in named}) == 1:
            return (fitting or named)[0]
        if named:
            self._undecided.add(scope)
            return None
        calls = re.findall(
            r"([A-Za-z_][\w.]*)\.(?:backward|accumulate|prepare|unwrap_model)\(", self.script.text_of(scope)
        )
        seen = {name for name in calls if self.objects.kind(scope, name) == "accelerator"}
        return seen.pop() if len(seen) == 1 else self._held_accelerator(scope)

    def _held_accelerator(self, scope: Scope) -> str | None:
        """The accelerator of the one object in reach that shows one, such as `engine.accelerator`."""
        attributes = [name for owner in self._owners(scope) for name in owner.bindings if names.root(name) == "self"]
        holders = [*scope.bindings, *attributes] if self.script.module.classes else []
        found: dict[str, Identity] = {}
        for holder in dict.fromkeys(holders):
            kind = self.script.class_of(scope, holder)
            for owner in self.script.lineage(kind) if kind is not None else ():
                for method in owner.functions.values():
                    for name in self.objects.accelerators_in(owner, method):
                        if not name.startswith("self._"):
                            found.setdefault(holder + name.removeprefix("self"), self.objects.identity(method, name))
        return next(iter(found)) if len(set(found.values())) == 1 else None

    def _owners(self, scope: Scope) -> tuple[Scope, ...]:
        return self.script.lineage(scope.owner) if scope.owner is not None else ()

    def _as_written(self, name: str) -> str:
        """A key in the quotes that the file writes it with."""
        other = name.replace("'", '"')
        return other if name not in self.script.source.text and other in self.script.source.text else name

    def _flag(self, scope: Scope, sites: list[StepSite], accelerator: str, condition: str | None) -> Flag | Refusal:
        accelerator = self._as_written(accelerator)
        whos = {site.who for site in sites}
        if len(whos) > 1:
            if any(site.scope is not scope for site in sites):
                return several(sites, "they step in other functions, where no line can keep the flag for this test")
            note = f"optimizers take turns here (lines {lines_of(sites)}): the flag of the one that stepped is kept"
            return Flag(self.variable, accelerator, tuple(sites), condition, note)
        prepared_by = {item.accelerator for item in self.objects.preparations_of(sites[0].who)}
        prepared_by = prepared_by or {self.objects.identity(scope, accelerator)}  # a name for one of its optimizers
        others = [who for made in prepared_by for who in self.objects.optimizers(made)]
        if len(others) <= 1 and self.counted is None:
            return Flag(f"{accelerator}.optimizer_step_was_skipped", accelerator, condition=condition)
        for site in sites:
            if site.scope is scope or self.objects.identity(scope, site.owner) == site.who:
                note = "several optimizers are prepared on one accelerator: the flag of the one that counts is read"
                return Flag(
                    f"{self._as_written(site.owner)}.step_was_skipped", accelerator, condition=condition, note=note
                )
        return Refusal(
            "optimizer-out-of-reach",
            f"`{sites[0].owner}` (line {sites[0].statement.lineno}) has no name here, and "
            "several optimizers share the accelerator's flag; count where it steps, or hand it over",
        )


def _unique(sites: Iterable[StepSite]) -> list[StepSite]:
    return sorted(dict.fromkeys(sites), key=lambda site: (site.statement.lineno, site.call.col_offset))


def _free_name(text: str) -> str:
    """A name for the kept flag that the file does not use for something else."""
    for name in ("step_was_skipped", "update_was_skipped", "attempt_was_skipped"):
        if not re.search(word_pattern(name, r"[.\w]") + r"(?! = [\w.]+\.step_was_skipped)", text):
            return name
    return "skipped_by_optimizer"


def negated(clause: str) -> str:
    """The opposite of a clause's text."""
    if clause.startswith("not ") and " " not in clause[4:]:
        return clause[4:]
    return f"not {clause}" if clause.replace(".", "").replace("_", "").isalnum() else f"not ({clause})"
