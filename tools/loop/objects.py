"""What the objects of a script are: accelerators, optimizers, schedulers; and which of them who prepared."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property

from . import names
from .accumulation import accumulation
from .bindings import Binding
from .names import key
from .scope import Scope, argument_of
from .script import Script
from .tree import assigned, calls_of

_PREPARE = re.compile(r"prepare(?:_optimizer|_scheduler)?\s*[(,]")
_ZERO_GRAD = re.compile(r"zero_grad\s*\(")
_PREPARES = ("prepare", "prepare_optimizer", "prepare_scheduler")


@dataclass(frozen=True)
class Identity:
    """An object, whatever it is called where it is read: the scope that binds it and its key there."""

    scope: Scope
    key: str


@dataclass(frozen=True)
class Preparation:
    """One object that came out of `prepare`: which accelerator did it, where, and under which identity it is kept."""

    accelerator: Identity
    prepared: Identity
    statement: ast.stmt
    is_many: bool = False


@dataclass
class Objects:
    """Answers questions about the objects of one script."""

    script: Script
    preparations: list[Preparation] = field(default_factory=list)
    is_opaque: bool = False  # something was prepared in a way that hides which names hold the results
    _kinds: dict[tuple[Scope, str], str] = field(default_factory=dict)
    _identities: dict[tuple[Scope, str], Identity] = field(default_factory=dict)
    _zeroed: set[tuple[Scope, str]] | None = None

    def __post_init__(self) -> None:
        for node in self.script.statements_with(_PREPARE):
            self._read_preparation(node)

    def identity(self, scope: Scope, name: str, depth: int = 6) -> Identity:
        """The object behind a key, through plain aliases and through parameters whose arguments the file shows."""
        if (scope, name) not in self._identities:
            found = self._identity(scope, name, depth)
            if depth < 6:
                return found
            self._identities[scope, name] = found
        return self._identities[scope, name]

    def _identity(self, scope: Scope, name: str, depth: int) -> Identity:
        home = self.script.home(scope, name)
        found = home.bindings.get(name, [])
        if depth and len(found) == 1:
            binding = found[0]
            alias = key(binding.value) if binding.position < 0 else None
            if alias is not None and alias != name:
                return self.identity(self.script.places[binding.statement].scope, alias, depth - 1)
            if binding.is_parameter:
                return self._argument(home, name, depth) or Identity(home, name)
        if depth and not found and names.root(name) != name:
            owner = names.root(name)
            bound = self.script.bindings(scope, owner)
            if len(bound) == 1 and (bound[0].is_parameter or key(bound[0].value)):
                base = self.identity(scope, owner, depth - 1)
                if (base.scope, base.key) != (self.script.home(scope, owner), owner):
                    return self.identity(base.scope, base.key + name[len(owner) :], depth - 1)
        return Identity(home, name)

    def _argument(self, function: Scope, parameter: str, depth: int) -> Identity | None:
        """The one object that every call in the file hands to a parameter."""
        found = set()
        for node, call in self.script.calls(function):
            value = argument_of(function, call, parameter)
            name = key(value)
            if name is None:
                return None
            found.add(self.identity(self.script.places[node].scope, name, depth - 1))
        return found.pop() if len(found) == 1 else None

    def kind(self, scope: Scope, name: str) -> str:
        """`accelerator`, `optimizer`, `scheduler`, `ema`, `bar`, `scaler`, `engine`, or an empty text."""
        who = self.identity(scope, name)
        if (who.scope, who.key) not in self._kinds:
            self._kinds[who.scope, who.key] = ""  # an object that is made from itself has no kind
            self._kinds[who.scope, who.key] = self._kind(who, name)
        return self._kinds[who.scope, who.key]

    def accelerators_in(self, home: Scope, scope: Scope) -> list[str]:
        """Keys that `home` binds and that are accelerators when `scope` reads them."""
        return [
            name
            for name, found in home.bindings.items()
            if names.suggests_accelerator(name) or any(_may_be_accelerator(item) for item in found)
            if self.kind(scope, name) == "accelerator"
        ]

    def is_lookalike(self, scope: Scope, name: str) -> bool:
        """Whether an object only has the words of an accelerator: it is built from a class that is none."""
        who = self.identity(scope, name)
        values = [item.value for item in who.scope.bindings.get(who.key, []) if item.position < 0]
        calls = [value for value in values if isinstance(value, ast.Call)]
        return bool(calls) and len(calls) == len(values) and all(self._builds_another(call) for call in calls)

    def _builds_another(self, call: ast.Call) -> bool:
        name, seen = names.called(call), set()
        if names.last(name) == "Fabric":
            return True
        while name in self.script.module.classes and name not in seen:
            seen.add(name)
            node = self.script.module.classes[name].node
            bases = [key(base) or "?" for base in getattr(node, "bases", ())]
            if not bases or bases == ["object"]:
                return True
            name = bases[0]
        return False

    def _kind(self, who: Identity, name: str) -> str:
        for binding in who.scope.bindings.get(who.key, []):
            kind = self._built_kind(binding)
            if kind:
                return kind
        holders = [text.partition("[")[0] for text in (who.key, name) if text.endswith("]")]  # `optimizers["model"]`
        for word in (who.key, name, *holders):
            for kind, suggests in _SUGGESTIONS:
                if suggests(word):
                    return "" if kind == "accelerator" and self.is_lookalike(who.scope, who.key) else kind
        return "optimizer" if (who.scope, who.key) in self.zeroed else ""

    def _built_kind(self, binding: Binding) -> str:
        value = binding.value
        if binding.position >= 0 or value is None:
            engine = names.class_of(value) == "initialize" and "deepspeed" in (key(getattr(value, "func", None)) or "")
            return "engine" if engine and binding.position == 0 else ""
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _PREPARES:
            return self._built_kind(Binding(binding.statement, value.args[0])) if len(value.args) == 1 else ""
        for kind, builds in _BUILDERS:
            if builds(value):
                return kind
        return "scaler" if names.class_of(value).endswith("GradScaler") else ""

    @property
    def zeroed(self) -> set[tuple[Scope, str]]:
        """Objects that somebody calls `zero_grad` on and `step` as well: models have gradients to clear, too."""
        if self._zeroed is None:
            self._zeroed = set()
            for node in self.script.statements_with(_ZERO_GRAD):
                for call in calls_of(node):
                    if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
                        name = key(call.func.value)
                        if name is not None and self._is_stepped(name):
                            who = self.identity(self.script.places[node].scope, name)
                            self._zeroed.add((who.scope, who.key))
        return self._zeroed

    def _is_stepped(self, name: str) -> bool:
        word, text = names.last(name), self.script.source.text
        return any(f"{word}{end}.step(" in text for end in ("", '"]', "']"))

    def _read_preparation(self, node: ast.stmt) -> None:
        scope = self.script.places[node].scope
        for call in calls_of(node):
            is_map = key(call.func) == "map" and bool(call.args)
            function = call.args[0] if is_map else call.func
            if not (isinstance(function, ast.Attribute) and function.attr in _PREPARES):
                continue
            name = key(function.value)
            if name is None or self.kind(scope, name) not in ("accelerator", ""):
                continue
            accelerator = self.identity(scope, name)
            for target, is_many in self._targets(node, call):
                target_name = key(target)
                if target_name is not None:
                    home = self.script.home(scope, target_name)
                    self.preparations.append(Preparation(accelerator, Identity(home, target_name), node, is_many))

    def _targets(self, node: ast.stmt, call: ast.Call) -> list[tuple[ast.expr, bool]]:
        """What the results of one `prepare` are assigned to; whether one target holds several objects."""
        if any(isinstance(item, ast.Starred) for item in call.args):
            self.is_opaque = True
        for target, value in assigned(node):
            if value is call:
                if isinstance(target, (ast.Tuple, ast.List)):
                    return [(item, False) for item in target.elts]
                self.is_opaque = self.is_opaque or len(call.args) > 1
                return [(target, False)]
            if any(item is call for item in ast.walk(value)):
                if isinstance(target, (ast.Tuple, ast.List)):
                    return [(item, False) for item in target.elts]
                return [(target, True)]
        if isinstance(node, (ast.Return, ast.Yield)):
            self.is_opaque = True
        return []

    def is_prepared(self, who: Identity) -> bool | None:
        """Whether an optimizer or a scheduler went through `prepare`; None where the file cannot tell."""
        if any(item.prepared == who for item in self.preparations):
            return True
        found = who.scope.bindings.get(who.key, [])
        is_hidden = self.is_opaque or self.script.leaves_to_a_base(who.scope, [p.statement for p in self.preparations])
        if is_hidden or not found or any(self._is_built_elsewhere(item) for item in found):
            return None
        chosen = [self._is_choice_prepared(item) for item in found if isinstance(item.value, ast.IfExp)]
        return chosen[0] if len(chosen) == len(found) == 1 else False

    def _is_choice_prepared(self, binding: Binding) -> bool | None:
        """Whether both of the objects that `a if test else b` chooses from are prepared."""
        assert isinstance(binding.value, ast.IfExp)
        scope, known = self.script.places[binding.statement].scope, set()
        for arm in (binding.value.body, binding.value.orelse):
            items = arm.elts if isinstance(arm, (ast.Tuple, ast.List)) else []
            name = key(items[binding.position] if 0 <= binding.position < len(items) else arm)
            known.add(None if name is None else self.is_prepared(self.identity(scope, name)))
        return next((answer for answer in (False, None) if answer in known), True)

    def _is_built_elsewhere(self, binding: Binding) -> bool:
        """Whether a value comes from where this file cannot look: a parameter, a container, a call that prepares."""
        value = binding.value
        if binding.is_parameter or value is None or isinstance(value, ast.Subscript):
            return True
        if (whole := key(value)) is not None:
            scope = self.script.places[binding.statement].scope
            return binding.position >= 0 or any(item.is_parameter for item in self.script.bindings(scope, whole))
        if (names.builds_optimizer(value) or names.builds_scheduler(value)) and not names.brings_schedule(value):
            return False
        return isinstance(value, (ast.Call, ast.Attribute)) and any(
            names.suggests_accelerator(name) for item in ast.walk(value) if (name := key(item)) is not None
        )

    def preparations_of(self, who: Identity) -> list[Preparation]:
        return [item for item in self.preparations if item.prepared == who]

    def optimizers(self, accelerator: Identity) -> list[Identity]:
        """Every optimizer that an accelerator prepared, a second time where it did so more than once in one run."""
        found: list[Preparation] = []
        for item in self.preparations:
            if item.accelerator != accelerator or self.kind(item.prepared.scope, item.prepared.key) != "optimizer":
                continue
            twin = [other for other in found if other.prepared == item.prepared]
            if item.is_many or not any(self._are_alternatives(item.statement, other.statement) for other in twin):
                found.append(item)
            if item.is_many or self.script.loop(item.statement) is not None:
                found.append(item)
        return [item.prepared for item in found]

    def _are_alternatives(self, first: ast.stmt, second: ast.stmt) -> bool:
        """Whether two statements stand in different arms of one `if`, so that a run meets one of them."""
        arms = {id(node): arm for node, arm in self._arms(first)}
        return any(arms.get(id(node), arm) != arm for node, arm in self._arms(second) if isinstance(node, ast.If))

    def _arms(self, node: ast.stmt) -> list[tuple[ast.stmt, str]]:
        found = []
        place = self.script.places[node]
        while place.parent is not None:
            found.append((place.parent, place.arm))
            place = self.script.places[place.parent]
        return found

    @cached_property
    def accumulation(self) -> str:
        """`none` if every iteration is a boundary, `one` if the script asks for no accumulation, else `maybe`."""
        return accumulation(self.script)


_SUGGESTIONS = (
    ("scheduler", names.suggests_scheduler),
    ("ema", names.suggests_ema),
    ("optimizer", names.suggests_optimizer),
    ("accelerator", names.suggests_accelerator),
    ("bar", names.suggests_bar),
    ("scaler", lambda word: names.last(word).endswith("scaler")),
    ("engine", lambda word: bool(re.search(r"(^|_)engine$", names.last(word)))),
)
_BUILDERS = (
    ("accelerator", names.builds_accelerator),
    ("scheduler", names.builds_scheduler),
    ("ema", names.builds_ema),
    ("optimizer", names.builds_optimizer),
    ("bar", names.builds_bar),
)


def _may_be_accelerator(binding: Binding) -> bool:
    """Whether a name is given another one, or an accelerator that is built here."""
    return isinstance(binding.value, (ast.Name, ast.Attribute)) or names.builds_accelerator(binding.value)
