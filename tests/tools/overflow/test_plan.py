"""Which attempts are chosen."""

from __future__ import annotations

import pytest

from tools.overflow.inside.plan import Plan


def chosen(count: int = 200, **config) -> list[int]:
    plan = Plan(config)
    return [attempt for attempt in range(1, count + 1) if plan.chooses(attempt)]


def test_attempts_are_chosen_by_number() -> None:
    assert chosen(at=[2, 5]) == [2, 5]


def test_nothing_is_chosen_in_the_finite_control() -> None:
    assert chosen() == []
    assert not Plan({}).is_active


def test_a_rate_chooses_about_its_share_and_the_same_ones_for_a_seed() -> None:
    first = chosen(2000, rate=0.05, seed=13)
    assert 60 < len(first) < 140
    assert chosen(2000, rate=0.05, seed=13) == first
    assert chosen(2000, rate=0.05, seed=14) != first


def test_the_choice_of_an_attempt_does_not_depend_on_how_many_there_are() -> None:
    assert chosen(50, rate=0.2, seed=1) == [attempt for attempt in chosen(200, rate=0.2, seed=1) if attempt <= 50]


@pytest.mark.parametrize(("rank", "expected"), [(0, []), (1, [2])])
def test_one_rank_alone_overflows(monkeypatch: pytest.MonkeyPatch, rank: int, expected: list[int]) -> None:
    monkeypatch.setenv("RANK", str(rank))
    assert chosen(at=[2], rank=1) == expected


def test_an_optimizer_is_meant_by_any_of_its_names() -> None:
    plan = Plan({"at": [1], "optimizer": "critic"})
    assert plan.means({"critic", "AdamW", "2"})
    assert not plan.means({"generator", "AdamW", "1"})
