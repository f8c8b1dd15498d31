"""Observers in Accelerate and DeepSpeed, and the scaler for runs that have none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .attempts import engine_scale, is_unscaled
from .optimizers import innermost
from .torch_patches import tell_scheduler
from .weights import Weights
from .wrapping import around

if TYPE_CHECKING:
    from .observer import Observer

_WITHOUT_SCALER = ("DEEPSPEED", "MEGATRON_LM", "XLA")


def optimizer(observer: Observer, module: Any) -> None:
    attempts = observer.attempts

    def init(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> None:
        call()
        attempts.optimizers.of(self).prepared = True

    def step(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.gradient_state.sync_gradients:
            return call()
        record = attempts.begin(self, scaler=self.scaler, prepared=True)
        try:
            result = call()
        except BaseException:
            attempts.abandon(record)
            raise
        if record is not None:  # a subclass that goes on behind this step has not made up its flag yet
            is_whole = type(self).step is module.AcceleratedOptimizer.step
            attempts.end(record, flag=self.step_was_skipped if is_whole else None)
        return result

    around(module.AcceleratedOptimizer, "__init__", init)
    around(module.AcceleratedOptimizer, "step", step)


def scheduler(observer: Observer, module: Any) -> None:
    def step(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        return tell_scheduler(observer, call, self, self.scheduler)

    around(module.AcceleratedScheduler, "step", step)


def tracking(observer: Observer, module: Any) -> None:
    """A tracker that the script calls itself, past `accelerator.log`."""

    def log(
        call: Callable[[], Any], self: Any, values: Any = None, step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with observer.within("log") as outermost:
            if outermost and observer.is_training and isinstance(values, dict):
                observer.tell_log(f"{type(self).__name__}.log", values, step)
            return call()

    for cls in list(vars(module).values()):
        if isinstance(cls, type) and issubclass(cls, module.GeneralTracker) and "log" in vars(cls):
            around(cls, "log", log)


def accelerator(observer: Observer, module: Any) -> None:
    """The Accelerator: its scaler, backward passes, logs and checkpoints."""
    cls = module.Accelerator

    def init(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> None:
        call()
        if observer.plan.is_active and self.scaler is None:
            _install_scaler(observer, self)

    def backward(call: Callable[[], Any], self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        with observer.within("accelerator.backward"):
            observer.attempts.loss(loss)
            return call()

    def unscale_gradients(call: Callable[[], Any], self: Any, optimizer: Any = None) -> Any:
        if self.scaler is None or self.scaler not in observer.installed:
            return call()
        chosen = self._optimizers if optimizer is None else optimizer
        for wrapped in chosen if isinstance(chosen, (list, tuple)) else [chosen]:
            _unscale_once(self.scaler, wrapped)
        return None

    def log(
        call: Callable[[], Any], self: Any, values: Any = None, step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with observer.within("log") as outermost:
            if outermost and observer.is_training and self.is_main_process and isinstance(values, dict):
                observer.tell_log("accelerator.log", values, step)
            return call()

    around(cls, "__init__", init)
    around(cls, "backward", backward)
    around(cls, "unscale_gradients", unscale_gradients)
    around(cls, "log", log)
    around(cls, "save_state", _saving(observer, "accelerator.save_state"))
    around(cls, "save_model", _saving(observer, "accelerator.save_model"))


def _saving(observer: Observer, how: str) -> Callable[..., Any]:
    """For a method that saves to the folder it is given or, without one, to the folder that it returns."""

    def save(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        with observer.within("save") as outermost:
            result = call()
        given = kwargs.get("output_dir") or kwargs.get("save_directory")
        folder = given or next(
            (value for value in args if isinstance(value, str) or hasattr(value, "__fspath__")), result
        )
        if outermost and observer.is_training:
            observer.tell("save", name=str(folder or ""), how=how)
        return result

    return save


def _install_scaler(observer: Observer, accelerator: Any) -> None:
    """Give the accelerator a scaler that works on its device. Autocast and all else stay as the script has them."""
    kind = getattr(accelerator.distributed_type, "value", str(accelerator.distributed_type))
    if kind in _WITHOUT_SCALER:
        if kind != "DEEPSPEED":
            observer.note(f"{kind} scales the loss itself: an overflow may not reach its check")
        return
    torch = sys.modules["torch"]
    accelerator.scaler = torch.amp.GradScaler(accelerator.device.type)
    observer.installed.add(accelerator.scaler)


def _unscale_once(scaler: Any, optimizer: Any) -> None:
    inner = innermost(optimizer)
    if not is_unscaled(scaler, inner):
        scaler.unscale_(inner)


def deepspeed(observer: Observer, module: Any) -> None:
    """DeepSpeed drops updates inside its engine; `skipped_steps` is what it says of them."""

    def init(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> None:
        call()
        if self.optimizer is not None:
            observer.attempts.adopt(self)

    def step(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        with observer.within("engine") as outermost:
            if not outermost or not self.is_gradient_accumulation_boundary():
                return call()
            steps, skipped, scale = self.global_steps, self.skipped_steps, engine_scale(self)
            weights = Weights(list(self.module.parameters()))
            result = call()
        if self.global_steps > steps:
            observer.attempts.engine_step(self, weights, scale, was_skipped=self.skipped_steps > skipped)
        return result

    around(module.DeepSpeedEngine, "__init__", init)
    around(module.DeepSpeedEngine, "step", step)
