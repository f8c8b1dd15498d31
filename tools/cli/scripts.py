"""The verbs for scripts: `rewrite` and `report`."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import click

from .. import report as reports
from ..diff import unified_diff
from ..errors import CannotRun
from ..files import python_files, shown, write_all
from ..inspection import Inspected, inspect
from ..loop.names import key
from ..options import Options
from ..report import FileReport
from ..site import Outcome
from .output import finish, print_failures, print_refused

_MOST_NAMED = 4  # files in the command that a report ends by

paths_argument = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")


def _check_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        tree = ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError):
        tree = None
    if tree is None or key(tree) is None:
        raise CannotRun(
            f"--counted-optimizer must be the text of an optimizer such as `self.optimizer`, got {value!r}"
        )
    return value


def choices(verb: Callable[..., None]) -> Callable[..., None]:
    """Options for what only the user can decide; a refusal names the one that helps."""
    optimizer = click.option(
        "--counted-optimizer",
        metavar="NAME",
        callback=_check_name,
        help="The optimizer whose applied updates count, where several step in one window.",
    )
    arguments = click.option(
        "--follow-arguments/--no-follow-arguments",
        default=None,
        help="Whether a boundary flag that is handed to a function becomes `update applied`. Default: where the file "
        "shows the function and it guards bookkeeping.",
    )
    return optimizer(arguments(verb))


@click.command(short_help="Rewrite scripts so that they count applied updates.")
@paths_argument
@click.option(
    "--diff/--write", "is_diff", default=True, help="Print a unified diff (the default), or change the files."
)
@choices
def rewrite(
    paths: tuple[Path, ...], is_diff: bool, counted_optimizer: str | None, follow_arguments: bool | None
) -> None:
    """Rewrites training scripts so that they count applied updates.

    PATH is a file or a folder. What cannot be rewritten safely is refused with its reason, on stderr. Nothing is
    written if a file cannot be read. --diff exits with 1 if there is anything to change or something was refused;
    --write exits with 1 if something was refused.
    """
    options = Options(counted_optimizer, follow_arguments)
    inspected = [inspect(path, options) for path in python_files(paths)]
    changed = [file for file in inspected if file.after is not None]
    found = [file.report for file in inspected]
    refused = print_refused(found)
    failures = print_failures(found)
    if is_diff:
        _print_diff(changed)
    elif not failures:
        write_all({file.path: file.after for file in changed if file.after is not None})
        for file in changed:
            click.echo(f"rewrote {file.path}")
    elif changed:
        click.echo(f"nothing was written ({len(changed)} to rewrite): every file must be readable first", err=True)
    click.echo(reports.summary(found, is_done=not (is_diff or failures)), err=True)
    finish(bool(failures), bool(refused or (is_diff and changed)))


@click.command("report", short_help="List what counts skipped updates, and why it is so.")
@paths_argument
@click.option("--json", "is_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    help="text: a line a site; json: tools/schemas/report.schema.json; sarif: 2.1.0, for code scanning.",
)
@click.option(
    "--only",
    "outcomes",
    type=click.Choice([outcome.value for outcome in Outcome]),
    multiple=True,
    help="List and count only places of this outcome; may be given several times. Default: all.",
)
@choices
def report(
    paths: tuple[Path, ...],
    is_json: bool,
    layout: str,
    outcomes: tuple[str, ...],
    counted_optimizer: str | None,
    follow_arguments: bool | None,
) -> None:
    """Lists every place that bears on which updates are counted, with the verdict and its reason. Writes nothing.

    The text says `would rewrite` of what `rewrite --write` changes; JSON and --only call that outcome `rewritten`.
    Exits with 1 if a listed place counts skipped updates, whether it can be rewritten or not.
    """
    options = Options(counted_optimizer, follow_arguments)
    found = [_only(inspect(path, options).report, outcomes) for path in python_files(paths)]
    if is_json or layout == "json":
        click.echo(reports.as_json(reports.document(found)), nl=False)
    elif layout == "sarif":
        click.echo(reports.as_json(reports.sarif(found)), nl=False)
    else:
        click.echo(reports.as_text(found), nl=False)
        _say_how(paths, found, options)
    failures = print_failures(found)
    finish(bool(failures), any(file.needs_change for file in found))


def _say_how(paths: Iterable[Path], found: Iterable[FileReport], options: Options) -> None:
    """A line on stderr with the command that makes the changes of a report, if it has any."""
    changed = [file.path for file in found if any(site.outcome is Outcome.REWRITTEN for site in file.sites)]
    if not changed:
        return
    shortest = min((changed, [str(path) for path in paths]), key=len)
    words = ["--counted-optimizer", options.counted_optimizer] if options.counted_optimizer else []
    if options.follow_arguments is not None:
        words.append("--follow-arguments" if options.follow_arguments else "--no-follow-arguments")
    ends = [shlex.join(shortest)] if len(shortest) <= _MOST_NAMED else ["PATH..."]
    program = click.get_current_context().find_root().command_path
    command = " ".join([program, "rewrite --write", *([shlex.join(words)] if words else []), *ends])
    click.echo(f"to make these changes: {command}", err=True)


def _only(file: FileReport, outcomes: tuple[str, ...]) -> FileReport:
    """The report without places of other outcomes; all of it if none is named. A failure stays."""
    if not outcomes:
        return file
    return replace(file, sites=tuple(site for site in file.sites if site.outcome.value in outcomes))


def _print_diff(changed: Iterable[Inspected]) -> None:
    stdout = sys.stdout.buffer
    for file in changed:
        assert file.before is not None and file.after is not None
        try:
            stdout.write(unified_diff(shown(file.path), file.before, file.after))
        except ValueError as error:
            raise CannotRun(str(error)) from error
    stdout.flush()
