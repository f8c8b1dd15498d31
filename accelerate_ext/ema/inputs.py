"""What a wanted average can be built from: our snapshots, plain checkpoints, other packages' snapshots, mixtures."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .header import Header, SnapshotError
from .profile import RAW, gamma_from_sigma_rel, sigma_rel_from_gamma
from .publication import wait_for_folder
from .readers import FileReader, Reader, open_weights, rank_files
from .snapshot import NAME, Snapshot, list_snapshots, shard_paths
from .steps import WEIGHTS, StepTable, read_table, step_of
from .torch_file import TorchReader

PEER_NAME = re.compile(r"(?P<index>\d+)\.(?P<step>\d+)\.pt")
OUTPUT_PREFIX = "reconstructed-"
"""How files that reconstruction writes begin, so that they are never taken for its inputs."""


class InputWarning(UserWarning):
    """Something in a folder of snapshots that is not used."""


@dataclass(frozen=True)
class Source:
    """One stored set of weights: an average, or the model itself (``gamma = inf``). Nothing but headers has been read.

    Units: ``t`` is the clock of the average, in applied updates or images (``unit``; "" where that is not known).
    ``step`` is what the file calls that time; other packages' clocks run a little differently.
    """

    path: Path
    t: float
    step: float
    gamma: float
    kind: str
    files: tuple[Path, ...] = ()
    unit: str = "updates"
    run: str = ""
    rounding_error: float = 0.0
    copied: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    header: Header | None = field(default=None, repr=False, compare=False)

    @property
    def sigma_rel(self) -> float | None:
        """Width of the average: 0 for the model itself; None beyond the uniform one, which peers keep unawares."""
        return sigma_rel_from_gamma(self.gamma) if self.gamma >= 0 else None

    def open(self) -> Reader:
        """A reader; the caller closes it. Raises: SnapshotError naming the file."""
        if self.kind == "snapshot":
            return FileReader(self.files, self.header)
        return open_weights(self.path, self.key)


@dataclass(frozen=True)
class InputOptions:
    """What cannot be read from the files themselves.

    Args:
        steps: applied steps of plain checkpoints, by file or folder name; a mapping, or a JSON or CSV file of one.
        subfolder: where in each checkpoint folder the weights are ("unet" for a Diffusers pipeline).
        key: where in each ``.pt`` file the weights are ("state_dict", "ema.shadow"); usual places are found without.
        sigma_rel: widths of the averages of ema-pytorch or pytorch-posthoc-ema, in the order of their file names.
        update_every: the ``update_every`` that those averages were kept with.
        run: only snapshots of this run.
    """

    steps: StepTable | None = None
    subfolder: str | None = None
    key: str | None = None
    sigma_rel: Sequence[float] | None = None
    update_every: int | None = None
    run: str | None = None


def find_sources(paths: str | Path | Sequence[str | Path], options: InputOptions | None = None) -> list[Source]:
    """Everything under the given paths that holds weights of the run, by t and width.

    A path is a folder of snapshots, a folder of checkpoints, one checkpoint (a file, or a folder with weights in it),
    or a folder that ema-pytorch or pytorch-posthoc-ema wrote.

    Raises: SnapshotError naming the file or folder that cannot be used; FileNotFoundError.
    """
    options = options or InputOptions()
    table = read_table(options.steps)
    sources: list[Source] = []
    every = [paths] if isinstance(paths, str | Path) else list(paths)
    if not every:
        raise ValueError("give at least one file or folder that holds stored weights, got none")
    for path in every:
        sources += _in_path(Path(path), options, table)
    if options.subfolder and all(source.kind == "snapshot" for source in sources):
        raise SnapshotError(
            f"{', '.join(map(str, every))}: only snapshots of ours, which have no sub-folders; leave "
            f"subfolder={options.subfolder!r} (--subfolder) out"
        )
    sources.sort(key=lambda source: (source.t, -source.gamma))
    _check_one_run(sources)
    return sources


def incomplete_snapshots(folder: Path) -> list[Path]:
    """Files of a rank whose snapshot lacks those of other ranks."""
    ranks = [path for path in sorted(folder.iterdir()) if NAME.fullmatch(path.name)]
    return [path for path in ranks if not all(part.exists() for part in shard_paths(path))]


def _in_path(path: Path, options: InputOptions, table: Mapping[str, float]) -> list[Source]:
    wait_for_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.is_file():
        if NAME.fullmatch(path.name):
            return [source_of(Snapshot.read(path))]
        return [_checkpoint(path, path, options, table)]
    if any(NAME.fullmatch(child.name) for child in path.iterdir()):
        found = [source_of(snapshot) for snapshot in list_snapshots(path)]
        if incomplete := incomplete_snapshots(path):
            listed = ", ".join(map(str, incomplete[:5]))
            warnings.warn(f"left out, files of other ranks are missing: {listed}", InputWarning, stacklevel=4)
        chosen = [source for source in found if options.run in (None, source.run)]
        if not found:
            raise SnapshotError(f"{path} holds no whole snapshot; files of other ranks are missing")
        if not chosen:
            runs = ", ".join(sorted({source.run for source in found}))
            raise SnapshotError(f"{path} has no snapshot of the run {options.run!r}; it has: {runs}")
        return chosen
    if peers := [child for child in sorted(path.iterdir()) if PEER_NAME.fullmatch(child.name)]:
        return [_peer(child, options) for child in peers]
    if whole := _weights_in(path, options):
        return [_checkpoint(path, whole, options, table)]
    checkpoints = [(child, weights) for child in sorted(path.iterdir()) if (weights := _weights_of(child, options))]
    if not checkpoints:
        raise SnapshotError(
            f"{path} is not a folder of snapshots or checkpoints: it holds no <t>-<sigma_rel>.safetensors of ours and "
            f"no weights file or checkpoint folder ({', '.join(WEIGHTS)}) with a step in its name{_advice(path)}"
        )
    return [_checkpoint(child, weights, options, table) for child, weights in checkpoints]


def _advice(path: Path) -> str:
    """What to do about weights that lie deeper, or in a form that is not read."""
    if pickled := sorted({part.parent for depth in ("", "*/", "*/*/") for part in path.glob(f"{depth}*.distcp")}):
        return (
            "; parts that torch.distributed.checkpoint pickled are not read, make safetensors of each first: "
            f"accelerate merge-weights {pickled[-1]} OUTPUT"
        )
    inner = {
        folder.name
        for child in sorted(path.iterdir())
        if child.is_dir() and not child.name.startswith(".")
        for folder in child.iterdir()
        if folder.is_dir() and _weights_in(folder, InputOptions())
    }
    if not inner:
        return ""
    return f"; say which weights of its folders are meant (subfolder=, --subfolder): {', '.join(sorted(inner))}"


def _weights_of(child: Path, options: InputOptions) -> Path | None:
    if child.name.startswith((".", OUTPUT_PREFIX)):
        return None
    if child.is_dir():
        return _weights_in(child, options)
    return child if child.suffix in WEIGHTS else None


def _weights_in(folder: Path, options: InputOptions) -> Path | None:
    """The set of weights in a checkpoint folder, under the names that Transformers, Diffusers and Accelerate use."""
    folder = folder / options.subfolder if options.subfolder else folder
    for stem in ("model", "diffusion_pytorch_model", "pytorch_model", "adapter_model", "pytorch_lora_weights"):
        for ending in (".safetensors.index.json", ".safetensors", ".bin.index.json", ".bin", ".pt"):
            if (path := folder / f"{stem}{ending}").is_file():
                return path
    return folder if rank_files(folder) else None


def _checkpoint(named: Path, weights: Path, options: InputOptions, table: Mapping[str, float]) -> Source:
    if re.search(r"-\d{5}-of-\d{5}\.", weights.name):
        raise SnapshotError(f"{weights} is one part of a checkpoint; give its folder, with the .index.json in it")
    step = step_of(named, weights, table)
    unit = "" if table else "updates"
    return Source(weights, t=float(step), step=step, gamma=RAW, kind="checkpoint", unit=unit, key=options.key)


def source_of(snapshot: Snapshot) -> Source:
    """A snapshot of ours as a source. Raises: SnapshotError if its metadata contradict each other."""
    if abs(gamma_from_sigma_rel(snapshot.sigma_rel) - snapshot.gamma) > 1e-9 * (1 + snapshot.gamma):
        raise SnapshotError(
            f"{snapshot.path}: gamma {snapshot.gamma} and sigma_rel {snapshot.sigma_rel} in the metadata do not "
            "belong together; move it away"
        )
    return Source(
        path=snapshot.path,
        t=float(snapshot.t),
        step=float(snapshot.t),
        gamma=snapshot.gamma,
        kind="snapshot",
        files=snapshot.paths or (snapshot.path,),
        unit=snapshot.unit,
        run=snapshot.run,
        rounding_error=snapshot.rounding_error,
        copied=snapshot.copied,
        tied=snapshot.tied,
        header=snapshot.header,
    )


def _peer(path: Path, options: InputOptions) -> Source:
    """What ema-pytorch, nitrous-ema or pytorch-posthoc-ema really kept, which is not what they were asked for.

    They multiply by the beta of one step at every ``k``-th step, the first included. That keeps the exponent
    ``(gamma + 1) / k - 1`` up to the last step seen, on a clock that runs ``(k + 1) / 2`` ahead of it.
    """
    match = PEER_NAME.fullmatch(path.name)
    index, step = (int(match[name]) for name in ("index", "step")) if match else (0, 0)
    if options.sigma_rel is None or options.update_every is None or index >= len(options.sigma_rel):
        raise SnapshotError(
            f"{path} is a snapshot of ema-pytorch or pytorch-posthoc-ema; these do not say what they hold. Give the "
            f"widths (`sigma_rel`, one for each of 0..{index}) and the `update_every` that they were kept with"
        )
    every = options.update_every
    if every < 1:
        raise ValueError(f"`update_every` must be 1 or more, got {every}")
    counted = TorchReader(path).counter or step  # leaves out the steps before the average began
    last_seen = (counted - 1) // every * every + 1
    gamma = (gamma_from_sigma_rel(options.sigma_rel[index]) + 1) / every - 1
    return Source(path, t=last_seen + (every + 1) / 2, step=step, gamma=gamma, kind="average")


def _check_one_run(sources: Sequence[Source]) -> None:
    first: dict[str, Source] = {}
    for source in sources:
        if source.kind == "snapshot":
            first.setdefault(source.run, source)
    if len(first) > 1:
        listed = ", ".join(f"{run!r} ({source.path})" for run, source in first.items())
        raise SnapshotError(
            f"all snapshots must be of one run, found {listed}; say which run "
            "(--run RUN, InputOptions(run=...)), or move the others away"
        )
    units = {source.unit: source for source in sources if source.unit}
    if len(units) > 1:
        listed = ", ".join(f"{unit} ({source.path})" for unit, source in units.items())
        raise SnapshotError(
            f"all inputs must count the same thing, found {listed}; give checkpoints a table of images"
        )
