"""Producing for the command line: Java's partitioning, batches, and an idempotent sender per partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.client.client import (
    RETRY_BACKOFF_S,
    BrokerUnavailable,
    ClientError,
    KafkaClient,
    ResponseError,
    check,
    no_partition,
)
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
"""How long a topic may be unknown before we believe that nobody creates it."""

DELAY_TOLD_AFTER_S: Final = 1.0
"""Elections and the like are over by then."""

QUEUED_BATCHES_MAX: Final = 2
"""Batches that wait per partition before `send` waits."""

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
    """What is collected for one partition, and its queue of batches to send."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.records: list[Record] = []
        self.size = 0
        self.sequence = 0
        self.queue: asyncio.Queue[list[Record] | None] = asyncio.Queue(QUEUED_BATCHES_MAX)


class Producer:
    """Writes to one topic; `async with Producer(...)` sends everything before it ends. Owned by one task.

    Records without a key fill one batch after the other, partition by partition. acks=all; retries do not duplicate.
    `on_delay` is told once what keeps a batch from being written, and for how many seconds that will be tried again.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        *,
        compression: CompressionType = CompressionType.NONE,
        timeout_s: float = 120.0,
        batch_bytes: int = BATCH_BYTES,
        on_delay: Callable[[ClientError, float], None] = lambda _error, _left_s: None,
    ) -> None:
        self.topic = topic
        self.acknowledged_count = 0
        self._client = client
        self._compression = compression
        self._timeout_s = timeout_s
        self._batch_bytes = batch_bytes
        self._on_delay = on_delay
        self._has_told_delay = False
        self._metadata = MetadataResponseTopic()
        self._partitions: list[_Partition] = []
        self._senders: list[asyncio.Task[None]] = []
        self._producer_id, self._producer_epoch = -1, -1
        self._keyless = 0
        self._error: ClientError | None = None

    async def __aenter__(self) -> Producer:
        await self._refresh(allow_auto_topic_creation=True)
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
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        while True:
            response: InitProducerIdResponse = await self._client.send(request)
            error = ErrorCode.of(response.error_code)
            if not error.retriable or asyncio.get_running_loop().time() > deadline:
                check(error, "cannot get a producer id")
                break
            await asyncio.sleep(RETRY_BACKOFF_S)
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    async def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None = None,
    ) -> None:
        """Take one record; waits while too much is unsent. Errors: ClientError, also for earlier records."""
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
        """Send what was taken without waiting for batches to fill. Errors: ClientError, for earlier records."""
        for partition in self._partitions:
            if partition.records:
                await self._dispatch(partition)

    async def flush(self) -> None:
        """Send what was taken, and wait until all of it is acknowledged. Errors: ClientError."""
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
        started_s = asyncio.get_running_loop().time()
        while True:
            try:
                await self._try_batch(partition.index, batch)
                return
            except (ResponseError, BrokerUnavailable) as error:
                if isinstance(error, ResponseError):
                    if error.error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                        return  # an earlier try was stored, only its answer got lost
                    if not error.error.retriable:
                        raise
                waited_s = asyncio.get_running_loop().time() - started_s
                if waited_s > self._timeout_s:
                    raise
                if waited_s > DELAY_TOLD_AFTER_S and not self._has_told_delay:
                    self._has_told_delay = True
                    self._on_delay(error, self._timeout_s - waited_s)
            await asyncio.sleep(RETRY_BACKOFF_S)
            await self._refresh()

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

    async def _refresh(self, *, allow_auto_topic_creation: bool = False) -> None:
        started_s = asyncio.get_running_loop().time()
        while True:
            response = await self._client.metadata([self.topic], allow_auto_topic_creation=allow_auto_topic_creation)
            topic = response.topics[0]
            if not topic.error_code:
                self._metadata = topic
                return
            error = ErrorCode.of(topic.error_code)
            waited_s = asyncio.get_running_loop().time() - started_s
            # A topic that is being created is not known yet; where the broker does not create any it never will be.
            limit_s = CREATION_TIMEOUT_S if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else self._timeout_s
            if not error.retriable or waited_s > limit_s:
                await self._client.check_topic(self.topic, topic.error_code)
            await asyncio.sleep(RETRY_BACKOFF_S)
