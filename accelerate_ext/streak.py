"""What to say when too many updates in a row were skipped."""

from __future__ import annotations

from typing import Any

import torch

_LOOK_AT = "Look at the loss and the inputs of the last batches (is one of them not finite?) and at the learning rate"
_LOOK_AT_16_BITS = (
    ", and at layers whose activations exceed 65504 in float16; weights trained in bfloat16 often need bfloat16"
)
_NEVER_STOP = ": below a loss scale of 2**-128 a GradScaler passes non-finite gradients on, and the weights are lost"


def check_limit(max_consecutive_skips: object) -> None:
    """Make sure that a limit is one.

    Raises: ValueError if it is neither None nor a whole number from 1 up.
    """
    limit = max_consecutive_skips
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ValueError(f"`max_consecutive_skips` must be None or a whole number from 1 up, got {limit!r}")


def too_many_skips(in_a_row: int, limit: int, optimizers: Any, scale_then: torch.Tensor | float | None) -> str:
    """The message of a SkippedUpdatesError. Reads the loss scale, so it costs synchronisations."""
    scale = _loss_scale(in_a_row, optimizers, scale_then)
    return (
        f"{in_a_row} updates in a row were skipped (`max_consecutive_skips` is {limit}); "
        f"{scale or 'no loss scale is in use'}. {_LOOK_AT}{_LOOK_AT_16_BITS if scale else ''}. "
        "Pass a larger `max_consecutive_skips` to tolerate more, or None to never stop"
        f"{_NEVER_STOP if scale else ''}."
    )


def _loss_scale(in_a_row: int, optimizers: Any, scale_then: torch.Tensor | float | None) -> str | None:
    for optimizer in optimizers:
        scaler = optimizer.scaler
        if scaler is not None and scaler.is_enabled():
            now = scaler.get_scale()
            if scale_then is None:  # the skips were found out later: go back by the rule that the scaler follows
                scale_then = now / scaler.get_backoff_factor() ** in_a_row
            break
        now = getattr(optimizer.optimizer, "loss_scale", None)  # DeepSpeed's
        if now is not None and scale_then is not None:
            break
    else:
        return None
    return f"the loss scale was {float(scale_then):g} before them and is {float(now):g} now"
