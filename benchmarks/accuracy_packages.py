"""The packages whose accuracy `benchmarks.ema_accuracy` compares, as they are used.

Each follows a model, with an update a step, and goes through its own files and its own synthesis.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .trajectories import TARGETS, Trajectory


def other_packages() -> dict[str, Callable[[Trajectory, Path, Sequence[int]], dict[int, list[float]]]]:
    found: dict[str, Callable[[Trajectory, Path, Sequence[int]], dict[int, list[float]]]] = {}
    if importlib.util.find_spec("ema_pytorch"):
        found["ema-pytorch, every step, float32"] = lambda p, d, c: ema_pytorch(p, d, c, 1, torch.float32)
        found["ema-pytorch, as it comes"] = lambda p, d, c: ema_pytorch(p, d, c, 100, torch.float16)
    if importlib.util.find_spec("posthoc_ema"):
        found["pytorch-posthoc-ema, every step"] = lambda p, d, c: posthoc(
            p, d, c, {"update_every": 1, "update_after_step": 0}
        )
        found["pytorch-posthoc-ema, as it comes"] = lambda p, d, c: posthoc(p, d, c, {})
    return found


class Follower(nn.Module):
    """A model whose weights are set from outside."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(values.copy()))

    def go_to(self, values: np.ndarray) -> None:
        self.w.data.copy_(torch.from_numpy(values))


def subsets(folder: Path, counts: Sequence[int], steps: int) -> Iterator[tuple[int, Path]]:
    """The package's files, with only every so many of them left."""
    for count in counts:
        part = folder.with_name(f"{folder.name}-{count}")
        part.mkdir()
        for file in folder.glob("*.pt"):
            if int(file.stem.split(".")[1]) % (steps // count) == 0:
                shutil.copy(file, part / file.name)
        yield count, part


def ema_pytorch(
    path: Trajectory, folder: Path, counts: Sequence[int], every: int, dtype: torch.dtype
) -> dict[int, list[float]]:
    from ema_pytorch import PostHocEMA

    model, steps = Follower(path.values[0]), len(path.values)
    common = {"sigma_rels": (0.05, 0.10), "update_every": every, "checkpoint_dtype": dtype}
    kept = PostHocEMA(model, checkpoint_every_num_steps=steps // max(counts), checkpoint_folder=str(folder), **common)
    for values in path.values:
        model.go_to(values)
        kept.update()
    errors = {}
    for count, part in subsets(folder, counts, steps):
        reader = PostHocEMA(model, checkpoint_folder=str(part), **common)
        built = [reader.synthesize_ema_model(sigma_rel=width).ema_model.w for width in TARGETS]
        errors[count] = [path.error(w.detach().double().numpy(), s) for w, s in zip(built, TARGETS, strict=True)]
    return errors


def posthoc(path: Trajectory, folder: Path, counts: Sequence[int], options: dict) -> dict[int, list[float]]:
    from posthoc_ema import PostHocEMA

    model, steps = Follower(path.values[0]), len(path.values)
    common = {"sigma_rels": (0.05, 0.10), "max_checkpoints": 10_000}
    every = steps // max(counts)
    kept = PostHocEMA.from_model(model, checkpoint_dir=folder, checkpoint_every=every, **common, **options)
    for values in path.values:
        model.go_to(values)
        kept.update_(model)
    errors: dict[int, list[float]] = {}
    for count, part in subsets(folder, counts, steps):
        reader = PostHocEMA.from_path(part, model, **common)
        errors[count] = []
        for width in TARGETS:
            with reader.state_dict(sigma_rel=width) as state:
                errors[count].append(path.error(state["w"].double().numpy(), width))
    return errors
