"""From what is stored to weights: opening, checking that everything belongs together, fitting, and the cost."""

from __future__ import annotations

import contextlib
import fnmatch
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .fit import Fit, Kind, distance_from_model, fit
from .header import SnapshotError
from .inputs import Source
from .motion import measure_motion
from .profile import Array, gamma_from_sigma_rel
from .readers import Reader, distinct
from .stream import Stored, Sums


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before the sums: which sets take part, their weights, and the shape of the result.

    Shapes: ``fit`` has a column for each of ``gammas``; ``columns`` gives, for every averaged tensor, the column of
    each wanted average (O,). ``drift`` is the variance by which an element of the weights moves a step.
    """

    sources: Sequence[Source]
    readers: Sequence[Reader]
    t: float
    gammas: Array
    fit: Fit
    columns: Mapping[str, tuple[int, ...]]
    copied: Mapping[str, Reader]
    tied: Mapping[str, str]
    drift: float

    @property
    def num_elements(self) -> int:
        """Averaged elements of the model."""
        return sum(math.prod(self.readers[-1].shape(name)) for name in self.columns)

    @property
    def read_bytes(self) -> int:
        """What the sums read from disk."""
        used = Counter(reader.layout for reader, row in zip(self.readers, self.fit.weights, strict=True) if row.any())
        return sum(
            used[reader.layout] * math.prod(reader.shape(name)) * reader.dtype(name).itemsize
            for reader in distinct(self.readers)
            for name in self.columns
        )

    @property
    def dtypes(self) -> set[torch.dtype]:
        """What the averaged tensors are stored in."""
        return {reader.dtype(name) for reader in distinct(self.readers) for name in self.columns}

    def sums(self, dtype: torch.dtype) -> Sums:
        """The sums that give every wanted average, for all averaged tensors."""
        matrices = {chosen: self.fit.weights[:, list(chosen)] for chosen in set(self.columns.values())}
        stored = [Stored(str(source.path), reader) for source, reader in zip(self.sources, self.readers, strict=True)]
        return Sums(stored, {name: matrices[chosen] for name, chosen in self.columns.items()}, dtype)


@contextlib.contextmanager
def prepare(
    sources: Sequence[Source],
    t: float,
    gammas: Sequence[float],
    kind: Kind = "walk",
    widths: Mapping[str, float] | None = None,
) -> Iterator[Prepared]:
    """Opens what the wanted averages can be built from and fits the weights; closes it all at the end.

    Later sets than the first one at or after ``t`` are not used, so that a result does not change as the run goes on.

    Args:
        widths: for tensors whose name matches the pattern (as in a shell), this sigma_rel in place of the wanted one.

    Raises: SnapshotError naming the file that does not fit the others; ValueError if ``t`` lies after all of them.
    """
    check_no_duplicates(sources)
    end = min((source.t for source in sources if source.t >= t * (1 - 1e-12)), default=math.inf)
    used = [source for source in sources if source.t <= end]
    with contextlib.ExitStack() as stack:
        allow_open_files(sum(max(1, len(source.files)) for source in used))
        readers = [stack.enter_context(contextlib.closing(source.open())) for source in used]
        names, others = check_same_model(used, readers)
        every, columns = _columns(names, gammas, widths or {})
        motion = measure_motion(used, readers, names)
        stored = [s.t for s in used], [s.gamma for s in used]
        result = fit(*stored, t, every, kind, noise=motion.noise, offset=motion.offset, pace=motion.pace)
        yield Prepared(
            sources=used,
            readers=readers,
            t=t,
            gammas=np.asarray(every),
            fit=result,
            columns=columns,
            copied={name: _latest(name, t, used, readers) for name in others},
            tied={other: name for source in used for other, name in source.tied.items()},
            drift=motion.drift,
        )


def _latest(name: str, t: float, sources: Sequence[Source], readers: Sequence[Reader]) -> Reader:
    """Where a tensor that is copied comes from: the last set up to ``t`` that has it."""
    holders = [pair for pair in zip(sources, readers, strict=True) if name in pair[1].names]
    return next((reader for source, reader in reversed(holders) if source.t <= t * (1 + 1e-12)), holders[-1][1])


def check_no_duplicates(sources: Sequence[Source]) -> None:
    """Raises: SnapshotError naming both files if two sets hold the same average at the same time."""
    seen: dict[tuple[float, float], Source] = {}
    problems = []
    for source in sources:
        first = seen.setdefault((source.t, round(source.gamma, 9)), source)
        if first is not source:
            problems.append(f"{first.path} and {source.path} (step {source.step:g})")
    if problems:
        raise SnapshotError(f"a step and width must occur once, found twice: {_listing(problems)}; leave one out")


def check_same_model(sources: Sequence[Source], readers: Sequence[Reader]) -> tuple[list[str], list[str]]:
    """Names of the tensors to average, and of those to copy (integers, and what snapshots list as copies).

    Raises: SnapshotError naming each file whose tensors have other names or shapes than those of the latest one.
    """
    aliases = {other for source in sources for other in source.tied}
    copied = {name for source in sources for name in source.copied}
    last = readers[-1]
    shapes = {name: last.shape(name) for name in last.names if name not in aliases}
    floating = {name for name in shapes if last.dtype(name).is_floating_point and name not in copied}
    if complex_names := [name for name in shapes if last.dtype(name).is_complex]:
        raise SnapshotError(f"{sources[-1].path} has complex tensors, which cannot be averaged: {complex_names[:5]}")
    problems = []
    for source, reader in zip(sources, readers, strict=True):
        if reader.layout == last.layout:
            continue
        found = {name: reader.shape(name) for name in reader.names if name not in aliases}
        differing = [name for name in floating if found.get(name, ()) != shapes[name] or name not in found]
        differing += [name for name in found if name not in shapes and name not in copied]
        if differing:
            problems.append(
                f"{source.path} ({', '.join(sorted(differing)[:3])}{', ...' if len(differing) > 3 else ''})"
            )
    if problems:
        raise SnapshotError(
            f"all files must hold the same model as {sources[-1].path}; tensors are missing, new or of another shape "
            f"in {_listing(problems)}"
        )
    if not floating:
        raise SnapshotError(f"{sources[-1].path} has no floating-point tensor to average")
    names = [name for name in last.names if name in floating]
    return names, [name for name in shapes if name not in floating]


def _listing(problems: Sequence[str], most: int = 8) -> str:
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return "; ".join([*problems[:most], *more])


def allow_open_files(count: int) -> None:
    """Raises the limit of open files as far as the system lets us, when many sets are read at once."""
    try:
        import resource
    except ImportError:  # pragma: no cover (Windows has no such limit)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


def _columns(
    names: Sequence[str], gammas: Sequence[float], widths: Mapping[str, float]
) -> tuple[list[float], dict[str, tuple[int, ...]]]:
    every = list(gammas)
    usual = tuple(range(len(gammas)))
    columns = dict.fromkeys(names, usual)
    for pattern, width in widths.items():
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ValueError(f"`widths`: no tensor matches {pattern!r}; names are like {', '.join(names[:3])}")
        gamma = gamma_from_sigma_rel(width)
        if gamma not in every:
            every.append(gamma)
        columns.update(dict.fromkeys(matching, (every.index(gamma),) * len(gammas)))
    return every, columns


def expected_distance(prepared: Prepared, column: int) -> float:
    """Root mean square distance of the wanted average from the model's own weights, as the drift lets expect it."""
    return math.sqrt(prepared.drift) * distance_from_model(prepared.t, float(prepared.gammas[column]))
