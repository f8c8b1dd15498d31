"""Writing safetensors files in any order, from several threads, so that a file under its own name is always whole."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from .header import CODES, SnapshotError

_SEEKING = threading.Lock()


class OutputFile:
    """One safetensors file in the making. Space for all of it is taken at once, before any work is done.

    Args:
        tensors: dtype and shape of each tensor, by name.
        metadata: "format": "pt" is added, which Transformers asks for.
        overwrite: whether a file that is there is replaced, which happens at ``commit`` and not before.

    Raises: FileExistsError; SnapshotError naming the file if the disk has no space for it.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
        overwrite: bool = False,
    ):
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists; give another name, or overwrite it (overwrite=True, --overwrite)")
        self.path, self._tensors = path, dict(tensors)
        header, self._starts, size = _layout(self._tensors, {"format": "pt", **metadata})
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(self._temporary, flags, 0o666)
        try:
            with self._space(size):
                _reserve(self._descriptor, size)
                _write_at(self._descriptor, memoryview(header), 0)
        except BaseException:
            self.discard()
            raise

    def write(self, name: str, start: int, values: torch.Tensor) -> None:
        """Elements of the flattened tensor from ``start`` on. Raises: SnapshotError if the dtype cannot hold them."""
        dtype, _ = self._tensors[name]
        stored = values.to(dtype).contiguous()
        if stored.dtype != values.dtype and bool((torch.isfinite(values) & ~torch.isfinite(stored)).any()):
            raise SnapshotError(f"{self.path}: {name!r} has values beyond the range of {dtype}; choose another dtype")
        with self._space(stored.numel() * stored.element_size()):
            at = self._starts[name] + start * dtype.itemsize
            _write_at(self._descriptor, stored.view(-1).view(torch.uint8).numpy().data, at)

    def synchronise(self) -> None:
        """All that was written is on the disk, where there may turn out to be no space for it."""
        with self._space(0):
            os.fsync(self._descriptor)

    def commit(self) -> None:
        """The file appears under its name, and stays there if the machine stops now. Call ``synchronise`` before."""
        os.close(self._descriptor)
        self._descriptor = -1
        os.replace(self._temporary, self.path)
        with contextlib.suppress(OSError):  # not every system opens folders
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Nothing is left of the file; one that was there before is untouched. Does nothing after ``commit``."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _space(self, needed: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            free = shutil.disk_usage(self.path.parent).free
            raise SnapshotError(
                f"no space for {self.path}: it needs {needed:,} bytes, there are {free:,} free; nothing is written"
            ) from error


def output_bytes(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int:
    """Size of a file with these tensors, without its header."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in tensors.values())


def _layout(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int], int]:
    records: dict[str, object] = {"__metadata__": dict(metadata)}
    offsets, at = {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: -item[1][0].itemsize):  # aligned
        size = dtype.itemsize * math.prod(shape)
        records[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        offsets[name], at = at, at + size
    text = json.dumps(records, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    base = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: base + start for name, start in offsets.items()}, base + at


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.truncate(descriptor, size)


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        if hasattr(os, "pwrite"):
            done += os.pwrite(descriptor, data[done:], offset + done)
        else:  # pragma: no cover (Windows)
            with _SEEKING:
                os.lseek(descriptor, offset + done, os.SEEK_SET)
                done += os.write(descriptor, data[done:])
