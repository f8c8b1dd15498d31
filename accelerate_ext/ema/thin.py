"""Making a folder of snapshots smaller, while what can be built from it keeps a stated error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .fit import fit
from .header import SnapshotError
from .profile import MAX_SIGMA_REL, gamma_from_sigma_rel
from .snapshot import Snapshot, list_snapshots

NUM_WANTED = 13


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

    Args:
        max_error: go on as long as the expected error, as a fraction of the distance from the model's own weights,
            stays at or below this.
        keep: go on down to this number of files (a snapshot of two averages counts as two).
        wanted: smallest and largest width that will be asked for.
        dry_run: only say what would be removed.
    Raises: ValueError unless `max_error` or `keep` is given, or if more than `max_error` is expected already;
        SnapshotError if the folder holds no snapshots, or those of several runs.
    """
    _check(max_error, keep, wanted)
    found = _snapshots_of_one_run(Path(directory))
    widths = [gamma_from_sigma_rel(float(width)) for width in np.geomspace(*wanted, NUM_WANTED)]
    kept, before = list(found), _worst_error(found, widths)
    if max_error is not None and before > max_error:
        raise ValueError(
            f"all {len(found)} snapshots in {directory} give an expected error of {before:.2g} over {wanted}, above "
            f"max_error={max_error:g} already; nothing was removed"
        )
    removed, after = [], before
    while keep is None or len(kept) > keep:
        error, candidate = _least_missed(kept, widths)
        if candidate is None or (max_error is not None and error > max_error):
            break
        kept.remove(candidate)
        removed.append(candidate)
        after = error
    paths = [
        path for snapshot in removed for path in reversed(snapshot.paths)
    ]  # the file that a set is listed by last
    size = sum(path.stat().st_size for path in paths)
    for path in [] if dry_run else paths:
        path.unlink()
    return Thinning(tuple(removed), tuple(kept), before, after, size)


def _check(max_error: float | None, keep: int | None, wanted: tuple[float, float]) -> None:
    if (max_error is None) == (keep is None):
        raise ValueError(f"give either `max_error` or `keep`, got max_error={max_error} and keep={keep}")
    if not 0 < wanted[0] <= wanted[1] <= MAX_SIGMA_REL:
        raise ValueError(f"`wanted` must be two rising widths in (0, {MAX_SIGMA_REL:.4f}], got {wanted}")


def _snapshots_of_one_run(directory: Path) -> list[Snapshot]:
    found = list_snapshots(directory)
    if not found:
        raise SnapshotError(f"{directory} holds no snapshots; thinning removes nothing else")
    runs = sorted({(snapshot.run, snapshot.unit) for snapshot in found})
    if len(runs) > 1:
        listed = ", ".join(f"{run} ({unit})" for run, unit in runs)
        raise SnapshotError(f"{directory} holds snapshots of several runs: {listed}; thin a folder of one run")
    return found


def _least_missed(kept: Sequence[Snapshot], widths: Sequence[float]) -> tuple[float, Snapshot | None]:
    last = kept[-1].t
    errors = [
        (_worst_error([*kept[:index], *kept[index + 1 :]], widths), index)
        for index, snapshot in enumerate(kept)
        if snapshot.t < last
    ]
    if not errors:
        return 0.0, None
    error, index = min(errors)
    return error, kept[index]


def _worst_error(kept: Sequence[Snapshot], widths: Sequence[float]) -> float:
    """Largest expected error of what is built at the last time."""
    t, gamma = [snapshot.t for snapshot in kept], [snapshot.gamma for snapshot in kept]
    return float(fit(t, gamma, [kept[-1].t] * len(widths), widths).predicted_error.max())
