"""How much of the model goes into an average, against the definition, on the host and as tensors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from accelerate_ext.ema.profile import beta, new_weight
from accelerate_ext.ema.weighting import NUM_BLOCKS, NUM_STRATA, DecayWeighting, PowerWeighting

pytestmark = pytest.mark.filterwarnings("error")

POWER = PowerWeighting((6.94, 16.97))
TWICE = 2 * NUM_BLOCKS
DECAYS = {
    "constant": DecayWeighting(decay=0.9),
    "constant from a step on": DecayWeighting(decay=0.9, update_after_step=5),
    "warm-up": DecayWeighting(use_ema_warmup=True, update_after_step=3, inv_gamma=2.0, power=0.75),
    "growth": DecayWeighting(use_ema_warmup=False, decay=0.5, update_after_step=2),
    "growth with a floor": DecayWeighting(use_ema_warmup=False, decay=0.999, min_decay=0.3),
    "none": DecayWeighting(decay=0.0),
}


def as_tensors(*values):
    return [torch.tensor(value) for value in values]


def of_every_step(weighting, last, now):
    """The weight of the model when it stood still from `last` to `now`, and every step was an update."""
    return 1 - math.prod(weighting.decay_at(step) for step in range(last + 1, now + 1))


def test_there_is_an_average_for_every_exponent():
    assert (POWER.num_averages, DecayWeighting().num_averages) == (2, 1)


@pytest.mark.parametrize(
    ("last", "now", "is_due"),
    [
        (0, 1, True),
        (7, 7, False),
        (TWICE - 2, TWICE - 1, True),  # once at every step up to there
        (TWICE - 1, TWICE, False),
        (TWICE - 2, TWICE, True),
        (3 * NUM_BLOCKS - 2, 3 * NUM_BLOCKS, False),
        (3 * NUM_BLOCKS - 3, 3 * NUM_BLOCKS, True),
    ],
)
def test_a_long_run_moves_its_averages_a_bounded_number_of_times(last, now, is_due):
    assert POWER.is_due(last, now) == is_due
    assert POWER.on_device(*as_tensors(last, now))[0].item() == is_due


@pytest.mark.parametrize(("last", "now"), [(0, 1), (0, 9), (5, 9), (999, 1000), (TWICE, TWICE + 2)])
def test_power_functions_have_the_weights_of_their_profiles(last, now):
    weights = POWER.move(last, now).weights
    assert weights == [new_weight(gamma, last, now) for gamma in POWER.gammas]
    on_device = POWER.on_device(*as_tensors(last, now))[1].weights
    assert on_device.dtype == torch.float64
    assert on_device.tolist() == pytest.approx(weights, rel=1e-12, abs=0)


def test_weights_are_zero_on_the_device_where_it_is_not_time():
    for weighting, last, now in ((POWER, 7, 7), (POWER, TWICE, TWICE + 1), *((one, 7, 7) for one in DECAYS.values())):
        due, move = weighting.on_device(*as_tensors(last, now))
        assert not due
        assert move.weights.tolist() == [0.0] * weighting.num_averages
    assert POWER.on_device(*as_tensors(0, 0))[1].weights.tolist() == [0.0, 0.0]


def test_short_runs_are_not_dithered_and_long_ones_evenly():
    assert POWER.move(TWICE - 2, TWICE - 1).dither == 0
    assert POWER.on_device(*as_tensors(TWICE - 2, TWICE - 1))[1].dither == 0
    dithers = [POWER.move(now - 2, now).dither for now in range(TWICE, TWICE + 2000, 2)]
    on_device = [POWER.on_device(*as_tensors(now - 2, now))[1].dither.item() for now in range(TWICE, TWICE + 200, 2)]
    assert on_device == pytest.approx(dithers[:100], abs=1e-9)
    counts, _ = np.histogram(dithers, bins=10, range=(-0.5, 0.5))
    assert counts.sum() == 1000 and counts.min() >= 97 and counts.max() <= 103
    steps = {round((two - one) % 1, 6) for one, two in itertools.pairwise(dithers)}
    assert steps == {0.618034}  # the golden section leaves no gap of a few moves
    assert all(weighting.move(3, 9).dither == 0 for weighting in DECAYS.values())


@pytest.mark.parametrize(
    ("name", "decays"),
    [
        ("constant", {1: 0.0, 2: 0.9, 100: 0.9}),
        ("constant from a step on", {5: 0.0, 6: 0.0, 7: 0.9}),
        ("warm-up", {4: 0.0, 5: 1 - 1.5**-0.75, 6: 1 - 2**-0.75, 10**9: 0.9999}),
        ("growth", {3: 0.0, 4: 2 / 11, 5: 3 / 12, 100: 0.5}),
        ("growth with a floor", {1: 0.0, 2: 0.3, 3: 0.3, 5: 5 / 14, 100: 100 / 109}),
        ("none", {1: 0.0, 2: 0.0}),
    ],
)
def test_decays_follow_their_formula_between_their_bounds(name, decays):
    for step, decay in decays.items():
        assert DECAYS[name].decay_at(step) == pytest.approx(decay, rel=1e-12)
        assert DECAYS[name].move(step - 1, step).weights == pytest.approx([1 - decay], rel=1e-12)


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize(("last", "now"), [(0, 1), (0, 20), (3, 9), (5, 8), (6, 8), (10, 11), (10, 300)])
def test_one_late_update_has_the_weight_of_all_the_steps_it_covers(name, last, now):
    weighting = DECAYS[name]
    assert weighting.is_due(last, now)
    (weight,) = weighting.move(last, now).weights
    assert weight == pytest.approx(of_every_step(weighting, last, now), rel=1e-12)
    due, move = weighting.on_device(*as_tensors(last, now))
    assert due and move.weights.shape == (1,)
    assert move.weights.item() == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize("decay", [0.9, 0.99, 0.999, 0.9999, 0.99999])
def test_one_step_at_a_time_has_the_weight_of_other_packages_to_the_last_digit(decay):
    weighting = DecayWeighting(decay=decay)
    assert weighting.move(8, 9).weights == [1 - decay]
    assert weighting.on_device(*as_tensors(8, 9))[1].weights.tolist() == [1 - decay]


@pytest.mark.parametrize("last", [1000, 100_000])
@pytest.mark.parametrize("covered", [NUM_STRATA, NUM_STRATA + 1, 10 * NUM_STRATA + 7])
def test_an_update_that_covers_very_many_steps_has_nearly_their_weight(last, covered):
    weighting = DecayWeighting(use_ema_warmup=True, decay=1.0, power=1.0)  # 1 - 1/n, whose product is first over last
    now = last + covered
    host = weighting.move(last, now).weights[0]
    assert 1 - host == pytest.approx(1 - of_every_step(weighting, last, now), rel=1e-3, abs=0)
    assert weighting.on_device(*as_tensors(last, now))[1].weights.tolist() == pytest.approx([host], rel=1e-12)


@pytest.mark.parametrize("weighting", [DecayWeighting(update_after_step=5), DECAYS["warm-up"]])
def test_an_average_is_a_copy_of_the_model_up_to_its_first_step_however_many_come_at_once(weighting):
    start = weighting.update_after_step
    for last in (0, start - 1, start):
        for now in (start + 1, start + 2, start + 10 * NUM_STRATA):
            assert weighting.move(last, now).weights == [1.0]
            assert weighting.on_device(*as_tensors(last, now))[1].weights.tolist() == [1.0]


@pytest.mark.parametrize("weighting", [POWER, DecayWeighting()])
def test_weights_on_the_device_do_not_depend_on_the_default_dtype(weighting):
    expected = weighting.on_device(*as_tensors(1000, 55_555))[1].weights.tolist()
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = weighting.on_device(*as_tensors(1000, 55_555))[1].weights.tolist()
    finally:
        torch.set_default_dtype(torch.float32)
    assert got == expected


def test_an_average_is_not_due_before_a_new_step():
    assert [DecayWeighting().is_due(4, now) for now in (4, 5, 9)] == [False, True, True]


def test_two_moves_in_a_row_are_one_long_move():
    for gamma in POWER.gammas:
        assert beta(gamma, 10, 20) * beta(gamma, 20, 50) == pytest.approx(beta(gamma, 10, 50), rel=1e-13)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"decay": 1.1, "min_decay": -0.1},
            "`decay` must lie between 0 and 1, got 1.1; `min_decay` must lie between 0",
        ),
        ({"decay": -0.1}, "^`decay` must lie between 0 and 1, got -0.1$"),
        ({"min_decay": 1.5}, "^`min_decay` must lie between 0 and 1, got 1.5$"),
        ({"update_after_step": -1}, "^`update_after_step` must be a step, 0 or more, got -1$"),
        (
            {"update_after_step": math.inf, "power": 0},
            "^`update_after_step` must be a step, 0 or more, got inf; `inv_gamma` and `power` must be above 0, got 1.0 ",
        ),
        ({"update_after_step": 2.5}, "^`update_after_step` must be a step, 0 or more, got 2.5$"),
        ({"inv_gamma": 0}, "^`inv_gamma` and `power` must be above 0, got 0 and 0.66"),
        ({"power": 0}, "^`inv_gamma` and `power` must be above 0, got 1.0 and 0$"),
    ],
)
def test_settings_out_of_their_bounds_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DecayWeighting(**settings)


def test_settings_at_their_bounds_are_taken():
    weighting = DecayWeighting(decay=1, min_decay=0, update_after_step=0)
    assert [weighting.decay_at(step) for step in (1, 2)] == [0, 1]
    assert DecayWeighting(decay=0, min_decay=1).decay_at(2) == 1
    decays = [DecayWeighting(use_ema_warmup=choice).decay_at(2) for choice in (None, True, False)]
    assert decays == pytest.approx([0.9999, 1 - 2 ** (-2 / 3), 2 / 11])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_ema_warmup": "yes"}, r"^`use_ema_warmup` must be None, True or False, got 'yes'$"),
        ({"decay": "0.9"}, r"^these must be numbers: `decay` \('0.9'\)$"),
        (
            {"min_decay": None, "update_after_step": "1", "inv_gamma": (), "power": []},
            r"^these must be numbers: `min_decay` \(None\), `update_after_step` \('1'\), `inv_gamma` \(\(\)\), "
            r"`power` \(\[\]\)$",
        ),
    ],
)
def test_settings_that_are_no_numbers_are_named(settings, message):
    with pytest.raises(TypeError, match=message):
        DecayWeighting(**settings)
