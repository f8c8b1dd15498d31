"""The weighted sums themselves: every stored tensor read once, in pieces, for all wanted averages together.

A piece is summed as a reference plus weighted differences from it. The weights add up to about 1 and the stored
averages are close to each other, so that float32 loses twenty times less than in the plain sum.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .header import SnapshotError
from .profile import Array
from .readers import Reader

PIECE_ELEMENTS = 2**16
BLOCK_BYTES = 2**24


class Sink(Protocol):
    """Where pieces go. Called from several threads, never twice for the same elements."""

    def __call__(self, name: str, start: int, values: torch.Tensor, /) -> None:
        """``values`` (O, elements) is only valid during the call."""


@dataclass(frozen=True)
class Stored:
    """One input of the sums: what errors call it, and its open tensors."""

    label: str
    reader: Reader


class Sums:
    """O weighted sums of I stored sets of tensors.

    Args:
        weights: of each tensor (I, O); tensors that share weights should share the array.
        dtype: what is calculated in, float32 or float64.
    """

    def __init__(self, stored: Sequence[Stored], weights: Mapping[str, Array], dtype: torch.dtype = torch.float32):
        self._stored, self._weights, self._dtype = stored, weights, dtype
        self._recipes = {id(matrix): _Recipe.of(matrix, dtype) for matrix in weights.values()}
        self._columns = next(iter(weights.values())).shape[1] if weights else 0
        rows = len(stored) + 2 * self._columns + 1
        self._length = max(1024, min(PIECE_ELEMENTS, BLOCK_BYTES // (rows * dtype.itemsize)))

    def memory(self, workers: int) -> int:
        """Bytes of buffers that ``run`` allocates."""
        return workers * (len(self._stored) + 2 * self._columns + 1) * self._length * self._dtype.itemsize

    def run(self, sink: Sink, workers: int, progress: Callable[[int], None] = lambda elements: None) -> None:
        """Calculates all pieces. ``progress`` is called with the number of elements done, one call at a time.

        Raises: SnapshotError naming the file and tensor if a stored value is nan or infinite.
        """
        pieces, lock, stop = self._pieces(), threading.Lock(), threading.Event()

        def work() -> None:
            torch.set_num_threads(1)  # of this thread; the pieces are what runs in parallel
            block = torch.empty(len(self._stored), self._length, dtype=self._dtype)
            try:
                while not stop.is_set():
                    with lock:
                        piece = next(pieces, None)
                    if piece is None:
                        return
                    sink(piece[0], piece[1], self._piece(*piece, block))
                    with lock:
                        progress(piece[2] - piece[1])
            except BaseException:
                stop.set()
                raise

        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(workers, thread_name_prefix="ema-sums") as pool:
                for future in [pool.submit(work) for _ in range(workers)]:
                    future.result()
        finally:
            stop.set()
            torch.set_num_threads(threads)

    def _pieces(self) -> Iterator[tuple[str, int, int]]:
        for name in self._weights:
            size = int(np.prod(self._stored[-1].reader.shape(name), dtype=np.int64))
            for start in range(0, size, self._length):
                yield name, start, min(size, start + self._length)

    def _piece(self, name: str, start: int, stop: int, block: torch.Tensor) -> torch.Tensor:
        recipe, count = self._recipes[id(self._weights[name])], stop - start
        reference = block[0, :count]
        self._stored[recipe.reference].reader.read(name, start, stop, reference)
        row = 1
        for index in recipe.others:
            difference = block[row, :count]
            self._stored[index].reader.read(name, start, stop, difference)
            difference.sub_(reference)
            row += 1
        result = torch.mm(recipe.matrix, block[:row, :count])
        for column, index in recipe.copies:
            self._stored[index].reader.read(name, start, stop, result[column])
        if not bool(torch.isfinite(result).all()):
            result = self._careful(name, start, stop, recipe, block[:row, :count])
        return result

    def _careful(self, name: str, start: int, stop: int, recipe: _Recipe, block: torch.Tensor) -> torch.Tensor:
        """A constant such as -inf that is everywhere the same is kept; other values that are not finite are refused."""
        used = [recipe.reference, *recipe.others]
        for row, index in enumerate(used):
            self._stored[index].reader.read(name, start, stop, block[row])
        constant = (block == block[0]).all(dim=0)
        for row, index in enumerate(used):
            wrong = ~torch.isfinite(block[row]) & ~constant
            if bool(wrong.any()):
                at = int(torch.nonzero(wrong)[0]) + start
                raise SnapshotError(
                    f"{self._stored[index].label}: {name!r} is {float(block[row, at - start])} at flat index {at}; "
                    "every stored value must be finite. Leave this file out"
                )
        kept = block[0].clone()
        block[1:] -= kept
        block[1:, constant] = 0
        result = recipe.matrix @ torch.where(constant, torch.zeros_like(block), block)
        result[:, constant] = kept[constant]
        for column, index in recipe.copies:
            self._stored[index].reader.read(name, start, stop, result[column])
        return result


@dataclass(frozen=True)
class _Recipe:
    """Weights as a small matrix (O, 1 + others) on the reference and the differences from it."""

    reference: int
    others: list[int]
    matrix: torch.Tensor
    copies: list[tuple[int, int]]

    @classmethod
    def of(cls, weights: Array, dtype: torch.dtype) -> _Recipe:
        used = np.flatnonzero((weights != 0).any(axis=1))
        reference = int(used[np.argmax(np.abs(weights[used]).sum(axis=1))])
        others = [int(index) for index in used if index != reference]
        matrix = np.concatenate([weights.sum(axis=0)[None], weights[others]]).T
        single = [(column, np.flatnonzero(weights[:, column])) for column in range(weights.shape[1])]
        copies = [(column, int(at[0])) for column, at in single if len(at) == 1 and weights[at[0], column] == 1]
        return cls(reference, others, torch.from_numpy(np.ascontiguousarray(matrix)).to(dtype), copies)


def pairwise_sums(stored: Sequence[Stored], names: Sequence[str], per_tensor: int = 4096) -> tuple[Array, Array, int]:
    """Mean square differences between all pairs, and mean squares, over a sample of the elements of each tensor.

    Shapes: result (I, I) and (I,), and the number of elements looked at.
    """
    squares = np.zeros((len(stored), len(stored)))
    norms, total = np.zeros(len(stored)), 0
    for name in names:
        size = int(np.prod(stored[0].reader.shape(name), dtype=np.int64))
        count = min(size, per_tensor)
        start = (size - count) // 2
        block = torch.empty(len(stored), count, dtype=torch.float64)
        for row, source in enumerate(stored):
            source.reader.read(name, start, start + count, block[row])
        block = torch.nan_to_num(block, nan=0.0, posinf=0.0, neginf=0.0)
        for a, b in itertools.combinations(range(len(stored)), 2):
            squares[a, b] += float(((block[a] - block[b]) ** 2).sum())
        norms += (block**2).sum(dim=1).numpy()
        total += count
    return (squares + squares.T) / max(total, 1), norms / max(total, 1), total
