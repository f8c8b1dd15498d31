"""The verbs for upstreams: `generate`, `check`, `apply` and `run`."""

from __future__ import annotations

from pathlib import Path

import click

from .. import catalog
from ..apply import apply_series
from ..check import State, Verdict, as_document
from ..check import check as check_series
from ..errors import CannotRun, Unavailable
from ..generate import export, open_source, record
from ..generate import generate as generate_series
from ..report import as_json
from .output import finish, print_made

OUT = Path("out")

source_option = click.option(
    "--source",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A git checkout, read at a commit and never its work tree; or a wheel. Default: the pinned release from the "
    "package index, the checkout named by DIFFUSERS_CHECKOUT, or a fetch of the pinned commit.",
)
base_option = click.option(
    "--base",
    metavar="REV",
    help="The commit or release to start from. Default: the pinned one; HEAD for a --source checkout of an upstream "
    "that is pinned to a release (Transformers, Accelerate).",
)
series_option = click.option("--series", "name", metavar="NAME", help="Which series. Default: the upstream's first.")


@click.command("generate", short_help="Write a series as mails for git am.")
@click.argument("upstream")
@source_option
@base_option
@series_option
@click.option("--all", "is_all", is_flag=True, help="Every series of the upstream.")
@click.option("--out", type=click.Path(path_type=Path), help=f"Where the mails go.  [default: {OUT}]")
@click.option("--record", "is_recorded", is_flag=True, help="Write the committed form, without context, to patches/.")
def generate(
    upstream: str,
    source: Path | None,
    base: str | None,
    name: str | None,
    is_all: bool,
    out: Path | None,
    is_recorded: bool,
) -> None:
    """Writes the series of an upstream as mails for `git am`, with NOTES.md and report.json beside them.

    UPSTREAM is a row of patches/upstreams.toml. A series that stands on others has its own mails only; `apply` puts
    all of them onto a checkout. Exits with 1 if something was refused that is not refused at the pinned base as well.
    """
    row = catalog.find(upstream)
    if is_all and name:
        raise CannotRun(f"--all means every series, so --series must be left out, got {name}")
    if is_recorded and out is not None:
        raise CannotRun(f"--record writes to patches/ and --out elsewhere: give one of them, got --out {out} as well")
    num_new = 0
    with open_source(row, source, base) as tree:
        click.echo(f"{row.name} at {tree.base}", err=True)
        for part in row.series if is_all else [name]:
            made = generate_series(row, tree, part)
            folder = record(made) if is_recorded else export(made, out or OUT)
            num_new += print_made(row, tree, made.series)
            click.echo(folder)
    finish(False, bool(num_new))


@click.command("check", short_help="Compare the committed patches with what the tools write.")
@click.argument("upstreams", nargs=-1)
@source_option
@base_option
@click.option("--json", "is_json", is_flag=True, help="Print tools/schemas/check.schema.json.")
def check(upstreams: tuple[str, ...], source: Path | None, base: str | None, is_json: bool) -> None:
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
                verdicts += check_series(row, tree, catalog.patches_folder())
        except Unavailable as error:
            unavailable.append(f"{row.name}: not checked: {error}")
    if is_json:
        click.echo(as_json(as_document(verdicts)), nl=False)
    for verdict in verdicts if not is_json else ():
        click.echo(f"{verdict.upstream}/{verdict.series}/{verdict.file}: {verdict.state.value}: {verdict.message}")
    for line in unavailable:
        click.echo(line, err=True)
    finish(bool(unavailable), any(verdict.state is not State.CURRENT for verdict in verdicts))


@click.command("apply", short_help="Commit a series to a checkout, all of it or nothing.")
@click.argument("upstream")
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The checkout.")
@series_option
@click.option("--branch", metavar="B", help="The new branch. Default: applied-updates/SERIES.")
def apply(upstream: str, target: Path, name: str | None, branch: str | None) -> None:
    """Commits a series to a checkout, on a new branch: all of it, or nothing.

    The patches are generated from the checkout's own HEAD, so this works on a fork that has moved on; what had to be
    refused there is printed. The checkout must have no uncommitted changes, and stands on the new branch afterwards.
    Exits with 1 if something was refused that is not refused at the pinned base as well.
    """
    row = catalog.find(upstream)
    applied = apply_series(row, target, name, branch)
    num_new = sum(print_made(row, applied.made.tree, part) for part in applied.made.chain)
    if applied.branch:
        commits = "1 commit" if applied.num_commits == 1 else f"{applied.num_commits} commits"
        click.echo(f"{commits} on the new branch {applied.branch} of {target}; the checkout stands on it now")
    else:
        click.echo(f"nothing to do: no patch of this series changes {target}")
    finish(False, bool(num_new))


@click.command("run", short_help="Do it all: generate, prove, and show two Trainer runs.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Where the mails go.")
def run(out: Path) -> None:
    """Does it all: the newest releases and the pinned Diffusers base in, proven patches and two observed runs out."""
    from ..run import run as run_everything

    finish(False, not run_everything(out))
