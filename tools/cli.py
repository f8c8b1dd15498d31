"""The command line: verbs, exit codes, and everything that prints.

Results go to stdout, progress to stderr. Exit code 0: as it should be; 1: a difference was found; 2: could not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from . import catalog, report
from . import series as store
from .apply import apply_series
from .check import State, Verdict, check
from .diff import unified_diff
from .errors import CannotRun, Unavailable
from .files import python_files, shown, write_all
from .generate import Generated, export, generate, open_source, record
from .inspection import Inspected, inspect
from .options import Options
from .site import Outcome

OUT = Path("out")


class Stopped(click.ClickException):
    """What a user can put right: a message on stderr and exit code 2."""

    exit_code = 2


class Verbs(click.Group):
    """A group whose verbs may raise CannotRun."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; CannotRun becomes a message and exit code 2."""
        try:
            return super().invoke(ctx)
        except CannotRun as error:
            raise Stopped(str(error)) from error


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Makes training scripts count the optimizer updates that were applied.

    GradScaler, DeepSpeed and hand-written guards drop updates; most loops count them all the same, in EMA,
    global_step, progress bars, logged losses and checkpoints.

    \b
    Your own script:    report train.py        what counts skipped updates, and where
                        rewrite train.py       the change as a diff; --write makes it
    A fork or upstream: generate diffusers     patches as mails for git am
                        apply diffusers --to DIR
                        check                  are the committed patches up to date?
    Everything at once: run

    Exit codes: 0 as it should be, 1 a difference was found, 2 could not run.
    """


paths_argument = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")


def choices(verb: Callable[..., None]) -> Callable[..., None]:
    """Options for what only the user can decide; a refusal names the one that helps."""
    optimizer = click.option(
        "--counted-optimizer",
        metavar="NAME",
        help="The optimizer whose applied updates count, where several step in one window.",
    )
    arguments = click.option(
        "--follow-arguments/--no-follow-arguments",
        default=None,
        help="Whether a boundary flag that is handed to a function becomes `update applied`. Default: where the file "
        "shows the function and it guards bookkeeping.",
    )
    return optimizer(arguments(verb))


@main.command(short_help="Rewrite scripts so that they count applied updates.")
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
    written if a file cannot be read. --diff exits with 1 if there is anything to change; --write exits with 1 if
    something was refused.
    """
    options = Options(counted_optimizer, follow_arguments)
    inspected = [inspect(path, options) for path in python_files(paths)]
    changed = [file for file in inspected if file.after is not None]
    reports = [file.report for file in inspected]
    refused = _print_refused(reports)
    failures = _print_failures(reports)
    if is_diff:
        _print_diff(changed)
    elif not failures:
        write_all({file.path: file.after for file in changed if file.after is not None})
        for file in changed:
            click.echo(f"rewrote {file.path}")
    elif changed:
        click.echo(f"nothing was written ({len(changed)} to rewrite): every file must be readable first", err=True)
    click.echo(report.summary(reports), err=True)
    _exit(bool(failures), bool(refused or (is_diff and changed)))


@main.command("report", short_help="List what counts skipped updates, and why it is so.")
@paths_argument
@click.option("--json", "is_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    help="text: a line a site; json: tools/schemas/report.schema.json; sarif: 2.1.0, for code scanning.",
)
@choices
def report_verb(
    paths: tuple[Path, ...],
    is_json: bool,
    layout: str,
    counted_optimizer: str | None,
    follow_arguments: bool | None,
) -> None:
    """Lists every place that bears on which updates are counted, with the verdict and its reason.

    Exits with 1 if a file counts skipped updates, whether it can be rewritten or not.
    """
    options = Options(counted_optimizer, follow_arguments)
    reports = [inspect(path, options).report for path in python_files(paths)]
    if is_json or layout == "json":
        click.echo(report.as_json(report.document(reports)), nl=False)
    elif layout == "sarif":
        click.echo(report.as_json(report.sarif(reports)), nl=False)
    else:
        click.echo(report.as_text(reports), nl=False)
    failures = _print_failures(reports)
    _exit(bool(failures), any(file.needs_change for file in reports))


source_option = click.option(
    "--source",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A git checkout, read at a commit and never its work tree; or a wheel. Default: the pinned release from the "
    "package index, the checkout named by DIFFUSERS_CHECKOUT, or a fetch of the pinned commit.",
)
base_option = click.option(
    "--base", metavar="REV", help="The commit or release to start from. Default: the pinned one."
)
series_option = click.option("--series", "name", metavar="NAME", help="Which series. Default: the upstream's first.")


@main.command("generate", short_help="Write a series as mails for git am.")
@click.argument("upstream")
@source_option
@base_option
@series_option
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Where the mails go.")
@click.option("--record", "is_recorded", is_flag=True, help="Write the committed form, without context, to patches/.")
def generate_verb(
    upstream: str, source: Path | None, base: str | None, name: str | None, out: Path, is_recorded: bool
) -> None:
    """Writes the series of an upstream as mails for `git am`, with NOTES.md and report.json beside them.

    UPSTREAM is a row of patches/upstreams.toml. Exits with 1 if something was refused that the pinned base has.
    """
    row = catalog.find(upstream)
    with open_source(row, source, base) as tree:
        click.echo(f"{row.name} at {tree.base}", err=True)
        made = generate(row, tree, name)
        folder = record(made) if is_recorded else export(made, out)
    refused = _print_made(made)
    click.echo(folder)
    _exit(False, refused and not tree.is_exact)


@main.command("check", short_help="Compare the committed patches with what the tools write.")
@click.argument("upstreams", nargs=-1)
@source_option
@base_option
def check_verb(upstreams: tuple[str, ...], source: Path | None, base: str | None) -> None:
    """Says of every committed patch whether it is current, stale, in conflict or upstreamed.

    Generates each series again, compares bytes, and applies it to a clean copy. With --base or --source it says how
    the committed patches stand to another commit or release. Exits with 1 if a patch is not current, with 2 if a
    source could not be had.
    """
    rows = [catalog.find(name) for name in upstreams] or [row for row in catalog.load().values() if row.is_committed]
    if (source or base) and len(rows) != 1:
        raise CannotRun(f"--source and --base belong to one upstream, got {len(rows)}; name the one that is meant")
    verdicts: list[Verdict] = []
    unavailable: list[str] = []
    for row in rows:
        try:
            with open_source(row, source, base) as tree:
                click.echo(f"{row.name} at {tree.base}", err=True)
                verdicts += check(row, tree, catalog.patches_folder())
        except Unavailable as error:
            unavailable.append(f"{row.name}: not checked: {error}")
    for verdict in verdicts:
        click.echo(f"{verdict.upstream}/{verdict.series}/{verdict.file}: {verdict.state.value}: {verdict.message}")
    for line in unavailable:
        click.echo(line, err=True)
    _exit(bool(unavailable), any(verdict.state is not State.CURRENT for verdict in verdicts))


@main.command("apply", short_help="Commit a series to a checkout, all of it or nothing.")
@click.argument("upstream")
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The checkout.")
@series_option
@click.option("--branch", metavar="B", help="The new branch. Default: applied-updates/SERIES.")
def apply_verb(upstream: str, target: Path, name: str | None, branch: str | None) -> None:
    """Commits a series to a checkout, on a new branch: all of it, or nothing.

    The patches are generated from the checkout's own HEAD, so this works on a fork that has moved on; what had to be
    refused there is printed. The checkout must have no uncommitted changes. Exits with 1 if something was refused that
    the pinned base has.
    """
    applied = apply_series(catalog.find(upstream), target, name, branch)
    refused = _print_made(applied.made)
    if applied.branch:
        click.echo(f"{applied.num_commits} commits on the new branch {applied.branch} of {target}")
    else:
        click.echo(f"nothing to do: no patch of this series changes {target}")
    _exit(False, refused and not applied.made.tree.is_exact)


@main.command("run", short_help="Do it all: generate, prove, and show two Trainer runs.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Where the mails go.")
def run_verb(out: Path) -> None:
    """Does it all: the newest releases and the pinned Diffusers base in, proven patches and two observed runs out."""
    from .run import run

    _exit(False, not run(out))


def _print_diff(changed: Iterable[Inspected]) -> None:
    stdout = sys.stdout.buffer
    for file in changed:
        assert file.before is not None and file.after is not None
        try:
            stdout.write(unified_diff(shown(file.path), file.before, file.after))
        except ValueError as error:
            raise CannotRun(str(error)) from error
    stdout.flush()


def _print_refused(reports: Iterable[report.FileReport]) -> int:
    lines = [
        report.text_line(file.path, site) for file in reports for site in file.sites if site.outcome is Outcome.REFUSED
    ]
    for line in lines:
        click.echo(line, err=True)
    return len(lines)


def _print_failures(reports: Iterable[report.FileReport]) -> int:
    lines = [report.failure_line(file) for file in reports if file.failure]
    for line in lines:
        click.echo(line, err=True)
    return len(lines)


def _print_made(made: Generated) -> bool:
    """What a series came to; returns whether anything was refused."""
    reports = [file for part in made.chain for file in store.file_reports(part)]
    refused = _print_refused(reports)
    for part in made.chain:
        for patch in part.patches:
            click.echo(f"{part.name}: {patch.subject}")
    click.echo(report.summary(reports), err=True)
    return bool(refused)


def _exit(could_not_run: bool, is_different: bool) -> None:
    raise SystemExit(2 if could_not_run else int(is_different))


if importlib.util.find_spec(f"{__package__}.overflow.cli"):
    main.add_command(importlib.import_module(f"{__package__}.overflow.cli").overflow)
