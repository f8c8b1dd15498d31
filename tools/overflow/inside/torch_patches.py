"""Observers in torch: backward passes, optimizer steps, scalers, schedulers, and files that are saved."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .optimizers import innermost
from .wrapping import around

if TYPE_CHECKING:
    from .observer import Observer


def is_boundary() -> bool:
    """Whether the backward pass that comes is the last one of its window, as far as Accelerate knows; else True."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if state is None or not state._shared_state:
        return True
    return bool(getattr(state(), "sync_gradients", True))


def autograd(observer: Observer, module: Any) -> None:
    """`Tensor.backward` comes through here as well."""

    def backward(call: Callable[[], Any], tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        with observer.within("backward") as outermost:
            if not outermost:
                return call()
            if not observer.is_within("accelerator.backward"):
                root = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
                observer.attempts.loss(observer.before_scale(root))
            observer.before_backward()
            with observer.attempts.backward(is_boundary()):
                return call()

    around(module, "backward", backward)


def optimizer(observer: Observer, module: Any) -> None:
    """Every optimizer that is made, and every step that really runs."""

    def made(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> None:
        call()
        observer.attempts.optimizers.of(self)

    def before(self: Any, args: Any, kwargs: Any) -> None:
        attempts = observer.attempts
        if observer.is_within("engine"):
            return
        current = attempts.optimizers.of(self).current
        if current is not None and current.is_raw:  # its step raised
            attempts.abandon(attempts.optimizers.of(self))
        has_closure = any(callable(value) for value in [*args[1:], *kwargs.values()])
        record = attempts.begin(self, closure=has_closure)
        if record is not None and record.current is not None:
            record.current.is_raw = True
        attempts.ran(self)

    def after(self: Any, args: Any, kwargs: Any) -> None:
        record = observer.attempts.optimizers.of(self)
        if record.current is not None and record.current.is_raw:
            observer.attempts.end(record)

    around(module.Optimizer, "__init__", made)
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def grad_scaler(observer: Observer, module: Any) -> None:
    """Scalers: the script's own, and the ones that Accelerate holds."""

    def init(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> None:
        call()
        if observer.plan.is_active and not self._enabled:
            _enable(observer, module.GradScaler, self)

    def scale(call: Callable[[], Any], self: Any, outputs: Any) -> Any:
        result = call()
        is_several = isinstance(result, (list, tuple)) and len(result) > 0
        first, loss = (result[0], outputs[0]) if is_several else (result, outputs)
        if sys.modules["torch"].is_tensor(first):
            observer.scaled = (weakref.ref(first), loss.detach())
        return result

    def unscale(call: Callable[[], Any], self: Any, optimizer: Any) -> Any:
        observer.attempts.inject_into(optimizer)
        return call()

    def step(call: Callable[[], Any], self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        record = observer.attempts.begin(optimizer, scaler=self)
        try:
            result = call()
        except BaseException:
            observer.attempts.abandon(record)
            raise
        observer.attempts.end(record)
        return result

    around(module.GradScaler, "__init__", init)
    around(module.GradScaler, "scale", scale)
    around(module.GradScaler, "unscale_", unscale)
    around(module.GradScaler, "step", step)


def _enable(observer: Observer, base: Any, scaler: Any) -> None:
    """A scaler that the script has switched off, or torch for want of CUDA, is made to work where the script runs."""
    torch = sys.modules["torch"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base.__init__.__wrapped__(scaler, device)
    observer.installed.add(scaler)


def sharded_grad_scaler(observer: Observer, module: Any) -> None:
    def unscale(call: Callable[[], Any], self: Any, optimizer: Any) -> Any:
        observer.attempts.inject_into(optimizer)
        return call()

    around(module.ShardedGradScaler, "unscale_", unscale)


def position(scheduler: Any) -> int:
    return int(getattr(scheduler, "last_epoch", 0) or 0)


def tell_scheduler(observer: Observer, call: Callable[[], Any], wrapper: Any, scheduler: Any) -> Any:
    """One call of a scheduler, outermost only: how far its position moved."""
    with observer.within("scheduler") as outermost:
        if not outermost or not observer.is_training:
            return call()
        before = position(scheduler)
        result = call()
        moved = position(scheduler) - before
    followed = innermost(getattr(scheduler, "optimizer", None))
    known = [record.number for record in observer.attempts.optimizers if record.optimizer() is followed]
    number = observer.number_of("scheduler", scheduler)
    prepared = wrapper is not scheduler
    observer.tell(
        "scheduler", number=number, kind=type(scheduler).__name__, moved=moved, prepared=prepared, optimizers=known
    )
    return result


def schedulers(observer: Observer, module: Any) -> None:
    def step(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        return tell_scheduler(observer, call, self, self)

    for cls in list(vars(module).values()):
        if isinstance(cls, type) and callable(vars(cls).get("step")):
            around(cls, "step", step)


def serialization(observer: Observer, module: Any) -> None:
    def save(call: Callable[[], Any], obj: Any = None, f: Any = None, *args: Any, **kwargs: Any) -> Any:
        with observer.within("save") as outermost:
            result = call()
        if outermost and observer.is_training and isinstance(f, (str, os.PathLike)):
            observer.tell("save", name=os.fspath(f), how="torch.save")
        return result

    around(module, "save", save)


def summary_writer(observer: Observer, module: Any) -> None:
    def add_scalar(
        call: Callable[[], Any], self: Any, tag: str, value: Any, step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        with observer.within("log") as outermost:
            if outermost and observer.is_training:
                observer.tell_log("SummaryWriter.add_scalar", {tag: value}, kwargs.get("global_step", step))
            return call()

    around(module.SummaryWriter, "add_scalar", add_scalar)
