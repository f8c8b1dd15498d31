"""Epochs until enough updates are applied."""

from __future__ import annotations

import itertools
import warnings

import pytest

import accelerate_ext
from accelerate_ext.epochs import EpochPlan


def epochs_of(loop, max_applied_steps, infinite=(), batches=4, accumulation=1, breaks=True, **options):
    training = loop(infinite=infinite, batches=batches, accumulation=accumulation, options=options)
    record, loader = training.prepare()
    updates_per_epoch = -(-batches // accumulation)
    seen = []
    for epoch in record.accelerator.epochs(max_applied_steps, updates_per_epoch):
        seen.append(epoch)
        for batch in loader:
            with record.accelerator.accumulate(record.model):
                training.micro_batch(record, batch, record.accelerator.attempted_step)
            if breaks and record.accelerator.applied_step >= max_applied_steps:
                break
    return seen, record.accelerator


@pytest.mark.parametrize(("wanted", "epochs"), [(0, []), (1, [0]), (4, [0]), (5, [0, 1]), (8, [0, 1])])
def test_without_skips_there_are_as_many_epochs_as_it_takes(loop, wanted, epochs):
    seen, accelerator = epochs_of(loop, wanted)
    assert seen == epochs
    assert accelerator.applied_step == wanted


def test_skipped_updates_are_made_up_for(loop):
    seen, accelerator = epochs_of(loop, 8, infinite=[0, 1, 5])
    assert seen == [0, 1, 2]
    assert (accelerator.applied_step, accelerator.attempted_step) == (8, 11)


def test_an_epoch_of_one_update_may_be_skipped(loop):
    seen, accelerator = epochs_of(loop, 3, infinite=[2, 3], batches=1)
    assert seen == [0, 1, 2, 3, 4]
    assert accelerator.applied_step == 3


def test_a_short_last_window_counts_as_an_update(loop):
    seen, accelerator = epochs_of(loop, 4, infinite=[1], batches=5, accumulation=3)
    assert seen == [0, 1, 2]
    assert accelerator.applied_step == 4


def test_the_last_epoch_runs_on_when_the_loop_does_not_break(loop):
    seen, accelerator = epochs_of(loop, 5, breaks=False)
    assert (seen, accelerator.applied_step) == ([0, 1], 8)


def test_it_is_bounded_when_nothing_is_applied(loop):
    with pytest.warns(RuntimeWarning, match=r"with 0 updates applied in place of 8: the last \d+ updates were all"):
        seen, accelerator = epochs_of(loop, 8, infinite=range(10_000), max_consecutive_skips=None)
    assert 2 <= len(seen) <= 14
    assert accelerator.applied_step == 0


def test_it_is_bounded_when_nothing_is_attempted(loop):
    record, _ = loop().prepare()
    with pytest.warns(
        RuntimeWarning, match="with 0 updates applied in place of 8: the last epoch attempted no update"
    ):
        seen = list(itertools.islice(record.accelerator.epochs(8, 4), 100))
    assert seen == [0, 1]


def test_an_epoch_without_attempts_ends_it_whatever_those_before_attempted(loop):
    training = loop(infinite=[1], batches=4)
    record, loader = training.prepare()
    seen = []

    def train_in_the_first_one():
        for epoch in itertools.islice(record.accelerator.epochs(8, 4), 100):
            seen.append(epoch)
            if epoch == 0:
                training.train(record, loader)

    with pytest.warns(
        RuntimeWarning, match="with 3 updates applied in place of 8: the last epoch attempted no update"
    ):
        train_in_the_first_one()
    assert seen == [0, 1]


def test_the_warning_points_at_the_loop(loop):
    record, _ = loop().prepare()
    with pytest.warns(RuntimeWarning, match="the last epoch") as warned:
        list(record.accelerator.epochs(8, 4))
    assert [warning.filename for warning in warned] == [__file__]
    assert str(warned[0].message) == (
        "epochs() ends after epoch 1 with 0 updates applied in place of 8: the last epoch attempted no update"
    )


def test_an_epoch_of_skips_ends_the_loop_only_once_the_epochs_without_skips_are_used_up():
    plan = EpochPlan(9, 4, patience=None)
    assert plan.budget() == 3
    assert plan.reason_to_give_up(2, attempts_in_last_epoch=0, skipped_in_a_row=99) is None
    assert plan.reason_to_give_up(3, attempts_in_last_epoch=0, skipped_in_a_row=99) is not None
    assert EpochPlan(8, 4, patience=None).budget() == 2


@pytest.mark.parametrize(
    ("updates_per_epoch", "patience", "limit"), [(4, None, 50), (4, 7, 7), (4, 3, 4), (70, None, 70), (70, 50, 70)]
)
def test_a_streak_ends_the_loop_when_it_is_an_epoch_long_and_as_long_as_patience(updates_per_epoch, patience, limit):
    plan = EpochPlan(1, updates_per_epoch, patience)
    assert plan.reason_to_give_up(1, 1, limit - 1) is None
    assert plan.reason_to_give_up(1, 1, limit) == f"the last {limit} updates were all skipped"


def test_data_are_used_up_by_attempts():
    plan = EpochPlan(100, 4, patience=None)
    assert [plan.first_epoch(attempted) for attempted in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert [plan.is_done(applied) for applied in (99, 100, 101)] == [False, True, True]


def test_reaching_the_number_warns_about_nothing(loop):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        epochs_of(loop, 8, infinite=[0, 7])


def test_the_limit_of_skips_can_be_given_here(loop):
    record, _ = loop().prepare()
    list(record.accelerator.epochs(0, 1, max_consecutive_skips=7))
    assert record.accelerator.max_consecutive_skips == 7
    list(record.accelerator.epochs(0, 1))
    assert record.accelerator.max_consecutive_skips == 7
    list(record.accelerator.epochs(0, 1, max_consecutive_skips=None))
    assert record.accelerator.max_consecutive_skips is None


def test_it_goes_on_where_the_data_were_left(loop):
    training = loop(infinite=[1, 2], batches=4)
    record = training.run()
    training.train(record, [next(iter(record.accelerator.prepare(training.prepare()[1])))], first_attempt=9)
    assert (record.accelerator.attempted_step, record.accelerator.applied_step) == (5, 3)
    assert next(record.accelerator.epochs(20, updates_per_epoch=4)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 4), "`max_applied_steps` must be a whole number from 0 up, got -1"),
        ((1.5, 4), "`max_applied_steps` must be a whole number from 0 up, got 1.5"),
        ((10, 0), "`updates_per_epoch` must be a whole number from 1 up, got 0"),
        ((10, 2.5), "`updates_per_epoch` must be a whole number from 1 up, got 2.5"),
        ((True, 4), "`max_applied_steps` must be a whole number from 0 up, got True"),
        ((10, True), "`updates_per_epoch` must be a whole number from 1 up, got True"),
        ((10, 4, 0), "`max_consecutive_skips` must be None or a whole number from 1 up, got 0"),
    ],
)
def test_numbers_that_make_no_plan_are_refused_at_once(loop, arguments, message):
    record, _ = loop().prepare()
    with pytest.raises(ValueError, match=message):
        record.accelerator.epochs(*arguments)


def test_a_limit_of_skips_that_is_none_is_refused_before_the_first_epoch():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    with pytest.raises(ValueError, match="`max_consecutive_skips` must be None or a whole number from 1 up, got '20'"):
        accelerator.epochs(10, 5, max_consecutive_skips="20")
