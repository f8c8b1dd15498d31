"""Ties the parts together: backward passes open a window, an attempt closes it, and the rest happens in between."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import lookup
from .attempts import Attempts
from .counters import Counters
from .events import Recorder
from .journal import Journal
from .plan import Plan, parameters_of
from .weights import State

_TRIES = 50


def _reference(thing: Any) -> Callable[[], Any]:
    """A weak reference where the thing allows one, else one that keeps it."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


class Observer(Journal):
    """Everything that the patched functions call. Nothing here changes a value of the script, except to inject."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(Recorder(config["folder"]), Counters(config["counters"]))
        self.plan = Plan(config)
        self.watch: list[str] = config.get("watch") or []
        self.calls: list[str] = config.get("averages") or []  # calls in the script that seem to move an average
        self.pending: list[Callable[[], bool]] = []  # tried at backward passes until they say that they are done
        self._tries = 0
        self.installed: weakref.WeakSet[Any] = weakref.WeakSet()  # scalers that the script did not make or enable
        self.attempts = Attempts(self, self.plan, self.installed)
        self.scaled: tuple[Any, Any] | None = None  # the last loss that a scaler returned, and what it was before
        self._depth: dict[str, int] = {}
        self._numbers: dict[int, tuple[Callable[[], Any], int]] = {}  # by id, as not everything has a hash
        self._kinds: dict[str, int] = {}
        self._applied_at_last_call: dict[int, int] = {}

    @property
    def is_training(self) -> bool:
        """Whether a backward pass has been seen; before it, nothing that moves is of interest."""
        return self.attempts.backwards > 0

    def before_scale(self, tensor: Any) -> Any:
        """The loss as it was before a scaler multiplied it."""
        if self.scaled is not None and self.scaled[0]() is tensor:
            return self.scaled[1]
        return tensor

    @contextlib.contextmanager
    def within(self, kind: str) -> Iterator[bool]:
        """Yields True in the outermost of nested calls of a kind."""
        depth = self._depth.get(kind, 0)
        self._depth[kind] = depth + 1
        try:
            yield depth == 0
        finally:
            self._depth[kind] = depth

    def is_within(self, kind: str) -> bool:
        return self._depth.get(kind, 0) > 0

    def number_of(self, kind: str, thing: Any) -> int:
        """1 for the first object of a kind that is seen, 2 for the second."""
        known = self._numbers.get(id(thing))
        if known is None or known[0]() is not thing:
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            known = self._numbers[id(thing)] = (_reference(thing), self._kinds[kind])
        return known[1]

    def before_backward(self) -> None:
        """See what moved since the last event, and try what has to wait for the script's own classes and variables."""
        if self.recorder.started:
            self.sample()
        if self.pending and self._tries < _TRIES:
            self._tries += 1
            self.pending = [action for action in self.pending if not action()]

    def average(self, owner: Any, label: str, call: Callable[[], Any], parameters: set[int], held: Any = None) -> Any:
        """Run one call of an average. Its state is compared if no update was applied since its last call.

        A call after an applied update is expected to move the average; only the others need a copy to prove anything.
        `held` is what holds the average's state, if it is not `owner`.
        """
        number = self.number_of("average", owner)
        users = self._optimizers_of(parameters)
        applied = self.attempts.applied_by(users)
        is_suspect = self.done > 0 and self._applied_at_last_call.get(number, 0) == applied
        before = State(owner if held is None else held) if is_suspect else None
        result = call()
        self._applied_at_last_call[number] = applied
        moved = before.changed() if before is not None else None
        self.tell("average", number=number, kind=label, moved=moved, optimizers=users)
        return result

    def _optimizers_of(self, parameters: set[int]) -> list[int]:
        """Numbers of the optimizers that hold any of these parameters."""
        return [
            record.number
            for record in self.attempts.optimizers
            if record.announced and parameters & {id(parameter) for parameter in parameters_of(record.optimizer())}
        ]

    def finish(self) -> None:
        """At the end of the process: the last values of the counters, then the mark that nothing is missing."""
        if self.recorder.started:
            for name in self.watch:
                module = sys.modules.get(name.partition(":")[0])
                if module is None:
                    self.note(f"--watch {name}: the script never imported {name.partition(':')[0]}")
            if lookup.unread:
                names = ", ".join(sorted(lookup.unread))
                self.note(f"variables of {names} were not read: it calls locals(), whose answer reading would change")
            self.write_notes()
            self.tell("end")
