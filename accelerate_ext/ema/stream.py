"""The weighted sums themselves: every stored tensor read once, in pieces, for all wanted averages together.

A piece is summed as a reference plus weighted differences from it. The weights add up to about 1 and the stored
averages are close to each other, so that float32 loses twenty times less than in the plain sum.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .header import SnapshotError
from .profile import Array
from .readers import Reader, distinct

PIECE_ELEMENTS = 2**16
GROUP = 8
"""How many stored sets are read before they are added: so few that a piece of them stays in a processor's cache."""
BLOCK_BYTES = 2**23


class Sink(Protocol):
    """Where pieces go. Called from several threads, never twice for the same elements."""

    def __call__(self, name: str, start: int, values: torch.Tensor, /) -> None:
        """``values`` (O, elements) is only valid during the call."""


@dataclass(frozen=True)
class Stored:
    """One input of the sums: what errors call it, and its open tensors."""

    label: str
    reader: Reader


@dataclass(frozen=True)
class _Span:
    """Tensors that lie behind one another in every input and share their weights: read as if they were one."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    size: int
    recipe: _Recipe

    def parts(self, start: int, stop: int) -> Iterator[tuple[str, int, slice]]:
        """What elements ``start`` to ``stop`` are: tensor, place in it, and place in the piece."""
        index = bisect.bisect_right(self.starts, start) - 1
        while index < len(self.names) and (low := max(start, self.starts[index])) < stop:
            end = self.starts[index + 1] if index + 1 < len(self.starts) else self.size
            if low < end:
                yield self.names[index], low - self.starts[index], slice(low - start, min(end, stop) - start)
            index += 1


class Sums:
    """O weighted sums of I stored sets of tensors.

    Args:
        weights: of each tensor (I, O); tensors that share weights should share the array.
        dtype: what is calculated in, float32 or float64.
    """

    def __init__(self, stored: Sequence[Stored], weights: Mapping[str, Array], dtype: torch.dtype = torch.float32):
        self._stored, self._weights, self._dtype = stored, weights, dtype
        self._columns = next(iter(weights.values())).shape[1]
        self._rows = 1 + GROUP + self._columns
        self._length = max(1024, min(PIECE_ELEMENTS, BLOCK_BYTES // (self._rows * dtype.itemsize)))

    def memory(self, workers: int) -> int:
        """Bytes of buffers that ``run`` allocates."""
        return workers * self._rows * self._length * self._dtype.itemsize

    def run(self, sink: Sink, workers: int, progress: Callable[[int], object] = int) -> None:
        """Calculates all pieces. ``progress`` is called with the number of elements done, one call at a time.

        Raises: SnapshotError naming the file and tensor if a stored value is nan or infinite.
        """
        spans = self._spans()
        starts = ((span, at) for span in spans for at in range(0, span.size, self._length))
        pieces = ((span, at, min(span.size, at + self._length)) for span, at in starts)
        lock, stop = threading.Lock(), threading.Event()

        def work() -> None:
            torch.set_num_threads(1)  # of this thread; the pieces are what runs in parallel
            block = torch.empty(self._rows, self._length, dtype=self._dtype)
            try:
                while not stop.is_set():
                    with lock:
                        piece = next(pieces, None)
                    if piece is None:
                        return
                    self._piece(*piece, block, sink)
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

    def _spans(self) -> list[_Span]:
        recipes = {id(matrix): _Recipe.of(matrix, self._dtype) for matrix in self._weights.values()}
        read = {
            key: distinct(self._stored[index].reader for index in (recipe.reference, *recipe.others))
            for key, recipe in recipes.items()
        }
        spans: list[_Span] = []
        groups: list[list[str]] = []
        for name, matrix in self._weights.items():
            last = groups[-1][-1] if groups else None
            if (
                last is not None
                and self._weights[last] is matrix
                and all(reader.follows(name, last) for reader in read[id(matrix)])
            ):
                groups[-1].append(name)
            else:
                groups.append([name])
        for group in groups:
            sizes = [math.prod(self._stored[-1].reader.shape(name)) for name in group]
            starts = [0, *itertools.accumulate(sizes)]
            spans.append(_Span(tuple(group), tuple(starts[:-1]), starts[-1], recipes[id(self._weights[group[0]])]))
        return spans

    def _piece(self, span: _Span, start: int, stop: int, block: torch.Tensor, sink: Sink) -> None:
        """``block``: room for the reference, for a group of other sets, and for the results, in rows."""
        block = block[:, : stop - start]
        result = block[1 + GROUP :]
        self._add_up(span, start, stop, block)
        if not math.isfinite(float(result.sum())):  # one value that is not finite, anywhere, shows in the sum
            self._add_up(span, start, stop, block, self._constant(span, start, stop, block))
        for column, index in span.recipe.copies:
            self._stored[index].reader.read(span.names[0], start, stop, result[column])
        for part, at, where in span.parts(start, stop):
            sink(part, at, result[:, where])

    def _add_up(
        self, span: _Span, start: int, stop: int, block: torch.Tensor, constant: torch.Tensor | None = None
    ) -> None:
        """The results of a piece; where it is ``constant`` in all sets, its value."""
        recipe, name = span.recipe, span.names[0]
        reference, group, result = block[0], block[1 : 1 + GROUP], block[1 + GROUP :]
        self._stored[recipe.reference].reader.read(name, start, stop, reference)
        result.zero_()
        for at in range(0, len(recipe.others), GROUP):
            chosen = recipe.others[at : at + GROUP]
            for row, index in enumerate(chosen):
                self._stored[index].reader.read(name, start, stop, group[row])
            differences = group[: len(chosen)].sub_(reference)
            if constant is not None:
                differences[:, constant] = 0
            result.addmm_(recipe.matrix[:, at : at + GROUP], differences)
        result.addr_(recipe.totals, reference)  # small numbers came first: they keep their digits
        if constant is not None:
            result[:, constant] = reference[constant]

    def _constant(self, span: _Span, start: int, stop: int, block: torch.Tensor) -> torch.Tensor:
        """Where all sets hold the same. A constant such as -inf is kept; any other value must be finite."""
        used = [span.recipe.reference, *span.recipe.others]
        reference, row = block[0], block[1]
        constant = torch.ones_like(reference, dtype=torch.bool)
        for index in used:
            self._stored[index].reader.read(span.names[0], start, stop, row)
            constant &= row == reference
        for index in used:
            self._stored[index].reader.read(span.names[0], start, stop, row)
            wrong = ~torch.isfinite(row) & ~constant
            if bool(wrong.any()):
                at = int(torch.nonzero(wrong)[0])
                name, place, _ = next(span.parts(start + at, stop))
                raise SnapshotError(
                    f"{self._stored[index].label}: {name!r} is {float(row[at])} at flat index {place}; every stored "
                    "value must be finite. Leave this file out"
                )
        return constant


@dataclass(frozen=True)
class _Recipe:
    """Weights of the differences from the reference (O, others), and of the reference itself (O,)."""

    reference: int
    others: list[int]
    matrix: torch.Tensor
    totals: torch.Tensor
    copies: list[tuple[int, int]]

    @classmethod
    def of(cls, weights: Array, dtype: torch.dtype) -> _Recipe:
        used = np.flatnonzero((weights != 0).any(axis=1))
        reference = int(used[np.argmax(np.abs(weights[used]).sum(axis=1))])
        others = [int(index) for index in used if index != reference]
        totals = weights.sum(axis=0)
        totals[np.abs(totals - 1) < 1e-9] = 1  # what a constraint has left of rounding
        single = [(column, np.flatnonzero(weights[:, column])) for column in range(weights.shape[1])]
        copies = [(column, int(at[0])) for column, at in single if len(at) == 1 and weights[at[0], column] == 1]
        matrix = torch.from_numpy(np.ascontiguousarray(weights[others].T))
        return cls(reference, others, matrix.to(dtype), torch.from_numpy(totals).to(dtype), copies)
