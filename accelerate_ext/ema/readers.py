"""Reading tensors piece by piece from the kinds of file that weights are kept in.

Every reader reads what it is asked for into a buffer of the caller, and holds no more than that in memory, however
large the file; of a ``.pt`` file at most one tensor, where its memory has another order. Nothing here unpickles
objects: ``.pt`` files are read with ``weights_only=True``.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .header import Entry, Header, SnapshotError, read_header, shard_offsets
from .torch_file import TorchReader

RANK_FILE = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
Offset = tuple[int, ...]
_Stored = tuple[int, Entry, Offset | None]
"""Number of a file, what it holds of a tensor, and where in the whole tensor that begins."""

_SEEKING = threading.Lock()


class Reader(Protocol):
    """Tensors of one file or set of files. Names are the model's own.

    Readers with equal ``layout`` have the same tensors: they answer all but ``read`` alike.
    """

    names: tuple[str, ...]

    @property
    def layout(self) -> Hashable: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        """Elements ``start`` to ``stop`` of the flattened tensor into the flat ``out``, cast to its dtype.

        ``stop`` may lie in the tensors that follow, as far as ``follows`` says that they do.
        """

    def follows(self, name: str, after: str) -> bool:
        """Whether the elements of a tensor lie right behind those of another, so that both can be read at once."""

    def close(self) -> None: ...


def distinct(readers: Iterable[Reader]) -> list[Reader]:
    """One reader for each layout."""
    return list({reader.layout: reader for reader in readers}.values())


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

    Args:
        first: the header of the first file, where it has been read already.
    """

    def __init__(self, paths: tuple[Path, ...], first: Header | None = None):
        self._files: list[tuple[Path, io.FileIO, int]] = []  # with the byte at which the tensors begin
        self._parts: dict[str, list[_Part]] = {}
        self._file_of: dict[str, int] = {}  # of whole tensors that are not in the first file
        try:
            headers = [first or read_header(paths[0]), *map(read_header, paths[1:])]
            for path, header in zip(paths, headers, strict=True):
                self._files.append((path, io.FileIO(path), header.begin))
            offsets = [shard_offsets(path, header.metadata) for path, header in zip(paths, headers, strict=True)]
            if len(paths) == 1 and not offsets[0]:
                self.layout: Hashable = headers[0].table
                self._whole, self._shapes = headers[0].table.entries, headers[0].table.shapes
            else:
                self.layout = object()
                self._whole, self._shapes = {}, {}
                for name, parts in self._stored(headers, offsets).items():
                    self._join(paths[0], name, parts)
        except BaseException:
            self.close()
            raise
        self.names = tuple(self._shapes)

    def _stored(self, headers: Sequence[Header], offsets: Sequence[Mapping[str, Offset]]) -> dict[str, list[_Stored]]:
        """Of each tensor what every file holds."""
        stored: dict[str, list[_Stored]] = {}
        for file, (header, offset_of) in enumerate(zip(headers, offsets, strict=True)):
            for name, entry in header.table.entries.items():
                offset = offset_of.get(name)
                if offset is not None and len(offset) != len(entry.shape):
                    raise SnapshotError(
                        f"{self._files[file][0]}: {name!r} has {len(entry.shape)} dimensions, {len(offset)} offsets; "
                        "move it away"
                    )
                stored.setdefault(name, []).append((file, entry, offset))
        return stored

    def _join(self, path: Path, name: str, stored: list[_Stored]) -> None:
        """The parts reach as far as the tensor does, so that they say how large it is."""
        if len(stored) == 1 and stored[0][2] is None:
            self._file_of[name], self._whole[name], _ = stored[0]
            self._shapes[name] = self._whole[name].shape
            return
        parts = [(file, entry, offset or (0,) * len(entry.shape)) for file, entry, offset in stored]
        ends = [[at + size for at, size in zip(offset, entry.shape, strict=True)] for _, entry, offset in parts]
        whole = tuple(max(sizes) for sizes in zip(*ends, strict=True))
        self._shapes[name] = whole
        held, needed = sum(math.prod(entry.shape) for _, entry, _ in parts), math.prod(whole)
        if held != needed:
            raise SnapshotError(f"{path}: {name!r} needs {needed} elements, its files hold {held}; move it away")
        if len(parts) == 1:
            self._file_of[name], self._whole[name], _ = parts[0]
            return
        for file, entry, offset in parts:
            self._parts.setdefault(name, []).append(_Part(file, entry, *_runs(entry.shape, offset, whole)))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return (self._whole.get(name) or self._parts[name][0].entry).dtype

    def follows(self, name: str, after: str) -> bool:
        a, b = self._whole.get(after), self._whole.get(name)
        if a is None or b is None:
            return False
        same_file = self._file_of.get(after, 0) == self._file_of.get(name, 0)
        return same_file and a.stop == b.start and a.dtype == b.dtype

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        dtype = self.dtype(name)
        raw = out if out.dtype == dtype else torch.empty(stop - start, dtype=dtype)
        if name in self._whole:
            byte = self._whole[name].start + start * dtype.itemsize
            self._fill(name, self._file_of.get(name, 0), byte, raw)
        else:
            self._gather(name, start, stop, raw)
        if raw is not out:
            out.copy_(raw)

    def _gather(self, name: str, start: int, stop: int, raw: torch.Tensor) -> None:
        for part in self._parts[name]:
            first, last = np.searchsorted(part.starts, [start - part.length, stop], side="left")
            for run in range(first, last):
                at = int(part.starts[run])
                low, high = max(start, at), min(stop, at + part.length)
                if low < high:
                    byte = part.entry.start + (run * part.length + low - at) * raw.element_size()
                    self._fill(name, part.file, byte, raw[low - start : high - start])

    def _fill(self, name: str, which: int, at: int, out: torch.Tensor) -> None:
        path, file, begin = self._files[which]
        buffer, done = out.view(torch.uint8).numpy().data, 0
        while done < len(buffer):
            got = _read_at(file.fileno(), buffer[done:], begin + at + done)
            if not got:
                raise SnapshotError(f"{path} ended while {name!r} was read: something has cut it short; move it away")
            done += got

    def close(self) -> None:
        for _, file, _ in self._files:
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
        self.layout = object()  # unlike any other reader's
        self._of = {name: reader for reader in readers for name in reader.names}
        self.names = tuple(self._of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of[name].shape(name)

    def dtype(self, name: str) -> torch.dtype:
        return self._of[name].dtype(name)

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        self._of[name].read(name, start, stop, out)

    def follows(self, name: str, after: str) -> bool:
        return False

    def close(self) -> None:
        for reader in set(self._of.values()):
            reader.close()


def open_weights(path: Path, key: str | None = None) -> Reader:
    """A reader for a weights file, an ``.index.json`` that lists the files of a model, or a folder of ranks' parts.

    Raises: SnapshotError naming the file if it is cut short, not a weights file, or lists files that are missing.
    """
    if path.is_dir():
        return FileReader(tuple(rank_files(path)))
    if path.name.endswith(".index.json"):
        paths = _indexed(path)
        if all(part.suffix == ".safetensors" for part in paths):
            return FileReader(paths)
        return JoinedReader([TorchReader(part, key) for part in paths])
    if path.suffix == ".safetensors":
        return FileReader((path,))
    return TorchReader(path, key)


def rank_files(folder: Path) -> list[Path]:
    """The files that torch.distributed.checkpoint's Hugging Face storage wrote into a folder, of each rank its own."""
    return sorted(path for path in folder.glob("shard-*.safetensors") if RANK_FILE.fullmatch(path.name))


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
    with _SEEKING:  # pragma: no cover (Windows)
        os.lseek(descriptor, offset, os.SEEK_SET)
        read = os.read(descriptor, len(buffer))
        buffer[: len(read)] = read
        return len(read)
