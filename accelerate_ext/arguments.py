"""Checks of what a caller gives, each where it enters: what must hold, and what was given."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any


def count(name: str, value: Any, least: int = 0) -> int:
    """A count as an int. Raises: ValueError unless it is a whole number from `least` up."""
    if problem := count_problem(name, value, least):
        raise ValueError(problem)
    return operator.index(value)


def count_problem(name: str, value: Any, least: int = 0) -> str | None:
    """What is wrong with a count; None if it is one. True is no number here."""
    try:
        if not isinstance(value, bool) and operator.index(value) >= least:
            return None
    except TypeError:
        pass
    return f"`{name}` must be a whole number from {least} up, got {value!r}"


def limit(name: str, value: Any) -> int | None:
    """A limit, or None for none. Raises: ValueError unless it is None or a whole number from 1 up."""
    if value is not None and (problem := count_problem(name, value, 1)):
        raise ValueError(problem.replace("must be a", "must be None or a", 1))
    return None if value is None else operator.index(value)


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A number as an int, also a float that is whole.

    Raises: TypeError unless it is one; ValueError unless it is at least `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        if not (isinstance(value, float) and value.is_integer()):
            raise TypeError(f"`{name}` must be a whole number, got {value!r}") from None
        number = int(value)
    if least is not None and number < least:
        raise ValueError(f"`{name}` must be {least} or more, got {value}")
    return number


def number_problem(name: str, value: object) -> str | None:
    """What is wrong with a number that must be above 0; None if it is one."""
    if isinstance(value, Real) and 0 < float(value) < math.inf:
        return None
    return f"`{name}` must be a number above 0, got {value!r}"


def check_switches(**switches: object) -> None:
    """Make sure that switches are some: a word such as "no" would turn one on.

    Raises: TypeError unless each is True or False.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"`{name}` must be True or False, got {value!r}")
