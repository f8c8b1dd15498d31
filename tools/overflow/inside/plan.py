"""Which attempts overflow, and how one element of a gradient becomes infinite."""

from __future__ import annotations

import os
import random
import sys
from typing import Any


class Plan:
    """The answer depends on the attempt's number and the seed alone, so every rank and every run gets the same one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.at = frozenset(config.get("at") or ())
        self.rate = float(config.get("rate") or 0.0)
        self.seed = int(config.get("seed") or 0)
        self.rank = config.get("rank")
        self.optimizer = config.get("optimizer")

    @property
    def is_active(self) -> bool:
        """False for the finite control: then nothing is changed at all."""
        return bool(self.at) or self.rate > 0

    def on_every_rank(self) -> Plan:
        return Plan({**vars(self), "rank": None})

    def chooses(self, attempt: int) -> bool:
        if self.rank is not None and int(os.environ.get("RANK", "0")) != self.rank:
            return False
        if attempt in self.at:
            return True
        return self.rate > 0 and random.Random(f"{self.seed}:{attempt}").random() < self.rate

    def means(self, names: set[str]) -> bool:
        """Whether `--optimizer` names this optimizer; True for all without the option."""
        return self.optimizer is None or self.optimizer in names


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def spoil(gradient: Any) -> None:
    """Make the first element infinite, in place."""
    values = gradient._values() if gradient.is_sparse else getattr(gradient, "_local_tensor", gradient)
    values[(0,) * values.ndim] = float("inf")


def spoil_first(optimizer: Any) -> bool:
    """Make one element of the optimizer's gradients infinite; False if it has no gradient."""
    with sys.modules["torch"].no_grad():
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None and parameter.grad.numel():
                spoil(parameter.grad)
                return True
    return False


class SpoiledBackward:
    """While open, the first gradient of these parameters that a backward pass computes gets its infinite element.

    This is before gradients are reduced over ranks, so an overflow of one rank reaches the others as a real one does.
    """

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.handles: list[Any] = []
        self.done = False

    def _hook(self, gradient: Any) -> Any:
        if self.done or not gradient.numel():
            return None
        self.done = True
        spoiled = gradient.clone()
        spoil(spoiled)
        return spoiled

    def __enter__(self) -> SpoiledBackward:
        self.handles = [parameter.register_hook(self._hook) for parameter in self.parameters]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self.handles:
            handle.remove()
