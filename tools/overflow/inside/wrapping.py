"""Puts one function round another, in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, outer: Callable[..., Any]) -> None:
    """Replace `owner.name`: `outer(call, *arguments)` decides when `call()` runs the original with its own arguments.

    Raises: AttributeError if there is no such function.
    """
    found = vars(owner).get(name)
    if found is None:
        raise AttributeError(f"{getattr(owner, '__name__', owner)} has no {name} of its own")
    is_static = isinstance(found, (staticmethod, classmethod))
    original = found.__func__ if is_static else found

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return outer(lambda: original(*args, **kwargs), *args, **kwargs)

    setattr(owner, name, type(found)(wrapper) if is_static else wrapper)
