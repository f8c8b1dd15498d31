"""Averages of a model's weights that move with applied updates: EMA, post-hoc EMA, and what is built afterwards."""

from .average import EMA
from .check import Check, check
from .fit import Fit
from .inputs import InputOptions, find_sources
from .metric import MetricError
from .parameters import ParameterSetError
from .plan import Plan, plan
from .posthoc import PostHocEMA
from .profile import gamma_from_sigma_rel, sigma_rel_from_gamma
from .reconstruct import reconstruct
from .result import Reconstruction, ReconstructionError, ReconstructionWarning
from .snapshot import Snapshot, SnapshotError, list_snapshots
from .sweep import Sweep, sweep
from .thin import Thinning, thin

__all__ = [
    "EMA",
    "Check",
    "Fit",
    "InputOptions",
    "MetricError",
    "ParameterSetError",
    "Plan",
    "PostHocEMA",
    "Reconstruction",
    "ReconstructionError",
    "ReconstructionWarning",
    "Snapshot",
    "SnapshotError",
    "Sweep",
    "Thinning",
    "check",
    "find_sources",
    "gamma_from_sigma_rel",
    "list_snapshots",
    "plan",
    "reconstruct",
    "sigma_rel_from_gamma",
    "sweep",
    "thin",
]
