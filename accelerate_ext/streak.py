"""What to say when too many updates in a row were skipped."""

from __future__ import annotations

import warnings
from typing import Any

import torch

_LOOK_AT = "Look at the loss and the inputs of the last batches (is one of them not finite?) and at the learning rate"
_LOOK_AT_16_BITS = (
    ", and at layers whose activations exceed 65504 in float16; weights trained in bfloat16 often need bfloat16"
)
_NEVER_STOP = ": below a loss scale of 2**-128 a GradScaler passes non-finite gradients on, and the weights are lost"
_UNSEEN = (
    "Their gradients were complete and `step()` of no prepared optimizer was called. If weights moved all the same, "
    "an optimizer steps that was not prepared, or the one within a prepared one does (`optimizer.optimizer`, by a "
    "GradScaler of your own): then `prepare` it, call `step()` of what `prepare` returned, and leave the scaling to "
    'Accelerate (mixed_precision="fp16"). If the loop leaves these updates out on purpose, they are counted as meant'
)
_HINT_AFTER = 3

MAX_CONSECUTIVE_SKIPS = 50
"""How many skipped updates in a row are tolerated unless the caller says otherwise."""


class UnseenSteps:
    """Attempts in a row that ended without a `step()` that was seen; said once, when it can hardly be on purpose."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._of_models: dict[tuple[int, ...], int] = {}  # windows of one model go on while another one's are stepped
        self._is_said = False

    def seen(self, models: tuple[object, ...]) -> None:
        """A prepared optimizer has stepped, in a window of these models."""
        self.in_a_row = 0
        self._of_models.pop(tuple(map(id, models)), None)

    def missed(self, models: tuple[object, ...]) -> None:
        """A window of these models has ended in which none did."""
        self.in_a_row += 1
        key = tuple(map(id, models))
        count = self._of_models[key] = self._of_models.get(key, 0) + 1
        if count == _HINT_AFTER and not self._is_said:
            self._is_said = True
            warnings.warn(f"{count} updates in a row count as skipped. {_UNSEEN}.", stacklevel=4)


def too_many_skips(
    in_a_row: int, limit: int, optimizers: Any, scale_then: torch.Tensor | float | None, unseen: int = 0
) -> str:
    """The message of a SkippedUpdatesError. Reads the loss scale, so it costs synchronisations.

    Args:
        scale_then: the loss scale before them, where it was seen.
        unseen: how many of the last attempts ended without a step.
    """
    skipped = f"{in_a_row} updates in a row were skipped (`max_consecutive_skips` is {limit})"
    larger = "Pass a larger `max_consecutive_skips` to tolerate more, or None to never stop"
    if unseen >= in_a_row:
        return f"{skipped}. {_UNSEEN}. {larger}."
    scale = _loss_scale(optimizers, scale_then)
    return (
        f"{skipped}; {scale or 'no loss scale is in use'}. {_LOOK_AT}{_LOOK_AT_16_BITS if scale else ''}. "
        f"{larger}{_NEVER_STOP if scale else ''}."
    )


def _loss_scale(optimizers: Any, scale_then: torch.Tensor | float | None) -> str | None:
    for optimizer in optimizers:
        scaler = optimizer.scaler
        if scaler is not None and scaler.is_enabled():
            now = scaler.get_scale()
            break
        now = getattr(optimizer.optimizer, "loss_scale", None)  # DeepSpeed's
        if now is not None and scale_then is not None:
            break
    else:
        return None
    if scale_then is None:  # the skips were found out later, or nobody stepped
        return f"the loss scale is {float(now):g} now"
    return f"the loss scale was {float(scale_then):g} before them and is {float(now):g} now"
