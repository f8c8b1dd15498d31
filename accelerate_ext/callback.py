"""Applied updates in a `transformers.Trainer` as it is released."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from accelerate.optimizer import AcceleratedOptimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .arguments import limit
from .averages import Average, Averages, write_states
from .backward import BackwardPasses
from .checkpoint import counts_from_states
from .errors import CheckpointError, SkippedUpdatesError
from .ledger import Ledger
from .optimizer import CountedOptimizer, count_steps_of, stop_counting_steps_of
from .streak import MAX_CONSECUTIVE_SKIPS, too_many_skips
from .update import Verdict

_IN_STATE = "accelerate_ext.applied_step"
_AVERAGES = "averages"  # names of those that lie beside the counts


class MovingAverage(Protocol):
    """What moves with applied updates."""

    def update(self, t: int, /) -> Any: ...


class AppliedStepCallback(TrainerCallback):
    """Counts applied and skipped updates, logs them, and moves averages with applied updates only.

    The Trainer's own `global_step` counts attempts. Logs get `applied_step` and `skipped_steps`, in
    `state.log_history` and for callbacks behind this one; to reach reporting integrations, which come first, insert
    it at the front: `trainer.callback_handler.callbacks.insert(0, callback)`. Counts are kept in `trainer_state.json`
    and averages beside it, and both are taken up again when training resumes.

    Args:
        ema: an object whose `update(applied_step)` is called behind each applied update. Saved and resumed when it
            has `state_dict` and `load_state_dict`. Snapshots that it has under way are waited for before a checkpoint
            and at the end of training.
        stop_at_applied_step: ends training once so many updates are applied. The Trainer's `max_steps` must leave
            room for skipped ones.
        max_consecutive_skips: so many skipped updates in a row raise SkippedUpdatesError; None never does.
    Raises: TypeError if `ema` has no `update`; ValueError for a number that is no limit; when training resumes,
        CheckpointError if the average that the checkpoint holds cannot be found: a folder outside `output_dir` must
        stand in `TrainingArguments(resume_from_checkpoint=...)`, since callbacks are not told what `train` is given.
    """

    def __init__(
        self,
        ema: MovingAverage | None = None,
        stop_at_applied_step: int | None = None,
        max_consecutive_skips: int | None = MAX_CONSECUTIVE_SKIPS,
    ) -> None:
        if ema is not None and not callable(getattr(ema, "update", None)):
            raise TypeError(f"`ema` must have an `update(applied_step)` method, got {type(ema).__name__}")
        self.ema = ema
        self.stop_at_applied_step = limit("stop_at_applied_step", stop_at_applied_step)
        self.max_consecutive_skips = limit("max_consecutive_skips", max_consecutive_skips)
        self._averages = Averages()
        if hasattr(ema, "state_dict") and hasattr(ema, "load_state_dict"):
            self._averages.add("ema", cast(Average, ema))
        self._passes = BackwardPasses()
        self._optimizer: CountedOptimizer | None = None
        self._counts = Ledger()

    @property
    def applied_step(self) -> int:
        """How many updates were applied."""
        return self._read().applied

    @property
    def attempted_step(self) -> int:
        """How many updates were attempted."""
        return self._read().attempted

    @property
    def skipped_steps(self) -> int:
        """How many updates were skipped."""
        return self._read().skipped

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = kwargs.get("optimizer")
        if not isinstance(optimizer, AcceleratedOptimizer):
            raise TypeError(
                f"the Trainer's optimizer must be prepared by Accelerate, got {type(optimizer).__name__}: "
                "applied updates cannot be told from skipped ones"
            )
        self._optimizer = count_steps_of(optimizer)
        if not self._is_told_by(self._optimizer):  # else it counts on, after an error that the Trainer recovered from
            self._passes = BackwardPasses()
            self._optimizer.start_counting(None, self._passes)
            self._optimizer.restart(Ledger().state_dict())
        if state.global_step:
            self._resume(args, state, self._optimizer)
        self._counts = Ledger(**self._read().state_dict())

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._passes.report()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = self._optimizer
        count = getattr(optimizer, "count", None)
        if optimizer is not None and count is not None and optimizer.passes is self._passes:
            # DeepSpeed: the engine has stepped within backward(), and no attached Accelerator saw it
            count(Verdict(skipped=bool(getattr(optimizer.optimizer, "overflow", False))))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        now = self._read()
        if self.ema is not None and now.applied > self._counts.applied:
            self.ema.update(now.applied)
        self._counts = Ledger(**now.state_dict())
        _stored_in(state)[_IN_STATE] = {**now.state_dict(), _AVERAGES: self._averages.names()}
        most = self.max_consecutive_skips
        if most is not None and now.skipped_in_a_row >= most:
            raise SkippedUpdatesError(too_many_skips(now.skipped_in_a_row, most, [self._optimizer], None))
        if self.stop_at_applied_step is not None and now.applied >= self.stop_at_applied_step:
            control.should_training_stop = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        now = self._read()
        for record in (logs, state.log_history[-1] if state.log_history else None):
            if record is not None:
                record.update(applied_step=now.applied, skipped_steps=now.skipped)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        states = self._averages.states()
        folder = _checkpoint_folder(args, state)
        if not states or not state.is_world_process_zero:
            return
        if folder.is_dir():
            write_states(folder, states)
        else:  # a trial of a hyperparameter search has a folder of its own, of which callbacks are not told
            warnings.warn(f"there is no {folder}: the average was not saved with this checkpoint", stacklevel=2)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._counts = Ledger(**self._read().state_dict())
        optimizer, self._optimizer = self._optimizer, None
        if isinstance(optimizer, CountedOptimizer) and optimizer.passes is self._passes:
            stop_counting_steps_of(optimizer)
        if (wait := getattr(self.ema, "wait_for_snapshots", None)) is not None:
            wait()  # `train` returns, or fails, knowing what is on the disk
        stop = self.stop_at_applied_step
        if stop is not None and self._counts.applied < stop:
            warnings.warn(
                f"training ended with {self._counts.applied} updates applied in place of {stop}: "
                f"{self._counts.skipped} were skipped; raise `max_steps` or `num_train_epochs`",
                RuntimeWarning,
                stacklevel=2,
            )

    def _read(self) -> Ledger:
        """The counts as they stand; the last ones where another callback has ended the counting."""
        optimizer = self._optimizer
        return optimizer.tally.read() if isinstance(optimizer, CountedOptimizer) else self._counts

    def _is_told_by(self, optimizer: CountedOptimizer) -> bool:
        """Whether the optimizer counts already, for an attached Accelerator or for this callback."""
        attempts, passes = (getattr(optimizer, name, None) for name in ("attempts", "passes"))
        return attempts is not None or passes is self._passes

    def _resume(self, args: TrainingArguments, state: TrainerState, optimizer: CountedOptimizer) -> None:
        stored: dict[str, Any] | None = _stored_in(state).get(_IN_STATE)
        if stored is None:
            stored = counts_from_states([optimizer]).attempts
            warnings.warn(
                f"the checkpoint was written without AppliedStepCallback: continuing at {stored['applied']} applied "
                "updates, as the optimizer's state says",
                stacklevel=2,
            )
        if optimizer.attempts is not None:
            optimizer.attempts.restart(dict(stored))
        optimizer.restart(dict(stored))
        self._load_averages(args, state, cast(Sequence[str], stored.get(_AVERAGES, ())))

    def _load_averages(self, args: TrainingArguments, state: TrainerState, saved: Sequence[str]) -> None:
        """Load from the checkpoint that the Trainer resumes, which it tells callbacks of only in its arguments."""
        usual, given = _checkpoint_folder(args, state), args.resume_from_checkpoint
        folders = [Path(given), usual] if isinstance(given, str) else [usual]
        resumed = next((folder for folder in folders if _holds(folder, state)), None)
        lost = set(saved).intersection(self._averages.names())
        if resumed is None and lost and not state.is_hyper_param_search:
            raise CheckpointError(
                f"the checkpoint that training resumes from must be where callbacks can find it, since it holds the "
                f"average; it is not {' or '.join(map(str, folders))}. Say where it is: "
                "`TrainingArguments(resume_from_checkpoint=...)`, with the folder that `train` is given"
            )
        self._averages.load(resumed or usual)


def _holds(folder: Path, state: TrainerState) -> bool:
    """Whether a checkpoint is the one that a state was read from, and not that of another run at the same step."""
    try:
        found = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    except (OSError, ValueError, TypeError):
        return False
    told = [
        json.dumps([one.global_step, one.log_history, _stored_in(one).get(_IN_STATE)], default=str)
        for one in (found, state)
    ]
    return told[0] == told[1]


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".", f"checkpoint-{state.global_step}")


def _stored_in(state: TrainerState) -> dict[str, Any]:
    """What the Trainer keeps of callbacks in `trainer_state.json`; a dict, once training has begun."""
    return cast(dict[str, Any], state.stateful_callbacks)
