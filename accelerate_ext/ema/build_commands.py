"""`accelerate-ext ema reconstruct` and `sweep`: what takes a while."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .command_options import WIDTH, as_json, fit_kind, options_of, report, sources, step, wanted
from .dtypes import RESULTS
from .profile import MAX_SIGMA_REL, check_sigma_rel
from .reconstruct import reconstruct as build
from .sweep import GRID
from .sweep import sweep as measure_all


@click.command()
@sources
@wanted
@step
@fit_kind
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A .safetensors file, or a folder for several.")
@click.option("--dtype", type=click.Choice(RESULTS), default="float32", show_default=True)
@click.option("--width", "widths", multiple=True, metavar="PATTERN=SIGMA_REL", help="Another width for some tensors.")
@click.option("--workers", type=click.IntRange(1), help="Threads.  [default: one a core, up to 8]")
@click.option("--force", is_flag=True, help="Go on although an error above 50 % is expected.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--dry-run", is_flag=True, help="Say size, memory and expected error, and stop.")
@as_json
def reconstruct(
    inputs: tuple[Path, ...],
    sigma_rel: tuple[float, ...],
    step: float | None,
    kind: Any,
    output: Path | None,
    widths: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Build averages of any width from what is stored."""
    if output is None and not dry_run:
        raise click.UsageError("say where to, with --output, or use --dry-run")
    own = _widths(widths)
    options = options_of(chosen)
    result = build(
        inputs,
        sigma_rel,
        step,
        kind,
        output=output,
        widths=own,
        options=options,
        dry_run=dry_run,
        progress=not as_json,
        **chosen,
    )
    if as_json:
        click.echo(json.dumps(result.to_dict()))
    else:
        report(result)


@click.command(short_help="Measure a metric over widths, find the best.")
@sources
@click.option("--metric", required=True, help="Command whose last line of output is a number.")
@click.option("--results", required=True, type=click.Path(path_type=Path), help="JSON file; goes on where it stopped.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Also write a table.")
@click.option("--sigma-rel", "-s", type=WIDTH, multiple=True, default=GRID, help="Width to measure; repeat for more.")
@click.option("--direction", type=click.Choice(["min", "max"]), default="min", show_default=True)
@click.option("--label", default="", help="Name of the run in plots.")
@click.option("--dtype", type=click.Choice(RESULTS), default="float32", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=4, show_default=True, help="Averages built at once.")
@click.option("--keep", is_flag=True, help="Leave the averages beside the results.")
@click.option("--force", is_flag=True, help="Also measure where an error above 50 % is expected.")
@step
@fit_kind
@as_json
def sweep(
    inputs: tuple[Path, ...],
    kind: Any,
    metric: str,
    results: Path,
    csv_path: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Measure a metric over a range of widths and find the best one.

    The command of --metric is run for each average. In it {path} becomes the file of the average, and {sigma_rel}
    its width:

    \b
        accelerate-ext ema sweep run/ema --results sweep.json
            --metric "python evaluate.py --weights {path} --name ema-{sigma_rel}"
    """
    options, widths = options_of(chosen), chosen.pop("sigma_rel")
    got = measure_all(inputs, metric, results, widths, fit=kind, options=options, progress=not as_json, **chosen)
    if csv_path:
        csv_path.parent.mkdir(parents=True, exist_ok=True)
        csv_path.write_text(got.to_csv(), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(got.to_dict()))
        return
    for point in got.points:
        click.echo(f"{point.sigma_rel:>8g}  {point.value:>14.6g}  (expected error {point.predicted_error:.2g})")
    if best := got.best():
        how = "estimated by a parabola through the points around it" if got.is_estimated else "measured"
        click.echo(f"best: sigma_rel {best[0]:.4f}, value {best[1]:.6g} ({how})")
    if got.edge:
        click.echo(
            f"that is the {got.edge} width measured: the optimum may lie outside of the range. Widen it: call this "
            f"again with more of --sigma-rel (up to {MAX_SIGMA_REL:.4f})"
        )


def _widths(given: tuple[str, ...]) -> dict[str, float]:
    widths = {}
    for text in given:
        pattern, _, width = text.rpartition("=")
        if not pattern:
            raise click.BadParameter(f"{text!r} must be PATTERN=SIGMA_REL", param_hint="--width")
        try:
            widths[pattern] = check_sigma_rel(float(width))
        except ValueError as error:
            raise click.BadParameter(f"{text!r}: {error}", param_hint="--width") from error
    return widths
