"""How long a run with skipped steps lasts, and what it leaves at its end."""

from __future__ import annotations

import pytest
from harness import Examples, train
from transformers import TrainerCallback

EVERY = 10_000  # a number of steps that no run here reaches


@pytest.mark.parametrize(
    ("size", "steps", "overflow"),
    [
        pytest.param(6, 6, {3}, id="one epoch planned, the seed of the issue"),
        pytest.param(4, 6, {1}, id="the last epoch has room"),
        pytest.param(4, 6, {1, 2, 3}, id="one epoch more"),
        pytest.param(4, 6, {1, 2, 3, 4, 5, 6, 7}, id="two epochs more"),
        pytest.param(4, 8, {8}, id="the last attempt of the plan"),
        pytest.param(1, 3, {1, 3, 4}, id="one batch an epoch"),
        pytest.param(4, 4, {4, 5, 6, 7, 8, 9}, id="a whole extra epoch skipped"),
    ],
)
def test_max_steps_updates_are_applied_however_many_epochs_that_takes(size, steps, overflow):
    run = train(size, max_steps=steps, overflow=overflow)
    assert (run.applied, run.state.global_step) == (steps, steps)
    assert len(run.attempts) == steps + len(overflow)
    epochs = -(-len(run.attempts) // size)
    assert len(run.events("on_epoch_begin")) == len(run.events("on_epoch_end")) == epochs


def test_accumulation_with_a_short_last_group_makes_up_for_skipped_steps():
    run = train(7, max_steps=8, overflow={2, 4, 8}, gradient_accumulation_steps=2)
    assert (run.applied, run.state.global_step, len(run.attempts)) == (8, 8, 11)
    assert [len(attempt.batches) for attempt in run.attempts] == [2, 2, 2, 1] * 2 + [2, 2, 2]


def test_the_last_update_of_an_extended_run_is_saved_and_evaluated():
    run = train(
        6,
        max_steps=6,
        overflow={3},
        save_strategy="steps",
        save_steps=EVERY,
        eval_strategy="steps",
        eval_steps=EVERY,
        trainer_options={"eval_dataset": Examples(2)},
    )
    assert (run.recorder.saves, run.recorder.evaluations) == ([6], [6])
    assert run.recorder.saved[6] == 7


def test_the_number_of_epochs_in_the_state_grows_with_the_run():
    run = train(4, max_steps=4, overflow={1, 2, 3, 4, 5})
    assert run.state.num_train_epochs == 3
    assert run.state.max_steps == 4


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("overflow", [{1}, {2, 3}, {4}, {2, 4}])
def test_a_run_over_epochs_goes_through_its_epochs_and_no_more(epochs, overflow):
    run = train(4, num_train_epochs=epochs, overflow=overflow)
    assert len(run.attempts) == 4 * epochs
    assert len(run.events("on_epoch_begin")) == epochs
    assert run.state.global_step == run.applied == run.state.max_steps == 4 * epochs - len(overflow)


@pytest.mark.parametrize("overflow", [{2}, {4}, {6}, {5, 6}, {1, 6}])
def test_a_run_over_a_fraction_of_an_epoch_ends_inside_it(overflow):
    run = train(4, num_train_epochs=1.5, overflow=overflow)
    assert len(run.attempts) == 6
    assert run.state.epoch == 1.5
    assert run.state.global_step == run.applied == run.state.max_steps == 6 - len(overflow)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("overflow", [{1}, {4}, {3, 4}])
def test_the_last_applied_step_is_saved_and_evaluated_at_the_end_of_the_epochs(overflow, accumulation):
    run = train(
        4 * accumulation - (accumulation > 1),
        num_train_epochs=1,
        overflow=overflow,
        gradient_accumulation_steps=accumulation,
        save_strategy="steps",
        save_steps=EVERY,
        eval_strategy="steps",
        eval_steps=EVERY,
        trainer_options={"eval_dataset": Examples(2)},
    )
    last = 4 - len(overflow)
    assert (run.recorder.saves, run.recorder.evaluations) == ([last], [last])
    saved = run.trainer_state(last)
    assert (saved["global_step"], saved["max_steps"], saved["epoch"]) == (last, last, 1.0)


@pytest.mark.parametrize("overflow", [{6}, {5, 6}])
def test_the_last_applied_step_is_saved_and_evaluated_at_the_end_of_a_fraction(overflow):
    options = {"save_strategy": "steps", "save_steps": EVERY, "eval_strategy": "steps", "eval_steps": EVERY}
    data = {"eval_dataset": Examples(2)}
    run = train(4, num_train_epochs=1.5, overflow=overflow, trainer_options=data, **options)
    last = 6 - len(overflow)
    assert (run.recorder.saves, run.recorder.evaluations) == ([last], [last])


@pytest.mark.parametrize("overflow", [{3}, {4}])
def test_a_last_step_that_had_its_turn_is_not_saved_and_evaluated_again(overflow):
    run = train(
        4,
        num_train_epochs=1,
        overflow=overflow,
        save_strategy="steps",
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        trainer_options={"eval_dataset": Examples(2)},
    )
    assert run.state.global_step == 3
    assert (run.recorder.saves, run.recorder.evaluations) == ([3], [3])


def test_a_run_that_is_saved_at_its_end_only_is_saved_there():
    run = train(4, num_train_epochs=1, overflow={4}, save_strategy="steps", save_steps=0)
    assert run.recorder.saves == run.checkpoints == [3]


def test_a_second_training_with_the_same_trainer_ends_like_the_first():
    options = {"save_strategy": "steps", "save_steps": EVERY}
    run = train(4, num_train_epochs=1, overflow={2, 8}, **options)
    run.trainer.train()
    assert run.recorder.saves == [3, 3]
    assert (run.state.global_step, run.state.max_steps, run.state.num_skipped_steps) == (3, 3, 1)


@pytest.mark.parametrize("delay", [3, 4])
def test_the_evaluation_at_the_end_waits_for_its_delay(delay):
    options = {"eval_strategy": "steps", "eval_steps": EVERY, "eval_delay": delay}
    run = train(4, num_train_epochs=1, overflow={4}, trainer_options={"eval_dataset": Examples(2)}, **options)
    assert run.state.global_step == 3
    assert run.recorder.evaluations == ([3] if delay <= 3 else [])


def test_a_run_over_epochs_with_the_best_checkpoint_evaluates_and_saves_at_its_end():
    run = train(
        4,
        num_train_epochs=1,
        overflow={4},
        save_strategy="best",
        metric_for_best_model="loss",
        eval_strategy="steps",
        eval_steps=EVERY,
        trainer_options={"eval_dataset": Examples(2)},
    )
    assert (run.recorder.saves, run.recorder.evaluations) == ([3], [3])


@pytest.mark.parametrize("every", [EVERY, 0])
def test_a_run_over_epochs_in_which_every_step_is_skipped_leaves_no_checkpoint(every):
    run = train(4, num_train_epochs=2, overflow=set(range(1, 9)), save_strategy="steps", save_steps=every)
    assert (run.state.global_step, run.state.max_steps, len(run.attempts)) == (0, 0, 8)
    assert run.checkpoints == []


@pytest.mark.parametrize("length", [{"max_steps": 6}, {"num_train_epochs": 3}])
def test_an_epoch_in_which_every_step_is_skipped_is_neither_saved_nor_evaluated_nor_logged(length):
    run = train(
        2,
        overflow={1, 2, 5, 6},
        save_strategy="epoch",
        eval_strategy="epoch",
        logging_strategy="epoch",
        trainer_options={"eval_dataset": Examples(2)},
        **length,
    )
    applied = [2, 4, 6] if "max_steps" in length else [2]
    assert run.recorder.saves == run.recorder.evaluations == run.checkpoints == applied
    assert len(run.attempts) == (10 if "max_steps" in length else 6)
    assert [log["step"] for log in run.recorder.logs if "loss" in log] == applied


def test_an_epoch_that_ends_with_a_skipped_step_is_saved_and_evaluated():
    run = train(
        3,
        num_train_epochs=2,
        overflow={3, 5, 6},
        save_strategy="epoch",
        eval_strategy="epoch",
        trainer_options={"eval_dataset": Examples(2)},
    )
    assert run.recorder.saves == run.recorder.evaluations == [2, 3]


def test_nothing_is_saved_or_evaluated_again_while_the_step_stands_still():
    run = train(
        12,
        max_steps=6,
        overflow={1, 4, 5, 8},
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        trainer_options={"eval_dataset": Examples(2)},
    )
    assert run.recorder.saves == run.recorder.evaluations == run.checkpoints == [2, 4, 6]
    assert list(run.recorder.saved.values()) == [3, 7, 10]


def test_no_checkpoint_is_written_before_the_first_update():
    run = train(6, max_steps=2, overflow={1, 2, 3}, save_strategy="steps", save_steps=1)
    assert run.checkpoints == run.recorder.saves == [1, 2]
    assert list(run.recorder.saved.values()) == [4, 5]


def test_a_save_that_a_callback_asks_for_at_the_end_of_a_skipped_epoch_is_made():
    class Save(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs):
            control.should_save |= state.epoch == 2

    run = train(2, max_steps=4, overflow={3, 4}, callbacks=[Save()])
    assert run.recorder.saves == [2]
    assert run.recorder.saved[2] == 4


def test_a_callback_that_cuts_epochs_short_still_shortens_a_run_with_skips():
    class Cut(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = True

    run = train(4, max_steps=8, overflow={1}, callbacks=[Cut()])
    # two epochs were planned, one more is the most that one skip can need
    assert (run.state.global_step, len(run.attempts)) == (3, 4)


def test_callbacks_that_compare_with_max_steps_stop_at_the_last_step_of_the_epochs():
    reached = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step >= state.max_steps:
                reached.append(state.global_step)

    train(4, num_train_epochs=2, overflow={3, 6}, callbacks=[Watch()])
    assert reached == [6]
