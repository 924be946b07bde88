"""Faults of what a broker keeps, as clients meet them, and that the broker is sound afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from barnabas.broker.coordinators.runtime import CoordinatorRuntime
from barnabas.testing import ApiError, Broker, Cluster, ErrorCode
from barnabas.wire.codec import decode
from barnabas.wire.headers import parse_response_header
from barnabas.wire.messages import api as api_of
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.bugs import Bug
from tools.attack.hostile import connect, frame, receive
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@contextmanager
def consumer_of(broker: Any, **config: Any) -> Iterator[Consumer]:
    defaults = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    fast = {"heartbeat.interval.ms": 50, "session.timeout.ms": 45_000, "retry.backoff.ms": 1}
    consumer = Consumer(defaults | fast | config)
    try:
        yield consumer
    finally:
        consumer.close()


def producer_of(broker: Any, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1} | config)


def poll_until(consumer: Consumer, reached: Any) -> None:
    while not reached():
        consumer.poll(0.02)


# --- groups ---------------------------------------------------------------------------------------


def test_a_member_expires_and_comes_back(broker: Broker) -> None:
    broker.create_topic("t")
    lost: list[TopicPartition] = []
    with consumer_of(broker) as consumer:
        consumer.subscribe(["t"], on_lost=lambda _, partitions: lost.extend(partitions))
        poll_until(consumer, consumer.assignment)
        [member] = broker.wait_group("g").members
        assert broker.faults.expire_member("g") == [member.member_id]
        assert broker.group("g").state == "Empty"
        poll_until(consumer, lambda: lost and consumer.assignment())
        [again] = broker.wait_group("g").members
        assert again.member_id != member.member_id
        with pytest.raises(ApiError, match="has the members"):
            broker.faults.expire_member("g", member.member_id)
        assert broker.faults.expire_member("g", again.member_id) == [again.member_id]


def test_a_rebalance_without_a_reason(broker: Broker) -> None:
    broker.create_topic("t")
    revoked: list[TopicPartition] = []
    with consumer_of(broker) as consumer:
        consumer.subscribe(["t"], on_revoke=lambda _, partitions: revoked.extend(partitions))
        poll_until(consumer, consumer.assignment)
        before = broker.wait_group("g", members=1)
        broker.faults.rebalance("g")
        assert broker.group("g").state == "PreparingRebalance"
        assert broker.group("g").members[0].member_id == before.members[0].member_id
        poll_until(consumer, lambda: revoked and consumer.assignment())
        assert broker.wait_group("g").members[0].member_id == before.members[0].member_id
    with pytest.raises(ApiError, match="no members"):
        broker.faults.rebalance("g")


def test_committed_offsets_are_lost(broker: Broker) -> None:
    topic = broker.create_topic("t")
    topic.produce("v")
    for _ in range(2):  # reads it again, since nobody knows that it did
        with consumer_of(broker) as consumer:
            consumer.subscribe(["t"])
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.value() == b"v"
        assert broker.wait_group("g", "Empty").offsets == {("t", 0): 1}
        broker.faults.lose_offsets("g", "t")
        assert broker.group("g").offsets == {}


def test_a_coordinator_that_is_away(broker: Broker) -> None:
    broker.create_topic("t")
    with consumer_of(broker) as consumer:
        consumer.subscribe(["t"])
        poll_until(consumer, consumer.assignment)
        with broker.faults.coordinator_away(group="g") as away:
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=True)
            away.wait_hits(2)
            assert broker.group("g").offsets == {}
            with pytest.raises(TimeoutError, match=r"<coordinator_away g, \d+ hits>: not 1000 hits"):
                away.wait_hits(1000, timeout=0.01)
        assert away.hits == sum(fault.hits for fault in away.faults) >= 2
        poll_until(consumer, lambda: broker.group("g").offsets == {("t", 0): 1})
    with pytest.raises(ValueError, match="the coordinator needs one name"):
        broker.faults.coordinator_away()


def test_a_leader_that_is_away(broker: Broker) -> None:
    topic = broker.create_topic("t")
    broker.create_topic("u")
    producer = producer_of(broker)
    with broker.faults.leader_away("t") as away:
        producer.produce("u", "v")
        assert producer.flush(PATIENCE_S) == 0
        producer.produce("t", "v")
        away.faults[0].wait_hits()
        told = broker_is_asked(broker, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 7).topics[0]
        assert told.error_code == ErrorCode.NONE, "or consumers take it that there is no such topic"
        assert [(each.error_code, each.leader_id) for each in told.partitions] == [(ErrorCode.LEADER_NOT_AVAILABLE, -1)]
        assert producer.flush(0.1) == 1
        assert topic.records() == []
    assert producer.flush(PATIENCE_S) == 0
    assert len(topic.records()) == 1


def test_the_leader_of_one_partition_is_away(broker: Broker) -> None:
    topic = broker.create_topic("t", partitions=2)
    producer = producer_of(broker)
    with broker.faults.leader_away("t", partition=1) as away:
        producer.produce("t", "led", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        producer.produce("t", "later", partition=1)
        away.faults[0].wait_hits()
        told = broker_is_asked(broker, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 7).topics[0]
        assert {each.partition_index: each.error_code for each in told.partitions} == {
            0: ErrorCode.NONE,
            1: ErrorCode.LEADER_NOT_AVAILABLE,
        }
        assert producer.flush(0.1) == 1
        assert [record.value for record in topic.records()] == [b"led"]
    assert producer.flush(PATIENCE_S) == 0
    assert [record.value for record in topic.records(partition=1)] == [b"later"]


def test_the_coordinator_of_one_transactional_id_is_away(broker: Broker) -> None:
    broker.create_topic("t")
    with broker.faults.coordinator_away(transactional_id="tx") as away:
        other = producer_of(broker, **{"transactional.id": "other"})
        other.init_transactions(PATIENCE_S)
        with pytest.raises(KafkaException) as timed_out:
            producer_of(broker, **{"transactional.id": "tx"}).init_transactions(0.5)  # Real time: in vain
        assert timed_out.value.args[0].code() == KafkaError._TIMED_OUT
        found = broker_is_asked(broker, FindCoordinatorRequest(key_type=1, coordinator_keys=["tx", "other"]), 4)
        assert {each.key: each.error_code for each in found.coordinators} == {
            "tx": ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "other": ErrorCode.NONE,
        }
        init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
        assert broker_is_asked(broker, init, 1).error_code == ErrorCode.NOT_COORDINATOR
        assert all(fault.hits for fault in away.faults)
    open_transaction(broker).commit_transaction(PATIENCE_S)


def broker_is_asked(broker: Broker, request: Any, version: int) -> Any:
    """The response to a client, on a connection of its own."""
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(frame(request, version))
        answer = receive(connection)
    assert answer is not None
    response = api_of(request.API_KEY).response_class
    return decode(response, version, answer, parse_response_header(answer, request.API_KEY, version)[1])


# --- transactions ---------------------------------------------------------------------------------


def open_transaction(broker: Any) -> Producer:
    producer = producer_of(broker, **{"transactional.id": "tx"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", "v")
    assert producer.flush(PATIENCE_S) == 0
    return producer


def test_a_producer_is_fenced(broker: Broker) -> None:
    topic = broker.create_topic("t")
    producer = open_transaction(broker)
    broker.faults.fence_producer("tx")
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert topic.records() == []
    with pytest.raises(ApiError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        broker.faults.fence_producer("nobody")


def test_a_transaction_is_aborted(broker: Broker) -> None:
    topic = broker.create_topic("t")
    producer = open_transaction(broker)
    broker.faults.abort_transaction("tx")
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert topic.records() == []
    another = open_transaction(broker)
    another.commit_transaction(PATIENCE_S)
    assert len(topic.records()) == 1


def test_records_after_an_aborted_transaction_are_refused(broker: Broker) -> None:
    """Else the rest of a transaction would be committed, without its beginning."""
    topic = broker.create_topic("t", partitions=2)
    producer = producer_of(broker, **{"transactional.id": "tx"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", "v", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    broker.faults.abort_transaction("tx")
    with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
        broker.faults.abort_transaction("tx")
    producer.produce("t", "v", partition=1)
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert topic.records() == []


def test_a_transaction_hangs(broker: Broker) -> None:
    topic = broker.create_topic("t")
    with broker.faults.hang_transaction("t") as hanging:
        topic.produce("after it")
        assert topic.records() == []
        with consumer_of(broker, **{"isolation.level": "read_committed"}) as consumer:
            consumer.assign([TopicPartition("t", 0, 0)])
            assert consumer.poll(0.2) is None
            hanging.wait_hits()
            assert list(broker.faults) == [hanging]
            hanging.remove()
            assert repr(hanging) == f"<a transaction hangs in t-0, {hanging.hits} hits>"
            assert list(broker.faults) == []
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.value() == b"after it"
    assert [record.value for record in topic.records()] == [b"after it"]


def test_a_transaction_hangs_until_all_is_cleared(broker: Broker) -> None:
    topic = broker.create_topic("t")
    broker.create_topic("gone")
    other = broker.create_topic("other")
    for name in ("t", "gone", "other"):
        broker.faults.hang_transaction(name)
    topic.produce("v")
    other.produce("v")
    broker.delete_topic("gone")
    broker.restart()
    assert topic.records() == []
    broker.faults.clear()
    assert (len(topic.records()), len(other.records()), len(broker.faults)) == (1, 1, 0)


def test_data_that_are_kept_keep_no_fault(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t")
        broker.faults.hang_transaction("t")
    with Broker(data_dir=tmp_path) as broker:
        broker.topic("t").produce("v")
        assert len(broker.topic("t").records()) == 1


def test_a_state_that_goes_has_nothing_to_be_undone(broker: Broker) -> None:
    broker.create_topic("t")
    hanging = broker.faults.hang_transaction("t")
    broker.faults.partition_offline("t")
    broker.reset()
    assert len(broker.faults) == 0
    hanging.remove()


# --- coordinators ---------------------------------------------------------------------------------


def test_coordinators_that_read_their_logs_are_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the start of a cluster: on a busy machine none of its brokers had read them yet."""
    broker.create_topic("t")
    with consumer_of(broker) as consumer:
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    open_transaction(broker)
    unread = Bug(monkeypatch, CoordinatorRuntime, "_read")  # which is tried again a second later
    broker.restart()
    wait_until(lambda: unread.tries >= 6)
    unread.is_there = False
    broker.faults.lose_offsets("g", "t")
    broker.faults.abort_transaction("tx")
    assert broker.group("g").offsets == {}
    with pytest.raises(ApiError, match="INVALID_TXN_STATE: no transaction of tx is open"):
        broker.faults.abort_transaction("tx")


# --- disks ----------------------------------------------------------------------------------------


def test_a_full_disk(broker: Broker) -> None:
    topic = broker.create_topic("t")
    producer = producer_of(broker)
    producer.produce("t", "before")
    assert producer.flush(PATIENCE_S) == 0
    with broker.faults.disk_full() as full:
        producer.produce("t", "meanwhile")
        full.wait_hits()
        assert producer.flush(0.1) == 1
        assert len(topic.records()) == 1
    assert producer.flush(PATIENCE_S) == 0
    assert [record.value for record in topic.records()] == [b"before", b"meanwhile"]


def test_a_restart_undoes_the_state_of_a_broken_disk(broker: Broker) -> None:
    topic = broker.create_topic("t")
    hanging = broker.faults.hang_transaction("t")
    broker.faults.disk_fails()
    with pytest.raises(ApiError):
        topic.produce("v")
    told = r"^KAFKA_STORAGE_ERROR: the transaction that hangs in t-0 cannot be aborted, .* failed: restart\(\) first"
    with pytest.raises(ApiError, match=told):
        broker.faults.clear()
    assert list(broker.faults) == [hanging]
    broker.restart()
    broker.faults.clear()
    assert list(broker.faults) == []


def test_a_disk_that_breaks(broker: Broker) -> None:
    topic = broker.create_topic("t")
    topic.produce("before")
    with broker.faults.disk_fails(times=1) as broken:
        with pytest.raises(ApiError) as raised:
            topic.produce("meanwhile")
        assert raised.value.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert broken.hits == 1
    with pytest.raises(ApiError):  # for good
        topic.produce("later")
    broker.restart()
    topic.produce("again")
    assert [record.value for record in topic.records()] == [b"before", b"again"]


def test_a_disk_costs_nothing_while_it_works(broker: Broker) -> None:
    disk: Any = broker.server.environment.files
    assert disk.pwrite == disk.original.pwrite
    with broker.faults.disk_full():
        assert disk.pwrite != disk.original.pwrite
    assert disk.pwrite == disk.original.pwrite


# --- clusters -------------------------------------------------------------------------------------


def test_state_faults_work_in_a_cluster() -> None:
    with Cluster(2) as cluster:
        cluster.create_topic("t")
        with consumer_of(cluster) as consumer:
            consumer.subscribe(["t"])
            poll_until(consumer, consumer.assignment)
            assert len(cluster.faults.expire_member("g")) == 1
        producer = open_transaction(cluster)
        cluster.faults.fence_producer("tx")
        with pytest.raises(KafkaException):
            producer.commit_transaction(PATIENCE_S)
        cluster.faults.hang_transaction("t").remove()
        with cluster.faults.disk_full(broker=cluster.leader("t")) as full:
            other = producer_of(cluster)
            other.produce("t", "v")
            full.wait_hits()
        assert other.flush(PATIENCE_S) == 0


def test_a_group_without_members_is_an_error() -> None:
    with Broker() as broker:
        for meet in (lambda: broker.faults.expire_member("nope"), lambda: broker.faults.lose_offsets("nope", "t")):
            with pytest.raises(ApiError, match="there is no group nope") as refused:
                meet()
            assert refused.value.error is ErrorCode.GROUP_ID_NOT_FOUND
