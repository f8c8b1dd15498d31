"""Cost of keeping averages and of writing snapshots, beside other packages: same work, one run, interleaved, medians.

    python -m benchmarks.ema [--model unet --model gpt] [--rounds 21] [--threads 1 --threads 2] [--json FILE]
    python -m benchmarks.ema --part snapshots

Every step each package takes the same model into its averages, in turn, over and over; the medians are compared with
a floor, flat tensors of the same size through `lerp_` (two reads and a write an average). Packages that are not
installed are left out: ema-pytorch, pytorch-posthoc-ema, nitrous-ema, timm, torch-ema, diffusers. Of timm only the
file of the average is loaded, since the package needs torchvision for other things.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate_ext.ema import PostHocEMA
from accelerate_ext.staging import flush_folder

from .ema_packages import UPDATES, WIDTHS, Step, optional


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


def interleaved(
    steps: dict[str, Step], rounds: int, prepare: Step = lambda: None, rests: Mapping[str, tuple[str, Step]] = {}
) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round; `prepare` goes before each, not timed.

    Some leave a rest to be done, which has a name; the time of it is that of the step and the rest.
    """
    times: dict[str, list[float]] = {name: [] for name in [*steps, *(name for name, _ in rests.values())]}
    for number in range(rounds + 2):
        for name, step in steps.items():
            prepare()
            start = time.perf_counter()
            step()
            taken = {name: time.perf_counter() - start}
            if name in rests:
                rest_name, rest = rests[name]
                rest()
                taken[rest_name] = time.perf_counter() - start
            for each, seconds in taken.items() if number >= 2 else ():
                times[each].append(1000 * seconds)
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
    return {"ms": medians, "times": {name: ms / medians["floor"] for name, ms in medians.items()}}


def measure_memory(model: nn.Module) -> dict[str, float]:
    """MB that the first update adds, with a step on the host and on the device; in a new process with all it loads."""
    ema = PostHocEMA(model, WIDTHS)
    return {
        "an int": peak_above(lambda: ema.update(1)),
        "a tensor": peak_above(lambda: ema.update(torch.tensor(2))),
    }


def snapshot_writers(ema: PostHocEMA, model: nn.Module, folder: Path) -> Iterator[tuple[str, Step]]:
    """Each writes two averages in float32 into the folder, which is empty before."""
    yield "accelerate_ext", lambda: ema.snapshot(folder)
    yield "accelerate_ext, wait=False", lambda: ema.snapshot(folder, wait=False)
    averages = [{name: average.clone() for name, average in ema.averages(width).items()} for width in WIDTHS]
    whole = [torch.cat([average.view(-1) for average in named.values()]).numpy().data for named in averages]

    def write_bytes(index: int) -> None:
        with (folder / str(index)).open("wb", buffering=0) as file:
            file.write(whole[index])
            os.fsync(file.fileno())

    def write_at_once() -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(write_bytes, range(len(whole))))

    def save(ending: str = "safetensors") -> None:
        for index, average in enumerate(averages):
            save_file(average, folder / f"{index}.{ending}")

    def save_for_good() -> None:
        save("tmp")
        for index in range(len(averages)):
            with (folder / f"{index}.tmp").open("rb") as file:
                os.fsync(file.fileno())
            (folder / f"{index}.tmp").rename(folder / f"{index}.safetensors")
        flush_folder(folder)

    yield "the bytes alone, and fsync, two threads", write_at_once
    yield "safetensors save_file", save
    yield "save_file, fsync, rename: as safe as ours", save_for_good
    for name, module in (("ema-pytorch", "ema_pytorch"), ("nitrous-ema", "nitrous_ema")):
        if package := optional(module):
            settings = {"checkpoint_folder": str(folder), "checkpoint_dtype": torch.float32}
            kept = package.PostHocEMA(model, sigma_rels=WIDTHS, **settings)
            yield name, kept.checkpoint
    if package := optional("posthoc_ema"):
        settings = {"sigma_rels": WIDTHS, "checkpoint_dtype": torch.float32}
        yield "pytorch-posthoc-ema", package.PostHocEMA.from_model(model, str(folder), **settings)._create_checkpoint


def measure_snapshots(model: nn.Module, rounds: int) -> dict[str, Any]:
    ema = PostHocEMA(model, WIDTHS)
    ema.update(1)
    rests = {"accelerate_ext, wait=False": ("accelerate_ext, wait=False, until on the disk", ema.wait_for_snapshots)}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:

        def clear() -> None:
            for path in Path(name).iterdir():
                path.unlink()
            os.sync()  # nobody pays for what another has left to the system

        writers = dict(snapshot_writers(ema, model, Path(name)))
        medians = interleaved(writers, rounds, clear, rests)
        clear()
        memory = peak_above(writers["accelerate_ext"])
    base = medians["safetensors save_file"]
    return {"ms": medians, "times": {name: ms / base for name, ms in medians.items()}, "peak_mb": memory}


def show(title: str, result: dict[str, Any]) -> None:
    click.echo(f"\n{title}")
    for name, ms in sorted(result["ms"].items(), key=lambda item: item[1]):
        click.echo(f"  {name:45} {ms:9.1f} ms  {result['times'][name]:5.2f} x")


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), default=list(MODELS))
@click.option(
    "--rounds", default=21, show_default=True, help="Interleaved rounds of updates; a third of it of writes."
)
@click.option(
    "--threads", multiple=True, type=int, default=(1, 2), show_default=True, help="Of torch; each is measured."
)
@click.option(
    "--part", "parts", multiple=True, type=click.Choice(["updates", "snapshots"]), default=["updates", "snapshots"]
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(
    models: tuple[str, ...], rounds: int, threads: tuple[int, ...], parts: tuple[str, ...], json_path: Path | None
) -> None:
    """Measure updates of one and two averages, and snapshots of two, on each model."""
    results: dict[str, Any] = {}
    for name in models:
        torch.manual_seed(0)
        model = MODELS[name]()
        num_tensors, num_elements = len(list(model.parameters())), sum(p.numel() for p in model.parameters())
        results[name] = {"tensors": num_tensors, "elements": num_elements, "memory": measure_memory(model)}
        click.echo(f"\n{name}: {num_tensors} tensors, {num_elements / 1e6:.1f} M parameters")
        click.echo(f"MB that an update adds, by what its step is: {results[name]['memory']}")
        for num_threads, num in itertools.product(threads, (1, 2)) if "updates" in parts else ():
            torch.set_num_threads(num_threads)
            results[name][f"update {num_threads} {num}"] = measured = measure_updates(model, num, rounds)
            show(f"update of {num}, threads: {num_threads}, in times of the floor", measured)
            gc.collect()
        if "snapshots" in parts:
            torch.set_num_threads(threads[-1])
            results[name]["snapshot"] = measured = measure_snapshots(model, max(5, rounds // 3))
            show("snapshot of two averages, float32, in times of save_file", measured)
            click.echo(f"MB that it adds: {measured['peak_mb']:.1f}")
        del model
        if json_path is not None:
            json_path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
