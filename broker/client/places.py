"""Positions in partitions as users name them (the first record, 10 before the end, since noon) and their offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from barnabas.broker.client.client import ClientError, KafkaClient, no_partition
from barnabas.broker.client.consumer import EARLIEST, LATEST, Positions, TopicPartition
from barnabas.wire.errors import ErrorCode


class Place:
    """A position in a partition: one of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Earliest(Place):
    """The first available record."""


@dataclass(frozen=True, slots=True)
class BeforeEnd(Place):
    """So many offsets before the end; 0 is the end itself."""

    count: int


@dataclass(frozen=True, slots=True)
class Offset(Place):
    """The offset with that number."""

    number: int


@dataclass(frozen=True, slots=True)
class Since(Place):
    """The first record that is not older than a time (ms since 1970); the end if there is none."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Moved:
    """An offset outside of a partition, and the nearer end of the partition that replaces it."""

    topic: str
    partition: int
    wanted: int
    taken: int

    def __str__(self) -> str:
        end = "ends" if self.wanted > self.taken else "begins"
        return f"{self.topic}-{self.partition} {end} at {self.taken}: that is taken instead of {self.wanted}"


async def named_partitions(positions: Positions, wanted: Mapping[str, Collection[int] | None]) -> list[TopicPartition]:
    """The partitions of some topics, all of a topic if its value is None. Errors: ClientError for a missing one."""
    await positions.refresh(wanted)
    known = positions.partitions()
    for name, chosen in wanted.items():
        missing = set(chosen or ()) - {index for topic, index in known if topic == name}
        if missing:
            raise ClientError(no_partition(name, missing, sum(topic == name for topic, _ in known)))
    return [(name, index) for name, index in known if (chosen := wanted[name]) is None or index in chosen]


async def existing_topics(client: KafkaClient, names: Collection[str]) -> set[str]:
    """The existing topics among these names. Errors: ClientError."""
    response = await client.metadata(names)
    return {topic.name or "" for topic in response.topics if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def offsets_at(
    positions: Positions, partitions: Collection[TopicPartition], place: Place, *, isolation_level: int = 0
) -> tuple[dict[TopicPartition, int], list[Moved]]:
    """The offset of a position in each partition, and the offsets that were moved to an end. Errors: ClientError.

    A distance greater than the partition's length is no move: the last N of fewer records are all records.
    """
    match place:
        case Earliest():
            return await positions.offsets(partitions, EARLIEST), []
        case BeforeEnd(0):
            return await positions.offsets(partitions, LATEST, isolation_level=isolation_level), []
    first, last = await ends(positions, partitions, isolation_level=isolation_level)
    match place:
        case BeforeEnd(count):
            return {partition: max(first[partition], end - count) for partition, end in last.items()}, []
        case Since(timestamp_ms):
            found = await positions.offsets(partitions, timestamp_ms, isolation_level=isolation_level)
            return {partition: last[partition] if offset < 0 else offset for partition, offset in found.items()}, []
        case Offset(number):
            return within(dict.fromkeys(partitions, number), first, last)
    raise TypeError(place)


async def ends(
    positions: Positions, partitions: Collection[TopicPartition], *, isolation_level: int = 0
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first offsets, and those after the last record that may be read. Errors: ClientError."""
    return (
        await positions.offsets(partitions, EARLIEST),
        await positions.offsets(partitions, LATEST, isolation_level=isolation_level),
    )


def within(
    wanted: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
    last: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], list[Moved]]:
    """Move offsets outside of a partition to its nearer end, as Kafka's `--reset-offsets` does."""
    taken = {partition: min(max(offset, first[partition]), last[partition]) for partition, offset in wanted.items()}
    moved = [
        Moved(*partition, wanted[partition], offset)
        for partition, offset in sorted(taken.items())
        if offset != wanted[partition]
    ]
    return taken, moved
