"""The metrics of real requests on /metrics: errors by API and code, records and bytes by topic."""

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from barnabas.broker.api.response_errors import error_counter
from barnabas.broker.handlers import served_apis
from barnabas.broker.http.figures import TOPICS_MAX, take_snapshot
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.clock import ManualClock
from barnabas.testing import Broker
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Array, Message
from tools.attack.hostile import ask, connect, frame, is_closed, produce

BATCH = build_batch([Record(offset, 1_700_000_000_000, None, b"x" * 100, [], 0) for offset in range(3)])
IN_MEMORY_BYTES, IN_FILE_BYTES = 1_000, 600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(auto_create_topics_enable=False) as broker:
        yield broker


def page(broker: Broker) -> dict[str, float]:
    """The samples of /metrics."""

    async def snapshot() -> str:
        return MetricsPage().render(take_snapshot(broker.server.metric_sources()), "")[0].decode()

    return {
        name: float(value) for name, value in re.findall(r"^([^# ].*) (\S+)$", broker.call(snapshot()), re.MULTILINE)
    }


def errors(broker: Broker, api: str) -> dict[str, float]:
    found = (
        re.fullmatch(rf'barnabas_request_errors_total{{api="{api}",error="(\w+)"}}', name) for name in page(broker)
    )
    return {match[1]: page(broker)[match[0]] for match in found if match}


def test_errors_of_produce(broker: Broker) -> None:
    broker.create_topic("there")
    with connect(broker.bootstrap_servers) as connection:
        data = [PartitionProduceData(index=index, records=BATCH) for index in (0, 1, 2)]
        several = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="there", partition_data=data)])
        ask(connection, several, 9, ProduceResponse)
        ask(connection, produce("there", BATCH, acks=5), 9, ProduceResponse)
        ask(connection, produce("there", b"x" * 70), 9, ProduceResponse)
        connection.sendall(frame(produce("missing", BATCH, acks=0), 9))
        assert is_closed(connection)
    assert errors(broker, "Produce") == {
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "INVALID_REQUIRED_ACKS": 1,
        "CORRUPT_MESSAGE": 1,
    }


def test_errors_of_fetch(broker: Broker) -> None:
    broker.create_topic("fetched")
    partition = FetchPartition(partition=0, fetch_offset=99, partition_max_bytes=1)
    with connect(broker.bootstrap_servers) as connection:
        for session_id, epoch in ((0, -1), (77, 1)):
            topics = [FetchTopic(topic="fetched", partitions=[partition])]
            request = FetchRequest(
                replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1, session_id=session_id, session_epoch=epoch,
                topics=topics,
            )  # fmt: skip
            ask(connection, request, 11, FetchResponse)
    assert errors(broker, "Fetch") == {"OFFSET_OUT_OF_RANGE": 1, "FETCH_SESSION_ID_NOT_FOUND": 1}


def test_errors_of_other_apis(broker: Broker) -> None:
    with connect(broker.bootstrap_servers) as connection:
        topics = [MetadataRequestTopic(name=f"missing-{number}") for number in range(3)]
        for _ in range(2):
            ask(connection, MetadataRequest(topics=topics), 8, MetadataResponse)
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        ask(connection, heartbeat, 3, HeartbeatResponse)
        create = CreateTopicsRequest(
            topics=[CreatableTopic(name="copies", num_partitions=1, replication_factor=3)], timeout_ms=1
        )
        ask(connection, create, 5, CreateTopicsResponse)
    assert errors(broker, "Metadata") == {"UNKNOWN_TOPIC_OR_PARTITION": 6}
    assert len(errors(broker, "Heartbeat")) == 1
    assert errors(broker, "CreateTopics") == {"INVALID_REPLICATION_FACTOR": 1}


def fill(message: Message) -> int:
    """Give each place for an error one; how many there are."""
    count = 0
    for field in message.FIELDS:
        element = field.type.element if isinstance(field.type, Array) else field.type
        if field.name == "error_code":
            message.error_code = ErrorCode.UNKNOWN_SERVER_ERROR  # type: ignore[attr-defined]
            count += 1
        elif isinstance(element, type):
            entries = [element(), element()] if isinstance(field.type, Array) else [element()]
            count += sum(map(fill, entries))
            setattr(message, field.name, entries if isinstance(field.type, Array) else entries[0])
    return count


@pytest.mark.parametrize("key", sorted(served_apis()))
def test_every_error_code_of_every_api_is_counted(key: int) -> None:
    response_class = messages.api(key).response_class
    found: list[int] = []
    response = response_class()
    count = fill(response)
    counter = error_counter(response_class, found.append)
    assert counter is not None, "there is no response without an error code"
    counter(response)
    assert found == [ErrorCode.UNKNOWN_SERVER_ERROR] * count
    found.clear()
    counter(response_class())
    assert found == []


def test_entries_without_an_error_are_not_counted() -> None:
    partitions = [MetadataResponsePartition(error_code=code) for code in (0, 5, 0, 5)]
    response = MetadataResponse(
        topics=[MetadataResponseTopic(error_code=3), MetadataResponseTopic(partitions=partitions)]
    )
    found: list[int] = []
    counter = error_counter(MetadataResponse, found.append)
    assert counter is not None
    counter(response)
    assert found == [3, 5, 5]
    deep = OffsetFetchResponseTopics(partitions=[OffsetFetchResponsePartitions(error_code=29)])
    counter = error_counter(OffsetFetchResponse, found.append)
    assert counter is not None
    counter(OffsetFetchResponse(groups=[OffsetFetchResponseGroup(error_code=0, topics=[deep])]))
    assert found == [3, 5, 5, 29]


def fetch(broker: Broker, topic: str, offset: int, max_bytes: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )  # fmt: skip
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, request, 11, FetchResponse)
    return bytes(response.responses[0].partitions[0].records or b"")


@pytest.mark.parametrize("value_bytes", [IN_MEMORY_BYTES, IN_FILE_BYTES])
def test_records_and_bytes_of_a_topic(value_bytes: int) -> None:
    """Also of segments that were sealed, and of those that are gone again; what a topic had before the start is not
    counted."""
    batch = build_batch([Record(n, 1_700_000_000_000, None, b"x" * (value_bytes // 3), [], 0) for n in range(3)])
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        broker.create_topic("t", configs={"internal.segment.bytes": 3 * value_bytes})

        def counted() -> tuple[float, ...]:
            samples = page(broker)
            return tuple(
                samples[f'barnabas_topic_{name}_total{{topic="t"}}']
                for name in ("messages_in", "bytes_in", "messages_out", "bytes_out")
            )

        def send(count: int) -> None:
            with connect(broker.bootstrap_servers) as connection:
                for _ in range(count):
                    ask(connection, produce("t", batch, acks=1), 9, ProduceResponse)

        assert counted() == (0, 0, 0, 0)
        send(10)
        assert counted() == (30, 10 * len(batch), 0, 0)
        # Up to a batch in the middle of a segment, to a segment's end, to the log's; none; and from within a batch.
        received = [
            len(fetch(broker, "t", *asked)) for asked in ((0, 2 * len(batch)), (6, 9 * len(batch)), (27, 1), (30, 1))
        ]
        assert all(size % len(batch) == 0 for size in received)
        batches = sum(received) // len(batch)
        assert batches >= 4
        assert counted() == (30, 10 * len(batch), 3 * batches, sum(received))
        fetch(broker, "t", 1, 1)
        assert counted() == (30, 10 * len(batch), 3 * batches + 2, sum(received) + len(batch))
        broker.restart()
        assert counted() == (0, 0, 0, 0)
        send(4)
        assert counted() == (12, 4 * len(batch), 0, 0)


def test_topics_beyond_the_bound_are_counted() -> None:
    broker = Broker()
    with broker:
        names = [f"t{number:02}" for number in range(12)]
        for name in names:
            broker.create_topic(name)

        async def snapshot() -> tuple[list[str], int]:
            taken = take_snapshot(broker.server.metric_sources(), topics_max=10)
            return [topic.name for topic in taken.topics], taken.topics_left_out

        shown, left_out = broker.call(snapshot())
        assert (len(shown), left_out) == (10, 2)
        assert shown == names[:10]
        broker.create_topic("a-later-one")
        assert broker.call(snapshot()) == (shown, 3)
        assert TOPICS_MAX == 1_000


def test_names_are_prometheus_names(broker: Broker) -> None:
    async def families() -> list[tuple[str, str, str]]:
        found = MetricsPage().families(take_snapshot(broker.server.metric_sources()))
        return [(metric.name, metric.type, metric.documentation) for metric in found]

    names = broker.call(families())
    assert len(names) > 30
    for name, kind, documentation in names:
        assert re.fullmatch(r"(barnabas|process)_[a-z_]+", name)
        assert documentation.endswith(".")
        if kind == "histogram":
            assert name.endswith("_seconds")
    assert all(before[0] != after[0] for before, after in pairwise(sorted(names)))
