"""One rewrite a file; `RULES` is the order in which they run."""

from __future__ import annotations

from ..options import Rule
from .gate_bookkeeping import gate_bookkeeping

RULES: tuple[Rule, ...] = (gate_bookkeeping,)
