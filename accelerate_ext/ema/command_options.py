"""Options that several commands share, and how their results read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .inputs import InputOptions
from .profile import check_sigma_rel
from .result import Reconstruction

Command = TypeVar("Command", bound=Callable[..., Any])


class Width(click.ParamType):
    """A sigma_rel, refused with the reason where no average has it."""

    name = "width"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return check_sigma_rel(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


WIDTH = Width()
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
wanted = click.option("--sigma-rel", "-s", type=WIDTH, multiple=True, required=True, help="Wanted width; repeatable.")
step = click.option("--step", type=float, help="Step that the average ends at.  [default: the last stored one]")
fit_kind = click.option("--fit", "kind", type=click.Choice(["walk", "profile"]), default="walk", show_default=True)


def sources(command: Command) -> Command:
    """The arguments that say what is stored."""
    for option in (
        click.option("--run", help="Only snapshots of this run."),
        click.option("--update-every", type=int, help="`update_every` of another package's averages."),
        click.option("--peer-sigma-rel", type=WIDTH, multiple=True, help="Widths of another package's averages."),
        click.option("--key", help="Where the weights are in each .pt file; dots go deeper."),
        click.option("--subfolder", help="Where the weights are in each checkpoint folder, as in unet."),
        click.option("--steps", type=click.Path(exists=True, dir_okay=False), help="Steps by file name, CSV or JSON."),
        click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def options_of(chosen: dict[str, Any]) -> InputOptions:
    """Takes the options that ``sources`` added out of a command's arguments."""
    return InputOptions(
        steps=chosen.pop("steps"),
        subfolder=chosen.pop("subfolder"),
        key=chosen.pop("key"),
        sigma_rel=chosen.pop("peer_sigma_rel") or None,
        update_every=chosen.pop("update_every"),
        run=chosen.pop("run"),
    )


def report(result: Reconstruction) -> None:
    """Prints what a reconstruction costs, and what to expect of each average."""
    click.echo(
        f"step {result.step:g}, fit {result.fit}, {len(result.sources)} stored; reads {readable(result.read_bytes)}, "
        f"writes {readable(result.output_bytes)}, works in {readable(result.memory_bytes)}"
    )
    for index, width in enumerate(result.sigma_rel):
        text = f"sigma_rel {width:g}: expected error {result.predicted_error[index]:.2g}, "
        text += f"effective width {result.effective_sigma_rel[index]:.4f}"
        residual = result.profile_residual[index]
        text += "" if residual != residual else f", profile residual {residual:.2g}"
        click.echo(text + (f" -> {result.paths[index]}" if result.paths else ""))
    for pattern, width in result.widths.items():
        click.echo(f"{pattern}: sigma_rel {width:g}, expected error {result.width_errors[pattern]:.2g}")


def readable(num_bytes: float) -> str:
    """A size as people read it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
