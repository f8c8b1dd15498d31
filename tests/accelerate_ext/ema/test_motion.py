"""Predicted errors of runs that do not move like a walk of constant rate, against the errors that they really have."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

from accelerate_ext.ema import fit as fits
from accelerate_ext.ema import profile
from accelerate_ext.ema.reconstruct import reconstruct

WIDTHS = (0.03, 0.075, 0.15, 0.25)


def slowing_down(steps: np.ndarray) -> np.ndarray:
    """The rate falls as 1 / t."""
    return (steps * (50 / np.arange(50, 50 + len(steps)))[:, None]).cumsum(axis=0)


def speeding_up(steps: np.ndarray) -> np.ndarray:
    return (steps * np.linspace(0.05, 1, len(steps))[:, None]).cumsum(axis=0)


def pulled_back(steps: np.ndarray) -> np.ndarray:
    """Descent with noise on quadratics of many curvatures, with a rate that falls as 1 / sqrt(t)."""
    curvature = np.geomspace(1e-3, 1, steps.shape[1])
    at, path = np.zeros(steps.shape[1]), np.empty_like(steps)
    for index, step in enumerate(steps):
        rate = 1 / np.sqrt(1 + index / 20)
        at = at - rate * (curvature * at + np.sqrt(curvature) * step)
        path[index] = at
    return path


@pytest.mark.parametrize("moves", [slowing_down, speeding_up, pulled_back])
@pytest.mark.parametrize(("stored", "count"), [((0.05, 0.10), 8), ((0.05, 0.10), 32), ((0.10,), 16)])
def test_the_error_is_within_half_and_four_times_the_predicted_one(known_run, moves, stored, count):
    steps = np.random.default_rng(3).standard_normal(known_run.walk.shape) * 5e-4
    run = dataclasses.replace(known_run, walk=known_run.walk[0] + moves(steps))
    wanted = [width for width in WIDTHS if width not in stored]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = reconstruct(run.save_all(count, stored), wanted, force=True)
    errors = [run.error(tensors, 1600, width) for tensors, width in zip(got.tensors, wanted, strict=True)]
    ratios = np.array(errors) / got.predicted_error
    assert ratios.min() > 0.5 and ratios.max() < 4, ratios


def test_an_even_walk_would_promise_five_times_too_much_of_a_run_that_slows_down(known_run):
    steps = np.random.default_rng(3).standard_normal(known_run.walk.shape) * 5e-4
    run = dataclasses.replace(known_run, walk=known_run.walk[0] + slowing_down(steps))
    got = reconstruct(run.save_all(16), 0.25, force=True)
    sources = [source.t for source in got.sources], [source.gamma for source in got.sources]
    even = fits.fit(*sources, 1600, profile.gamma_from_sigma_rel(0.25)).predicted_error[0]
    measured = run.error(got.tensors[0], 1600, 0.25)
    assert measured > 5 * even
    assert measured < 2 * got.predicted_error[0]
