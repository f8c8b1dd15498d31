"""What became of one update attempt: applied, skipped or not attempted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Verdict:
    """Whether one optimizer step was skipped. The answer may still be on the device; `skipped` fetches it, once."""

    __slots__ = ("_found_inf", "_skipped", "parcel")

    def __init__(self, skipped: bool | None = None, found_inf: torch.Tensor | None = None) -> None:
        self._skipped = skipped
        self._found_inf = found_inf
        self.parcel: Parcel | None = None  # by which the answer is on its way to the host

    @property
    def is_known(self) -> bool:
        """Whether the answer is on the host already, so that asking costs no synchronisation."""
        return self._skipped is not None

    @property
    def skipped(self) -> bool:
        if self._skipped is None:
            assert self._found_inf is not None
            self.settle(bool(self._found_inf.item()))
        return bool(self._skipped)

    @property
    def found_inf(self) -> torch.Tensor | None:
        """The answer on the device, above 0 where the step was skipped; None when it was never there."""
        return self._found_inf

    def settle(self, skipped: bool) -> None:
        """Take an answer that was fetched together with others."""
        self._skipped = skipped
        self._found_inf = self.parcel = None

    @classmethod
    def of_all(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """The verdict of an attempt in which several optimizers stepped: skipped when any of them was."""
        verdicts = list(verdicts)
        if any(verdict.is_known and verdict.skipped for verdict in verdicts):
            return cls(skipped=True)
        unknown = [verdict for verdict in verdicts if not verdict.is_known]
        if not unknown:
            return cls(skipped=False)
        if len(unknown) == 1:
            return unknown[0]
        return cls(found_inf=on_one_device(unknown).sum())


def on_one_device(verdicts: list[Verdict]) -> torch.Tensor:
    """The answers of verdicts that are not known yet, as one tensor of the device of the first. No synchronisation."""
    flags = [verdict.found_inf for verdict in verdicts if verdict.found_inf is not None]
    device = flags[0].device
    if any(flag.dim() or flag.device != device for flag in flags):
        flags = [sent(flag.reshape(()), device) for flag in flags]
    return torch.stack(flags)


def sent(answer: torch.Tensor, device: torch.device) -> torch.Tensor:
    """An answer on another device, which nobody waits for; on the host it would be read before it is there."""
    return answer.to(device, non_blocking=device.type != "cpu")


class Parcel:
    """Answers on their way to the host, by a copy that nobody waits for until `receive()`."""

    def __init__(self, verdicts: list[Verdict]) -> None:
        self._verdicts = verdicts
        flags = on_one_device(verdicts)
        self._host = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=flags.device.type == "cuda")
        self._host.copy_(flags, non_blocking=True)
        self._event = event_on(flags.device) if flags.device.type != "cpu" else None
        for verdict in verdicts:
            verdict.parcel = self

    def receive(self) -> None:
        """Make the answers known. Waits for the copy only, not for what the device was given to do after it."""
        if self._event is not None:
            self._event.synchronize()
        settle_all(self._verdicts, self._host)


def event_on(device: torch.device) -> Any:
    """An event behind what a device was given so far; the stream of the current device may be another one."""
    module = torch.get_device_module(device)
    event = module.Event()
    if hasattr(module, "current_stream"):  # MPS has one stream
        event.record(module.current_stream(device))
    else:
        event.record()
    return event


def settle_all(verdicts: list[Verdict], on_host: torch.Tensor) -> None:
    """Make the answers known from a tensor of the host."""
    for verdict, found_inf in zip(verdicts, on_host.tolist(), strict=True):
        verdict.settle(bool(found_inf))


class Update:
    """One update attempt, as `Accelerator.attempt()` yields it.

    Read it after the optimizer's `step()`, inside the block or after it. On a micro-batch that only accumulates all
    of `attempted`, `applied` and `skipped` are False. With a fused optimizer the first of them to be asked for
    fetches the answer from the device; with any other the answer is on the host already.
    """

    __slots__ = ("_combined", "_verdicts", "_without_step")

    def __init__(self) -> None:
        self._verdicts: list[tuple[object, Verdict]] = []
        self._without_step: tuple[object, ...] | None = None
        self._combined: Verdict | None = None

    @property
    def attempted(self) -> bool:
        """Whether this was an attempt at all: complete gradients were stepped on, or left unused."""
        return bool(self._verdicts) or self._without_step is not None

    @property
    def applied(self) -> bool:
        """Whether every optimizer that stepped changed its weights."""
        return bool(self._verdicts) and not self.verdict.skipped

    @property
    def skipped(self) -> bool:
        """Whether the attempt was lost, dropped by a scaler or by a loop that did not call `step()`."""
        return self.attempted and not self.applied

    @property
    def outcome(self) -> str:
        """ "applied", "skipped" or "not attempted"."""
        if not self.attempted:
            return "not attempted"
        return "applied" if self.applied else "skipped"

    @property
    def verdict(self) -> Verdict:
        """The verdict over all optimizers; only for an attempt."""
        if self._combined is None:
            verdicts = [verdict for _, verdict in self._verdicts]
            self._combined = Verdict.of_all(verdicts) if verdicts else Verdict(skipped=True)
        return self._combined

    @property
    def has_steps(self) -> bool:
        return bool(self._verdicts)

    @property
    def left_out(self) -> tuple[object, ...]:
        """The optimizers whose gradients were complete and on which nobody called `step()`."""
        return self._without_step or ()

    def add(self, optimizer: object, verdict: Verdict) -> None:
        self._verdicts.append((optimizer, verdict))
        self._without_step = self._combined = None

    def close_without_step(self, optimizers: tuple[object, ...]) -> None:
        self._without_step = optimizers
        self._combined = None

    def was_skipped_for(self, optimizer: object) -> bool:
        """Whether this optimizer's last step in this attempt was skipped; False when it made none."""
        for stepped, verdict in reversed(self._verdicts):
            if stepped is optimizer:
                return verdict.skipped
        return any(optimizer is other for other in self.left_out)

    def __repr__(self) -> str:
        if self.attempted and not self.verdict.is_known:
            return "<Update: attempted, the answer is on the device>"
        return f"<Update: {self.outcome}>"
