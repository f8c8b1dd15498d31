"""What of a skipped step is logged: nothing."""

from __future__ import annotations

import math

import pytest
from harness import train


def expected(run, overflow, every, total) -> dict[int, float]:
    """Means of the losses of applied attempts, `every` steps at a time."""
    losses = [attempt.loss for attempt in run.attempts if attempt.number not in overflow]
    return {step: sum(losses[step - every : step]) / every for step in range(every, total + 1, every)}


@pytest.mark.parametrize("kind", ["gradient", "loss"])
@pytest.mark.parametrize("nan_filter", [True, False])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_logged_loss_is_the_mean_over_applied_steps(every, accumulation, nan_filter, kind):
    overflow = {1, 4, 5, 8}
    run = train(
        15,
        max_steps=6,
        overflow=overflow,
        kind=kind,
        logging_steps=every,
        logging_nan_inf_filter=nan_filter,
        gradient_accumulation_steps=accumulation,
    )
    assert run.losses == pytest.approx(expected(run, overflow, every, 6), rel=1e-5)


@pytest.mark.parametrize("nan_filter", [True, False])
def test_an_infinite_loss_in_the_last_batch_of_a_step_takes_the_finite_ones_with_it(nan_filter):
    overflow = {2}

    def poison_last(run_kind):
        from transformers import TrainerCallback

        class Last(TrainerCallback):
            def on_step_begin(self, args, state, control, model=None, **kwargs):
                self.wanted, model.poison = model.poison, None

            def on_substep_end(self, args, state, control, model=None, **kwargs):
                model.poison = self.wanted

        return Last()

    run = train(
        12,
        max_steps=4,
        overflow=overflow,
        kind="loss",
        gradient_accumulation_steps=2,
        logging_nan_inf_filter=nan_filter,
        callbacks=[poison_last("loss")],
    )
    assert len(run.attempts) == 5
    assert run.losses == pytest.approx(expected(run, overflow, 1, 4), rel=1e-5)


@pytest.mark.parametrize("kind", ["gradient", "loss"])
@pytest.mark.parametrize("nan_filter", [True, False])
def test_the_training_loss_is_the_mean_over_applied_steps(nan_filter, kind):
    overflow = {2, 6}
    run = train(6, max_steps=5, overflow=overflow, kind=kind, logging_steps=3, logging_nan_inf_filter=nan_filter)
    losses = [attempt.loss for attempt in run.attempts if attempt.number not in overflow]
    assert run.result.training_loss == pytest.approx(sum(losses) / 5, rel=1e-5)


@pytest.mark.parametrize("kind", ["gradient", "loss"])
def test_the_training_loss_leaves_out_a_step_that_is_skipped_at_the_very_end(kind):
    run = train(4, num_train_epochs=1, overflow={4}, kind=kind, logging_steps=10, logging_nan_inf_filter=False)
    losses = [attempt.loss for attempt in run.attempts[:3]]
    assert run.result.training_loss == pytest.approx(sum(losses) / 3, rel=1e-5)


def norms(run) -> list[float]:
    return [log["grad_norm"] for log in run.recorder.logs if "grad_norm" in log]


def test_no_infinite_gradient_norm_is_logged():
    run = train(6, max_steps=5, overflow={2, 3})
    assert len(norms(run)) == 5
    assert all(math.isfinite(norm) for norm in norms(run))


def test_the_log_at_the_end_of_an_epoch_has_the_norm_of_the_last_applied_step():
    run = train(4, num_train_epochs=2, overflow={4}, logging_strategy="epoch")
    each = train(4, num_train_epochs=2, overflow={4})
    assert norms(run) == [norms(each)[2], norms(each)[-1]]
    assert all(math.isfinite(norm) for norm in norms(run))


def test_the_log_at_the_end_of_an_epoch_has_the_rate_of_the_last_applied_step():
    run = train(4, num_train_epochs=2, overflow={4, 8}, logging_strategy="epoch", optim="adamw_torch")
    each = train(4, num_train_epochs=2, overflow={4, 8}, optim="adamw_torch")
    rates = [[log["learning_rate"] for log in r.recorder.logs if "learning_rate" in log] for r in (run, each)]
    assert rates[0] == [rates[1][2], rates[1][5]]


def test_each_step_is_logged_once():
    run = train(6, max_steps=6, overflow={2, 3, 6})
    assert [log["step"] for log in run.recorder.logs if "loss" in log] == [1, 2, 3, 4, 5, 6]
    assert len(run.attempts) == 9


def test_the_first_step_is_logged_when_it_was_applied():
    run = train(6, max_steps=4, overflow={1}, logging_steps=100, logging_first_step=True)
    (log,) = [log for log in run.recorder.logs if "loss" in log]
    assert (log["step"], log["epoch"]) == (1, 2 / 6)


def test_logs_at_steps_that_are_a_share_of_the_run_stay_where_they_were():
    run = train(4, max_steps=8, overflow={2}, logging_steps=0.25)
    assert [log["step"] for log in run.recorder.logs if "loss" in log] == [2, 4, 6, 8]
    assert len(run.attempts) == 9
