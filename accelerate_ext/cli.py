"""The command `accelerate-ext`: results on stdout, progress and warnings on stderr.

Exit code 0: as it should be; 1: a difference was found; 2: could not run.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import click

from .ema.commands import ema
from .ema.metric import MetricError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="accelerate-ext")
def cli() -> None:
    """Averages of a model's weights that move with applied updates."""


cli.add_command(ema)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits. Errors of the input are one line on stderr, without a traceback."""
    warnings.showwarning = _show
    try:
        code = cli.main(args=arguments, prog_name="accelerate-ext", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(2)
    except (ValueError, OSError, ImportError, MetricError) as error:  # SnapshotError and the like are ValueErrors
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _show(message: Warning | str, *details: Any, **more: Any) -> None:
    click.echo(f"warning: {message}", err=True)


if __name__ == "__main__":
    main()
