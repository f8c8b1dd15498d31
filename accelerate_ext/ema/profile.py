"""The maths of power-function averaging profiles, in float64 and without a tensor.

An average of width ``sigma_rel``, kept until applied step ``t``, weights the weights of the model at step ``tau`` by
``p(tau) = (gamma + 1) tau^gamma / t^(gamma + 1)`` on ``[0, t]``. ``sigma_rel`` is the standard deviation of that
profile as a fraction of ``t``; ``gamma`` is its exponent. A plain checkpoint, which is no average at all, has
``gamma = inf``.

Units: ``t`` in applied steps (or whatever else the run counts, images for example), fractional values are fine.
Source: arXiv:2312.02696, section 3 and appendix C.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_SIGMA_REL = 12.0**-0.5
"""Width of the uniform average, gamma = 0. A wider profile would weight the past more than the present."""

RAW = math.inf
"""The gamma of a plain checkpoint: all weight on its own step."""

Array = NDArray[np.float64]


def gamma_from_sigma_rel(sigma_rel: float) -> float:
    """The exponent of the profile that is ``sigma_rel`` wide, to about 1e-14 relative.

    Raises: ValueError unless 0 < sigma_rel <= 12^(-1/2), about 0.2887.
    Example:
        >>> round(gamma_from_sigma_rel(0.10), 2)
        6.94
    """
    sigma = check_sigma_rel(sigma_rel)
    gamma = 1 / sigma - 3
    for _ in range(5):  # Newton on the logarithm of the defining equation, which has no cancellation
        value = math.log1p(gamma) - 2 * math.log(gamma + 2) - math.log(gamma + 3) - 2 * math.log(sigma)
        gamma -= value / (1 / (gamma + 1) - 2 / (gamma + 2) - 1 / (gamma + 3))
    return max(gamma, 0.0)


def sigma_rel_from_gamma(gamma: float) -> float:
    """The width of the profile with exponent ``gamma``, as a fraction of t; 0 for a plain checkpoint.

    Raises: ValueError unless gamma >= 0.
    """
    gamma = check_gamma(gamma)
    if math.isinf(gamma):
        return 0.0
    return math.sqrt((gamma + 1) / (gamma + 3)) / (gamma + 2)


def beta(gamma: float, t_last: float, t: float) -> float:
    """What the average that last saw step ``t_last`` is multiplied by at step ``t``: ``(t_last / t)^(gamma + 1)``.

    Equals the product of the betas of all steps in between, so that a late update is as good as one every step.
    0 when the average has seen nothing (``t_last = 0``), 1 when nothing is new (``t == t_last``).
    """
    return math.exp(_log_beta(gamma, t_last, t))


def new_weight(gamma: float, t_last: float, t: float) -> float:
    """``1 - beta``, the weight of the model at step ``t``, without the cancellation that 1 - beta has on long runs."""
    return -math.expm1(_log_beta(gamma, t_last, t))


def density(tau: ArrayLike, t: float, gamma: float) -> Array:
    """The profile's weight per step at ``tau``; 0 outside [0, t]. Its integral over [0, t] is 1."""
    power = check_gamma(gamma, allow_raw=False)
    where = np.asarray(tau, dtype=np.float64) / check_t(t)
    inside = (where >= 0) & (where <= 1)
    return np.where(inside, (power + 1) / t * np.power(np.where(inside, where, 0.0), power), 0.0)


def cumulative(tau: ArrayLike, t: float, gamma: float) -> Array:
    """The part of the profile's weight that lies on steps up to ``tau``: 0 before 0, 1 from ``t`` on."""
    exponent = check_gamma(gamma) + 1
    where = np.asarray(tau, dtype=np.float64) / check_t(t)
    if math.isinf(exponent):
        return np.where(where >= 1, 1.0, 0.0)
    return np.power(np.clip(where, 0.0, 1.0), exponent)


def mass(start: float, end: float, t: float, gamma: float) -> float:
    """The part of the profile's weight between two steps, without cancellation when they lie close together."""
    exponent = check_gamma(gamma, allow_raw=False) + 1
    low, high = (min(max(value, 0.0), check_t(t)) for value in (start, end))
    if high <= low:
        return 0.0
    return (high / t) ** exponent * new_weight(gamma, low, high)


def step_weights(t: int, gamma: float) -> Array:
    """Weight of each applied step 1..t in the average that ``beta`` builds with one update a step; they add up to 1.

    Shapes: result (t,), oldest first.
    """
    exponent = check_gamma(gamma, allow_raw=False) + 1
    tau = np.arange(1, int(check_t(t)) + 1)
    with np.errstate(divide="ignore"):  # the first step takes all that lies before it
        return np.asarray((tau / t) ** exponent * -np.expm1(exponent * np.log1p(-1 / tau)), dtype=np.float64)


def moments(t: float, gamma: float) -> tuple[float, float]:
    """Mean and standard deviation of the profile over steps, in the units of ``t``."""
    gamma = check_gamma(gamma)
    mean = 1.0 if math.isinf(gamma) else (gamma + 1) / (gamma + 2)
    return check_t(t) * mean, t * sigma_rel_from_gamma(gamma)


def inner_product(t_a: ArrayLike, gamma_a: ArrayLike, t_b: ArrayLike, gamma_b: ArrayLike) -> Array:
    """Integral of the product of two profiles over all steps: what least squares on profiles is made of.

    Shapes: all four broadcast against each other.
    Raises: ValueError for profiles without a finite norm: those of plain checkpoints, and of a gamma of -1/2 or less.
    """
    t_a, gamma_a, t_b, gamma_b = _checked(t_a, gamma_a, t_b, gamma_b)
    if not all((np.isfinite(gamma) & (gamma > -0.5)).all() for gamma in (gamma_a, gamma_b)):
        raise ValueError(
            "the profile of a plain checkpoint, or of an average that hardly forgets (gamma -1/2 and below), has no "
            "inner products; use fit='walk'"
        )
    early, late = np.minimum(t_a, t_b), np.maximum(t_a, t_b)
    power = np.where(t_a < t_b, gamma_b, gamma_a)  # of the later one; equal times make it irrelevant
    ratio = np.exp(power * _log_ratio(early, late))
    return (gamma_a + 1) * (gamma_b + 1) * ratio / ((gamma_a + gamma_b + 1) * late)


def walk_inner_product(t_a: ArrayLike, gamma_a: ArrayLike, t_b: ArrayLike, gamma_b: ArrayLike) -> Array:
    """Covariance of two averages of one random walk that starts at 0 and moves by variance 1 a step.

    Shapes: all four broadcast against each other; gamma is inf for plain checkpoints.
    """
    t_a, gamma_a, t_b, gamma_b = _checked(t_a, gamma_a, t_b, gamma_b)
    early = np.minimum(t_a, t_b)
    a, b = gamma_a + 1, gamma_b + 1
    with np.errstate(invalid="ignore"):  # inf * 0 for a plain checkpoint at the common end; its terms are dropped
        reach_a = np.where(np.isinf(a), 0.0, np.exp(a * _log_ratio(early, t_a)))
        reach_b = np.where(np.isinf(b), 0.0, np.exp(b * _log_ratio(early, t_b)))
    return early * (1 - reach_a / (a + 1) - reach_b / (b + 1) + reach_a * reach_b / (a + b + 1))


def check_sigma_rel(sigma_rel: float) -> float:
    """``sigma_rel`` as a float. Raises: ValueError unless it lies in (0, 12^(-1/2)]."""
    value = float(sigma_rel)
    if not 0 < value <= MAX_SIGMA_REL:  # also refuses nan
        raise ValueError(
            f"`sigma_rel` must lie between 0 and {MAX_SIGMA_REL:.4f} (the uniform average), got {sigma_rel}; "
            "it is the width of the average as a fraction of training, not a step count or a decay"
        )
    return value


def check_gamma(gamma: float, allow_raw: bool = True) -> float:
    """``gamma`` as a float. Raises: ValueError unless it is 0 or more, and finite where ``allow_raw`` is false."""
    value = float(gamma)
    if not value >= 0 or (not allow_raw and math.isinf(value)):
        raise ValueError(f"`gamma` must be {'0 or more' if allow_raw else 'finite, 0 or more'}, got {gamma}")
    return value


def check_t(t: float) -> float:
    """``t`` as a float. Raises: ValueError unless it is finite and above 0."""
    value = float(t)
    if not 0 < value < math.inf:
        raise ValueError(f"`t` must be a finite number of applied steps above 0, got {t}")
    return value


def _log_beta(gamma: float, t_last: float, t: float) -> float:
    exponent = check_gamma(gamma, allow_raw=False) + 1
    if not 0 <= t_last <= check_t(t):
        raise ValueError(
            f"`t_last` must lie between 0 and `t`, got t_last={t_last} and t={t}; averages do not go back"
        )
    if t_last == 0:
        return -math.inf
    return exponent * (math.log1p((t_last - t) / t) if t < 2 * t_last else math.log(t_last / t))


def _log_ratio(early: Array, late: Array) -> Array:
    with np.errstate(divide="ignore"):  # of the branch that is not taken
        return np.where(late < 2 * early, np.log1p((early - late) / late), np.log(early / late))


def _checked(t_a: ArrayLike, gamma_a: ArrayLike, t_b: ArrayLike, gamma_b: ArrayLike) -> tuple[Array, ...]:
    values = tuple(np.asarray(value, dtype=np.float64) for value in (t_a, gamma_a, t_b, gamma_b))
    for t in (values[0], values[2]):
        if not (good := np.isfinite(t) & (t > 0)).all():
            raise ValueError(f"every `t` must be a finite number of applied steps above 0, got {_listed(t[~good])}")
    for gamma in (values[1], values[3]):
        if not (good := gamma > -1).all():
            raise ValueError(f"every `gamma` must be above -1, got {_listed(gamma[~good])}")
    return values


def _listed(values: Array) -> str:
    return ", ".join(f"{value:g}" for value in np.unique(values)[:10])
