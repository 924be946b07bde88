"""The clients' requests as a test sees them: requests, responses, charts."""

import asyncio
import re
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.session import Session
from barnabas.testing import Broker, Cluster, ErrorCode
from barnabas.testing.interception.request import read_request
from barnabas.testing.recording.recording import REQUESTS_MAX
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tools.attack.hostile import connect, frame, receive
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

LIST_GROUPS = ListGroupsRequest()


def test_a_producers_requests_are_recorded(broker: Broker) -> None:
    broker.create_topic("t", partitions=2)
    with broker.recorded() as seen:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "writer"})
        producer.produce("t", "hello", partition=1)
        assert producer.flush(PATIENCE_S) == 0
        [asked] = broker.requests("Produce", client_id="writer", topic="t", partition=1)
    assert b"hello" in bytes(asked.message.topic_data[0].partition_data[0].records)
    assert asked.request.partitions == {("t", 1)}
    [answered] = asked.answer.responses  # type: ignore[union-attr]
    assert answered.partition_responses[0].base_offset == 0
    assert asked.outcome == "ok"
    assert asked.errors == []
    assert asked.answered_ms is not None
    assert asked.time_ms <= asked.answered_ms
    assert broker.requests("Produce", topic="other") == broker.requests("Produce", partition=0) == []
    assert {each.api for each in seen} >= {"ApiVersions", "Metadata", "InitProducerId", "Produce"} - {"InitProducerId"}
    with pytest.raises(ValueError, match="did you mean 'Produce'"):
        seen.requests("Produces")
    with pytest.raises(TypeError, match="no such keyword: topics"):
        seen.requests("Produce", topics="t")  # type: ignore[call-arg]


def test_a_recorded_request_has_the_documented_fields(broker: Broker) -> None:
    """All that the documentation names, and nothing that is true because it is a method."""
    broker.create_topic("t", partitions=2)
    with broker.recorded() as seen, connect(broker.bootstrap_servers) as connection:
        batch = memoryview(build_batch([Record(0, 0, None, b"v", [], 0)]))
        data = [PartitionProduceData(index=1, records=batch)]
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])
        connection.sendall(frame(request, 9))
        receive(connection)
        [asked] = seen.requests("Produce")
        [*_, same] = broker.requests(connection=asked.connection)
    assert same is asked
    assert (asked.api, asked.version, asked.broker) == ("Produce", 9, broker.server.node_id)
    assert (asked.topics, asked.partitions) == ({"t"}, {("t", 1)})
    assert asked.groups == asked.transactional_ids == frozenset()
    assert asked.outcome == "ok"
    assert not asked.is_closed
    assert not hasattr(asked, "closed")
    assert not hasattr(asked, "answered")
    page = (Path(__file__).parents[3] / "docs" / "testing" / "debugging.md").read_text()
    table = page[page.index("| Field of a request") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert [name for name in named if not hasattr(asked, name)] == []
    assert named >= {"api", "connection", "topics", "answered_ms", "is_closed"}


def test_errors_and_closed_connections_are_recorded(broker: Broker) -> None:
    broker.create_topic("t")
    with broker.recorded() as seen:
        broker.faults.fail("ListGroups", 14, times=1)
        broker.faults.disconnect("ListGroups", after=1)
        with connect(broker.bootstrap_servers) as connection:
            for _ in range(2):
                connection.sendall(frame(LIST_GROUPS, 1))
                receive(connection)
        failed, closed = seen.requests("ListGroups")
    assert failed.errors == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert failed.outcome == "COORDINATOR_LOAD_IN_PROGRESS"
    assert closed.is_closed
    assert closed.outcome == "closed"


def test_waiting_for_a_request(broker: Broker) -> None:
    topic = broker.create_topic("t")
    with pytest.raises(RuntimeError, match=r"begin with recorded\(\)"):
        broker.wait_request("OffsetCommit")
    with broker.recorded() as seen:
        with pytest.raises(TimeoutError, match="the last ones: none"):
            broker.wait_request("OffsetCommit", timeout=0.01)
        config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(config)
        topic.produce("v")
        consumer.subscribe(["t"])
        assert consumer.poll(PATIENCE_S).value() == b"v"
        consumer.close()
        committed = broker.wait_request("OffsetCommit", group="g", topic="t")
        assert committed.message.topics[0].partitions[0].committed_offset == 1
        with pytest.raises(TimeoutError, match=r"not 2 such requests; the last ones: .*LeaveGroup"):
            seen.wait_request("OffsetCommit", 2, timeout=0.01)
    fetched: list[Any] = [each.answer for each in seen.requests("Fetch", topic="t")]
    topics = [topic for answer in fetched if answer is not None for topic in answer.responses]
    assert any(partition.records for topic in topics for partition in topic.partitions)


@pytest.mark.parametrize(
    ("api", "where", "told"),
    [
        ("Heartbeat", {"topic": "t"}, "no request of Heartbeat has topic"),
        ("Produce", {"version": 99}, "no request of Produce has the version 99"),
        (None, {"topic": "t", "transactional_id": "x", "group": "g", "partition": 0}, None),
    ],
)
def test_an_impossible_selection_is_refused(
    broker: Broker, api: str | None, where: dict[str, Any], told: str | None
) -> None:
    """As of faults: that there was none would look like an answer."""
    with broker.recorded() as seen:
        for owner in (broker, seen):
            if told is None:
                assert owner.requests(api, **where) == []
                continue
            with pytest.raises(ValueError, match=told):
                owner.requests(api, **where)
            with pytest.raises(ValueError, match=told):
                owner.wait_request(api, **where)
            with pytest.raises(ValueError, match=told):
                asyncio.run(owner.wait_request_async(api, **where))


def test_waiting_does_not_block_an_event_loop(broker: Broker) -> None:
    broker.create_topic("t")

    async def look() -> None:
        with broker.recorded() as seen:
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks=0) as producer:
                await producer.send_and_wait("t", b"v")
                found = await seen.wait_request_async("Produce")
                assert found.outcome == "no reply"
                assert await broker.wait_request_async("Produce", topic="t") is found
                with pytest.raises(TimeoutError, match="not 2 such requests"):
                    await broker.wait_request_async("Produce", 2, timeout=0.01)
                for waiting in (seen, broker):
                    with pytest.raises(RuntimeError, match="await wait_request_async"):
                        waiting.wait_request("Produce")

    asyncio.run(look())


def test_a_wait_for_an_ended_recording_fails_at_once(broker: Broker) -> None:
    """But for the answer of what came before."""
    hold = broker.faults.hold("ListGroups")
    with (
        broker.recorded() as seen,
        ThreadPoolExecutor(2) as pool,
        connect(broker.bootstrap_servers) as connection,
    ):
        connection.sendall(frame(LIST_GROUPS, 1))
        hold.wait_held()
        answered = pool.submit(seen.wait_request, "ListGroups")
        in_vain = pool.submit(seen.wait_request, "ListGroups", 2)
        wait_until(lambda: len(seen._listeners) == 2)
        seen.stop()
        told = "not 2 such requests; the last ones: .*, and no more can come: the recording has ended. Wait before that"
        with pytest.raises(RuntimeError, match=told):
            in_vain.result(PATIENCE_S)
        assert not answered.done()
        hold.remove()
        assert answered.result(PATIENCE_S).outcome == "ok"
    assert seen.wait_request("ListGroups").outcome == "ok"
    with pytest.raises(RuntimeError, match="no more can come"):
        asyncio.run(broker.wait_request_async("Produce"))


def test_no_recorder_stays_after_a_recording(broker: Broker) -> None:
    dispatcher = broker.server.dispatcher
    assert dispatcher is not None
    with broker.recorded() as seen, connect(broker.bootstrap_servers) as connection:
        assert dispatcher.dispatch != dispatcher.serve
        connection.sendall(frame(LIST_GROUPS, 1))
        receive(connection)
    assert dispatcher.dispatch == dispatcher.serve
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(LIST_GROUPS, 1))
        receive(connection)
    assert len(seen) == 1


def test_pipelined_requests_are_served_as_without_a_recording(broker: Broker) -> None:
    with broker.recorded() as seen, connect(broker.bootstrap_servers) as connection:
        connection.sendall(b"".join(frame(LIST_GROUPS, 1, number) for number in range(100)))
        answers = [receive(connection) or b"" for _ in range(100)]
    assert [int.from_bytes(answer[:4]) for answer in answers] == list(range(100))
    assert [each.request.correlation_id for each in seen] == list(range(100))


def test_only_the_last_ones_are_kept(broker: Broker) -> None:
    with broker.recorded() as seen, connect(broker.bootstrap_servers) as connection:
        for start in range(0, REQUESTS_MAX + 100, 100):
            connection.sendall(b"".join(frame(LIST_GROUPS, 1, start + number) for number in range(100)))
            for _ in range(100):
                receive(connection)
    assert len(seen) == REQUESTS_MAX
    assert seen.dropped == 100
    assert next(iter(seen)).request.correlation_id == 100


def test_charts(broker: Broker) -> None:
    broker.create_topic("t")
    with broker.recorded() as seen:
        broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=1)
        config = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "<writer>", "retry.backoff.ms": 1}
        producer = Producer(config)
        producer.produce("t", "v")
        assert producer.flush(PATIENCE_S) == 0
    text = seen.chart().splitlines()
    assert text[0].split() == ["<writer>", "broker", "1"]
    asked = [number for number, line in enumerate(text) if "- Produce v" in line and " t-0 -" in line and ">|" in line]
    failed = [number for number, line in enumerate(text) if "|<" in line and "Produce: NOT_LEADER" in line]
    done = [number for number, line in enumerate(text) if "|<" in line and "Produce: ok" in line]
    assert len(asked) == 2
    assert asked[0] < failed[0] < asked[1] < done[0]
    assert text[failed[0]].endswith("!")
    drawn = ET.fromstring(seen.chart_svg())
    labels = {each.text: each.get("fill") for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert labels["Produce: NOT_LEADER_OR_FOLLOWER"] == "#c00"
    assert labels["Produce: ok"] == "#000"
    assert "<writer>" in labels
    with broker.recorded() as nothing:
        pass
    assert nothing.chart() == ""


def test_a_chart_cuts_long_texts(broker: Broker) -> None:
    long = "orders-of-all-countries-of-the-northern-hemisphere"
    broker.create_topic(long)
    with broker.recorded() as seen:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "the-shop-of-" + long})
        producer.produce(long, "v")
        assert producer.flush(PATIENCE_S) == 0
    names, *lines = seen.chart().splitlines()
    assert names.split() == ["the-shop-of-orders-of-all-countries-of-...", "broker", "1"]
    assert any(re.search(r"\|-- Produce v\d+ orders-of-all-countries\.\.\. >\|", line) for line in lines), lines


def test_a_cluster_is_seen_as_a_whole() -> None:
    with Cluster(2) as cluster:
        with cluster.recorded() as seen, cluster.recorded(from_brokers=True) as everything:
            for broker in cluster.brokers:
                with connect(broker.bootstrap_servers) as connection:
                    connection.sendall(frame(LIST_GROUPS, 1))
                    receive(connection)
            cluster.create_topic("t")
            everything.wait_request("Fetch", topic="t")
        assert [each.request.broker for each in seen] == [0, 1]
        assert [each.api for each in seen.requests(broker=1)] == ["ListGroups"]
        for ask in (seen.requests, seen.wait_request, cluster.requests, cluster.wait_request):
            with pytest.raises(ValueError, match="this cluster has the brokers 0 to 1, not 7"):
                ask(broker=[0, 7])
        assert seen.chart().splitlines()[0].split() == ["hostile", "broker", "0", "broker", "1"]


def test_large_controller_requests_are_recorded(broker: Broker) -> None:
    partitions = [LeaderAndIsrPartitionState(partition_index=number, partition_epoch=0) for number in range(50_001)]
    asked = LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=partitions)])
    session = Session(None, ListenerContext("PLAINTEXT"), 1, client_host="127.0.0.1")
    connection: Any = SimpleNamespace(session=session)
    request = memoryview(frame(asked, 7))[4:]
    assert read_request(broker.server, connection, request) is None, "a client's is refused by the broker, too"
    session.belongs_to_broker(2)
    seen = read_request(broker.server, connection, request)
    assert seen is not None
    assert len(seen.partitions) == 50_001


# --- how much is kept -----------------------------------------------------------------------------

RECORD = Record(0, 0, None, bytes(1_000_000), (), 0)


def large_produce() -> bytes:
    data = [PartitionProduceData(index=0, records=build_batch([RECORD]))]
    topics = [TopicProduceData(name="t", partition_data=data)]
    return frame(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 8)


def test_a_recording_keeps_64_mib_at_most(broker: Broker) -> None:
    broker.create_topic("t")
    asked = large_produce()
    with connect(broker.bootstrap_servers) as connection, broker.recorded() as seen:
        for _ in range(70):
            connection.sendall(asked)
            assert receive(connection) is not None
    assert len(seen) + seen.dropped == 70
    kept = sum(each.size for each in seen)
    assert 63 * 1024 * 1024 < kept <= 64 * 1024 * 1024
    assert seen.dropped == 3


def test_a_request_larger_than_the_bound_is_kept_alone(broker: Broker) -> None:
    broker.create_topic("t")
    with connect(broker.bootstrap_servers) as connection, broker.recorded() as seen:
        seen.bytes_max = 1000
        for _ in range(3):
            connection.sendall(large_produce())
            assert receive(connection) is not None
    assert [each.outcome for each in seen] == ["ok"]


def test_the_answer_to_what_is_no_longer_kept_takes_no_room(broker: Broker) -> None:
    """The first request is answered when others have taken its place."""
    with (
        broker.recorded() as seen,
        broker.faults.hold("Metadata") as hold,
        connect(broker.bootstrap_servers) as late,
        connect(broker.bootstrap_servers) as connection,
    ):
        late.sendall(frame(MetadataRequest(topics=None), 4))
        hold.wait_held()
        connection.sendall(frame(ListGroupsRequest(), 1))
        assert receive(connection) is not None
        seen.bytes_max = 2 * max(each.size for each in seen)
        for _ in range(2):
            connection.sendall(frame(ListGroupsRequest(), 1))
            assert receive(connection) is not None
        before = len(seen)
        hold.release()
        assert receive(late) is not None
        connection.sendall(frame(ListGroupsRequest(), 1))
        assert receive(connection) is not None
    assert "Metadata" not in [each.api for each in seen]
    assert len(seen) == before
