"""Many connections with requests that each take the event loop milliseconds: everybody else has turns in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.schema import Message
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    connect,
    create_topic,
    eventually,
    frame,
    processor_share,
    receive,
)
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.listener("clients")]
Figure = Callable[..., None]

CONNECTIONS = 300
PARTITIONS = 2_000
ALL_TOPICS = frame(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9)


@contextlib.contextmanager
def dear_requests(broker: BarnabasProcess, each: int) -> Iterator[None]:
    """As many from each connection, all at once. The replies are not read; at the end the connections are closed."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(broker.bootstrap_servers)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.sendall(ALL_TOPICS * each)
        yield


@pytest.mark.parametrize(
    ("each", "records"),
    [(4, 100), pytest.param(2_000, 3_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])],
)
def test_a24_dear_requests_of_many_connections(
    broker: BarnabasProcess,
    memory: Memory,
    healthy: HealthyClient,
    figure: Figure,
    each: int,
    records: int,
    is_timed: bool,
) -> None:
    """A client that writes one record at a time does not wait for them, and the requests of closed connections are
    dropped."""
    create_topic(broker.bootstrap_servers, "wide", PARTITIONS)
    memory.mark()
    healthy.mark()
    with dear_requests(broker, each):
        healthy.write(records)
    # Real time: requests that are not dropped take longer than that.
    assert not is_timed or eventually(lambda: processor_share(broker.pid, spans=1) < 0.5, within_s=8)
    healthy.settle()
    figure(requests=CONNECTIONS * each, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 256 * MIB


TOPICS = CreateTopicsRequest(
    topics=[CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1) for number in range(12_000)],
    timeout_ms=60_000,
    validate_only=True,
)
RECORDS = ProduceRequest(
    acks=1,
    timeout_ms=60_000,
    topic_data=[
        TopicProduceData(
            name="none", partition_data=[PartitionProduceData(index=index, records=b"") for index in range(12_000)]
        )
    ],
)


@pytest.mark.parametrize(
    ("request_", "version"), [pytest.param(TOPICS, 7, marks=pytest.mark.full), (RECORDS, 9)], ids=["topics", "records"]
)
def test_a24_what_large_requests_decode_to_does_not_add_up(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, request_: Message, version: int
) -> None:
    """They are served a few at a time, and wait as the bytes that they came in."""
    request = frame(request_, version)
    healthy.rate_min = 20  # what is asked is seconds of work
    memory.mark()
    healthy.mark()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(broker.bootstrap_servers)) for _ in range(30)]
        for connection in connections:
            connection.sendall(request)
        assert all(receive(connection) for connection in connections)
    healthy.settle()
    figure(requests=30, request_bytes=len(request), growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 128 * MIB


@pytest.mark.alone
def test_a24_a_stop_does_not_wait_for_them(figure: Figure) -> None:
    with BarnabasProcess() as broker:
        create_topic(broker.bootstrap_servers, "wide", PARTITIONS)
        with dear_requests(broker, 16):
            before = time.monotonic()
            broker.stop(timeout_s=20)  # Real time: what is judged is how long it takes
            figure(stop_s=round(time.monotonic() - before, 2))
