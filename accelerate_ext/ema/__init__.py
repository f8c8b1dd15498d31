"""Averages of a model's weights that move with applied updates: EMA, post-hoc EMA, and what is built afterwards."""

from .average import EMA
from .parameters import ParameterSetError
from .plan import Plan, plan
from .posthoc import PostHocEMA
from .snapshot import Snapshot, SnapshotError, list_snapshots
from .thin import Thinning, thin

__all__ = [
    "EMA",
    "ParameterSetError",
    "Plan",
    "PostHocEMA",
    "Snapshot",
    "SnapshotError",
    "Thinning",
    "list_snapshots",
    "plan",
    "thin",
]
