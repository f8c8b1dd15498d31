"""Whose gradients are unscaled and when: those of each optimizer once an attempt, by the scale that its loss had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from accelerate.optimizer import AcceleratedOptimizer

from .scaling import holds_gradients, owns_any, share_found_inf

if TYPE_CHECKING:
    from .attempts import Attempts
    from .optimizer import CountedOptimizer


class Unscaling:
    """Unscales gradients, or looks for non-finite ones, for the optimizers of one Accelerator."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._clipped: list[CountedOptimizer] = []  # those whose gradients are being clipped

    def wanted(self) -> list[CountedOptimizer]:
        """The optimizers whose gradients may be unscaled now, when nobody says which."""
        optimizers = self._clipped or list(self._attempts.optimizers())
        return [optimizer for optimizer in optimizers if len(optimizers) == 1 or holds_gradients(optimizer)]

    @contextmanager
    def of_owners(self, parameters: torch.Tensor | list[torch.Tensor]) -> Iterator[None]:
        """While it lasts, only the optimizers that hold these parameters are unscaled."""
        optimizers = self._attempts.optimizers()
        if len(optimizers) > 1:
            given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            ids = {id(parameter) for parameter in given}
            self._clipped = [optimizer for optimizer in optimizers if owns_any(optimizer, ids)]
        try:
            yield
        finally:
            self._clipped = []

    def skip_together(self) -> None:
        """Let optimizers that were clipped by one norm skip together: a norm that is not finite spoils them all."""
        scaler = self._clipped[0].scaler_in_use if len(self._clipped) > 1 else None
        if scaler is not None:
            share_found_inf(scaler, [optimizer.optimizer for optimizer in self._clipped])

    def unscale(self, optimizers: Sequence[Any], unscale: Callable[[list[Any]], None], is_boundary: bool) -> None:
        """Unscale gradients, or look for non-finite ones, unless that was done since the last backward pass."""
        attempts = self._attempts
        for given in optimizers:
            optimizer = next((own for own in attempts.optimizers() if given is own.optimizer), given)
            inner = optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
            if attempts.scaler_turn.is_unscaled(inner, attempts.passes.count):
                continue
            scaler = getattr(optimizer, "scaler_in_use", None)
            if scaler is None or scaler is not attempts.guard:
                unscale([optimizer])
            elif is_boundary:
                attempts.guard.unscale_(inner)
            else:
                continue
            if scaler is not None:
                attempts.scaler_turn.was_unscaled(scaler, inner, attempts.passes.count)
