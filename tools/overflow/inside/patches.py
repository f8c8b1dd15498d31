"""What is put round which function, by the module that brings it. Every wrapper returns what the original returned."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import accelerate_patches, averages, torch_patches
from .imports import Action
from .wrapping import around

if TYPE_CHECKING:
    from .observer import Observer

TRAINER_COUNTER = "trainer.state.global_step"


def actions(observer: Observer) -> dict[str, Action]:
    """Module name -> what to do when it has been imported. A module of another shape leaves a note, not an error."""
    table: dict[str, list[Callable[[Observer, ModuleType], None]]] = {
        "torch.autograd": [torch_patches.autograd],
        "torch.serialization": [torch_patches.serialization],
        "torch.optim.optimizer": [torch_patches.optimizer],
        "torch.optim.lr_scheduler": [torch_patches.schedulers],
        "torch.amp.grad_scaler": [torch_patches.grad_scaler],
        "torch.distributed.fsdp.sharded_grad_scaler": [torch_patches.sharded_grad_scaler],
        "torch.utils.tensorboard.writer": [torch_patches.summary_writer],
        "accelerate.optimizer": [accelerate_patches.optimizer],
        "accelerate.scheduler": [accelerate_patches.scheduler],
        "accelerate.tracking": [accelerate_patches.tracking],
        "accelerate.accelerator": [accelerate_patches.accelerator],
        "deepspeed.runtime.engine": [accelerate_patches.deepspeed],
        "transformers.trainer": [trainer],
        "tqdm.std": [progress_bar],
    }
    for name, methods in averages.KNOWN.items():
        table.setdefault(name, []).append(functools.partial(averages.patch, methods=methods))
    observer.pending += [functools.partial(averages.find, observer, path) for path in observer.calls]
    for wanted in observer.watch:
        name, _, target = wanted.partition(":")
        watched = functools.partial(averages.patch_named, target=target)
        if name == "__main__":
            observer.pending.append(functools.partial(_in_main, observer, watched))
        else:
            table.setdefault(name, []).append(watched)
    return {name: functools.partial(_patch, observer, patches) for name, patches in table.items()}


def _patch(observer: Observer, patches: list[Callable[[Observer, ModuleType], None]], module: ModuleType) -> None:
    for patch in patches:
        try:
            patch(observer, module)
        except (AttributeError, KeyError, TypeError) as error:
            what = f"{module.__name__} {getattr(module, '__version__', '')}".strip()
            observer.note(f"cannot observe all of {what}: {type(error).__name__}: {error}")


def _in_main(observer: Observer, patch: Callable[[Observer, ModuleType], None]) -> bool:
    _patch(observer, [patch], sys.modules["__main__"])
    return True


def progress_bar(observer: Observer, module: Any) -> None:
    """The position is counted here as well: a bar that is switched off does not count."""
    positions: dict[int, float] = {}

    def update(call: Callable[[], Any], self: Any, n: float | None = 1) -> Any:
        with observer.within("bar") as outermost:
            result = call()
            if outermost and observer.is_training:
                number = observer.number_of("bar", self)
                positions[number] = positions.get(number, getattr(self, "initial", 0) or 0) + (n or 0)
                total, title = getattr(self, "total", None), getattr(self, "desc", None) or ""
                observer.tell("bar", number=number, moved=n or 0, position=positions[number], total=total, title=title)
        return result

    around(module.tqdm, "update", update)


def trainer(observer: Observer, module: Any) -> None:
    """`transformers.Trainer`: its step counter, logs, checkpoints and evaluations."""

    def train(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        observer.counters.give("global_step", lambda: self.state.global_step, TRAINER_COUNTER)
        return call()

    def log(call: Callable[[], Any], self: Any, logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with observer.within("log") as outermost:
            if outermost and observer.is_training:
                observer.tell_log("Trainer.log", logs, self.state.global_step)
            return call()

    def save_checkpoint(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        with observer.within("save") as outermost:
            if outermost:
                observer.tell("save", name=f"checkpoint-{self.state.global_step}", how="Trainer")
            return call()

    def save_model(call: Callable[[], Any], self: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        with observer.within("save") as outermost:
            if outermost and observer.is_training:
                observer.tell("save", name=str(output_dir or self.args.output_dir), how="Trainer.save_model")
            return call()

    def evaluate(call: Callable[[], Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        with observer.within("evaluate") as outermost:
            if outermost and observer.is_training:
                observer.tell("evaluate", step=self.state.global_step)
            return call()

    around(module.Trainer, "train", train)
    around(module.Trainer, "log", log)
    around(module.Trainer, "_save_checkpoint", save_checkpoint)
    around(module.Trainer, "save_model", save_model)
    around(module.Trainer, "evaluate", evaluate)
