"""Consuming for the command line: offsets to start from, and a fetch loop over the leaders of some partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.errors import ClientError, ResponseError, check
from barnabas.broker.client.patience import Patience, TellDelay, passes, tell_nobody
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.metadata import MetadataResponse
from barnabas.wire.record_batch import CorruptBatch, TimestampType, iter_headers
from barnabas.wire.records import Record, read_records

LATEST: Final = -1
EARLIEST: Final = -2

FETCH_BYTES: Final = 16 * 1024 * 1024
PARTITION_BYTES: Final = 4 * 1024 * 1024
READ_COMMITTED: Final = 1

_NO_TOPIC_ID: Final = bytes(16)
_NOT_THERE: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
"""A passing error while a topic is being created; consumers treat it as final."""

TopicPartition = tuple[str, int]


class ConsumedBatch(NamedTuple):
    """Records of one partition in their order, at least one."""

    topic: str
    partition: int
    timestamp_type: TimestampType
    records: list[Record]


class Leader(NamedTuple):
    """The leader of a partition; -1 if there is none, or if the broker does not send the epoch."""

    node_id: int
    epoch: int


class Positions:
    """Topics' leaders and ids, as of the last refresh that was not older than the known state: a broker that was cut
    off, and does not know it, may take itself for the leader (KIP-320).
    """

    def __init__(self, client: KafkaClient, timeout_s: float = 30.0) -> None:
        self.client = client
        self._timeout_s = timeout_s
        self._metadata = MetadataResponse()
        self._leaders: dict[tuple[str, bytes, int], Leader] = {}

    async def refresh(self, topics: Collection[str]) -> None:
        """Request the metadata of `topics` until none of them has a passing error. Errors: ClientError."""
        patience = Patience(self._timeout_s, final=_NOT_THERE)
        while True:
            try:
                await self.look(topics)
                return
            except ClientError as error:
                await patience.after(error)

    async def look(self, topics: Collection[str]) -> None:
        """Request the metadata of `topics` once; if one of them has an error, the known state is kept. Errors:
        ClientError."""
        metadata = await self.client.metadata(sorted(topics))
        errors = [(topic.name or "", ErrorCode.of(topic.error_code)) for topic in metadata.topics if topic.error_code]
        for name, error in sorted(errors, key=lambda one: one[1].retriable and one[1] not in _NOT_THERE):
            await self.client.check_topic(name, error)
        self._metadata = metadata
        self._note_leaders()

    def _note_leaders(self) -> None:
        for topic in self._metadata.topics:
            for partition in topic.partitions:
                key = (topic.name or "", topic.topic_id, partition.partition_index)
                told = Leader(partition.leader_id, partition.leader_epoch)
                known = self._leaders.get(key)
                # Without ids (before Kafka 2.8) a topic that was created again would look older than the one before.
                if known is None or told.epoch >= known.epoch or topic.topic_id == _NO_TOPIC_ID:
                    self._leaders[key] = told

    def leader(self, partition: TopicPartition) -> Leader:
        """The leader of a partition, if one is known."""
        name, index = partition
        return self._leaders.get((name, self.topic_id(name), index), Leader(-1, -1))

    def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics."""
        return sorted(
            (topic.name or "", partition.partition_index)
            for topic in self._metadata.topics
            for partition in topic.partitions
        )

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions that have a leader, by its broker id."""
        wanted = set(partitions)
        result: dict[int, list[TopicPartition]] = {}
        for name in self.partitions():
            node_id = self.leader(name).node_id
            if name in wanted and node_id >= 0:
                result.setdefault(node_id, []).append(name)
        return result

    def topic_id(self, name: str) -> bytes:
        return next((topic.topic_id for topic in self._metadata.topics if topic.name == name), bytes(16))

    def topic_name(self, topic_id: bytes) -> str:
        return next((topic.name or "" for topic in self._metadata.topics if topic.topic_id == topic_id), "")

    async def offsets(
        self, partitions: Collection[TopicPartition], timestamp: int, *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        """Each partition's offset for EARLIEST, LATEST or a timestamp in ms (-1 if no record is that late).

        Errors: ClientError, when a partition has no leader for too long.
        """
        found: dict[TopicPartition, int] = {}
        patience = Patience(self._timeout_s)
        missing = set(partitions)
        while True:
            problem: ClientError | None = None
            for node_id, names in self.by_leader(missing).items():
                try:
                    found |= await self._offsets_of(node_id, names, timestamp, isolation_level)
                except ClientError as error:
                    if not passes(error):
                        raise
                    problem = error
            missing -= found.keys()
            if not missing:
                return found
            await patience.after(
                problem or ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, f"cannot ask for offsets of {missing}")
            )
            await self.refresh({topic for topic, _ in partitions})

    async def _offsets_of(
        self, node_id: int, names: list[TopicPartition], timestamp: int, isolation_level: int
    ) -> dict[TopicPartition, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        for topic, index in names:
            asked = topics.setdefault(topic, ListOffsetsTopic(name=topic))
            epoch = self.leader((topic, index)).epoch
            asked.partitions.append(
                ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
            )
        request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()), timeout_ms=30_000)
        if isolation_level:
            request.isolation_level = isolation_level
        response: ListOffsetsResponse = await self.client.send(request, node_id)
        found = {}
        for answer in response.topics:
            for partition in answer.partitions:
                check(partition.error_code, f"cannot look up offsets of {answer.name}-{partition.partition_index}")
                found[answer.name, partition.partition_index] = partition.offset
        return found


class Fetcher:
    """Reads partitions from given positions on; `positions` holds the next offset of each.

    `drained` holds the partitions that had no more records as of the last response about them. Unavailable brokers,
    perhaps all of them, are retried for ever; `on_delay` is called once until they respond.
    """

    def __init__(
        self,
        positions: Positions,
        start: Mapping[TopicPartition, int],
        *,
        isolation_level: int = READ_COMMITTED,
        on_delay: TellDelay = tell_nobody,
    ) -> None:
        self.positions = dict(start)
        self.drained: set[TopicPartition] = set()
        self._where = positions
        self._isolation_level = isolation_level
        self._patience = Patience(None, on_delay)
        self._problem: ClientError | None = None

    async def fetch(self, max_wait_ms: int, max_records: int | None = None) -> AsyncIterator[ConsumedBatch]:
        """The records that are available, or arrive within `max_wait_ms`; ends after one round over all leaders.

        Returns at most `max_records`: positions are then behind the last returned one. Errors: ClientError. A position
        that no longer exists moves to the earliest one.
        """
        by_leader = self._where.by_leader(self.positions)
        tasks = [
            asyncio.ensure_future(self._fetch_from(node_id, names, max_wait_ms)) for node_id, names in by_leader.items()
        ]
        self._problem = self._leaderless(by_leader)
        is_empty = True
        try:
            for task in tasks:
                try:
                    response = await task
                except ClientError as error:
                    if not passes(error):
                        raise
                    self._problem = error
                    continue
                async for batch in self._batches(response):
                    is_empty = False
                    if max_records is not None and len(batch.records) >= max_records:
                        last = batch.records[max_records - 1]
                        self.positions[batch.topic, batch.partition] = last.offset + 1
                        yield batch._replace(records=batch.records[:max_records])
                        return
                    if max_records is not None:
                        max_records -= len(batch.records)
                    yield batch
            if self._problem is None:
                self._patience.reset()
            else:
                await self._again(self._problem, waits=is_empty)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _leaderless(self, by_leader: Mapping[int, Collection[TopicPartition]]) -> ClientError | None:
        for topic, index in self.positions.keys() - {each for names in by_leader.values() for each in names}:
            return ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, f"cannot read {topic}-{index}")
        return None

    async def _again(self, problem: ClientError, *, waits: bool) -> None:
        """Look up the leaders again. If no broker responds, the next fetch fails, too, and the following one waits
        longer."""
        if waits:
            await self._patience.after(problem)
        else:
            self._patience.note(problem)
        try:
            await self._where.look({topic for topic, _ in self.positions})
        except ClientError as error:
            if isinstance(error, ResponseError) and error.error in _NOT_THERE:
                raise
            self._patience.note(error)

    async def _fetch_from(self, node_id: int, names: list[TopicPartition], max_wait_ms: int) -> FetchResponse:
        topics: dict[str, FetchTopic] = {}
        for topic, index in names:
            asked = topics.setdefault(topic, FetchTopic(topic=topic, topic_id=self._where.topic_id(topic)))
            asked.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=self._where.leader((topic, index)).epoch,
                    fetch_offset=self.positions[topic, index],
                    partition_max_bytes=PARTITION_BYTES,
                )
            )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
        )
        response: FetchResponse = await self._where.client.send(request, node_id, wait_s=max_wait_ms / 1000)
        check(response.error_code, "cannot fetch")
        return response

    async def _batches(self, response: FetchResponse) -> AsyncIterator[ConsumedBatch]:
        # While other partitions have records, a partition without any may only have found no room.
        is_empty = not any(answer.records for topic in response.responses for answer in topic.partitions)
        for topic in response.responses:
            name = topic.topic or self._where.topic_name(topic.topic_id)
            for answer in topic.partitions:
                partition = (name, answer.partition_index)
                if partition not in self.positions:
                    continue
                if answer.error_code:
                    await self._handle_error(partition, ErrorCode.of(answer.error_code))
                elif answer.records:
                    self.drained.discard(partition)
                    try:
                        for batch in self._decode(partition, answer):
                            yield batch
                    except CorruptBatch as error:
                        where = f"{partition[0]}-{partition[1]} from offset {self.positions[partition]} on"
                        raise ClientError(f"cannot read {where}: {error}") from error
                elif is_empty:
                    self.drained.add(partition)

    async def _handle_error(self, partition: TopicPartition, error: ErrorCode) -> None:
        """Note a passing error as the problem of this round. Errors: ClientError for a final one."""
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            found = await self._where.offsets([partition], EARLIEST)
            self.positions[partition] = found[partition]
            return
        what = f"cannot read {partition[0]}-{partition[1]}"
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # there is another leader by now, which is the same here
        if not error.retriable:
            check(error, what)
        self._problem = ResponseError(error, what)

    def _decode(self, partition: TopicPartition, answer: PartitionData) -> Iterator[ConsumedBatch]:
        """The records of one partition from its position on, without control records and aborted transactions."""
        aborted = sorted((answer.aborted_transactions or []), key=lambda transaction: transaction.first_offset)
        open_aborted: set[int] = set()
        for header in iter_headers(answer.records):
            while aborted and aborted[0].first_offset <= header.last_offset:
                open_aborted.add(aborted.pop(0).producer_id)
            if header.is_control:
                open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                position = self.positions[partition]
                records = read_records(answer.records, header)
                if records and records[0].offset < position:
                    records = [record for record in records if record.offset >= position]
                if records:
                    # Before they are returned: the caller may stop right after them.
                    self.positions[partition] = records[-1].offset + 1
                    yield ConsumedBatch(*partition, header.timestamp_type, records)
            self.positions[partition] = max(self.positions[partition], header.next_offset)
