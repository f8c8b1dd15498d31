"""The folder of a run's snapshots: what may be there when another one is written, and what has to move aside."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .header import SnapshotError
from .snapshot import NAME, Snapshot, shard_paths

log = logging.getLogger(__name__)

SET_ASIDE = "set-aside"


@dataclass(frozen=True)
class Owner:
    """What all snapshots in a folder must agree on."""

    run: str
    sigma_rel: tuple[float, ...]
    parameter_set: str
    unit: str


def file_name(t: int, sigma_rel: float, rank: int | None = None, world: int = 1) -> str:
    """Name of the snapshot of an average; of one rank's part of it if a rank is given."""
    part = "" if rank is None else f".rank{rank:05d}-of-{world:05d}"
    return f"{t:012d}-{sigma_rel:.6f}{part}.safetensors"


def claim(directory: Path, owner: Owner, reached: int, set_aside: bool = False) -> list[Path]:
    """Make a folder ready for snapshots of `owner`, whose averages continue from time `reached`.

    Snapshots of the same run from later than that are of a course that was given up: they move to the sub-folder
    `set-aside/<number>/`, as does everything that does not belong to the owner if `set_aside`. Left-over temporary
    files go. Returns where files were moved to.

    Raises: SnapshotError naming every file that is of another run, width or parameter set, or is damaged.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"snapshots need a folder, {directory} is a file")
    directory.mkdir(parents=True, exist_ok=True)
    later, strange = _in_the_way(directory, owner, reached)
    if strange and not set_aside:
        listed = "\n  ".join(f"{path}: {reason}" for path, reason in strange.items())
        raise SnapshotError(
            f"{directory} holds snapshots that must not mix with those of this run. Use another folder, or "
            f"set_aside=True to move them to {SET_ASIDE}/:\n  {listed}"
        )
    remove_leftovers(directory)
    moved = move_aside(directory, [*later, *strange])
    if later:
        text = "%s: %d files from after t = %d, or without those of other ranks; moved to %s"
        log.warning(text, directory, len(later), reached, moved[0].parent)
    return moved


def _in_the_way(directory: Path, owner: Owner, reached: int) -> tuple[list[Path], dict[Path, str]]:
    """Files of a course that was given up; and files that do not belong here, each with the reason."""
    later, strange = [], {}
    for path in sorted(directory.iterdir()):
        if not NAME.fullmatch(path.name):
            continue
        if not all(part.exists() for part in shard_paths(path)):  # ranks were killed between their renames
            later.append(path)
            continue
        try:
            reason = _differs(_one_file(path), owner)
        except SnapshotError as error:
            reason = str(error).removeprefix(f"{path} ")
        if reason is not None:
            strange[path] = reason
        elif int(path.name.split("-")[0]) > reached:
            later.append(path)
    return later, strange


def move_aside(directory: Path, paths: Iterable[Path]) -> list[Path]:
    """Move files to the next free `set-aside/<number>/`. Returns their new places."""
    paths = list(paths)
    if not paths:
        return []
    parent = directory / SET_ASIDE
    parent.mkdir(exist_ok=True)
    number = 1 + max((int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()), default=0)
    target = parent / str(number)
    target.mkdir()
    return [path.rename(target / path.name) for path in paths]


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files of writers that are no longer there (killed in the middle)."""
    for path in directory.glob(".*.safetensors.*.tmp"):
        writer = path.name.split(".")[-2]
        if writer.isdecimal() and not _is_alive(int(writer)):
            path.unlink(missing_ok=True)


def _one_file(path: Path) -> Snapshot:
    return Snapshot.read_file(path, (path,)) if len(shard_paths(path)) > 1 else Snapshot.read(path)


def _differs(snapshot: Snapshot, owner: Owner) -> str | None:
    if snapshot.run != owner.run:
        return f"of the run {snapshot.run!r}, this is {owner.run!r}"
    if snapshot.sigma_rel not in owner.sigma_rel:
        return f"sigma_rel {snapshot.sigma_rel:g}, this run keeps {', '.join(f'{s:g}' for s in owner.sigma_rel)}"
    if snapshot.parameter_set != owner.parameter_set:
        return "other averaged parameters (names or shapes) than this model has"
    if snapshot.unit != owner.unit:
        return f"its t counts {snapshot.unit}, this run counts {owner.unit}"
    return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
