"""`barnabas consume`: prints records as lines."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, BinaryIO

import typer

from barnabas.broker.cli import completion, values
from barnabas.broker.cli.output import (
    DEFAULT_BOOTSTRAP_SERVERS,
    BootstrapServers,
    ClientError,
    complain,
    counted,
    tell_delay,
    with_client,
)
from barnabas.broker.cli.records import ESCAPES, FIELDS, Writer, for_terminal, formatter, json_lines
from barnabas.broker.client.client import KafkaClient, no_partition
from barnabas.broker.client.consumer import LATEST, READ_COMMITTED, Fetcher, Positions, TopicPartition
from barnabas.broker.client.group import COORDINATOR_TIMEOUT_S, GroupMember
from barnabas.broker.client.patience import Patience
from barnabas.broker.client.places import BeforeEnd, Earliest, Place, offsets_at

FETCH_WAIT_MS = 500
COMMIT_INTERVAL_S = 5.0
COMMIT_TRIED_S = 1.0
"""The time for which reading pauses for an unavailable coordinator."""


class IsolationLevel(StrEnum):
    """Whether records of uncommitted transactions are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Reading:
    """The part of a partition to read: the start, the isolation level, the end."""

    start: Place
    isolation_level: int
    until_end: bool
    is_start_chosen: bool = False

    async def fetcher(
        self, positions: Positions, committed: dict[TopicPartition, int], partitions: Sequence[TopicPartition]
    ) -> Fetcher:
        """A fetcher at the committed offsets, and at `start` where there are none. Errors: ClientError."""
        fresh = [partition for partition in partitions if partition not in committed]
        offsets, moved = (
            await offsets_at(positions, fresh, self.start, isolation_level=self.isolation_level) if fresh else ({}, [])
        )
        for move in moved:
            complain(str(move))
        return Fetcher(positions, committed | offsets, isolation_level=self.isolation_level, on_delay=tell_delay)

    async def end(self, positions: Positions, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int] | None:
        """The offsets to stop at: the present ends; None without `until_end`. Errors: ClientError."""
        if not self.until_end or not partitions:
            return None
        return await positions.offsets(partitions, LATEST, isolation_level=self.isolation_level)


@dataclass(slots=True)
class Wanted:
    """The condition to stop: a number of records, or a time without any. `seen_count` is the number of
    printed records."""

    max_messages: int | None
    timeout_ms: int | None
    seen_count: int = 0

    @property
    def left(self) -> int | None:
        return None if self.max_messages is None else self.max_messages - self.seen_count

    @property
    def is_enough(self) -> bool:
        return self.left is not None and self.left <= 0


def consume(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", autocompletion=completion.topics, help="Topics to read.")
    ],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="The same as --offset earliest.")] = False,
    offset: Annotated[
        Place | None,
        values.offset_option(
            "--offset",
            "-o",
            help="Where to begin: a number, -N for N before the end, earliest or latest (the default).",
        ),
    ] = None,
    from_time: values.FromTime = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=completion.groups,
            help="Read as a member of a group, and commit: from its committed offsets on, whatever --offset says.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="PARTITION",
            autocompletion=completion.partitions,
            help="Only this partition; repeatable.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", metavar="N", min=0, help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the offset that is the end when reading begins.")
    ] = False,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", metavar="MS", min=0, help="Stop after this time without a record.")
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help=f"What to print: {' '.join(f'{{{field}}}' for field in FIELDS)}, {ESCAPES}.",
        ),
    ] = "{value}\\n",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, as `produce --json` takes it.")
    ] = False,
    isolation_level: Annotated[
        IsolationLevel,
        typer.Option("--isolation-level", metavar="LEVEL", help="read_uncommitted, or read_committed."),
    ] = IsolationLevel.READ_UNCOMMITTED,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """Print records until Ctrl-C: new ones, unless an option says where to begin.

    [bold]Examples[/bold]

      barnabas consume flights --from-beginning --max-messages 10
      barnabas consume flights --offset -5 --exit-at-end
      barnabas consume flights --from-time -1h --partition 0 --exit-at-end --format '{key} {offset} {value}\\n'
      barnabas consume flights --group loader --exit-at-end --json | jq .value
    """
    starts = [place for place in (Earliest() if from_beginning else None, offset, from_time) if place is not None]
    if len(starts) > 1:
        raise typer.BadParameter("choose one of --from-beginning, --offset and --from-time")
    if group is not None and partition:
        raise typer.BadParameter("members of a group do not choose partitions: leave out --group or --partition")
    write = json_lines if as_json else formatter(template)
    if sys.stdout.isatty():
        write = for_terminal(write)
    if group is None and not starts and sys.stdout.isatty() and sys.stderr.isatty():
        sys.stderr.write("Waiting for new records; --from-beginning prints those that are there, Ctrl-C ends.\n")
    wanted = Wanted(max_messages, timeout_ms)
    isolation = READ_COMMITTED if isolation_level is IsolationLevel.READ_COMMITTED else 0
    reading = Reading(starts[0] if starts else BeforeEnd(0), isolation, exit_at_end, bool(starts))

    async def work(client: KafkaClient, out: BinaryIO) -> None:
        positions = Positions(client)
        await positions.refresh(topics)
        if group is None:
            partitions = _chosen(positions.partitions(), partition)
            end = await reading.end(positions, partitions)
            fetcher = await reading.fetcher(positions, {}, partitions)
            await _print_records(fetcher, wanted, end, write, out)
        else:
            member = GroupMember(client, group, topics, positions, on_delay=tell_delay)
            await _print_as_member(member, positions, reading, wanted, write, out)

    try:
        with _buffered_output() as out:
            with_client(bootstrap_servers, lambda client: work(client, out))
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`| head`); Python must write nothing more when it ends.
        sys.stdout = None


@contextlib.contextmanager
def _buffered_output() -> Iterator[BinaryIO]:
    """Standard output, with a buffer if Python runs unbuffered: a system call per record would be slow."""
    out = sys.stdout.buffer
    if not isinstance(out, io.RawIOBase):
        yield out
        return
    buffered = io.BufferedWriter(out)
    try:
        yield buffered
        buffered.flush()
    finally:
        # Otherwise it would close standard output when it is collected.
        buffered.detach()


def _chosen(partitions: Sequence[TopicPartition], indexes: Sequence[int] | None) -> list[TopicPartition]:
    there: dict[str, set[int]] = {}
    for topic, index in partitions:
        there.setdefault(topic, set()).add(index)
    lacking = [
        no_partition(topic, missing, len(there[topic]))
        for topic in sorted(there)
        if (missing := set(indexes or ()) - there[topic])
    ]
    if lacking:
        raise ClientError("; ".join(lacking))
    return [partition for partition in partitions if not indexes or partition[1] in indexes]


async def _print_records(
    fetcher: Fetcher,
    wanted: Wanted,
    end: dict[TopicPartition, int] | None,
    write: Writer,
    out: BinaryIO,
    interrupted: Callable[[], bool] = lambda: False,
) -> bool:
    """Print until there are enough records, none arrived for too long, all `end`s are reached, or `interrupted`.
    Returns whether to continue after that.
    """
    loop = asyncio.get_running_loop()
    last_s = loop.time()
    while not _is_done(fetcher, wanted, end):
        wait_ms = FETCH_WAIT_MS
        if wanted.timeout_ms is not None:
            left_ms = wanted.timeout_ms - (loop.time() - last_s) * 1000
            if left_ms <= 0:
                return False
            wait_ms = min(wait_ms, max(1, int(left_ms)))
        seen = wanted.seen_count
        batches = fetcher.fetch(wait_ms, wanted.left)
        async with contextlib.aclosing(batches):  # type: ignore[type-var]
            async for batch in batches:
                out.write(write(batch))
                wanted.seen_count += len(batch.records)
        out.flush()
        if wanted.seen_count > seen:
            last_s = loop.time()
        if interrupted():
            return not _is_done(fetcher, wanted, end)
    return False


def _is_done(fetcher: Fetcher, wanted: Wanted, end: dict[TopicPartition, int] | None) -> bool:
    if wanted.is_enough or end is None:
        return wanted.is_enough
    # Compaction may have removed the last offsets, so that they are never seen.
    return all(fetcher.positions[each] >= offset or each in fetcher.drained for each, offset in end.items())


async def _print_as_member(
    member: GroupMember, positions: Positions, reading: Reading, wanted: Wanted, write: Writer, out: BinaryIO
) -> None:
    loop = asyncio.get_running_loop()
    fetcher: Fetcher | None = None
    commits = Patience(None, tell_delay)
    tells_where = reading.is_start_chosen
    try:
        goes_on = not wanted.is_enough
        while goes_on:
            partitions = await member.join()
            committed = await member.committed(partitions) if partitions else {}
            if committed and tells_where:
                _tell_where(member, committed, partitions)
                tells_where = False
            end = await reading.end(positions, partitions)
            fetcher = await reading.fetcher(positions, committed, partitions)
            while goes_on and not member.must_rejoin:
                due_s = loop.time() + COMMIT_INTERVAL_S
                goes_on = await _print_records(fetcher, wanted, end, write, out, partial(_is_due, member, due_s))
                if not member.must_rejoin:
                    await _commit(member, fetcher, commits, is_last=not goes_on)
    finally:
        # Also after Ctrl-C: the printed records are committed, and other members get the partitions at once.
        if fetcher is not None and not member.must_rejoin:
            with contextlib.suppress(ClientError):
                await member.commit(fetcher.positions, timeout_s=0)
        await member.leave()


async def _commit(member: GroupMember, fetcher: Fetcher, commits: Patience, *, is_last: bool) -> None:
    """Commit the offsets of printed records. While there is more to read, the next commit replaces one that fails."""
    try:
        await member.commit(fetcher.positions, COORDINATOR_TIMEOUT_S if is_last else COMMIT_TRIED_S)
        commits.reset()
    except ClientError as error:
        if is_last:
            raise
        commits.note(error)


def _tell_where(member: GroupMember, committed: Collection[TopicPartition], all_: Collection[TopicPartition]) -> None:
    """Explain why reading does not begin at the requested offset."""
    which = "" if len(committed) == len(all_) else f" of {len(committed)} of {counted(len(all_), 'partition')}"
    complain(
        f"group {member.group} has committed offsets{which}, and goes on from them; "
        "`barnabas groups reset-offsets` moves them"
    )


def _is_due(member: GroupMember, commit_due_s: float) -> bool:
    """Whether reading has to pause: for a rebalance, or for a commit."""
    return member.must_rejoin or asyncio.get_running_loop().time() > commit_due_s
