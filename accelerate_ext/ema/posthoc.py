"""Averages whose length is chosen after training: power-function profiles, and snapshots of them.

Example:
    ema = PostHocEMA(model, sigma_rel=(0.05, 0.10))
    for batch in loader:
        ...
        ema.update(accelerator.applied_step)
        if accelerator.applied_step % 1000 == 0:
            ema.snapshot("snapshots")
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..arguments import check_switches
from . import distributed
from .average import Average
from .clock import Reading
from .dtypes import dtype_of, name_of
from .header import SnapshotError
from .parameters import Model
from .plan import Plan, distinct_widths
from .profile import gamma_from_sigma_rel
from .publication import Publication, wait_for_folder
from .snapshot import FORMAT, Snapshot
from .snapshot_folder import Owner, claim, file_name
from .snapshot_writer import Job, start_snapshots
from .weighting import PowerWeighting


class PostHocEMA(Average):
    """Averages with power-function profiles, from whose snapshots any other averaging length can be built afterwards.

    Args:
        sigma_rel: widths of the averages, as fractions of training; one or several, at most 0.2887 each. Taken from
            the plan unless given.
        plan: when to write snapshots; `update` then writes them into `directory`, and needs a `t` on the host. Its
            first call makes the folder, or raises SnapshotError for one that holds snapshots of another run. Beyond
            the plan's last time nothing is written, which is said once.
        set_aside: with a plan, move snapshots of other runs to `set-aside` in the folder, where they are refused else.
        wait: with a plan, whether `update` waits until a snapshot is on the disk. If not, it returns when the averages
            are copied, and what goes wrong later is raised by a later `update`; see `snapshot`.
        snapshot_dtype: of the snapshots: float32, bfloat16 or float16. That of the plan unless given, else float32.
        run: identity of the run, by which its snapshots are known; made up unless given, and kept by `state_dict`.
    Source: arXiv:2312.02696.
    """

    def __init__(
        self,
        model: Model,
        sigma_rel: float | Iterable[float] | None = None,
        *,
        plan: Plan | None = None,
        directory: str | os.PathLike[str] | None = None,
        set_aside: bool = False,
        wait: bool = True,
        snapshot_dtype: torch.dtype | str | None = None,
        run: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include_frozen: bool = False,
    ):
        if plan is not None and not isinstance(plan, Plan):
            raise TypeError(f"`plan` must be what `accelerate_ext.ema.plan()` returns, got {type(plan).__name__}")
        self.sigma_rel = _widths(sigma_rel, plan)
        if (plan is None) != (directory is None):
            raise ValueError("`plan` and `directory` go together: when snapshots are written, and where")
        self.gamma = tuple(gamma_from_sigma_rel(width) for width in self.sigma_rel)
        super().__init__(model, PowerWeighting(self.gamma), dtype=dtype, device=device, include_frozen=include_frozen)
        self._plan, self._directory = plan, None if directory is None else Path(directory)
        check_switches(set_aside=set_aside, wait=wait)
        self._set_aside, self._wait = set_aside, wait
        self._in_flight: Publication | None = None
        self._snapshot_dtype = dtype_of(snapshot_dtype or ("float32" if plan is None else plan.dtype))
        self.run = run or secrets.token_hex(8)
        if self.parameters.is_sharded:
            self.run = distributed.from_first(self.run)
        self._reached = 0
        self._claimed: set[Path] = set()
        self._may_outlast_plan = plan is not None

    def averages(self, sigma_rel: float | None = None) -> dict[str, torch.Tensor]:
        if sigma_rel is not None and sigma_rel not in self.sigma_rel:
            raise ValueError(
                f"`sigma_rel` must be one of {self.sigma_rel}, got {sigma_rel}; others are built afterwards"
            )
        return self._storage.averages(0 if sigma_rel is None else self.sigma_rel.index(sigma_rel))

    def update(self, t: int | torch.Tensor, *, n: int | torch.Tensor | None = None) -> None:
        if self._plan is None:
            return super().update(t, n=n)
        if isinstance(t, torch.Tensor):
            raise TypeError("a plan needs `t` as an int: whether to write a file is decided on the host")
        if self._in_flight is not None and self._in_flight.has_failed and not self.parameters.is_sharded:
            self.wait_for_snapshots()  # tell now; where the other processes must be told, at the next planned time
        before = self.t
        super().update(t, n=n)
        if self._directory is not None and self.t > 0:
            self._claim(self._directory, self._set_aside)  # a folder that is in use is told now, not hours later
            if self._plan.is_due(before, self.t):
                self.snapshot(self._directory, wait=self._wait)
            elif self._may_outlast_plan and self._plan.times[-1] <= before < self.t:
                self._may_outlast_plan = False
                if distributed.rank() == 0:
                    warnings.warn(_outlasted(self._plan, self.t), stacklevel=2)
        return None

    update.__doc__ = Average.update.__doc__

    def snapshot(
        self,
        directory: str | os.PathLike[str],
        *,
        dtype: torch.dtype | str | None = None,
        sharded: bool = False,
        set_aside: bool = False,
        wait: bool = True,
    ) -> list[Path]:
        """Write the averages as they are now, one file each, whole or not at all; what is there already stays.

        Files have their names, which are returned, once they are on the disk. Without `wait` that comes later, and
        what goes wrong on the way is raised, with the file's name, by `wait_for_snapshots`, which the next snapshot,
        `state_dict` and `load_state_dict` call first. A process that ends waits too, and says it; one that is killed
        leaves no part of them.

        The folder must be this run's. Snapshots of it from after the state that was loaded last are moved to its
        sub-folder `set-aside`. Of a sharded model every process must call this; of others the first process writes.

        Args:
            dtype: float32, bfloat16 or float16; that of `snapshot_dtype` unless given.
            sharded: of a sharded model, each process writes its own parts; else the first one gathers and writes.
            set_aside: move snapshots of other runs, widths or parameters out of the way, where they are refused else.
            wait: return when all is on the disk; else when the averages are copied, and training may change them.
        Raises: SnapshotError naming files in the way, or averages that hold NaN; OSError when there is no space.
        """
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"`directory` must name a folder, got {directory!r}")
        check_switches(sharded=sharded, set_aside=set_aside, wait=wait)
        kept, directory = dtype_of(dtype or self._snapshot_dtype), Path(directory)
        self.wait_for_snapshots()
        wait_for_folder(directory)  # of another object, such as the one that this one was copied from
        now = self._catch_up()
        self._claim(directory, set_aside)
        is_parted = sharded and self.parameters.is_sharded
        world = distributed.world_size() if is_parted else 1
        firsts = [directory / file_name(now.now, s, 0 if is_parted else None, world) for s in self.sigma_rel]
        missing = self._missing(firsts, kept)
        jobs = [self._job(directory, index, now, world if is_parted else None) for index in missing]
        if jobs:
            self._in_flight = start_snapshots(self.parameters, jobs, kept, is_parted, early=wait)
        if wait:
            self.wait_for_snapshots()
        return firsts

    def wait_for_snapshots(self) -> None:
        """Wait until the snapshot under way, if there is one, is on the disk under its names.

        Of a sharded model every process must call this.
        Raises: OSError naming the file and what went wrong, once; nothing is left of that snapshot then.
        """
        if self._in_flight is not None:
            self._in_flight.wait()  # may be interrupted, and called again
            in_flight, self._in_flight = self._in_flight, None
            in_flight.finish()

    def _catch_up(self) -> Reading:
        """The averages brought up to the last step seen, where a long run keeps them a few steps behind."""
        if self._stored is not None:
            raise RuntimeError("the model holds lent weights: call `restore` before a snapshot")
        self._look()
        if (move := self._clock.flush()) is not None:
            self._storage.move(move)
        now = self._clock.read()
        if now.now == 0:
            raise ValueError(
                "there is nothing to write before the first applied update: call `update(t)` with t above 0"
            )
        return now

    def _claim(self, directory: Path, set_aside: bool) -> None:
        if directory.absolute() in self._claimed:
            return
        wait_for_folder(directory)
        owner = Owner(self.run, self.sigma_rel, self.parameters.digest, self._clock.read().unit or "updates")
        error: Exception | None = None
        if distributed.rank() == 0:
            try:
                claim(directory, owner, self._reached, set_aside)
            except Exception as caught:
                error = caught
        if self.parameters.is_sharded and (errors := distributed.all_errors(error)) and error is None:
            raise SnapshotError("; ".join(errors))
        if error is not None:
            raise error
        self._claimed.add(directory.absolute())

    def _missing(self, paths: list[Path], dtype: torch.dtype) -> list[int]:
        """Which averages are not there yet, the same on all processes of a sharded model."""
        missing, others = [], []
        for index, path in enumerate(paths):
            if not path.exists():
                missing.append(index)
                continue
            held = Snapshot.read(path)
            if held.run != self.run:
                others.append(
                    f"{path} exists already, of the run {held.run!r}, this is {self.run!r}; it was not overwritten: "
                    "give each run a folder of its own"
                )
            elif held.dtype != name_of(dtype):
                others.append(f"{path} exists already, in {held.dtype}; it was not overwritten")
        if self.parameters.is_sharded:
            missing, others = distributed.from_first((missing, others))
        if others:
            raise SnapshotError("; ".join(others))
        return missing

    def _job(self, directory: Path, index: int, now: Reading, world: int | None) -> Job:
        width = self.sigma_rel[index]
        rank = None if world is None else distributed.rank()
        metadata = {
            "format": "pt",
            "snapshot_format": FORMAT,
            "t": str(now.now),
            "unit": now.unit or "updates",
            "step": str(now.step),
            "sigma_rel": f"{width:.17g}",
            "gamma": f"{self.gamma[index]:.17g}",
            "run": self.run,
        }
        return Job(directory / file_name(now.now, width, rank, world or 1), self._storage.averages(index), metadata)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no snapshot under way."""
        return self.__dict__ | {"_in_flight": None}

    def state_dict(self) -> dict[str, Any]:
        self.wait_for_snapshots()  # a checkpoint must not lie after a snapshot that never comes to be
        return super().state_dict() | {"run": self.run}

    state_dict.__doc__ = Average.state_dict.__doc__

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, as the same run; later snapshots no longer belong to it.

        Raises: ValueError saying all that differs; nothing is loaded then.
        """
        self.wait_for_snapshots()
        super().load_state_dict(state)
        self.run = state.get("run", self.run)
        self._reached = self.t
        self._claimed.clear()

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"sigma_rel": list(self.sigma_rel)}


def _outlasted(plan: Plan, t: int) -> str:
    return (
        f"the plan ends at {plan.times[-1]} and training goes on, to {t} so far: no snapshot is written from here on, "
        f"and no average can be built that ends later than {plan.times[-1]}. Call `snapshot` at the end of the run, "
        "and make the plan of the next run for all of its updates"
    )


def _widths(sigma_rel: float | Iterable[float] | None, plan: Plan | None) -> tuple[float, ...]:
    if sigma_rel is None:
        sigma_rel = (0.05, 0.10) if plan is None else plan.sigma_rel
    return distinct_widths(sigma_rel)
