"""Plans of snapshots: their expected errors are those of the fits that will be made, and hold on a random walk."""

import numpy as np
import pytest
import torch

from accelerate_ext.ema import PostHocEMA, list_snapshots, plan
from accelerate_ext.ema.fit import fit
from accelerate_ext.ema.plan import Plan
from accelerate_ext.ema.profile import MAX_SIGMA_REL, gamma_from_sigma_rel, step_weights

MEASURED = [  # worst expected error over 0.02 to 0.25 with 16 snapshots
    ({"sigma_rel": (0.05, 0.10), "spacing": "even"}, 4.8e-2),
    ({"sigma_rel": (0.02, 0.10), "spacing": "even"}, 1.2e-2),
    ({"sigma_rel": (0.02, 0.05, 0.10), "spacing": "even"}, 1.2e-3),
    ({"sigma_rel": (0.05, 0.10), "spacing": "end"}, 3.9e-3),
]


@pytest.mark.parametrize(("arguments", "error"), MEASURED)
def test_expected_errors_of_known_plans(arguments, error):
    assert plan(65_536, 16, **arguments).worst_error == pytest.approx(error, rel=0.1)


def test_a_plan_ends_with_the_run_and_its_times_rise():
    made = plan(10_000, 20)
    assert len(made.times) == 20
    assert made.times[-1] == 10_000
    assert all(a < b for a, b in zip(made.times, made.times[1:], strict=False))


def test_even_spacing_is_even():
    assert plan(1000, 4, spacing="even").times == (250, 500, 750, 1000)


def test_the_widths_are_chosen_for_the_least_error():
    chosen = plan(50_000, 16)
    for sigma_rel in ((0.05, 0.10), (0.02, 0.10), (0.10, 0.20)):
        assert chosen.worst_error <= plan(50_000, 16, sigma_rel=sigma_rel).worst_error
    assert len(chosen.sigma_rel) == 2
    assert [len(plan(50_000, 4, num_averages=number).sigma_rel) for number in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("max_error", [0.3, 0.1, 0.05, 0.02, 0.01, 0.005])
def test_without_a_count_the_smallest_plan_is_made_that_keeps_the_error(max_error):
    made = plan(20_000, max_error=max_error, sigma_rel=(0.05, 0.10))
    assert made.worst_error <= max_error
    assert made == plan(20_000, len(made.times), sigma_rel=(0.05, 0.10))
    assert plan(20_000, len(made.times) - 1, sigma_rel=(0.05, 0.10)).worst_error > max_error


def test_an_error_that_a_plan_has_is_one_that_it_keeps():
    made = plan(20_000, 8, sigma_rel=(0.05, 0.10))
    assert plan(20_000, 8, sigma_rel=(0.05, 0.10), max_error=made.worst_error) == made
    assert plan(20_000, sigma_rel=(0.05, 0.10), max_error=made.worst_error) == made
    between = plan(20_000, 7, sigma_rel=(0.05, 0.10))
    assert plan(20_000, sigma_rel=(0.05, 0.10), max_error=between.worst_error) == between


def test_an_error_that_no_number_of_snapshots_keeps_is_refused_with_the_best_that_was_found():
    with pytest.raises(ValueError, match=r"^\d\d snapshots of \(0.1,\) give .* over \(0.02, 0.25\), above .* range$"):
        plan(30, sigma_rel=0.1, max_error=1e-9)


def test_errors_are_told_of_widths_all_over_the_wanted_range():
    made = plan(1000, 4, wanted=(0.03, 0.2))
    assert list(made.errors) == pytest.approx(np.geomspace(0.03, 0.2, 13))
    assert max(plan(1000, 4, wanted=(0.1, MAX_SIGMA_REL)).errors) == pytest.approx(MAX_SIGMA_REL)


def test_the_expected_error_is_met_on_a_random_walk():
    made = plan(2000, 12, sigma_rel=(0.05, 0.10), wanted=(0.03, 0.2))
    walk = np.random.default_rng(0).standard_normal((2000, 4000)).cumsum(0)
    t, gamma = zip(*[(t, gamma_from_sigma_rel(s)) for t in made.times for s in made.sigma_rel], strict=True)
    stored = np.stack([step_weights(time, power) @ walk[:time] for time, power in zip(t, gamma, strict=True)])
    for width, expected in made.errors.items():
        power = gamma_from_sigma_rel(width)
        got = fit(t, gamma, 2000, power).weights[:, 0] @ stored
        wanted = step_weights(2000, power) @ walk
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted - walk[-1])
        assert 0.5 * expected < error < 2 * expected + 2e-4


def test_a_time_is_due_once_however_updates_fall():
    made = Plan((10, 20, 30), (0.1,), {0.1: 0.0})
    assert [made.is_due(before, now) for before, now in ((0, 9), (9, 10), (10, 19), (10, 25), (25, 40), (40, 41))] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_the_space_is_told():
    assert plan(1000, 4, sigma_rel=(0.05, 0.10)).num_bytes(10**6) == 4 * 2 * 4 * 10**6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"total": 0, "count": 1}, "`total` must be 1 or more"),
        ({"total": 10, "count": 0}, "^`count` must lie between 1 and `total`"),
        ({"total": 10, "count": 2, "wanted": (0.0, 0.1)}, "^`wanted` must be two rising widths"),
        ({"total": 10, "count": 2, "num_averages": 4}, "^`num_averages` must be 1, 2 or 3"),
        ({"total": 10, "count": 11}, "`count` must lie between 1 and `total`"),
        ({"total": 10}, r"give `count` \(--count\), or `max_error` \(--max-error\)"),
        ({"total": 10, "count": 2, "wanted": (0.2, 0.1)}, "`wanted` must be two rising widths"),
        ({"total": 10, "count": 2, "wanted": (0.1, 0.4)}, "`wanted` must be two rising widths"),
        ({"total": 10, "count": 2, "wanted": 0.1}, "`wanted` must be two rising widths"),
        ({"total": 10, "count": 2, "wanted": (0.1, 0.2, 0.25)}, "`wanted` must be two rising widths"),
        ({"total": 10, "max_error": "x"}, "`max_error` must be a number above 0, got 'x'"),
        ({"total": 10, "count": 2, "sigma_rel": ()}, r"`sigma_rel` must be one or several widths .* got \(\)"),
        ({"total": 10, "count": 2, "sigma_rel": (0.1, 0.1)}, "`sigma_rel` must be one or several widths that differ"),
        ({"total": 10, "count": 2, "spacing": "odd"}, "`spacing` must be 'end' or 'even', got 'odd'"),
        ({"total": 10, "count": 2, "num_averages": 9}, "`num_averages` must be 1, 2 or 3"),
        ({"total": 10, "count": 2, "sigma_rel": (0.5,)}, "`sigma_rel` must lie between 0"),
        ({"total": 10_000, "count": 2, "max_error": 1e-6}, "above max_error=1e-06; allow more snapshots"),
        (
            {"total": 10_000, "max_error": 1e-9, "spacing": "even", "sigma_rel": (0.02, 0.2)},
            "no number of them comes near",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        plan(**arguments)


@pytest.mark.parametrize(
    ("name", "given"), [("total", "100"), ("count", 3.5), ("total", 100.5), ("count", "3"), ("num_averages", 1.5)]
)
def test_numbers_must_be_whole(name, given):
    with pytest.raises(TypeError, match=f"`{name}` must be a whole number, got {given!r}"):
        plan(**{"total": 100, "count": 3, name: given})


def test_numbers_may_be_written_as_floats_and_a_width_alone():
    made = plan(1e5, 5.0, sigma_rel=0.1)
    assert made == plan(100_000, 5, sigma_rel=(0.1,))
    assert all(type(time) is int for time in made.times)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValueError, match=r"^`total` .* got 0; `count` .* got 1; `spacing` .*'odd'$"):
        plan(0, 1, spacing="odd")


def test_a_plan_of_a_short_run_has_no_time_twice():
    assert plan(3, 3).times == (1, 2, 3)
    assert plan(3, 1).times == (3,)
    assert plan(5, 5, spacing="even").times == (1, 2, 3, 4, 5)


def test_the_smallest_plan_may_be_a_single_snapshot():
    assert plan(100, max_error=0.01, wanted=(0.05, 0.05), sigma_rel=0.05).times == (100,)
    assert plan(1, max_error=0.5, wanted=(0.1, 0.1)).times == (1,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_expected_error_holds_for_snapshots_in_16_bits(dtype):
    distance = 0.02
    made = plan(1500, 8, sigma_rel=(0.05, 0.10), wanted=(0.05, 0.2), dtype=dtype, distance=distance)
    generator = np.random.default_rng(0)
    walk = generator.standard_normal((1500, 4000)).cumsum(0)
    scale = np.sqrt(1500 / (2 * gamma_from_sigma_rel(0.05) + 3)) / distance
    walk += generator.standard_normal(4000) * scale
    t, gamma = zip(*[(t, gamma_from_sigma_rel(s)) for t in made.times for s in made.sigma_rel], strict=True)
    exact = np.stack([step_weights(time, power) @ walk[:time] for time, power in zip(t, gamma, strict=True)])
    stored = torch.from_numpy(exact).to(getattr(torch, dtype)).double().numpy()
    noise = ((stored - exact) ** 2).mean(axis=1)
    for width, expected in made.errors.items():
        power = gamma_from_sigma_rel(width)
        got = fit(t, gamma, 1500, power, noise=noise).weights[:, 0] @ stored
        wanted = step_weights(1500, power) @ walk
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted - walk[-1])
        assert 0.6 * expected < error < 1.6 * expected
    assert made.worst_error > 1.5 * plan(1500, 8, sigma_rel=(0.05, 0.10), wanted=(0.05, 0.2)).worst_error


def test_16_bits_take_half_the_space_and_are_named_where_they_are_too_coarse():
    assert plan(1000, 4, sigma_rel=(0.05, 0.10), dtype="float16").num_bytes(10**6) == 2 * 2 * 4 * 10**6
    with pytest.raises(ValueError, match="or store float32 instead of bfloat16"):
        plan(1000, 16, sigma_rel=(0.05, 0.10), dtype="bfloat16", max_error=0.01)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dtype": "float64"}, "`dtype` must be one of float32, bfloat16, float16, got 'float64'"),
        ({"distance": 0.0}, "`distance` must be a number above 0, got 0.0"),
        ({"distance": "far"}, "`distance` must be a number above 0, got 'far'"),
    ],
)
def test_what_is_stored_must_be_known(arguments, text):
    with pytest.raises(ValueError, match=text):
        plan(100, 4, **arguments)


def test_a_width_as_text_is_no_sequence_of_widths():
    with pytest.raises(TypeError, match=r"`sigma_rel` must be numbers, got the text '0.05'"):
        plan(100, 4, sigma_rel="0.05")


@pytest.mark.parametrize(("dtype", "at_002", "at_005"), [("bfloat16", 0.51, 0.19), ("float16", 0.12, 0.024)])
def test_the_cost_of_16_bits_is_that_of_a_training_it_was_measured_in(dtype, at_002, at_005):
    """A small GPT, 32 snapshots of 0.05 and 0.10, built by the fit that knows of the rounding."""
    made = plan(10_000, 32, sigma_rel=(0.05, 0.10), spacing="even", dtype=dtype, distance=0.0088)
    assert made.errors[0.02] == pytest.approx(at_002, rel=0.1)
    assert made.errors[min(made.errors, key=lambda width: abs(width - 0.05))] == pytest.approx(at_005, rel=0.25)


def test_a_run_that_ends_before_its_plan_needs_one_snapshot_more_and_one_that_does_not_gets_none(tmp_path):
    for applied, expected in ((8, [5, 8]), (10, [5, 10])):
        folder = tmp_path / str(applied)
        ema = PostHocEMA(torch.nn.Linear(1, 1), plan=plan(10, 2, sigma_rel=0.1, spacing="even"), directory=folder)
        for step in range(1, applied + 1):
            ema.update(step)
        ema.snapshot(folder)
        assert [snapshot.t for snapshot in list_snapshots(folder)] == expected
