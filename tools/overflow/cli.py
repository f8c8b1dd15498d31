"""The verb `overflow`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import CannotRun
from .advice import why_unchanged
from .compare import Options, jobs, make, unchanged_by
from .launch import Job, Plan, check_command, script_of
from .model import read
from .result import JsonFile
from .table import has_begun

_EPILOG = """\b
Examples:
  overflow --at 4 -- train.py --output_dir out
  overflow --at 4 --compare-rewrite -- train.py --output_dir out/{run}
  overflow --rate 0.05 --seed 13 --compare patched.py -- train.py
  overflow --at 4 --compare-path accelerate/src --compare-path transformers/src -- trainer.py
  overflow --at 3 --rank 1 -- torchrun --nproc_per_node 2 train.py
  overflow -- train.py                      (the finite control)
"""


def _attempts(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() or int(word) < 1]
    if wrong:
        raise click.BadParameter(f"attempts must be whole numbers from 1, such as 4 or 2,5; got {', '.join(wrong)}")
    return tuple(sorted({int(word) for word in words}))


def _targets(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        module, colon, target = value.partition(":")
        if not module or not colon or "." not in target:
            raise click.BadParameter(f"must be module:Class.method, such as mypackage.ema:EMA.update; got {value!r}")
    return values


@click.command(
    short_help="Run a script under an overflow and tell what moved.",
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--at", multiple=True, callback=_attempts, metavar="N[,N...]", help="Attempts that overflow, from 1.")
@click.option("--rate", type=click.FloatRange(0, 1), default=0.0, help="Share of the attempts that overflow.")
@click.option("--seed", default=0, show_default=True, help="Chooses which ones, with --rate.")
@click.option("--rank", type=click.IntRange(min=0), help="The one process that overflows, and whose report is shown.")
@click.option(
    "--optimizer", metavar="NAME", help="Its variable, class or number; it overflows, and its updates count."
)
@click.option(
    "--counter",
    "counters",
    multiple=True,
    metavar="NAME",
    help="A variable to follow beside global_step: `state.step`.",
)
@click.option(
    "--watch",
    multiple=True,
    callback=_targets,
    metavar="MODULE:CLASS.METHOD",
    help="Another method that moves an average.",
)
@click.option("--compare", type=click.Path(path_type=Path), metavar="PATCHED.py", help="Also run this patched script.")
@click.option("--compare-rewrite", is_flag=True, help="Also run the script as `rewrite` would change it.")
@click.option(
    "--compare-path",
    "compare_paths",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also run with the packages in DIR first; several times for several folders.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write tools/schemas/overflow.schema.json.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw what moved when.")
@click.option("--python", help="The interpreter that runs the script; the one that runs this by default.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- SCRIPT [ARGS]...")
@click.pass_context
def overflow(
    ctx: click.Context,
    at: tuple[int, ...],
    rate: float,
    seed: int,
    rank: int | None,
    optimizer: str | None,
    counters: tuple[str, ...],
    watch: tuple[str, ...],
    compare: Path | None,
    compare_rewrite: bool,
    compare_paths: tuple[Path, ...],
    json_path: Path | None,
    plot_path: Path | None,
    python: str | None,
    command: tuple[str, ...],
) -> None:
    """Runs a training script under a controlled overflow and tells what moved.

    One element of a gradient becomes infinite in the chosen attempts, after backward and before unscaling. The
    script's own scaler drops the update; where it has none, as on a CPU, one is installed and the report says so.
    Without --at and --rate nothing is changed, and the run is bit-identical to the script alone.

    SCRIPT is a Python file, `-m MODULE`, `torchrun ...` or `accelerate launch ...`. {run} in its arguments becomes
    finite, overflow or patched. A comparison makes these three runs and judges the last one.

    Exit codes: 0 nothing moved on a skipped update, 1 something did, 2 could not run. A script that fails hands on
    its own exit code, or 128 + the signal's number; 2 in place of 1 if that was before the first attempt.
    """
    check_command(command)
    check_plot(plot_path)
    plan = Plan(at, rate, seed, rank, optimizer)
    model = read(script_of(command))
    names = model.names(counters)
    job = Job(
        "", command, plan, names, watch, model.averages, python or sys.executable, shown=("global_step", *counters)
    )
    wanted = jobs(job, Options(compare, compare_paths, compare_rewrite))
    ctx.exit(_observe(wanted, json_path, plot_path))


def _observe(wanted: Sequence[Job], json_path: Path | None, plot_path: Path | None) -> int:
    """Make the runs and show what was seen, on stdout and where the user wants it besides. Returns the exit code."""
    file = JsonFile(json_path) if json_path else None
    is_unchanged = unchanged_by(wanted[-1])
    comparison = make(wanted[:-1] if is_unchanged else wanted, file.write if file else lambda runs: None)
    if is_unchanged and comparison.runs[-1].exit_code == 0:
        comparison.remarks.append(why_unchanged(comparison.runs[-1]))
    exit_code = comparison.exit_code()
    click.echo("\n" + comparison.table(), nl=False)
    if file:
        file.write(comparison.runs, exit_code)
    if plot_path and has_begun(comparison.runs[0]):
        from .plot import draw

        draw(comparison.runs, plot_path)
    return exit_code


def check_plot(path: Path | None) -> None:
    """Raises: CannotRun if the figure could not be drawn in the end."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".svg", ".pdf") or not path.absolute().parent.is_dir():
        raise CannotRun(f"--plot must name a .png, .svg or .pdf file in a folder that is there, got {path}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CannotRun('--plot needs matplotlib: pip install "accelerate-ext[plot]"') from error
