"""`barnabas version`, and `barnabas --version`."""

from __future__ import annotations

import typer

import barnabas
from barnabas.broker.cli.output import AsJson, print_json, say


def print_version(wanted: bool) -> None:
    """Print the version if that is `wanted`, and end the command."""
    if wanted:
        say(f"barnabas {barnabas.__version__}")
        raise typer.Exit


def version(as_json: AsJson = False) -> None:
    """Show the version.

    [bold]Example[/bold]

      barnabas version --json
    """
    if as_json:
        print_json({"version": barnabas.__version__})
    else:
        print_version(True)
