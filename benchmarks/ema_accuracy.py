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
import importlib.util
import itertools
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate_ext.ema import profile, reconstruct
from accelerate_ext.ema.fit import fit

TARGETS = (0.02, 0.05, 0.075, 0.10, 0.15, 0.20, 0.25)
COUNTS = (8, 16, 32, 64)
KEPT = ((0.05, 0.10), (0.05,), (0.10,))
MOST_ELEMENTS = 2048


@dataclass
class Trajectory:
    """Weights at every step. Shapes: values (T, elements), float32; row 0 is step 1."""

    name: str
    values: np.ndarray

    def average(self, t: int, width: float) -> np.ndarray:
        weights = profile.step_weights(t, profile.gamma_from_sigma_rel(width))
        return weights @ self.values[:t]

    def error(self, got: np.ndarray, width: float) -> float:
        wanted = self.average(len(self.values), width)
        return float(np.linalg.norm(got - wanted) / np.linalg.norm(self.values[-1] - wanted))


# Trajectories.


def random_walk(steps: int) -> Trajectory:
    generator = np.random.default_rng(0)
    start = generator.standard_normal(MOST_ELEMENTS) * 0.1
    walk = start + generator.standard_normal((steps, MOST_ELEMENTS)).cumsum(axis=0) * 1e-3
    return Trajectory("random walk", walk.astype(np.float32))


def noisy_descent(steps: int) -> Trajectory:
    """Descent on a quadratic with curvatures over four decades, gradient noise, and a falling rate."""
    generator = np.random.default_rng(1)
    curvature = np.geomspace(1e-3, 10, MOST_ELEMENTS)
    x, values = generator.standard_normal(MOST_ELEMENTS), np.empty((steps, MOST_ELEMENTS), np.float32)
    for t in range(steps):
        rate = 0.05 / math.sqrt(1 + t / 100)
        x = x - rate * (curvature * x + generator.standard_normal(MOST_ELEMENTS) * np.sqrt(curvature))
        values[t] = x
    return Trajectory("SGD-like", values)


def record(name: str, model: nn.Module, updates: Iterator[None], steps: int) -> Trajectory:
    """Follows a run; of a larger model, a fixed random part of the elements."""
    size = sum(p.numel() for p in model.parameters())
    picked = torch.randperm(size, generator=torch.Generator().manual_seed(0))[:MOST_ELEMENTS].sort().values
    values = np.empty((steps, len(picked)), np.float32)
    for t in range(steps):
        next(updates)
        values[t] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])[picked].numpy()
    return Trajectory(name, values)


def denoiser(steps: int) -> Trajectory:
    """A small diffusion model of points on two rings; Adam, constant rate."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def updates() -> Iterator[None]:
        while True:
            angle = torch.rand(128, 1) * 2 * math.pi
            radius = torch.where(torch.rand(128, 1) < 0.5, 1.0, 2.0)
            noise, level = torch.randn(128, 2), torch.rand(128, 1)
            seen = torch.cat([radius * angle.cos(), radius * angle.sin()], 1) * (1 - level) + noise * level
            loss = (model(torch.cat([seen, level], 1)) - noise).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield

    return record("denoiser, Adam, constant rate", model, updates(), steps)


def language_model(steps: int) -> Trajectory:
    """A small transformer on text of a random grammar; AdamW, warm-up and a rate that falls as 1 / sqrt(t)."""
    torch.manual_seed(1)
    table = torch.softmax(torch.randn(24, 24, 24) * 2, -1)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    embed, head = nn.Embedding(24, 32), nn.Linear(32, 24)
    model = nn.ModuleList([embed, layer, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(16)

    def updates() -> Iterator[None]:
        for t in itertools.count(1):
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * min(t / 100, math.sqrt(1000 / max(t, 1000)))
            text = [torch.randint(24, (32,)), torch.randint(24, (32,))]
            for _ in range(15):
                text.append(torch.multinomial(table[text[-2], text[-1]], 1).squeeze(1))
            tokens = torch.stack(text, 1)
            logits = head(layer(embed(tokens[:, :-1]), src_mask=mask))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield

    return record("transformer, AdamW, falling rate", model, updates(), steps)


TRAJECTORIES: tuple[Callable[[int], Trajectory], ...] = (random_walk, noisy_descent, denoiser, language_model)


# This package.


def stored(folder: Path, path: Trajectory, count: int, kept: Sequence[float]) -> Path:
    """Snapshots of averages, or with no widths, plain checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    total = len(path.values)
    for t in (total * index // count for index in range(1, count + 1)):
        if not kept:
            save_file({"w": torch.from_numpy(path.values[t - 1].copy())}, folder / f"step{t}.safetensors")
        for width in kept:
            metadata = {
                "format": "pt",
                "snapshot_format": "accelerate_ext.ema/1",
                "t": str(t),
                "unit": "updates",
                "step": str(t),
                "sigma_rel": repr(width),
                "gamma": repr(profile.gamma_from_sigma_rel(width)),
                "run": "benchmark",
                "parameter_set": "benchmark",
                "dtype": "float32",
                "rounding_error": "0",
                "copied": "[]",
                "tied": "{}",
            }
            tensors = {"w": torch.from_numpy(path.average(t, width)).float()}
            save_file(tensors, folder / f"{t:012d}-{width:.6f}.safetensors", metadata=metadata)
    return folder


def ours(path: Trajectory, folder: Path, kind: str) -> tuple[list[float], list[float]]:
    """Measured and expected error of each target."""
    got = reconstruct(folder, TARGETS, fit=kind, force=True)  # type: ignore[arg-type]
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


# Other packages, as they are used: a model, an update a step, their own files and their own synthesis.


def other_packages() -> dict[str, Callable[[Trajectory, Path, Sequence[int]], dict[int, list[float]]]]:
    found: dict[str, Callable[[Trajectory, Path, Sequence[int]], dict[int, list[float]]]] = {}
    if importlib.util.find_spec("ema_pytorch"):
        found["ema-pytorch, every step, float32"] = lambda p, d, c: ema_pytorch(p, d, c, 1, torch.float32)
        found["ema-pytorch, as it comes"] = lambda p, d, c: ema_pytorch(p, d, c, 100, torch.float16)
    if importlib.util.find_spec("posthoc_ema"):
        found["pytorch-posthoc-ema, every step"] = lambda p, d, c: posthoc(
            p, d, c, {"update_every": 1, "update_after_step": 0}
        )
        found["pytorch-posthoc-ema, as it comes"] = lambda p, d, c: posthoc(p, d, c, {})
    return found


class Follower(nn.Module):
    """A model whose weights are set from outside."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(values.copy()))

    def go_to(self, values: np.ndarray) -> None:
        self.w.data.copy_(torch.from_numpy(values))


def subsets(folder: Path, counts: Sequence[int], steps: int) -> Iterator[tuple[int, Path]]:
    """The package's files, with only every so many of them left."""
    for count in counts:
        part = folder.with_name(f"{folder.name}-{count}")
        part.mkdir()
        for file in folder.glob("*.pt"):
            if int(file.stem.split(".")[1]) % (steps // count) == 0:
                shutil.copy(file, part / file.name)
        yield count, part


def ema_pytorch(
    path: Trajectory, folder: Path, counts: Sequence[int], every: int, dtype: torch.dtype
) -> dict[int, list[float]]:
    from ema_pytorch import PostHocEMA

    model, steps = Follower(path.values[0]), len(path.values)
    common = {"sigma_rels": (0.05, 0.10), "update_every": every, "checkpoint_dtype": dtype}
    kept = PostHocEMA(model, checkpoint_every_num_steps=steps // max(counts), checkpoint_folder=str(folder), **common)
    for values in path.values:
        model.go_to(values)
        kept.update()
    errors = {}
    for count, part in subsets(folder, counts, steps):
        reader = PostHocEMA(model, checkpoint_folder=str(part), **common)
        built = [reader.synthesize_ema_model(sigma_rel=width).ema_model.w for width in TARGETS]
        errors[count] = [path.error(w.detach().double().numpy(), s) for w, s in zip(built, TARGETS, strict=True)]
    return errors


def posthoc(path: Trajectory, folder: Path, counts: Sequence[int], options: dict) -> dict[int, list[float]]:
    from posthoc_ema import PostHocEMA

    model, steps = Follower(path.values[0]), len(path.values)
    common = {"sigma_rels": (0.05, 0.10), "max_checkpoints": 10_000}
    every = steps // max(counts)
    kept = PostHocEMA.from_model(model, checkpoint_dir=folder, checkpoint_every=every, **common, **options)
    for values in path.values:
        model.go_to(values)
        kept.update_(model)
    errors: dict[int, list[float]] = {}
    for count, part in subsets(folder, counts, steps):
        reader = PostHocEMA.from_path(part, model, **common)
        errors[count] = []
        for width in TARGETS:
            with reader.state_dict(sigma_rel=width) as state:
                errors[count].append(path.error(state["w"].double().numpy(), width))
    return errors


# Tables.


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
