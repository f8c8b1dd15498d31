"""The one exception for what a user can put right; the command line turns it into a message and exit code 2."""

from __future__ import annotations


class CannotRun(Exception):
    """The work could not be done. The message says what must hold, what was given and what to do."""


class Unavailable(CannotRun):
    """A source could not be had from where it is: no network, no such release, no checkout."""
