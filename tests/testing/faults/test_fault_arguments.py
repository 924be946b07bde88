"""Arguments that narrow a fault: the same verb does not affect requests that they exclude."""

from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.clock import ManualClock
from barnabas.testing import Broker, Cluster
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from tools.attack.hostile import connect, frame, receive
from tools.waiting import PATIENCE_S


def consumer_of(broker: Broker, group: str, **config: object) -> Consumer:
    defaults = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    return Consumer(defaults | {"heartbeat.interval.ms": 50, "retry.backoff.ms": 1} | config)


def join(consumers: list[Consumer]) -> None:
    """Have all of them in the group `g`, which reads the topic `t`."""
    for consumer in consumers:
        consumer.subscribe(["t"])
    while not all(consumer.assignment() for consumer in consumers):
        for consumer in consumers:
            consumer.poll(0.02)


def test_a_delay_after_the_work() -> None:
    with Broker(clock=ManualClock()) as broker:
        topic = broker.create_topic("t")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        broker.faults.delay("Produce", timedelta(minutes=5), after_work=True)
        producer.produce("t", "v")
        assert len(topic.wait_records(1)) == 1
        assert producer.flush(0.1) == 1
        broker.clock.advance(timedelta(minutes=5))
        assert producer.flush(PATIENCE_S) == 0


def test_one_member_expires_and_the_other_stays(broker: Broker) -> None:
    broker.create_topic("t", partitions=2)
    consumers = [consumer_of(broker, "g", **{"client.id": name}) for name in ("one", "other")]
    join(consumers)
    before = {member.client_id: member.member_id for member in broker.wait_group("g", members=2).members}
    assert broker.faults.expire_member("g", before["one"]) == [before["one"]]
    assert [member.member_id for member in broker.group("g").members] == [before["other"]]
    for consumer in consumers:
        consumer.close()


def test_a_transaction_hangs_in_one_partition(broker: Broker) -> None:
    topic = broker.create_topic("t", partitions=2)
    with broker.faults.hang_transaction("t", partition=1):
        topic.produce("read", partition=0)
        topic.produce("not read", partition=1)
        assert [record.value for record in topic.records()] == [b"read"]
    assert len(topic.records()) == 2


def test_the_coordinator_of_one_group_is_away(broker: Broker) -> None:
    broker.create_topic("t")
    with broker.faults.coordinator_away(group="g"), consumer_of(broker, "other") as other:
        other.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    assert broker.group("other").offsets == {("t", 0): 1}


def test_the_coordinator_of_one_transactional_id_is_away(broker: Broker) -> None:
    with broker.faults.coordinator_away(transactional_id="x"):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "other"})
        producer.init_transactions(PATIENCE_S)


def test_offsets_of_one_topic_are_lost(broker: Broker) -> None:
    for name in ("t", "u"):
        broker.create_topic(name)
    with consumer_of(broker, "g") as consumer:
        consumer.commit(offsets=[TopicPartition(name, 0, 1) for name in ("t", "u")], asynchronous=False)
    broker.faults.lose_offsets("g", "t")
    assert broker.group("g").offsets == {("u", 0): 1}
    with pytest.raises(ApiError, match=r"group g has committed no offsets of topic t, but of u$") as refused:
        broker.faults.lose_offsets("g", "t")
    assert refused.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError, match=r"there is no group typo$") as refused:
        broker.faults.lose_offsets("typo", "u")
    assert refused.value.error is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.slow
def test_a_coordinator_moves_where_it_is_told_to() -> None:
    with Cluster() as cluster:
        cluster.wait_in_sync()
        with connect(cluster.brokers[0].bootstrap_servers) as connection:  # whoever is asked makes the topic
            connection.sendall(frame(FindCoordinatorRequest(key="g"), 1, 1))
            assert receive(connection) is not None
        for to in (2, 0, 1):
            assert cluster.faults.move_coordinator(group="g", to=to) == to
