"""The figure: what stands in its rows, what is marked, and that it is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.overflow.curves import ahead, together
from tools.overflow.launch import Finished, Job, Plan
from tools.overflow.plot import APPLIED, IDLE, WRONG, draw, headline, rows_of


def run(story, name: str = "overflow") -> Finished:
    return Finished(Job(name, ("train.py",), Plan(at=(2,))), 0, {0: story.timeline})


def unguarded(story):
    told = story().attempt(scale=[65536.0, 65536.0]).average().scheduler().bar().counter(0).counter(1).log(1)
    told.skip(scale=[65536.0, 32768.0]).scheduler(0).average(moved=True).bar().counter(2).log(2).save("checkpoint-2")
    return told.attempt(scale=[32768.0, 32768.0]).average().scheduler().bar().counter(3).log(3).save("checkpoint-3")


def test_a_row_for_each_thing_with_what_it_counted(story) -> None:
    rows = {row.title: row for row in rows_of(unguarded(story).timeline)}
    assert rows["weights"].cells == {1: "1", 3: "2"}
    assert rows["EMA"].cells == {1: "1", 2: "2", 3: "3"}
    assert rows["scheduler"].cells == {1: "1", 3: "2"}
    assert rows["global_step"].cells == {1: "1", 2: "2", 3: "3"}
    assert rows["checkpoint"].cells == {2: "2", 3: "3"}
    assert rows["loss scale"].cells == {1: "$2^{16}$", 2: "$2^{15}$"}
    totals = {title: row.total for title, row in rows.items()}
    assert totals == {
        "weights": "2 updates",
        "EMA": "3 calls",
        "scheduler": "2 moves",
        "progress bar": "3 moves",
        "global_step": "at 3",
        "loss scale": "",
        "logged step": "3 logged",
        "checkpoint": "2 saved",
    }


def test_what_moved_on_a_skipped_update_is_marked(story) -> None:
    rows = {row.title: row for row in rows_of(unguarded(story).timeline)}
    marked = {title: row.wrong for title, row in rows.items() if row.wrong}
    assert marked == {
        "EMA": {2},
        "progress bar": {2},
        "global_step": {2},
        "logged step": {2},
        "checkpoint": {2, 3},
    }


def test_a_loss_that_holds_two_windows_is_marked_where_it_was_logged(story) -> None:
    told = story().attempt().log(1, loss=1.0).attempt(losses=(1.2,)).log(2, loss=1.2)
    told.skip().attempt().log(3, loss=2.0)
    rows = {row.title: row for row in rows_of(told.timeline)}
    assert rows["logged step"].wrong == {4}


def test_what_comes_again_at_a_skipped_attempt_did_not_move_with_an_applied_update(story) -> None:
    told = story().attempt().counter(0).counter(1).log(1).skip().log(1).attempt().counter(2).log(2)
    rows = {row.title: row for row in rows_of(told.timeline)}
    assert rows["logged step"].cells == {1: "1", 2: "1", 3: "2"}
    assert rows["logged step"].colours(told.timeline) == {1: APPLIED, 2: IDLE, 3: APPLIED}
    assert rows["global_step"].colours(told.timeline) == {1: APPLIED, 3: APPLIED}
    assert {row.title: row for row in rows_of(unguarded(story).timeline)}["EMA"].colours(
        unguarded(story).timeline
    ) == {
        1: APPLIED,
        2: WRONG,
        3: APPLIED,
    }


def test_what_moves_once_for_two_optimizers_came_with_the_one_that_was_applied(story) -> None:
    told = story(("generator", "critic")).attempt().skip(optimizer=2).bar().attempt().attempt(optimizer=2).bar()
    (bar,) = (row for row in rows_of(told.timeline) if row.title == "progress bar")
    assert bar.colours(told.timeline) == {2: APPLIED, 4: APPLIED}


def test_the_grey_of_a_repeated_step_is_in_the_legend_where_it_is_seen(story, tmp_path: Path) -> None:
    told = story().attempt().log(1).skip().log(1).attempt().log(2)
    draw([run(told)], tmp_path / "repeated.svg")
    draw([run(unguarded(story))], tmp_path / "plain.svg")
    assert "came at a skipped one, not as an update" in (tmp_path / "repeated.svg").read_text()
    assert "came at a skipped one" not in (tmp_path / "plain.svg").read_text()


def test_things_that_a_script_does_not_have_are_left_out(story) -> None:
    assert [row.title for row in rows_of(story().attempt().skip().timeline)] == ["weights"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_figure_is_drawn_in_the_format_of_its_name(story, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure.{suffix}"
    draw([run(unguarded(story), "finite"), run(unguarded(story))], path)
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(heads[suffix])


def test_an_empty_run_and_a_long_one_can_be_drawn(story, tmp_path: Path) -> None:
    long = story().counter(0)
    for number in range(1, 101):
        (long.skip() if number % 10 == 0 else long.attempt()).counter(number)
    draw([run(story()), run(long)], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_what_moves_before_the_first_attempt_runs_ahead_of_nothing(story) -> None:
    told = story().counter(0).counter(5).bar().attempt().counter(6).bar()
    assert ahead(told.timeline) == {"progress bar": [0], "global_step": [0]}


def test_a_log_without_a_step_has_no_mark(story) -> None:
    told = story().attempt().log(None, loss=1.0).log(1, loss=1.0).attempt().log(None, loss=1.0)
    assert [row.cells for row in rows_of(told.timeline) if row.title == "logged step"] == [{1: "1"}]


def test_curves_say_how_far_a_thing_runs_ahead_of_the_applied_updates(story) -> None:
    curves = ahead(unguarded(story).timeline)
    assert curves["EMA calls"] == [0, 1, 1]
    assert curves["scheduler steps"] == [0, 0, 0]
    assert curves["global_step"] == [0, 1, 1]
    assert list(together(curves)) == ["EMA calls, progress bar, global_step: +1", "scheduler steps"]


@pytest.mark.parametrize(
    ("exit_code", "said"),
    [(0, "nothing moved on a skipped update"), (1, "the script failed: the run proves nothing")],
)
def test_a_run_that_failed_is_not_said_to_have_moved_nothing(story, exit_code: int, said: str) -> None:
    finished = run(story().attempt(scale=[65536.0, 65536.0]).counter(1).skip(scale=[65536.0, 32768.0]))
    finished.returncode = exit_code
    assert headline(finished) == said
