"""`barnabas serve`: its options, and the program that they ask for: one broker, or several.

Uses argparse, unlike the other commands: a broker's start must not wait for typer and rich.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from barnabas.broker.cli.one_broker import EXIT_USAGE, refuse, serve_one
from barnabas.broker.observability import logs

if TYPE_CHECKING:
    from barnabas.broker.environment import Environment


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line, and end with status 2."""
        self.exit(EXIT_USAGE, f"barnabas: {logs.escape(message)}; `barnabas serve --help` lists the options\n")


def parser() -> argparse.ArgumentParser:
    """The options of `barnabas serve`; their help is in `serve_help.py`."""
    result = Parser(prog="barnabas serve", add_help=False, allow_abbrev=False)
    result.add_argument("server_properties", nargs="?", type=Path)
    result.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    result.add_argument("--listen", metavar="HOST:PORT")
    result.add_argument("--data-dir", metavar="DIR")
    result.add_argument("--node-id", metavar="N")
    result.add_argument("--zookeeper", metavar="CONNECT")
    result.add_argument("--http", metavar="HOST:PORT")
    result.add_argument("--brokers", metavar="N")
    result.add_argument("--control", metavar="HOST:PORT")
    result.add_argument("--secure", metavar="DIR", nargs="?", const="")
    result.add_argument("--log-level", metavar="LEVEL")
    result.add_argument("--log-format", metavar="FORMAT")
    return result


def main(
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> int:
    """Start a broker; returns when it has stopped. `environ` are the process's variables, `environment` is the rest of
    the broker's environment.

    Exit status: 0 after a clean stop, 1 when it could not start or go on, 2 when options or configuration are wrong.
    """
    options = parser().parse_args(arguments)
    environ = os.environ if environ is None else environ
    if options.control is not None:  # `__main__` handles it
        return refuse(["--control: expected after `barnabas serve`, and nowhere else"])
    if options.brokers is not None:
        from barnabas.broker.cli.several_brokers import main as serve_several

        return serve_several(options, environ)
    if options.secure is not None:
        from barnabas.broker.cli.secure import main as serve_secured

        return serve_secured(options, environ, environment)
    return serve_one(options, environ, environment)
