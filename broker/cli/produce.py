"""`barnabas produce`: writes lines from a file or standard input as records."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

import typer

from barnabas.broker.cli import completion
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    BootstrapServers,
    complain,
    counted,
    tell_delay,
    with_client,
)
from barnabas.broker.cli.records import ESCAPES, Lines, NewRecord, record_from_json, unescaped
from barnabas.broker.cli.values import MOMENT_HELP, MOMENT_METAVAR, key_values, moment_ms
from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.producer import Producer
from barnabas.broker.observability.logs import escape
from barnabas.wire.record_batch import CompressionType

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
PROGRESS_FROM_BYTES = 4 * 1024 * 1024

Parse = Callable[[bytes], NewRecord]


class Compression(StrEnum):
    """Kafka's codecs."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Progress(Protocol):
    """Called with the number of input bytes read."""

    def __call__(self, byte_count: int) -> None: ...


def produce(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", autocompletion=completion.topics, help="Where to write; created if the broker allows it."
        ),
    ],
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="One record per line; standard input if there is none.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-k",
            metavar="TEXT",
            help=f"What stands between key and value; {ESCAPES} as in `consume --format`.",
        ),
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
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="PARTITION",
            autocompletion=completion.partitions,
            help="The partition of every record, instead of the key's.",
        ),
    ] = None,
    timestamp: Annotated[
        int | None,
        typer.Option(
            "--timestamp",
            metavar=MOMENT_METAVAR,
            parser=moment_ms,
            help=f"The timestamp of every record, instead of the current time: {MOMENT_HELP}.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Lines are JSON objects, as `consume --json` prints them.",
        ),
    ] = False,
    compression: Annotated[
        Compression,
        typer.Option("--compression", "-z", metavar="CODEC", help=f"Of batches: {', '.join(Compression)}."),
    ] = Compression.NONE,
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
      printf 'a\\tb\\n' | barnabas produce pairs --key-separator '\\t'
      barnabas topics create copy --partitions 6 --if-not-exists
      barnabas consume flights -o earliest -e --json | barnabas produce copy --json
    """
    if as_json and (key is not None or key_separator is not None or null_value is not None or parse_headers):
        raise typer.BadParameter("--json lines contain keys, nulls and headers: leave out the other options for these")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("choose one of --key and --key-separator")
    if key_separator == "":
        raise typer.BadParameter("the separator is empty", param_hint="--key-separator")
    separator = None if key_separator is None else unescaped(key_separator)
    lines = Lines(_argument_bytes(key), _argument_bytes(separator), _argument_bytes(null_value), parse_headers)
    common = NewRecord(
        key=None,
        value=None,
        headers=[
            (name, os.fsencode(value)) for name, value in key_values(header or [], "--header", "NAME=VALUE").items()
        ],
        timestamp=timestamp,
        partition=partition,
    )

    started = time.monotonic()

    async def work(client: KafkaClient) -> None:
        producer = Producer(client, topic, compression=CompressionType[compression.name], on_delay=tell_delay)
        try:
            with _opened(path) as source, _progress(path, quiet) as progress:
                async with producer:
                    await _send_lines(source, record_from_json if as_json else lines, producer, common, progress)
        except ClientError as error:
            raise ClientError(f"{error}; {_acknowledged(producer)}") from error
        except asyncio.CancelledError:  # SIGINT or SIGTERM
            complain(f"stopped: {_acknowledged(producer)}")
            raise
        # Here, not when the client is closed: the count is printed even if a signal arrives by then.
        if not quiet:
            count, seconds = counted(producer.acknowledged_count, "record"), time.monotonic() - started
            sys.stderr.write(f"{count} to {escape(topic)} in {seconds:.2f} s\n")

    if path is None and not quiet and sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write("A record per line; Ctrl-D ends.\n")
    with_client(bootstrap_servers, work)


def _acknowledged(producer: Producer) -> str:
    count = producer.acknowledged_count
    return f"{counted(count, 'record')} {'was' if count == 1 else 'were'} acknowledged"


def _argument_bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


async def _send_lines(
    source: BinaryIO, parse: Parse, producer: Producer, common: NewRecord, progress: Progress
) -> None:
    """Write a record per line. Lines before an invalid line, or before the end of the process, are written."""
    line_count = 0
    try:
        async for lines, is_all in _lines(source, progress):
            now_ms = time.time_ns() // 1_000_000
            for line in lines:
                line_count += 1
                await _send(producer, parse(line), common, now_ms)
            if is_all:
                await producer.push()
    except ValueError as error:
        await producer.flush()
        raise ClientError(f"line {line_count} {error}") from error
    except asyncio.CancelledError:
        await producer.flush()
        raise


async def _lines(source: BinaryIO, progress: Progress) -> AsyncIterator[tuple[list[bytes], bool]]:
    """Lines without their ends as they arrive, each time with whether these are all lines available so far."""
    rest, line_count, chunk = b"", 0, b"\n"
    while chunk:
        await _readable(source)
        chunk = source.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        progress(len(chunk))
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if not chunk and rest:
            lines.append(rest)
        yield [line.removesuffix(b"\r") for line in lines], len(chunk) < CHUNK_BYTES
        line_count += len(lines)
        if len(rest) > LINE_BYTES_MAX:
            raise ClientError(f"line {line_count + 1} is longer than {LINE_BYTES_MAX} bytes")


async def _send(producer: Producer, record: NewRecord, common: NewRecord, now_ms: int) -> None:
    """Send a record; options for all records take precedence over its line.

    Errors: ValueError that continues "line N" if the topic lacks the partition in the line.
    """
    if common.partition is None and record.partition is not None and record.partition >= producer.partition_count:
        raise ValueError(
            f"is for partition {record.partition}, but {producer.topic} has "
            f"{counted(producer.partition_count, 'partition')}: "
            f"`barnabas topics alter {producer.topic} --partitions {record.partition + 1}` adds the missing ones, "
            "--partition 0 writes all records to partition 0"
        )
    told_ms = record.timestamp if common.timestamp is None else common.timestamp
    await producer.send(
        record.key,
        record.value,
        [*common.headers, *record.headers] if common.headers else record.headers,
        now_ms if told_ms is None else told_ms,
        record.partition if common.partition is None else common.partition,
    )


async def _readable(source: BinaryIO) -> None:
    """Wait until there is input to read. Without a thread, which would keep the process from ending at Ctrl-C."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        number = source.fileno()
        if stat.S_ISREG(os.fstat(number).st_mode):
            return
        loop.add_reader(number, ready.set)
    except OSError:
        return  # not a descriptor that can be waited for, such as /dev/null
    try:
        await ready.wait()
    finally:
        loop.remove_reader(number)


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
    """A progress bar on standard error for a large file, if that is a terminal."""
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
