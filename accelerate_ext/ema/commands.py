"""`accelerate-ext ema`: planning snapshots, and looking at what is stored, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .build_commands import reconstruct, sweep
from .check import check as check_average
from .command_options import (
    WIDTH,
    as_json,
    fit_kind,
    options_of,
    readable,
    report,
    sources,
    step,
    wanted,
)
from .dtypes import SNAPSHOTS
from .inputs import find_sources, incomplete_snapshots
from .plan import DISTANCE
from .plan import plan as make_plan
from .plot import WANTED
from .plot_commands import plot
from .reconstruct import reconstruct as build
from .thin import thin as thin_folder


@click.group(short_help="Plan snapshots, and build averages after the run.")
def ema() -> None:
    """Weight averages: plan snapshots, and build averages of any length from them after the run."""


ema.add_command(plot)
ema.add_command(reconstruct)
ema.add_command(sweep)


@ema.command(short_help="When to write snapshots, and of which averages.")
@click.argument("total", type=click.IntRange(1))
@click.option("--count", type=click.IntRange(1), help="Snapshots.  [default: the fewest that keep --max-error]")
@click.option("--max-error", type=click.FloatRange(0, min_open=True), help="Largest expected error allowed.")
@click.option("--sigma-rel", "-s", type=WIDTH, multiple=True, help="Widths to keep.  [default: the best ones]")
@click.option("--num-averages", type=click.IntRange(1, 3), default=2, show_default=True)
@click.option("--wanted", type=(WIDTH, WIDTH), default=(0.02, 0.25), show_default=True, help="Range to be asked for.")
@click.option("--spacing", type=click.Choice(["end", "even"]), default="end", show_default=True)
@click.option("--dtype", type=click.Choice(SNAPSHOTS), default="float32", show_default=True, help="Of snapshots.")
@click.option(
    "--distance",
    type=click.FloatRange(0, min_open=True),
    default=DISTANCE,
    show_default=True,
    help="Of a 0.05 wide average from the model, over the norm of the weights; 16 bits are compared with it.",
)
@click.option("--parameters", type=click.IntRange(1), help="Size of the model, to say what the snapshots take.")
@as_json
def plan(total: int, sigma_rel: tuple[float, ...], parameters: int | None, as_json: bool, **chosen: Any) -> None:
    """When to write snapshots of a run of TOTAL applied updates, and of which averages."""
    made = make_plan(total, sigma_rel=sigma_rel or None, **chosen)
    size = made.num_bytes(parameters) if parameters else None
    if as_json:
        show = {name: getattr(made, name) for name in ("times", "sigma_rel", "dtype", "worst_error")}
        show |= {"num_bytes": size}
        click.echo(json.dumps(show | {"errors": {f"{width:g}": error for width, error in made.errors.items()}}))
        return
    click.echo(f"keep sigma_rel  {', '.join(f'{width:g}' for width in made.sigma_rel)}")
    click.echo(f"snapshots at    {', '.join(map(str, made.times))}")
    if size is not None:
        click.echo(f"space           {readable(size)} in {made.dtype}")
    click.echo("expected error  " + ", ".join(f"{width:.3g}: {error:.2g}" for width, error in made.errors.items()))


@ema.command(short_help="What is stored, and what to expect of it.")
@sources
@as_json
def info(inputs: tuple[Path, ...], as_json: bool, **chosen: Any) -> None:
    """What is stored, and what to expect of averages at its end. Exits with 1 if snapshots are incomplete."""
    options = options_of(chosen)
    found = find_sources(inputs, options)
    expected = build(inputs, WANTED, options=options, dry_run=True, force=True)
    incomplete = [str(path) for folder in inputs if folder.is_dir() for path in incomplete_snapshots(folder)]
    rows = [
        {"path": str(s.path), "step": s.step, "sigma_rel": s.sigma_rel, "kind": s.kind, "run": s.run} for s in found
    ]
    errors = dict(zip(expected.sigma_rel, expected.predicted_error, strict=True))
    if as_json:
        show = {"sources": rows, "incomplete": incomplete, "num_elements": expected.num_elements, "fit": expected.fit}
        click.echo(json.dumps(show | {"expected_errors": {f"{width:g}": error for width, error in errors.items()}}))
    else:
        click.echo(f"{'step':>12}  {'sigma_rel':>9}  {'kind':<10}  file")
        for row in rows:
            width = "-" if row["sigma_rel"] is None else f"{row['sigma_rel']:.4f}"
            click.echo(f"{row['step']:>12g}  {width:>9}  {row['kind']:<10}  {row['path']}")
        click.echo(f"{len(rows)} stored, {expected.num_elements:,} elements each, up to step {expected.step:g}")
        click.echo("expected error  " + ", ".join(f"{width:g}: {error:.2g}" for width, error in errors.items()))
        for path in incomplete:
            click.echo(f"incomplete: {path}")
    raise click.exceptions.Exit(1 if incomplete else 0)


@ema.command(short_help="Weights and expected error of an average.")
@sources
@wanted
@step
@fit_kind
@click.option("--max-error", type=float, help="Exit with 1 if an expected error is above this.")
@as_json
def fit(
    inputs: tuple[Path, ...],
    sigma_rel: tuple[float, ...],
    step: float | None,
    kind: Any,
    max_error: float | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """The weights that build an average from what is stored, and the error to expect. Builds nothing."""
    result = build(inputs, sigma_rel, step, kind, options=options_of(chosen), dry_run=True, force=True)
    if as_json:
        click.echo(json.dumps(result.to_dict()))
    else:
        report(result)
        columns = "  ".join(f"{f'-> {width:g}':>12}" for width in result.sigma_rel)
        click.echo(f"\n{'step':>12}  {'stored':>8}  {columns}")
        for source, row in zip(result.sources, result.weights, strict=True):
            stored = "-" if source.sigma_rel is None else f"{source.sigma_rel:.4f}"
            click.echo(f"{source.step:>12g}  {stored:>8}  " + "  ".join(f"{weight:>12.6f}" for weight in row))
    raise click.exceptions.Exit(int(max_error is not None and not max(result.predicted_error) <= max_error))


@ema.command()
@sources
@step
@click.option("--sigma-rel", "-s", type=WIDTH, help="Width of the stored average to rebuild.  [default: the widest]")
@fit_kind
@click.option("--tolerance", type=float, help="Largest error that passes.  [default: 4 times the expected one]")
@as_json
def check(
    inputs: tuple[Path, ...], step: float | None, kind: Any, tolerance: float | None, as_json: bool, **chosen: Any
) -> None:
    """Rebuild one stored average from the others. Exits with 1 if it differs by too much."""
    width = chosen.pop("sigma_rel")
    got = check_average(inputs, step, width, kind, options=options_of(chosen), progress=not as_json)
    if as_json:
        show = {name: getattr(got, name) for name in ("step", "sigma_rel", "predicted_error", "measured_error")}
        click.echo(json.dumps(show | {"path": str(got.source.path), "relative_difference": got.relative_difference}))
    else:
        click.echo(f"{got.source.path}, rebuilt from the others")
        click.echo(
            f"error {got.measured_error:.3g}, expected {got.predicted_error:.3g} (of the distance from the model)"
        )
        click.echo(f"difference {got.relative_difference:.3g} of the norm of the weights")
    raise click.exceptions.Exit(int(not got.measured_error <= (got.bound if tolerance is None else tolerance)))


@ema.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--max-error", type=click.FloatRange(0, min_open=True), help="Expected error that must be kept.")
@click.option("--keep", type=click.IntRange(1), help="Number of files to go down to.")
@click.option("--wanted", type=(WIDTH, WIDTH), default=(0.02, 0.25), show_default=True, help="Range that matters.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@as_json
def thin(directory: Path, as_json: bool, **chosen: Any) -> None:
    """Remove the snapshots that are missed least."""
    done = thin_folder(directory, **chosen)
    if as_json:
        removed = [str(path) for snapshot in done.removed for path in snapshot.paths]
        show = {"removed": removed, "num_kept": len(done.kept), "num_bytes": done.num_bytes}
        click.echo(json.dumps(show | {"error_before": done.error_before, "error_after": done.error_after}))
        return
    for snapshot in done.removed:
        click.echo(str(snapshot.path))
    verb = "would go" if chosen["dry_run"] else "removed"
    click.echo(f"{len(done.removed)} {verb}, {len(done.kept)} stay, {readable(done.num_bytes)}")
    click.echo(f"expected error {done.error_before:.2g} before, {done.error_after:.2g} after")
