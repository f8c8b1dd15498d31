"""What else looks at the step: early stopping, kept checkpoints, the best one, progress bars, speed, hyperparameters."""

from __future__ import annotations

import inspect
import sys
import types

import pytest
import torch
from accelerate.state import AcceleratorState
from harness import Examples, Model, prepare, train, use_scaler
from transformers import (
    EarlyStoppingCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

EVALUATED = {"eval_strategy": "steps", "save_strategy": "steps", "metric_for_best_model": "loss"}


def worsening(losses):
    """A Trainer whose evaluations give these losses."""
    left = list(losses)

    class Scripted(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            output = super().evaluation_loop(*args, **kwargs)
            output.metrics["eval_loss"] = left.pop(0)
            return output

    return Scripted


def test_skipped_steps_use_up_no_patience():
    run = train(
        12,
        max_steps=10,
        overflow={2, 3, 4, 6},
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
        trainer_class=worsening([1.0, 0.9, 1.1, 1.2, 1.3]),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
        trainer_options={"eval_dataset": Examples(2)},
        **EVALUATED,
    )
    assert run.recorder.evaluations == [1, 2, 3, 4]
    assert (run.state.global_step, len(run.attempts)) == (4, 8)
    assert run.state.best_global_step == 2


def test_the_checkpoints_that_are_kept_are_the_last_ones_and_hold_different_steps():
    run = train(12, max_steps=6, overflow={3, 4, 8}, save_strategy="steps", save_steps=1, save_total_limit=2)
    assert run.checkpoints == [5, 6]
    assert run.recorder.saves == [1, 2, 3, 4, 5, 6]
    assert [run.recorder.saved[step] for step in (5, 6)] == [7, 9]


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_checkpoint_is_loaded_at_the_end(limit):
    run = train(
        12,
        max_steps=5,
        overflow={2, 5},
        eval_steps=1,
        save_steps=1,
        save_total_limit=limit,
        load_best_model_at_end=True,
        trainer_class=worsening([1.0, 0.5, 0.2, 0.9, 1.0]),
        trainer_options={"eval_dataset": Examples(2)},
        **EVALUATED,
    )
    assert (run.state.best_global_step, run.state.best_metric) == (3, 0.2)
    before_fifth_attempt_after_three_updates = run.attempts[4].weights
    assert run.attempts[4].step == 3
    assert run.weights == before_fifth_attempt_after_three_updates
    assert 3 in run.checkpoints


@pytest.mark.parametrize("overflow", [{2}, {6}, {2, 6}])
def test_the_progress_bar_is_full_at_the_end_of_a_run_over_epochs(overflow):
    bars = []

    class Watched(ProgressCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            super().on_train_begin(args, state, control, **kwargs)
            bars.append(self.training_bar)

    run = prepare(3, num_train_epochs=2, overflow=overflow)
    run.trainer.add_callback(Watched())
    run.trainer.train()
    (bar,) = bars
    assert (bar.n, bar.total) == (6 - len(overflow), 6 - len(overflow))


def test_the_progress_bar_is_full_when_max_steps_are_reached():
    bars = []

    class Watched(ProgressCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            super().on_train_begin(args, state, control, **kwargs)
            bars.append(self.training_bar)

    run = prepare(3, max_steps=4, overflow={2, 3})
    run.trainer.add_callback(Watched())
    run.trainer.train()
    assert (bars[0].n, bars[0].total, len(run.attempts)) == (4, 4, 6)


@pytest.mark.parametrize("overflow", [{2}, {6}])
def test_the_progress_bar_of_a_notebook_is_full_at_the_end(overflow, monkeypatch):
    shown = []
    display = types.ModuleType("IPython.display")  # the screen, which there is none of outside a notebook
    display.HTML = str
    display.display = lambda *args, **kwargs: types.SimpleNamespace(update=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.delitem(sys.modules, "transformers.utils.notebook", raising=False)
    from transformers.utils.notebook import NotebookProgressCallback

    trackers = []

    class Watched(NotebookProgressCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            super().on_train_begin(args, state, control, **kwargs)
            trackers.append(self.training_tracker)

    run = prepare(3, num_train_epochs=2, overflow=overflow)
    run.trainer.add_callback(Watched())
    run.trainer.train()
    assert trackers[0].total == trackers[0].value == 5
    assert "[5/5 " in shown[-1]


@pytest.mark.parametrize("length", [{"max_steps": 6}, {"num_train_epochs": 2}])
def test_the_speed_is_that_of_applied_updates(length):
    run = train(3, overflow={2, 3}, **length)
    metrics = run.result.metrics
    steps = 6 if "max_steps" in length else 4
    assert len(run.attempts) == steps + 2
    assert metrics["train_steps_per_second"] * metrics["train_runtime"] == pytest.approx(steps, rel=0.2)
    assert metrics["train_samples_per_second"] * metrics["train_runtime"] == pytest.approx(6, rel=0.2)


def test_a_resumed_run_reports_the_speed_of_its_own_updates():
    if "_initial_global_step" not in inspect.getsource(Trainer):
        pytest.skip("this release divides by the steps of the whole run, resumed or not")
    whole = train(12, max_steps=8, overflow={2, 6}, save_strategy="steps", save_steps=4)
    place = {"resume": whole.checkpoint(4), "first": 5, "output_dir": "again"}
    again = train(12, max_steps=8, overflow={2, 6}, **place)
    metrics = again.result.metrics
    assert len(again.attempts) == 5
    assert metrics["train_steps_per_second"] * metrics["train_runtime"] == pytest.approx(4, rel=0.2)
    losses = [attempt.loss for attempt in again.attempts if attempt.number != 6]
    assert metrics["train_loss"] == pytest.approx(sum(losses) / 4, rel=1e-5)


def test_each_trial_of_a_hyperparameter_search_counts_for_itself():
    optuna = pytest.importorskip("optuna", reason="the search needs optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    reported, counted = [], []

    class Count(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            counted.append((state.global_step, state.max_steps, state.num_skipped_steps))

    class Scaled(Trainer):
        def create_accelerator_and_postprocess(self):
            AcceleratorState._reset_state()  # each trial has an accelerator of its own
            super().create_accelerator_and_postprocess()
            use_scaler(self, 65536.0)

        def train(self, *args, **kwargs):
            recorder.number = 0
            return super().train(*args, **kwargs)

    options = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no"}
    run = prepare(
        6,
        overflow={2, 4},
        trainer_class=Scaled,
        callbacks=[Count()],
        trainer_options={"eval_dataset": Examples(2), "model_init": lambda trial=None: Model()},
        **options,
    )
    recorder = run.recorder
    study_report = optuna.trial.Trial.report

    def report(self, value, step):
        reported.append((self.number, step))
        return study_report(self, value, step)

    optuna.trial.Trial.report = report
    try:
        best = run.trainer.hyperparameter_search(
            hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.1)},
            backend="optuna",
            n_trials=2,
            compute_objective=lambda metrics: metrics["eval_loss"],
        )
    finally:
        optuna.trial.Trial.report = study_report
    assert counted == [(4, 4, 2), (4, 4, 2)]
    assert reported == [(0, 2), (0, 4), (1, 2), (1, 4)]
    assert torch.isfinite(torch.tensor(best.objective))


DOCUMENTED = [
    pytest.param(TrainerState, "Optimizer steps that were skipped", id="TrainerState.global_step"),
    pytest.param(TrainerState, "num_skipped_steps (`int`", id="TrainerState.num_skipped_steps"),
    pytest.param(TrainerState, "num_skipped_steps_in_a_row (`int`", id="TrainerState.num_skipped_steps_in_a_row"),
    pytest.param(TrainingArguments, "is made up for", id="TrainingArguments.max_steps"),
    pytest.param(TrainingArguments, "Optimizer steps that are skipped", id="TrainingArguments.num_train_epochs"),
    pytest.param(TrainerCallback.on_step_begin, "skipped", id="on_step_begin"),
    pytest.param(TrainerCallback.on_pre_optimizer_step, "skipped", id="on_pre_optimizer_step"),
    pytest.param(TrainerCallback.on_optimizer_step, "skipped", id="on_optimizer_step"),
    pytest.param(TrainerCallback.on_step_end, "skipped", id="on_step_end"),
]


@pytest.mark.parametrize(("item", "words"), DOCUMENTED)
def test_the_docstrings_say_what_is_counted(item, words):
    assert words in item.__doc__
