"""Cost of keeping averages and of writing snapshots, beside other packages: same work, one run, interleaved, medians.

    python benchmarks/ema.py [--model unet --model gpt] [--rounds 21] [--threads 2] [--json FILE]

Every step each package takes the same model into its averages, in turn, over and over; the medians are compared with
a floor, flat tensors of the same size through `lerp_` (two reads and a write an average). Packages that are not
installed are left out: ema-pytorch, pytorch-posthoc-ema, nitrous-ema, timm, torch-ema, diffusers. Of timm only the
file of the average is loaded, since the package needs torchvision for other things.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, str(Path(__file__).parent.parent))
from accelerate_ext.ema import EMA, PostHocEMA

WIDTHS = (0.05, 0.10)
DECAYS = (0.999, 0.9999)
Step = Callable[[], Any]


class Block(nn.Module):
    """A residual block and an attention of a UNet: 20 tensors."""

    def __init__(self, size: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, size) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(size, size, 3) for _ in range(2))
        self.time = nn.Linear(256, size)
        self.attention = nn.ModuleList(nn.Linear(size, size) for _ in range(4))


def unet() -> nn.Module:
    """664 tensors, 22 M parameters."""
    blocks = [Block(size) for size in (64, 128, 256) for _ in range(11)]
    return nn.Sequential(nn.Conv2d(3, 64, 3), *blocks, nn.Conv2d(64, 3, 3))


def gpt() -> nn.Module:
    """148 tensors, 101 M parameters."""
    size = 680
    layers = [
        nn.ModuleList([nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size), nn.LayerNorm(size),
                       nn.Linear(size, 4 * size), nn.Linear(4 * size, size)])
        for _ in range(12)
    ]  # fmt: skip
    return nn.ModuleList([nn.Embedding(50257, size), nn.Embedding(1024, size), *layers, nn.LayerNorm(size)])


MODELS = {"unet": unet, "gpt": gpt}


def optional(name: str, file: str | None = None) -> ModuleType | None:
    """A package if it is installed, or one file of it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if file is None:
        return importlib.import_module(name)
    origin = Path(spec.origin or "").parent / file
    alone = importlib.util.spec_from_file_location(f"{name}_{origin.stem}", origin)
    if alone is None or alone.loader is None:
        return None
    module = importlib.util.module_from_spec(alone)
    alone.loader.exec_module(module)
    return module


def ours(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    ema, counter = PostHocEMA(model, WIDTHS[:num]), iter(range(1, 10**9))
    yield "accelerate_ext PostHocEMA", lambda: ema.update(next(counter))
    if num == 1:
        constant, other = EMA(model, decay=DECAYS[0]), iter(range(1, 10**9))
        yield "accelerate_ext EMA", lambda: constant.update(next(other))


def floor(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    size = sum(parameter.numel() for parameter in model.parameters())
    source, averages = torch.randn(size), [torch.randn(size) for _ in range(num)]

    def step() -> None:
        for average in averages:
            average.lerp_(source, 0.01)

    yield "floor", step


def foreach(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    parameters = [parameter.detach() for parameter in model.parameters()]
    averages = [[parameter.clone() for parameter in parameters] for _ in range(num)]

    def step() -> None:
        for average in averages:
            torch._foreach_lerp_(average, parameters, 0.01)

    yield "torch._foreach_lerp_", step


def averaged_model(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    held = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) for decay in DECAYS[:num]]
    yield "torch AveragedModel", lambda: [average.update_parameters(model) for average in held]


def timm(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if package := optional("timm", "utils/model_ema.py"):
        held = [package.ModelEmaV3(model, decay=decay) for decay in DECAYS[:num]]
        yield "timm ModelEmaV3", lambda: [average.update(model) for average in held]


def torch_ema(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if package := optional("torch_ema"):
        held = [package.ExponentialMovingAverage(list(model.parameters()), decay) for decay in DECAYS[:num]]
        yield "torch-ema", lambda: [average.update() for average in held]


def diffusers(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if optional("diffusers"):
        training = importlib.import_module("diffusers.training_utils")
        for is_foreach in (False, True):
            held = [training.EMAModel(model.parameters(), decay=decay, foreach=is_foreach) for decay in DECAYS[:num]]
            name = "diffusers EMAModel" + (", foreach" if is_foreach else "")
            yield name, lambda held=held: [average.step(model.parameters()) for average in held]


def ema_pytorch(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if package := optional("ema_pytorch"):
        held = [package.KarrasEMA(model, sigma_rel=width, update_every=1) for width in WIDTHS[:num]]
        yield "ema-pytorch", lambda: [average.update() for average in held]


def pytorch_posthoc_ema(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if optional("posthoc_ema"):
        karras = importlib.import_module("posthoc_ema.karras_ema")
        held = [karras.KarrasEMA(model, sigma_rel=width, update_every=1) for width in WIDTHS[:num]]
        yield "pytorch-posthoc-ema", lambda: [average.update() for average in held]


def nitrous_ema(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if optional("nitrous_ema"):
        module = importlib.import_module("nitrous_ema.ema")
        held = [module.KarrasEMA(model, sigma_rel=width, update_every=1) for width in WIDTHS[:num]]
        yield "nitrous-ema", lambda: [average.update() for average in held]


UPDATES = (
    floor,
    ours,
    foreach,
    averaged_model,
    timm,
    torch_ema,
    diffusers,
    ema_pytorch,
    pytorch_posthoc_ema,
    nitrous_ema,
)


def interleaved(steps: dict[str, Step], rounds: int, prepare: Step = lambda: None) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round; `prepare` goes before each, not timed."""
    for step in [*steps.values(), *steps.values()]:
        prepare()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            prepare()
            start = time.perf_counter()
            step()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_above(action: Step) -> float:
    """MB that an action adds to the memory of the process at its peak. Linux only."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    action()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


def measure_updates(model: nn.Module, num: int, rounds: int) -> dict[str, Any]:
    steps = {name: step for make in UPDATES for name, step in make(model, num)}
    medians = interleaved(steps, rounds)
    memory = peak_above(steps["accelerate_ext PostHocEMA"])
    return {"ms": medians, "times_floor": {n: ms / medians["floor"] for n, ms in medians.items()}, "peak_mb": memory}


def snapshot_writers(model: nn.Module, folder: Path) -> Iterator[tuple[str, Step]]:
    """Each writes two averages in float32 into the folder, which is empty before."""
    ema = PostHocEMA(model, WIDTHS)
    ema.update(1)
    yield "accelerate_ext", lambda: ema.snapshot(folder)
    averages = [{name: average.clone() for name, average in ema.averages(width).items()} for width in WIDTHS]

    def save() -> None:
        for index, average in enumerate(averages):
            save_file(average, folder / f"{index}.safetensors")

    def save_for_good() -> None:
        save()
        for index in range(len(averages)):
            with (folder / f"{index}.safetensors").open("rb") as file:
                os.fsync(file.fileno())

    yield "safetensors save_file", save
    yield "save_file and fsync, as ours", save_for_good
    for name, module in (("ema-pytorch", "ema_pytorch"), ("nitrous-ema", "nitrous_ema")):
        if package := optional(module):
            settings = {"checkpoint_folder": str(folder), "checkpoint_dtype": torch.float32}
            kept = package.PostHocEMA(model, sigma_rels=WIDTHS, **settings)
            yield name, kept.checkpoint
    if package := optional("posthoc_ema"):
        settings = {"sigma_rels": WIDTHS, "checkpoint_dtype": torch.float32}
        yield "pytorch-posthoc-ema", package.PostHocEMA.from_model(model, str(folder), **settings)._create_checkpoint


def measure_snapshots(model: nn.Module, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:

        def clear() -> None:
            for path in Path(name).iterdir():
                path.unlink()

        writers = dict(snapshot_writers(model, Path(name)))
        medians = interleaved(writers, rounds, clear)
        clear()
        memory = peak_above(writers["accelerate_ext"])
    base = medians["safetensors save_file"]
    return {"ms": medians, "times_save_file": {n: ms / base for n, ms in medians.items()}, "peak_mb": memory}


def show(title: str, result: dict[str, Any], ratio: str) -> None:
    click.echo(f"\n{title}")
    for name, ms in sorted(result["ms"].items(), key=lambda item: item[1]):
        click.echo(f"  {name:28} {ms:9.1f} ms  {result[ratio][name]:5.2f} x")
    click.echo(f"  memory at the peak above the start (accelerate_ext): {result['peak_mb']:.1f} MB")


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), default=list(MODELS))
@click.option(
    "--rounds", default=21, show_default=True, help="Interleaved rounds of updates; a third of it of writes."
)
@click.option("--threads", default=0, help="Threads of torch; its own default unless given.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(models: tuple[str, ...], rounds: int, threads: int, json_path: Path | None) -> None:
    """Measure updates of one and two averages, and snapshots of two, on each model."""
    if threads:
        torch.set_num_threads(threads)
    results: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    for name in models:
        torch.manual_seed(0)
        model = MODELS[name]()
        parameters = list(model.parameters())
        size = f"{len(parameters)} tensors, {sum(p.numel() for p in parameters) / 1e6:.1f} M parameters"
        for num in (1, 2):
            results[f"{name} {num}"] = measured = measure_updates(model, num, rounds)
            show(
                f"{name} ({size}): update, {num} average{'s'[: num - 1]}, in times of the floor",
                measured,
                "times_floor",
            )
            gc.collect()
        results[f"{name} snapshot"] = measured = measure_snapshots(model, max(5, rounds // 3))
        show(f"{name} ({size}): snapshot of two averages, float32, in times of save_file", measured, "times_save_file")
        del model, parameters
    if json_path is not None:
        json_path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
