"""What several verbs print, and how they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import click

from ..catalog import Upstream
from ..patch import Series, Tree
from ..refusals import count_new
from ..report import FileReport, failure_line, summary, text_line
from ..series import file_reports
from ..site import Outcome


def print_refused(reports: Iterable[FileReport]) -> int:
    """A line on stderr for each site that was refused; returns how many there are."""
    lines = [text_line(file.path, site) for file in reports for site in file.sites if site.outcome is Outcome.REFUSED]
    for line in lines:
        click.echo(line, err=True)
    return len(lines)


def print_failures(reports: Iterable[FileReport]) -> int:
    """A line on stderr for each file that could not be read; returns how many there are."""
    lines = [failure_line(file) for file in reports if file.failure]
    for line in lines:
        click.echo(line, err=True)
    return len(lines)


def print_made(upstream: Upstream, tree: Tree, series: Series) -> int:
    """The patches of a series on stdout, what was refused and the totals on stderr.

    Returns how much was refused that is not refused at the pinned base as well.
    """
    reports = file_reports(series)
    print_refused(reports)
    for patch in series.patches:
        click.echo(f"{series.name}: {patch.subject}")
    click.echo(f"{series.name}: {summary(reports)}", err=True)
    if tree.is_exact:
        return 0
    num_refused, num_new = count_new(upstream, series)
    if num_new < num_refused:
        num_old = num_refused - num_new
        are = "is" if num_old == 1 else "are"
        click.echo(
            f"{series.name}: {num_old} of {num_refused} refused places {are} refused at the pinned base too", err=True
        )
    return num_new


def finish(could_not_run: bool, is_different: bool) -> NoReturn:
    """Ends the process: 2 if something could not be done, otherwise 1 if there is a difference, otherwise 0."""
    raise SystemExit(2 if could_not_run else int(is_different))
