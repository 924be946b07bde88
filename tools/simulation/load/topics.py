"""A topic of a simulated cluster that is repeatedly created, written, read and deleted under one name. Sometimes it is
compacted, loses its oldest segments, or has records deleted by a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from barnabas.broker.client.client import BrokerUnavailable, ResponseError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tools.simulation.load.clients import Attempts, Worker, new_producer, read_everything, was_written, write
from tools.soak.history import Key, Value

TOPIC: Final = "passing"
PARTITIONS: Final = 2
KEYS: Final = 3
NO_ID: Final = bytes(16)

PLAIN: Final = {"message.timestamp.type": "LogAppendTime"}
COMPACTED: Final = {
    **PLAIN,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "500",
    "max.compaction.lag.ms": "1000",
}
CUT: Final = {**PLAIN, "segment.bytes": "1000"}
"""Its first records are deleted by a DeleteRecords request, in the middle of batches."""
SHORT: Final = {**PLAIN, "cleanup.policy": "delete", "retention.bytes": "1000", "segment.bytes": "500"}


class TopicOwner(Worker):
    """The only user of the topic. After each creation, the topic must contain nothing of an earlier one, and all
    acknowledged records, except those removed by its configs: older values of a key, the oldest segments.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.topic, self.partitions = TOPIC, PARTITIONS
        self._deleted = NO_ID
        self._cut: dict[int, int] = {}

    async def run_once(self) -> None:
        await self._delete()
        settings = (SHORT, COMPACTED, CUT, PLAIN)[self.done % 4]
        await self._create(settings)
        self._cut = dict.fromkeys(range(PARTITIONS), 0)
        written, acknowledged = await self._write(self.draw.randint(20, 40), is_cut=settings is CUT)
        if settings is not PLAIN:
            await self.pause(5.0)
        found = await read_everything(self.client, TOPIC, PARTITIONS)
        self.recorder.tell(f"{self.name}: {sum(map(len, found.values()))} of {len(written)} records are there")
        for partition in range(PARTITIONS):
            self._check(settings, partition, found[partition], written, acknowledged)
        self.done += 1

    # --- creation and deletion ----------------------------------------------------------------------

    async def _delete(self) -> None:
        """Delete the topic, if there is one of that name."""
        async for _ in (attempts := Attempts(self)):
            with self.retried(attempts):
                topic_id = await self._topic_id()
                if topic_id in (NO_ID, self._deleted):
                    return
                # By id: a late request, over a forgotten connection, does not affect the next topic of that name.
                request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=5_000)
                reply = await self.client.send_to_controller(request)
                error = ErrorCode.of(reply.responses[0].error_code)
                if error is ErrorCode.NONE:
                    self._deleted = topic_id
                    self.recorder.count("topics deleted")
                    return
                attempts.failed(error.name)

    async def _create(self, settings: Mapping[str, str]) -> None:
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=-1, configs=configs)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        async for _ in (attempts := Attempts(self)):
            with self.retried(attempts):
                error = ErrorCode.of((await self.client.send_to_controller(request)).topics[0].error_code)
                is_there = error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
                if is_there and await self._topic_id() not in (NO_ID, self._deleted):
                    self.recorder.tell(f"{self.name}: {TOPIC} is there again, {dict(settings)}")
                    return
                attempts.failed(error.name)

    async def _topic_id(self) -> bytes:
        """The topic's id according to the broker that is asked; NO_ID if it knows none."""
        try:
            await self.positions.refresh([TOPIC])
        except ResponseError as error:
            if error.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return NO_ID
            raise
        return self.positions.topic_id(TOPIC)

    # --- its records --------------------------------------------------------------------------------

    async def _write(self, count: int, *, is_cut: bool) -> tuple[set[int], dict[tuple[int, int], int]]:
        """Write records; returns all values that were sent, and the acknowledged ones by partition and offset."""
        written: set[int] = set()
        acknowledged: dict[tuple[int, int], int] = {}
        producer = await new_producer(self)
        topic_id = self.positions.topic_id(TOPIC)
        size = 3 if is_cut else 1
        for sequence in range(0, count * size, size):
            for partition in range(PARTITIONS):
                values = [self.value() for _ in range(size)]
                written.update(values)
                key = b"%d" % (values[0] % KEYS)
                error, offset = await write(self, partition, values, producer, sequence, key=key)
                if self.positions.topic_id(TOPIC) != topic_id:
                    raise BrokerUnavailable(f"somebody tells of another {TOPIC}")
                if not was_written(error):
                    raise BrokerUnavailable(f"{TOPIC} cannot be written: {error.name}")
                if offset is not None:
                    acknowledged |= {(partition, offset + number): value for number, value in enumerate(values)}
                if is_cut and offset is not None and self.draw.random() < 0.2:
                    await self._delete_records(partition, self.draw.randint(self._cut[partition], offset + size))
        return written, acknowledged

    async def _delete_records(self, partition: int, offset: int) -> None:
        self._cut[partition] = max(self._cut[partition], offset)  # also if the result is unknown
        asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[asked])], timeout_ms=5_000)
        async for is_retry in (attempts := Attempts(self)):
            with self.retried(attempts):
                leader = await self.leader(partition, is_retry=is_retry)
                answer = (await self.client.send(request, leader)).topics[0].partitions[0]
                error = ErrorCode.of(answer.error_code)
                if error is ErrorCode.NONE:
                    if answer.low_watermark < offset:
                        self._wrong(partition, f"{answer.low_watermark} is the lowest, not {offset}")
                    self.recorder.count("records deleted")
                    return
                if not error.retriable and error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._wrong(partition, f"records cannot be deleted: {error.name}")
                    return
                attempts.failed(error.name)

    def _check(
        self,
        settings: Mapping[str, str],
        partition: int,
        records: list[tuple[int, Value]],
        written: set[int],
        acknowledged: Mapping[tuple[int, int], int],
    ) -> None:
        there = dict(records)
        due = {offset: value for (index, offset), value in acknowledged.items() if index == partition}
        if settings is COMPACTED:
            due = {offset: value for offset, value in due.items() if offset in _latest(due).values()}
        elif settings is CUT:
            due = {offset: value for offset, value in due.items() if offset >= self._cut[partition]}
        elif settings is SHORT:
            # Retention may have overtaken the reader, which then has the first records and the current ones.
            first = max((offset for offset in there if offset - 1 not in there), default=None)
            due = {offset: value for offset, value in due.items() if first is not None and offset >= first}
        for offset, value in sorted(due.items()):
            if there.get(offset) != value:
                self._wrong(partition, f"{value} was acknowledged at {offset}, where {there.get(offset)} is")
        for offset, found in records:
            if found not in written:
                self._wrong(partition, f"{found} at {offset} is of a former life")

    def _wrong(self, partition: Key, what: str) -> None:
        self.recorder.wrong.append(f"{TOPIC}-{partition}: {what}")


def _latest(due: Mapping[int, int]) -> dict[int, int]:
    """The last offset of each key."""
    return {value % KEYS: offset for offset, value in sorted(due.items())}
