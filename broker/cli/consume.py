"""`barnabas consume`: records become lines."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, BinaryIO

import typer

from barnabas.broker.cli.output import DEFAULT_BOOTSTRAP_SERVERS, BootstrapServers, ClientError, with_client
from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.consumer import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ConsumedRecord,
    Fetcher,
    Positions,
    TopicPartition,
)
from barnabas.broker.client.group import GroupMember
from barnabas.wire.record_batch import TimestampType

FETCH_WAIT_MS = 500
COMMIT_INTERVAL_S = 5.0

_FIELD = re.compile(r"\{(topic|partition|offset|timestamp|key|value|headers)\}")
_TERMINAL_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": READ_COMMITTED}

Writer = Callable[[ConsumedRecord], bytes]


@dataclass(slots=True)
class Wanted:
    """When to stop; `seen_count` records were printed."""

    max_messages: int | None
    timeout_ms: int | None
    seen_count: int = 0

    @property
    def is_enough(self) -> bool:
        return self.max_messages is not None and self.seen_count >= self.max_messages


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="What to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record; for a group, where it has no offset yet.")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Read as a member of a group, and commit offsets.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", help="Only these partitions.")] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=0, help="Stop after so many.")] = None,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", min=0, help="Stop when nothing comes for so long.")
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="What to print: {topic} {partition} {offset} {timestamp} {key} {value} {headers}, \\t and \\n.",
        ),
    ] = "{value}\\n",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    isolation_level: Annotated[
        str, typer.Option("--isolation-level", help="read_uncommitted or read_committed.")
    ] = "read_uncommitted",
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Print records, from the end on unless told otherwise, until Ctrl-C.

    [bold]Examples[/bold]

      barnabas consume flights --from-beginning --max-messages 10
      barnabas consume flights --group loader --json | jq .value
      barnabas consume flights --from-beginning --timeout-ms 2000 --format '{key} {offset} {value}\\n'
    """
    if isolation_level not in _ISOLATION_LEVELS:
        raise typer.BadParameter("choose read_uncommitted or read_committed", param_hint="--isolation-level")
    if group is not None and partition:
        raise typer.BadParameter("members of a group do not choose partitions: leave out --group or --partition")
    write = json_line if as_json else formatter(template)
    if sys.stdout.isatty():
        write = _for_terminal(write)
    wanted = Wanted(max_messages, timeout_ms)
    isolation = _ISOLATION_LEVELS[isolation_level]

    async def work(client: KafkaClient, out: BinaryIO) -> None:
        positions = Positions(client)
        await positions.refresh(topics)
        start = EARLIEST if from_beginning else LATEST
        if group is None:
            partitions = _chosen(positions.partitions(), partition)
            fetcher = Fetcher(positions, await positions.offsets(partitions, start), isolation_level=isolation)
            await _print_records(fetcher, wanted, write, out)
        else:
            member = GroupMember(client, group, topics, positions)
            await _print_as_member(member, positions, start, isolation, wanted, write, out)

    try:
        with _buffered_output() as out:
            with_client(bootstrap_servers, lambda client: work(client, out))
    except BrokenPipeError:
        # Whoever read our output has enough (`| head`); nothing more may be written when Python ends.
        sys.stdout = None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextlib.contextmanager
def _buffered_output() -> Iterator[BinaryIO]:
    """Standard output, with a buffer before it where Python runs unbuffered: a system call per record would be slow."""
    out = sys.stdout.buffer
    if not isinstance(out, io.RawIOBase):
        yield out
        return
    buffered = io.BufferedWriter(out)
    try:
        yield buffered
        buffered.flush()
    finally:
        # Or it would close standard output when it is collected.
        buffered.detach()


def _chosen(partitions: Sequence[TopicPartition], indexes: Sequence[int] | None) -> list[TopicPartition]:
    missing = set(indexes or ()) - {index for _, index in partitions}
    if missing:
        raise ClientError(f"there is no partition {', '.join(map(str, sorted(missing)))}")
    return [partition for partition in partitions if not indexes or partition[1] in indexes]


async def _print_records(
    fetcher: Fetcher,
    wanted: Wanted,
    write: Writer,
    out: BinaryIO,
    interrupted: Callable[[], bool] = lambda: False,
) -> bool:
    """Print until there is enough, nothing came for too long, or `interrupted`; returns whether to go on after that."""
    loop = asyncio.get_running_loop()
    last_s = loop.time()
    while not wanted.is_enough:
        wait_ms = FETCH_WAIT_MS
        if wanted.timeout_ms is not None:
            left_ms = wanted.timeout_ms - (loop.time() - last_s) * 1000
            if left_ms <= 0:
                return False
            wait_ms = min(wait_ms, max(1, int(left_ms)))
        seen = wanted.seen_count
        records = fetcher.fetch(wait_ms)
        async with contextlib.aclosing(records):  # type: ignore[type-var]
            async for record in records:
                out.write(write(record))
                wanted.seen_count += 1
                if wanted.is_enough:
                    break
        out.flush()
        if wanted.seen_count > seen:
            last_s = loop.time()
        if interrupted():
            return not wanted.is_enough
    return False


async def _print_as_member(
    member: GroupMember,
    positions: Positions,
    start: int,
    isolation_level: int,
    wanted: Wanted,
    write: Writer,
    out: BinaryIO,
) -> None:
    loop = asyncio.get_running_loop()
    fetcher: Fetcher | None = None
    try:
        goes_on = not wanted.is_enough
        while goes_on:
            partitions = await member.join()
            committed = await member.committed(partitions) if partitions else {}
            fresh = [partition for partition in partitions if partition not in committed]
            offsets = committed | (await positions.offsets(fresh, start) if fresh else {})
            fetcher = Fetcher(positions, offsets, isolation_level=isolation_level)
            while goes_on and not member.must_rejoin:
                due_s = loop.time() + COMMIT_INTERVAL_S
                goes_on = await _print_records(fetcher, wanted, write, out, partial(_is_due, member, due_s))
                if not member.must_rejoin:
                    await member.commit(fetcher.positions)
    finally:
        # Also after Ctrl-C: what was printed is committed, and others get the partitions at once.
        if fetcher is not None and not member.must_rejoin:
            with contextlib.suppress(ClientError):
                await member.commit(fetcher.positions)
        await member.leave()


def _is_due(member: GroupMember, commit_due_s: float) -> bool:
    """Whether reading has to pause: for a rebalance, or for a commit."""
    return member.must_rejoin or asyncio.get_running_loop().time() > commit_due_s


def formatter(template: str) -> Writer:
    """A record as text by a template; what is null is `null`, and bytes go out as they are."""
    template = template.replace("\\n", "\n").replace("\\t", "\t")
    parts = _FIELD.split(template)
    literals = [part.encode("utf-8", "surrogateescape") for part in parts[::2]]
    fields = parts[1::2]

    def write(record: ConsumedRecord) -> bytes:
        pieces = [literals[0]]
        for field, literal in zip(fields, literals[1:], strict=True):
            pieces += (_field(record, field), literal)
        return b"".join(pieces)

    return write


def _field(consumed: ConsumedRecord, field: str) -> bytes:
    record = consumed.record
    if field in ("key", "value"):
        data = record.key if field == "key" else record.value
        return b"null" if data is None else data
    if field == "headers":
        return b",".join(
            name.encode("utf-8", "surrogateescape") + b":" + (b"null" if value is None else value)
            for name, value in record.headers
        )
    values = {
        "topic": consumed.topic,
        "partition": consumed.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    return str(values[field]).encode()


def json_line(consumed: ConsumedRecord) -> bytes:
    """A record as a JSON object; keys and values that are not UTF-8 become {"base64": ...}."""
    record = consumed.record
    document = {
        "topic": consumed.topic,
        "partition": consumed.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if consumed.timestamp_type is TimestampType.LOG_APPEND_TIME else "CreateTime",
        "key": _json_bytes(record.key),
        "value": _json_bytes(record.value),
        "headers": [[name, _json_bytes(value)] for name, value in record.headers],
    }
    return json.dumps(document).encode() + b"\n"


def _json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _for_terminal(write: Writer) -> Writer:
    """What `write` makes, without control characters that a terminal would obey (all but tab and line feed)."""

    def harmless(record: ConsumedRecord) -> bytes:
        return _TERMINAL_CONTROLS.sub(lambda match: b"\\x%02x" % match[0][0], write(record))

    return harmless
