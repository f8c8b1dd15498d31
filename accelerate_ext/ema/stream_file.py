"""A safetensors file of averages, written tensor by tensor, with a look at every value on its way."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from .header import SnapshotError
from .tensor_file import Layout, Slot, TensorFile

CHUNK = 1 << 18
"""Elements that are cast, checked and written at once: 1 MB in float32, which stays in the processor's cache."""
EARLY = 1 << 20
"""Bytes after which the disk is set to work, where it will be waited for, so that there is little left in the end."""
SPARE = 24
"""Bytes kept free in the header, since the rounding error is known only after the last tensor."""


class StreamFile(TensorFile):
    """Takes tensors in the order of `layout.slots`; small ones wait, to be cast, checked and written together.

    Args:
        early: set the disk to work while tensors come in. They then come in at its speed; else at that of memory.
    Raises (all methods): SnapshotError naming tensors that hold NaN or do not fit the dtype; OSError.
    """

    def __init__(self, path: Path, layout: Layout, metadata: Mapping[str, str], early: bool = True):
        self._early = early
        self._metadata = {**metadata, "rounding_error": "0"}
        super().__init__(path, layout, self._metadata, SPARE)
        self._left = iter(layout.slots)
        self._waiting: list[tuple[Slot, torch.Tensor]] = []
        self._num_waiting = 0
        self._wrong: list[str] = []
        self._change = self._square = 0.0
        self._at = self._started = self._begin

    @property
    def rounding_error(self) -> float:
        """Root mean square of what the casts changed, over that of the values."""
        return math.sqrt(self._change / self._square) if self._square else 0.0

    def add(self, tensor: torch.Tensor) -> None:
        """Take the next tensor, which must not change until `finish`."""
        slot = next(self._left)
        if tuple(tensor.shape) != slot.shape:
            raise ValueError(f"{slot.name} must have shape {list(slot.shape)}, got {list(tensor.shape)}")
        flat = tensor.detach().contiguous().view(-1)
        flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
        if self._waiting and (self._num_waiting + flat.numel() > CHUNK or not self._goes_with(slot, flat)):
            self._write_waiting()
        if flat.numel() > CHUNK:
            for chunk in flat.split(CHUNK):
                self._put([slot], chunk)
            return
        self._waiting.append((slot, flat))
        self._num_waiting += flat.numel()

    def finish(self) -> None:
        """Write what waits, and the final header. The system has all of it then; the disk, after `synchronise`."""
        self._write_waiting()
        if self._wrong:
            raise SnapshotError(
                f"{self.path} was not written: these averages hold NaN or infinity, or values that do not fit the "
                f"dtype asked for: {', '.join(dict.fromkeys(self._wrong))}. If the model went wrong, go back to a "
                "checkpoint before that, with the averages' state; else write float32 or bfloat16"
            )
        if (missing := next(self._left, None)) is not None:
            raise ValueError(f"{self.path} still needs the tensor {missing.name}")
        if self._change:
            self._metadata["rounding_error"] = f"{self.rounding_error:.17g}"
            self._write_header(self.layout.header(self._metadata))

    def _goes_with(self, slot: Slot, flat: torch.Tensor) -> bool:
        first, held = self._waiting[0]
        kind = (slot.dtype, slot.is_average, flat.dtype, flat.device)
        return (first.dtype, first.is_average, held.dtype, held.device) == kind

    def _write_waiting(self) -> None:
        if self._waiting:
            slots, parts = zip(*self._waiting, strict=True)
            self._put(slots, torch.cat(parts) if len(parts) > 1 else parts[0])
            self._waiting, self._num_waiting = [], 0

    def _put(self, slots: Sequence[Slot], values: torch.Tensor) -> None:
        """Write elements of one slot, or all those of several, behind what was written last."""
        values = values.to("cpu")
        dtype = torch.float32 if slots[0].dtype == torch.complex64 else slots[0].dtype
        cast = values.to(dtype)
        if slots[0].is_average:
            self._check(slots, values, cast)
        self._write(cast, self._at)
        self._at += cast.numel() * cast.itemsize
        if self._early and self._at - self._started >= EARLY:
            self.start_writing()

    def start_writing(self) -> None:
        """Let the disk begin with what was written. The system may then forget it, which training will not read."""
        if hasattr(os, "posix_fadvise"):
            with self._told():
                os.posix_fadvise(self._descriptor, self._started, self._at - self._started, os.POSIX_FADV_DONTNEED)
        self._started = self._at

    def _check(self, slots: Sequence[Slot], values: torch.Tensor, cast: torch.Tensor) -> None:
        total = (cast.sum() if cast.itemsize > 2 else cast.sum(dtype=torch.float32)).item()
        if not math.isfinite(total) and not torch.isfinite(cast).all():  # a sum is one cheap look at all of them
            self._wrong += _not_finite(slots, cast)
            return
        if cast.dtype != values.dtype:
            change = cast.double().sub_(values)
            self._change += change.dot(change).item()
            change.copy_(values)
            self._square += change.dot(change).item()


def _not_finite(slots: Sequence[Slot], cast: torch.Tensor) -> list[str]:
    """Which of several slots hold what; of one, a part may be given."""
    sizes = [slot.num_bytes // cast.itemsize for slot in slots] if len(slots) > 1 else [cast.numel()]
    parts = zip(slots, cast.split(sizes), strict=True)
    return [slot.name for slot, part in parts if not torch.isfinite(part).all()]
