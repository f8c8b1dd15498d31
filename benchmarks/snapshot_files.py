"""Snapshots of this package, written from tensors that no training has made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from accelerate_ext.ema import gamma_from_sigma_rel
from accelerate_ext.ema.snapshot import FORMAT
from accelerate_ext.ema.snapshot_folder import file_name


def save_snapshot(folder: Path, t: int, sigma_rel: float, tensors: Mapping[str, torch.Tensor]) -> None:
    """The file of one average in float32, as a run would have left it in the folder."""
    metadata = {
        "format": "pt",
        "snapshot_format": FORMAT,
        "t": str(t),
        "unit": "updates",
        "step": str(t),
        "sigma_rel": repr(sigma_rel),
        "gamma": repr(gamma_from_sigma_rel(sigma_rel)),
        "run": "benchmark",
        "parameter_set": "benchmark",
        "dtype": "float32",
        "rounding_error": "0",
        "copied": "[]",
        "tied": "{}",
    }
    save_file(dict(tensors), folder / file_name(t, sigma_rel), metadata=metadata)
