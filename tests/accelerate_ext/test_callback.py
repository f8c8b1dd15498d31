"""The callback, in a `transformers.Trainer` as it is released."""

from __future__ import annotations

import json
import shutil

import accelerate
import accelerate.optimizer
import pytest
import torch
from torch import nn

import accelerate_ext
from accelerate_ext.ema import EMA, PostHocEMA

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.forwards = 0
        self.infinite = ()

    def forward(self, x, labels=None):
        loss = self.linear(x).pow(2).mean()
        if self.training:
            if self.forwards in self.infinite:
                loss = loss * float("inf")
            self.forwards += 1
        return {"loss": loss}


def new_model():
    torch.manual_seed(0)
    return Model()


class Mean:
    """An average, and a list of the steps it was told."""

    def __init__(self, model) -> None:
        self.model, self.told, self.weight = model, [], torch.zeros(1, 4)

    def update(self, t) -> None:
        self.told.append(t)
        self.weight.lerp_(self.model.linear.weight.detach(), 0.5)

    def state_dict(self):
        return {"weight": self.weight, "told": self.told}

    def load_state_dict(self, state) -> None:
        self.weight.copy_(state["weight"])
        self.told = list(state["told"])


@pytest.fixture
def make(tmp_path, forget):
    def make_trainer(callback=None, infinite=(), scaler=True, model=None, **arguments):
        model = model or new_model()
        model.infinite = infinite
        torch.manual_seed(1)
        settings = {
            "output_dir": str(tmp_path / "out"),
            "use_cpu": True,
            "max_steps": 6,
            "logging_steps": 1,
            "save_steps": 3,
            "per_device_train_batch_size": 2,
            "report_to": [],
            "disable_tqdm": True,
            "optim": "adamw_torch",
            "learning_rate": 0.1,
            "logging_nan_inf_filter": False,
            "max_grad_norm": 0.0,  # clips by the scaled norm here, and older Trainers do not save the loss scale
        }
        data = [{"x": torch.randn(4), "labels": 0} for _ in range(40)]
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(**(settings | arguments)),
            train_dataset=data,
            callbacks=[callback] if callback is not None else [],
        )
        if scaler:
            trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
            trainer.accelerator.native_amp = True
        return trainer

    return make_trainer


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "sgd"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_averages_move_with_applied_updates_and_logs_tell_of_both(make, optim, accumulation):
    infinite = [0, 3 * accumulation]  # in the first and the fourth update
    model = new_model()
    mean = Mean(model)
    callback = accelerate_ext.AppliedStepCallback(ema=mean)
    trainer = make(callback, infinite, model=model, optim=optim, gradient_accumulation_steps=accumulation)
    trainer.train()
    assert mean.told == [1, 2, 3, 4]
    assert (callback.attempted_step, callback.applied_step, callback.skipped_steps) == (6, 4, 2)
    assert trainer.state.global_step == 6  # the Trainer's own count is not touched
    logs = [(log["applied_step"], log["skipped_steps"]) for log in trainer.state.log_history if "loss" in log]
    assert logs == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]


def test_training_is_the_same_with_and_without(make):
    weights = []
    for callback in (None, accelerate_ext.AppliedStepCallback()):
        trainer = make(callback, [2])
        trainer.train()
        weights.append(trainer.model.linear.weight.detach().clone())
        assert type(trainer.optimizer) is accelerate.optimizer.AcceleratedOptimizer
    assert torch.equal(*weights)


def test_without_a_scaler_all_is_applied(make):
    callback = accelerate_ext.AppliedStepCallback()
    make(callback, scaler=False).train()
    assert (callback.applied_step, callback.skipped_steps) == (6, 0)


def test_it_stops_when_enough_are_applied(make):
    callback = accelerate_ext.AppliedStepCallback(stop_at_applied_step=4)
    trainer = make(callback, [0, 2], max_steps=20)
    trainer.train()
    assert (callback.applied_step, trainer.state.global_step) == (4, 6)


def test_it_warns_when_training_ends_too_early(make):
    callback = accelerate_ext.AppliedStepCallback(stop_at_applied_step=6)
    with pytest.warns(RuntimeWarning, match="training ended with 5 updates applied in place of 6: 1 were skipped"):
        make(callback, [1]).train()


def resume_newest(checkpoint):
    """What `resume_from_checkpoint=True` means, once later checkpoints are gone."""
    shutil.rmtree(checkpoint.with_name("checkpoint-6"))
    return True


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("where", ["newest", "path"])
def test_resuming_takes_up_counts_and_averages(make, tmp_path, restore, where):
    model = new_model()
    mean = Mean(model)
    make(accelerate_ext.AppliedStepCallback(ema=mean), [1], model=model).train()
    assert mean.told == [1, 2, 3, 4, 5]
    checkpoint = tmp_path / "out" / "checkpoint-3"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["accelerate_ext.applied_step"]["applied"] == 2
    model = new_model()
    later = Mean(model)
    again = accelerate_ext.AppliedStepCallback(ema=later)
    resumed = make(again, model=model, restore_callback_states_from_checkpoint=restore)
    resumed.train(resume_from_checkpoint=str(checkpoint) if where == "path" else resume_newest(checkpoint))
    assert later.told == mean.told
    assert torch.equal(later.weight, mean.weight)
    assert (again.attempted_step, again.applied_step) == (6, 5)


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("is_in_the_way", [False, True])
def test_an_average_of_a_checkpoint_elsewhere_is_taken_up_or_missed_aloud(make, tmp_path, is_told, is_in_the_way):
    model = new_model()
    mean = Mean(model)
    make(accelerate_ext.AppliedStepCallback(ema=mean), [1], model=model).train()
    checkpoint = tmp_path / "out" / "checkpoint-3"
    elsewhere = {"output_dir": str(tmp_path / "other")}
    if is_in_the_way:  # a checkpoint of another run, at the same step
        model = new_model()
        make(
            accelerate_ext.AppliedStepCallback(ema=Mean(model)), [2], model=model, learning_rate=0.3, **elsewhere
        ).train()
    if is_told:
        elsewhere["resume_from_checkpoint"] = str(checkpoint)
    model = new_model()
    later = Mean(model)
    resumed = make(accelerate_ext.AppliedStepCallback(ema=later), model=model, **elsewhere)
    if is_told:
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert (later.told, later.weight.tolist()) == (mean.told, mean.weight.tolist())
    else:
        with pytest.raises(accelerate_ext.CheckpointError, match=r"TrainingArguments\(resume_from_checkpoint=...\)"):
            resumed.train(resume_from_checkpoint=str(checkpoint))


def test_a_checkpoint_from_before_gives_the_count_of_the_optimizer(make, tmp_path):
    make(None, [1]).train()
    callback = accelerate_ext.AppliedStepCallback()
    trainer = make(callback)
    with pytest.warns(UserWarning, match="written without AppliedStepCallback: continuing at 2 applied updates"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert callback.applied_step == 5


def test_too_many_skips_raise(make):
    callback = accelerate_ext.AppliedStepCallback(max_consecutive_skips=3)
    with pytest.raises(accelerate_ext.SkippedUpdatesError, match="3 updates in a row were skipped"):
        make(callback, range(9), max_steps=9).train()


def test_put_first_it_reaches_the_reporting_integrations(make):
    class Report(transformers.TrainerCallback):
        seen = ()

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen = (*self.seen, logs.get("applied_step"))

    report, callback = Report(), accelerate_ext.AppliedStepCallback()
    trainer = make(report)
    trainer.callback_handler.callbacks.insert(0, callback)
    trainer.train()
    assert report.seen[:6] == (1, 2, 3, 4, 5, 6)


def test_an_attached_accelerator_counts_the_same(make):
    callback = accelerate_ext.AppliedStepCallback()
    trainer = make(callback, [1, 2])
    accelerate_ext.attach(trainer.accelerator)
    trainer.train()
    assert (callback.applied_step, callback.skipped_steps) == (4, 2)
    assert (trainer.accelerator.applied_step, trainer.accelerator.skipped_steps) == (4, 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ema": object()}, TypeError, r"`ema` must have an `update\(applied_step\)` method, got object"),
        ({"stop_at_applied_step": 0}, ValueError, "`stop_at_applied_step` must be None or a whole number from 1 up"),
        ({"max_consecutive_skips": 0}, ValueError, "`max_consecutive_skips` must be None or a whole number from 1 up"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        accelerate_ext.AppliedStepCallback(**options)


@pytest.mark.parametrize(
    "make_average", [lambda model: EMA(model, decay=0.9), lambda model: PostHocEMA(model, (0.05, 0.1))]
)
def test_the_averages_of_this_package_go_through_a_training_and_a_resume(make, tmp_path, make_average):
    model = new_model()
    ema = make_average(model)
    make(accelerate_ext.AppliedStepCallback(ema=ema), [1], model=model).train()
    assert ema.step == 5
    model = new_model()
    later = make_average(model)
    resumed = make(accelerate_ext.AppliedStepCallback(ema=later), model=model)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert later.step == 5
    for one, other in zip(ema.state_dict()["averages"], later.state_dict()["averages"], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


class Fails(transformers.TrainerCallback):
    """Ends the training with an error in its third step, once."""

    is_due = True

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3 and self.is_due:
            self.is_due = False
            raise ZeroDivisionError


def test_a_new_callback_counts_after_a_training_that_ended_with_an_error(make):
    first, second = accelerate_ext.AppliedStepCallback(), accelerate_ext.AppliedStepCallback()
    trainer = make(first)
    trainer.add_callback(Fails())
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert first.applied_step == 3
    trainer.remove_callback(first)
    trainer.add_callback(second)
    trainer.train()
    assert (second.applied_step, second.attempted_step) == (6, 6)


def test_the_same_callback_counts_on_when_training_begins_again_after_an_error(make):
    """As `auto_find_batch_size` does: the weights keep what was applied to them."""
    callback = accelerate_ext.AppliedStepCallback()
    trainer = make(callback)
    trainer.add_callback(Fails())
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer.train()
    assert callback.applied_step == 9


def test_two_callbacks_count_the_same(make):
    first, second = accelerate_ext.AppliedStepCallback(), accelerate_ext.AppliedStepCallback(stop_at_applied_step=4)
    trainer = make(first, [1])
    trainer.add_callback(second)
    trainer.train()
    assert (first.applied_step, first.attempted_step) == (second.applied_step, second.attempted_step) == (4, 5)
    assert type(trainer.optimizer) is accelerate.optimizer.AcceleratedOptimizer


def test_a_resume_takes_up_the_counts_of_an_attached_accelerator_too(make, tmp_path):
    make(accelerate_ext.AppliedStepCallback(), [1]).train()
    callback = accelerate_ext.AppliedStepCallback()
    trainer = make(callback)
    accelerate_ext.attach(trainer.accelerator)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert (callback.attempted_step, callback.applied_step) == (6, 5)
    assert (trainer.accelerator.attempted_step, trainer.accelerator.applied_step) == (6, 5)


def test_an_average_that_is_not_saved_is_told(make):
    trainer = make()
    callback = accelerate_ext.AppliedStepCallback(ema=EMA(trainer.model))
    state = transformers.TrainerState(global_step=7)
    with pytest.warns(UserWarning, match=r"there is no .*checkpoint-7: the average was not saved"):
        callback.on_save(trainer.args, state, transformers.TrainerControl())


def test_an_optimizer_that_accelerate_did_not_prepare_is_refused_when_training_begins(tmp_path):
    callback, model = accelerate_ext.AppliedStepCallback(), new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[])
    with pytest.raises(TypeError, match="must be prepared by Accelerate, got SGD: applied updates cannot be told"):
        callback.on_train_begin(
            arguments, transformers.TrainerState(), transformers.TrainerControl(), optimizer=optimizer
        )
