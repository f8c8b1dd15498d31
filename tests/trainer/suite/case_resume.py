"""A run with skipped steps goes on from each of its checkpoints as if it had never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from harness import Examples, Stream, train
from transformers import TrainerCallback

PLANS = {
    "steps over epochs": {"data": 5, "max_steps": 8, "overflow": {2, 5, 6, 9}},
    "first step skipped": {"data": 5, "max_steps": 4, "overflow": {1, 4}},
    "accumulation with a short last group": {
        "data": 7,
        "max_steps": 7,
        "overflow": {2, 4, 7, 8},
        "gradient_accumulation_steps": 2,
    },
    "epochs": {"data": 4, "num_train_epochs": 3, "overflow": {4, 6, 12}},
    "a fraction of epochs": {"data": 4, "num_train_epochs": 2.5, "overflow": {3, 5, 9}},
    "epochs with accumulation": {
        "data": 7,
        "num_train_epochs": 2,
        "overflow": {1, 4, 6},
        "gradient_accumulation_steps": 3,
    },
}
FINITE = {name: {**plan, "overflow": set()} for name, plan in PLANS.items()}
EVERY_STEP = {"save_strategy": "steps", "save_steps": 1, "dropout": 0.3}


def resumed(plan: dict, whole, step: int, **options):
    first = whole.recorder.saved[step]
    return train(**{**plan, **EVERY_STEP, **options}, resume=whole.checkpoint(step), first=first)


def logs(run, after: int) -> list[dict]:
    return [log for log in run.recorder.logs if log["step"] > after and "loss" in log]


def step_events(run, after: int) -> list[tuple[str, int]]:
    names = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_save", "on_log")
    events = run.events(*names, "on_substep_end")
    return [event for event in events if event[0] != "on_log" or event[1] > after]


def assert_same_from(whole, again, step: int) -> None:
    first = whole.recorder.saved[step]
    tail = whole.attempts[first - whole.attempts[0].number + 1 :]
    assert [attempt.batches for attempt in again.attempts] == [attempt.batches for attempt in tail]
    assert [vars(attempt) for attempt in again.attempts] == [vars(attempt) for attempt in tail]
    assert again.weights == whole.weights
    assert again.trainer.lr_scheduler.state_dict() == whole.trainer.lr_scheduler.state_dict()
    assert str(again.optimizer.state_dict()) == str(whole.optimizer.state_dict())
    assert logs(again, step) == logs(whole, step)
    events = step_events(again, step)
    assert events == step_events(whole, step)[len(step_events(whole, step)) - len(events) :]
    for name in ("global_step", "max_steps", "epoch", "num_train_epochs"):
        assert getattr(again.state, name) == getattr(whole.state, name), name


def check_every_checkpoint(plan: dict) -> None:
    whole = train(**plan, **EVERY_STEP)
    last = whole.state.global_step
    assert whole.checkpoints == list(range(1, last + 1))
    for step in range(1, last):
        assert_same_from(whole, resumed(plan, whole, step, output_dir=f"again-{step}"), step)


@pytest.mark.parametrize("name", PLANS)
def test_every_checkpoint_resumes_to_the_run_that_was_never_stopped(name):
    plan = PLANS[name]
    check_every_checkpoint(plan)
    whole = train(**plan, **EVERY_STEP)
    assert whole.applied == whole.state.global_step
    assert len(whole.attempts) == whole.applied + len(plan["overflow"])


@pytest.mark.finite
@pytest.mark.parametrize("name", FINITE)
def test_every_checkpoint_of_a_finite_run_resumes_as_before(name):
    check_every_checkpoint(FINITE[name])


def test_a_checkpoint_at_the_end_of_an_epoch_whose_last_step_was_skipped_resumes_in_the_next_one():
    plan = {"data": 4, "num_train_epochs": 3, "overflow": {4, 7}}
    options = {"save_strategy": "epoch", "save_steps": 500}
    whole = train(**plan, **EVERY_STEP | options)
    assert whole.recorder.saved == {3: 4, 6: 8, 10: 12}
    for step in (3, 6):
        again = resumed(plan, whole, step, output_dir=f"again-{step}", **options)
        assert [attempt.batches for attempt in again.attempts] == [
            attempt.batches for attempt in whole.attempts[whole.recorder.saved[step] :]
        ]
        assert again.weights == whole.weights
        assert again.state.global_step == again.state.max_steps == 10


def test_a_resumed_run_is_resumed_again():
    plan = PLANS["steps over epochs"]
    whole = train(**plan, **EVERY_STEP)
    second = resumed(plan, whole, 2, output_dir="second")
    third = resumed(plan, second, 5, output_dir="third")
    fourth = resumed(plan, third, 7, output_dir="fourth")
    assert third.attempts[0].number == second.recorder.saved[5] + 1
    for run, step in ((second, 2), (third, 5), (fourth, 7)):
        assert_same_from(whole, run, step)
    assert whole.state.global_step == whole.applied == 8


@pytest.mark.parametrize("data", [5, "stream"])
def test_a_finished_run_goes_on_with_more_steps(data):
    def plan(steps):
        source = Stream() if data == "stream" else data
        return {"data": source, "max_steps": steps, "overflow": {2, 3, 7}, "lr_scheduler_type": "constant"}

    whole = train(**plan(8), **EVERY_STEP)
    short = train(**plan(4), **EVERY_STEP, output_dir="short")
    more = resumed(plan(8), short, 4, output_dir="more")
    assert (len(short.attempts), len(more.attempts), more.state.global_step) == (6, 5, 8)
    assert [attempt.batches for attempt in more.attempts] == [attempt.batches for attempt in whole.attempts[6:]]
    assert more.weights == whole.weights


def test_a_run_that_skips_no_data_still_makes_all_its_updates():
    plan = {"data": 5, "max_steps": 8, "overflow": {2, 5, 6, 9}}
    whole = train(**plan, **EVERY_STEP)
    epochs = {step: whole.recorder.saved[step] // 5 for step in range(1, 8)}
    for step in range(1, 8):
        again = resumed(plan, whole, step, output_dir=f"again-{step}", ignore_data_skip=True)
        assert (again.state.global_step, again.applied) == (8, 8)
        begun = next(attempt for attempt in again.attempts)
        assert begun.ids == whole.attempts[5 * epochs[step]].ids, "it begins with the first batch of its epoch"


def test_a_run_over_epochs_that_skips_no_data_ends_with_the_updates_that_are_left():
    plan = {"data": 4, "num_train_epochs": 3, "overflow": {2, 7}}
    whole = train(**plan, **EVERY_STEP)
    again = resumed(plan, whole, 4, output_dir="again", ignore_data_skip=True)
    assert again.state.global_step == again.state.max_steps == whole.state.global_step == 10


FINISHED = {
    "inside an epoch": {"data": 4, "max_steps": 6, "overflow": {2}},
    "at the end of an epoch": {"data": 4, "max_steps": 6, "overflow": {2, 5}},
    "in an extra epoch": {"data": 6, "max_steps": 6, "overflow": {3}},
    "epochs": {"data": 4, "num_train_epochs": 2, "overflow": {2, 8}},
    "a fraction": {"data": 4, "num_train_epochs": 1.5, "overflow": {2}},
    "a fraction, last step skipped": {"data": 4, "num_train_epochs": 1.5, "overflow": {6}},
    "stream": {"data": "stream", "max_steps": 6, "overflow": {2}},
}


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_trains_no_more_when_it_is_resumed(name):
    def plan():
        options = FINISHED[name]
        return {**options, "data": Stream()} if options["data"] == "stream" else options

    whole = train(**plan(), **EVERY_STEP)
    last = whole.checkpoints[-1]
    again = resumed(plan(), whole, last, output_dir="again")
    remaining = len(whole.attempts) - whole.recorder.saved[last]
    assert len(again.attempts) == remaining <= 1, "only a skipped last attempt is left to be made again"
    assert again.state.global_step == again.state.max_steps == whole.applied
    assert again.weights == whole.weights
    assert len(whole.attempts) == whole.applied + len(FINISHED[name]["overflow"])


def test_the_counters_are_in_the_checkpoints_only_where_steps_were_skipped():
    run = train(6, max_steps=4, overflow={3}, **EVERY_STEP)
    counters = [
        {name: value for name, value in run.trainer_state(step).items() if "skipped" in name} for step in (1, 2, 3, 4)
    ]
    assert counters == [{}, {}, {"num_skipped_steps": 1}, {"num_skipped_steps": 1}]


def test_a_checkpoint_of_a_run_with_skips_from_before_the_patch_resumes_at_its_data():
    # Such a run counted each attempt and had no other counter.
    whole = train(6, max_steps=8, overflow={2, 4}, **EVERY_STEP)
    step, attempts = 4, whole.recorder.saved[4]
    path = Path(whole.checkpoint(step)) / "trainer_state.json"
    state = {name: value for name, value in json.loads(path.read_text()).items() if "skipped" not in name}
    path.write_text(json.dumps({**state, "global_step": attempts}))
    again = train(6, max_steps=8, overflow={2, 4}, **EVERY_STEP, output_dir="x", resume=whole.checkpoint(4), first=6)
    assert attempts == 6
    assert [attempt.ids for attempt in again.attempts] == [attempt.ids for attempt in whole.attempts[6:8]]
    assert again.state.global_step == 8


class StopAt(TrainerCallback):
    """Asks for a checkpoint and the end of the training in a certain attempt."""

    def __init__(self, attempt: int) -> None:
        self.attempt, self.begun = attempt, 0

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.begun += 1
        if self.begun == self.attempt:
            control.should_training_stop = control.should_save = True


def test_a_run_that_was_stopped_between_two_skipped_steps_resumes_between_them():
    plan = {"data": 4, "max_steps": 6, "overflow": {3, 4, 5}}
    whole = train(**plan, **EVERY_STEP)
    stopped = train(**plan, **EVERY_STEP, output_dir="stopped", callbacks=[StopAt(4)])
    assert (stopped.state.global_step, stopped.recorder.saved[2]) == (2, 4)
    assert stopped.trainer_state(2)["num_skipped_steps_in_a_row"] == 2
    again = train(**plan, **EVERY_STEP, output_dir="again", resume=stopped.checkpoint(2), first=4)
    assert [attempt.batches for attempt in again.attempts] == [attempt.batches for attempt in whole.attempts[4:]]
    assert again.weights == whole.weights


BY_EPOCH = {"eval_strategy": "epoch", "trainer_options": {"eval_dataset": Examples(2)}}


def test_an_epoch_with_updates_is_evaluated_although_those_behind_the_checkpoint_are_skipped():
    plan = {"data": 4, "max_steps": 6, "overflow": {3, 4}}
    whole = train(**plan, **EVERY_STEP, **BY_EPOCH)
    again = resumed(plan, whole, 2, output_dir="again", **BY_EPOCH)
    assert whole.recorder.evaluations == again.recorder.evaluations == [2, 6]


def test_an_epoch_without_updates_is_not_evaluated_behind_a_checkpoint_at_its_start():
    plan = {"data": 2, "max_steps": 4, "overflow": {3, 4}}
    whole = train(**plan, **EVERY_STEP, **BY_EPOCH)
    again = resumed(plan, whole, 2, output_dir="again", **BY_EPOCH)
    assert (whole.recorder.evaluations, again.recorder.evaluations) == ([2, 4], [4])
    assert len(again.attempts) == 4


@pytest.mark.parametrize("optim", [pytest.param("adamw_torch_fused", marks=pytest.mark.accelerate)])
def test_fused_optimizers_resume_too(optim):
    plan = {"data": 5, "max_steps": 6, "overflow": {2, 5, 6}, "optim": optim}
    check_every_checkpoint(plan)
    whole = train(**plan, **EVERY_STEP)
    assert whole.applied == whole.state.global_step == 6
    assert torch.isfinite(torch.tensor(whole.weights)).all()
