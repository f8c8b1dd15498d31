"""Fit weights against values computed elsewhere to 30 digits, and against random walks that are really walked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from accelerate_ext.ema import fit as fits
from accelerate_ext.ema import profile

REFERENCE = json.loads((Path(__file__).parent / "data" / "reference_values.json").read_text())
TABLE = REFERENCE["predicted_error_fraction_two_averages_uniform_snapshots"]


def gamma_of(sigma) -> float:
    return profile.RAW if sigma == "raw" else profile.gamma_from_sigma_rel(float(sigma))


def predicted_error(*averages):
    return fits.fit(*averages).predicted_error


def evenly(count: int, widths=(0.05, 0.10), t: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    steps = np.repeat(np.arange(1, count + 1) * t / count, len(widths))
    return steps, np.tile([gamma_of(width) for width in widths], count)


def walked_averages(t_in, gamma_in, steps: int, walks: int = 400, seed: int = 0) -> np.ndarray:
    """The averages as ``beta`` keeps them along random walks. Shapes: result (I, walks)."""
    path = np.random.default_rng(seed).standard_normal((steps, walks)).cumsum(axis=0)
    rows = [profile.step_weights(int(t), g) @ path[: int(t)] for t, g in zip(t_in, gamma_in, strict=True)]
    return np.stack(rows)


@pytest.mark.parametrize("case", REFERENCE["walk_reconstruct_examples"])
def test_walk_weights_and_their_predicted_error_equal_the_reference(case):
    got = fits.fit(
        case["t"], [gamma_of(s) for s in case["source"]], case["target_t"], gamma_of(case["target_sigma_rel"])
    )
    assert got.weights[:, 0] == pytest.approx([float(w) for w in case["weights"]], abs=1e-11)
    assert got.predicted_error[0] == pytest.approx(float(case["predicted_error_fraction_of_|raw-average|"]), rel=1e-7)
    assert got.total[0] == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("case", REFERENCE["reconstruct_examples"])
@pytest.mark.parametrize(("sum_to_one", "key"), [(None, "weights_lsq"), (True, "weights_lsq_sum1_constrained")])
def test_profile_weights_equal_the_reference(case, sum_to_one, key):
    sources = case["t"], [gamma_of(s) for s in case["sigma_rel"]]
    got = fits.fit(*sources, case["target_t"], gamma_of(case["target_sigma_rel"]), "profile", sum_to_one=sum_to_one)
    assert got.weights[:, 0] == pytest.approx([float(w) for w in case[key]], abs=1e-11)
    residual = case["residual_rel_constrained" if sum_to_one else "residual_rel_lsq"]
    assert got.profile_residual[0] == pytest.approx(float(residual), abs=1e-8)


@pytest.mark.parametrize("count", TABLE)
def test_predicted_errors_of_two_averages_equal_the_reference(count):
    widths = list(TABLE[count])
    got = predicted_error(*evenly(int(count)), 1.0, [gamma_of(width) for width in widths])
    assert got == pytest.approx([float(TABLE[count][width]) for width in widths], rel=1e-6, abs=1e-12)


def test_the_distance_of_an_average_from_the_model_equals_the_reference():
    for sigma, expected in REFERENCE["distance_raw_to_average_unit_walk_t=1"].items():
        assert fits.distance_from_model(1.0, gamma_of(sigma)) == pytest.approx(float(expected), rel=1e-13)


def test_the_predicted_error_is_what_random_walks_show():
    t, gamma = evenly(8, t=2000)
    targets = [gamma_of(s) for s in (0.02, 0.075, 0.15, 0.25)]
    got = fits.fit(t, gamma, 2000, targets)
    stored = walked_averages(t, gamma, 2000)
    wanted = walked_averages([2000] * 4, targets, 2000)
    model = walked_averages([2000], [1e9], 2000)
    error = np.sqrt(((got.weights.T @ stored - wanted) ** 2).mean(axis=1) / ((model - wanted) ** 2).mean(axis=1))
    assert error == pytest.approx(got.predicted_error, rel=0.15)


def described(weights, t, gamma, wanted=(4.0, 6.94), noise=0.0, offset=0.0):
    """Of one sum of averages that stands for a wanted one."""
    inputs = np.array(t, dtype=float), np.array(gamma, dtype=float), *np.array(wanted, dtype=float)[:, None]
    noise = np.full(len(t), noise)
    return fits.describe(np.array(weights)[:, None], *inputs, "walk", noise=noise, offset=offset, pace=None)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("widths", [(0.05, 0.10), ("raw",)])
def test_no_other_weights_that_add_up_to_one_have_a_smaller_expected_error(widths, noise):
    t, gamma = evenly(4, widths)
    best = fits.fit(t, gamma, 1.0, gamma_of(0.15), noise=noise)
    generator = np.random.default_rng(1)
    for _ in range(20):
        moved = generator.standard_normal(len(t)) * 1e-3
        others = best.weights[:, 0] + moved - moved.mean()
        worse = described(others, t, gamma, (1.0, gamma_of(0.15)), noise)
        assert worse.predicted_error[0] > best.predicted_error[0]


@pytest.mark.parametrize("width", [0.075, 0.13, 0.15])
def test_squared_error_falls_at_least_as_the_fourth_power_of_the_number_of_snapshots(width):
    few, many = (predicted_error(*evenly(count), 1.0, gamma_of(width))[0] for count in (16, 64))
    assert (few / many) ** 2 > 4**4


@pytest.mark.parametrize("kind", ["walk", "profile"])
def test_a_wanted_average_that_is_stored_is_taken_as_it_is(kind):
    t, gamma = evenly(16)
    got = fits.fit(t, gamma, [1.0, 0.5], [gamma_of(0.05), gamma_of(0.10)], kind)
    assert got.weights[30].tolist() == [1, 0] and got.weights[15].tolist() == [0, 1]
    assert np.count_nonzero(got.weights) == 2
    assert got.predicted_error.tolist() == [0, 0]
    assert got.effective_sigma_rel == pytest.approx([0.05, 0.10], rel=1e-9)


def test_the_effective_width_is_the_wanted_one_where_the_fit_is_good():
    got = fits.fit(*evenly(32), 1.0, [gamma_of(s) for s in (0.075, 0.15, 0.20)])
    assert got.effective_sigma_rel == pytest.approx([0.075, 0.15, 0.20], rel=1e-3)


def test_a_step_between_snapshots_is_built_from_both_sides():
    t, gamma = evenly(16, t=1600)
    got = fits.fit(t, gamma, 1450, gamma_of(0.10))
    assert got.predicted_error[0] < 0.05
    assert abs(got.weights[t > 1450]).sum() > 0.1


def test_rounding_of_the_stored_values_spreads_the_weights_and_is_part_of_the_predicted_error():
    t, gamma = evenly(16)
    wanted = 1.0, gamma_of(0.05)
    aware = fits.fit(t, gamma, *wanted, noise=1e-3)
    unaware = described(fits.fit(t, gamma, *wanted).weights[:, 0], t, gamma, wanted, 1e-3)
    assert (aware.weights**2).sum() < (unaware.weights**2).sum() == 1
    assert 0 < aware.predicted_error[0] < unaware.predicted_error[0]
    assert aware.total[0] == pytest.approx(1, abs=1e-12)


def test_the_rounding_of_a_sum_is_that_of_its_parts_by_their_squared_weights():
    sums = [0.5, -0.5, 1.0], [2.0, 3.0, 4.0], [6.94] * 3
    exact, rounded = (described(*sums, noise=noise).predicted_error[0] for noise in (0.0, 2.0))
    assert rounded**2 - exact**2 == pytest.approx(1.5 * 2.0 / fits.distance_from_model(4.0, 6.94) ** 2, rel=1e-12)


def test_plain_checkpoints_are_averaged_over_the_straight_lines_between_them():
    case = REFERENCE["raw_checkpoints_hat_weights"]
    t = np.array(case["t"], dtype=float)
    got = fits.path_weights(t, 1000, gamma_of(case["target_sigma_rel"]))
    assert got == pytest.approx([float(w) for w in case["weights"]], abs=1e-14)
    shuffled = fits.path_weights(t[::-1], 1000, gamma_of(case["target_sigma_rel"]))
    assert shuffled.tolist() == got[::-1].tolist()


@pytest.mark.parametrize("step", [1600, 1533, 100, 42])
def test_path_weights_equal_the_walk_fit(step):
    t = np.arange(1, 17) * 100.0
    walk = fits.fit(t, profile.RAW, step, 3.0, noise=1e-300)  # any noise at all takes the matrix instead of the path
    assert fits.path_weights(t, step, 3.0) == pytest.approx(walk.weights[:, 0], abs=1e-11)


def test_a_checkpoint_one_step_behind_another_has_half_the_weight_of_that_step():
    got = fits.fit([1, 10**6, 10**6 + 1], profile.RAW, 10**6 + 1, 3.0).weights[:, 0]
    assert got[2] == pytest.approx(profile.mass(10**6, 10**6 + 1, 10**6 + 1, 3.0) / 2, rel=1e-4)


def test_path_weights_average_a_straight_line_exactly():
    t = np.array([1.0, 30.0, 200.0, 555.0, 1000.0])
    mean, _ = profile.moments(1000, 6.94)
    got = fits.path_weights(t, 1000, 6.94) @ t
    below_first = profile.mass(0, 1, 1000, 6.94)
    assert got == pytest.approx(mean, abs=below_first + 1e-9)


def test_averages_and_plain_checkpoints_mix():
    t, gamma = evenly(8)
    alone = fits.fit(t, gamma, 1.0, gamma_of(0.02))
    mixed = fits.fit([*t, *t[::2]], [*gamma, *[profile.RAW] * 8], 1.0, gamma_of(0.02))
    assert mixed.predicted_error[0] < alone.predicted_error[0] * 0.7


def test_the_same_average_twice_shares_its_weight():
    t, gamma = evenly(4, widths=(0.05,))
    once = fits.fit(t, gamma, 1.0, gamma_of(0.10))
    twice = fits.fit(np.tile(t, 2), np.tile(gamma, 2), 1.0, gamma_of(0.10))
    assert twice.weights[:4] == pytest.approx(twice.weights[4:], abs=1e-6)
    assert twice.weights[:4] + twice.weights[4:] == pytest.approx(once.weights, abs=1e-6)


@pytest.mark.parametrize("count", [64, 200])
def test_many_snapshots_stay_solvable(count):
    got = fits.fit(*evenly(count), 1.0, [gamma_of(s) for s in (0.02, 0.075, 0.15, 0.25)])
    assert got.total == pytest.approx([1] * 4, abs=1e-10)
    assert (got.predicted_error < [2e-3, 1e-5, 1e-5, 1.5e-4]).all()
    assert np.abs(got.weights).sum(axis=0).max() < 60


def test_checkpoints_need_not_add_up_to_one_where_that_is_not_asked():
    t, wanted = [500.0, 750.0, 1000.0], (1000, 3.0)
    free = fits.fit(t, profile.RAW, *wanted, sum_to_one=False)
    assert free.total[0] < 0.99  # a walk that starts at 0 is drawn towards it before the first checkpoint
    assert free.weights == pytest.approx(fits.fit(t, profile.RAW, *wanted, sum_to_one=False, noise=1e-300).weights)
    assert fits.fit(t, profile.RAW, *wanted, sum_to_one=True).total[0] == pytest.approx(1, abs=1e-13)


def test_two_checkpoints_of_one_step_share_its_weight():
    once = fits.fit([100, 200], profile.RAW, 200, 3.0).weights[:, 0]
    twice = fits.fit([100, 100, 200], profile.RAW, 200, 3.0).weights[:, 0]
    assert twice == pytest.approx([once[0] / 2, once[0] / 2, once[1]], abs=1e-5)


def test_a_sum_that_is_not_one_costs_the_offset_of_the_weights():
    t, gamma = evenly(2)
    wanted = 1.0, gamma_of(0.25)
    free, counted = (fits.fit(t, gamma, *wanted, "profile", offset=offset) for offset in (0.0, 100.0))
    drift = (free.total[0] - 1) ** 2
    assert drift > 1e-9
    squares = (free.predicted_error[0] ** 2, counted.predicted_error[0] ** 2)
    assert squares[1] - squares[0] == pytest.approx(100 * drift / fits.distance_from_model(*wanted) ** 2, rel=1e-9)
    kept = [fits.fit(t, gamma, *wanted, offset=offset).predicted_error[0] for offset in (0.0, 1e6)]
    assert kept[0] == pytest.approx(kept[1], rel=1e-9)


def test_a_stored_average_is_taken_as_it_is_up_to_a_thousandth_of_its_distance_from_the_model():
    t, gamma = evenly(4, t=400.0)
    limit = (1e-3 * fits.distance_from_model(t[-1], gamma[-1])) ** 2
    for factor, is_exact in ((0.99, True), (1.01, False)):
        got = fits.fit(t, gamma, t[-1], gamma[-1], noise=np.where(np.arange(len(t)) == len(t) - 1, factor * limit, 0))
        assert (np.count_nonzero(got.weights) == 1) == is_exact
        assert got.predicted_error[0] == pytest.approx(1e-3 * factor**0.5, rel=0.1)


@pytest.mark.parametrize(("move", "is_same"), [(1e-13, True), (1e-10, False)])
@pytest.mark.parametrize("which", [0, 1])
def test_an_average_is_stored_when_its_step_and_its_width_are(move, is_same, which):
    t, gamma = evenly(4, t=4.0)
    wanted = np.array([t[-3], gamma[-3]])
    wanted[which] *= 1 + move
    got = fits.fit(t, gamma, *wanted)
    assert (np.count_nonzero(got.weights) == 1) == is_same
    assert got.weights[-3, 0] == pytest.approx(1, abs=1e-3)


def test_of_the_same_average_stored_twice_the_first_is_taken():
    got = fits.fit([1, 2, 2], 6.94, 2, 6.94)
    assert got.weights[:, 0].tolist() == [0, 1, 0]


def test_a_checkpoint_beside_it_does_not_hide_the_profile_of_an_average_that_is_taken_as_it_is():
    got = fits.fit([1, 2, 2], [6.94, 6.94, profile.RAW], 2, [6.94, 3.0])
    assert got.kind == "walk"
    assert np.isnan(got.profile_residual).all()  # the second one needs the checkpoint
    assert fits.fit([1, 2, 2], [6.94, 6.94, profile.RAW], 2, 6.94).profile_residual.tolist() == [0]


def test_single_numbers_are_taken_as_lists_of_one():
    got = fits.fit(4, 6.94, 4, 6.94)
    assert (got.weights.tolist(), got.total.tolist(), got.predicted_error.tolist()) == ([[1]], [1], [0])


@pytest.mark.parametrize("gamma", [6.94, profile.RAW])
def test_nothing_wanted_gives_nothing(gamma):
    got = fits.fit([1, 4], gamma, [], [])
    assert got.weights.shape == (2, 0)
    assert got.predicted_error.shape == got.total.shape == (0,)


def test_the_effective_width_is_the_standard_deviation_over_steps():
    assert described([0.5, 0.5], [2.0, 4.0], [profile.RAW] * 2).effective_sigma_rel.tolist() == [0.25]
    assert described([1.0, 1.0], [2.0, 4.0], [profile.RAW] * 2).effective_sigma_rel.tolist() == [0.25]
    assert described([1.0], [4.0], [profile.RAW]).effective_sigma_rel.tolist() == [0]
    (mean, width), half = profile.moments(4, 3.0), 0.5
    expected = (half * width**2 + half * (half * (4 - mean)) ** 2 + half * (half * (4 - mean)) ** 2) ** 0.5 / 4
    mixed = described([half, half], [4.0, 4.0], [3.0, profile.RAW])
    assert mixed.effective_sigma_rel[0] == pytest.approx(expected, rel=1e-12)


def test_a_sum_whose_variance_is_negative_has_no_width():
    assert np.isnan(described([-3.0, 2.0, 2.0], [2.0, 3.0, 4.0], [profile.RAW] * 3).effective_sigma_rel).all()


def test_a_step_may_lie_behind_the_last_one_by_rounding_only():
    assert fits.fit([1, 4], 6.94, 4 * (1 + 1e-13), 6.94).weights[:, 0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="must not lie after the last stored one"):
        fits.fit([1, 4], 6.94, 4 * (1 + 1e-9), 6.94)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"t_out": 5},
            r"the wanted step must not lie after the last stored one, got 5 and 4; an average cannot be continued "
            r"without the run",
        ),
        ({"t_in": [], "gamma_in": []}, "a fit needs at least one stored average, got none"),
        ({"gamma_in": profile.RAW, "kind": "profile"}, ".*use fit='walk'"),
        ({"kind": "best"}, "`kind` must be 'walk' or 'profile', got 'best'"),
        ({"noise": [0, -1]}, r"`noise` must be variances, finite and 0 or more, got \[0\.0, -1\.0\]"),
        ({"noise": [0, np.nan]}, r"`noise` must be variances, finite and 0 or more, got \[0\.0, nan\]"),
        ({"noise": [0, np.inf]}, r"`noise` must be variances, finite and 0 or more, got \[0\.0, inf\]"),
        (
            {"gamma_out": profile.RAW},
            "a wanted average needs a finite gamma, got inf: a plain checkpoint cannot be built from others",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(changed, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        fits.fit(**({"t_in": [1, 4], "gamma_in": 6.94, "t_out": 4, "gamma_out": 6.94} | changed))


def test_a_path_leads_to_averages_alone():
    with pytest.raises(ValueError, match="`gamma` must be finite, 0 or more, got inf"):
        fits.path_weights(np.array([1.0, 4.0]), 4, profile.RAW)


def test_averages_that_hardly_forget_have_no_profile_to_compare():
    assert np.isnan(described([0.5, 0.5], [2.0, 4.0], [6.94, -0.5]).profile_residual).all()
    assert described([0.5, 0.5], [2.0, 4.0], [6.94, -0.49]).profile_residual[0] > 0
    assert described([0.0, 1.0], [2.0, 4.0], [-0.5, 6.94]).profile_residual.tolist() == [0]  # it is not used


@pytest.mark.parametrize("width", [0.0501, 0.05001])
def test_a_second_width_that_hardly_differs_makes_no_fit_worse(width):
    wanted = np.ones(3), [gamma_of(wide) for wide in (0.075, 0.15, 0.25)]
    alone = predicted_error(*evenly(96, (0.05,)), *wanted)
    assert (predicted_error(*evenly(96, (0.05, width)), *wanted) <= alone).all()
