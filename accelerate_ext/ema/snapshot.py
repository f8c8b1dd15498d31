"""Snapshots of averages on disk: the format, and reading it.

A snapshot is one safetensors file an average, with the model's own tensor names, so that it loads as a model anywhere.
Averaged parameters hold the average; frozen parameters and buffers are copied as they stood (listed under `copied`);
a tied parameter is stored once, under its first name (the others are listed under `tied`).

File names, in one folder a run:

    <t:012d>-<sigma_rel:.6f>.safetensors                             whole tensors
    <t:012d>-<sigma_rel:.6f>.rank<r:05d>-of-<w:05d>.safetensors      the shards of one rank; all w make a snapshot

Metadata, all strings:

    format           "pt", without which Transformers and Accelerate load no file
    snapshot_format  "accelerate_ext.ema/1"
    t                the clock of the averages: applied updates, or images where the run counts images
    unit             "updates" or "images"
    step             applied updates, whatever the unit
    sigma_rel        17 significant digits
    gamma            17 significant digits
    run              identity of the run, the same after a resume
    parameter_set    hash of names and shapes of the averaged parameters
    dtype            "float32", "bfloat16" or "float16": that of the averaged parameters
    rounding_error   what the cast to dtype cost: root mean square of the change over root mean square of the values
    copied           JSON list of names that are copies, not averages
    tied             JSON object, other name -> the name it is stored under
    DCP_SHARDING_INFO  sharded files only: where each part begins in its tensor, as torch.distributed.checkpoint's
                     Hugging Face storage writes and reads it; a tensor that no process shares is in the first file

Other files in the folder (`set-aside/`, names that start with a dot) are not snapshots. A file is written under a
name that starts with a dot, synchronised, and renamed: what has a snapshot's name is whole.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .header import Header, SnapshotError, read_header
from .publication import wait_for_folder
from .readers import FileReader

FORMAT = "accelerate_ext.ema/1"
NAME = re.compile(r"(?P<t>\d{12,})-(?P<sigma_rel>\d\.\d{6})(\.rank(?P<rank>\d{5})-of-(?P<world>\d{5}))?\.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """One average at one time, as its header states it. Nothing but the header has been read.

    Units: `t` counts applied updates or images (`unit`); `step` always counts applied updates.
    """

    path: Path
    t: int
    gamma: float
    sigma_rel: float
    run: str
    parameter_set: str
    dtype: str
    rounding_error: float
    unit: str = "updates"
    step: int = 0
    copied: frozenset[str] = frozenset()
    tied: dict[str, str] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    header: Header | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Snapshot:
        """The snapshot in one file; for a file of shards, the whole set that it belongs to.

        Raises: SnapshotError naming the file if it is cut short, is not ours, or other ranks' files are missing.
        """
        path = Path(path)
        paths = shard_paths(path)
        if missing := [str(part) for part in paths if not part.exists()]:
            raise SnapshotError(f"{path} is one rank's part of a snapshot; also needed: {', '.join(missing)}")
        return cls.read_file(path, paths)

    @classmethod
    def read_file(cls, path: Path, paths: tuple[Path, ...]) -> Snapshot:
        """As `read`, by the header of the first of `paths`, without looking for other ranks' files."""
        header = read_header(paths[0])
        metadata = header.metadata
        if metadata.get("snapshot_format") != FORMAT:
            found = metadata.get("snapshot_format", "none")
            raise SnapshotError(f"{path} must have {FORMAT!r} as snapshot_format in its metadata, found {found!r}")
        try:
            return cls(
                path=paths[0],
                t=int(metadata["t"]),
                gamma=float(metadata["gamma"]),
                sigma_rel=float(metadata["sigma_rel"]),
                run=metadata["run"],
                parameter_set=metadata["parameter_set"],
                dtype=metadata["dtype"],
                rounding_error=float(metadata["rounding_error"]),
                unit=metadata["unit"],
                step=int(metadata["step"]),
                copied=frozenset(json.loads(metadata["copied"])),
                tied=json.loads(metadata["tied"]),
                paths=paths,
                header=header,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise SnapshotError(f"{path} lacks or garbles the metadata entry {error}; move it away") from error

    def open(self) -> FileReader:
        """Its tensors, of all ranks' files together, read piece by piece; the caller closes it."""
        return FileReader(self.paths or (self.path,), self.header)


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the snapshot that `path` belongs to, by their names; `path` alone if it is not a rank's part."""
    match = NAME.fullmatch(path.name)
    if match is None or match["world"] is None:
        return (path,)
    stem, world = path.name.split(".rank")[0], int(match["world"])
    return tuple(path.with_name(f"{stem}.rank{rank:05d}-of-{world:05d}.safetensors") for rank in range(world))


def list_snapshots(directory: str | os.PathLike[str]) -> list[Snapshot]:
    """The whole snapshots in a folder, by t and then by sigma_rel. Sets of shards that are not complete are left out.

    Those that this process has under way are waited for.
    Raises: FileNotFoundError if there is no such folder; SnapshotError naming a file that is cut short or not ours.
    """
    directory = Path(directory)
    wait_for_folder(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no folder {directory}")
    first = [
        path for path in sorted(directory.iterdir()) if (m := NAME.fullmatch(path.name)) and not int(m["rank"] or 0)
    ]
    whole = [path for path in first if all(part.exists() for part in shard_paths(path))]
    return sorted((Snapshot.read(path) for path in whole), key=lambda snapshot: (snapshot.t, snapshot.sigma_rel))
