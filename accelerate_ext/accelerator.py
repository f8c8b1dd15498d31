"""An Accelerator that knows which updates were applied."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, cast

import accelerate
import torch

from . import epochs, ranks
from .arguments import check_switches, limit
from .attempts import Attempts
from .averages import Average, Averages
from .deepspeed import count_engine_step, engine_of
from .nonfinite import guard_for, warning_without_scaler
from .optimizer import CountedOptimizer, count_steps_of, stop_counting_steps_of
from .saving import CountsInCheckpoints, finish_saving, save_whole
from .streak import MAX_CONSECUTIVE_SKIPS
from .unscaling import Unscaling
from .update import Update
from .window import Window


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` that counts applied updates. Everything it could do before it does unchanged.

    Args: those of `accelerate.Accelerator`, and
        skip_nonfinite: without a GradScaler (bf16, fp32), skip updates whose gradients are not finite on all ranks.
            Costs one synchronisation an update, none with a fused optimizer.
        max_consecutive_skips: so many skipped updates in a row raise SkippedUpdatesError; None never does. With a
            fused optimizer the error may come up to 16 updates late, since nobody waits for the device.

    Example:
        accelerator = Accelerator(gradient_accumulation_steps=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            with accelerator.attempt(model) as update:
                accelerator.backward(loss_fn(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            if update.applied:
                ema.update(accelerator.applied_step)
    """

    _counts_for: type[accelerate.Accelerator] = accelerate.Accelerator
    _attempts: Attempts
    _unscaling: Unscaling

    def __init__(
        self,
        *args: Any,
        skip_nonfinite: bool = False,
        max_consecutive_skips: int | None = MAX_CONSECUTIVE_SKIPS,
        **kwargs: Any,
    ) -> None:
        max_consecutive_skips = limit("max_consecutive_skips", max_consecutive_skips)
        check_switches(skip_nonfinite=skip_nonfinite)
        super().__init__(*args, **kwargs)
        self._start_counting(skip_nonfinite, max_consecutive_skips)

    # Counts

    @property
    def applied_step(self) -> int:
        """How many updates were applied. Fetches what a fused optimizer left on the device."""
        return self._attempts.applied

    @property
    def attempted_step(self) -> int:
        """How many updates were attempted, applied or not: the position in the data. Never synchronises."""
        return self._attempts.attempted

    @property
    def skipped_steps(self) -> int:
        """How many updates were skipped."""
        return self._attempts.skipped

    @property
    def applied_step_tensor(self) -> torch.Tensor:
        """`applied_step` as an int64 tensor on `device`, without synchronising."""
        return self._attempts.applied_on_device(self.device)

    @property
    def update_applied(self) -> bool:
        """Whether the current update was applied: in place of `sync_gradients` in a guard behind the step."""
        return self._attempts.update.applied

    @property
    def max_consecutive_skips(self) -> int | None:
        """So many skipped updates in a row raise SkippedUpdatesError; None never does."""
        return self._attempts.max_consecutive_skips

    @max_consecutive_skips.setter
    def max_consecutive_skips(self, value: int | None) -> None:
        self._attempts.max_consecutive_skips = limit("max_consecutive_skips", value)

    # The loop

    def attempt(self, *models: torch.nn.Module) -> AbstractContextManager[Update]:
        """`accumulate()`, and what became of the update.

        Yields: the Update of this window; ask it behind `optimizer.step()`, in the block or after it.
        Raises: SkippedUpdatesError at the end of the block, if too many updates in a row were skipped; TypeError for
            anything but modules.
        """
        if wrong := [type(model).__name__ for model in models if not isinstance(model, torch.nn.Module)]:
            raise TypeError(f"`attempt` takes the models that are trained, got {', '.join(wrong)}")
        return cast(
            "AbstractContextManager[Update]", self._window(super().accumulate(*models), models, yields_update=True)
        )

    def accumulate(self, *models: torch.nn.Module) -> AbstractContextManager[None]:
        """As in Accelerate; the updates in it are counted as in `attempt()`."""
        return cast(
            "AbstractContextManager[None]", self._window(super().accumulate(*models), models, yields_update=False)
        )

    def epochs(
        self,
        max_applied_steps: int,
        updates_per_epoch: int,
        max_consecutive_skips: int | None | Literal["as before"] = "as before",
    ) -> Iterator[int]:
        """Epoch numbers until `max_applied_steps` updates are applied, counting those of a loaded checkpoint.

        The last epoch runs on when the number is reached within it: leave the inner loop by
        `accelerator.applied_step >= max_applied_steps`. After `load_state` the first number is the epoch to go on
        with; skip `accelerator.attempted_step % updates_per_epoch` windows in it. Once the epochs are used up that
        would do without skips, an epoch without an attempt, or one that skipped everything, ends it with a warning.

        Args:
            updates_per_epoch: windows in an epoch, a short last one included.
            max_consecutive_skips: sets the attribute of that name, where given.
        Raises: ValueError for numbers that make no plan.
        """
        if max_consecutive_skips != "as before":
            self.max_consecutive_skips = max_consecutive_skips
        plan = epochs.EpochPlan(max_applied_steps, updates_per_epoch, self.max_consecutive_skips)
        return epochs.run_epochs(plan, self._attempts.state_dict)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self._attempts.before_backward()
        engine = engine_of(self)
        if engine is None:
            super().backward(loss, **kwargs)
            return
        with count_engine_step(engine, self._attempts):
            super().backward(loss, **kwargs)

    # Gradients

    def unscale_gradients(
        self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None
    ) -> None:
        """As in Accelerate, but once an optimizer and attempt, and without optimizers that have no gradients."""
        if optimizer is None:
            wanted: list[Any] = list(self._unscaling.wanted())
        else:
            wanted = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._unscaling.unscale(wanted, super().unscale_gradients, self.sync_gradients)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """As in Accelerate; unscales only the optimizers that hold these parameters, and they skip together.

        A norm over the gradients of several optimizers goes into all of them: one that is not finite would leave NaN
        in the weights of the others, whose own gradients were found finite before.
        """
        parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
        with self._unscaling.of_owners(parameters):
            norm = super().clip_grad_norm_(parameters, max_norm, norm_type)
            self._unscaling.skip_together()
        return norm

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """As in Accelerate; unscales only the optimizers that hold these parameters."""
        parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
        with self._unscaling.of_owners(parameters):
            super().clip_grad_value_(parameters, clip_value)

    # Checkpoints and ranks

    def register_average(self, average: Average, name: str = "ema") -> None:
        """Keep an average of the weights in every further checkpoint, as `average_NAME.safetensors`.

        Its `state_dict()` is called on every process and written by the main one; `load_state` loads it.
        Raises: ValueError if the name is taken or no part of a file name; TypeError if the object has no state.
        """
        self._counts_in_checkpoints.averages.add(name, average)

    def check_ranks(self) -> None:
        """Make sure that all processes counted the same updates. Every process must call it.

        Raises: RankDisagreementError naming the ranks and their counts, on every rank.
        """
        counts = self._attempts.counts_by_name()
        ranks.check_agreement(ranks.gather_counts(counts, self))

    def save_state(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> Path:
        """As in Accelerate, with the counts; the checkpoint appears whole or not at all.

        Raises: RankDisagreementError if the ranks counted differently; nothing is written then.
        """
        self._attempts.settle()
        self.check_ranks()
        save = super().save_state
        return save_whole(self, output_dir, lambda folder: save(folder, *args, **kwargs))

    def load_state(self, input_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """As in Accelerate, with the counts. Without stored counts they come from the optimizer, with a warning.

        Raises: CheckpointError if a file that this package wrote is damaged.
        """
        self._attempts.settle()
        if input_dir is not None:
            finish_saving(self, input_dir)
        super().load_state(input_dir, *args, **kwargs)
        self._counts_in_checkpoints.restore()

    def free_memory(self, *objects: Any) -> Any:
        """As in Accelerate; the counts begin at zero again, and averages are no longer kept in checkpoints."""
        self._counts_in_checkpoints.averages = Averages()
        self._attempts.restart()
        self._attempts.passes.unhook()
        return super().free_memory(*objects)

    # Preparation

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        self._is_preparing = True
        try:
            prepared = super().prepare(*args, **kwargs)
        finally:
            self._is_preparing = False
        self._count_new_optimizers()  # now: FSDP2 has put its own parameters into them
        return prepared

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        prepared = super().prepare_optimizer(optimizer, *args, **kwargs)
        if not self._is_preparing:
            self._count_new_optimizers()
        return prepared

    def _start_counting(self, skip_nonfinite: bool, max_consecutive_skips: int | None) -> None:
        self._is_preparing = False
        self._attempts = Attempts(self._prepared_optimizers, max_consecutive_skips)
        if skip_nonfinite:
            self._attempts.guard = guard_for(self)
        self._attempts.warning_without_scaler = warning_without_scaler(self)
        self._unscaling = Unscaling(self._attempts)
        self._counts_in_checkpoints = CountsInCheckpoints(self, self._attempts)
        self._count_new_optimizers()

    def _stop_counting(self) -> None:
        self._attempts.settle()
        self._attempts.passes.unhook()
        self._counts_in_checkpoints.unhook()
        for optimizer in self._optimizers:
            if isinstance(optimizer, CountedOptimizer):
                stop_counting_steps_of(optimizer)
        del self._attempts, self._unscaling, self._counts_in_checkpoints, self._is_preparing

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickle counts for itself, from where it was; its optimizers have lost their tie on the way."""
        self.__dict__.update(state)
        self._count_new_optimizers()

    def _window(
        self, inner: AbstractContextManager[None], models: tuple[torch.nn.Module, ...], yields_update: bool
    ) -> Window:
        return Window(self._attempts, self.gradient_state, inner, models, yields_update)

    def _prepared_optimizers(self) -> list[Any]:
        return self._optimizers

    def _count_new_optimizers(self) -> None:
        for prepared in self._optimizers:
            optimizer = count_steps_of(prepared)
            if getattr(optimizer, "attempts", None) is not self._attempts:
                optimizer.start_counting(self._attempts, self._attempts.passes)
                for group in optimizer.param_groups:
                    self._attempts.passes.watch(group["params"])


def _signature() -> inspect.Signature:
    """Accelerate's arguments and ours, for editors and for callers that look at signatures."""
    theirs, ours = (inspect.signature(cls.__init__) for cls in (accelerate.Accelerator, Accelerator))
    added = [parameter for parameter in ours.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY]
    variable = [p for p in theirs.parameters.values() if p.kind is p.VAR_KEYWORD]
    fixed = [p for p in theirs.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return ours.replace(parameters=[*fixed, *added, *variable])


Accelerator.__init__.__signature__ = _signature()  # type: ignore[attr-defined]
