"""Logged losses against the losses that backward passes started from."""

from __future__ import annotations

import pytest

from tools.overflow.losses import loss_windows


def findings(story) -> list[str]:
    return [finding.message for finding in loss_windows(story.timeline)]


def logged(story, values: list[tuple[str, float, float]], key: str = "train_loss"):
    """One attempt a row: its outcome, its loss, and the value that is logged behind it (0 for none)."""
    told, step = story(), 0
    for outcome, loss, value in values:
        told.attempt(outcome, losses=(loss,))
        step += outcome == "applied"
        if value:
            told.log(step, **{key: value})
    return told


def test_a_window_that_holds_a_skipped_windows_loss_is_found(story) -> None:
    rows = [("applied", 1.1, 1.1), ("applied", 1.3, 1.3), ("skipped", 1.2, 0), ("applied", 1.0, 2.2)]
    assert findings(logged(story, rows)) == ["loss window of step 3 holds two windows: train_loss 2.2 in place of 1"]


def test_a_window_that_was_reset_is_right(story) -> None:
    rows = [("applied", 1.1, 1.1), ("applied", 1.3, 1.3), ("skipped", 1.2, 0), ("applied", 1.0, 1.0)]
    assert findings(logged(story, rows)) == []


def test_two_skips_in_a_row_make_three_windows(story) -> None:
    rows = [("applied", 1.1, 1.1), ("skipped", 1.3, 0), ("skipped", 1.2, 0), ("applied", 1.0, 3.5)]
    assert findings(logged(story, rows))[0].startswith("loss window of step 2 holds three windows")


def test_the_factor_between_a_windows_loss_and_what_is_logged_is_learnt(story) -> None:
    rows = [("applied", 1.1, 2.2), ("applied", 1.3, 2.6), ("skipped", 1.2, 0), ("applied", 1.0, 2.0)]
    assert findings(logged(story, rows)) == []
    rows[-1] = ("applied", 1.0, 4.4)
    assert len(findings(logged(story, rows))) == 1


def test_a_mean_over_several_updates_that_holds_a_skipped_one_is_found(story) -> None:
    told = story().attempt(losses=(1.0,)).attempt(losses=(2.0,)).log(2, loss=1.5)
    told.attempt(losses=(1.0,)).skip(losses=(5.0,)).attempt(losses=(2.0,)).log(4, loss=4.0)
    expected = "loss window of step 4 holds the skipped window of attempt 4: loss 4 in place of 1.5"
    assert findings(told) == [expected]


@pytest.mark.parametrize("key", ["lr", "eval_loss", "grad_norm"])
def test_other_values_are_not_judged(story, key: str) -> None:
    rows = [("applied", 1.1, 1.1), ("applied", 1.3, 1.3), ("skipped", 1.2, 0), ("applied", 1.0, 2.2)]
    assert findings(logged(story, rows, key)) == []


def test_a_value_that_follows_no_rule_is_not_judged(story) -> None:
    rows = [("applied", 1.1, 7.0), ("applied", 1.3, 0.3), ("skipped", 1.2, 0), ("applied", 1.0, 2.2)]
    assert findings(logged(story, rows)) == []


def test_infinite_losses_are_not_judged(story) -> None:
    rows = [("applied", 1.1, 1.1), ("skipped", float("inf"), 0), ("applied", 1.0, float("inf"))]
    assert findings(logged(story, rows)) == []
