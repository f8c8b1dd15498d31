"""The command line: verbs and exit codes.

Results go to stdout, progress to stderr. Exit code 0: as it should be; 1: a difference was found; 2: could not run.
"""

from __future__ import annotations

import traceback
from typing import Any

import click

from ..errors import CannotRun
from ..overflow.cli import overflow
from .scripts import report, rewrite
from .series import apply, check, generate, run


class Stopped(click.ClickException):
    """What keeps a verb from running: a message on stderr and exit code 2."""

    exit_code = 2


class Verbs(click.Group):
    """A group whose verbs may raise; whatever they raise, exit code 1 keeps its one meaning."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb. What a user can put right becomes a message; a fault of ours shows its traceback first."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except CannotRun as error:
            raise Stopped(str(error)) from error
        except KeyboardInterrupt:
            raise Stopped("interrupted") from None
        except Exception as error:
            traceback.print_exc()
            raise Stopped(f"this is a fault of the tools, please report it with the lines above: {error!r}") from error


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


for verb in (rewrite, report, generate, apply, check, overflow, run):
    main.add_command(verb)
