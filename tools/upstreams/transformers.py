"""The series for Transformers: a Trainer whose `global_step` counts the updates that were applied."""

from __future__ import annotations

from collections.abc import Callable

from ..patch import Series, Tree
from ..trainer.series import build

SERIES: dict[str, Callable[[Tree], Series]] = {"transformers": build}
DEFAULT_SERIES = "transformers"
