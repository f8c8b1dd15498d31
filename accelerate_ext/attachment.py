"""Counting for an Accelerator that was made elsewhere, and the end of it."""

from __future__ import annotations

from typing import Any

import accelerate

from .accelerator import Accelerator
from .arguments import check_switches, limit
from .nonfinite import check_guard
from .streak import MAX_CONSECUTIVE_SKIPS


def attach(
    accelerator: accelerate.Accelerator,
    *,
    skip_nonfinite: bool = False,
    max_consecutive_skips: int | None = MAX_CONSECUTIVE_SKIPS,
) -> Accelerator:
    """Make an Accelerator that was created elsewhere count applied updates, from here on.

    It stays the same object, and so do the optimizers that it has prepared. An Accelerator that counts already is
    returned as it is, with the `max_consecutive_skips` that it has. `detach` undoes it.

    Raises: TypeError for anything but an Accelerator; ValueError as `Accelerator` does, with nothing changed, or if
        one that counts already lacks the `skip_nonfinite` that is asked for.
    """
    _check_kind(accelerator)
    max_consecutive_skips = limit("max_consecutive_skips", max_consecutive_skips)
    check_switches(skip_nonfinite=skip_nonfinite)
    if isinstance(accelerator, Accelerator):
        if skip_nonfinite and accelerator._attempts.guard is None:
            raise ValueError(
                "`skip_nonfinite` must be switched on where the counting begins, and this Accelerator counts already: "
                "give it there, or `detach` it first, which forgets its counts"
            )
        return accelerator
    if skip_nonfinite:
        check_guard(accelerator)
    accelerator.__class__ = _counting_class(type(accelerator))
    assert isinstance(accelerator, Accelerator)
    accelerator._start_counting(skip_nonfinite, max_consecutive_skips)
    return accelerator


def detach(accelerator: accelerate.Accelerator) -> accelerate.Accelerator:
    """Undo `attach`: the Accelerator and its optimizers are again what Accelerate made them. The counts are lost.

    One that does not count is returned as it is.

    Raises: TypeError for anything but an Accelerator.
    """
    _check_kind(accelerator)
    if isinstance(accelerator, Accelerator):
        accelerator._stop_counting()
        accelerator.__class__ = accelerator._counts_for
    return accelerator


def _check_kind(accelerator: object) -> None:
    if not isinstance(accelerator, accelerate.Accelerator):
        raise TypeError(f"`accelerator` must be an accelerate.Accelerator, got {type(accelerator).__name__}")


_CLASSES: dict[type, type[Accelerator]] = {accelerate.Accelerator: Accelerator}


def _counting_class(cls: type[accelerate.Accelerator]) -> type[Accelerator]:
    if cls not in _CLASSES:
        own = {"_counts_for": cls, "__module__": cls.__module__, "__reduce_ex__": _reduce}
        _CLASSES[cls] = type(cls.__name__, (Accelerator, cls), own)
    return _CLASSES[cls]


def _reduce(accelerator: Accelerator, protocol: Any) -> tuple[Any, ...]:
    return _blank, (accelerator._counts_for,), vars(accelerator)


def _blank(cls: type[accelerate.Accelerator]) -> Accelerator:
    """For unpickling: the classes made above have no importable name."""
    return object.__new__(_counting_class(cls))
