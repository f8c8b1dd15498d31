"""Time and memory of building averages from snapshots, beside other packages, in one interleaved run.

    python -m benchmarks.ema_reconstruct [--elements 22_000_000] [--snapshots 32] [--rounds 3] [--scaling] [--json X]

Needs ema-pytorch, pytorch-posthoc-ema and nitrous-ema for their rows; those that are not installed are left out. Every
measurement runs in a process of its own: the time is that of the call, the memory what it adds at its peak. All files
are on disk before the first one.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelerate_ext.ema import reconstruct

from .snapshot_files import save_snapshot

WIDTHS = (0.05, 0.10)
SEVEN = (0.03, 0.06, 0.075, 0.13, 0.15, 0.20, 0.25)
SCALING = ((8, 1), (16, 1), (32, 1), (64, 1), (8, 1 / 16), (8, 1 / 4), (8, 4))
"""Numbers of snapshots, and sizes in parts of the one given."""
DISTINCT = 4  # other packages' files are links to these: less to keep in the page cache, which favours them
PACKAGES = {"ema-pytorch": "ema_pytorch", "pytorch-posthoc-ema": "posthoc_ema", "nitrous-ema": "nitrous_ema"}


class Model(nn.Module):
    """Weights and biases like those of a UNet: 664 tensors, from 64 elements to some hundred thousand."""

    def __init__(self, elements: int, tensors: int = 664):
        super().__init__()
        each = [(1, 64), (8, 576), (2, 128), (16, 1152)]
        shapes = list(itertools.islice(itertools.cycle(each), tensors))
        scale = elements / sum(a * b for a, b in shapes)
        self.layers = nn.ParameterList(torch.zeros(max(1, round(a * scale)), b) for a, b in shapes)


def write_ours(folder: Path, model: Model, count: int) -> None:
    folder.mkdir()
    noise = {name: torch.randn(p.shape) * 0.01 for name, p in model.named_parameters()}
    for index, width in itertools.product(range(1, count + 1), WIDTHS):
        t = 1000 * index
        tensors = {name: values * index + index * width for name, values in noise.items()}
        save_snapshot(folder, t, width, tensors)


def write_theirs(folder: Path, package: str, model: Model, count: int) -> None:
    """Files as the package itself writes them, in float32."""
    folder.mkdir()
    prefix = "" if package == "pytorch-posthoc-ema" else "ema_model."
    for index in range(1, count + 1):
        for which in range(len(WIDTHS)):
            path = folder / f"{which}.{1000 * index}.pt"
            if index > DISTINCT:
                os.link(folder / f"{which}.{1000 * ((index - 1) % DISTINCT + 1)}.pt", path)
                continue
            state: dict[str, object] = {prefix + name: torch.randn(p.shape) for name, p in model.named_parameters()}
            if package == "nitrous-ema":
                state["_extra_state"] = {"initted": True, "step": 1000 * index}
            else:
                state |= {"initted": torch.tensor(True), "step": torch.tensor(1000 * index)}
            torch.save(state, path)


def ours(folder: Path, model: Model, wanted: tuple[float, ...], output: Path | None = None) -> None:
    reconstruct(folder, wanted, output=output, force=True, overwrite=True)


def ema_pytorch(folder: Path, model: Model, width: float) -> None:
    from ema_pytorch import PostHocEMA

    kept = PostHocEMA(model, sigma_rels=WIDTHS, checkpoint_folder=str(folder), checkpoint_dtype=torch.float32)
    kept.synthesize_ema_model(sigma_rel=width, step=None)


def posthoc(folder: Path, model: Model, width: float) -> None:
    from posthoc_ema import PostHocEMA

    kept = PostHocEMA.from_path(folder, model, sigma_rels=WIDTHS)
    with kept.state_dict(sigma_rel=width):
        pass


def nitrous(folder: Path, model: Model, width: float) -> None:
    from nitrous_ema import PostHocEMA

    kept = PostHocEMA(model, sigma_rels=WIDTHS, checkpoint_folder=str(folder))
    kept.synthesize_ema_model(sigma_rel=width, device="cpu")


def contestants(work: Path) -> dict[str, tuple[str, Callable[[Path, Model], None]]]:
    """Folder and call of each row. The same work is one wanted average, in memory, from all snapshots."""
    rows: dict[str, tuple[str, Callable[[Path, Model], None]]] = {
        "this package": ("ours", lambda folder, model: ours(folder, model, (0.15,))),
        "this package, 7 averages": ("ours", lambda folder, model: ours(folder, model, SEVEN)),
        "this package, into a file": (
            "ours",
            lambda folder, model: ours(folder, model, (0.15,), work / "out.safetensors"),
        ),
    }
    calls = {"ema-pytorch": ema_pytorch, "pytorch-posthoc-ema": posthoc, "nitrous-ema": nitrous}
    for package, module in PACKAGES.items():
        if importlib.util.find_spec(module):
            rows[package] = (package, functools.partial(calls[package], width=0.15))
    return rows


def measure(name: str, work: Path, elements: int) -> dict[str, float]:
    """Runs one row in this process. Memory is the resident size at its peak, above that before the call."""
    folder, call = contestants(work)[name]
    model = Model(elements)
    torch.zeros(1000, 1000) @ torch.zeros(1000, 1000)  # loads what every row needs
    start, peak, stop = resident(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.002):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    call(work / folder, model)
    took = time.perf_counter() - began
    stop.set()
    watcher.join()
    return {"seconds": took, "megabytes": (max(peak[0], resident()) - start) / 1e6}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_own_process(name: str, work: Path, elements: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.ema_reconstruct",
        "--row",
        name,
        "--work",
        str(work),
        "--elements",
        str(elements),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    if ran.returncode:
        raise SystemExit(f"{name} failed:\n{ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def run(elements: int, snapshots: int, rounds: int, only: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Medians of each row over interleaved rounds."""
    work = Path(tempfile.mkdtemp(prefix="ema-reconstruct-"))
    try:
        model = Model(elements)
        rows = list(contestants(work)) if only is None else list(only)
        write_ours(work / "ours", model, snapshots)
        for package in set(rows) & set(PACKAGES):
            write_theirs(work / package, package, model, snapshots)
        os.sync()  # else the first that waits for the disk waits for all of this
        results = [{name: in_own_process(name, work, elements) for name in rows} for _ in range(rounds)]
        return {
            name: {key: statistics.median(result[name][key] for result in results) for key in ("seconds", "megabytes")}
            for name in rows
        }
    finally:
        shutil.rmtree(work)


def table(results: dict[str, dict[str, float]]) -> str:
    peers = {name: row["seconds"] for name, row in results.items() if name in PACKAGES}
    fastest = min(peers.values(), default=float("nan"))
    lines = ["| | seconds | times the fastest other | MB above the start |", "|---|---|---|---|"]
    for name, row in results.items():
        lines.append(f"| {name} | {row['seconds']:.2f} | {row['seconds'] / fastest:.2f} | {row['megabytes']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=22_000_000)
    parser.add_argument("--snapshots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scaling", action="store_true", help="also other numbers of snapshots and other sizes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.row:
        print(json.dumps(measure(chosen.row, chosen.work, chosen.elements)))
        return
    rows = run(chosen.elements, chosen.snapshots, chosen.rounds)
    results: dict[str, Any] = {"elements": chosen.elements, "snapshots": chosen.snapshots, "rows": rows, "scaling": []}
    print(f"{chosen.snapshots} snapshots of two averages, {chosen.elements:,} elements in 664 tensors, float32\n")
    print(table(rows), flush=True)
    if chosen.scaling:
        print("\n| snapshots of two | elements | seconds | MB above the start |\n|---|---|---|---|")
    for count, part in SCALING if chosen.scaling else ():
        size = round(chosen.elements * part)
        row = run(size, count, chosen.rounds, only=("this package",))["this package"]
        results["scaling"].append({"snapshots": count, "elements": size, **row})
        print(f"| {count} | {size:,} | {row['seconds']:.2f} | {row['megabytes']:.0f} |", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=2) + "\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
