"""The commands besides `serve`: a typer application, and its error handling."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer

import barnabas
from barnabas.broker.cli import (
    acls,
    brokers,
    certificates,
    check,
    cluster,
    completion,
    configs,
    consume,
    groups,
    produce,
    quotas,
    serve_help,
    topics,
    transactions,
    users,
    zookeeper,
)
from barnabas.broker.cli.command import Application, Group
from barnabas.broker.cli.output import EXIT_FAILURE, AsJson, complain, print_json, say
from barnabas.broker.client.client import ClientError


class Commands(Group):
    """Commands in the order of their use; a name is accepted in the singular and in the plural."""

    ORDER = (
        "serve",
        "topics",
        "produce",
        "consume",
        "groups",
        "transactions",
        "configs",
        "cluster",
        "brokers",
        "users",
        "acls",
        "quotas",
        "certificates",
        "check",
        "zookeeper",
        "version",
    )

    def list_commands(self, context: Any) -> list[str]:
        """The names, for help and completion."""
        return sorted(super().list_commands(context), key=self.ORDER.index)

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
app.command("serve")(serve_help.serve)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(configs.app, name="configs")
app.add_typer(cluster.app, name="cluster")
app.add_typer(brokers.app, name="brokers")
app.add_typer(users.app, name="users")
app.add_typer(acls.app, name="acls")
app.add_typer(quotas.app, name="quotas")
app.add_typer(certificates.app, name="certificates")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("check")(check.check)
app.command("zookeeper")(zookeeper.zookeeper)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"barnabas {barnabas.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before any command."""


@app.command("version")
def version(as_json: AsJson = False) -> None:
    """Show the version.

    [bold]Example[/bold]

      barnabas version --json
    """
    if as_json:
        print_json({"version": barnabas.__version__})
    else:
        _print_version(True)


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
