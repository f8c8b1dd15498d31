"""How close reconstructed averages come to the ones that were not kept, beside other packages.

    python -m benchmarks.ema_accuracy [--output docs/ema-accuracy.md] [--steps 8192] [--quick]

Every trajectory is known at every step, so that the average that training would have kept is known too. An error is
the distance from it over the distance between it and the weights of the model at the end. Snapshots are files in
float32, evenly spaced, and go through the same code as those of a user. Rows of ema-pytorch and pytorch-posthoc-ema
appear where these packages are installed; they follow the same trajectory step by step, with their own files.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from accelerate_ext.ema import profile, reconstruct
from accelerate_ext.ema.fit import Kind, fit

from .accuracy_packages import other_packages
from .snapshot_files import save_snapshot
from .trajectories import TARGETS, TRAJECTORIES, Trajectory, noisy_descent, random_walk

COUNTS = (8, 16, 32, 64)
KEPT = ((0.05, 0.10), (0.05,), (0.10,))


def stored(folder: Path, path: Trajectory, count: int, kept: Sequence[float]) -> Path:
    """Snapshots of averages, or with no widths, plain checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    total = len(path.values)
    for t in (total * index // count for index in range(1, count + 1)):
        if not kept:
            save_file({"w": torch.from_numpy(path.values[t - 1].copy())}, folder / f"step{t}.safetensors")
        for width in kept:
            save_snapshot(folder, t, width, {"w": torch.from_numpy(path.average(t, width)).float()})
    return folder


def ours(path: Trajectory, folder: Path, kind: Kind) -> tuple[list[float], list[float]]:
    """Measured and expected error of each target."""
    got = reconstruct(folder, TARGETS, fit=kind, force=True)
    measured = [path.error(t["w"].double().numpy(), width) for t, width in zip(got.tensors, TARGETS, strict=True)]
    return measured, list(got.predicted_error)


def sum_to_one(path: Trajectory, count: int, kept: Sequence[float]) -> list[float]:
    """Errors of the profile fit with the constraint that the paper does without, to tell what the walk alone gains."""
    total = len(path.values)
    pairs = [(total * index // count, width) for index in range(1, count + 1) for width in kept]
    gammas = [profile.gamma_from_sigma_rel(width) for _, width in pairs]
    wanted = [profile.gamma_from_sigma_rel(width) for width in TARGETS]
    weights = fit([t for t, _ in pairs], gammas, total, wanted, "profile", sum_to_one=True).weights
    averages = np.stack([path.average(t, width) for t, width in pairs])
    return [path.error(weights[:, i] @ averages, width) for i, width in enumerate(TARGETS)]


def number(value: float) -> str:
    return "0" if value < 1e-6 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")


def rows_of(path: Trajectory, counts: Sequence[int], work: Path, ratios: dict[str, list[float]]) -> Iterator[str]:
    """A row for each way of storing and fitting, and each number of snapshots."""
    for kept, count in itertools.product((*KEPT, ()), counts):
        folder = stored(work / "ours", path, count, kept)
        what = " and ".join(f"{width:.2f}" for width in kept) or "plain checkpoints"
        walk, expected = ours(path, folder, "walk")
        yield row(f"this package, {what}", count, walk)
        key = f"{len(kept)} stored" if kept else "checkpoints"
        pairs = [(w, p) for w, p in zip(walk, expected, strict=True) if p > 1e-5]
        ratios.setdefault(f"measured over expected error, {key}", []).extend(w / p for w, p in pairs)
        if kept:
            flat, _ = ours(path, folder, "profile")
            yield row(f"the same, fit=profile (the paper's), {what}", count, flat)
            for name, errors in (("profile", flat), ("profile, sum 1,", sum_to_one(path, count, kept))):
                gains = [e / w for e, w, p in zip(errors, walk, expected, strict=True) if p > 1e-5]
                ratios.setdefault(f"{name} over walk, {key}", []).extend(gains)
                if len(kept) == 1 and count >= 16:
                    ratios.setdefault(f"{name} over walk, {key}, 16 snapshots and more", []).extend(gains)
    for name, run in other_packages().items():
        folder = work / "other"
        with contextlib.redirect_stdout(None):
            theirs = run(path, folder, counts)
        yield from (row(f"{name}, 0.05 and 0.10", count, theirs[count]) for count in counts)
        for each in work.glob("other*"):
            shutil.rmtree(each)


def row(name: str, count: int, errors: Sequence[float]) -> str:
    return f"| {name} | {count} | " + " | ".join(number(error) for error in errors) + " |"


def document(steps: int, counts: Sequence[int], trajectories: Sequence[Callable[[int], Trajectory]]) -> str:
    text = [
        "<!-- Written by `python -m benchmarks.ema_accuracy --output docs/ema-accuracy.md`; do not edit. -->",
        "# Accuracy of reconstructed averages",
        f"Runs of {steps:,} updates, snapshots evenly spaced and in float32. An entry is the distance from the\n"
        "average that was not kept, over the distance between that average and the weights of the model. Rows name\n"
        "the stored widths, columns the wanted ones.",
    ]
    ratios: dict[str, list[float]] = {}
    for make in trajectories:
        path, own = make(steps), dict[str, list[float]]()
        with tempfile.TemporaryDirectory() as work:
            head = "| stored, fit | snapshots | " + " | ".join(f"{width:g}" for width in TARGETS) + " |"
            lines = list(rows_of(path, counts, Path(work), own))
        text.append(
            f"## {path.name[0].upper()}{path.name[1:]}\n\n{head}\n|---|---|{'---|' * len(TARGETS)}\n"
            + "\n".join(lines)
        )
        lines = [f"- {name}: {summary(values)}" for name, values in own.items()]
        text.append("\n".join(lines))
        if make not in (random_walk, noisy_descent):
            for name, values in own.items():
                ratios.setdefault(name, []).extend(values)
    if ratios:
        text.append(
            "## Both small training runs together\n\n" + "\n".join(f"- {n}: {summary(v)}" for n, v in ratios.items())
        )
    return "\n\n".join(text) + "\n"


def summary(values: Sequence[float]) -> str:
    mean = math.exp(sum(math.log(value) for value in values) / len(values))
    return f"geometric mean {mean:.2f}, smallest {min(values):.2f}, largest {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--steps", type=int, default=8192)
    parser.add_argument("--quick", action="store_true", help="the random walk alone, 8 and 16 snapshots")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts, trajectories = ((8, 16), TRAJECTORIES[:1]) if chosen.quick else (COUNTS, TRAJECTORIES)
    text = document(chosen.steps, counts, trajectories)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
