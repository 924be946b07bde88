"""The commands beside `serve`: a typer application, and how its errors end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import barnabas
from barnabas.broker.cli import check, configs, consume, groups, produce, topics, transactions
from barnabas.broker.cli.output import EXIT_FAILURE, complain
from barnabas.broker.client.client import ClientError

app = typer.Typer(
    name="barnabas",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Barnabas: a Kafka-wire-compatible message broker, and tools that work with any such broker.",
)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(configs.app, name="configs")
app.add_typer(configs.file_app, name="config")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("check")(check.check)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"barnabas {barnabas.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before any command."""


@app.command("serve")
def serve(
    server_properties: Annotated[Path | None, typer.Argument(metavar="[SERVER_PROPERTIES]")] = None,
    override: Annotated[list[str] | None, typer.Option("--override", metavar="KEY=VALUE")] = None,
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR")] = None,
    node_id: Annotated[int | None, typer.Option("--node-id", metavar="N")] = None,
    http: Annotated[str | None, typer.Option("--http", metavar="HOST:PORT")] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", metavar="L")] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", metavar="text|json")] = None,
) -> None:
    """Run a broker in the foreground; `barnabas serve --help` tells more."""
    # For the list of commands and for completion only: `barnabas serve` itself does not come this way.
    from barnabas.broker.cli.serve import main as serve_main

    raise typer.Exit(serve_main(sys.argv[2:]))


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status: 0, 1 after a failure, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        app(arguments, prog_name="barnabas")
    except ClientError as error:
        complain(str(error))
        return EXIT_FAILURE
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else EXIT_FAILURE
    return 0
