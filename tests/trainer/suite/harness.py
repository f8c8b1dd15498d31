"""Runs a Trainer on the CPU under a scripted overflow and records what happened.

An attempt is scripted to overflow by its number in the whole run, from 1: its gradients are multiplied by infinity in
the backward pass. Everything behind that is real: torch's GradScaler, Accelerate's wrapper, the optimizer.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]
MANY = 2000  # attempts that no run here needs


def example(index: int) -> dict:
    x = torch.tensor([math.sin(index), math.cos(2 * index), 1.0])
    return {"x": x, "labels": torch.tensor([0.5 * math.sin(3 * index)]), "ids": torch.tensor(index)}


class Examples(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        return example(index)


class Stream(IterableDataset):
    """A stream of `size` examples (None: endless); `opened` counts how often it was read from its start."""

    def __init__(self, size: int | None = None, *, once: bool = False) -> None:
        self.size, self.once, self.opened = size, once, 0

    def __iter__(self):
        self.opened += 1
        if self.once and self.opened > 1:
            return
        index = 0
        while self.size is None or index < self.size:
            yield example(index)
            index += 1


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.dropout = nn.Dropout(dropout)
        self.poison: str | None = None
        self.seen: list[tuple[list[int], float]] = []  # the batches of the attempt that is being made
        for parameter in self.parameters():
            parameter.register_hook(self._backward)

    def _backward(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf if self.poison == "gradient" else gradient

    def forward(self, x: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor) -> dict:
        output = self.linear(self.dropout(x))
        loss = ((output - labels) ** 2).mean()
        if self.training:
            if self.poison == "loss":
                loss = loss * math.inf
            self.seen.append((ids.tolist(), loss.item()))
        return {"loss": loss, "logits": output}


@dataclass
class Attempt:
    number: int
    step: int  # global_step when it began
    epoch: float  # state.epoch when it began
    stale: bool  # whether gradients of an earlier attempt were still there
    weights: list[float]  # before it
    batches: list[tuple[list[int], float]] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [index for ids, _ in self.batches for index in ids]

    @property
    def loss(self) -> float:
        return sum(loss for _, loss in self.batches) / len(self.batches)


class Recorder(TrainerCallback):
    """Numbers the attempts, scripts the overflow and writes everything down."""

    def __init__(self, overflow, kind: str, first: int) -> None:
        self.overflow, self.kind, self.number = overflow, kind, first
        self.events: list[tuple[str, int]] = []
        self.states: list[tuple[str, int, float, int, int]] = []
        self.attempts: list[Attempt] = []
        self.logs: list[dict] = []
        self.saved: dict[int, int] = {}  # step -> number of attempts before the checkpoint
        self.saves: list[int] = []
        self.evaluations: list[int] = []
        self.model: Model | None = None

    def note(self, event: str, state) -> None:
        self.events.append((event, state.global_step))
        self.states.append((event, state.global_step, state.epoch, state.max_steps, state.num_train_epochs))

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.note("on_step_begin", state)
        self.number += 1
        self.model = model.module if hasattr(model, "module") else model
        self.model.poison = self.kind if self.number in self.overflow else None
        stale = any(p.grad is not None and bool(p.grad.abs().sum() != 0) for p in model.parameters())
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        self.model.seen = []
        attempt = Attempt(self.number, state.global_step, state.epoch, stale, weights, self.model.seen)
        self.attempts.append(attempt)
        if len(self.attempts) > MANY:
            raise RuntimeError(f"the training must end, it has made {MANY} attempts")

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.note("on_log", state)
        self.logs.append({**logs, "step": state.global_step, "epoch": state.epoch})

    def on_save(self, args, state, control, **kwargs):
        self.note("on_save", state)
        self.saves.append(state.global_step)
        self.saved[state.global_step] = self.number

    def on_evaluate(self, args, state, control, **kwargs):
        self.note("on_evaluate", state)
        self.evaluations.append(state.global_step)


def _noted(event: str):
    def handler(self, args, state, control, **kwargs):
        self.note(event, state)

    return handler


for _event in EVENTS:
    if _event not in vars(Recorder):
        setattr(Recorder, _event, _noted(_event))


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@dataclass
class Run:
    trainer: Trainer
    recorder: Recorder
    messages: list[str]
    result: object = None

    @property
    def state(self):
        return self.trainer.state

    @property
    def attempts(self) -> list[Attempt]:
        return self.recorder.attempts

    @property
    def losses(self) -> dict[int, float]:
        """The logged mean losses by step."""
        return {log["step"]: log["loss"] for log in self.recorder.logs if "loss" in log}

    @property
    def applied(self) -> int:
        """Updates that AdamW itself counted; it takes a dropped one back."""
        states = self.optimizer.state_dict()["state"].values()
        return max((int(state["step"]) for state in states), default=0)

    @property
    def optimizer(self):
        return self.trainer.optimizer.optimizer

    @property
    def weights(self) -> list[float]:
        return torch.cat([p.detach().flatten() for p in self.trainer.model.parameters()]).tolist()

    @property
    def checkpoints(self) -> list[int]:
        folders = Path(self.trainer.args.output_dir).glob("checkpoint-*")
        return sorted(int(folder.name.split("-")[1]) for folder in folders)

    def checkpoint(self, step: int) -> str:
        return str(Path(self.trainer.args.output_dir) / f"checkpoint-{step}")

    def trainer_state(self, step: int) -> dict:
        return json.loads((Path(self.checkpoint(step)) / "trainer_state.json").read_text())

    def events(self, *names: str) -> list[tuple[str, int]]:
        return [event for event in self.recorder.events if not names or event[0] in names]


def prepare(
    data: int | Dataset = 6,
    *,
    overflow=(),
    kind: str = "gradient",
    scale: float | None = 65536.0,
    first: int = 0,
    dropout: float = 0.0,
    callbacks=(),
    trainer_class=Trainer,
    model: nn.Module | None = None,
    trainer_options: dict | None = None,
    **options,
) -> Run:
    """A Trainer that is ready to train; `scale` None trains without a gradient scaler."""
    AcceleratorState._reset_state(reset_partial_state=True)
    defaults = {
        "output_dir": "out",
        "per_device_train_batch_size": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "linear",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "remove_unused_columns": False,
        "optim": "adamw_torch",
        "seed": 5,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(**{**defaults, **options})
    set_seed(args.seed)
    recorder = Recorder(overflow, kind, first)
    dataset = Examples(data) if isinstance(data, int) else data
    extra = dict(trainer_options or {})
    if "model_init" not in extra:
        extra["model"] = model or Model(dropout)
    trainer = trainer_class(args=args, train_dataset=dataset, callbacks=[recorder, *callbacks], **extra)
    if scale is not None:
        use_scaler(trainer, scale)
    handler = Messages()
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    return Run(trainer, recorder, handler.texts)


def use_scaler(trainer: Trainer, scale: float, **options) -> None:
    """Loss scaling as on a GPU in fp16; autocast stays off, the arithmetic is float32."""
    accelerator = trainer.accelerator
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, **options)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    accelerator.autocast_handler = AutocastKwargs(enabled=False)


def train(*args, resume: str | None = None, **options) -> Run:
    """Train to the end; the arguments are those of `prepare`."""
    run = prepare(*args, **options)
    run.result = run.trainer.train(resume_from_checkpoint=resume)
    return run
