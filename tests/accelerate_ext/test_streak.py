"""Too many skipped updates in a row."""

from __future__ import annotations

import pytest

import accelerate_ext


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

    with pytest.raises(accelerate_ext.SkippedUpdatesError, match="3 updates in a row"):
        never_step()
    assert record.accelerator.attempted_step == 3
