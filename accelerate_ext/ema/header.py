"""Headers of safetensors files: where each tensor lies, checked against the size of the file."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 100_000_000
_METADATA_FIRST = '{"__metadata__":{'
SHARDING_INFO = "DCP_SHARDING_INFO"
SAVED_OFFSETS = "saved_offsets"


class SnapshotError(ValueError):
    """A snapshot, or a folder of snapshots, that cannot be used. The text names the file and says what to do."""


class Entry(NamedTuple):
    """Where one tensor lies in a file: bytes `start` to `stop` behind the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Table:
    """The tensors that a header lists. Files with the same list, as a run writes them, share one object."""

    entries: dict[str, Entry]
    shapes: dict[str, tuple[int, ...]]
    num_bytes: int

    @classmethod
    def of(cls, records: Mapping[str, Any]) -> Table:
        """Raises: KeyError, TypeError, AttributeError or ValueError if a record is not as safetensors writes it;
        SnapshotError for a dtype that is not known.
        """
        entries = {name: _entry(record) for name, record in records.items()}
        entries = dict(sorted(entries.items(), key=lambda item: item[1].start))
        shapes = {name: entry.shape for name, entry in entries.items()}
        return cls(entries, shapes, max((entry.stop for entry in entries.values()), default=0))


class Header(NamedTuple):
    """Tensors in file order, metadata, and the byte of the file at which the tensors begin."""

    table: Table
    metadata: dict[str, str]
    begin: int


def read_header(path: Path) -> Header:
    """The header of any safetensors file; nothing else is read.

    Raises: SnapshotError naming the file if it is not safetensors or its size is not what its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise SnapshotError(f"{path} is not a safetensors file, or it is cut short: {size} bytes; move it away")
        try:
            table, metadata = _parse(file.read(length).decode())
        except SnapshotError as error:
            raise SnapshotError(f"{path} {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"{path} has a header that is not safetensors ({error}); move it away") from error
    expected = 8 + length + table.num_bytes
    if size != expected:
        raise SnapshotError(
            f"{path} must be {expected} bytes long by its header, it is {size}: cut short; move it away"
        )
    return Header(table, metadata, 8 + length)


def _parse(text: str) -> tuple[Table, dict[str, str]]:
    if text.startswith(_METADATA_FIRST):  # as all writers do: what comes behind is often the same as in the last file
        metadata, end = json.JSONDecoder().raw_decode(text, len(_METADATA_FIRST) - 1)
        return _table("{" + text[end:].rstrip().removeprefix(",")), metadata
    records = json.loads(text)
    metadata = records.pop("__metadata__", {})
    return Table.of(records), dict(metadata)


@functools.lru_cache(maxsize=4)
def _table(text: str) -> Table:
    return Table.of(json.loads(text))


def sharding_info(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Metadata of a file of parts, as torch.distributed.checkpoint writes it: where each begins in its tensor."""
    return {SHARDING_INFO: json.dumps({name: {SAVED_OFFSETS: list(offset)} for name, offset in offsets.items()})}


def shard_offsets(path: Path, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Where the file's parts begin in their whole tensors; empty for a file of whole tensors.

    Raises: SnapshotError naming the file if the metadata is not as torch.distributed.checkpoint writes it.
    """
    try:
        listed = json.loads(metadata.get(SHARDING_INFO, "{}"))
        return {name: tuple(int(at) for at in part[SAVED_OFFSETS]) for name, part in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(
            f"{path} has metadata {SHARDING_INFO} that says no offsets ({error!r}); move it away"
        ) from error


def _entry(record: Mapping[str, Any]) -> Entry:
    code, shape = record["dtype"], tuple(map(int, record["shape"]))
    start, stop = record["data_offsets"]
    if code not in DTYPES:
        raise SnapshotError(f"holds {code!r} tensors, which are not read here; leave it out")
    dtype = DTYPES[code]
    if stop - start != math.prod(shape) * dtype.itemsize or start < 0:
        raise ValueError(f"offsets {start} to {stop} do not hold a {code} tensor of shape {list(shape)}")
    return Entry(dtype, shape, start, stop)
