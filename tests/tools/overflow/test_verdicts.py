"""Verdicts on timelines written by hand: what is a defect, what is a note, and what is neither."""

from __future__ import annotations

from tools.overflow.verdicts import judge


def messages(story, severity: str = "defect") -> list[str]:
    return [verdict.message for verdict in judge(story.timeline) if verdict.severity == severity]


def test_an_average_that_moves_on_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().average().skip().average(moved=True)
    assert messages(told) == ["EMA moved on a skipped update at attempt 2"]


def test_an_average_that_is_called_on_a_skipped_update_and_does_not_move_is_right(story) -> None:
    assert messages(story().attempt().average().skip().average(moved=False)) == []


def test_an_average_that_is_not_called_on_a_skipped_update_is_right(story) -> None:
    assert messages(story().attempt().average().skip().attempt().average()) == []


def test_an_average_that_comes_late_for_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().average().skip().counter(0).average(moved=True).attempt()
    assert messages(told) == ["EMA moved on a skipped update at attempt 2"]


def test_an_average_of_one_optimizer_does_not_care_for_the_updates_of_another(story) -> None:
    told = story(("generator", "critic")).attempt(optimizer=1).average(optimizers=(1,))
    told.skip(optimizer=1).attempt(optimizer=2).average(moved=True, optimizers=(1,))
    assert messages(told) == ["EMA moved on a skipped update at attempt 2 of generator"]


def test_several_averages_are_told_apart(story) -> None:
    told = story().attempt().average(number=1).average(number=2).skip().average(moved=True, number=2)
    assert messages(told) == ["EMA 2 (EMA) moved on a skipped update at attempt 2"]


def test_an_average_that_moves_more_often_than_updates_are_made_is_a_note(story) -> None:
    told = story().attempt().average().average(moved=True)
    assert messages(told) == []
    assert messages(told, "note") == ["EMA moved 1 times with no attempt since its last move"]


def test_a_scheduler_that_steps_on_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().scheduler().skip().scheduler().attempt().scheduler()
    assert messages(told) == ["scheduler stepped on a skipped update at attempt 2"]


def test_a_scheduler_that_is_held_back_is_right(story) -> None:
    assert messages(story().attempt().scheduler().skip().scheduler(moved=0).attempt().scheduler()) == []


def test_a_scheduler_that_steps_once_an_epoch_may_do_so_behind_a_skipped_update(story) -> None:
    assert messages(story().attempt().attempt().attempt().attempt().skip().scheduler()) == []


def test_a_counter_that_goes_on_behind_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().counter(0).counter(1).skip().counter(2).attempt().counter(3)
    assert messages(told) == ["global_step moved on a skipped update at attempt 2"]


def test_a_counter_that_is_raised_before_the_step_is_a_defect_too(story) -> None:
    told = story().attempt().counter(1).counter(2).skip().counter(3).attempt()
    assert messages(told) == ["global_step moved on a skipped update at attempt 2"]


def test_where_a_counter_stands_when_it_is_first_seen_is_no_move(story) -> None:
    assert messages(story().skip().counter(100).attempt().counter(101)) == []


def test_a_counter_that_is_set_back_has_not_moved_on(story) -> None:
    assert messages(story().attempt().counter(0).counter(1).skip().counter(0)) == []


def test_of_two_optimizers_the_one_that_is_named_decides_what_counts(story) -> None:
    def run(chosen):
        told = story(("generator", "critic"), chosen).attempt(optimizer=1).attempt(optimizer=2).counter(0).counter(1)
        return told.skip(optimizer=1).attempt(optimizer=2).counter(2)

    assert messages(run(None)) == []
    assert messages(run("generator")) == ["global_step moved on a skipped update at attempt 2 of generator"]
    assert messages(run("critic")) == []


def test_a_progress_bar_that_moves_on_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().bar().skip().bar().attempt().bar()
    assert messages(told) == ["progress bar moved on a skipped update at attempt 2"]


def test_a_bar_that_counts_micro_batches_is_left_alone(story) -> None:
    assert messages(story().bar().attempt().bar().bar().skip().bar().bar().attempt().bar()) == []


def test_a_new_tracker_step_on_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().log(1).skip().log(2)
    assert messages(told) == ["tracker step 2 was logged on a skipped update at attempt 2"]


def test_a_log_without_a_step_is_judged_by_nothing(story) -> None:
    told = story().attempt().log(None, loss=1.0).skip().log(None, loss=1.0)
    assert [text for severity in ("defect", "note") for text in messages(told, severity) if "tracker" in text] == []


def test_a_tracker_step_that_is_logged_again_is_a_note(story) -> None:
    told = story().attempt().log(1).skip().log(1)
    assert messages(told) == []
    assert messages(told, "note") == ["tracker step 1 was logged again after the skipped attempt 2"]


def test_a_checkpoint_that_is_written_again_behind_a_skipped_update_is_a_defect(story) -> None:
    told = story().attempt().save("out/checkpoint-1").skip().save("out/checkpoint-1")
    assert messages(told) == ["checkpoint-1 was written again after the skipped attempt 2"]


def test_a_checkpoint_that_is_kept_fresh_is_right(story) -> None:
    assert messages(story().attempt().save("out/latest").skip().attempt().save("out/latest")) == []


def test_a_last_checkpoint_behind_a_skipped_update_is_right(story) -> None:
    assert messages(story().attempt().save("out/checkpoint-1").skip().save("out/final")) == []


def test_a_checkpoint_with_a_number_that_the_weights_have_not_reached_is_a_defect(story) -> None:
    told = story().attempt().counter(0).counter(1).skip().counter(2).attempt().counter(3).save("out/checkpoint-3")
    assert messages(told)[1:] == ["checkpoint-3 holds the weights of update 2: 1 skipped update was counted before it"]


def test_an_evaluation_that_is_made_again_is_a_defect(story) -> None:
    told = story().attempt().evaluate(1).skip().evaluate(1)
    assert messages(told) == ["step 1 was evaluated again after the skipped attempt 2"]


def test_an_infinite_gradient_that_reached_the_weights_is_a_defect(story) -> None:
    told = story().attempt(weights_finite=False)
    expected = "attempt 1 was applied with an infinite gradient: no scaler checks this optimizer"
    assert messages(told) == [expected]


def test_a_flag_that_says_applied_of_a_skipped_update_is_a_note(story) -> None:
    told = story().attempt(said_skipped=False).skip(said_skipped=False)
    assert messages(told) == []
    assert "accelerate said that attempt 2 was applied" in messages(told, "note")[0]


def test_defects_come_before_notes(story) -> None:
    told = story().skip(said_skipped=False).log(1)
    assert [verdict.severity for verdict in judge(told.timeline)] == ["defect", "note"]
