"""Which weighted sum of stored averages comes closest to a wanted one.

Two measures of closeness, both linear least squares with closed-form matrices:

- ``"walk"``: the weights of the model are taken to move like a random walk, and the expected squared error of the sum
  is minimised under the constraint that the weights add up to 1. Plain checkpoints are welcome (``gamma = inf``).
- ``"profile"``: the squared difference of the averaging profiles is minimised, as in arXiv:2312.02696, appendix C.
  That treats the steps of the run as unrelated, and lets the sum of the weights drift from 1 where the fit is poor.

Whichever measure is used, the error to expect is that of weights that walk at random, as a fraction of the
distance between the wanted average and the weights of the model at the same step. Before a run the walk is taken to be
equally fast all the time; afterwards ``Pace`` says how fast it was at each part of the run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .pace import Pace
from .profile import Array, check_gamma, check_t, inner_product, walk_inner_product

Kind = Literal["walk", "profile"]

NUGGET_FLOOR = 1e-13
"""Added to the unit diagonal of nearly singular fits, where float64 would otherwise have no digit left."""

NEARLY_SINGULAR = 1e-6
"""Smallest eigenvalue on the unit diagonal from which a fit needs no nugget."""

EXACT_ENOUGH = 1e-3
"""Rounding, as a part of the distance from the model, up to which a stored average is taken as it is."""

Dot = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], Array]


@dataclass(frozen=True)
class Fit:
    """How to build O wanted averages from I stored ones, and what to expect of the result.

    Shapes: ``weights`` (I, O); ``total``, ``predicted_error``, ``profile_residual``, ``effective_sigma_rel`` (O,).

    ``predicted_error`` is the expected error: the distance to expect from the average that would have been kept during
    the run, over the distance of that average from the model's own weights; rounding of the stored values is included.
    ``profile_residual`` is the relative L2 distance of the profiles (nan where a plain checkpoint has weight), and
    ``effective_sigma_rel`` the width of the profile that the sum really has (nan where that profile has no width).
    """

    kind: Kind
    weights: Array
    total: Array
    predicted_error: Array
    profile_residual: Array
    effective_sigma_rel: Array


def fit(
    t_in: ArrayLike,
    gamma_in: ArrayLike,
    t_out: ArrayLike,
    gamma_out: ArrayLike,
    kind: Kind = "walk",
    *,
    noise: ArrayLike = 0.0,
    offset: float = 0.0,
    sum_to_one: bool | None = None,
    pace: Pace | None = None,
) -> Fit:
    """The best weights for building the wanted averages from the stored ones.

    A wanted average that is stored, hardly rounded, is taken as it is: weight 1, all others exactly 0.

    Args:
        noise: variance of the rounding of each stored value, over the variance that the weights move by a step.
        offset: mean square of the weights themselves in that unit, which counts where the fit does not add up to 1.
        sum_to_one: whether the weights have to add up to 1; as the paper has it unless given (walk: yes, profile: no).
        pace: how fast the weights moved when, for the expected error alone; equally fast unless given.

    Shapes: t_in, gamma_in, noise (I,) or scalar; t_out, gamma_out (O,) or scalar.
    Units: t in applied steps.
    Raises: ValueError if a t_out lies after every t_in, a gamma_out is infinite, or ``kind`` is "profile" and a
        gamma_in is.
    """
    t, gamma, errors = _vectors(t_in, gamma_in, noise)
    to, go = _vectors(t_out, gamma_out)
    _check(kind, t, to, go, errors)
    constrained = kind == "walk" if sum_to_one is None else sum_to_one
    exact = _already_stored(t, gamma, to, go, errors)
    is_path = kind == "walk" and constrained and np.isinf(gamma).all() and not errors.any()
    if is_path and len(set(t.tolist())) == len(t):
        weights = np.transpose(list(map(functools.partial(path_weights, t), to, go)))
    else:
        weights = _least_squares(kind, t, gamma, to, go, errors, constrained)
    weights = np.where(exact.any(axis=0), exact, weights)
    return describe(weights, t, gamma, to, go, kind, noise=errors, offset=offset, pace=pace)


def leave_one_out(t: ArrayLike, gamma: ArrayLike, noise: ArrayLike = 0.0) -> Array:
    """For each stored average, itself minus what the walk fit makes of the others.

    Shapes: t, gamma, noise (I,) or scalar, two different averages at least; result (I, I), a column for each average,
    with 1 on the diagonal and all others adding up to -1.
    """
    times, powers, errors = _vectors(t, gamma, noise)
    unit, scale = _unit_diagonal(_walk_gram(times, powers, errors))
    result: Array = np.linalg.pinv(unit, hermitian=True) / np.outer(scale, scale)
    ones = result.sum(axis=1)
    result -= np.outer(ones, ones) / ones.sum()  # the constraint that weights add up to 1
    np.fill_diagonal(result, 0.0)
    result /= -result.sum(axis=0)
    np.fill_diagonal(result, 1.0)
    return result


def describe(
    weights: Array,
    t: Array,
    gamma: Array,
    t_out: Array,
    gamma_out: Array,
    kind: Kind,
    *,
    noise: Array,
    offset: float,
    pace: Pace | None,
) -> Fit:
    """What any weights, however they came about, give: the expected error, the profile's residual and its width.

    Shapes: weights (I, O); t, gamma, noise (I,); t_out, gamma_out (O,).
    """
    distance = np.array(list(map(distance_from_model, t_out, gamma_out)))
    if pace is None:
        squares = _residual_squares(walk_inner_product, weights, t, gamma, t_out, gamma_out)
    else:
        squares = pace.residual_squares(weights, t, gamma, t_out, gamma_out)
    total = weights.sum(axis=0)
    squares = squares + noise @ weights**2 + offset * (total - 1) ** 2
    return Fit(
        kind=kind,
        weights=weights,
        total=total,
        predicted_error=np.sqrt(squares) / distance,
        profile_residual=_profile_residual(weights, t, gamma, t_out, gamma_out),
        effective_sigma_rel=_effective_width(weights, t, gamma, t_out),
    )


def distance_from_model(t: float, gamma: float) -> float:
    """Expected distance of an average from the model's own weights at step ``t``, for a walk of variance 1 a step."""
    return (check_t(t) / (2 * check_gamma(gamma) + 3)) ** 0.5


def path_weights(steps: Array, t_out: float, gamma_out: float) -> Array:
    """Weights of plain checkpoints that average the straight lines between them, constant before the first.

    Equals the walk fit of checkpoints without rounding, and stays exact for any number of them.

    Shapes: steps (I,), distinct, in any order; result (I,), adding up to 1.
    """
    order = np.argsort(steps)
    where = steps[order] / check_t(t_out)
    exponent = check_gamma(gamma_out, allow_raw=False) + 1
    reach = np.minimum(where, 1.0) ** exponent  # the part of the wanted weight up to each checkpoint
    area = np.minimum(where, 1.0) * reach / (exponent + 1) + np.maximum(where - 1, 0.0)  # and its integral
    to_later = reach[1:] - np.diff(area) / np.diff(where)
    weights = np.concatenate([reach[:1], to_later])
    weights[:-1] += np.diff(reach) - to_later
    result = np.empty_like(weights)
    result[order] = weights
    return result


def _least_squares(
    kind: Kind, t: Array, gamma: Array, t_out: Array, gamma_out: Array, noise: Array, constrained: bool
) -> Array:
    if kind == "walk":
        dot, gram = walk_inner_product, _walk_gram(t, gamma, noise)
    else:
        dot, gram = inner_product, inner_product(t[:, None], gamma[:, None], t[None], gamma[None])
    return _solve(gram, dot(t[:, None], gamma[:, None], t_out[None], gamma_out[None]), constrained)


def _walk_gram(t: Array, gamma: Array, noise: Array) -> Array:
    gram = walk_inner_product(t[:, None], gamma[:, None], t[None], gamma[None])
    gram[np.diag_indices_from(gram)] += noise
    return gram


def _vectors(*values: ArrayLike) -> list[Array]:
    first, *rest = np.broadcast_arrays(np.atleast_1d(values[0]), *values[1:])
    return [np.asarray(value, dtype=np.float64) for value in (first, *rest)]


def _check(kind: str, t: Array, t_out: Array, gamma_out: Array, noise: Array) -> None:
    if kind not in ("walk", "profile"):
        raise ValueError(f"`kind` must be 'walk' or 'profile', got {kind!r}")
    if not t.size:
        raise ValueError("a fit needs at least one stored average, got none")
    if (noise < 0).any() or not np.isfinite(noise).all():
        raise ValueError(f"`noise` must be variances, finite and 0 or more, got {noise.tolist()}")
    if np.isinf(gamma_out).any():
        raise ValueError(
            "a wanted average needs a finite gamma, got inf: a plain checkpoint cannot be built from others"
        )
    if t_out.size and t_out.max() > t.max() * (1 + 1e-12):
        raise ValueError(
            f"the wanted step must not lie after the last stored one, got {t_out.max():g} and {t.max():g}; "
            "an average cannot be continued without the run"
        )


def _already_stored(t: Array, gamma: Array, t_out: Array, gamma_out: Array, noise: Array) -> NDArray[np.bool_]:
    """Which stored average is taken as it is for each wanted one; the first, where several are that."""
    same_step = np.isclose(t[:, None], t_out, rtol=1e-12, atol=0)
    near = same_step & np.isclose(gamma[:, None], gamma_out, rtol=1e-11, atol=1e-13)
    fine = noise <= EXACT_ENOUGH**2 * t / (2 * gamma + 3)
    near &= fine[:, None]
    return near & (np.cumsum(near, axis=0) == 1)


def _solve(gram: Array, right: Array, constrained: bool) -> Array:
    """Minimum of w'Gw - 2w'b, on a unit diagonal; with the constraint by the null direction G^-1 1."""
    unit, scale = _unit_diagonal(gram)
    sides = np.concatenate([right / scale[:, None], 1 / scale[:, None]], axis=1)
    solved = _refined_solve(unit, sides) / scale[:, None]
    weights, ones = solved[:, :-1], solved[:, -1:]
    if constrained:
        weights = weights + ones * (1 - weights.sum(axis=0)) / ones.sum()
    return weights


def _unit_diagonal(gram: Array) -> tuple[Array, Array]:
    scale = np.sqrt(np.diagonal(gram))
    unit = gram / np.outer(scale, scale)
    unit[np.diag_indices_from(unit)] = 1.0
    if np.linalg.eigvalsh(unit)[0] < NEARLY_SINGULAR:
        unit[np.diag_indices_from(unit)] += NUGGET_FLOOR
    return unit, scale


def _refined_solve(matrix: Array, sides: Array) -> Array:
    """Solves in float64 and refines that in extended precision, where the platform has it."""
    result, wide = np.zeros_like(sides), matrix.astype(np.longdouble)
    for _ in range(3):
        result += np.linalg.solve(matrix, (sides - wide @ result).astype(np.float64))
    return result


def _residual_squares(dot: Dot, weights: Array, t: Array, gamma: Array, t_out: Array, gamma_out: Array) -> Array:
    gram = dot(t[:, None], gamma[:, None], t[None], gamma[None])
    cross = dot(t[:, None], gamma[:, None], t_out[None], gamma_out[None])
    own = dot(t_out, gamma_out, t_out, gamma_out)
    return np.maximum((weights * (gram @ weights - 2 * cross)).sum(axis=0) + own, 0.0)


def _profile_residual(weights: Array, t: Array, gamma: Array, t_out: Array, gamma_out: Array) -> Array:
    used = (weights != 0).any(axis=1)
    if not (np.isfinite(gamma[used]) & (gamma[used] > -0.5)).all():
        return np.full(len(t_out), np.nan)
    squares = _residual_squares(inner_product, weights[used], t[used], gamma[used], t_out, gamma_out)
    return np.sqrt(squares / inner_product(t_out, gamma_out, t_out, gamma_out))


def _effective_width(weights: Array, t: Array, gamma: Array, t_out: Array) -> Array:
    part = 1 - 1 / (gamma + 2)  # 1 for a plain checkpoint, whose variance is 0
    mean, variance = part * t, part / ((gamma + 2) * (gamma + 3)) * t**2
    total = weights.sum(axis=0)
    centre = (weights * mean[:, None]).sum(axis=0) / total
    spread = (weights * (variance[:, None] + (mean[:, None] - centre) ** 2)).sum(axis=0) / total
    return np.sqrt(np.where(spread >= 0, spread, np.nan)) / t_out
