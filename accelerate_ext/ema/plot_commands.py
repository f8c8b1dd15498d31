"""`accelerate-ext ema plot`: figures, into a file whose ending says the format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from . import plot as figures
from .command_options import WIDTH, fit_kind, options_of, sources, step, wanted
from .reconstruct import reconstruct
from .sweep import Sweep

output = click.option(
    "--output", "-o", required=True, type=click.Path(path_type=Path), help="File, .png, .svg or .pdf."
)


@click.group(short_help="Draw profiles, fits, errors, sweeps.")
def plot() -> None:
    """Draw profiles, a fit, expected errors, or a metric over widths. Needs matplotlib."""


@plot.command()
@wanted
@output
def profiles(sigma_rel: tuple[float, ...], output: Path) -> None:
    """The weight that averages give to each part of the run."""
    click.echo(figures.save(figures.plot_profiles(sigma_rel), output))


@plot.command(short_help="What can be built, against what is wanted.")
@sources
@wanted
@step
@fit_kind
@output
def fit(
    inputs: tuple[Path, ...], sigma_rel: tuple[float, ...], step: float | None, kind: Any, output: Path, **chosen: Any
) -> None:
    """What can be built from what is stored, against what is wanted."""
    result = reconstruct(inputs, sigma_rel, step, kind, options=options_of(chosen), dry_run=True, force=True)
    click.echo(figures.save(figures.plot_fit(result), output))


@plot.command()
@click.option("--stored", type=WIDTH, multiple=True, default=(0.05, 0.10), show_default=True, help="Kept width.")
@click.option("--sigma-rel", "-s", type=WIDTH, multiple=True, default=figures.WANTED, help="Wanted width.")
@output
def errors(stored: tuple[float, ...], sigma_rel: tuple[float, ...], output: Path) -> None:
    """The error to expect against the number of snapshots."""
    click.echo(figures.save(figures.plot_errors(stored, sigma_rel), output))


@plot.command(short_help="A metric over widths, a line a sweep.")
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--metric", default="metric", show_default=True, help="Name of the axis.")
@output
def sweep(results: tuple[Path, ...], metric: str, output: Path) -> None:
    """A metric over widths, a line for each file of results (each learning rate, say), with the best widths.

    A line is named by the --label of its sweep, else by its file.
    """
    names = [path.stem for path in results]
    if len(set(names)) < len(names):  # as with one name in several folders
        names = [str(path.with_suffix("")) for path in results]
    loaded = [Sweep.load(path) for path in results]
    named = [replace(each, label=each.label or name) for each, name in zip(loaded, names, strict=True)]
    click.echo(figures.save(figures.plot_sweeps(named, metric), output))
