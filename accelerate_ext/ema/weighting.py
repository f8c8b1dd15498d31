"""How much of the model goes into an average at an update that covers any number of steps, on the host or a device.

A weighting answers three questions about the step that an average has seen and the step that it is told: is it time to
move, and how; the same without asking the device (`on_device`), where the answers are tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Protocol

import numpy as np
import torch

from . import profile

NUM_BLOCKS = 32_768
"""In float32, a power-function average stands still when it moves by too little at once. It moves at most this many
times in a span of t, which costs nothing: one update that covers k steps has the weight of k updates."""
GOLDEN = 0.6180339887498949
NUM_STRATA = 4_096


@dataclass(frozen=True)
class Move:
    """One update of all averages.

    weights: of the model in each average, floats or a tensor (A,) of float64.
    dither: what is added to the averages, in units of their last place, between -0.5 and 0.5: so that moves of less
        than that are lost in none of them, and on the mean are right.
    """

    weights: Sequence[float] | torch.Tensor
    dither: float | torch.Tensor


class Weighting(Protocol):
    """What an average needs to know of its profile."""

    @property
    def num_averages(self) -> int:
        """How many averages the weighting is for."""

    def is_due(self, last: int, now: int) -> bool:
        """Whether the averages move at `now`, when `last` is the step they have seen."""

    def move(self, last: int, now: int) -> Move:
        """How the averages take in the steps after `last` up to `now`."""

    def on_device(self, last: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, Move]:
        """`is_due` () and `move`, with weights of 0 where it is not."""


@dataclass(frozen=True)
class PowerWeighting:
    """Power-function profiles with the exponents `gammas`. Source: arXiv:2312.02696, section 3.1."""

    gammas: tuple[float, ...]

    @property
    def num_averages(self) -> int:
        return len(self.gammas)

    def is_due(self, last: int, now: int) -> bool:
        return now - last >= max(1, now // NUM_BLOCKS)

    def move(self, last: int, now: int) -> Move:
        block = now // NUM_BLOCKS
        dither = (now // block * GOLDEN) % 1 - 0.5 if block > 1 else 0.0
        return Move([profile.new_weight(gamma, last, now) for gamma in self.gammas], dither)

    def on_device(self, last: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, Move]:
        covered, block = now - last, torch.clamp(now // NUM_BLOCKS, min=1)
        due = covered >= block
        dither = torch.where(block > 1, ((now // block).to(_float(now)) * GOLDEN) % 1 - 0.5, 0.0)
        fraction = covered.to(_float(now)) / torch.clamp(now, min=1)
        kept = torch.log1p(-fraction)
        weights = torch.stack([-torch.expm1((gamma + 1) * kept) for gamma in self.gammas])
        return due, Move(torch.where(due, weights, torch.zeros_like(weights)), dither)


@dataclass(frozen=True)
class DecayWeighting:
    """A constant decay, or one that warms up, by the argument names of Diffusers' EMAModel.

    use_ema_warmup: None for a constant decay; True for 1 - (1 + step / inv_gamma)^-power; False for the growth that
    EMAModel has without its warm-up, (1 + step) / (10 + step). All are held between min_decay and decay. Steps count
    from update_after_step + 1, up to which the average is a copy of the model.
    """

    decay: float = 0.9999
    min_decay: float = 0.0
    update_after_step: int = 0
    use_ema_warmup: bool | None = None
    inv_gamma: float = 1.0
    power: float = 2 / 3
    num_averages: ClassVar[int] = 1

    def __post_init__(self) -> None:
        numbers = {
            name: getattr(self, name) for name in ("decay", "min_decay", "update_after_step", "inv_gamma", "power")
        }
        if strange := [f"`{name}` ({value!r})" for name, value in numbers.items() if not isinstance(value, Real)]:
            raise TypeError(f"these must be numbers: {', '.join(strange)}")
        if self.use_ema_warmup not in (None, True, False):
            raise TypeError(f"`use_ema_warmup` must be None, True or False, got {self.use_ema_warmup!r}")
        wrong = []
        if not 0 <= self.decay <= 1:
            wrong.append(f"`decay` must lie between 0 and 1, got {self.decay}")
        if not 0 <= self.min_decay <= 1:
            wrong.append(f"`min_decay` must lie between 0 and 1, got {self.min_decay}")
        if not (0 <= self.update_after_step < math.inf and int(self.update_after_step) == self.update_after_step):
            wrong.append(f"`update_after_step` must be a step, 0 or more, got {self.update_after_step}")
        if not self.inv_gamma > 0 or not self.power > 0:
            wrong.append(f"`inv_gamma` and `power` must be above 0, got {self.inv_gamma} and {self.power}")
        if wrong:
            raise ValueError("; ".join(wrong))

    def decay_at(self, step: float) -> float:
        """What the average is multiplied by at applied step `step`, or between two steps."""
        since = step - self.update_after_step - 1
        if since <= 0:
            return 0.0
        if self.use_ema_warmup is None:
            wanted = self.decay
        elif self.use_ema_warmup:
            wanted = 1 - (1 + since / self.inv_gamma) ** -self.power
        else:
            wanted = (1 + since) / (10 + since)
        return max(min(wanted, self.decay), self.min_decay)

    def is_due(self, last: int, now: int) -> bool:
        return now > last

    def move(self, last: int, now: int) -> Move:
        return Move([self._new_weight(last, now)], 0.0)

    def _new_weight(self, last: int, now: int) -> float:
        if now - last == 1:
            return 1 - self.decay_at(now)
        if last <= self.update_after_step:
            return 1.0
        num = min(now - last, NUM_STRATA)
        width = (now - last) / num
        decays = [self.decay_at(last + (index + 0.5) * width + 0.5) for index in range(num)]
        if min(decays) <= 0:
            return 1.0
        return -math.expm1(width * float(np.sum(np.log(decays))))

    def on_device(self, last: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, Move]:
        due, dtype = now > last, _float(now)
        num = torch.clamp(now - last, max=NUM_STRATA)
        width = (now - last).to(dtype) / num
        index = torch.arange(NUM_STRATA, device=now.device, dtype=dtype)
        since = last + (index + 0.5) * width - (self.update_after_step + 0.5)
        decays = self._decays(since)
        total = (torch.where(index < num, torch.log(decays), torch.zeros_like(decays)) * width).sum()
        single = 1 - decays[0]
        weight = torch.where(now - last == 1, single, -torch.expm1(total))
        weight = torch.where(last <= self.update_after_step, torch.ones_like(weight), weight)
        return due, Move(torch.where(due, weight, torch.zeros_like(weight)).reshape(1), torch.zeros_like(weight))

    def _decays(self, since: torch.Tensor) -> torch.Tensor:
        if self.use_ema_warmup is None:
            wanted = torch.full_like(since, self.decay)
        elif self.use_ema_warmup:
            wanted = 1 - (1 + since / self.inv_gamma) ** -self.power
        else:
            wanted = (1 + since) / (10 + since)
        return torch.clamp(torch.clamp(wanted, max=self.decay), min=self.min_decay)


def _float(like: torch.Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64  # MPS has no float64
