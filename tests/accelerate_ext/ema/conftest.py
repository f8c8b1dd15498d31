"""Small training runs that are known at every step, and what was stored of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from accelerate_ext.ema import profile

SHAPES = {"embed.weight": (20, 15), "layer.weight": (33, 9), "layer.bias": (9,), "scale": ()}


@dataclass
class KnownRun:
    """A random walk of a model's weights. Shapes: walk (T, elements), float64; row 0 is step 1."""

    walk: np.ndarray
    folder: Path

    def tensors(self, flat: np.ndarray) -> dict[str, torch.Tensor]:
        sizes = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])[:-1]
        parts = np.split(flat, sizes)
        return {
            name: torch.from_numpy(part.reshape(shape))
            for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
        }

    def average(self, t: int, sigma_rel: float) -> dict[str, torch.Tensor]:
        """The average as one update a step keeps it, in float64."""
        weights = profile.step_weights(t, profile.gamma_from_sigma_rel(sigma_rel))
        return self.tensors(weights @ self.walk[:t])

    def model(self, t: int) -> dict[str, torch.Tensor]:
        return self.tensors(self.walk[t - 1])

    def save(
        self, t: int, sigma_rel: float, dtype: torch.dtype = torch.float32, tensors=None, **metadata: str
    ) -> Path:
        """A snapshot file, as its format is documented."""
        values = {k: v.to(dtype) for k, v in (tensors or self.average(t, sigma_rel)).items()}
        values["steps_seen"] = torch.tensor(t)
        described = {
            "format": "pt",
            "snapshot_format": "accelerate_ext.ema/1",
            "t": str(t),
            "unit": "updates",
            "step": str(t),
            "sigma_rel": f"{sigma_rel:.17g}",
            "gamma": f"{profile.gamma_from_sigma_rel(sigma_rel):.17g}",
            "run": "run-1",
            "parameter_set": "set-1",
            "dtype": str(dtype).removeprefix("torch."),
            "rounding_error": "0",
            "copied": json.dumps(["steps_seen"]),
            "tied": "{}",
        }
        path = self.folder / f"{t:012d}-{sigma_rel:.6f}.safetensors"
        self.folder.mkdir(exist_ok=True)
        save_file(values, path, metadata=described | metadata)
        return path

    def save_all(self, count: int, widths=(0.05, 0.10), dtype: torch.dtype = torch.float32) -> Path:
        total = len(self.walk)
        for index in range(1, count + 1):
            for width in widths:
                self.save(total * index // count, width, dtype)
        return self.folder

    def error(self, got: dict[str, torch.Tensor], t: int, sigma_rel: float) -> float:
        """Distance from the true average over the distance of that from the model."""
        wanted, model = self.average(t, sigma_rel), self.model(t)
        off = sum(float(((got[name].double() - wanted[name]) ** 2).sum()) for name in wanted)
        apart = sum(float(((model[name] - wanted[name]) ** 2).sum()) for name in wanted)
        return (off / apart) ** 0.5


@pytest.fixture
def known_run(tmp_path) -> KnownRun:
    """1,600 steps of 607 weights of size 0.3, which move by 0.0005 a step; nothing stored yet."""
    generator = np.random.default_rng(7)
    start = generator.standard_normal(607) * 0.3
    return KnownRun(start + generator.standard_normal((1600, 607)).cumsum(axis=0) * 5e-4, tmp_path / "snapshots")
