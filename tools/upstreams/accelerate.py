"""The series for Accelerate: a skip flag that is right for every optimizer."""

from __future__ import annotations

from collections.abc import Callable

from ..patch import Series, Tree
from ..trainer.notes import ACCELERATE
from ..trainer.skip_flag import OPTIMIZER, STEP
from ..trainer.step import series_of


def build(tree: Tree) -> Series:
    """The one patch, or none and the reason why."""
    return series_of(tree, "accelerate", (STEP,), ACCELERATE)


SERIES: dict[str, Callable[[Tree], Series]] = {"accelerate": build}
DEFAULT_SERIES = "accelerate"
