"""The page docs/ema-speed.md, from what the benchmarks `ema` and `ema_reconstruct` have measured.

    python -m benchmarks.ema --json updates.json
    python -m benchmarks.ema_reconstruct --scaling --json reconstruct.json
    python -m benchmarks.ema_speed updates.json reconstruct.json --output docs/ema-speed.md

Nothing is measured here: each of the others should have the machine to itself. A figure is a median of interleaved
rounds, and its ratio is to a figure of the same run.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import click
import torch

from .ema_reconstruct import PACKAGES, table

Results = Mapping[str, Any]
PAGE = """\
<!-- Written by `python -m benchmarks.ema_speed`, whose docstring has the commands; do not edit. -->

# Cost of averages, of snapshots, and of reconstruction

Measured on {machine} of a virtual machine without a GPU, torch {torch}, everything in float32, in one run a table:
packages take turns, and a figure is the median. Ratios mean more than times. Models: {models} parameters. To measure
it all again:

{commands}

{note}

## An update

Every package takes the same model into one average, or into two. The floor is what memory allows if averages go one
after another: `lerp_` of one flat tensor into another, two reads and a write an average. Other rows are in times of
the floor. This package reads the model once for all averages, in pieces that stay in the processor's cache.

{updates}

What the first update adds to the memory of the averages themselves, with a step that is an int, and then with one
that is a tensor: {memory}. Most of the latter is code of torch that is loaded then.

## A snapshot of two averages

This package writes under a temporary name, waits until the bytes are on the disk, and then renames: what has a
snapshot's name is whole, whatever becomes of the machine. Of the others only rows that say fsync wait for the disk.
With `wait=False` training waits only until the averages are copied; the disk and the names come in the background.

{snapshots}

What a snapshot adds to memory: {written}.

## A reconstruction

One average of width 0.15, in memory unless the row says otherwise. The files of {packages}
are four different ones linked under the names of all, which favours them: there is less to keep in memory.

{reconstructions}

With the number of snapshots and the size of the model, for one average in memory:

{scaling}
"""
LABELS = {
    "accelerate_ext PostHocEMA": "**this package, PostHocEMA**",
    "accelerate_ext EMA": "**this package, EMA**",
    "accelerate_ext": "**this package**",
    "accelerate_ext, wait=False": "**this package, `wait=False`**: what training waits for",
    "accelerate_ext, wait=False, until on the disk": "this package, `wait=False`: until all is on the disk",
}


def updates(results: Results, threads: Sequence[str]) -> Iterator[str]:
    """A table a number of threads: milliseconds of the floor, times the floor for all others."""
    for num_threads in threads:
        columns = [(model, num) for model in results for num in ("1", "2")]
        measured = [results[model][f"update {num_threads} {num}"] for model, num in columns]
        head = " | ".join(f"{model}, {num} average{'s' * (num == '2')}" for model, num in columns)
        names = list(dict.fromkeys(name for each in measured for name in each["ms"] if name != "floor"))
        names.sort(key=lambda name: sum(each["times"].get(name, 0) for each in measured if name in each["times"]))
        lines = [f"| threads: {num_threads} | {head} |", "|---|" + "---|" * len(columns)]
        lines.append("| floor, ms | " + " | ".join(f"{each['ms']['floor']:.1f}" for each in measured) + " |")
        for name in names:
            cells = [f"{each['times'][name]:.2f}" if name in each["times"] else "" for each in measured]
            lines.append(f"| {LABELS.get(name, name)} | " + " | ".join(cells) + " |")
        yield "\n".join(lines)


def snapshots(results: Results) -> str:
    measured = [results[model]["snapshot"] for model in results]
    head = " | ".join(f"{model}, ms | times `save_file`" for model in results)
    lines = [f"| | {head} |", "|---|" + "---|" * 2 * len(measured)]
    for name in sorted(measured[0]["ms"], key=lambda name: sum(each["times"][name] for each in measured)):
        cells = " | ".join(f"{each['ms'][name]:.0f} | {each['times'][name]:.2f}" for each in measured)
        lines.append(f"| {LABELS.get(name, name)} | {cells} |")
    return "\n".join(lines)


def reconstruction(results: Results) -> str:
    size = f"{results['elements'] / 1e6:.1f} M elements in 664 tensors, float32"
    return f"{results['snapshots']} snapshots of two averages, {size}:\n\n{table(results['rows'])}"


def scaling(results: Results) -> str:
    lines = ["| snapshots of two averages | elements | seconds | MB above the start |", "|---|---|---|---|"]
    for row in results["scaling"]:
        cells = (
            row["snapshots"],
            f"{row['elements'] / 1e6:.1f} M",
            f"{row['seconds']:.2f}",
            f"{row['megabytes']:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def document(measured: Results, rebuilt: Sequence[Results], note: str) -> str:
    threads = sorted({key.split()[1] for key in next(iter(measured.values())) if key.startswith("update")})
    added = [
        f"{name}: {m['memory']['an int']:.0f} and {m['memory']['a tensor']:.0f} MB" for name, m in measured.items()
    ]
    page = PAGE.format(
        machine=f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})",
        torch=torch.__version__.split("+")[0],
        models="; ".join(f"{n}: {m['tensors']} tensors, {m['elements'] / 1e6:.1f} M" for n, m in measured.items()),
        commands="\n".join(line for line in (__doc__ or "").splitlines() if line.startswith("    python")),
        note=note,
        updates="\n\n".join(updates(measured, threads)),
        memory=", ".join(added),
        snapshots=snapshots(measured),
        written=", ".join(f"{name}: {m['snapshot']['peak_mb']:.0f} MB" for name, m in measured.items()),
        packages=", ".join(PACKAGES),
        reconstructions="\n\n".join(map(reconstruction, rebuilt)),
        scaling="\n\n".join(scaling(each) for each in rebuilt if each["scaling"]),
    )
    return (
        "\n\n".join(
            block if block[:1] in "<#| " else fill(block, 119) for block in page.split("\n\n") if block
        ).rstrip()
        + "\n"
    )


@click.command()
@click.argument("updates_json", type=click.Path(exists=True, path_type=Path))
@click.argument("reconstruct_json", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--note", default="", help="What a reader should know of this run, such as other work on the machine.")
@click.option("--output", type=click.Path(path_type=Path), help="Print it unless given.")
def main(updates_json: Path, reconstruct_json: tuple[Path, ...], note: str, output: Path | None) -> None:
    """Write the page from the JSON of the benchmarks."""
    rebuilt = [json.loads(path.read_text()) for path in reconstruct_json]
    text = document(json.loads(updates_json.read_text()), rebuilt, note)
    if output:
        output.write_text(text, encoding="utf-8")
    else:
        click.echo(text)


if __name__ == "__main__":
    main()
