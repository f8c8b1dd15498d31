"""A safetensors file written tensor by tensor, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from .header import CODES, SnapshotError

CHUNK = 1 << 18
"""Elements that are cast, checked and written at once: 1 MB in float32, which stays in the processor's cache."""
SLACK = 24
"""Bytes kept free in the header, since the rounding error is known only after the last tensor."""
PLACE = "?"
"""What stands in its place until then."""
MAX_WAITING = 256
"""Tensors that are written at once; systems take up to 1024."""
HAS_WRITEV = hasattr(os, "writev")


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


class StreamFile:
    """Takes tensors in the order of `slots` and writes them under a temporary name; `publish` gives the file its own.

    Raises (all methods): SnapshotError naming tensors that hold NaN or do not fit the dtype; OSError with what to do.
    """

    def __init__(self, path: Path, slots: list[Slot], metadata: Mapping[str, str]):
        self.path, self.slots, self._metadata = path, slots, dict(metadata)
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._left = iter(slots)
        self._wrong: list[str] = []
        self._change = self._square = 0.0
        self._text = self._header_text()
        self._header_size = 8 + -(-(len(self._text) + SLACK) // 8) * 8  # tensors begin at a multiple of 8
        self._size = self._header_size + sum(slot.num_bytes for slot in slots)
        self._waiting: list[memoryview] = []
        with self._told():
            self._file = self.temporary.open("wb", buffering=0)  # one of our own that was interrupted goes
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, self._size)
            self._write(self._header())

    @property
    def rounding_error(self) -> float:
        """Root mean square of what the casts changed, over that of the values."""
        return math.sqrt(self._change / self._square) if self._square else 0.0

    def add(self, tensor: torch.Tensor) -> None:
        """Write the next tensor, cast to its slot's dtype, a chunk at a time."""
        slot = next(self._left)
        if tuple(tensor.shape) != slot.shape:
            raise ValueError(f"{slot.name} must have shape {list(slot.shape)}, got {list(tensor.shape)}")
        flat = tensor.detach().contiguous().view(-1)
        flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
        dtype = torch.float32 if slot.dtype == torch.complex64 else slot.dtype
        with self._told():
            for start in range(0, flat.numel(), CHUNK):
                chunk = flat[start : start + CHUNK].to("cpu")
                cast = chunk.to(dtype)
                if slot.is_average:
                    self._check(slot, chunk, cast)
                self._write(cast.view(torch.uint8).numpy().data)

    def finish(self) -> None:
        """Write the final header and wait until all of it is on disk."""
        if self._wrong:
            raise SnapshotError(
                f"{self.path} was not written: these averages hold NaN or infinity, or values that do not fit the "
                f"dtype asked for: {', '.join(dict.fromkeys(self._wrong))}. If the model went wrong, go back to a "
                "checkpoint before that, with the averages' state; else write float32 or bfloat16"
            )
        if (missing := next(self._left, None)) is not None:
            raise ValueError(f"{self.path} still needs the tensor {missing.name}")
        with self._told():
            self._flush()
            if self._change:
                self._file.seek(0)
                self._write(self._header())
                self._flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def publish(self) -> Path:
        """Give the finished file its name. Raises: FileExistsError rather than overwrite one."""
        with self._told():
            try:
                os.link(self.temporary, self.path)
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links
                if self.path.exists():
                    raise FileExistsError(f"{self.path} exists already; it was not overwritten") from None
                self.temporary.rename(self.path)
            self.abandon()
        return self.path

    def abandon(self) -> None:
        """Remove what has been written under the temporary name."""
        self._file.close()
        self.temporary.unlink(missing_ok=True)

    def _check(self, slot: Slot, chunk: torch.Tensor, cast: torch.Tensor) -> None:
        total = (cast.sum() if cast.itemsize > 2 else cast.sum(dtype=torch.float32)).item()
        if not math.isfinite(total) and not torch.isfinite(cast).all():  # a sum is one cheap look at all of them
            self._wrong.append(slot.name)
            return
        if cast.dtype != chunk.dtype:
            values = cast.double().sub_(chunk)
            self._change += values.dot(values).item()
            values.copy_(chunk)
            self._square += values.dot(values).item()

    def _write(self, data: bytes | memoryview) -> None:
        """Small tensors wait for others, so that many go to the system at once; no byte is copied for that."""
        if len(data):
            self._waiting.append(memoryview(data))
        if len(self._waiting) == MAX_WAITING or sum(map(len, self._waiting)) >= CHUNK:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            written = (
                os.writev(self._file.fileno(), self._waiting) if HAS_WRITEV else self._file.write(self._waiting[0])
            )
            while self._waiting and written >= len(self._waiting[0]):
                written -= len(self._waiting.pop(0))
            if written:
                self._waiting[0] = self._waiting[0][written:]

    def _header_text(self) -> bytes:
        table: dict[str, object] = {"__metadata__": self._metadata | {"rounding_error": PLACE}}
        at = 0
        for slot in self.slots:
            offsets = [at, at + slot.num_bytes]
            table[slot.name] = {"dtype": CODES[slot.dtype], "shape": list(slot.shape), "data_offsets": offsets}
            at += slot.num_bytes
        return json.dumps(table, separators=(",", ":")).encode()

    def _header(self) -> bytes:
        error = f'"rounding_error":"{self.rounding_error:.17g}"'
        text = self._text.replace(f'"rounding_error":"{PLACE}"'.encode(), error.encode(), 1)
        return (self._header_size - 8).to_bytes(8, "little") + text.ljust(self._header_size - 8)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            with contextlib.suppress(OSError, AttributeError):
                self.abandon()
            text = f"{error.strerror}: a snapshot of {self._size} bytes; no part of it is left, earlier ones are whole"
            raise OSError(error.errno, text, str(self.path)) from error


def synchronise_folder(directory: Path) -> None:
    """Wait until renames in a folder are on disk, where the platform can."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
