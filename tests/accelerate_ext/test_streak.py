"""Too many skipped updates in a row."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.amp import GradScaler

import accelerate_ext
from accelerate_ext.streak import too_many_skips


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "50"])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(ValueError, match="`max_consecutive_skips` must be None or a whole number from 1 up, got"):
        accelerate_ext.Accelerator(cpu=True, max_consecutive_skips=limit)


def test_a_skipped_streak_raises_at_the_limit_and_names_the_scales(loop):
    training = loop(infinite=range(99), batches=99, options={"max_consecutive_skips": 5})
    with pytest.raises(accelerate_ext.SkippedUpdatesError) as error:
        training.run()
    assert "5 updates in a row were skipped (`max_consecutive_skips` is 5)" in str(error.value)
    assert "the loss scale was 16 before them and is 0.5 now" in str(error.value)
    assert "learning rate" in str(error.value)
    assert "65504 in float16" in str(error.value)
    assert "2**-128" in str(error.value)


def test_a_scale_that_has_come_to_zero_is_named_as_it_was_before(loop):
    training = loop(infinite=[0, 2, 3], batches=9, scaler={"init_scale": 2.0**-148})
    training.options["max_consecutive_skips"] = 2
    with pytest.raises(accelerate_ext.SkippedUpdatesError, match=r"was 1\.4013e-45 before them and is 0 now"):
        training.run()


def test_a_window_is_left_before_the_limit_raises(loop):
    record, loader = loop(infinite=[0], batches=1, options={"max_consecutive_skips": 1}).prepare()
    reached = []

    def train():
        for batch in loader:
            with record.accelerator.attempt(record.model) as update:
                record.accelerator.backward(record.model(batch).mean() * float("inf"))
                record.optimizer.step()
                reached.append(update.outcome)

    with pytest.raises(accelerate_ext.SkippedUpdatesError):
        train()
    assert reached == ["skipped"]


def test_without_a_window_the_step_raises_at_the_limit(loop):
    record, loader = loop(batches=2, options={"max_consecutive_skips": 2}).prepare()
    first, second = loader
    record.accelerator.backward(record.model(first).mean() * float("inf"))
    record.optimizer.step()
    record.optimizer.zero_grad()
    record.accelerator.backward(record.model(second).mean() * float("inf"))
    with pytest.raises(accelerate_ext.SkippedUpdatesError, match="2 updates in a row"):
        record.optimizer.step()


SCALER = GradScaler("cpu", init_scale=2.0)
WITH_SCALER = SimpleNamespace(scaler=SCALER, optimizer=None)
WITH_ENGINE = SimpleNamespace(scaler=None, optimizer=SimpleNamespace(loss_scale=2))
PLAIN = SimpleNamespace(scaler=None, optimizer=SimpleNamespace())
DISABLED = SimpleNamespace(scaler=GradScaler("cpu", enabled=False), optimizer=SimpleNamespace())
NO_SCALE = (
    "3 updates in a row were skipped (`max_consecutive_skips` is 2); no loss scale is in use. "
    "Look at the loss and the inputs of the last batches (is one of them not finite?) and at the learning rate. "
    "Pass a larger `max_consecutive_skips` to tolerate more, or None to never stop."
)
WITH_SCALE = (
    "3 updates in a row were skipped (`max_consecutive_skips` is 2); "
    "the loss scale was 16 before them and is 2 now. "
    "Look at the loss and the inputs of the last batches (is one of them not finite?) and at the learning rate, "
    "and at layers whose activations exceed 65504 in float16; weights trained in bfloat16 often need bfloat16. "
    "Pass a larger `max_consecutive_skips` to tolerate more, or None to never stop: below a loss scale of 2**-128 "
    "a GradScaler passes non-finite gradients on, and the weights are lost."
)


@pytest.mark.parametrize(
    ("optimizers", "scale_then", "message"),
    [
        ([WITH_SCALER], 16.0, WITH_SCALE),
        ([WITH_SCALER], torch.tensor(16.0), WITH_SCALE),
        ([WITH_SCALER], None, WITH_SCALE.replace("was 16 before them and is", "is")),
        ([PLAIN, DISABLED, WITH_SCALER, WITH_ENGINE], 16.0, WITH_SCALE),
        ([PLAIN, WITH_ENGINE], 16, WITH_SCALE),
        ([WITH_ENGINE], None, NO_SCALE),
        ([PLAIN, DISABLED], 16.0, NO_SCALE),
    ],
)
def test_the_message_says_what_is_known_of_the_loss_scale(optimizers, scale_then, message):
    SCALER.scale(torch.ones(()))
    assert too_many_skips(3, 2, optimizers, scale_then) == message


def test_an_applied_update_ends_the_streak(loop):
    record = loop(infinite=[0, 1, 3, 4, 6, 7], batches=9, options={"max_consecutive_skips": 3}).run()
    assert record.accelerator.skipped_steps == 6


def test_none_turns_the_limit_off(loop):
    record = loop(infinite=range(60), batches=60, options={"max_consecutive_skips": None}).run()
    assert record.accelerator.skipped_steps == 60


def test_forty_skips_in_a_row_are_survived_by_default(loop):
    record = loop(infinite=range(40), batches=42, scaler={"init_scale": 2.0**40}).run()
    assert record.accelerator.applied_step == 2


def test_skips_by_hand_count_for_the_limit_too(loop):
    record, loader = loop(options={"max_consecutive_skips": 3}).prepare()

    def never_step():
        for batch in loader:
            with record.accelerator.accumulate(record.model):
                record.accelerator.backward(record.model(batch).mean())

    with (
        pytest.warns(UserWarning, match="3 updates in a row count as skipped"),
        pytest.raises(accelerate_ext.SkippedUpdatesError, match="3 updates in a row"),
    ):
        never_step()
    assert record.accelerator.attempted_step == 3


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_the_smallest_limits_are_limits(limit):
    assert accelerate_ext.Accelerator(cpu=True, max_consecutive_skips=limit).max_consecutive_skips == limit


@pytest.mark.parametrize("how", ["the optimizer within", "one that was not prepared"])
def test_steps_that_nobody_sees_are_said_once_and_in_place_of_the_loss(loop, how):
    record, loader = loop(options={"max_consecutive_skips": 5}).prepare()
    accelerator, model = record.accelerator, record.model
    stepped = record.optimizer.optimizer if how == "the optimizer within" else torch.optim.SGD(model.parameters())
    own = GradScaler("cpu", init_scale=2.0)

    def train():
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(own.scale(model(batch).mean()))
                own.step(stepped)
                own.update()

    with (
        pytest.warns(UserWarning, match=r"^3 updates .*`step\(\)` of no prepared optimizer was called") as said,
        pytest.raises(accelerate_ext.SkippedUpdatesError) as error,
    ):
        train()
    assert len(said) == 1 and said[0].filename == __file__
    assert str(error.value).startswith(
        "5 updates in a row were skipped (`max_consecutive_skips` is 5). Their gradients"
    )
    assert all(part in str(error.value) for part in ("`optimizer.optimizer`", "not prepared", "`prepare`"))
    assert "loss scale" not in str(error.value) and "learning rate" not in str(error.value)


def test_a_model_whose_optimizer_is_not_prepared_is_told_beside_one_whose_is():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    plain, model = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))

    def train():
        for stepped, by in [(plain, torch.optim.SGD(plain.parameters())), (model, optimizer)] * 4:
            with accelerator.accumulate(stepped):
                accelerator.backward(stepped(torch.ones(1, 1)).sum())
                by.step()
                by.zero_grad()

    with pytest.warns(UserWarning, match="3 updates in a row count as skipped") as said:
        train()
    assert len(said) == 1


def test_two_updates_that_are_left_out_by_hand_say_nothing_and_a_step_begins_the_count_anew(loop):
    record, loader = loop(batches=9).prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index, batch in enumerate(loader):
            with record.accelerator.accumulate(record.model):
                record.accelerator.backward(record.model(batch).mean())
                if index % 3 == 2:
                    record.optimizer.step()
    assert record.accelerator.applied_step == 3
