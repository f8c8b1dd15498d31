"""Reading tensors piece by piece from the kinds of file that weights are kept in.

Every reader reads what it is asked for into a buffer of the caller, and holds no more than that in memory, however
large the file. Nothing here unpickles objects: ``.pt`` files are read with ``weights_only=True``.
"""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .header import Entry, SnapshotError, read_header
from .torch_file import TorchReader


class Reader(Protocol):
    """Tensors of one file or set of files. Names are the model's own."""

    names: tuple[str, ...]

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        """Elements ``start`` to ``stop`` of the flattened tensor into the flat ``out``, cast to its dtype."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Part:
    """Where one file holds a part of a tensor: runs of ``length`` elements, each at its place in the whole tensor."""

    file: int
    entry: Entry
    starts: NDArray[np.int64]
    length: int


class FileReader:
    """Safetensors files that together hold a model: whole tensors, or the parts of them that ranks wrote.

    Reads with ``pread``: no memory but the caller's, no fault if the file shrinks, several threads at once.
    """

    def __init__(self, paths: tuple[Path, ...]):
        self._files: list[tuple[Path, io.FileIO]] = []
        self._parts: dict[str, list[_Part]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        try:
            for path in paths:
                self._add(path)
            self._check_covered(paths)
        except BaseException:
            self.close()
            raise
        self.names = tuple(self._parts)

    def _add(self, path: Path) -> None:
        entries, metadata = read_header(path)
        shards = json.loads(metadata.get("shards", "{}"))
        for name, entry in entries.items():
            shard = shards.get(name, {"shape": entry.shape, "offset": [0] * len(entry.shape)})
            whole = self._shapes.setdefault(name, tuple(shard["shape"]))
            starts, length = _runs(entry.shape, tuple(shard["offset"]), whole)
            self._parts.setdefault(name, []).append(_Part(len(self._files), entry, starts, length))
        self._files.append((path, io.FileIO(path)))

    def _check_covered(self, paths: tuple[Path, ...]) -> None:
        for name, parts in self._parts.items():
            held, needed = sum(len(part.starts) * part.length for part in parts), math.prod(self._shapes[name])
            if held != needed:
                raise SnapshotError(f"{paths[0]}: {name!r} needs {needed} elements, its files hold {held}; remove it")

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return self._parts[name][0].entry.dtype

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        raw = out if out.dtype == self.dtype(name) else torch.empty(stop - start, dtype=self.dtype(name))
        for part in self._parts[name]:
            first, last = np.searchsorted(part.starts, [start - part.length, stop], side="left")
            for run in range(first, last):
                at = int(part.starts[run])
                low, high = max(start, at), min(stop, at + part.length)
                if low < high:
                    self._fill(name, part, run * part.length + low - at, raw[low - start : high - start])
        if raw is not out:
            out.copy_(raw)

    def _fill(self, name: str, part: _Part, start: int, out: torch.Tensor) -> None:
        path, file = self._files[part.file]
        buffer = out.view(torch.uint8).numpy().data
        at, done = part.entry.start + start * out.element_size(), 0
        while done < len(buffer):
            got = _read_at(file.fileno(), buffer[done:], at + done)
            if not got:
                raise SnapshotError(f"{path} ended while {name!r} was read: something has cut it short; remove it")
            done += got

    def close(self) -> None:
        for _, file in self._files:
            file.close()


def _runs(shape: tuple[int, ...], offset: tuple[int, ...], whole: tuple[int, ...]) -> tuple[NDArray[np.int64], int]:
    """Where the contiguous runs of a part lie in the flattened whole tensor, and how long each is."""
    split = max((dim for dim in range(len(whole)) if shape[dim] != whole[dim]), default=0)
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    starts = np.zeros(1, dtype=np.int64)
    for dim in range(split):
        starts = (starts[:, None] + (np.arange(shape[dim]) + offset[dim]) * strides[dim]).reshape(-1)
    if whole:
        starts = starts + offset[split] * strides[split]
    return starts, math.prod(shape[split:])


class JoinedReader:
    """Several ``.pt`` files that together hold a model, as an index of shards lists them."""

    def __init__(self, readers: list[TorchReader]):
        self._of = {name: reader for reader in readers for name in reader.names}
        self.names = tuple(self._of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of[name].shape(name)

    def dtype(self, name: str) -> torch.dtype:
        return self._of[name].dtype(name)

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        self._of[name].read(name, start, stop, out)

    def close(self) -> None:
        for reader in set(self._of.values()):
            reader.close()


def open_weights(path: Path, key: str | None = None) -> Reader:
    """A reader for a weights file, or for an ``.index.json`` that lists the files of a model in parts.

    Raises: SnapshotError naming the file if it is cut short, not a weights file, or lists files that are missing.
    """
    if path.name.endswith(".index.json"):
        paths = _indexed(path)
        if all(part.suffix == ".safetensors" for part in paths):
            return FileReader(paths)
        return JoinedReader([TorchReader(part, key) for part in paths])
    if path.suffix == ".safetensors":
        return FileReader((path,))
    return TorchReader(path, key)


def _indexed(path: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(path.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise SnapshotError(f"{path} must be JSON with a `weight_map` of names to files ({error!r})") from error
    paths = tuple(path.with_name(Path(name).name) for name in names)
    if missing := [str(part) for part in paths if not part.exists()]:
        raise SnapshotError(f"{path} lists files that are missing: {', '.join(missing)}")
    return paths


def _read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    with io.FileIO(os.dup(descriptor)) as file:  # pragma: no cover (platforms without preadv)
        file.seek(offset)
        return file.readinto(buffer) or 0
