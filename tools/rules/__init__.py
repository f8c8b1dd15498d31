"""One rewrite a file; `RULES` is the order in which they run."""

from __future__ import annotations

from ..work import Rule
from .batch_counters import batch_counters
from .cross_multiples import cross_multiples
from .follow_arguments import follow_arguments
from .follow_expressions import follow_expressions
from .gate_bookkeeping import gate_bookkeeping
from .gate_continue import gate_continue
from .gate_scheduler import gate_scheduler
from .gate_triggers import gate_triggers
from .gate_unguarded import gate_unguarded
from .hidden_counters import hidden_counters
from .keep_own_flag import keep_own_flag
from .leave import leave
from .leave_batches import leave_batches
from .refuse_guards import refuse_guards
from .unclear_counters import unclear_counters
from .warn_budgets import warn_budgets
from .warn_counters import warn_counters
from .warn_flags import warn_flags

RULES: tuple[Rule, ...] = (
    gate_continue,  # first: the blocks that decide which counters now count applied updates
    gate_unguarded,  # each takes in the blocks that stand among its statements
    gate_bookkeeping,
    leave_batches,  # behind the blocks: whether updates are counted elsewhere
    cross_multiples,
    gate_triggers,  # behind the blocks: what fires on their counters
    follow_arguments,
    follow_expressions,
    gate_scheduler,
    keep_own_flag,  # last of the edits: every rule above may ask for a kept flag
    batch_counters,
    leave,
    refuse_guards,
    unclear_counters,
    hidden_counters,
    warn_budgets,
    warn_counters,
    warn_flags,
)
