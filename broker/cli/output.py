"""Shared by the commands: running a coroutine, printing a table or JSON, failing."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from barnabas.broker.cli import connection_options, interrupts
from barnabas.broker.client.client import ClientError, KafkaClient, ResponseError
from barnabas.broker.observability.logs import escape

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

EXIT_FAILURE = 1
EXIT_USAGE = 2

# Not a terminal: a program or a file reads it, so nothing may be cut or wrapped.
_UNLIMITED_WIDTH = 10_000

BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        envvar="BARNABAS_BOOTSTRAP_SERVER",
        show_envvar=False,  # it would be cut off in a narrow terminal
        help="Where to reach the cluster; also BARNABAS_BOOTSTRAP_SERVER.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"


def with_client(bootstrap_servers: str, work: Callable[[KafkaClient], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a client that is connected as the command's options say. Errors: ClientError, also if a response
    lacks a requested item.

    What brokers did not permit is printed with the command that grants it. Ctrl-C and SIGTERM cancel the work, so that
    a member leaves its group; a second one ends the process. The signal handler itself raises nothing.
    """

    servers, security = connection_options.servers(bootstrap_servers), connection_options.connection().security()

    async def connected() -> T:
        client = KafkaClient(servers, security=security)
        try:
            async with client:
                result = await work(client)
        except ResponseError as error:
            if (refusal := client.refusals.of(error.error)) is not None:
                raise ClientError(f"{error}; {refusal.advice(security.username)}") from error
            raise
        for refusal in client.refusals:
            complain(refusal.advice(security.username))
        return result

    try:
        return interrupts.run(connected)
    except interrupts.Interrupted as interrupted:
        if isinstance(interrupted.__cause__, ClientError):
            complain(str(interrupted.__cause__))
        raise typer.Exit(128 + interrupted.number) from None
    except (LookupError, ValueError) as error:
        # A requested item is missing in a response, or occurs twice, and the command relies on it. It may be a bug of
        # ours, so the place is named.
        *_, place = traceback.extract_tb(error.__traceback__)
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise ClientError(f"a response does not fit its request: {type(error).__name__}: {error} ({where})") from error


def console(*, is_beside: bool = False) -> Console:
    """Standard output, or standard error, without markup in the printed text."""
    from rich.console import Console

    terminal = Console(markup=False, highlight=False, soft_wrap=True, stderr=is_beside)
    if not terminal.is_terminal:
        terminal.width = _UNLIMITED_WIDTH
    return terminal


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None, is_beside: bool = False
) -> None:
    """Print a table; numbers are right-aligned. Control characters are shown as text, not sent to the terminal. On
    standard error if it accompanies a document for programs.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    terminal = console(is_beside=is_beside)
    table = Table(
        box=box.SIMPLE_HEAD if terminal.is_terminal else None, title=title, title_justify="left", pad_edge=False
    )
    for number, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else escape(str(cell))) for cell in row))
    terminal.print(table, soft_wrap=False)


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not _is_utf8()) + "\n")


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def say(text: str) -> None:
    """Print a sentence on standard output."""
    sys.stdout.write(f"{escape(text)}\n")


def note(text: str) -> None:
    """Print a sentence about the progress on standard error: not an error."""
    sys.stderr.write(f"{escape(text)}\n")


def complain(text: str) -> None:
    """Print a sentence about an error or a deviation from the request on standard error."""
    sys.stderr.write(f"barnabas: {escape(text)}\n")


def tell_delay(error: ClientError, left_s: float | None) -> None:
    """Print an error that is being retried, and for how long."""
    complain(
        f"{error}; trying again until it works" if left_s is None else f"{error}; trying for another {left_s:.0f} s"
    )


def counted(count: int, noun: str) -> str:
    """A number of things: `1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class Outcome(NamedTuple):
    """The result of one item that a command was to change."""

    item: Mapping[str, Any]
    sentence: str
    is_failure: bool = False


def report(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """Print each outcome, failures on standard error; any failure ends the command with status 1.

    As JSON: a list of the items, each with its error (null if there is none).
    """
    if as_json:
        print_json([{**each.item, "error": each.sentence if each.is_failure else None} for each in outcomes])
    else:
        for each in outcomes:
            if not each.is_failure:
                say(each.sentence)
    end_with([each.sentence for each in outcomes if each.is_failure])


def end_with(failures: Sequence[str]) -> None:
    """Print failures, and end the command with status 1 if there are any."""
    for failure in failures:
        complain(failure)
    if failures:
        raise typer.Exit(EXIT_FAILURE)


__all__ = [
    "DEFAULT_BOOTSTRAP_SERVERS",
    "EXIT_FAILURE",
    "EXIT_USAGE",
    "AsJson",
    "BootstrapServers",
    "ClientError",
    "Outcome",
    "complain",
    "counted",
    "end_with",
    "note",
    "print_json",
    "print_table",
    "report",
    "say",
    "tell_delay",
    "with_client",
]
