"""Writing averages as model files: names, copies, casts, ranks; all averages of a moment, or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from . import distributed
from .header import sharding_info
from .parameters import ParameterSet
from .stream_file import StreamFile
from .tensor_file import Layout, Slot, synchronise_folder

DTYPE_NAMES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}

Offsets = dict[str, list[int]]


@dataclass(frozen=True)
class Job:
    """One average to be written to `path` with `metadata`."""

    path: Path
    averages: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]


def stored_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The dtype by any of its names. Raises: ValueError unless float32, bfloat16 or float16."""
    found = DTYPE_NAMES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPE_NAMES.values():
        raise ValueError(f"snapshots are float32, bfloat16 or float16, got {dtype!r}")
    return found


def write_snapshots(parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype, sharded: bool) -> None:
    """Write every job's file, or none of them, with the frozen parameters and buffers as they stand.

    Of a sharded model every process must call this. Files of whole tensors are written by the first process, which
    holds one whole tensor at a time; with `sharded`, each process writes its parts. Without sharded parameters the
    first process writes, and the others return at once.

    Raises: SnapshotError naming tensors with NaN; OSError with what to do. On all processes, if on any.
    """
    if not parameters.is_sharded:
        if distributed.rank() == 0:
            _publish(_write_parts(parameters, jobs, dtype, None))
        return
    files: list[StreamFile] = []
    error: Exception | None = None
    try:
        if sharded:
            files = _write_parts(parameters, jobs, dtype, _offsets(parameters))
        else:
            files, error = _write_gathered(parameters, jobs, dtype)
    except Exception as caught:
        error = caught
    errors = distributed.all_errors(error)
    try:
        if error is not None:
            raise error
        if errors:
            raise RuntimeError("another process could not write its part of the snapshot: " + "; ".join(errors))
        _publish(files)
    finally:
        for file in files:
            file.abandon()
        distributed.barrier()


def _write_parts(
    parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype, offsets: Offsets | None
) -> list[StreamFile]:
    """Finished files of this process's tensors, one thread a file; of all tensors if there are no offsets."""
    copied = parameters.copied()
    held = parameters.averaged | copied
    parts = {name: distributed.local(held[name]) for name in (held if offsets is None else offsets)}
    layout = _layout(parameters, parts, dtype)
    metadata = _metadata(parameters, copied, dtype) | (sharding_info(offsets) if offsets else {})

    def write(job: Job) -> StreamFile:
        file = StreamFile(job.path, layout, {**job.metadata, **metadata})
        try:
            for slot in layout.slots:
                file.add(job.averages[slot.name] if slot.is_average else parts[slot.name])
            file.finish()
        except BaseException:
            file.abandon()
            raise
        return file

    return _all_or_none([lambda job=job: write(job) for job in jobs])  # type: ignore[misc]


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
    parameters: ParameterSet, jobs: Sequence[Job], dtype: torch.dtype
) -> tuple[list[StreamFile], Exception | None]:
    """Files of whole tensors on the first process, finished or with the error. All processes take part to the end."""
    copied = parameters.copied()
    like = parameters.given | copied
    layout, metadata = _layout(parameters, like, dtype), _metadata(parameters, copied, dtype)
    is_first, files, errors = distributed.rank() == 0, [], []  # type: ignore[var-annotated]

    def attempt(action: Callable[[], object]) -> None:
        if is_first and not errors:
            try:
                action()
            except Exception as error:
                errors.append(error)

    for job in jobs:
        attempt(lambda job=job: files.append(StreamFile(job.path, layout, {**job.metadata, **metadata})))  # type: ignore[misc]
        for slot in layout.slots:
            part = job.averages[slot.name] if slot.is_average else distributed.local(like[slot.name])
            tensor = distributed.whole(part, like[slot.name])
            attempt(lambda tensor=tensor: files[-1].add(tensor))  # type: ignore[misc]
        attempt(lambda: files[-1].finish())
    return files, errors[0] if errors else None


def _publish(files: Sequence[StreamFile]) -> None:
    try:
        for file in files:
            file.publish()
    finally:
        for file in files:
            file.abandon()
    if files:
        synchronise_folder(files[0].path.parent)


def _layout(parameters: ParameterSet, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Layout:
    def slot(name: str, tensor: torch.Tensor) -> Slot:
        is_average = name in parameters.averaged
        kept = torch.complex64 if tensor.is_complex() else dtype
        return Slot(name, kept if is_average else tensor.dtype, tuple(tensor.shape), is_average)

    return Layout(slot(*item) for item in tensors.items())


def _metadata(parameters: ParameterSet, copied: Iterable[str], dtype: torch.dtype) -> dict[str, str]:
    return {
        "dtype": str(dtype).removeprefix("torch."),
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
