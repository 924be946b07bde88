"""Producing for the command line: Java's partitioning, batches, and an idempotent sender per partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from barnabas.broker.client.client import KafkaClient, no_partition
from barnabas.broker.client.errors import ClientError, ResponseError, check
from barnabas.broker.client.patience import Patience, TellDelay, patiently, tell_nobody
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.metadata import MetadataResponseTopic
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.record_batch import CompressionType
from barnabas.wire.records import Record, build_batch

BATCH_BYTES: Final = 256 * 1024
"""A batch is sent when its keys and values reach this size."""

CREATION_TIMEOUT_S: Final = 3.0
"""The time for which a topic may be unknown before it counts as missing."""

QUEUED_BATCHES_MAX: Final = 2
"""The number of batches that wait per partition before `send` waits."""

_MASK: Final = 0xFFFF_FFFF
_SEQUENCES: Final = 1 << 31


def murmur2(data: bytes) -> int:
    """Java's Utils.murmur2, as an unsigned 32-bit number."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        k = (int.from_bytes(data[position : position + 4], "little") * 0x5BD1E995) & _MASK
        k ^= k >> 24
        h = ((h * 0x5BD1E995) & _MASK) ^ ((k * 0x5BD1E995) & _MASK)
    if length > whole:
        h ^= int.from_bytes(data[whole:], "little")
        h = (h * 0x5BD1E995) & _MASK
    h ^= h >> 13
    h = (h * 0x5BD1E995) & _MASK
    return h ^ (h >> 15)


def partition_for(key: bytes, partition_count: int) -> int:
    """The partition of a key, the same as in Java, librdkafka (murmur2) and kafka-python."""
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count


class _Partition:
    """The collected records of one partition, and its queue of batches to send."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.records: list[Record] = []
        self.size = 0
        self.sequence = 0
        self.queue: asyncio.Queue[list[Record] | None] = asyncio.Queue(QUEUED_BATCHES_MAX)


class Producer:
    """Writes to one topic; `async with Producer(...)` sends everything before it ends. Owned by one task.

    Records without a key fill one batch after the other, partition by partition. acks=all; retries do not duplicate
    records. `on_delay` is called with the error that delays batches, and for how many seconds it will be retried: once,
    until all batches are written.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        *,
        compression: CompressionType = CompressionType.NONE,
        timeout_s: float = 120.0,
        batch_bytes: int = BATCH_BYTES,
        on_delay: TellDelay = tell_nobody,
    ) -> None:
        self.topic = topic
        self.acknowledged_count = 0
        self._client = client
        self._compression = compression
        self._timeout_s = timeout_s
        self._batch_bytes = batch_bytes
        self._on_delay = on_delay
        self._delayed: set[int] = set()
        self._metadata = MetadataResponseTopic()
        self._partitions: list[_Partition] = []
        self._senders: list[asyncio.Task[None]] = []
        self._producer_id, self._producer_epoch = -1, -1
        self._keyless = 0
        self._error: ClientError | None = None

    async def __aenter__(self) -> Producer:
        await self._refresh(Patience(self._timeout_s, self._on_delay), allow_auto_topic_creation=True)
        await self._get_producer_id()
        indexes = sorted(partition.partition_index for partition in self._metadata.partitions)
        self._partitions = [_Partition(index) for index in indexes]
        self._senders = [asyncio.create_task(self._send_all(partition)) for partition in self._partitions]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            for sender in self._senders:
                sender.cancel()
            await asyncio.gather(*self._senders, return_exceptions=True)

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    async def _get_producer_id(self) -> None:
        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            response: InitProducerIdResponse = await self._client.send(request)
            check(response.error_code, "cannot get a producer id")
            return response

        response = await patiently(attempt, self._timeout_s)
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    async def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None = None,
    ) -> None:
        """Accept one record; waits while too many are unsent. Errors: ClientError, also for earlier records."""
        if self._error is not None:
            raise self._error
        target = self._target(key, partition)
        target.records.append(Record(len(target.records), timestamp_ms, key, value, headers))
        target.size += len(key or b"") + len(value or b"") + 64
        if target.size >= self._batch_bytes:
            await self._dispatch(target)
            if key is None:
                self._keyless += 1

    def _target(self, key: bytes | None, partition: int | None) -> _Partition:
        count = len(self._partitions)
        if partition is not None:
            if not 0 <= partition < count:
                raise ClientError(no_partition(self.topic, [partition], count))
            return self._partitions[partition]
        return self._partitions[self._keyless % count if key is None else partition_for(key, count)]

    async def push(self) -> None:
        """Send the collected records without waiting for full batches. Errors: ClientError, for earlier records."""
        for partition in self._partitions:
            if partition.records:
                await self._dispatch(partition)

    async def flush(self) -> None:
        """Send the collected records, and wait until all of them are acknowledged. Errors: ClientError."""
        await self.push()
        for partition in self._partitions:
            await partition.queue.join()
        if self._error is not None:
            raise self._error

    async def _dispatch(self, partition: _Partition) -> None:
        records, partition.records, partition.size = partition.records, [], 0
        await partition.queue.put(records)

    async def _send_all(self, partition: _Partition) -> None:
        while True:
            records = await partition.queue.get()
            try:
                if records and self._error is None:
                    await self._send_batch(partition, records)
                    self.acknowledged_count += len(records)
            except ClientError as error:
                self._error = error
            except ValueError as error:
                self._error = ClientError(f"records of partition {partition.index} make no batch: {error}")
            finally:
                partition.queue.task_done()

    async def _send_batch(self, partition: _Partition, records: list[Record]) -> None:
        batch = build_batch(
            records,
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=partition.sequence,
        )
        partition.sequence = (partition.sequence + len(records)) % _SEQUENCES
        patience = Patience(self._timeout_s, partial(self._tell_delay, partition.index))
        while True:
            try:
                await self._try_batch(partition.index, batch)
                break
            except ClientError as error:
                if isinstance(error, ResponseError) and error.error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    break  # an earlier attempt was stored, and its response was lost
                await patience.after(error)
            await self._refresh(patience)
        self._delayed.discard(partition.index)

    def _tell_delay(self, index: int, error: ClientError, left_s: float | None) -> None:
        if not self._delayed:
            self._on_delay(error, left_s)
        self._delayed.add(index)

    async def _try_batch(self, index: int, batch: bytearray) -> None:
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(
                    name=self.topic,
                    topic_id=self._metadata.topic_id,
                    partition_data=[PartitionProduceData(index=index, records=batch)],
                )
            ],
        )
        response: ProduceResponse = await self._client.send(request, self._leader(index))
        answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
        message = answer.error_message
        if answer.record_errors and answer.record_errors[0].batch_index_error_message:
            message = answer.record_errors[0].batch_index_error_message
        check(answer.error_code, f"cannot write to partition {index} of {self.topic}", message)

    def _leader(self, index: int) -> int:
        for partition in self._metadata.partitions:
            if partition.partition_index == index and partition.leader_id >= 0:
                return partition.leader_id
        raise ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, f"cannot write to partition {index} of {self.topic}")

    async def _refresh(self, patience: Patience, *, allow_auto_topic_creation: bool = False) -> None:
        creation: Patience | None = None
        while True:
            try:
                response = await self._client.metadata(
                    [self.topic], allow_auto_topic_creation=allow_auto_topic_creation
                )
                topic = response.topics[0]
                check(topic.error_code, f"topic {self.topic}")
                self._metadata = topic
                return
            except ClientError as error:
                if not isinstance(error, ResponseError) or error.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    await patience.after(error)
                    continue
                # A topic that is being created is not known yet; without automatic creation it never will be.
                creation = creation or Patience(CREATION_TIMEOUT_S)
                if creation.is_over:
                    await self._client.check_topic(self.topic, error.error)
                await creation.after(error)
