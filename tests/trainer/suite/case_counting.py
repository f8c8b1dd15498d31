"""What a skipped step leaves as it was, and what it moves on."""

from __future__ import annotations

import pytest
import torch
from harness import Stream, prepare, train
from transformers import TrainerCallback

FUSED = pytest.param("adamw_torch_fused", marks=pytest.mark.accelerate)
BOTH = pytest.mark.parametrize("optim", ["adamw_torch", FUSED])


@BOTH
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_all_requested_updates_are_applied(optim, max_grad_norm):
    run = train(6, max_steps=6, overflow={3}, optim=optim, max_grad_norm=max_grad_norm)
    assert (run.applied, run.state.global_step, len(run.attempts)) == (6, 6, 7)
    assert run.result.global_step == 6


@BOTH
def test_the_first_step_of_all_may_be_skipped(optim):
    run = train(6, max_steps=6, overflow={1, 2}, optim=optim)
    assert (run.applied, run.state.global_step, len(run.attempts)) == (6, 6, 8)


@BOTH
def test_a_loss_scale_that_is_too_large_is_brought_down_without_a_step_being_lost(optim):
    run = train(6, max_steps=6, scale=2.0**127, optim=optim)
    assert len(run.attempts) > 6, "the scale must overflow by itself for this to show anything"
    assert (run.applied, run.state.global_step) == (6, 6)


@BOTH
def test_one_overflow_in_one_batch_of_an_accumulated_step_skips_the_whole_step(optim):
    class OneBatch(TrainerCallback):
        def on_substep_end(self, args, state, control, model=None, **kwargs):
            model.poison = None

    run = train(12, max_steps=5, overflow={2}, gradient_accumulation_steps=2, optim=optim, callbacks=[OneBatch()])
    assert (run.applied, run.state.global_step, len(run.attempts)) == (5, 5, 6)


def test_no_event_tells_of_an_update_that_was_not_applied():
    run = train(6, max_steps=4, overflow={2})
    second = [index for index, (name, _) in enumerate(run.events()) if name == "on_step_begin"][1]
    assert [name for name, _ in run.events()[second : second + 3]] == [
        "on_step_begin",
        "on_pre_optimizer_step",
        "on_step_begin",
    ]
    assert run.events("on_optimizer_step") == [("on_optimizer_step", step) for step in range(4)]
    assert run.events("on_step_end") == [("on_step_end", step) for step in range(1, 5)]


def test_no_substep_is_said_to_end_by_a_skipped_step():
    run = train(12, max_steps=4, overflow={2}, gradient_accumulation_steps=2)
    assert len(run.events("on_substep_end")) == len(run.attempts) == 5


@BOTH
def test_gradients_are_zeroed_behind_a_skipped_step(optim):
    run = train(6, max_steps=4, overflow={2}, optim=optim)
    assert [attempt.stale for attempt in run.attempts] == [False] * 5
    assert run.applied == 4


@BOTH
def test_the_weights_stand_still_in_a_skipped_step_and_move_in_the_next(optim):
    run = train(6, max_steps=4, overflow={2}, optim=optim)
    weights = [attempt.weights for attempt in run.attempts]
    assert weights[1] == weights[2]
    assert len({tuple(values) for values in weights}) == len(run.attempts) - 1 == 4


@BOTH
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_scheduler_stands_where_it_was_and_reaches_its_end(optim, schedule):
    run = train(6, max_steps=5, overflow={2, 4}, optim=optim, lr_scheduler_type=schedule, warmup_steps=2)
    finite = train(6, max_steps=5, optim=optim, lr_scheduler_type=schedule, warmup_steps=2)
    rates = [[log["learning_rate"] for log in r.recorder.logs if "learning_rate" in log] for r in (run, finite)]
    assert rates[0] == rates[1]
    assert run.trainer.lr_scheduler.last_epoch == run.applied == 5


def test_the_epoch_moves_on_by_the_batches_that_were_consumed():
    run = train(4, max_steps=6, overflow={2, 4})
    assert [attempt.epoch for attempt in run.attempts] == [index / 4 for index in range(8)]
    logged = {log["step"]: log["epoch"] for log in run.recorder.logs if "loss" in log}
    assert logged == {1: 0.25, 2: 0.75, 3: 1.25, 4: 1.5, 5: 1.75, 6: 2.0}


def test_a_skipped_step_consumes_its_batches_and_the_next_one_gets_new_ones():
    run = train(6, max_steps=5, overflow={3})
    assert sorted(index for attempt in run.attempts for index in attempt.ids) == list(range(6))


@pytest.mark.parametrize("event", ["on_step_begin", "on_pre_optimizer_step"])
def test_a_stop_of_the_training_is_obeyed_at_a_skipped_step(event):
    class Stop(TrainerCallback):
        begun = 0

        def on_step_begin(self, args, state, control, **kwargs):
            self.begun += 1
            control.should_training_stop |= event == "on_step_begin" and self.begun == 3

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            control.should_training_stop |= event == "on_pre_optimizer_step" and self.begun == 3

    run = train(6, max_steps=6, overflow={3}, callbacks=[Stop()])
    assert (len(run.attempts), run.state.global_step) == (3, 2)


def test_a_stop_of_the_epoch_is_obeyed_at_a_skipped_step():
    class Stop(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            control.should_epoch_stop |= model.poison is not None

    run = train(6, max_steps=6, overflow={3}, callbacks=[Stop()])
    assert [(attempt.step, attempt.epoch) for attempt in run.attempts[2:5]] == [(2, 2 / 6), (2, 0.5), (3, 1 + 1 / 6)]


def test_a_stop_by_a_callback_between_epochs_is_obeyed_while_steps_are_missing():
    class Stop(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    run = train(4, max_steps=4, overflow={2}, callbacks=[Stop()])
    assert (len(run.attempts), run.state.global_step) == (4, 3)


def test_callbacks_see_how_many_steps_were_skipped():
    seen = []

    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            seen.append((state.num_skipped_steps, state.num_skipped_steps_in_a_row))

    train(6, max_steps=3, overflow={2, 3}, callbacks=[Look()])
    assert seen == [(0, 0), (0, 0), (1, 1), (2, 2), (2, 0)]


@BOTH
def test_the_skip_flag_is_asked_for_once_an_attempt(optim, monkeypatch):
    run = prepare(6, max_steps=4, overflow={2}, optim=optim)
    accelerator, asked = type(run.trainer.accelerator), []
    flag = accelerator.optimizer_step_was_skipped

    def ask(self):
        asked.append(run.recorder.number)
        return flag.fget(self)

    monkeypatch.setattr(accelerator, "optimizer_step_was_skipped", property(ask))
    run.trainer.train()
    assert asked == [1, 2, 3, 4, 5]


@pytest.mark.finite
def test_without_a_scaler_nothing_is_ever_skipped():
    run = train(6, max_steps=6, scale=None)
    assert (run.applied, run.state.global_step, len(run.attempts)) == (6, 6, 6)


def test_optimizers_without_state_of_their_own_are_counted_too():
    run = train(6, max_steps=6, overflow={3}, optim="sgd")
    assert (run.state.global_step, len(run.attempts)) == (6, 7)


def test_skips_inside_the_epochs_of_a_stream_are_counted():
    run = train(Stream(3), max_steps=5, overflow={2, 4})
    assert (run.applied, run.state.global_step, len(run.attempts)) == (5, 5, 7)


def test_data_that_overflows_the_scaled_gradients_by_itself_is_skipped():
    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            x = torch.full((3,), 1e36 if index == 3 else 1.0)
            return {"x": x, "labels": torch.ones(1), "ids": torch.tensor(index)}

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), 1e-3))
            self.poison, self.seen = None, []

        def forward(self, x, labels, ids):
            loss = (x * self.weight).mean() - labels.mean()
            self.seen.append((ids.tolist(), loss.item()))
            return {"loss": loss}

    run = train(Large(), max_steps=6, model=Linear(), lr_scheduler_type="constant", learning_rate=1e-6)
    assert all(abs(loss) < 1e35 for attempt in run.attempts for _, loss in attempt.batches)
    assert (run.applied, run.state.global_step, len(run.attempts)) == (6, 6, 7)
