"""What several verbs print, and how they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import click

from .. import series as store
from ..generate import Generated
from ..report import FileReport, failure_line, summary, text_line
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


def print_made(made: Generated) -> bool:
    """The patches of a series and of those that it stands on; returns whether anything was refused."""
    reports = [file for part in made.chain for file in store.file_reports(part)]
    refused = print_refused(reports)
    for part in made.chain:
        for patch in part.patches:
            click.echo(f"{part.name}: {patch.subject}")
    click.echo(summary(reports), err=True)
    return bool(refused)


def finish(could_not_run: bool, is_different: bool) -> NoReturn:
    """Ends the process: 2 if something could not be done, otherwise 1 if there is a difference, otherwise 0."""
    raise SystemExit(2 if could_not_run else int(is_different))
