"""How the weights moved during the run and how coarsely they were stored, from a sample of the stored elements."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .fit import NUGGET_FLOOR, leave_one_out
from .inputs import Source
from .pace import Pace, pace_of
from .profile import Array, walk_inner_product
from .readers import Reader, distinct

RELATIVE_ROUNDING = 0.43
"""Root mean square rounding error over root mean square value, in units of half the spacing above 1."""

NEAR_THE_END = 6
"""How many of the latest stored sets say how fast the weights move where the wanted average ends."""

SAMPLE_TENSORS = 64
SAMPLE_ELEMENTS = 2048


@dataclass(frozen=True)
class Motion:
    """How fast the weights move near the end (variance a step), and in that unit the rounding of each set, the mean
    square of the weights, and how fast they moved at each part of the run (None if too little is stored to tell).

    Shapes: noise (I,).
    """

    drift: float
    noise: Array
    offset: float
    pace: Pace | None


def measure_motion(sources: Sequence[Source], readers: Sequence[Reader], names: Sequence[str]) -> Motion:
    """What the stored sets tell about the run, from the same sample of elements of each."""
    with _one_thread():
        return _measure(sources, readers, names)


def _measure(sources: Sequence[Source], readers: Sequence[Reader], names: Sequence[str]) -> Motion:
    t, gamma = (np.array([getattr(source, field) for source in sources]) for field in ("t", "gamma"))
    late = slice(max(0, len(sources) - NEAR_THE_END), len(sources))
    observed, norm = _pairwise_squares(readers[late], names)
    spacing = {reader.layout: _spacing(reader, names) for reader in distinct(readers)}
    stored = [RELATIVE_ROUNDING * spacing[reader.layout] / 2 for reader in readers]
    rounding = np.maximum(stored, [source.rounding_error for source in sources])
    squared = rounding**2 * norm
    drift = _drift(observed, t[late], gamma[late], squared[late])
    if drift <= 0:
        return Motion(0.0, np.zeros(len(sources)), 0.0, None)
    noise = squared / drift
    noise = np.where(noise > NUGGET_FLOOR * t, noise, 0.0)
    return Motion(drift, noise, norm / drift, _pace(readers, names, t, gamma, noise, drift))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """For many small products: threads that wait for each other at each of them cost more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _drift(observed: Array, t: Array, gamma: Array, squared: Array) -> float:
    """The median over all pairs of their squared distance, over that of a walk of variance 1 a step."""
    gram = walk_inner_product(t[:, None], gamma[:, None], t[None], gamma[None])
    apart = np.diagonal(gram)[:, None] + np.diagonal(gram)[None] - 2 * gram
    rates = [
        (observed[a, b], observed[a, b] - squared[a] - squared[b], apart[a, b])
        for a, b in itertools.combinations(range(len(t)), 2)
        if apart[a, b] > 0
    ]
    moved = [clean / distance for _, clean, distance in rates if clean > 0] or [raw / far for raw, _, far in rates]
    return float(np.median(moved)) if moved else 0.0


def _pace(readers: Sequence[Reader], names: Sequence[str], t: Array, gamma: Array, noise: Array, drift: float) -> Pace:
    """From what each set holds that the others do not tell."""
    left_out = leave_one_out(t, gamma, noise)
    sums, total, weights = np.zeros(len(readers)), 0, torch.from_numpy(left_out.T.copy())
    for block in _samples(readers, names):
        sums += (weights @ (block - block[-1])).square().sum(dim=1).numpy()
        total += block.shape[1]
    return pace_of(sums / total / drift, left_out, t, gamma, noise)


def _pairwise_squares(readers: Sequence[Reader], names: Sequence[str]) -> tuple[Array, float]:
    """Mean square difference of all pairs, and the mean square. Shapes: (I, I), ()."""
    squares, norm, total = np.zeros((len(readers), len(readers))), 0.0, 0
    for block in _samples(readers, names):
        for a, b in itertools.combinations(range(len(readers)), 2):
            squares[a, b] += float((block[a] - block[b]).square().sum())
        norm += float(block.square().mean(dim=0).sum())
        total += block.shape[1]
    return (squares + squares.T) / total, norm / total


def _samples(readers: Sequence[Reader], names: Sequence[str]) -> Iterator[torch.Tensor]:
    """The middle of each of some tensors, in all sets, without infinities and nan. Shapes: each (I, elements)."""
    sized = [name for name in names if math.prod(readers[-1].shape(name))]
    for name in sized[:: max(1, -(-len(sized) // SAMPLE_TENSORS))]:
        size = math.prod(readers[-1].shape(name))
        count = min(size, SAMPLE_ELEMENTS)
        start = (size - count) // 2
        block = torch.empty(len(readers), count, dtype=torch.float64)
        for row, reader in enumerate(readers):
            reader.read(name, start, start + count, block[row])
        yield torch.nan_to_num(block, nan=0.0, posinf=0.0, neginf=0.0)


def _spacing(reader: Reader, names: Sequence[str]) -> float:
    """That above 1 of the dtype which most elements have."""
    elements: Counter[torch.dtype] = Counter()
    for name in names:
        elements[reader.dtype(name)] += math.prod(reader.shape(name))
    return float(torch.finfo(elements.most_common(1)[0][0]).eps)
