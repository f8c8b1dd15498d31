"""Snapshots of averages on disk: the format, and reading it.

A snapshot is one safetensors file an average, with the model's own tensor names, so that it loads as a model anywhere.
Averaged parameters hold the average; frozen parameters and buffers are copied as they stood (listed under `copied`);
a tied parameter is stored once, under its first name (the others are listed under `tied`).

File names, in one folder a run:

    <t:012d>-<sigma_rel:.6f>.safetensors                             whole tensors
    <t:012d>-<sigma_rel:.6f>.rank<r:05d>-of-<w:05d>.safetensors      the shards of one rank; all w make a snapshot

Metadata, all strings:

    format           "accelerate_ext.ema/1"
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
    shards           sharded files only: JSON object, name -> {"shape": of the whole tensor, "offset": of this part}

Other files in the folder (`set-aside/`, names that start with a dot) are not snapshots. A file is written under a
name that starts with a dot, synchronised, and renamed: what has a snapshot's name is whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import torch

from .header import Entry, SnapshotError, read_header

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

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Snapshot:
        """The snapshot in one file; for a file of shards, the whole set that it belongs to.

        Raises: SnapshotError naming the file if it is cut short, is not ours, or other ranks' files are missing.
        """
        path = Path(path)
        paths = shard_paths(path)
        if missing := [str(part) for part in paths if not part.exists()]:
            raise SnapshotError(f"{path} is one rank's part of a snapshot; also needed: {', '.join(missing)}")
        _, metadata = read_header(paths[0])
        if metadata.get("format") != FORMAT:
            found = metadata.get("format", "none")
            raise SnapshotError(
                f"{path} must be a snapshot with the format {FORMAT!r} in its metadata, found {found!r}"
            )
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
            )
        except (KeyError, ValueError, TypeError) as error:
            raise SnapshotError(f"{path} lacks or garbles the metadata entry {error}; remove it") from error

    def open(self) -> SnapshotReader:
        """Memory-mapped access to the tensors; a context manager."""
        return SnapshotReader(self.paths or (self.path,))


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the snapshot that `path` belongs to, by their names; `path` alone if it is not a rank's part."""
    match = NAME.fullmatch(path.name)
    if match is None or match["world"] is None:
        return (path,)
    stem, world = path.name.split(".rank")[0], int(match["world"])
    return tuple(path.with_name(f"{stem}.rank{rank:05d}-of-{world:05d}.safetensors") for rank in range(world))


class SnapshotReader:
    """The tensors of one snapshot, or of any safetensors file, mapped into memory: what is not asked for is not read.

    Example:
        with snapshot.open() as tensors:
            for name in tensors.names:
                mean = tensors.piece(name, 0, 1000).double().mean()
    """

    def __init__(self, paths: tuple[Path, ...]):
        self._stack = contextlib.ExitStack()
        self._parts: dict[str, list[tuple[mmap.mmap, Entry, tuple[int, ...]]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        with contextlib.ExitStack() as opened:
            for path in paths:
                self._add_file(path, opened)
            self._stack = opened.pop_all()
        self._check_covered(paths)

    def _add_file(self, path: Path, opened: contextlib.ExitStack) -> None:
        entries, metadata = read_header(path)
        shards = json.loads(metadata.get("shards", "{}"))
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        opened.callback(_close, mapped)
        for name, entry in entries.items():
            shard = shards.get(name, {"shape": entry.shape, "offset": (0,) * len(entry.shape)})
            self._shapes.setdefault(name, tuple(shard["shape"]))
            self._parts.setdefault(name, []).append((mapped, entry, tuple(shard["offset"])))

    def _check_covered(self, paths: tuple[Path, ...]) -> None:
        for name, parts in self._parts.items():
            held, needed = sum(math.prod(entry.shape) for _, entry, _ in parts), math.prod(self._shapes[name])
            if held != needed:
                self.close()
                raise SnapshotError(f"{paths[0]}: {name!r} needs {needed} elements, its parts hold {held}; remove it")

    @property
    def names(self) -> tuple[str, ...]:
        """Tensor names, in the order in which they lie in the file."""
        return tuple(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        """Dtype as stored."""
        return self._parts[name][0][1].dtype

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor, mapped (no copy) when one file holds it; valid until `close`."""
        parts, shape = self._parts[name], self._shapes[name]
        if len(parts) == 1:
            return _view(*parts[0][:2]).view(shape)
        whole = torch.empty(shape, dtype=self.dtype(name))
        for mapped, entry, offset in parts:
            where = tuple(slice(at, at + size) for at, size in zip(offset, entry.shape, strict=True))
            whole[where] = _view(mapped, entry).view(entry.shape)
        return whole

    def piece(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Elements `start` to `stop` of the flattened tensor. Of a tensor in parts along its first dimension, only
        those parts are read that hold them; parts along another dimension are put together first.
        """
        parts, shape = self._parts[name], self._shapes[name]
        if len(parts) == 1:
            return _view(*parts[0][:2])[start:stop]
        if any(entry.shape[1:] != shape[1:] for _, entry, _ in parts):
            return self.tensor(name).view(-1)[start:stop]
        row = math.prod(shape[1:])
        pieces = []
        for mapped, entry, offset in sorted(parts, key=lambda part: part[2]):
            first, size = offset[0] * row, math.prod(entry.shape)
            if first < stop and first + size > start:
                pieces.append(_view(mapped, entry)[max(0, start - first) : min(size, stop - first)])
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def close(self) -> None:
        """Give the mapped memory back, as soon as no tensor looks at it any more."""
        self._stack.close()

    def __enter__(self) -> SnapshotReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _view(mapped: mmap.mmap, entry: Entry) -> torch.Tensor:
    if entry.start == entry.stop:
        return torch.empty(0, dtype=entry.dtype)
    size = (entry.stop - entry.start) // entry.dtype.itemsize
    if entry.start % entry.dtype.itemsize:
        data = bytearray(mapped[entry.start : entry.stop])
        return torch.frombuffer(data, dtype=entry.dtype)
    return torch.frombuffer(mapped, dtype=entry.dtype, count=size, offset=entry.start)


def _close(mapped: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # a tensor still looks at it: it goes when the tensor goes
        mapped.close()


def list_snapshots(directory: str | os.PathLike[str]) -> list[Snapshot]:
    """The whole snapshots in a folder, by t and then by sigma_rel. Sets of shards that are not complete are left out.

    Raises: FileNotFoundError if there is no such folder; SnapshotError naming a file that is cut short or not ours.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no folder {directory}")
    first = [
        path for path in sorted(directory.iterdir()) if (m := NAME.fullmatch(path.name)) and not int(m["rank"] or 0)
    ]
    whole = [path for path in first if all(part.exists() for part in shard_paths(path))]
    return sorted((Snapshot.read(path) for path in whole), key=lambda snapshot: (snapshot.t, snapshot.sigma_rel))
