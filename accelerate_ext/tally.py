"""A ledger that can be behind: verdicts that are still on the device reach it later, in order, without waiting."""

from __future__ import annotations

from typing import Any

import torch

from .ledger import Ledger
from .update import Verdict, on_one_device

_CHUNK = 8  # verdicts sent to the host together; one copy in so many updates is lost in the noise


class Tally:
    """Counts verdicts in order.

    Known verdicts are counted at once. Verdicts on the device are sent to the host in chunks by a copy that nobody
    waits for; a chunk is read when the next one is sent, when the device is long past it, so the memory in use is
    bounded and every process sees a verdict after the same number of updates. `read()` fetches what is missing.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._waiting: list[Verdict] = []
        self._sent: _Sent | None = None

    @property
    def attempted(self) -> int:
        """Exact, and costs no synchronisation."""
        return self._ledger.attempted + len(self._waiting) + (len(self._sent.verdicts) if self._sent else 0)

    @property
    def seen_so_far(self) -> Ledger:
        """The counts as far as the host knows them, without synchronising; up to 2 chunks behind."""
        self._count_known()
        return self._ledger

    def record(self, verdict: Verdict) -> None:
        if verdict.is_known and not self._waiting and self._sent is None:
            self._ledger.record(verdict.skipped)
            return
        self._waiting.append(verdict)
        self._count_known()
        if len(self._waiting) >= _CHUNK:
            self._receive()
            self._count_known()
            if self._waiting:
                self._sent, self._waiting = _Sent(self._waiting), []

    def read(self) -> Ledger:
        """The exact counts. Fetches verdicts that are still on the device: at most one synchronisation."""
        self._receive()
        unknown = [verdict for verdict in self._waiting if not verdict.is_known]
        if len(unknown) == 1:
            unknown[0].settle(unknown[0].skipped)
        elif unknown:
            _settle(unknown, on_one_device(unknown).cpu())
        self._count_known()
        return self._ledger

    def applied_on_device(self, device: torch.device) -> torch.Tensor:
        """The number of applied updates as an int64 tensor, without synchronising."""
        pending = [*(self._sent.verdicts if self._sent else ()), *self._waiting]
        known = sum(verdict.is_known and not verdict.skipped for verdict in pending)
        count = torch.full((), self._ledger.applied + known, dtype=torch.int64, device=device)
        unknown = [verdict for verdict in pending if not verdict.is_known]
        if unknown:
            count += (on_one_device(unknown) == 0).sum().to(device, non_blocking=True)
        return count

    def _receive(self) -> None:
        if self._sent is not None:
            sent, self._sent = self._sent, None
            sent.receive()
            for verdict in sent.verdicts:
                self._ledger.record(verdict.skipped)

    def _count_known(self) -> None:
        if self._sent is not None:
            if not all(verdict.is_known for verdict in self._sent.verdicts):
                return
            self._receive()
        while self._waiting and self._waiting[0].is_known:
            self._ledger.record(self._waiting.pop(0).skipped)

    def __getstate__(self) -> dict[str, Any]:
        return {"ledger": self.read().state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._ledger.load_state_dict(state["ledger"])


class _Sent:
    """Verdicts on their way to the host."""

    def __init__(self, verdicts: list[Verdict]) -> None:
        self.verdicts = verdicts
        self._unknown = [verdict for verdict in verdicts if not verdict.is_known]
        flags = on_one_device(self._unknown)
        on_host = flags.device.type == "cpu"
        is_cuda = flags.device.type == "cuda"
        self._host = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=is_cuda)
        self._host.copy_(flags, non_blocking=True)
        self._event = None if on_host else torch.get_device_module(flags.device).Event()
        if self._event is not None:
            self._event.record()

    def receive(self) -> None:
        if all(verdict.is_known for verdict in self._unknown):
            return
        if self._event is not None:
            self._event.synchronize()  # recorded a chunk ago
        _settle(self._unknown, self._host)


def _settle(verdicts: list[Verdict], on_host: torch.Tensor) -> None:
    for verdict, found_inf in zip(verdicts, on_host.tolist(), strict=True):
        verdict.settle(bool(found_inf))
