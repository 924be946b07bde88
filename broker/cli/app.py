"""The commands besides `serve`: a typer application, and its error handling."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from barnabas.broker.cli import completion
from barnabas.broker.cli.command import Application, Group
from barnabas.broker.cli.output import EXIT_FAILURE, complain
from barnabas.broker.cli.version import print_version
from barnabas.broker.client.client import ClientError

MODULES: Final = {
    "serve": "serve_help",
    "topics": "topics",
    "produce": "produce",
    "consume": "consume",
    "groups": "groups",
    "transactions": "transactions",
    "configs": "configs",
    "cluster": "cluster",
    "brokers": "brokers",
    "users": "users",
    "acls": "acls",
    "quotas": "quotas",
    "certificates": "certificates",
    "check": "check",
    "zookeeper": "zookeeper",
    "version": "version",
}
"""The commands in the order of their use, and the modules of this folder that contain them: as a function of the
command's name, or as an application of commands."""


class LoadedCommands(Mapping[str, Any]):
    """The commands by name. A module is imported when its command is needed, as one run needs only one."""

    def __getitem__(self, name: str) -> Any:
        return load(name)

    def __contains__(self, name: object) -> bool:
        return name in MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


@functools.cache
def load(name: str) -> Any:
    """The command of that name, from its module. Errors: KeyError."""
    module = importlib.import_module(f"barnabas.broker.cli.{MODULES[name]}")
    around = Application(rich_markup_mode="rich")
    if isinstance(application := getattr(module, "app", None), typer.Typer):
        around.add_typer(application, name=name)
    else:
        around.command(name)(getattr(module, name))
    # A callback makes typer build a group, also of one command.
    around.callback()(_nothing)
    return typer.main.get_group(around).commands[name]


def _nothing() -> None:
    """A group without options of its own."""


class Commands(Group):
    """Commands in the order of their use; a name is accepted in the singular and in the plural."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = LoadedCommands()  # type: ignore[assignment]  # click asks for a dictionary, and only reads it

    def list_commands(self, context: Any) -> list[str]:
        """The names, for help and completion."""
        return list(MODULES)

    def get_command(self, context: Any, name: str) -> Any:
        """The command of that name, or of the name with or without an s."""
        other = name.removesuffix("s") if name.endswith("s") else f"{name}s"
        return super().get_command(context, name) or super().get_command(context, other)


app = Application(
    name="barnabas",
    cls=Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Barnabas: a Kafka-wire-compatible message broker, and tools that work with any such broker.",
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before any command."""


REFUSALS_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status: 0, 1 after a failure, 2 for wrong usage, 130 after Ctrl-C."""
    status = 0
    try:
        status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # the reader has closed the pipe, and Python must not try again
    except OSError as error:
        if error.errno not in REFUSALS_OF_OUTPUT or error.filename is not None:
            raise
        sys.stdout = None
        complain(f"standard output cannot be written: {error.strerror}")
        return EXIT_FAILURE
    return status


def _run(arguments: list[str]) -> int:
    try:
        with completion.bash_words(os.environ):
            app(arguments, prog_name="barnabas")
    except ClientError as error:
        complain(str(error))
        return EXIT_FAILURE
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else EXIT_FAILURE
    return 0
