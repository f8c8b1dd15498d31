"""Which runs are made, and what their exit codes come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.errors import CannotRun
from tools.overflow.compare import Comparison, Options, jobs, make
from tools.overflow.launch import Finished, Job, Plan

OVERFLOW = Plan(at=(2,))


def finished(story, returncode: int | None = 0, plan: Plan = OVERFLOW, interrupted_by: int | None = None) -> Finished:
    return Finished(Job("run", ("train.py",), plan), returncode, {0: story.timeline}, interrupted_by)


def right(story):
    return story().attempt().counter(0).counter(1).skip().attempt().counter(2)


def wrong(story):
    return story().attempt().counter(0).counter(1).skip().counter(2).attempt().counter(3)


def test_nothing_that_moved_is_0_and_something_is_1(story) -> None:
    assert Comparison([finished(right(story))]).exit_code() == 0
    assert Comparison([finished(wrong(story))]).exit_code() == 1


def test_of_a_comparison_the_last_run_is_judged(story) -> None:
    assert Comparison([finished(wrong(story)), finished(right(story))]).exit_code() == 0
    assert Comparison([finished(right(story)), finished(wrong(story))]).exit_code() == 1


def test_a_failing_script_hands_on_its_code_and_a_failing_comparison_is_2(story) -> None:
    assert Comparison([finished(right(story), 7)]).exit_code() == 7
    assert Comparison([finished(right(story), -9)]).exit_code() == 137
    assert Comparison([finished(right(story), 7), finished(right(story))]).exit_code() == 2
    assert Comparison([finished(right(story), -2, interrupted_by=2)]).exit_code() == 130


def test_of_a_run_that_failed_it_is_not_said_that_nothing_moved(story) -> None:
    text = Comparison([finished(right(story), 1)]).table()
    assert "  the script failed (exit code 1) after 3 attempts, 2 of them applied: the run proves nothing" in text
    assert "nothing moved" not in text


def test_a_script_that_fails_before_its_first_attempt_could_not_run(story) -> None:
    for code, told in ((1, "ended with exit code 1"), (7, "ended with exit code 7"), (-9, "was killed by SIGKILL")):
        comparison = Comparison([finished(story(), code, plan=Plan())])
        assert comparison.exit_code() == {1: 2, 7: 7, -9: 137}[code]
        assert comparison.table().splitlines()[:2] == [
            "run",
            f"  the script {told} before its first attempt, see above",
        ]
        assert "|" not in comparison.table()
        assert Comparison([finished(story(), code, plan=Plan())], num_wanted=3).exit_code() == 2
    later = Comparison([finished(right(story)), finished(story(), 1)], num_wanted=3)
    assert later.exit_code() == 2
    assert "| run" in later.table()
    assert "the script ended with exit code 1 before its first attempt" in later.table()


def test_after_a_run_without_an_attempt_no_other_is_made(monkeypatch, story) -> None:
    made = []

    def run(job: Job, on_progress) -> Finished:
        made.append(job.name)
        ended = Finished(job, 1, {0: story().timeline if job.name == "lost" else right(story).timeline})
        on_progress(ended)
        return ended

    monkeypatch.setattr("tools.overflow.compare.run", run)
    job = finished(story()).job
    comparison = make([replace(job, name=name) for name in ("found", "lost", "never")])
    assert made == ["found", "lost"]
    assert comparison.num_wanted == 3


def test_a_run_without_an_attempt_is_2(story) -> None:
    comparison = Comparison([finished(story(), plan=Plan())])
    assert comparison.exit_code() == 2
    assert "no optimizer attempt was seen" in comparison.table()


def test_an_overflow_that_was_not_put_in_proves_nothing(story) -> None:
    comparison = Comparison([finished(story().attempt().attempt(), plan=Plan(at=(50,)))])
    assert comparison.exit_code() == 2
    assert "no overflow was put into attempt 50" in comparison.table()
    assert "the run proves nothing" in comparison.table()


def test_a_rank_that_was_not_there_is_told(story) -> None:
    comparison = Comparison([finished(right(story), plan=Plan(at=(2,), rank=3))])
    assert comparison.exit_code() == 2
    assert "no process had rank 3; seen: 0" in comparison.table()


def test_an_optimizer_that_was_not_there_is_told_with_those_that_were(story) -> None:
    told = story(("generator", "critic"), chosen="neither").attempt()
    comparison = Comparison([finished(told, plan=Plan(at=(1,), optimizer="neither"))])
    assert "no optimizer is called 'neither'; there is generator, critic" in comparison.table()


def test_a_counter_that_was_asked_for_and_not_found_is_told_with_those_that_were(story) -> None:
    run = finished(right(story))
    asked = replace(run.job, shown=("global_step", "state.step", "stpe"))
    text = Comparison([replace(run, job=asked)]).table()
    assert "no counter is called 'state.step'; there is global_step" in text
    assert "no counter is called 'stpe'; there is global_step" in text
    assert "no counter is called" not in Comparison([run]).table()
    assert (
        "no counter is called 'stpe'; none was seen"
        in Comparison([replace(finished(story().attempt()), job=asked)]).table()
    )


def test_ranks_that_did_not_skip_the_same_updates_are_told(monkeypatch, story) -> None:
    ranks = {0: right(story).timeline, 1: story().attempt().attempt().attempt().timeline, 2: story().timeline}
    job = finished(story()).job

    def run(job: Job, on_progress) -> Finished:
        on_progress(Finished(job, 0, ranks))
        return Finished(job, 0, ranks)

    monkeypatch.setattr("tools.overflow.compare.run", run)
    assert make([job]).remarks == ["run: ranks 0, 1 did not skip the same updates"]
    del ranks[1]
    assert make([job]).remarks == []


def test_a_patched_run_that_ends_short_is_told(story) -> None:
    finite, skipping = finished(story().attempt().attempt(), plan=Plan()), finished(right(story))
    assert "it applied 1 updates, the finite run 2" in (
        Comparison([finite, skipping, finished(story().attempt().skip())]).table()
    )
    assert "the finite run" not in Comparison([finite, skipping, skipping]).table()
    assert "the finite run" not in Comparison([finite, skipping, finished(story().attempt().skip(), 7)]).table()
    assert "the finite run" not in Comparison([finished(story().attempt().skip())]).table()


def test_many_findings_of_a_kind_are_shortened(story) -> None:
    told = story()
    for number in range(10):
        told.skip().counter(number)
    text = Comparison([finished(told)]).table()
    assert "  ... and 6 more like it" in text


def test_a_counter_that_goes_back_has_no_column(story) -> None:
    told = right(story).counter(1, "log_steps").counter(0, "log_steps")
    head = Comparison([replace_counters(finished(told), ("global_step", "log_steps"))]).table().splitlines()[0]
    assert "final `global_step`" in head
    assert "log_steps" not in head


def replace_counters(run: Finished, names: tuple[str, ...]) -> Finished:
    return replace(run, job=replace(run.job, counters=names))


def test_a_comparison_is_finite_overflow_patched(tmp_path: Path) -> None:
    script, patched = tmp_path / "train.py", tmp_path / "patched.py"
    script.touch()
    patched.touch()
    job = Job("", (str(script), "--out", "{run}"), replace(OVERFLOW, rank=1))
    made = jobs(job, Options(script=patched))
    assert [one.name for one in made] == [
        "finite",
        "overflow at attempt 2 on rank 1",
        "overflow at attempt 2 on rank 1, patched",
    ]
    assert [one.command for one in made] == [
        (str(script), "--out", "finite"),
        (str(script), "--out", "overflow"),
        (str(patched), "--out", "patched"),
    ]
    assert [one.plan.is_active for one in made] == [False, True, True]
    assert {one.plan.rank for one in made} == {1}


def test_the_patched_script_takes_the_place_of_the_one_a_launcher_starts(tmp_path: Path) -> None:
    patched = tmp_path / "patched.py"
    patched.touch()
    job = Job("", ("torchrun", "--nproc_per_node", "2", "train.py", "-x"), OVERFLOW)
    expected = ("torchrun", "--nproc_per_node", "2", str(patched), "-x")
    assert jobs(job, Options(script=patched))[-1].command == expected


def test_patched_packages_come_first(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    made = jobs(Job("", ("train.py",), OVERFLOW), Options(paths=(first, second)))
    assert [one.path for one in made] == [(), (), (str(first), str(second))]
    with pytest.raises(CannotRun, match="third"):
        jobs(Job("", ("train.py",), OVERFLOW), Options(paths=(first, tmp_path / "third")))


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (Plan(), "finite"),
        (Plan(at=(2, 5)), "overflow at attempt 2,5"),
        (Plan(rate=0.05, seed=13), "overflow at rate 0.05, seed 13"),
    ],
)
def test_a_plan_names_itself(plan: Plan, name: str) -> None:
    assert str(plan) == name
