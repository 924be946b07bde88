"""Moving a broker's time: what is due has happened when `advance` returns, and sockets do not notice."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from barnabas.broker.coordinators.transactions.retries import MARKERS_PER_TURN
from barnabas.clock import ManualClock
from barnabas.testing import Broker
from barnabas.testing.contents import requests
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest
from tools.attack.hostile import answer, connect, frame
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

DAY = timedelta(days=1)


def consumer(broker: Broker, **configs: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **configs,
        }
    )


def test_records_and_topics_get_the_brokers_time(broker: Broker) -> None:
    before = broker.clock.now_ms()
    broker.clock.advance(DAY)
    assert broker.clock.now_ms() - before >= 86_400_000
    topic = broker.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
    assert topic.produce("v").timestamp - before >= 86_400_000


def test_milliseconds_and_nothing_backwards(broker: Broker) -> None:
    before = broker.clock.monotonic_ms()
    broker.clock.advance(5_000)
    assert 5_000 <= broker.clock.monotonic_ms() - before < 60_000
    with pytest.raises(ValueError, match="cannot go back"):
        broker.clock.advance(timedelta(seconds=-1))


def test_retention(broker: Broker) -> None:
    topic = broker.create_topic("t", 1, {"retention.ms": 3_600_000})
    topic.produce("old")
    broker.clock.advance(timedelta(minutes=55))
    topic.produce("newer")
    assert len(topic.records()) == 2
    broker.clock.advance(timedelta(hours=2))
    assert topic.records() == []


def test_advanced_time_deletes_old_segments_only() -> None:
    with Broker(log_roll_ms=60_000, log_retention_ms=3_600_000) as broker:
        topic = broker.create_topic("t")
        topic.produce("old")
        broker.clock.advance(timedelta(minutes=58))
        topic.produce("young")
        broker.clock.advance(timedelta(minutes=5))
        assert [record.value for record in topic.records()] == [b"young"]


def test_files_of_deleted_topics_go() -> None:
    with Broker() as broker:
        broker.create_topic("t").produce("v")
        broker.delete_topic("t")
        assert len(list(broker.data_dir.glob("t-0.*-delete"))) == 1
        broker.clock.advance(timedelta(minutes=2))
        assert list(broker.data_dir.glob("t-0*")) == []


class Member:
    """A member of group "g" that does only what it is told to: no heartbeats of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.member_id = ""
        self.generation_id = -1

    def ask(self, request: object, version: int) -> Any:
        return self._broker.call(requests.ask(self._broker.server, request, version))

    def join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range")],
        )
        response: JoinGroupResponse = self.ask(request, 3)
        assert response.error_code == 0
        self.member_id, self.generation_id = response.member_id, response.generation_id
        return response

    def sync(self) -> None:
        identity = {"group_id": "g", "generation_id": self.generation_id, "member_id": self.member_id}
        assert self.ask(SyncGroupRequest(**identity), 2).error_code == 0

    def heartbeat(self) -> int:
        identity = {"group_id": "g", "generation_id": self.generation_id, "member_id": self.member_id}
        code: int = self.ask(HeartbeatRequest(**identity), 2).error_code
        return code


@pytest.fixture
def coordinator() -> Iterator[Broker]:
    """A broker whose group coordinator serves group "g", and for which no time passes but what a test lets pass."""
    with Broker(clock=ManualClock(), group_initial_rebalance_delay_ms=0) as broker:
        broker.create_topic("t")
        client = consumer(broker)
        client.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        client.close()
        yield broker


def test_members_that_send_no_heartbeat_for_that_long_are_out(coordinator: Broker) -> None:
    member = Member(coordinator)
    member.join()
    member.sync()
    assert coordinator.group("g").state == "Stable"
    for _ in range(3):
        coordinator.clock.advance(timedelta(seconds=44))
        assert member.heartbeat() == ErrorCode.NONE
    coordinator.clock.advance(timedelta(seconds=46))
    assert (coordinator.group("g").state, coordinator.group("g").members) == ("Empty", ())
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_advanced_time_ends_a_rebalance_without_late_members(coordinator: Broker) -> None:
    late, early = Member(coordinator), Member(coordinator)
    late.join()
    late.sync()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(early.join)
        coordinator.wait_group("g", "PreparingRebalance", members=2)
        for _ in range(2):
            coordinator.clock.advance(timedelta(seconds=29))
            assert late.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert not joining.done()
        coordinator.clock.advance(timedelta(seconds=3))
        assert joining.result(timeout=PATIENCE_S).leader == early.member_id
    early.sync()
    assert [member.member_id for member in coordinator.group("g").members] == [early.member_id]


def test_offsets_expire_once_their_group_is_empty() -> None:
    with Broker(offsets_retention_minutes=60) as broker:
        broker.create_topic("t").produce("v")
        member = consumer(broker)
        member.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        member.close()
        assert broker.group("g").offsets == {("t", 0): 1}
        broker.clock.advance(timedelta(minutes=30))
        assert broker.group("g").offsets == {("t", 0): 1}
        broker.clock.advance(timedelta(minutes=31))
        assert broker.group("g").state == "Dead"


def test_producers_expire() -> None:
    with Broker(producer_id_expiration_ms=60_000, producer_id_expiration_check_interval_ms=1_000) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("t", b"v")
        assert producer.flush(PATIENCE_S) == 0

        async def known() -> int:
            return len(broker.server.replicas.partition_or_error("t", 0).log.producer_state.producers)

        assert broker.call(known()) == 1
        broker.clock.advance(timedelta(minutes=2))
        assert broker.call(known()) == 0


def test_producers_expire_as_their_config_says_now() -> None:
    with Broker(producer_id_expiration_check_interval_ms=1_000) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("t", b"v")
        assert producer.flush(PATIENCE_S) == 0

        async def known() -> int:
            return len(broker.server.replicas.partition_or_error("t", 0).log.producer_state.producers)

        broker.clock.advance(timedelta(minutes=2))
        assert broker.call(known()) == 1
        change = ConfigEntry("producer.id.expiration.ms", "60000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, str(broker.server.node_id), incremental_configs=[change])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for altered in admin.incremental_alter_configs([resource]).values():
            altered.result(timeout=PATIENCE_S)
        broker.clock.advance(timedelta(seconds=2))
        assert broker.call(known()) == 0


def test_transactions_time_out() -> None:
    """The step reaches everything: the abort, more markers than are written in one go, and the record that ends it."""
    partitions = MARKERS_PER_TURN + 1
    with Broker(clock=ManualClock()) as broker:
        topic = broker.create_topic("t", partitions)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "tx",
                "transaction.timeout.ms": 60_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce("t", b"v", partition=partition)
        assert producer.flush(PATIENCE_S) == 0

        async def state() -> str:
            return broker.server.transactions.describe("tx").state.value

        async def stable() -> int:
            logs = [broker.server.replicas.partition_or_error("t", partition).log for partition in range(partitions)]
            return sum(log.last_stable_offset for log in logs)

        broker.clock.advance(timedelta(seconds=45))
        assert (broker.call(state()), broker.call(stable())) == ("Ongoing", 0)
        broker.clock.advance(timedelta(seconds=30))
        assert (broker.call(state()), broker.call(stable())) == ("CompleteAbort", 2 * partitions)
        assert topic.records() == []
        with pytest.raises(KafkaException):
            producer.commit_transaction(PATIENCE_S)


def test_connections_and_their_fetches_stay(broker: Broker) -> None:
    topic = broker.create_topic("t")
    reader = consumer(broker, **{"fetch.wait.max.ms": 2_000})
    with broker.recorded() as recording:
        reader.assign([TopicPartition("t", 0, 0)])
        while not (waiting := [each for each in recording.requests("Fetch") if each.outcome == "waiting"]):
            reader.poll(0.05)

    async def connections() -> set[int]:
        return {connection.session.connection_id for connection in broker.server.connections}

    # Not that with which the client began: it gives it up when it likes.
    before = {each.connection for each in waiting}
    broker.clock.advance(timedelta(days=2))  # connections.max.idle.ms is ten minutes
    assert broker.call(connections()) >= before
    topic.produce("v")
    found = reader.poll(PATIENCE_S)
    assert found is not None
    assert found.value() == b"v"
    reader.close()


def test_fetches_wait_in_real_time() -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetch = FetchRequest(max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])])
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t")
        with connect(broker.bootstrap_servers) as connection:
            connection.settimeout(PATIENCE_S)
            connection.sendall(frame(fetch, 11))
            assert answer(connection, fetch, 11, FetchResponse).responses[0].partitions[0].records == b""


def test_many_threads_may_move_it() -> None:
    with Broker(clock=ManualClock(now_ms=0)) as broker, ThreadPoolExecutor(8) as pool:
        list(pool.map(broker.clock.advance, [1_000] * 64))
        assert broker.clock.now_ms() == 64_000


def test_the_time_stays_moved_over_restarts() -> None:
    broker = Broker(clock=ManualClock(now_ms=0))
    with broker:
        broker.clock.advance(1_000)
        topic = broker.create_topic("t", 1, {"retention.ms": 60_000})
        assert topic.produce("v").timestamp == 1_000
        broker.kill()
        broker.clock.advance(timedelta(minutes=5))
        broker.start()
        assert broker.clock.now_ms() == 301_000
        assert len(topic.records()) == 1  # retention looks every five minutes
        broker.clock.advance(timedelta(minutes=6))
        assert topic.records() == []


def test_a_manual_clock_stands_still() -> None:
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        topic = broker.create_topic("t")
        assert {topic.produce("v").timestamp for _ in range(3)} == {1_700_000_000_000}


def test_stock_clients_get_on_with_a_clock_that_stands_still() -> None:
    with Broker(clock=ManualClock(), group_initial_rebalance_delay_ms=0) as broker:
        broker.create_topic("t")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        reader = consumer(broker)
        reader.subscribe(["t"])
        for value in (b"stamped by the client", b"for a fetch that waits"):
            refusals: list[object] = []
            producer.produce("t", value, on_delivery=lambda error, _, refusals=refusals: refusals.append(error))
            assert producer.flush(PATIENCE_S) == 0
            assert refusals == [None]
            [message] = reader.consume(1, timeout=PATIENCE_S)
            assert message.value() == value
        reader.close()


def test_a_still_clock_does_not_wait_for_newcomers() -> None:
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", partitions=2)
        readers = [consumer(broker, **{"heartbeat.interval.ms": 100}) for _ in range(2)]
        for reader in readers:
            reader.subscribe(["t"])
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(reader.assignment() for reader in readers) and time.monotonic() < deadline_s:
            for reader in readers:
                reader.poll(0.01)
        assert [len(reader.assignment()) for reader in readers] == [1, 1]
        for reader in readers:
            reader.close()


def test_rebalances_wait_for_a_clock_that_stands_still() -> None:
    with Broker(clock=ManualClock(), group_initial_rebalance_delay_ms=3_000) as broker:
        broker.create_topic("t")
        reader = consumer(broker)
        reader.subscribe(["t"])
        broker.wait_group("g", "PreparingRebalance", members=1)
        broker.clock.advance(2_999)
        assert broker.group("g").state == "PreparingRebalance"
        broker.clock.advance(1)
        broker.wait_group("g", "Stable", members=1)
        reader.close()
