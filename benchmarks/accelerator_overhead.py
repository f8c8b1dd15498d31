"""What counting applied updates costs, against plain Accelerate in the same run.

    python -m benchmarks.accelerator_overhead [--import-only]

Prints, for each kind of loop, the time of an update as a ratio at a step of about 5 ms (bar: 1.02), the extra
microseconds on an empty model, and the device reads an update, counted. Updates of both sides alternate, so that
whatever else the machine does falls on both; times are medians of processor time.

The last line says what importing `accelerate_ext` takes on top of importing accelerate, in new processes (bar: 5 %).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import accelerate
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn

import accelerate_ext
from benchmarks.device_reads import DeviceReads

BAR = 1.02
IMPORT_BAR = 0.05


@dataclass(frozen=True)
class Case:
    """One kind of loop."""

    name: str
    optimizer: str = "sgd"
    scaled: bool = True
    asks: bool = False
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("no scaler", scaled=False),
    Case("scaler"),
    Case("scaler, asked each update", asks=True),
    Case("scaler, fused", "sgd fused"),
    Case("scaler, fused, asked each update", "sgd fused", asks=True),
    Case("no scaler, skip_nonfinite, fused", "sgd fused", scaled=False, options={"skip_nonfinite": True}),
)


def make_update(case: Case, is_ours: bool, width: int, depth: int, rows: int) -> Callable[[], None]:
    """A function that makes one update."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    torch.manual_seed(0)
    options = case.options if is_ours else {}
    accelerator: Any = (accelerate_ext.Accelerator if is_ours else accelerate.Accelerator)(cpu=True, **options)
    if case.scaled:
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        accelerator.native_amp = True
    model: nn.Module = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4, fused=case.optimizer.endswith("fused"))
    model, optimizer = accelerator.prepare(model, optimizer)
    data = torch.randn(rows, width)

    def update() -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(data).pow(2).sum())  # no denormals: they cost more than anything here
            optimizer.step()
            optimizer.zero_grad()
        if is_ours and case.asks:
            accelerator.update_applied  # noqa: B018
            accelerator.applied_step  # noqa: B018

    return update


def cpu_seconds(update: Callable[[], None], times: int) -> float:
    """Processor time of an update: what other processes do in the meantime does not count."""
    start = time.process_time()
    for _ in range(times):
        update()
    return (time.process_time() - start) / times


def compare(case: Case, rounds: int, times: int, **size: int) -> tuple[float, float]:
    """Median processor seconds of an update, plain and ours."""
    sides = [make_update(case, is_ours, **size) for is_ours in (False, True)]
    measured: tuple[list[float], list[float]] = ([], [])
    for side in sides:
        cpu_seconds(side, 5)
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            measured[side].append(cpu_seconds(sides[side], times))
    return statistics.median(measured[0]), statistics.median(measured[1])


def reads_per_update(case: Case, is_ours: bool, times: int = 32) -> float:
    update = make_update(case, is_ours, width=1, depth=1, rows=1)
    update()
    with DeviceReads() as reads:
        for _ in range(times):
            update()
    return reads.count / times


def import_seconds(runs: int = 9) -> tuple[float, float]:
    """What importing accelerate takes, and what importing this package takes on top, in processor time.

    The garbage of the first import is collected in between: else its collection may fall on the second.
    """
    code = (
        "import gc, time; a = time.process_time(); import accelerate; b = time.process_time(); "
        "gc.collect(); c = time.process_time(); import accelerate_ext; print(b - a, time.process_time() - c)"
    )
    outputs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(runs)]
    both = [[float(number) for number in output.stdout.split()] for output in outputs]
    return statistics.median(pair[0] for pair in both), statistics.median(pair[1] for pair in both)


def rows_for(case: Case, wanted: float) -> int:
    """How many rows of data make an update take about so many seconds."""
    rows = 64
    while cpu_seconds(make_update(case, False, width=256, depth=4, rows=rows), 20) < wanted:
        rows += 64
    return rows


def print_import() -> None:
    plain, extra = import_seconds()
    late = "" if extra <= IMPORT_BAR * plain else "   above the bar"
    print(f"import accelerate {plain:.2f} s, accelerate_ext on top {extra * 1e3:.0f} ms ({extra / plain:.1%}){late}")


def main() -> None:
    if sys.argv[1:] == ["--import-only"]:
        return print_import()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, accelerate {accelerate.__version__}, one thread")
    print(f"{'':34} {'step':>8} {'ratio':>7} {'empty model':>19} {'device reads':>14}")
    for case in CASES:
        plain, ours = compare(case, rounds=401, times=1, width=256, depth=4, rows=rows_for(case, wanted=0.005))
        empty, empty_ours = compare(case, rounds=101, times=20, width=1, depth=1, rows=1)
        ratio = ours / plain
        reads = [reads_per_update(case, is_ours) for is_ours in (False, True)]
        print(
            f"{case.name:34} {plain * 1e3:5.1f} ms {ratio:7.3f} "
            f"{empty * 1e6:6.0f} {(empty_ours - empty) * 1e6:+5.0f} us/upd. {reads[0]:6.1f} -> {reads[1]:.1f}"
            f"{'' if ratio <= BAR else '   above the bar'}"
        )
    print_import()


if __name__ == "__main__":
    main()
