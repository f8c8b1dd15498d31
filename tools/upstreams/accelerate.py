"""The series for Accelerate: a skip flag that is right for every optimizer."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..patch import Series, Tree
from ..site import Outcome, Site
from ..source import Source, SourceError
from ..trainer.notes import ACCELERATE
from ..trainer.skip_flag import OPTIMIZER, STEP
from ..trainer.step import series_of


def build(tree: Tree) -> Series:
    """The one patch, or none and the reason why: a place that was not found, or a flag that is right already."""
    right = _reads_found_inf(tree)
    if right is not None:
        return Series("accelerate", (), ACCELERATE, {OPTIMIZER: (right,)})
    return series_of(tree, "accelerate", (STEP,), ACCELERATE)


def _reads_found_inf(tree: Tree) -> Site | None:
    """The place where the optimizer's wrapper reads what the scaler found, if it does."""
    try:
        module = Source.from_bytes(tree.read(OPTIMIZER)).tree
    except (FileNotFoundError, SourceError):
        return None
    lines = [
        node.lineno
        for node in ast.walk(module)
        if (isinstance(node, ast.Attribute) and node.attr == "found_inf")
        or (isinstance(node, ast.Constant) and node.value == "found_inf")
    ]
    if not lines:
        return None
    message = "the wrapper reads what the scaler found: the patch, or a change like it, is there already"
    return Site(min(lines), 1, "skip flag", "skip-flag-right", Outcome.RIGHT, message)


SERIES: dict[str, Callable[[Tree], Series]] = {"accelerate": build}
DEFAULT_SERIES = "accelerate"
