"""The time of the averages: what they have seen, on the host or on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments import whole
from .weighting import Move, Weighting


@dataclass(frozen=True)
class Reading:
    """Times as numbers. `step` counts applied updates; `now` the same or images.

    `averaged` is the `now` of the averages. It lies behind `now` where a long run moves its averages every few
    updates (see weighting.NUM_BLOCKS).
    """

    step: int = 0
    now: int = 0
    averaged: int = 0
    unit: str | None = None

    @classmethod
    def checked(cls, state: Mapping[str, Any]) -> Reading:
        """A reading from what `Clock.state_dict` gave. Raises: ValueError unless it is that."""
        fields = ("step", "now", "averaged", "unit")
        if not isinstance(state, Mapping) or set(state) != set(fields):
            raise ValueError(f"the clock of a state must have {', '.join(fields)}, got {state!r}")
        step, now, averaged = (whole(field, state[field], 0) for field in fields[:3])
        if averaged > now or state["unit"] not in (None, "updates", "images"):
            raise ValueError(f"the clock of a state must not be ahead of itself, got {state!r}")
        return cls(step, now, averaged, state["unit"])


class Clock:
    """Turns applied steps into weights. Knows the last step, so that one told twice counts once."""

    def __init__(self, weighting: Weighting):
        self._weighting = weighting
        self._host = Reading()
        self._device: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def advance(self, t: int, n: int | None) -> Move | None:
        """How the averages move at applied step t; None if it is not time to.

        Raises: ValueError if t went back, or n is given now and was not before, or the other way round.
        """
        last = self.read()
        if t < last.step:
            raise ValueError(_went_back(f"{last.step}, got {t}"))
        if t == last.step:
            return None
        now = t if n is None else last.now + (t - last.step) * n
        unit = self._check_unit(last, n)
        if not self._weighting.is_due(last.averaged, now):
            self._host = Reading(t, now, last.averaged, unit)
            return None
        move = self._weighting.move(last.averaged, now)
        self._host = Reading(t, now, now, unit)
        return move

    def advance_on_device(self, t: torch.Tensor, n: int | torch.Tensor | None) -> tuple[torch.Tensor, Move]:
        """Whether it is time (), and how the averages move then, on t's device, without waiting for it.

        A t that went back changes nothing, and raises when the clock is read.
        """
        if t.is_floating_point() or t.is_complex() or t.numel() != 1:
            raise TypeError(f"`t` must be a whole number of one element, got {t.dtype} of shape {list(t.shape)}")
        unit = self._check_unit(self._host, n)
        t = t.detach().reshape(()).to(torch.int64)
        step, now, averaged, went_back = self._on(t.device)
        covered = torch.clamp(t - step, min=0)
        went_back = went_back | (t < step)
        step = torch.maximum(step, t)
        now = step.clone() if n is None else now + covered * n
        due, move = self._weighting.on_device(averaged, now)
        self._device = (step, now, torch.where(due, now, averaged), went_back)
        self._host = Reading(unit=unit)
        return due, move

    def flush(self) -> Move | None:
        """The move that brings averages which lie behind up to now; None if they do not."""
        last = self.read()
        if last.averaged == last.now:
            return None
        self._host = Reading(last.step, last.now, last.now, last.unit)
        return self._weighting.move(last.averaged, last.now)

    def read(self) -> Reading:
        """The times as numbers; waits for the device where they are there.

        Raises: ValueError if a step on the device went back.
        """
        if self._device is not None:
            step, now, averaged, went_back = torch.stack(self._device).tolist()
            if went_back:
                raise ValueError(_went_back(f"{step}, and then an earlier one as a tensor"))
            self._host, self._device = Reading(step, now, averaged, self._host.unit), None
        return self._host

    def state_dict(self) -> dict[str, Any]:
        last = self.read()
        return {"step": last.step, "now": last.now, "averaged": last.averaged, "unit": last.unit}

    def set(self, reading: Reading) -> None:
        """Go on from there."""
        self._host, self._device = reading, None

    def _on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        if self._device is None:
            last = self._host
            values = (last.step, last.now, last.averaged, 0)
            step, now, averaged, flag = (torch.full((), value, device=device) for value in values)
            return step, now, averaged, flag.bool()
        return tuple(value.to(device) for value in self._device)

    def _check_unit(self, last: Reading, n: int | torch.Tensor | None) -> str:
        unit = "updates" if n is None else "images"
        if last.unit not in (None, unit):
            raise ValueError(
                f"these averages count {last.unit}: `n` must be given at every update or at none, "
                f"got {'no `n`' if n is None else '`n`'} now"
            )
        return unit


def _went_back(seen: str) -> str:
    return (
        f"`t` must not go back: the averages have seen applied step {seen}. After going back to an older checkpoint, "
        "load the averages' state of that checkpoint too; a counter must go on where it was, not start again"
    )
