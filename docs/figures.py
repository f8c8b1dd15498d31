"""Makes the figures of the documents, with the plots of this project; the same versions give the same files.

make figures            writes docs/images
python docs/figures.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from accelerate_ext import Accelerator
from accelerate_ext.ema import PostHocEMA, Sweep, plan, plot, reconstruct, sweep

UPDATES = 4096
LEARNING_RATES = (4e-3, 8e-3, 1.6e-2)
WIDTHS = (0.02, 0.03, 0.045, 0.07, 0.10, 0.14, 0.19, 0.25)
ROOT = Path(__file__).resolve().parent.parent


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def target(inputs: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * inputs[:, :1]) * inputs[:, 1:2] + inputs[:, 2:3] * inputs[:, 3:4]


def train(learning_rate: float, folder: Path) -> None:
    """Fits a function from noisy samples and leaves 24 snapshots of two averages in the folder."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=learning_rate))
    ema = PostHocEMA(accelerator.unwrap_model(model), plan=plan(UPDATES, 24), directory=folder)
    while accelerator.applied_step < UPDATES:
        inputs = torch.randn(16, 4)
        with accelerator.attempt(model) as update:
            noise = torch.randn(16, 1)
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), target(inputs) + noise))
            optimizer.step()
            optimizer.zero_grad()
        if update.applied:
            ema.update(accelerator.applied_step)


def held_out_error(path: Path) -> float:
    """The mean squared error of an average against the function without noise."""
    inputs = torch.randn(8192, 4, generator=torch.Generator().manual_seed(1))
    model = network()
    model.load_state_dict(load_file(path))
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(model(inputs), target(inputs)))


def sweeps(folder: Path) -> list[Sweep]:
    """The error over the width of the average, a sweep a learning rate."""
    made = []
    for rate in LEARNING_RATES:
        train(rate, folder / f"{rate:g}")
        results = folder / f"{rate:g}.json"
        made.append(sweep(folder / f"{rate:g}", held_out_error, results, WIDTHS, label=f"learning rate {rate:g}"))
    return made


def draw_run(path: Path) -> None:
    """The example under an overflow, before and after the rewrite, as the README shows it."""
    options = ("--at", "4", "--compare-rewrite", "--plot", str(path))
    command = (sys.executable, "-m", "tools", "overflow", *options, "--", "docs/examples/train.py")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    draw_run(folder.resolve() / "run.png")
    plot.save(plot.plot_profiles((0.05, 0.10, 0.15, 0.25)), folder / "profiles.png")
    plot.save(plot.plot_errors(), folder / "errors.png")
    with tempfile.TemporaryDirectory() as name:
        measured = sweeps(Path(name))
        built = reconstruct(Path(name, f"{LEARNING_RATES[0]:g}"), (0.03, 0.075, 0.15, 0.25), dry_run=True)
        plot.save(plot.plot_fit(built), folder / "fit.png")
        plot.save(plot.plot_sweeps(measured, "mean squared error, held out"), folder / "sweep.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "images"))
