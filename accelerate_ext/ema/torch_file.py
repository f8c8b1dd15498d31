"""Reading `.pt` files: tensors and plain values only, mapped into memory, given back as they are read."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import pickle
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from .header import SnapshotError

WRAPPERS = ("module.", "_orig_mod.", "ema_model.")
"""Prefixes that wrapping a model puts before all of its names: DDP, torch.compile, ema-pytorch."""

NESTED = ("state_dict", "model_state_dict", "model", "module")
"""Where training scripts put the weights in a ``.pt`` file that holds more than weights, in order of preference."""


class TorchReader:
    """A ``.pt`` file written by ``torch.save``, mapped into memory; only tensors are accepted.

    Args:
        key: where the weights are in a file that holds more; dots go deeper. The usual places are found without.
    """

    def __init__(self, path: Path, key: str | None = None):
        tensors = _weights(_load(path), path, key)
        self.counter = _counter(tensors)
        self._tensors = _without_wrapper(tensors)
        self.layout = object()  # unlike any other reader's
        self._mapped = _Mapped(path, self._tensors.values())
        self.names = tuple(self._tensors)
        self._ordered: tuple[str, torch.Tensor] | None = None

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def read(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        piece = self._flat(name)[start:stop]
        out.copy_(piece)
        self._mapped.was_read(piece.numel() * piece.element_size())

    def _flat(self, name: str) -> torch.Tensor:
        """A tensor as one row. One whose memory has another order, as channels last, is copied once for all pieces."""
        tensor, ordered = self._tensors[name], self._ordered
        if tensor.is_contiguous():
            return tensor.view(-1)
        if ordered is None or ordered[0] != name:
            ordered = self._ordered = (name, tensor.reshape(-1))
        return ordered[1]

    def follows(self, name: str, after: str) -> bool:
        return False

    def close(self) -> None:
        self._mapped.forget()
        self._tensors, self._ordered = {}, None


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0]
        raise SnapshotError(
            f"{path} holds more than tensors and plain values, and unpickling that could run any code: refused. "
            f"Save a state_dict, best as safetensors. ({reason[:200]})"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise SnapshotError(f"{path} is not a file written by torch.save, or it is cut short ({error})") from error


def _weights(loaded: Any, path: Path, key: str | None) -> dict[str, torch.Tensor]:
    found = loaded
    for part in key.split(".") if key else ():
        if not isinstance(found, Mapping) or part not in found:
            raise SnapshotError(f"{path} has no {key!r}; at that level it has: {_listing(found)}")
        found = found[part]
    if key is None and isinstance(found, Mapping) and not _is_state_dict(found):
        found = next((found[name] for name in NESTED if _is_state_dict(found.get(name))), found)
    if not _is_state_dict(found):
        raise SnapshotError(f"{path} must hold a state_dict; say under which key, it has: {_listing(found)}")
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _is_state_dict(value: Any) -> bool:
    """Names with tensors; module extra state (plain values under ``_extra_state``) may be among them."""
    if not isinstance(value, Mapping) or not any(isinstance(item, torch.Tensor) for item in value.values()):
        return False
    return all(isinstance(item, torch.Tensor) or str(name).endswith("_extra_state") for name, item in value.items())


def _listing(value: Any) -> str:
    return ", ".join(sorted(map(str, value))[:20]) if isinstance(value, Mapping) else type(value).__name__


def _counter(tensors: Mapping[str, torch.Tensor]) -> int | None:
    """The step that an EMA package counted in its file, if a cast to 16 bits has not blurred it."""
    step = tensors.get("step")
    return int(step) if step is not None and step.numel() == 1 and not step.dtype.is_floating_point else None


def _without_wrapper(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if {"initted", "step"} <= set(tensors):  # the counters of an EMA package
        tensors = {name: value for name, value in tensors.items() if name not in ("initted", "step")}
    for prefix in WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _without_wrapper({name.removeprefix(prefix): value for name, value in tensors.items()})
    return tensors


class _Mapped:
    """Gives the pages of a mapped file back to the system as they are read, instead of when the file is closed.

    Only a range that the system itself lists as a mapping of this file, and that one of these tensors lies in, is
    given back: doing that to other memory would erase it. Where there is no such list nothing is given back early.
    """

    EVERY = 2**19

    def __init__(self, path: Path, tensors: Iterable[torch.Tensor]):
        self._read = 0
        self._ranges: list[tuple[int, int]] = []
        name = str(path.resolve())
        places = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5] == name:
                    start, stop = (int(number, 16) for number in fields[0].split("-"))
                    if any(start <= place < stop for place in places):
                        self._ranges.append((start, stop - start))

    def forget(self) -> None:
        """Call before the file is unmapped."""
        self._ranges = []

    def was_read(self, num_bytes: int) -> None:
        self._read += num_bytes
        if self._read >= self.EVERY and _LIBC is not None:
            self._read = 0
            for start, length in self._ranges:
                _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


_LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
