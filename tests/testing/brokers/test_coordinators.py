"""Coordinators are there when the first client asks: none of a test is told to ask again, which costs librdkafka a
second."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.broker.configuration.config import load
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker as Server
from barnabas.clock import ManualClock
from barnabas.testing import Broker, Cluster, ErrorCode
from barnabas.testing.brokers import coordinators
from barnabas.testing.brokers.broker_thread import BrokerThread
from barnabas.testing.contents.requests import ask
from barnabas.wire.codec import decode
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.files import RuledFiles
from tools.attack.hostile import connect, frame, receive
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

Owner = Broker | Cluster
ANSWERED_AT_ONCE = ["FindCoordinator", "JoinGroup", "OffsetFetch", "InitProducerId", "AddPartitionsToTxn"]


def use_coordinators(bootstrap_servers: str, topic: str) -> None:
    """One producer with transactions, and one member of a group."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, "1")
    producer.commit_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = None
    while message is None:
        message = consumer.poll(0.1)
    assert message.error() is None
    consumer.close()


def refused(owner: Owner, topic: str) -> list[str]:
    """The outcomes for clients of coordinators, except "ok" and the error that every new member gets (KIP-394).
    librdkafka gives up its first connection when it has learnt the name of the broker, whatever it has asked there."""
    owner.create_topic(topic)
    with owner.recorded() as seen:
        use_coordinators(owner.bootstrap_servers, topic)
    told = [(asked.request.api, asked.outcome) for asked in seen.requests(ANSWERED_AT_ONCE)]
    assert {api for api, _ in told} >= {"FindCoordinator", "JoinGroup", "InitProducerId"}
    return [f"{api}: {outcome}" for api, outcome in told if outcome not in ("ok", "MEMBER_ID_REQUIRED", "closed")]


def coordinator_at(bootstrap_servers: str) -> Coordinator:
    """The response to a client's single request for a group's coordinator."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    with connect(bootstrap_servers) as connection:
        connection.sendall(frame(request, 4))
        answer = receive(connection)
    assert answer is not None
    [found] = decode(FindCoordinatorResponse, 4, answer, 5).coordinators
    return found


def new_broker() -> Broker:
    return Broker(group_initial_rebalance_delay_ms=0)


def new_cluster() -> Cluster:
    return Cluster(group_initial_rebalance_delay_ms=0)


@pytest.fixture(params=[new_broker, new_cluster])
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    new: Callable[[], AbstractContextManager[Owner]] = request.param
    with new() as running:
        yield running


def test_no_client_of_a_coordinator_is_told_to_ask_again(owner: Owner) -> None:
    assert refused(owner, "t") == []


def test_nor_after_a_reset() -> None:
    with new_broker() as broker:
        for _ in range(2):
            assert refused(broker, "t") == []
            broker.reset()


def test_nor_after_a_restart() -> None:
    with new_broker() as broker:
        use_coordinators(broker.bootstrap_servers, broker.create_topic("t").name)
        broker.restart()
        assert refused(broker, "u") == []


def test_coordinators_come_while_time_stands_still() -> None:
    with Broker(clock=ManualClock(), group_initial_rebalance_delay_ms=0) as broker:
        assert refused(broker, "t") == []


def test_internal_topics_are_created_on_demand_only(owner: Owner) -> None:
    owner.create_topic("t")
    assert [
        topic.name for server in owner.live_servers() for topic in server.metadata.topics() if topic.is_internal
    ] == []


def test_clients_that_cannot_be_served_get_an_error(tmp_path: Path) -> None:
    def wait_for_coordinators(server: Server) -> None:
        coordinators.attach(server, lambda: [server], patience_s=0.1)

    config = load(options={"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
    files = RuledFiles()
    files.refuse("make_directory", errno.ENOSPC, lambda path: "/__" in path)  # there is no room for internal topics
    broker = BrokerThread(config, Environment(files=files), wait_for_coordinators)
    server = broker.server
    try:
        coordinator_at(server.socket_server.bootstrap_servers)  # creates the topic; it may come before the refusals

        def are_leaderless() -> bool:
            topic = server.metadata.topic(GROUP_METADATA_TOPIC)
            return topic is not None and {each.leader for each in topic.partitions.values()} == {-1}

        wait_until(are_leaderless, "the broker has refused all partitions")
        for _ in range(2):
            found = coordinator_at(server.socket_server.bootstrap_servers)
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    finally:
        broker.end()


def test_a_wait_for_more_brokers_fails_at_once() -> None:
    with Cluster(2, offsets_topic_replication_factor=3) as cluster:
        server = cluster.brokers[0].server

        async def rounds() -> int:
            """How many rounds of the event loop the answer takes: a wait has tens of thousands of them."""
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            asking, count = asyncio.create_task(ask(server, request, 4)), 0
            while not asking.done():
                await asyncio.sleep(0)
                count += 1
            assert asking.result().coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            return count

        assert cluster.call(rounds()) < 100
