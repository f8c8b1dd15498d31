"""Finds and reads the script's own counters: locals, attributes and dictionary items called `global_step`.

A counter is looked for in the frames above an optimizer step. Its frame is kept, so that its last value can be read
when the loop has returned; it is let go at the first event after that.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .lookup import frames, member, variables, words

_LIBRARIES = ("accelerate", "accelerate_ext", "torch")
_SEARCHES = 50  # a script that never had the counter after so many attempts has none


def _number(value: Any) -> int | None:
    """An int, or what stands for one (NumPy, a tensor of one element); None for all else."""
    if isinstance(value, (bool, str, bytes, float)):
        return None
    if isinstance(value, int):
        return value
    try:
        if getattr(value, "shape", None) == () and "int" in str(value.dtype):
            return int(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
    return None


def _is_of_library(owner: Any) -> bool:
    """Whether an object's counters are not the script's: an Accelerator counts micro-batches as `step`."""
    return type(owner).__module__.partition(".")[0] in _LIBRARIES


def _stores(code: CodeType, name: str) -> bool:
    """Whether the code assigns to a variable; one that it only gets as an argument is another's."""
    stored = [step.argval for step in dis.get_instructions(code) if "STORE_" in step.opname]
    return any(name in value if isinstance(value, tuple) else value == name for value in stored)


class Counter:
    """One named counter; `path` may lead through attributes and keys: `global_step`, `state.step`."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.head, *self.rest = words(path)
        self._is_of_self = path.startswith("self.")
        self.value: int | None = None
        self.first: int | None = None
        self.where = ""
        self.searches = 0
        self._frame: FrameType | None = None
        self._read: Callable[[], Any] | None = None
        self._is_given = False

    def give(self, read: Callable[[], Any], where: str) -> None:
        """Read the counter by this function from now on; it is not looked for in frames any more."""
        self._read, self.where, self._is_given, self._frame = read, where, True, None

    def sample(self, may_search: bool) -> bool:
        """Read the value; True if it is another one than last time."""
        found = self._current()
        if may_search and not self._is_given and (self._read is None or self._is_over()):
            self._search()
            found = self._current() if self._read is not None else found
        if found is None or found == self.value:
            return False
        if self.value is None:
            self.first = found
        self.value = found
        return True

    def _current(self) -> int | None:
        return _number(self._read()) if self._read is not None else None

    def _is_over(self) -> bool:
        """Whether the frame it was found in has returned: it leads to no attempt any more."""
        return self._frame is not None and not any(frame is self._frame for frame in frames())

    def _search(self) -> None:
        if self.searches >= _SEARCHES:
            return
        self.searches += 1
        candidates = [found for frame in frames() if (found := self._look_in(frame)) is not None]
        if not candidates:
            return
        candidates.sort(key=lambda found: found[0])
        _, self._frame, self._read, self.where = candidates[0]
        self.searches = 0

    def _look_in(self, frame: FrameType) -> tuple[int, FrameType, Callable[[], Any], str] | None:
        known = variables(frame)
        place = frame.f_code.co_name
        owner = known.get("self") if self._is_of_self else None
        if (
            owner is not None and not _is_of_library(owner) and self._follow(member(owner, self.head)) is not None
        ):  # not a local copy of that name
            return 0, frame, lambda: self._follow(member(owner, self.head)), f"{self.name} in {place}"
        if self._follow(known.get(self.head)) is not None:
            rank = 0 if _stores(frame.f_code, self.head) or self.rest else 2
            return rank, frame, lambda: self._follow(self._local(frame)), f"{self.name} in {place}"
        for label, owner in self._owners(known):
            if self._follow(member(owner, self.head)) is not None:
                where = f"{label}.{self.name}" if not isinstance(owner, dict) else f"{label}[{self.name!r}]"
                return 1, frame, lambda owner=owner: self._follow(member(owner, self.head)), where
        return None

    def _local(self, frame: FrameType) -> Any:
        return variables(frame).get(self.head)

    def _follow(self, value: Any) -> int | None:
        for name in self.rest:
            value = member(value, name)
        return _number(value)

    @staticmethod
    def _owners(known: dict[str, Any]) -> list[tuple[str, Any]]:
        """Dictionaries and objects among the variables, and those that `self` holds."""
        owners = list(known.items())
        held = getattr(known.get("self"), "__dict__", {})
        owners += [(f"self.{name}", value) for name, value in held.items()]
        return [
            (name, value)
            for name, value in owners
            if not name.startswith("__") and (isinstance(value, dict) or hasattr(value, "__dict__"))
            if not isinstance(value, type(sys)) and not isinstance(value, type) and not _is_of_library(value)
        ]


class Counters:
    """All counters that are watched, in the order of their names' importance."""

    def __init__(self, names: list[str]) -> None:
        self.all = {name: Counter(name) for name in names}

    def give(self, name: str, read: Callable[[], Any], where: str) -> None:
        if name in self.all:
            self.all[name].give(read, where)

    def moved(self, may_search: bool) -> list[Counter]:
        """The counters whose value changed since the last call."""
        return [counter for counter in self.all.values() if counter.sample(may_search)]
