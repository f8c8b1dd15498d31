"""Making a folder of snapshots smaller, while what can be built from it keeps a stated error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..arguments import number_problem, whole
from .fit import fit
from .header import SnapshotError
from .inputs import source_of
from .motion import Motion, measure_motion
from .plan import range_problem, wanted_widths
from .prepare import allow_open_files, check_same_model
from .profile import Array, gamma_from_sigma_rel
from .snapshot import Snapshot, list_snapshots


@dataclass(frozen=True)
class Thinning:
    """Which snapshots go and which stay, and the largest expected error over the wanted range before and after."""

    removed: tuple[Snapshot, ...]
    kept: tuple[Snapshot, ...]
    error_before: float
    error_after: float
    num_bytes: int
    """Space on disk that the removed ones take, or took."""


def thin(
    directory: str | os.PathLike[str],
    *,
    max_error: float | None = None,
    keep: int | None = None,
    wanted: tuple[float, float] = (0.02, 0.25),
    dry_run: bool = False,
) -> Thinning:
    """Remove the snapshots that are missed least, one average at one time after another.

    Each time that one goes whose loss raises the largest expected error over the wanted range least, for an average
    that ends at the last snapshot; those of the last time stay. The first ones carry the wide averages, the last ones
    the narrow ones, so that it is the middle that gets thinner.

    The expected errors are those that `reconstruct` tells: by how the stored averages show the weights to move, and
    with the rounding of 16 bits.

    Args:
        max_error: go on as long as the expected error, as a fraction of the distance from the model's own weights,
            stays at or below this.
        keep: go on down to this number of files (a snapshot of two averages counts as two).
        wanted: smallest and largest width that will be asked for.
        dry_run: only say what would be removed.
    Raises: ValueError unless `max_error` or `keep` is given, or if more than `max_error` is expected already;
        SnapshotError if the folder holds no snapshots, or those of several runs or models.
    """
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"there is no folder {directory}")
    keep = _checked(max_error, keep, wanted)
    found = _snapshots_of_one_run(Path(directory))
    expected = _Expected.of(found, wanted)
    kept = list(range(len(found)))
    before = expected.worst_error(kept)
    if max_error is not None and before > max_error:
        raise ValueError(
            f"all {len(found)} snapshots in {directory} give an expected error of {before:.2g} over {wanted}, above "
            f"max_error={max_error:g} already; nothing was removed"
        )
    removed, after = expected.thinned(kept, keep, max_error)
    gone = tuple(found[index] for index in removed)
    paths = [path for snapshot in gone for path in reversed(snapshot.paths)]  # the file that a set is listed by last
    size = sum(path.stat().st_size for path in paths)
    for path in [] if dry_run else paths:
        path.unlink()
    return Thinning(gone, tuple(found[index] for index in kept), before, after, size)


def _checked(max_error: object, keep: object, wanted: object) -> int | None:
    if (max_error is None) == (keep is None):
        raise ValueError(f"give either `max_error` or `keep`, got max_error={max_error} and keep={keep}")
    wrong = [range_problem(wanted), None if max_error is None else number_problem("max_error", max_error)]
    if said := [problem for problem in wrong if problem]:
        raise ValueError("; ".join(said))
    return None if keep is None else whole("keep", keep, 1)


def _snapshots_of_one_run(directory: Path) -> list[Snapshot]:
    found = list_snapshots(directory)
    if not found:
        raise SnapshotError(f"{directory} holds no snapshots; thinning removes nothing else")
    runs = sorted({(snapshot.run, snapshot.unit) for snapshot in found})
    if len(runs) > 1:
        listed = ", ".join(f"{run} ({unit})" for run, unit in runs)
        raise SnapshotError(f"{directory} holds snapshots of several runs: {listed}; thin a folder of one run")
    return found


@dataclass(frozen=True)
class _Expected:
    """What to expect of averages that end at the last snapshot, built from any choice of the snapshots.

    Shapes: t, gamma (I,); widths (O,), as gammas.
    """

    t: Array
    gamma: Array
    widths: Array
    motion: Motion

    @classmethod
    def of(cls, found: Sequence[Snapshot], wanted: tuple[float, float]) -> _Expected:
        """As the snapshots themselves tell of the run: its pace, and what their rounding is compared with."""
        sources = [source_of(snapshot) for snapshot in found]
        with contextlib.ExitStack() as stack:
            allow_open_files(sum(len(source.files) for source in sources))
            readers = [stack.enter_context(contextlib.closing(source.open())) for source in sources]
            names, _ = check_same_model(sources, readers)
            motion = measure_motion(sources, readers, names)
        t, gamma = (np.array([getattr(source, field) for source in sources]) for field in ("t", "gamma"))
        return cls(t, gamma, np.array([gamma_from_sigma_rel(width) for width in wanted_widths(wanted)]), motion)

    def worst_error(self, kept: Sequence[int]) -> float:
        """The largest expected error over the wanted range."""
        at, end, motion = list(kept), np.full(len(self.widths), self.t[-1]), self.motion
        made = fit(
            self.t[at],
            self.gamma[at],
            end,
            self.widths,
            noise=motion.noise[at],
            pace=motion.pace,
        )
        return float(made.predicted_error.max())

    def thinned(self, kept: list[int], keep: int | None, max_error: float | None) -> tuple[list[int], float]:
        """Takes out of `kept` what may go, and gives that in its order, with the largest error that is left."""
        removed, after = [], self.worst_error(kept)
        while keep is None or len(kept) > keep:
            error, candidate = self._least_missed(kept)
            if candidate is None or (max_error is not None and not error <= max_error):
                break
            kept.remove(candidate)
            removed.append(candidate)
            after = error
        return removed, after

    def _least_missed(self, kept: Sequence[int]) -> tuple[float, int | None]:
        """The snapshot without which the largest error is smallest, and that error; those of the last time stay."""
        errors = [
            (self.worst_error([other for other in kept if other != index]), index)
            for index in kept
            if self.t[index] < self.t[-1]
        ]
        return min(errors, default=(0.0, None))
