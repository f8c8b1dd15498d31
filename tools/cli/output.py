"""What several verbs print, and how they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import click

from ..patch import Series
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


def print_made(series: Series) -> int:
    """The patches of a series on stdout, what was refused and the totals on stderr; returns how much was refused."""
    reports = file_reports(series)
    num_refused = print_refused(reports)
    for patch in series.patches:
        click.echo(f"{series.name}: {patch.subject}")
    click.echo(f"{series.name}: {summary(reports)}", err=True)
    return num_refused


def finish(could_not_run: bool, is_different: bool) -> NoReturn:
    """Ends the process: 2 if something could not be done, otherwise 1 if there is a difference, otherwise 0."""
    raise SystemExit(2 if could_not_run else int(is_different))
