"""Averages of any width, after the run, from what was stored during it.

Example:
    >>> from accelerate_ext.ema import reconstruct
    >>> reconstruct("run/ema", 0.15, output="model-0.15.safetensors").predicted_error  # doctest: +SKIP
    (0.0004,)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from ..staging import flush_folder
from .dtypes import RESULTS, dtype_of
from .fit import Kind
from .inputs import OUTPUT_PREFIX, WEIGHTS, InputOptions, Source, find_sources
from .prepare import Prepared, prepare
from .profile import gamma_from_sigma_rel
from .readers import Reader
from .result import Reconstruction, judge
from .stream import Sink
from .tensor_file import Layout, Slot, TensorFile

COPY_ELEMENTS = 2**20

Inputs = str | Path | Sequence[str | Path]


def reconstruct(
    inputs: Inputs,
    sigma_rel: float | Sequence[float],
    step: float | None = None,
    fit: Kind = "walk",
    *,
    output: str | Path | None = None,
    dtype: torch.dtype | str = "float32",
    widths: Mapping[str, float] | None = None,
    options: InputOptions | None = None,
    force: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool = False,
    dry_run: bool = False,
) -> Reconstruction:
    """Builds the averages of the given widths at the given step; several cost little more than one.

    Args:
        inputs: a folder of snapshots, or what else ``find_sources`` takes.
        step: applied step (or images) that the averages end at; the last one stored unless given.
        fit: "walk" expects weights that move like a random walk; "profile" is the paper's fit.
        output: one ``.safetensors`` file; a folder for several; in memory unless given.
        dtype: of the averaged tensors in the result.
        widths: sigma_rel for tensors whose names match a pattern, in place of the wanted one.
        force: go on although the expected error is above 50 %.
        dry_run: say what it would cost and give; nothing is read but headers and samples, nothing is written.

    Raises: SnapshotError naming the file, ReconstructionError, FileExistsError, OSError where there is no space, and
        ValueError; nothing is replaced then.
    Warns: ReconstructionWarning if the expected error is above 5 %.
    """
    targets, kept_dtype, step = _targets(sigma_rel), dtype_of(dtype, RESULTS), _step(step)
    sources = find_sources(inputs, options)
    with prepare(sources, end_of(sources, step), list(map(gamma_from_sigma_rel, targets)), fit, widths) as prepared:
        job = _Job(prepared, kept_dtype, targets, workers or min(8, os.cpu_count() or 1), progress)
        result = job.describe(widths or {}, in_memory=output is None)
        judge(result, force)
        return result if dry_run else job.build(result, output, overwrite)


def end_of(sources: Sequence[Source], step: float | None) -> float:
    """The time of the wanted averages on the clock of the stored ones: the last one, or the given step."""
    if step is None:
        return max(source.t for source in sources)
    return next((source.t for source in sources if source.step == step), float(step))


def output_paths(output: str | Path, targets: Sequence[float], step: float) -> tuple[Path, ...]:
    """One file for one average where a file is named, else a file for each in the folder.

    Raises: ValueError if several averages are to go into one file, or into one of another kind.
    """
    path = Path(output)
    if path.suffix in WEIGHTS and path.suffix != ".safetensors" and not path.is_dir():
        raise ValueError(f"the output must be a .safetensors file or a folder, got {path}")
    if path.suffix == ".safetensors":
        if len(targets) > 1:
            raise ValueError(f"{len(targets)} averages need a folder to be written to, got the file {path}")
        return (path,)
    return tuple(path / f"{OUTPUT_PREFIX}{step:012.0f}-{width:.6f}.safetensors" for width in targets)


class _Job:
    """The sums of one reconstruction and where they go."""

    def __init__(
        self, prepared: Prepared, dtype: torch.dtype, targets: tuple[float, ...], workers: int, progress: bool
    ):
        self.prepared, self.slots, self.targets = prepared, _slots(prepared, dtype), targets
        self.layout = Layout(self.slots)
        self.workers, self.progress = workers, progress
        wide = torch.float64 in {dtype, *prepared.dtypes}
        self.sums = prepared.sums(torch.float64 if wide else torch.float32)

    def describe(self, widths: Mapping[str, float], in_memory: bool) -> Reconstruction:
        prepared, count = self.prepared, len(self.targets)
        size = count * self.layout.num_bytes
        columns = {name: prepared.gammas.tolist().index(gamma_from_sigma_rel(w)) for name, w in widths.items()}
        ended = [source.step for source in prepared.sources if source.t == prepared.t]
        return Reconstruction(
            step=ended[0] if ended else prepared.t,
            sigma_rel=self.targets,
            fit=prepared.fit.kind,
            sources=tuple(prepared.sources),
            weights=prepared.fit.weights[:, :count],
            predicted_error=tuple(prepared.fit.predicted_error[:count].tolist()),
            profile_residual=tuple(prepared.fit.profile_residual[:count].tolist()),
            effective_sigma_rel=tuple(prepared.fit.effective_sigma_rel[:count].tolist()),
            widths=dict(widths),
            width_errors={name: float(prepared.fit.predicted_error[at]) for name, at in columns.items()},
            num_elements=prepared.num_elements,
            read_bytes=prepared.read_bytes,
            output_bytes=size,
            memory_bytes=self.sums.memory(self.workers) + (size if in_memory else 0),
        )

    def build(self, result: Reconstruction, output: str | Path | None, overwrite: bool) -> Reconstruction:
        if output is None:
            return replace(result, tensors=self.in_memory())
        paths = output_paths(output, self.targets, result.step)
        self.to_files(paths, result, overwrite)
        return replace(result, paths=paths)

    def in_memory(self) -> tuple[dict[str, torch.Tensor], ...]:
        results = tuple(
            {slot.name: torch.empty(math.prod(slot.shape), dtype=slot.dtype) for slot in self.slots}
            for _ in self.targets
        )

        def write(name: str, start: int, values: torch.Tensor) -> None:
            for result, row in zip(results, values, strict=True):
                result[name][start : start + row.numel()] = row

        self._run(write)
        return tuple({slot.name: result[slot.name].view(slot.shape) for slot in self.slots} for result in results)

    def to_files(self, paths: Sequence[Path], result: Reconstruction, overwrite: bool) -> None:
        if not overwrite and (found := next((path for path in paths if path.exists()), None)):
            raise FileExistsError(f"{found} exists; give another name, or overwrite it (overwrite=True, --overwrite)")
        files: list[TensorFile] = []
        try:
            for column, path in enumerate(paths):
                metadata = {"format": "pt", "accelerate_ext.ema": _summary(result, column)} | dict(self.prepared.tied)
                path.parent.mkdir(parents=True, exist_ok=True)
                files.append(TensorFile(path, self.layout, metadata, overwrite=overwrite))

            def write(name: str, start: int, values: torch.Tensor) -> None:
                for file, row in zip(files, values, strict=True):
                    file.write(name, start, row)

            self._run(write)
            for file in files:
                file.synchronise()
            for file in files:
                file.publish()
            flush_folder(paths[0].parent)
        finally:
            for file in files:
                file.abandon()

    def _run(self, write: Sink) -> None:
        total = self.prepared.num_elements
        with tqdm(
            total=total, unit=" elements", unit_scale=True, disable=not self.progress, desc="reconstruct"
        ) as bar:
            self.sums.run(write, self.workers, bar.update)
        for name, reader in self.prepared.copied.items():
            for start, piece in _pieces(name, reader):
                write(name, start, piece.expand(len(self.targets), -1))


def _pieces(name: str, reader: Reader) -> Iterator[tuple[int, torch.Tensor]]:
    size = math.prod(reader.shape(name))
    for start in range(0, size, COPY_ELEMENTS):
        piece = torch.empty(min(COPY_ELEMENTS, size - start), dtype=reader.dtype(name))
        reader.read(name, start, start + piece.numel(), piece)
        yield start, piece


def _targets(sigma_rel: float | Sequence[float]) -> tuple[float, ...]:
    targets = (float(sigma_rel),) if isinstance(sigma_rel, int | float) else tuple(map(float, sigma_rel))
    if not targets or len(set(targets)) != len(targets):
        raise ValueError(f"`sigma_rel` must be one or more different widths, got {list(targets)}")
    return targets


def _step(step: float | None) -> float | None:
    if step is not None and not 0 < step < math.inf:  # also refuses nan
        raise ValueError(
            f"`step` must be a finite number of applied steps above 0, or None for the last one stored, got {step}"
        )
    return step


def _slots(prepared: Prepared, dtype: torch.dtype) -> list[Slot]:
    """What the result holds, in the order of the newest file."""
    averaged = [Slot(name, dtype, prepared.readers[-1].shape(name)) for name in prepared.columns]
    return averaged + [Slot(name, r.dtype(name), r.shape(name), False) for name, r in prepared.copied.items()]


def _summary(result: Reconstruction, column: int) -> str:
    """What the metadata of a result says about it."""
    own = result.to_dict()["results"][column]
    kept = ("sigma_rel", "predicted_error", "profile_residual", "effective_sigma_rel")
    summary = {"step": result.step, "fit": result.fit, "num_sources": len(result.sources)}
    return json.dumps(summary | {name: own[name] for name in kept} | {"widths": dict(result.widths)})
