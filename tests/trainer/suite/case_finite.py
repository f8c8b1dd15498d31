"""Runs in which nothing is skipped, written down to the last bit, so that two releases can be compared.

With TRAINER_RECORDS set to a folder, each case leaves there what it observed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from harness import Examples, Stream, train
from transformers import EarlyStoppingCallback, TrainerCallback

pytestmark = pytest.mark.finite

TIMES = re.compile(r'("\w*(?:_runtime|_per_second)": )[-+.\de]+')
SAVED = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "dropout": 0.3}
BY_EPOCH = {"save_strategy": "epoch", "eval_strategy": "epoch", "logging_strategy": "epoch", "dropout": 0.3}


class CutEpochs(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step == 4

    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step % 3 == 0


class GoOn(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < state.max_steps + 2:
            control.should_training_stop = False


RUNS = {
    "steps": lambda: train(5, max_steps=7, **SAVED, **evaluated()),
    "steps, fused": lambda: train(5, max_steps=7, optim="adamw_torch_fused", **SAVED, **evaluated()),
    "steps, without a scaler": lambda: train(5, max_steps=7, scale=None, **SAVED, **evaluated()),
    "steps with accumulation": lambda: train(7, max_steps=7, gradient_accumulation_steps=2, **SAVED, **evaluated()),
    "logs of three steps": lambda: train(7, max_steps=8, logging_steps=3, gradient_accumulation_steps=2),
    "epochs": lambda: train(4, num_train_epochs=2, **BY_EPOCH, **evaluated()),
    "epochs, saved by steps": lambda: train(4, num_train_epochs=2, **{**SAVED, "save_steps": 5}, **evaluated()),
    "a fraction of epochs": lambda: train(4, num_train_epochs=1.5, **SAVED, **evaluated()),
    "epochs with accumulation": lambda: train(
        7, num_train_epochs=2, gradient_accumulation_steps=3, **BY_EPOCH, **evaluated()
    ),
    "endless stream": lambda: train(Stream(), max_steps=5, **SAVED, **evaluated()),
    "finite stream": lambda: train(Stream(3), max_steps=5, **BY_EPOCH, **evaluated()),
    "stream with accumulation": lambda: train(
        Stream(5), max_steps=5, gradient_accumulation_steps=2, **SAVED, **evaluated()
    ),
    "exhausted stream": lambda: train(
        Stream(3, once=True), max_steps=5, accelerator_config={"dispatch_batches": False}, **SAVED, **evaluated()
    ),
    "cut epochs": lambda: train(
        8, max_steps=9, gradient_accumulation_steps=2, callbacks=[CutEpochs()], **SAVED, **evaluated()
    ),
    "cut epochs, saved by epochs": lambda: train(
        8, num_train_epochs=3, gradient_accumulation_steps=2, callbacks=[CutEpochs()], **BY_EPOCH, **evaluated()
    ),
    "past the end": lambda: train(4, num_train_epochs=3, max_steps=6, callbacks=[GoOn()], **SAVED, **evaluated()),
    "best model": lambda: train(
        6,
        max_steps=8,
        load_best_model_at_end=True,
        save_total_limit=2,
        callbacks=[EarlyStoppingCallback(3)],
        learning_rate=0.5,
        **{**SAVED, "eval_steps": 2},
        **evaluated(),
    ),
    "resumed": lambda: resumed(5, max_steps=9),
    "resumed over epochs": lambda: resumed(5, num_train_epochs=3),
    "resumed without skipping data": lambda: resumed(5, max_steps=9, ignore_data_skip=True),
    "resumed stream": lambda: resumed(None, max_steps=9),
    "finished run resumed": lambda: resumed(4, step=6, max_steps=6),
}


def evaluated() -> dict:
    return {"trainer_options": {"eval_dataset": Examples(2)}}


def resumed(size, step=4, **options):
    def data():
        return Stream() if size is None else size

    whole = train(data(), **SAVED, **options, **evaluated(), output_dir="whole")
    place = {"resume": whole.checkpoint(step), "first": whole.recorder.saved[step]}
    return train(data(), **SAVED, **options, **evaluated(), **place)


def files(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".json":
                data = TIMES.sub(r"\1time", data.decode()).encode()
            found[path.relative_to(folder).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def observed(run) -> dict:
    logs = [{name: value for name, value in log.items() if not _is_time(name)} for log in run.recorder.logs]
    return {
        "states": run.recorder.states,
        "logs": [{name: repr(value) for name, value in log.items()} for log in logs],
        "batches": [attempt.batches for attempt in run.attempts],
        "weights": [[value.hex() for value in attempt.weights] for attempt in run.attempts],
        "result": [value.hex() for value in run.weights],
        "loss": run.result.training_loss.hex(),
        "messages": run.messages,
        "files": files(Path(run.trainer.args.output_dir)),
    }


def _is_time(name: str) -> bool:
    return name.endswith(("_runtime", "_per_second"))


@pytest.mark.parametrize("name", RUNS)
def test_a_finite_run_applies_each_attempt(name):
    run = RUNS[name]()
    assert run.applied == run.state.global_step > 0
    folder = os.environ.get("TRAINER_RECORDS")
    if folder:
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps(observed(run), indent=1))
