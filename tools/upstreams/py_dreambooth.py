"""The series for py-dreambooth: three real scripts of the Diffusers shape, from a released package."""

from __future__ import annotations

from collections.abc import Callable

from ..patch import Series, Tree
from ..scripts import script_series
from .diffusers import GATE

_NOTES = "The three training scripts of py-dreambooth are forks of Diffusers examples; see the series for Diffusers."


def _scripts(tree: Tree) -> Series:
    return script_series(tree, "scripts", GATE, tree.paths("py_dreambooth/scripts/train/train_*.py"), _NOTES)


SERIES: dict[str, Callable[[Tree], Series]] = {"scripts": _scripts}
DEFAULT_SERIES = "scripts"
