"""A Kafka client without any cleverness: one socket, one request at a time or many at once, nothing retried."""

import itertools
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from barnabas.wire import codec, headers, messages
from barnabas.wire.compression import CompressionType
from barnabas.wire.crc import crc32c
from barnabas.wire.messages import fetch, metadata, produce
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch, iter_records
from tools.waiting import PATIENCE_S, wait_until

PRODUCE_VERSION = 9
FETCH_VERSION = 12
_CRC_POSITION, _MAX_TIMESTAMP_POSITION = 17, 35


class ConnectionClosed(Exception):
    """The broker ended the connection."""


class Connection:
    """One connection. Requests are remembered in order, since that is the order replies must come in."""

    def __init__(self, bootstrap_servers: str, timeout_s: float = PATIENCE_S) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._correlation_ids = itertools.count(1)
        self._expected: deque[tuple[int, int, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, request: Any, version: int, *, answered: bool = True) -> None:
        """Send a request and return at once; `answered` is False for a Produce with acks=0."""
        api_key = request.API_KEY
        correlation_id = next(self._correlation_ids)
        header = headers.request_header(api_key, version, correlation_id, "semantics")
        if answered:
            self._expected.append((api_key, version, correlation_id))
        self.send_frame(header + codec.encode(request, version))

    def send_frame(self, frame: bytes) -> None:
        """Send bytes as one frame."""
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> Any:
        """The reply to the oldest unanswered request."""
        api_key, version, correlation_id = self._expected.popleft()
        frame = self.receive_frame()
        answered, position = headers.parse_response_header(frame, api_key, version)
        assert answered == correlation_id, "replies must come in the order of the requests"
        return codec.decode(messages.api(api_key).response_class, version, frame, position)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError as error:
                raise ConnectionClosed from error
            if not part:
                raise ConnectionClosed
            data += part
        return bytes(data)

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and wait for its reply."""
        self.send(request, version)
        return self.receive()

    def is_closed_by_broker(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the broker closes the connection, sending nothing, before the timeout."""
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(PATIENCE_S)

    def has_answer(self, timeout_s: float) -> bool:
        """Whether something has arrived, or arrives before the timeout; it stays to be received."""
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(PATIENCE_S)

    def is_silent(self, timeout_s: float = 0.5) -> bool:  # Real time: an answer that should not come has it
        """Whether nothing arrives, and the connection stays open, until the timeout."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(PATIENCE_S)
        return False


def batch_of(
    values: Sequence[bytes | None],
    *,
    timestamps: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    compression: CompressionType = CompressionType.NONE,
    **fields: Any,
) -> bytearray:
    """A batch as a producer sends it: offsets from 0. `fields` are those of `build_batch` (producer_id, ...)."""
    records = [
        Record(
            offset=number,
            timestamp=timestamps[number] if timestamps else 1_700_000_000_000 + number,
            key=keys[number] if keys else None,
            value=value,
        )
        for number, value in enumerate(values)
    ]
    return build_batch(records, compression=compression, **fields)


def with_max_timestamp(batch: bytearray, max_timestamp: int) -> bytearray:
    """The batch with a header that claims another largest timestamp, and a CRC that fits."""
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_POSITION, max_timestamp)
    struct.pack_into(">I", batch, _CRC_POSITION, crc32c(memoryview(batch)[_CRC_POSITION + 4 :]))
    return batch


def produce_request(
    topic: str | bytes, records: Any, *, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000
) -> produce.ProduceRequest:
    """A Produce of one batch to one partition; a topic given as bytes is a topic id (version 13)."""
    named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    data = produce.PartitionProduceData(index=partition, records=records)
    return produce.ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[produce.TopicProduceData(**named, partition_data=[data])]
    )


def produce_batch(connection: Connection, topic: str | bytes, records: Any, **arguments: Any) -> Any:
    """Produce one batch and return the answer for its partition."""
    version = arguments.pop("version", PRODUCE_VERSION)
    response = connection.ask(produce_request(topic, records, **arguments), version)
    return response.responses[0].partition_responses[0]


def fetch_request(
    topics: Iterable[tuple[str | bytes, int, int]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 1_000_000,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[tuple[str | bytes, int]] = (),
    isolation_level: int = 0,
) -> fetch.FetchRequest:
    """A Fetch of (topic name or id, partition, offset); `session` is (id, epoch)."""

    def named(topic: str | bytes) -> dict[str, Any]:
        return {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}

    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            fetch.FetchTopic(
                **named(topic),
                partitions=[
                    fetch.FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=current_leader_epoch,
                        last_fetched_epoch=last_fetched_epoch,
                    )
                ],
            )
            for topic, partition, offset in topics
        ],
        forgotten_topics_data=[
            fetch.ForgottenTopic(**named(topic), partitions=[partition]) for topic, partition in forgotten
        ],
    )


def fetch_partition(connection: Connection, topic: str | bytes, offset: int, **arguments: Any) -> Any:
    """Fetch one partition (0 unless told) and return the answer for it."""
    version = arguments.pop("version", FETCH_VERSION)
    partition = arguments.pop("partition", 0)
    response = connection.ask(fetch_request([(topic, partition, offset)], **arguments), version)
    assert response.error_code == 0
    return response.responses[0].partitions[0]


def records_of(partition: Any) -> list[Record]:
    """The records in the answer for one partition, of all its batches."""
    buffer = bytes(partition.records)
    return [record for header in iter_headers(buffer) for record in iter_records(buffer, header)]


def new_producer_id(connection: Connection) -> int:
    """A producer id; a broker that started just now may have to be asked again (COORDINATOR_LOAD_IN_PROGRESS)."""
    answers: list[Any] = []

    def given() -> bool:
        answers.append(connection.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4))
        return bool(answers[-1].error_code != 14)

    wait_until(given)
    assert (answers[-1].error_code, answers[-1].producer_epoch) == (0, 0)
    return int(answers[-1].producer_id)


def topic_metadata(connection: Connection, topic: str) -> Any:
    """Metadata of one existing topic, without creating it."""
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    (description,) = connection.ask(request, 12).topics
    return description
