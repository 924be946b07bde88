"""Appends the batches of one Produce request, in the order of the request (Kafka's ReplicaManager.appendRecords and
handleProduceAppend).

The handler's call appends batches at once, on the event loop. It leaves the rest to a coroutine if the records of a
batch have to be opened in a thread, after `APPENDS_AT_ONCE` batches (100 if transactional), or if the transaction
coordinator has to respond first. Meanwhile the connection serves no other request. The remaining batches are copied
first, because they are views of the receive buffer, which the next read overwrites. A request above 256 KiB is not
copied. Each topic is looked up when its batch is appended, because it may have changed meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Final, Protocol

from barnabas.broker.cluster.metadata import INTERNAL_TOPICS
from barnabas.broker.replication.replica_manager import ReplicaManager, Validated
from barnabas.storage.checkpoints import TopicPartition
from barnabas.storage.validation import ExpensiveBatch
from barnabas.turns import InPieces, Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.framing import kept_part
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
)
from barnabas.wire.names import TopicId
from barnabas.wire.record_batch import MAGIC, TRANSACTIONAL_MASK, CorruptBatch, parse_header

APPENDS_AT_ONCE: Final = 1_000
"""The number of batches of one request that are appended without a turn for other requests. Clients send fewer; 1,000
appends take about 10 ms."""

MAGIC_POSITION: Final = 16
ATTRIBUTES_POSITION: Final = 22
"""The low byte of a record batch's attributes."""

_FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

Batch = tuple[TopicProduceData, PartitionProduceData, list[PartitionProduceResponse]]
"""A topic and a batch, as in the request, and the list of the results of the topic's batches."""

Refuse = Callable[[str, PartitionProduceData, Exception], PartitionProduceResponse]
"""Makes the result of a batch that is not appended, from the topic's name, the batch and the error."""


class Verified(Protocol):
    """The transaction coordinator's outcome for a request (`coordinators.transactions.verification`)."""

    def check_produce(self, topic_partition: TopicPartition, replicas: ReplicaManager, /) -> None:
        """Check immediately before the append. Raises ApiError."""
        ...


Verify = Callable[[str, int, int, Mapping[TopicPartition, int]], Verified | Awaitable[Verified]]
"""Verifies partitions, each with the first sequence of its batch, for a transactional id, producer id and epoch."""


class Unverified(ApiError):
    """The transaction coordinator has not verified that the partition is part of the transaction."""


class AppendOperation:
    """The appends of one request; lives until its response is built.

    Args:
        replicas: the hosted partitions.
        request: the request; its records may be replaced by copies.
        version: the version of the request.
        refuse: makes the results of batches that are not appended.
        internal_topics_allowed: whether this client may append to internal topics.
    """

    is_transactional = False
    """Whether any batch has the transactional attribute. Records too short to contain the attributes are ignored: the
    log refuses them."""
    _verified: Verified | None = None

    def __init__(
        self,
        replicas: ReplicaManager,
        request: ProduceRequest,
        version: int,
        refuse: Refuse,
        *,
        internal_topics_allowed: bool,
    ) -> None:
        self._replicas = replicas
        self._acks = request.acks
        self._version = version
        self._refuse = refuse
        self._internal_topics_allowed = internal_topics_allowed
        self._batches: list[Batch] = []
        self.topics: list[TopicProduceResponse] = []
        """The results, in the order of the request."""
        self.commits: list[tuple[PartitionProduceResponse, asyncio.Future[None]]] = []
        """The results that wait for a commit or a flush."""
        for topic_data in request.topic_data:
            if not topic_data.partition_data:
                continue
            topic = TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id)
            self.topics.append(topic)
            for data in topic_data.partition_data:
                self._batches.append((topic_data, data, topic.partition_responses))
                records = data.records
                if (
                    records is not None
                    and len(records) > ATTRIBUTES_POSITION
                    and records[ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK
                    and records[MAGIC_POSITION] == MAGIC
                ):
                    self.is_transactional = True

    # --- appending --------------------------------------------------------------------------------

    def begin(self) -> Awaitable[None] | None:
        """Append all batches; None when that is done, else a coroutine that appends the rest."""
        for number, batch in enumerate(self._batches):
            if number >= APPENDS_AT_ONCE:
                return self._finish_later(number)
            try:
                self._append(batch)
            except ExpensiveBatch:
                return self._finish_later(number)
        return None

    def _finish_later(self, number: int) -> Awaitable[None]:
        rest = self._batches[number:]
        _keep(rest)
        return self._finish(rest)

    async def _finish(self, rest: Iterable[Batch]) -> None:
        """Append batches with turns for other requests in between; open their records in a thread where necessary."""
        turns = Turns()
        for batch in rest:
            await turns.after_one()
            topic_data, data, results = batch
            validated: Validated | None = None
            while True:
                try:
                    self._append(batch, validated)
                    break
                except ExpensiveBatch:  # the first time, or because the topic has changed since
                    topic = self._topic(topic_data)
                try:
                    validated = await self._replicas.validate(
                        topic, data.index, data.records, self._acks, self._version
                    )
                except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
                    results.append(self._refuse(topic, data, error))
                    break

    def _append(self, batch: Batch, validated: Validated | None = None) -> None:
        """Append one batch and add its result. If the result has to wait for a commit or a flush, add that future to
        `commits`, too. Raises ExpensiveBatch."""
        topic_data, data, results = batch
        acks, topic = self._acks, topic_data.name
        try:
            if not topic:
                topic = self._topic(topic_data)
            if acks not in (-1, 0, 1):
                raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
            if topic in INTERNAL_TOPICS and not self._internal_topics_allowed:
                raise ApiError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to the internal topic {topic}"
                )
            if self._verified is not None:
                self._check_verified(self._verified, (topic, data.index))
            partition, info = self._replicas.append(
                topic, data.index, data.records, acks, self._version, validated=validated
            )
        except ExpensiveBatch:
            raise
        except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
            results.append(self._refuse(topic, data, error))
            return
        reply = PartitionProduceResponse(
            index=data.index,
            base_offset=info.base_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
        )
        results.append(reply)
        # If neither holds, the batch is acknowledgeable: this test saves a call that returns None.
        if info.flush_required or partition.log.high_watermark <= info.last_offset:
            acknowledgeable = self._replicas.when_acknowledgeable(partition, info, acks)
            if acknowledgeable is not None:
                self.commits.append((reply, acknowledgeable))

    def _topic(self, topic_data: TopicProduceData) -> str:
        """The name of a topic. Raises ApiError UNKNOWN_TOPIC_ID."""
        if self._version < _FIRST_VERSION_WITH_TOPIC_IDS:
            return topic_data.name
        name = self._replicas.metadata.topic_name(TopicId(topic_data.topic_id))
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    # --- transactions -----------------------------------------------------------------------------

    def begin_transaction(self, transactional_id: str | None, verify: Verify) -> InPieces[None]:
        """As `begin`, once the transaction coordinator has verified the partitions of the transactional batches."""
        if transactional_id is None:
            return (yield from self._refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        producers, partitions = yield from self._transactional_batches()
        if len(producers) > 1:
            return (yield from self._refuse_all(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        if not producers:
            return self.begin()
        verified = verify(transactional_id, *producers.pop(), partitions)
        if isinstance(verified, Awaitable):
            _keep(self._batches)
            return self._begin_when_verified(verified)
        self._verified = verified
        return self.begin()

    async def _begin_when_verified(self, verified: Awaitable[Verified]) -> None:
        self._verified = await verified
        rest = self.begin()
        if rest is not None:
            await rest

    def _transactional_batches(
        self,
    ) -> Generator[None, None, tuple[set[tuple[int, int]], dict[TopicPartition, int]]]:
        """The producer ids with their epochs, and the first sequence per partition, of the transactional batches.
        Batches that the log will refuse anyway are left out."""
        producers: set[tuple[int, int]] = set()
        partitions: dict[TopicPartition, int] = {}
        turns = Turns()
        for topic_data, data, _ in self._batches:
            if turns.is_over():
                _keep(self._batches)
                yield
            try:
                topic = self._topic(topic_data)
                header = parse_header(data.records or b"")
            except (ApiError, CorruptBatch):
                continue
            if header.is_transactional and header.producer_id >= 0:
                producers.add((header.producer_id, header.producer_epoch))
                partitions[topic, data.index] = header.base_sequence
        return producers, partitions

    def _refuse_all(self, error: ErrorCode) -> InPieces[None]:
        """Append nothing, and set the error for every partition."""
        turns = Turns()
        for topic_data, data, results in self._batches:
            results.append(self._refuse(topic_data.name, data, ApiError(error)))
            if turns.is_over():
                _keep(self._batches)
                yield
        return None

    def _check_verified(self, verified: Verified, topic_partition: TopicPartition) -> None:
        try:
            verified.check_produce(topic_partition, self._replicas)
        except ApiError as error:
            raise Unverified(error.error, error.message) from error


def _keep(batches: Iterable[Batch]) -> None:
    """Copy records that are a view of the receive buffer."""
    for _, data, _ in batches:
        if isinstance(data.records, memoryview):
            data.records = kept_part(data.records)
