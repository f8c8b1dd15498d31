"""DeepSpeed: the engine steps inside `backward()`, and keeps its own counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import accelerate
from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper

from .checkpoint import StoredCounts
from .optimizer import CountedOptimizer
from .update import Verdict

if TYPE_CHECKING:
    from .attempts import Attempts


def engine_of(accelerator: accelerate.Accelerator) -> Any:
    """The DeepSpeed engine that an Accelerator has prepared; None if there is none."""
    return getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)


class EngineCounts(NamedTuple):
    """What a DeepSpeed engine has counted."""

    attempted: int
    skipped: int

    @classmethod
    def of(cls, engine: Any) -> EngineCounts:
        return cls(attempted=int(engine.global_steps), skipped=int(engine.skipped_steps))

    def verdict_since(self, before: EngineCounts) -> Verdict | None:
        """What became of the engine's step since then; None when it only accumulated."""
        if self.attempted == before.attempted:
            return None
        return Verdict(skipped=self.skipped > before.skipped)


class CountedDeepSpeedOptimizer(CountedOptimizer, DeepSpeedOptimizerWrapper):
    """DeepSpeed's optimizer with counts. `step()` and `zero_grad()` do nothing: `backward()` has done it all."""

    counts_for = DeepSpeedOptimizerWrapper

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        pass

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        pass

    def count(self, verdict: Verdict) -> None:
        """Take over what the engine said about its step."""
        self.use_up_gradients()
        self._last = verdict
        self.tally.record(verdict)


@contextmanager
def count_engine_step(engine: Any, attempts: Attempts) -> Iterator[None]:
    """Round one `backward()` of an engine: counts the step that it made in it, if it made one."""
    before = EngineCounts.of(engine)
    scale_before = getattr(engine.optimizer, "loss_scale", None)
    yield
    verdict = EngineCounts.of(engine).verdict_since(before)
    if verdict is None:
        return
    optimizer = next((o for o in attempts.optimizers() if isinstance(o, CountedDeepSpeedOptimizer)), None)
    if optimizer is not None:
        optimizer.count(verdict)
    attempts.stepped(optimizer, verdict, scale_before=scale_before)


def counts_of_engine(engine: Any, stored: StoredCounts | None, num_optimizers: int) -> StoredCounts:
    """The counts that an engine has loaded from its own checkpoint; how many skips came last is stored beside it."""
    counts = EngineCounts.of(engine)
    in_a_row = stored.attempts["skipped_in_a_row"] if stored is not None else 0
    state = {
        "attempted": counts.attempted,
        "applied": counts.attempted - counts.skipped,
        "skipped": counts.skipped,
        "skipped_in_a_row": min(in_a_row, counts.skipped),
    }
    return StoredCounts(state, [dict(state) for _ in range(num_optimizers)])
