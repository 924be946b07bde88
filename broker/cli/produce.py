"""`barnabas produce`: lines from a file or standard input become records."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

import typer

from barnabas.broker.cli.output import DEFAULT_BOOTSTRAP_SERVERS, BootstrapServers, key_values, with_client
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.producer import Producer
from barnabas.broker.observability.logs import escape
from barnabas.wire.record_batch import CompressionType

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
PROGRESS_FROM_BYTES = 4 * 1024 * 1024

Headers = list[tuple[str, bytes | None]]


class LineParser:
    """Takes lines apart as the options say. Errors: ClientError that names the line."""

    def __init__(
        self, key_separator: bytes | None, null_value: bytes | None, parse_headers: bool, headers: Headers
    ) -> None:
        self._key_separator = key_separator
        self._null_value = null_value
        self._parse_headers = parse_headers
        self._headers = headers
        self.line_count = 0

    def parse(self, line: bytes) -> tuple[bytes | None, bytes | None, Headers]:
        """Key, value and headers of one line without its end."""
        self.line_count += 1
        headers = self._headers
        if self._parse_headers:
            text, tab, line = line.partition(b"\t")
            if not tab:
                raise ClientError(f"line {self.line_count} has no tab after its headers")
            headers = headers + self._line_headers(text)
        key: bytes | None = None
        if self._key_separator is not None:
            key, separator, line = line.partition(self._key_separator)
            if not separator:
                shown = self._key_separator.decode("utf-8", "backslashreplace")
                raise ClientError(f"line {self.line_count} has no key separator {shown!r}")
        return key, None if line == self._null_value else line, headers

    def _line_headers(self, text: bytes) -> Headers:
        headers: Headers = []
        for entry in filter(None, text.split(b",")):
            name, colon, value = entry.partition(b":")
            if not colon:
                raise ClientError(f"line {self.line_count}: header {entry!r} is not NAME:VALUE")
            headers.append((name.decode("utf-8", "surrogateescape"), value))
        return headers


class Progress(Protocol):
    """Told how many bytes of input were taken."""

    def __call__(self, byte_count: int) -> None: ...


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to write; created if the broker allows it.")],
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="One record per line; standard input if there is none.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="What stands between key and value.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header for every record.")
    ] = None,
    parse_headers: Annotated[
        bool, typer.Option("--parse-headers", help="Lines start with NAME:VALUE,... and a tab.")
    ] = False,
    null_value: Annotated[
        str | None, typer.Option("--null-value", metavar="TEXT", help="This text becomes a null value (a tombstone).")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Instead of the key's partition.")] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Write records: one per line of a file, or of standard input.

    Every record is acknowledged by all in-sync replicas (acks=all), in order, without duplicates.

    [bold]Examples[/bold]

      echo hello | barnabas produce greetings
      barnabas produce flights flights.jsonl --compression zstd
      printf 'a:1\\nb:2\\n' | barnabas produce pairs --key-separator :
      barnabas produce pairs dump.txt --key-separator : --null-value NULL --header source=dump
    """
    try:
        codec = CompressionType[compression.upper()]
    except KeyError as error:
        raise typer.BadParameter("choose none, gzip, snappy, lz4 or zstd", param_hint="--compression") from error
    parser = LineParser(
        _argument_bytes(key_separator),
        _argument_bytes(null_value),
        parse_headers,
        [(name, value.encode()) for name, value in key_values(header or [], "--header").items()],
    )
    if key_separator == "":
        raise typer.BadParameter("the separator is empty", param_hint="--key-separator")

    async def work(client: KafkaClient) -> int:
        with _opened(path) as source, _progress(path, quiet) as progress:
            async with Producer(client, topic, compression=codec) as producer:
                await _send_lines(source, parser, producer, partition, progress)
            return producer.acknowledged_count

    started = time.monotonic()
    count = with_client(bootstrap_servers, work)
    if not quiet:
        seconds = time.monotonic() - started
        sys.stderr.write(f"{count} records to {escape(topic)} in {seconds:.2f} s\n")


def _argument_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


async def _send_lines(
    source: BinaryIO, parser: LineParser, producer: Producer, partition: int | None, progress: Progress
) -> None:
    rest = b""
    while True:
        # In a thread, and only what is there: what was typed goes out while the next line is awaited.
        chunk = await asyncio.to_thread(source.read1, CHUNK_BYTES)  # type: ignore[attr-defined]
        progress(len(chunk))
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > LINE_BYTES_MAX:
            raise ClientError(f"line {parser.line_count + 1} is longer than {LINE_BYTES_MAX} bytes")
        if not chunk and rest:
            lines.append(rest)
        now_ms = time.time_ns() // 1_000_000
        for line in lines:
            key, value, headers = parser.parse(line.removesuffix(b"\r"))
            await producer.send(key, value, headers, now_ms, partition)
        if len(chunk) < CHUNK_BYTES:
            await producer.push()
        if not chunk:
            return


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _progress(path: Path | None, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error for a big file, where somebody can see it."""
    size = path.stat().st_size if path is not None and path.is_file() else 0
    if quiet or size < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield lambda byte_count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("producing", total=size)
        yield lambda byte_count: bar.advance(task, byte_count)
