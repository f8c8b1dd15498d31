"""The pace of a run from what stored averages do not tell about each other, and the errors that follow from it."""

from __future__ import annotations

import numpy as np
import pytest

from accelerate_ext.ema import fit as fits
from accelerate_ext.ema import profile
from accelerate_ext.ema.pace import Pace, pace_of

T = 1024


def gammas(widths) -> np.ndarray:
    return np.array([profile.RAW if width == 0 else profile.gamma_from_sigma_rel(width) for width in widths])


def evenly(count: int, widths=(0.05, 0.10)) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(1, count + 1) * T / count, len(widths)), np.tile(gammas(widths), count)


def step_weights(t: float, gamma: float) -> np.ndarray:
    weights = np.zeros(T)
    if np.isinf(gamma):
        weights[int(t) - 1] = 1
    else:
        weights[: int(t)] = profile.step_weights(int(t), gamma)
    return weights


def squares_by_steps(sums: np.ndarray, t: np.ndarray, gamma: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Expected squares of weighted sums of averages, step by step, for steps of the given variances (T,)."""
    weights = sums.T @ np.stack([step_weights(*pair) for pair in zip(t, gamma, strict=True)])
    later = weights[:, ::-1].cumsum(axis=1)[:, ::-1]
    return later**2 @ variance


@pytest.mark.parametrize("widths", [(0.05, 0.10), (0.10,), (0,), (0.05, 0)])
@pytest.mark.parametrize("end", [T, 900.0, 100.0])
def test_an_even_pace_gives_the_closed_form(widths, end):
    t, gamma = evenly(16, widths)
    wanted = np.full(4, end), gammas([0.02, 0.075, 0.15, 0.25])
    steady = fits.fit(t, gamma, *wanted)
    paced = fits.fit(t, gamma, *wanted, pace=Pace(np.array([0.0, 300.0, T]), np.ones(2)))
    assert paced.weights.tolist() == steady.weights.tolist()
    assert paced.predicted_error == pytest.approx(steady.predicted_error, rel=1e-6)


def test_weights_that_do_not_add_up_to_1_miss_a_part_of_the_whole_walk():
    t, gamma = evenly(4, (0.05,))
    wanted = np.full(2, float(T)), gammas([0.075, 0.25])
    steady = fits.fit(t, gamma, *wanted, kind="profile")
    paced = fits.fit(t, gamma, *wanted, kind="profile", pace=Pace(np.array([0.0, T]), np.ones(1)))
    assert (abs(steady.total - 1) > 0.01).all()
    assert paced.predicted_error == pytest.approx(steady.predicted_error, rel=1e-6)


@pytest.mark.parametrize("widths", [(0.10,), (0,)])
def test_more_sets_than_are_integrated_at_once_give_the_closed_form(widths):
    t, gamma = evenly(65, widths)
    wanted = np.full(2, float(T)), gammas([0.075, 0.25])
    steady = fits.fit(t, gamma, *wanted)
    paced = fits.fit(t, gamma, *wanted, pace=Pace(np.array([0.0, T]), np.ones(1)))
    assert paced.predicted_error == pytest.approx(steady.predicted_error, rel=1e-6)


@pytest.mark.parametrize("edges", [[0.0, 300.0, T], [0.0, 300.0, 600.0]])
def test_each_part_of_the_run_counts_at_its_pace_and_the_last_one_goes_on(edges):
    t, gamma = evenly(8)
    wanted = np.full(3, float(T)), gammas([0.075, 0.15, 0.25])
    got = fits.fit(t, gamma, *wanted, pace=Pace(np.array(edges), np.array([1.0, 9.0])))
    with_wanted = np.concatenate([got.weights, -np.eye(3)])
    every = np.concatenate([t, wanted[0]]), np.concatenate([gamma, wanted[1]])
    true = np.sqrt(squares_by_steps(with_wanted, *every, np.where(np.arange(T) < 300, 1.0, 9.0)))
    expected = got.predicted_error * [fits.distance_from_model(T, g) for g in wanted[1]]
    assert expected == pytest.approx(true, rel=0.05)


def test_the_pace_scales_the_expected_error():
    t, gamma = evenly(8)
    wanted = np.array([float(T)]), gammas([0.15])
    steady, fast = (
        fits.fit(t, gamma, *wanted, pace=Pace(np.array([0.0, T]), np.array([rate]))).predicted_error
        for rate in (1.0, 9.0)
    )
    assert fast == pytest.approx(3 * steady, rel=1e-12)


@pytest.mark.parametrize("widths", [(0.05, 0.10), (0.10,)])
def test_what_is_left_out_is_compared_with_the_walk_fit_of_the_others(widths):
    t, gamma = evenly(8, widths)
    got = fits.leave_one_out(t, gamma)
    for index in range(len(t)):
        others = np.arange(len(t)) != index
        assert got[index, index] == 1
        assert got[:, index].sum() == pytest.approx(0, abs=1e-12)
        if t[others].max() >= t[index]:
            built = fits.fit(t[others], gamma[others], t[index], gamma[index]).weights[:, 0]
            assert -got[others, index] == pytest.approx(built, abs=1e-5)


def test_a_plain_checkpoint_that_is_left_out_is_compared_with_the_middle_of_its_neighbours():
    got = fits.leave_one_out(*evenly(4, (0,)))
    assert got[:, 1] == pytest.approx([-0.5, 1, -0.5, 0], abs=1e-9)
    assert got[:, 3] == pytest.approx([0, 0, -1, 1], abs=1e-9)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("widths", [(0.05, 0.10), (0.05,), (0,)])
def test_a_pace_that_changes_during_the_run_is_found(power, widths):
    t, gamma = evenly(32, widths)
    variance = (np.arange(1, T + 1) / T) ** power
    sums = fits.leave_one_out(t, gamma)
    pace = pace_of(squares_by_steps(sums, t, gamma, variance), sums, t, gamma, np.zeros(len(t)))
    middle = np.array([T / 4, T / 2, 0.75 * T])
    found = pace.rates[np.searchsorted(pace.edges, middle) - 1]
    assert found == pytest.approx((middle / T) ** power, rel=0.15)


@pytest.mark.parametrize("power", [-1.0, 1.0])
def test_the_error_of_a_run_with_a_changing_pace_is_predicted(power):
    t, gamma = evenly(16)
    variance = (np.arange(1, T + 1) / T) ** power
    sums = fits.leave_one_out(t, gamma)
    pace = pace_of(squares_by_steps(sums, t, gamma, variance), sums, t, gamma, np.zeros(len(t)))
    wanted = np.full(3, float(T)), gammas([0.075, 0.15, 0.25])
    got = fits.fit(t, gamma, *wanted, pace=pace)
    with_wanted = np.concatenate([got.weights, -np.eye(3)])
    every = np.concatenate([t, wanted[0]]), np.concatenate([gamma, wanted[1]])
    true = np.sqrt(squares_by_steps(with_wanted, *every, variance))
    expected = got.predicted_error * [fits.distance_from_model(T, g) for g in wanted[1]]
    assert expected == pytest.approx(true, rel=0.25)


@pytest.mark.parametrize("every", [1, 2, 64])
def test_an_even_pace_is_found_from_the_first_step_on(every):
    t, gamma = np.repeat(np.arange(1, 5) * every, 2), np.tile(gammas([0.05, 0.10]), 4)
    sums = fits.leave_one_out(t, gamma)
    walk = profile.walk_inner_product(t[:, None], gamma[:, None], t[None], gamma[None])
    pace = pace_of((sums * (walk @ sums)).sum(axis=0), sums, t, gamma, np.zeros(len(t)))
    assert pace.edges[0] == 0
    assert (np.diff(pace.edges) > 0).all()
    assert pace.rates == pytest.approx(np.ones(len(pace.rates)), rel=1e-6)


def test_a_sum_written_larger_shows_the_same_pace():
    t, gamma = evenly(16)
    noise = np.full(len(t), 1e-2)
    sums = fits.leave_one_out(t, gamma, noise)
    observed = squares_by_steps(sums, t, gamma, np.arange(1, T + 1) / T) + noise @ sums**2
    times = np.tile([0.01, 1.0, 10.0, 100.0], len(t) // 4)
    pace, same = (pace_of(observed * by**2, sums * by, t, gamma, noise) for by in (1.0, times))
    assert same.rates == pytest.approx(pace.rates, rel=1e-9)


def test_what_no_set_shows_moves_by_one_unit_a_step():
    t, gamma = evenly(2, (0,))
    sums = np.array([[1.0, -1.0], [-1.0, 1.0]])  # nothing of it lies before the first checkpoint
    pace = pace_of(np.full(2, 9 * T / 2), sums, t, gamma, np.zeros(2))
    assert pace.rates == pytest.approx([1, 1, 1, 9])


def test_rounding_is_not_taken_for_motion():
    t, gamma = evenly(16)
    noise = np.full(len(t), 1e-2)
    sums = fits.leave_one_out(t, gamma, noise)
    observed = squares_by_steps(sums, t, gamma, np.ones(T)) + noise @ sums**2
    pace = pace_of(observed, sums, t, gamma, noise)
    assert pace.rates == pytest.approx(np.ones(len(pace.rates)), rel=0.1)


@pytest.mark.filterwarnings("error")
def test_weights_that_stand_still_have_no_pace():
    t, gamma = evenly(4)
    sums = fits.leave_one_out(t, gamma)
    pace = pace_of(np.zeros(len(t)), sums, t, gamma, np.zeros(len(t)))
    assert pace.rates.tolist() == [0.0] * len(pace.rates)
    assert fits.fit(t, gamma, T, gammas([0.15]), pace=pace).predicted_error.tolist() == [0.0]
