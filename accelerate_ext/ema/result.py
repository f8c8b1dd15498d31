"""What a reconstruction is and what it is expected to be worth, before and after it is done."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .fit import Kind
from .inputs import Source
from .profile import Array

WARN_ABOVE = 0.05
REFUSE_ABOVE = 0.50


class ReconstructionWarning(UserWarning):
    """A result that will differ visibly from the average that would have been kept."""


class ReconstructionError(ValueError):
    """A result that would be too far from the average that was asked for."""


@dataclass(frozen=True)
class Reconstruction:
    """What was built, or for a dry run would be, and how close to expect it to the averages that were asked for.

    Shapes: ``weights`` (I, O), rows in the order of ``sources``. Other tuples have an entry for each wanted average.
    ``predicted_error`` is the expected error, as a fraction of the distance between the average and the model's own
    weights at that step.
    ``tensors`` holds the results where no output was asked for.
    """

    step: float
    sigma_rel: tuple[float, ...]
    fit: Kind
    sources: tuple[Source, ...]
    weights: Array
    predicted_error: tuple[float, ...]
    profile_residual: tuple[float, ...]
    effective_sigma_rel: tuple[float, ...]
    widths: Mapping[str, float]
    width_errors: Mapping[str, float]
    num_elements: int
    read_bytes: int
    output_bytes: int
    memory_bytes: int
    paths: tuple[Path, ...] = ()
    tensors: tuple[dict[str, torch.Tensor], ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; nan becomes None."""
        results = zip(
            self.sigma_rel, self.predicted_error, self.profile_residual, self.effective_sigma_rel, strict=True
        )
        names = ("sigma_rel", "predicted_error", "profile_residual", "effective_sigma_rel")
        return {
            "step": self.step,
            "fit": self.fit,
            "results": [
                dict(zip(names, (value if math.isfinite(value) else None for value in row), strict=True))
                | {"path": str(self.paths[i]) if self.paths else None, "weights": self.weights[:, i].tolist()}
                for i, row in enumerate(results)
            ],
            "sources": [
                {"path": str(source.path), "step": source.step, "sigma_rel": source.sigma_rel, "kind": source.kind}
                for source in self.sources
            ],
            "widths": {
                name: {"sigma_rel": width, "predicted_error": self.width_errors[name]}
                for name, width in self.widths.items()
            },
            "num_elements": self.num_elements,
            "read_bytes": self.read_bytes,
            "output_bytes": self.output_bytes,
            "memory_bytes": self.memory_bytes,
        }


def judge(result: Reconstruction, force: bool) -> None:
    """Warns about results that are expected to be visibly off, and refuses those that are expected to be far off.

    Raises: ReconstructionError if any expected error is above 50 %, unless ``force``.
    """
    expected = [(f"{width:g}", error) for width, error in zip(result.sigma_rel, result.predicted_error, strict=True)]
    expected += [(f"{width:g} ({name})", result.width_errors[name]) for name, width in result.widths.items()]
    far = [f"sigma_rel {name}: {error:.0%}" for name, error in expected if not error <= REFUSE_ABOVE]
    off = [f"sigma_rel {name}: {error:.1%}" for name, error in expected if not error <= WARN_ABOVE]
    advice = "of the distance between the average and the model itself; more or denser snapshots lower it"
    if far and not force:
        raise ReconstructionError(
            f"the expected error must not be above {REFUSE_ABOVE:.0%}, it is {', '.join(far)} {advice}. Choose a "
            "width or a step nearer to the stored ones, or go on all the same (force=True, --force)"
        )
    if off:
        warnings.warn(f"expected error for {', '.join(off)} {advice}", ReconstructionWarning, stacklevel=3)
