"""A safetensors file in the making: written at any place, by several threads, and under its own name when whole."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from .header import CODES, SnapshotError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_SEEKING = threading.Lock()
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Slot:
    """A tensor that a file will hold. `is_average`: must be finite, and may be cast."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_average: bool = True

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Layout:
    """Where the tensors of a file lie: those of wide dtypes first, so that each is aligned. One serves many files.

    `starts`: the place of each tensor, in bytes behind the header. `num_bytes`: of all of them.
    Raises: SnapshotError naming tensors of a dtype that safetensors does not have.
    """

    def __init__(self, slots: Iterable[Slot]):
        self.slots = sorted(slots, key=lambda slot: -slot.dtype.itemsize)
        _check_dtypes(self.slots)
        at, table = 0, {}
        self.starts: dict[str, int] = {}
        for slot in self.slots:
            self.starts[slot.name], end = at, at + slot.num_bytes
            table[slot.name] = {"dtype": CODES[slot.dtype], "shape": list(slot.shape), "data_offsets": [at, end]}
            at = end
        self.num_bytes = at
        self._table = json.dumps(table, separators=(",", ":"))

    def header(self, metadata: Mapping[str, str]) -> bytes:
        """The JSON of a header."""
        described = json.dumps({"__metadata__": dict(metadata)}, separators=(",", ":"))
        return (f"{described[:-1]},{self._table[1:]}" if self.slots else described).encode()


class TensorFile:
    """Written under a temporary name, until `publish`. The space for all of it is taken at once, before any work.

    Args:
        layout: of its tensors.
        spare: bytes kept free in the header, for metadata that is known only in the end.
        overwrite: whether `publish` may replace a file of that name.
    Raises (all methods): OSError with the file's name, and its size where the space is short; nothing is left of it
        once `abandon` was called, which the constructor does itself.
    """

    def __init__(
        self, path: Path, layout: Layout, metadata: Mapping[str, str], spare: int = 0, overwrite: bool = False
    ):
        self.path, self.layout, self._overwrite = path, layout, overwrite
        self._refuse_to_replace()
        header = layout.header(metadata)
        self._begin = 8 + -(-(len(header) + spare) // 8) * 8  # tensors begin at a multiple of 8
        self.num_bytes = self._begin + layout.num_bytes
        self._dtypes = {slot.name: slot.dtype for slot in layout.slots}
        self.temporary = path.with_name(f".{path.name}.{next(_NUMBERS)}.{os.getpid()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        with self._told():
            self._descriptor = os.open(self.temporary, flags, 0o666)
        try:
            with self._told():
                _reserve(self._descriptor, self.num_bytes)
            self._write_header(header)
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, start: int, values: torch.Tensor) -> None:
        """Elements of the flattened tensor from `start` on. Raises: SnapshotError if its dtype cannot hold them."""
        dtype, at = self._dtypes[name], self._begin + self.layout.starts[name]
        stored = values.to(dtype).contiguous()
        if stored.dtype != values.dtype and bool((torch.isfinite(values) & ~torch.isfinite(stored)).any()):
            raise SnapshotError(f"{self.path}: {name!r} has values beyond the range of {dtype}; choose another dtype")
        self._write(stored, at + start * dtype.itemsize)

    def synchronise(self) -> None:
        """Wait until all that was written is on the disk, where there may turn out to be no space for it."""
        with self._told():
            os.fsync(self._descriptor)

    def publish(self) -> Path:
        """Give the file its name, after `synchronise`; `flush_folder` makes it stay. Raises: FileExistsError."""
        self._close()
        with self._told():
            if self._overwrite:
                os.replace(self.temporary, self.path)
                return self.path
            try:
                os.link(self.temporary, self.path)
            except OSError:  # there is one, or the file system has no hard links
                self._refuse_to_replace()
                self.temporary.rename(self.path)
        self.abandon()
        return self.path

    def abandon(self) -> None:
        """Nothing is left of the file under its temporary name. Does nothing after `publish`."""
        self._close()
        self.temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _refuse_to_replace(self) -> None:
        if not self._overwrite and self.path.exists():
            raise FileExistsError(f"{self.path} exists already; it was not overwritten")

    def _write_header(self, header: bytes) -> None:
        data = (self._begin - 8).to_bytes(8, "little") + header.ljust(self._begin - 8)
        with self._told():
            _write_at(self._descriptor, memoryview(data), 0)

    def _write(self, values: torch.Tensor, at: int) -> None:
        with self._told():
            _write_at(self._descriptor, values.view(-1).view(torch.uint8).numpy().data, at)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            size = ""
            if error.errno in NO_SPACE:
                size = f": {self.num_bytes:,} bytes are needed, {shutil.disk_usage(self.path.parent).free:,} are free"
            text = f"{error.strerror}{size}; no part of the file is left, and what was there before is whole"
            raise OSError(error.errno, text, str(self.path)) from error


def _check_dtypes(slots: Iterable[Slot]) -> None:
    strange = [f"{slot.name} ({str(slot.dtype).removeprefix('torch.')})" for slot in slots if slot.dtype not in CODES]
    if strange:
        raise SnapshotError(
            f"safetensors has no such dtype as these tensors have: {', '.join(strange)}. Give them another one; a "
            "buffer that is made anew with the model need not be stored (`persistent=False`)"
        )


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in CANNOT_RESERVE:
                raise
    os.truncate(descriptor, size)


def _write_at(descriptor: int, data: memoryview, at: int) -> None:
    done = 0
    while done < len(data):
        if hasattr(os, "pwrite"):
            done += os.pwrite(descriptor, data[done:], at + done)
        else:  # pragma: no cover (Windows)
            with _SEEKING:
                os.lseek(descriptor, at + done, os.SEEK_SET)
                done += os.write(descriptor, data[done:])
