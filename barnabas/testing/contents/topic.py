"""A topic of a broker under test: its records, and a short way to append some."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from barnabas.broker.client.producer import partition_for
from barnabas.broker.handlers.delete_records import HIGH_WATERMARK
from barnabas.testing.contents.partitions import Partitions
from barnabas.testing.contents.records import Range, Reading, Record, aborted_transactions, described, fetch, record_of
from barnabas.testing.contents.requests import ask
from barnabas.testing.contents.topic_changes import Ends, TopicChanges, ends_of, partitions_if_any, wait_for_offsets
from barnabas.testing.waiting.conditions import outliving
from barnabas.testing.waiting.durations import Duration, whole_ms
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_may_block, check_wait, with_timeout
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record as BatchRecord
from barnabas.wire.records import build_batch

PRODUCE_VERSION = 12
"""The last one with topic names."""

PRODUCE_TIMEOUT_MS = round(TIMEOUT_S * 1000)
DELETE_RECORDS_VERSION = 2
DELETE_TIMEOUT_MS = PRODUCE_TIMEOUT_MS
TIMESTAMP_MAX = 2**63 - 1

_DELETED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE})
"""The errors of reading a topic that is deleted, and perhaps created again, meanwhile."""

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class Topic:
    """A handle on one topic by name; the topic itself may not exist (yet). Safe to use from any thread."""

    def __init__(self, owner: Partitions, name: str) -> None:
        self.name = name
        self._owner = owner
        self._keyless = itertools.count()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def partition_count(self) -> int:
        """The number of its partitions. Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION."""

        async def count() -> int:
            return len(self._owner._known_topic(self.name).partitions)

        return self._owner.call(count())

    def records(self, partition: int | None = None, *, missing_ok: bool = False) -> list[Record]:
        """All committed records of the topic (or one partition), by partition and offset, decompressed. With
        `missing_ok` the result for a topic that does not exist (yet) is empty.

        Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION; of a cluster also LEADER_NOT_AVAILABLE for a partition that is
        offline.
        """

        async def ranges() -> list[Range]:
            if missing_ok and not self._exists():
                return []
            known = self._owner._known_topic(self.name).partitions
            indexes = sorted(known) if partition is None else [partition]
            return [Range.of((await self._owner._leading(self.name, index)).partition) for index in indexes]

        return [record for found in self._owner.call(ranges()) for record in self._read(found)]

    def _exists(self) -> bool:
        """On the broker's loop."""
        return any(self.name in server.metadata for server in self._owner.live_servers())

    def wait_records(self, count: int, *, timeout: float = TIMEOUT_S) -> list[Record]:
        """Wait until the topic has at least `count` committed records, and return all of them.

        The topic may be created meanwhile. `timeout` is in seconds of real time.

        Errors: TimeoutError, with the actual records; RuntimeError inside a running event loop, which this would block:
        await `wait_records_async` there.
        """
        check_may_block("wait_records_async")
        check_wait(timeout, count, least=0)
        return self._owner.call(self._wait_records(count, timeout))

    async def wait_records_async(self, count: int, *, timeout: float = TIMEOUT_S) -> list[Record]:
        """Like `wait_records`, without blocking the event loop that it is awaited on."""
        check_wait(timeout, count, least=0)
        return await self._owner.call_async(self._wait_records(count, timeout))

    async def _wait_records(self, count: int, timeout_s: float) -> list[Record]:
        """Read, wait for as many offsets as records are missing, and repeat: not every offset is a record, so only
        reading shows the number, also after the timeout. The timeout ends waits, not reads.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        owner = self._owner
        changed = asyncio.Event()
        ends: Ends = {}
        is_over = False

        def is_of_another_broker() -> None:
            ends.clear()  # everything there now is new
            changed.set()

        with outliving(is_of_another_broker) as brokers:
            while True:
                await brokers.has_one.wait()
                changes = brokers.changes
                ends = ends_of(partitions_if_any(owner, self.name))
                records = None
                try:
                    records = await self._records_if_any()
                except Exception:
                    if brokers.changes == changes:
                        raise
                if brokers.changes != changes:
                    continue  # these belong to a broker that has ended meanwhile
                if records is not None and len(records) >= count:
                    return records
                held = len(records or ())
                if is_over:
                    error = TimeoutError(f"after {timeout_s:g} s topic {self.name} holds {held} records, not {count}")
                    raise owner._explained(error, described(records or []))
                try:
                    async with asyncio.timeout_at(deadline):
                        await wait_for_offsets(owner, self.name, ends, count - held, changed)
                except TimeoutError:
                    is_over = True

    def wait_silence(self, duration: Duration, *, timeout: float = TIMEOUT_S) -> list[Record]:
        """Wait until no record was committed for `duration`, a timedelta or ms, and return the topic's records then;
        none if the topic does not exist. Each record restarts the time. It is the broker's, as for `faults.delay`:
        `clock.advance` shortens it. `timeout` is in seconds of real time.

        Errors: TimeoutError, with the actual records; ValueError, TypeError for an invalid duration; RuntimeError
        inside a running event loop, which this would block: await `wait_silence_async` there.
        """
        check_may_block("wait_silence_async")
        check_wait(timeout)
        return self._owner.call(self._wait_silence(whole_ms(duration), timeout))

    async def wait_silence_async(self, duration: Duration, *, timeout: float = TIMEOUT_S) -> list[Record]:
        """Like `wait_silence`, without blocking the event loop that it is awaited on."""
        check_wait(timeout)
        return await self._owner.call_async(self._wait_silence(whole_ms(duration), timeout))

    async def _wait_silence(self, duration_ms: int, timeout_s: float) -> list[Record]:
        def found() -> str:
            held = sum(ends_of(partitions_if_any(self._owner, self.name)).values())
            return f"topic {self.name} was not silent for {duration_ms} ms: its committed offsets are {held} by now"

        try:
            await with_timeout(self._until_silent(duration_ms), timeout_s, found)
        except TimeoutError as error:
            raise self._owner._explained(error, described(await self._records_if_any() or [])) from None
        return await self._records_if_any() or []

    async def _until_silent(self, duration_ms: int) -> None:
        """A replacement of brokers restarts the time, too: their records are new."""
        changed = asyncio.Event()
        seen, until_ms = None, 0
        with outliving(changed.set) as brokers, TopicChanges(self._owner, self.name, changed) as changes:
            while True:
                await brokers.has_one.wait()
                changed.clear()
                now_ms = self._owner.clock.monotonic_ms()
                there_is = brokers.changes, ends_of(changes.partitions())
                if there_is != seen:
                    seen, until_ms = there_is, now_ms + duration_ms
                if now_ms >= until_ms:
                    return
                await changes.wait(until_ms - now_ms)

    async def _records_if_any(self) -> list[Record] | None:
        """The records of the partitions that have a leader now, or None when the topic does not exist or was deleted
        meanwhile. On the broker's loop; no thread waits for it, as others need threads, too.
        """
        records: list[Record] = []
        try:
            self._owner._known_topic(self.name)
            for found in [Range.of(partition) for partition in partitions_if_any(self._owner, self.name)]:
                reading = Reading(found, await aborted_transactions(self._owner, self.name, found))
                while not reading.is_over:
                    data = await fetch(self._owner, self.name, found, reading.offset)
                    records += await asyncio.to_thread(reading.records, self.name, data)
            return records
        except ApiError as error:
            if error.error in _DELETED:
                return None
            raise

    def produce(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> Record:
        """Append one record and return it as it is in the topic. Text is encoded as UTF-8.

        Without `partition`, records with a key go to the partition of Java's and librdkafka's (murmur2) partitioners,
        others to one partition after the other. `timestamp` is in ms, by default the broker's time.

        Errors: TypeError for a value, a key or headers that are neither text nor bytes: serialize them first, as
        producers do; TypeError, ValueError for an invalid timestamp; ApiError UNKNOWN_TOPIC_OR_PARTITION (this does not
        create topics), MESSAGE_TOO_LARGE, INVALID_RECORD and other errors of Produce.
        """
        if timestamp is not None:
            _check_timestamp(timestamp)
        record = BatchRecord(
            offset=0,
            timestamp=self._owner.clock.now_ms() if timestamp is None else timestamp,
            key=_bytes(key, "a key"),
            value=_bytes(value, "a value"),
            headers=_header_pairs(headers),
        )
        return self._owner.call(self._append(record, partition))

    async def _append(self, record: BatchRecord, partition: int | None) -> Record:
        if partition is None:
            count = len(self._owner._known_topic(self.name).partitions)
            partition = next(self._keyless) % count if record.key is None else partition_for(record.key, count)
        data = PartitionProduceData(index=partition, records=memoryview(build_batch([record])))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self.name, partition_data=[data])],
        )
        leader = (await self._owner._leading(self.name, partition)).server
        answer = (await ask(leader, request, PRODUCE_VERSION)).responses[0].partition_responses[0]
        if answer.error_code:
            details = [error.batch_index_error_message for error in answer.record_errors]
            raise ApiError(ErrorCode.of(answer.error_code), answer.error_message or "; ".join(filter(None, details)))
        timestamp = record.timestamp if answer.log_append_time_ms < 0 else answer.log_append_time_ms
        return record_of(self.name, partition, record._replace(offset=answer.base_offset, timestamp=timestamp))

    def delete_records(self, offset: int | None = None, *, partition: int = 0) -> None:
        """Delete the records of a partition below an offset, or all: its log start offset moves there. Consumers whose
        next offset is below it get OFFSET_OUT_OF_RANGE.

        Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE beyond the high watermark, POLICY_VIOLATION for
        a topic that is compacted only, INVALID_TOPIC_EXCEPTION for an internal one, REQUEST_TIMED_OUT if a follower
        does not follow within 30 s. TypeError for an invalid offset.
        """
        if offset is not None:
            _check_whole(offset, "offset is a whole number")
        self._owner.call(self._delete_records(HIGH_WATERMARK if offset is None else offset, partition))

    async def _delete_records(self, offset: int, partition: int) -> None:
        asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=self.name, partitions=[asked])], timeout_ms=DELETE_TIMEOUT_MS
        )
        leader = (await self._owner._leading(self.name, partition)).server
        answer = (await ask(leader, request, DELETE_RECORDS_VERSION)).topics[0].partitions[0]
        if answer.error_code:
            raise ApiError(ErrorCode.of(answer.error_code))

    def _read(self, found: Range) -> Iterator[Record]:
        reading = Reading(found, self._owner.call(aborted_transactions(self._owner, self.name, found)))
        while not reading.is_over:
            data = self._owner.call(fetch(self._owner, self.name, found, reading.offset))
            yield from reading.records(self.name, data)


def topic_name(topic: str | Topic) -> str:
    """The name of a topic, given by name or by a handle. Errors: TypeError."""
    if isinstance(topic, Topic):
        return topic.name
    if isinstance(topic, str):
        return topic
    raise TypeError(f"topic is the name of one, or a Topic, not {topic!r:.100}")


def _check_whole(value: Any, told: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{told}, not {value!r:.100}")


def _check_timestamp(timestamp: int) -> None:
    _check_whole(timestamp, "timestamp is a whole number of ms since 1970")
    if not -TIMESTAMP_MAX <= timestamp <= TIMESTAMP_MAX:
        raise ValueError(f"timestamp is in ms since 1970, in 64 bits: not {timestamp!r:.100}")


def _bytes(value: bytes | str | None, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} is to be text, bytes or None, not {value!r:.100} ({type(value).__name__}): serialize it")


def _header_pairs(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    try:
        pairs = [(name, content) for name, content in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise TypeError(f"headers are to be names and values, as a dict or in pairs, not {headers!r:.100}") from None
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is to be text, not {name!r:.100}")
    return tuple((name, _bytes(content, f"header {name}")) for name, content in pairs)
