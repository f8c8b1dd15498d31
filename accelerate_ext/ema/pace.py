"""How fast the weights moved at each part of a run, as the stored sets show it.

The random walk of ``fit`` moves equally fast all the time, and equally on short and long spans. Training does neither:
rates fall, early steps are large, noise is pulled back. What counts for a reconstruction is the motion that the stored
sets do *not* tell, between one snapshot and the next. They do show it: leave one out, build it from the others, and
what is missing is a sum over the run's steps whose weights are known. Its size, set by set, says how fast the weights
moved where those steps lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss

from .profile import Array

NUM_NODES = 16
"""Nodes of the quadrature between two stored times, exact for polynomials of degree 31."""
PANELS_AT_ONCE = 64
ROUNDS = 3
"""Of sharing out what is missing among the parts of the run; more follow the noise of single sets."""


@dataclass(frozen=True)
class Pace:
    """Variance by which an element of the weights moves a step, in each part of the run, in the unit of the caller.

    After the last edge it stays what it was before.

    Shapes: edges (K + 1,), rising from 0; rates (K,).
    """

    edges: Array
    rates: Array

    def residual_squares(self, weights: Array, t: Array, gamma: Array, t_out: Array, gamma_out: Array) -> Array:
        """Expected squared error of weighted sums of averages against wanted ones, for weights that move at this pace.

        Shapes: weights (I, O); t, gamma (I,); t_out, gamma_out (O,); result (O,).
        """
        panels = np.unique([*self.edges, *t, *t_out])
        sums = np.concatenate([weights, -np.eye(len(t_out))])
        squares = _squares(sums, np.concatenate([t, t_out]), np.concatenate([gamma, gamma_out]), panels)
        middle = (panels[1:] + panels[:-1]) / 2
        part = np.minimum(np.searchsorted(self.edges, middle) - 1, len(self.rates) - 1)
        result: Array = self.rates[part] @ squares
        return result


def pace_of(observed: Array, sums: Array, t: Array, gamma: Array, noise: Array) -> Pace:
    """The pace that explains the mean squares of sums of stored averages, each of which has weights that add up to 0.

    Every sum is what a walk gives in each part of the run, added up. What it shows beyond what was expected is shared
    out in proportion to the parts' contributions: multiplicative steps towards the likeliest rates.

    Args:
        observed: mean square of each sum over the elements.
        noise: variance of the rounding of each stored value, in the same unit.

    Shapes: observed (C,); sums (I, C); t, gamma, noise (I,).
    """
    times = np.unique(t)
    edges = np.concatenate([[0, times[0] / 4, times[0] / 2], times])
    parts = _squares(sums, t, gamma, edges)
    rounding = noise @ sums**2
    rates = np.ones(len(edges) - 1)
    for _ in range(ROUNDS):
        expected = rates @ parts + rounding
        known = expected > 0
        share = rates[:, None] * parts[:, known] / expected[known]
        seen = share.sum(axis=1)
        step = share @ (observed[known] / expected[known])
        rates = rates * np.divide(step, seen, out=np.ones_like(seen), where=seen > 0)
    return Pace(edges, rates)


def _squares(sums: Array, t: Array, gamma: Array, edges: Array) -> Array:
    """Integrals of the squared cumulative profile of each sum, between one edge and the next.

    Shapes: sums (I, C); t, gamma (I,); edges (K + 1,), among them every ``t`` before the last one; result (K, C).
    """
    nodes, weights = leggauss(NUM_NODES)
    squares = []
    for at in range(0, len(edges) - 1, PANELS_AT_ONCE):
        ends = edges[at : at + PANELS_AT_ONCE + 1]
        width = np.diff(ends)
        steps = ends[:-1, None] + width[:, None] * (nodes + 1) / 2
        later = sums.T @ _weight_after(steps.reshape(-1), t, gamma)
        squares.append(((later**2).reshape(sums.shape[1], *steps.shape) @ (weights / 2) * width).T)
    return np.concatenate(squares)


def _weight_after(steps: Array, t: Array, gamma: Array) -> Array:
    """The part of each profile's weight that lies after each step. Shapes: result (I, steps)."""
    reach: Array = np.minimum(steps / t[:, None], 1.0) ** (gamma[:, None] + 1)
    return 1 - reach
