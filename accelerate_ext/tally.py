"""A ledger that can be behind: verdicts that are still on the device reach it later, in order, without waiting."""

from __future__ import annotations

from typing import Any

import torch

from .ledger import Ledger
from .update import Parcel, Verdict, on_one_device, sent, settle_all

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
        self._sent: list[Verdict] = []

    @property
    def attempted(self) -> int:
        """Exact, and costs no synchronisation."""
        return self._ledger.attempted + len(self._waiting) + len(self._sent)

    @property
    def seen_so_far(self) -> Ledger:
        """The counts as far as the host knows them, without synchronising; up to 2 chunks behind."""
        self._count_known()
        return self._ledger

    def record(self, verdict: Verdict) -> None:
        if verdict.is_known and not self._waiting and not self._sent:
            self._ledger.record(verdict.skipped)
            return
        self._waiting.append(verdict)
        self._count_known()
        if len(self._waiting) >= _CHUNK:
            self._receive()
            self._count_known()
            unsent = [verdict for verdict in self._waiting if not verdict.is_known and verdict.parcel is None]
            if unsent:  # another tally may have sent them
                Parcel(unsent)
            self._sent, self._waiting = self._waiting, []

    def read(self) -> Ledger:
        """The exact counts. Fetches verdicts that are still on the device: at most one synchronisation."""
        self._receive()
        unknown = [verdict for verdict in self._waiting if not verdict.is_known]
        if len(unknown) == 1:
            unknown[0].settle(unknown[0].skipped)
        elif unknown:
            settle_all(unknown, on_one_device(unknown).cpu())
        self._count_known()
        return self._ledger

    def applied_on_device(self, device: torch.device) -> torch.Tensor:
        """The number of applied updates as an int64 tensor, without synchronising."""
        pending = [*self._sent, *self._waiting]
        known = sum(verdict.is_known and not verdict.skipped for verdict in pending)
        count = torch.full((), self._ledger.applied + known, dtype=torch.int64, device=device)
        unknown = [verdict for verdict in pending if not verdict.is_known]
        if unknown:
            count += sent((on_one_device(unknown) == 0).sum(), device)
        return count

    def _receive(self) -> None:
        for verdict in self._sent:
            if not verdict.is_known and verdict.parcel is not None:
                verdict.parcel.receive()  # sent a chunk ago
            self._ledger.record(verdict.skipped)
        self._sent = []

    def _count_known(self) -> None:
        if self._sent:
            if not self._sent[-1].is_known or not all(verdict.is_known for verdict in self._sent):
                return
            self._receive()
        while self._waiting and self._waiting[0].is_known:
            self._ledger.record(self._waiting.pop(0).skipped)

    def __getstate__(self) -> dict[str, Any]:
        return {"ledger": self.read().state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._ledger.load_state_dict(state["ledger"])
