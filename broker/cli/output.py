"""What the commands share: how to run a coroutine, how to print a table or JSON, how to fail."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.observability.logs import escape

T = TypeVar("T")

EXIT_FAILURE = 1

# Not a terminal: a program or a file reads it, so nothing may be cut or wrapped.
_UNLIMITED_WIDTH = 10_000

BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        envvar="BARNABAS_BOOTSTRAP_SERVER",
        help="Where to reach the cluster.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"


def with_client(bootstrap_servers: str, work: Callable[[KafkaClient], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a connected client. Errors: ClientError."""

    async def connected() -> T:
        async with KafkaClient(bootstrap_servers) as client:
            return await work(client)

    return asyncio.run(connected())


def console() -> Console:
    """Standard output, without markup in what is printed."""
    terminal = Console(markup=False, highlight=False, soft_wrap=True)
    if not terminal.is_terminal:
        terminal.width = _UNLIMITED_WIDTH
    return terminal


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Columns for people; numbers to the right. Control characters are shown, not sent to the terminal."""
    terminal = console()
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
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not _is_utf8()) + "\n")


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def say(text: str) -> None:
    """A sentence for people on standard output."""
    sys.stdout.write(f"{escape(text)}\n")


def complain(text: str) -> None:
    """A sentence for people on standard error."""
    sys.stderr.write(f"barnabas: {escape(text)}\n")


def report_failures(failures: Mapping[str, str]) -> None:
    """End the command with status 1 if some of its items failed; each is told."""
    for failure in failures.values():
        complain(failure)
    if failures:
        raise typer.Exit(EXIT_FAILURE)


def key_values(entries: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE options as a mapping. Errors: usage error that names the option."""
    result = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{entry!r} is not KEY=VALUE", param_hint=option)
        result[key.strip()] = value
    return result


def text_of(data: bytes | None) -> str | None:
    """Bytes as text for people; what is not UTF-8 is shown as \\xNN."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


__all__ = [
    "DEFAULT_BOOTSTRAP_SERVERS",
    "EXIT_FAILURE",
    "AsJson",
    "BootstrapServers",
    "ClientError",
    "complain",
    "key_values",
    "print_json",
    "print_table",
    "report_failures",
    "say",
    "text_of",
    "with_client",
]
