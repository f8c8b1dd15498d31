"""Training ends when skipped steps in a row leave nothing to be hoped for."""

from __future__ import annotations

import math

import pytest
import torch
from harness import Examples, Stream, train

ALWAYS = range(1000)  # more than may follow each other, and an end for a Trainer without a bound
DESTROYED = 144  # halvings of 2**16 after which a finite step applies infinite updates
FUSED = pytest.param("adamw_torch_fused", marks=pytest.mark.accelerate)


@pytest.mark.parametrize("optim", ["adamw_torch", FUSED])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"data": 1, "max_steps": 4}, id="one batch an epoch"),
        pytest.param({"data": 500, "max_steps": 4}, id="one epoch"),
        pytest.param({"data": 7, "num_train_epochs": 200}, id="epochs"),
        pytest.param({"data": "stream", "max_steps": 4}, id="stream"),
    ],
)
def test_a_run_whose_every_step_is_skipped_ends_and_says_why(options, optim):
    data = Stream() if options["data"] == "stream" else options["data"]
    run = train(**{**options, "data": data}, overflow=ALWAYS, optim=optim)
    assert 41 <= len(run.attempts) < DESTROYED
    assert (run.state.global_step, run.applied) == (0, 0)
    assert run.weights == run.attempts[0].weights
    (message,) = [message for message in run.messages if "skipped" in message]
    for cause in ("in a row", "infinite or NaN", str(len(run.attempts)), "step 0"):
        assert cause in message.replace("last", "in a row")


def test_the_end_by_skipped_steps_leaves_the_run_in_order():
    run = train(
        3,
        max_steps=20,
        overflow=set(ALWAYS) - {1, 2},
        save_strategy="epoch",
        eval_strategy="epoch",
        load_best_model_at_end=True,
        trainer_options={"eval_dataset": Examples(2)},
    )
    assert run.events("on_train_end") == [("on_train_end", 2)]
    assert run.checkpoints == run.recorder.evaluations == [2]
    assert run.result.metrics["train_loss"] == pytest.approx(sum(a.loss for a in run.attempts[:2]) / 2, rel=1e-5)


@pytest.mark.parametrize("optim", ["adamw_torch", FUSED])
def test_forty_halvings_are_survived(optim):
    run = train(4, max_steps=3, scale=2.0**40, overflow=range(1, 41), optim=optim)
    assert (run.state.global_step, run.applied, len(run.attempts)) == (3, 3, 43)
    assert all(math.isfinite(weight) for weight in run.weights)


def test_the_longest_row_of_skips_leaves_weights_that_still_train():
    always = train(4, max_steps=3, overflow=ALWAYS)
    row = len(always.attempts) - 1
    run = train(4, max_steps=3, overflow=range(1, row + 1))
    assert (run.state.global_step, run.applied) == (3, 3)
    assert all(math.isfinite(weight) for weight in run.weights)


def test_only_skips_in_a_row_end_the_training():
    # 3 of 4 attempts overflow, more in all than may follow each other
    overflow = {number for number in range(1, 161) if number % 4}
    run = train(10, max_steps=40, overflow=overflow)
    assert (run.state.global_step, len(run.attempts)) == (40, 160)
    assert not [message for message in run.messages if "skipped" in message]


def test_a_row_of_skips_goes_on_when_the_run_is_resumed():
    options = {"overflow": set(ALWAYS) - {1}, "save_strategy": "epoch"}
    whole = train(61, max_steps=80, **options)
    place = {"resume": whole.checkpoint(1), "first": 61, "output_dir": "again"}
    again = train(61, max_steps=80, **options, **place)
    assert whole.recorder.saved == {1: 61}
    assert again.attempts[-1].number == whole.attempts[-1].number < 1 + DESTROYED
    scale = again.trainer.accelerator.scaler.get_scale()
    assert torch.isfinite(torch.tensor(scale).reciprocal())


def test_a_run_that_ended_by_skipped_steps_can_be_resumed_with_better_data():
    whole = train(3, max_steps=6, overflow=set(ALWAYS) - {1, 2, 3}, save_strategy="steps", save_steps=1)
    assert whole.state.global_step == 3
    again = train(3, max_steps=6, resume=whole.checkpoint(3), first=3, output_dir="again")
    assert (again.state.global_step, again.applied) == (6, 6)
