"""What the reading of a script's loop tells the observer: its counters, and the calls that move its averages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..loop.blocks import Role
from ..loop.names import key, last
from ..loop.tree import calls_of
from ..options import Options
from ..source import Source, SourceError
from ..work import Work
from .inside.lookup import words

_COUNTING = (Role.BOOKKEEPING, Role.CONTINUE, Role.TAIL, Role.APPLIED, Role.BOUNDARY)
_MOVES = re.compile(r"^(step|update|update_parameters|update_averages?|lerp|__call__)$")


@dataclass(frozen=True)
class Model:
    """Keys as they stand in the script: `self.state['step']`, `ema.update`, `update_ema`."""

    counters: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()

    def names(self, given: Sequence[str] = ()) -> tuple[str, ...]:
        """The counters to follow: `global_step`, those that are given, and the script's own."""
        found = [name for name in self.counters if words(name)[-1] != "global_step"]
        return tuple(dict.fromkeys(["global_step", *given, *found]))


def read(script: Path | None) -> Model:
    """The model of a script; an empty one where there is none, or where it cannot be read."""
    if script is None:
        return Model()
    try:
        work = Work(Source.from_bytes(script.read_bytes()), Options())
    except (OSError, SourceError, RecursionError):
        return Model()
    counters = [
        name for block in work.blocks if block.role in _COUNTING for name in work.traits.counters_in(block.statements)
    ]
    moved = [
        name
        for node in tuple(work.script.places)  # the reading of a call may find code that was not seen before
        if work.traits.averages(node)
        for call in calls_of(node)
        if (name := key(call.func)) and ("." not in name or _MOVES.match(last(name)))
        if "." in name or (not name[0].isupper() and ("ema" in name.lower() or "average" in name.lower()))
    ]
    return Model(tuple(dict.fromkeys(counters)), tuple(dict.fromkeys(moved)))
