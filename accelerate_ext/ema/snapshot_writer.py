"""Writing averages as model files: names, copies, casts, ranks; all averages of a moment, or none."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from . import distributed
from .dtypes import name_of
from .header import sharding_info
from .parameters import ParameterSet
from .publication import Publication, raise_on_all
from .stream_file import StreamFile
from .tensor_file import Layout, Slot

Offsets = dict[str, list[int]]


@dataclass(frozen=True)
class Job:
    """One average to be written to `path` with `metadata`."""

    path: Path
    averages: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]


def write_snapshots(parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype) -> None:
    """Write every job's file, or none of them, and wait until they are on the disk; see `start_snapshots`."""
    start_snapshots(parameters, jobs, dtype).finish()


def start_snapshots(
    parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype, sharded: bool = False, early: bool = True
) -> Publication:
    """Write every job's file, or none of them, with the frozen parameters and buffers as they stand.

    All of it is copied when this returns, so that training may go on; the files have their names once `finish` of
    what is returned has come back. Of a sharded model every process must call this, and `finish`. Files of whole
    tensors are written by the first process, which holds one whole tensor at a time; with `sharded`, each process
    writes its parts. Without sharded parameters the first process writes, and the others have nothing to do.

    Args:
        early: set the disk to work at once, where `finish` comes next; else copy as fast as memory allows.
    Raises: SnapshotError naming tensors with NaN; OSError with what to do. On all processes, if on any.
    """
    if not parameters.is_sharded:
        return Publication(_write_parts(parameters, jobs, dtype, None, early) if distributed.rank() == 0 else [])
    files: list[StreamFile] = []
    error: Exception | None = None
    try:
        if sharded:
            files = _write_parts(parameters, jobs, dtype, _offsets(parameters), early)
        else:
            files, error = _write_gathered(parameters, jobs, dtype, early)
    except Exception as caught:
        error = caught
    try:
        raise_on_all(error, is_shared=True)
    except BaseException:
        for file in files:
            file.abandon()
        raise
    return Publication(files, is_shared=True)


def _write_parts(
    parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype, offsets: Offsets | None, early: bool
) -> list[StreamFile]:
    """Complete files of this process's tensors, one thread a file; of all tensors if there are no offsets."""
    copied = parameters.copied()
    held = parameters.averaged | copied
    parts = {name: distributed.local(held[name]) for name in (held if offsets is None else offsets)}
    layout = _layout(parameters, parts, dtype)
    metadata = _metadata(parameters, copied, dtype) | (sharding_info(offsets) if offsets else {})

    def write(job: Job) -> StreamFile:
        file = StreamFile(job.path, layout, {**job.metadata, **metadata}, early)
        try:
            for slot in layout.slots:
                file.add(job.averages[slot.name] if slot.is_average else parts[slot.name])
            file.finish()
        except BaseException:
            file.abandon()
            raise
        return file

    return _all_or_none([functools.partial(write, job) for job in jobs])


def _all_or_none(tasks: Sequence[Callable[[], StreamFile]]) -> list[StreamFile]:
    with ThreadPoolExecutor(max_workers=min(len(tasks), 4)) as pool:
        futures = [pool.submit(task) for task in tasks]
    errors = [error for future in futures if (error := future.exception()) is not None]
    files = [future.result() for future in futures if future.exception() is None]
    if errors:
        for file in files:
            file.abandon()
        raise errors[0]
    return files


def _write_gathered(
    parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype, early: bool
) -> tuple[list[StreamFile], Exception | None]:
    """Files of whole tensors on the first process, complete or with the error. All processes take part to the end."""
    copied = parameters.copied()
    like = parameters.given | copied
    layout, metadata = _layout(parameters, like, dtype), _metadata(parameters, copied, dtype)
    files: list[StreamFile] = []
    errors: list[Exception] = []

    def attempt(action: Callable[..., object], *arguments: object) -> None:
        if distributed.rank() == 0 and not errors:
            try:
                action(*arguments)
            except Exception as error:
                errors.append(error)

    def begin(job: Job) -> None:
        files.append(StreamFile(job.path, layout, {**job.metadata, **metadata}, early))

    for job in jobs:
        attempt(begin, job)
        for slot in layout.slots:
            part = job.averages[slot.name] if slot.is_average else distributed.local(like[slot.name])
            tensor = distributed.gathered(part, like[slot.name])
            attempt(lambda held: files[-1].add(held), tensor)
        attempt(lambda: files[-1].finish())
    return files, errors[0] if errors else None


def _layout(parameters: ParameterSet, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Layout:
    def slot(name: str, tensor: torch.Tensor) -> Slot:
        is_average = name in parameters.averaged
        kept = torch.complex64 if tensor.is_complex() else dtype
        return Slot(name, kept if is_average else tensor.dtype, tuple(tensor.shape), is_average)

    return Layout(slot(*item) for item in tensors.items())


def _metadata(parameters: ParameterSet, copied: Iterable[str], dtype: torch.dtype) -> dict[str, str]:
    return {
        "dtype": name_of(dtype),
        "parameter_set": parameters.digest,
        "copied": json.dumps(sorted(copied)),
        "tied": json.dumps(parameters.tied),
    }


def _offsets(parameters: ParameterSet) -> Offsets:
    """What this process writes of a sharded model, and where it begins in the whole tensor."""
    offsets: Offsets = {}
    for name, tensor in (parameters.given | parameters.copied()).items():
        shape, offset = distributed.place(tensor)
        if not distributed.is_sharded(tensor) or not tensor.numel():
            if distributed.rank() == 0:
                offsets[name] = [0] * tensor.dim()
        elif distributed.is_first_copy(tensor) and 0 not in shape:
            offsets[name] = list(offset)
    return offsets
