"""Count the optimizer updates that were applied: an extension of Hugging Face Accelerate.

Importing it patches nothing. `Accelerator` is a drop-in for `accelerate.Accelerator`, `attach` and `detach` are for
one that was made elsewhere, and `AppliedStepCallback` is for a `transformers.Trainer`. Averages of the weights that
move only with applied updates are in `accelerate_ext.ema`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .accelerator import Accelerator
from .attachment import attach, detach
from .errors import CheckpointError, RankDisagreementError, SkippedUpdatesError
from .update import Update

if TYPE_CHECKING:
    from .callback import AppliedStepCallback

__all__ = [
    "Accelerator",
    "AppliedStepCallback",
    "CheckpointError",
    "RankDisagreementError",
    "SkippedUpdatesError",
    "Update",
    "attach",
    "detach",
]


def __getattr__(name: str) -> Any:
    if name == "AppliedStepCallback":  # imports transformers, which takes seconds
        from .callback import AppliedStepCallback

        return AppliedStepCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
