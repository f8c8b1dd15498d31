"""Finds the script's own variables, in the frames that lead to where the observer was called."""

from __future__ import annotations

import inspect
import re
import sys
from types import FrameType
from typing import Any

_PACKAGE = __name__.rpartition(".")[0]


def frames() -> list[FrameType]:
    """The frames above the observer's own, innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            found.append(frame)
        frame = frame.f_back
    return found


unread: set[str] = set()  # functions whose variables could not be read without changing what they see


def variables(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables.

    Before Python 3.13 reading them fills the one dictionary that `locals()` gives, too. A function that calls `locals`
    is left alone there; from others' frames the references are taken away again, so that nothing lives longer.
    """
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if "locals" in frame.f_code.co_names:
        unread.add(frame.f_code.co_name)
        return {}
    copy = dict(frame.f_locals)
    frame.f_locals.clear()
    return copy


def words(path: str) -> list[str]:
    """The names in `state.step`, `self.state['step']` or `step`, without a leading `self`."""
    found = re.findall(r"\w+", path)
    return found[1:] if found[:1] == ["self"] and len(found) > 1 else found


def member(owner: Any, name: str) -> Any:
    """An item of a dictionary, or what an object itself holds under a name; None if it has no such thing."""
    if isinstance(owner, dict):
        return owner.get(name)
    return getattr(owner, "__dict__", {}).get(name)


def resolve(path: str) -> tuple[Any, FrameType | None]:
    """The object that a key in the script stands for, and the frame it was found in; nothing if there is none."""
    head, *rest = words(path)
    for frame in frames():
        known = variables(frame)
        for start in (known.get(head), member(known.get("self"), head), frame.f_globals.get(head)):
            value = start
            for name in rest:
                value = member(value, name) if member(value, name) is not None else getattr(value, name, None)
            if value is not None:
                return value, frame
    return None, None
