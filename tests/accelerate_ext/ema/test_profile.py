"""Profiles against values computed elsewhere to 30 digits, and against their definitions."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from accelerate_ext.ema import profile

REFERENCE = json.loads((Path(__file__).parent / "data" / "reference_values.json").read_text())
ACCEPTED = [s for s in REFERENCE["gamma_from_sigma_rel"] if float(s) <= profile.MAX_SIGMA_REL]
WALK = REFERENCE["walk_inner_products"]


def gamma_of(sigma: str) -> float:
    return profile.RAW if sigma == "raw" else profile.gamma_from_sigma_rel(float(sigma))


@pytest.mark.parametrize("sigma", ACCEPTED)
def test_gamma_equals_the_reference(sigma):
    assert gamma_of(sigma) == pytest.approx(float(REFERENCE["gamma_from_sigma_rel"][sigma]), rel=1e-12)


@pytest.mark.parametrize("gamma", REFERENCE["sigma_rel_from_gamma"])
def test_sigma_rel_equals_the_reference(gamma):
    expected = float(REFERENCE["sigma_rel_from_gamma"][gamma])
    assert profile.sigma_rel_from_gamma(float(gamma)) == pytest.approx(expected, rel=1e-14)


@given(st.floats(1e-100, profile.MAX_SIGMA_REL))
def test_gamma_and_sigma_rel_are_inverse_over_the_whole_range(sigma):
    assert profile.sigma_rel_from_gamma(profile.gamma_from_sigma_rel(sigma)) == pytest.approx(sigma, rel=1e-13, abs=0)


def test_the_widest_accepted_profile_is_the_uniform_average():
    assert profile.gamma_from_sigma_rel(profile.MAX_SIGMA_REL) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("sigma", [0, -0.1, 0.2887, 0.3, 0.301, 0.35, 0.5, 16.97, math.nan, math.inf])
def test_a_width_that_no_rising_profile_has_is_refused(sigma):
    with pytest.raises(ValueError, match=r"must lie between 0 and 0\.2887"):
        profile.gamma_from_sigma_rel(sigma)


def test_a_step_count_or_a_decay_given_as_a_width_is_explained():
    message = (
        r"^`sigma_rel` must lie between 0 and 0\.2887 \(the uniform average\), got 0\.9999; it is the width of the "
        r"average as a fraction of training, not a step count or a decay$"
    )
    with pytest.raises(ValueError, match=message):
        profile.check_sigma_rel(0.9999)


@pytest.mark.parametrize("gamma", [-0.1, -5, math.nan])
def test_a_negative_gamma_is_refused(gamma):
    with pytest.raises(ValueError, match="`gamma` must be 0 or more"):
        profile.sigma_rel_from_gamma(gamma)


@pytest.mark.parametrize("label", REFERENCE["beta"])
def test_beta_of_one_step_equals_the_reference(label):
    gamma = gamma_of(label.removeprefix("sigma_rel="))
    for t, expected in REFERENCE["beta"][label].items():
        assert profile.beta(gamma, int(t) - 1, int(t)) == pytest.approx(float(expected), rel=1e-14, abs=1e-300)
        assert profile.new_weight(gamma, int(t) - 1, int(t)) == pytest.approx(1 - float(expected), abs=1e-14)


def test_beta_of_ten_steps_equals_the_reference_and_the_product_of_single_ones():
    gamma = gamma_of("0.10")
    block = profile.beta(gamma, 990, 1000)
    assert block == pytest.approx(float(REFERENCE["beta_block_of_k"]["sigma_rel=0.10,t=1000,k=10"]), rel=1e-14)
    assert block == pytest.approx(math.prod(profile.beta(gamma, t - 1, t) for t in range(991, 1001)), rel=1e-13)


def test_new_weight_keeps_its_digits_where_beta_is_nearly_one():
    gamma, t = 16.97, 10**12
    assert profile.new_weight(gamma, t - 1, t) == pytest.approx((gamma + 1) / t, rel=1e-10, abs=0)


def test_beta_keeps_its_digits_where_next_to_nothing_is_left_of_the_average():
    assert profile.beta(0, 1, 10**15) == pytest.approx(1e-15, rel=1e-14, abs=0)
    assert profile.beta(0, 1, 10**20) == pytest.approx(1e-20, rel=1e-14, abs=0)


def test_a_mass_keeps_its_digits_where_the_steps_lie_close_together():
    gamma, t = 16.97, 10**12
    assert profile.mass(t - 1, t, t, gamma) == pytest.approx((gamma + 1) / t, rel=1e-10, abs=0)
    assert profile.mass(t / 2 - 1, t / 2, t, gamma) == pytest.approx((gamma + 1) / t / 2**gamma, rel=1e-9, abs=0)


def test_nothing_new_means_beta_one_and_nothing_seen_means_beta_zero():
    assert (profile.beta(6.94, 7, 7), profile.new_weight(6.94, 7, 7)) == (1.0, 0.0)
    assert (profile.beta(6.94, 0, 7), profile.new_weight(6.94, 0, 7)) == (0.0, 1.0)


@pytest.mark.parametrize(("t_last", "t"), [(8, 7), (-1, 7), (0, 0), (0, math.nan), (1, math.inf)])
def test_steps_that_go_back_or_are_no_numbers_are_refused(t_last, t):
    with pytest.raises(ValueError, match="`t"):
        profile.beta(6.94, t_last, t)


@pytest.mark.parametrize("sigma", REFERENCE["discrete_step_weights_t=8"])
def test_step_weights_equal_the_reference_and_the_updates_that_make_them(sigma):
    gamma, weights = gamma_of(sigma), np.zeros(8)
    for t in range(1, 9):
        weights *= profile.beta(gamma, t - 1, t)
        weights[t - 1] += profile.new_weight(gamma, t - 1, t)
    expected = [float(value) for value in REFERENCE["discrete_step_weights_t=8"][sigma]]
    assert profile.step_weights(8, gamma) == pytest.approx(expected, rel=1e-12)
    assert weights == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sigma", REFERENCE["profile_moments"])
def test_moments_and_masses_equal_the_reference(sigma):
    gamma, expected = gamma_of(sigma), REFERENCE["profile_moments"][sigma]
    mean, std = profile.moments(1.0, gamma)
    assert mean == pytest.approx(float(expected["mean_over_t"]), rel=1e-14)
    assert std == pytest.approx(float(expected["std_over_t"]), rel=1e-13)
    for label, value in REFERENCE["profile_mass_last_fraction"][sigma].items():
        start = 100 - int(label.removeprefix("last_").removesuffix("%"))
        assert profile.mass(start, 100, 100, gamma) == pytest.approx(float(value), rel=1e-12)


def test_density_integrates_to_the_mass_and_the_cumulative_weight():
    area, _ = quad(lambda tau: float(profile.density(tau, 80.0, 6.94)), 20, 60)
    assert area == pytest.approx(profile.mass(20, 60, 80, 6.94), rel=1e-10)
    assert area == pytest.approx(float(np.diff(profile.cumulative([20, 60], 80, 6.94))[0]), rel=1e-10)


def test_a_profile_has_no_weight_outside_of_the_run():
    assert profile.density([-1.0, 81.0], 80, 6.94).tolist() == [0, 0]
    assert profile.cumulative([-1.0, 0.0, 80.0, 81.0], 80, 6.94).tolist() == [0, 0, 1, 1]
    assert [profile.mass(*steps, 80, 6.94) for steps in ((90, 100), (-20, -10), (0, 0), (60, 20))] == [0, 0, 0, 0]
    assert profile.mass(-5, 100, 80, 6.94) == 1
    assert profile.mass(-5, 40, 80, 6.94) == profile.mass(0, 40, 80, 6.94) == pytest.approx(0.5**7.94, rel=1e-14)


def test_the_uniform_average_has_the_same_density_from_its_first_step_to_its_last():
    assert profile.density([0, 4, 8], 8, 0).tolist() == [1 / 8] * 3


def test_all_is_computed_in_float64_whatever_is_given():
    tau = np.linspace(0.1, 0.9, 5, dtype=np.float32)
    wide = tau.astype(np.float64)
    for function in (profile.density, profile.cumulative):
        got = function(tau, 1, 6.94)
        assert got.dtype == np.float64 and got.tolist() == function(wide, 1, 6.94).tolist()
    for function in (profile.inner_product, profile.walk_inner_product):
        got = function(tau, tau + 1, 1, 6.94)
        assert (
            got.dtype == np.float64 and got.tolist() == function(wide, (tau + 1).astype(np.float64), 1, 6.94).tolist()
        )
    assert profile.step_weights(4, 6.94).dtype == np.float64


def test_edges_are_computed_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile.step_weights(1, 6.94).tolist() == [1]
        assert profile.walk_inner_product(10, profile.RAW, 10, 6.94) < 10
        assert profile.walk_inner_product(10, profile.RAW, 5, profile.RAW) == 5
        assert profile.inner_product(1e-20, 6.94, 1, 6.94) < 1e-100


FINITE_ONLY = {
    "beta": lambda gamma: profile.beta(gamma, 1, 2),
    "new_weight": lambda gamma: profile.new_weight(gamma, 1, 2),
    "density": lambda gamma: profile.density(1, 2, gamma),
    "mass": lambda gamma: profile.mass(1, 2, 2, gamma),
    "mass of no step": lambda gamma: profile.mass(2, 1, 2, gamma),
    "step_weights": lambda gamma: profile.step_weights(2, gamma),
}


@pytest.mark.parametrize("name", FINITE_ONLY)
def test_a_plain_checkpoint_is_refused_where_it_has_no_answer(name):
    with pytest.raises(ValueError, match="`gamma` must be finite, 0 or more, got inf"):
        FINITE_ONLY[name](profile.RAW)


def test_all_weight_of_a_plain_checkpoint_is_on_its_step():
    assert profile.moments(10, profile.RAW) == (10, 0)


@pytest.mark.parametrize("case", REFERENCE["inner_products"])
def test_inner_products_equal_the_reference_either_way_round(case):
    a, b = (case["t_a"], gamma_of(case["sigma_a"])), (case["t_b"], gamma_of(case["sigma_b"]))
    assert profile.inner_product(*a, *b) == pytest.approx(float(case["dot"]), rel=1e-13)
    assert profile.inner_product(*b, *a) == profile.inner_product(*a, *b)


@pytest.mark.parametrize("case", WALK)
def test_walk_inner_products_equal_the_reference_either_way_round(case):
    a, b = (case["t_a"], gamma_of(case["sigma_a"])), (case["t_b"], gamma_of(case["sigma_b"]))
    assert profile.walk_inner_product(*a, *b) == pytest.approx(float(case["walk_dot"]), rel=1e-13)
    assert profile.walk_inner_product(*b, *a) == pytest.approx(profile.walk_inner_product(*a, *b), rel=1e-14)


def test_inner_products_broadcast_to_a_matrix():
    t, gamma = np.array([100.0, 200.0, 300.0]), np.array([16.97, 6.94, 6.94])
    matrix = profile.inner_product(t[:, None], gamma[:, None], t[None], gamma[None])
    assert matrix.shape == (3, 3)
    assert matrix == pytest.approx(matrix.T)
    assert matrix[0, 2] == profile.inner_product(100, 16.97, 300, 6.94)


def test_inner_products_of_narrow_profiles_keep_their_digits_where_the_steps_lie_close_together():
    gamma, late = 1e8, 1e9
    early = late - 1
    ratio = profile.inner_product(early, gamma, late, gamma) / profile.inner_product(late, gamma, late, gamma)
    assert ratio == pytest.approx(math.exp(gamma * math.log1p(-1 / late)), rel=1e-13)


@pytest.mark.parametrize("gamma", [-0.5, -0.75, profile.RAW])
def test_profiles_without_a_finite_norm_have_no_inner_product(gamma):
    message = (
        r"^the profile of a plain checkpoint, or of an average that hardly forgets \(gamma -1/2 and below\), "
        r"has no inner products; use fit='walk'$"
    )
    for pair in ((10, gamma, 10, 6.94), (10, 6.94, 10, gamma)):
        with pytest.raises(ValueError, match=message):
            profile.inner_product(*pair)


def test_profiles_of_plain_checkpoints_have_no_inner_product_but_a_walk_one():
    with pytest.raises(ValueError, match="use fit='walk'"):
        profile.inner_product(10, profile.RAW, 10, 6.94)
    assert profile.walk_inner_product(10, profile.RAW, 10, profile.RAW) == 10
    assert profile.sigma_rel_from_gamma(profile.RAW) == 0
    assert profile.cumulative([9.0, 10.0], 10, profile.RAW).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("t", "gamma", "what"), [(0, 1, "`t`"), (math.inf, 1, "`t`"), (10, -1.0, "`gamma`"), (10, math.nan, "`gamma`")]
)
def test_inner_products_refuse_what_has_no_profile(t, gamma, what):
    with pytest.raises(ValueError, match=f"every {what} must be"):
        profile.walk_inner_product(t, gamma, 10, 6.94)


def test_only_the_times_that_are_none_are_listed():
    with pytest.raises(ValueError, match=r"above 0, got -5, 0$"):
        profile.walk_inner_product([[1.0], [0.0], [-5.0]], 1.0, [2.0, 3.0], 1.0)
    with pytest.raises(ValueError, match=r"above -1, got -2$"):
        profile.inner_product(1.0, [1.0, -2.0], 1.0, 1.0)
    with pytest.raises(ValueError, match=r"above 0, got -11, -10, -9, -8, -7, -6, -5, -4, -3, -2$"):
        profile.walk_inner_product(-np.arange(12.0), 1.0, 1.0, 1.0)
