"""Waiting for groups."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition

from barnabas.testing import Broker
from tools.waiting import PATIENCE_S, wait_until


def consumer(broker: Broker, **configs: object) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0, **configs})


def await_waiter(broker: Broker) -> None:
    """Return when somebody has looked at a group and waits for it to change."""
    wait_until(lambda: broker.server.groups.runtime.listeners, "somebody who waits")


@pytest.mark.slow
def test_two_members_come_and_one_goes(broker: Broker) -> None:
    broker.create_topic("t", 2)
    first, second = consumer(broker, **{"client.id": "first"}), consumer(broker, **{"client.id": "second"})
    stopping = threading.Event()

    def poll(member: Consumer) -> None:
        member.subscribe(["t"])
        while not stopping.is_set():
            member.poll(0.05)

    threads = [threading.Thread(target=poll, args=(member,)) for member in (first, second)]
    for thread in threads:
        thread.start()
    group = broker.wait_group("g", "Stable", members=2)
    stopping.set()
    for thread in threads:
        thread.join()
    assert (group.group_id, group.state, group.protocol_name) == ("g", "Stable", "range")
    assert {member.client_id for member in group.members} == {"first", "second"}
    assert all(member.assignment for member in group.members)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.wait_group, "g", "PreparingRebalance", members=1)
        await_waiter(broker)
        second.close()
        assert [member.client_id for member in waiting.result().members] == ["first"]
    first.close()
    assert broker.wait_group("g", "Empty").members == ()


def test_a_group_that_is_not_there(broker: Broker) -> None:
    assert (broker.group("g").state, broker.group("g").lag) == ("Dead", None)
    assert broker.wait_group("g", "Dead").members == ()
    with pytest.raises(TimeoutError, match=r"after 0\.05 s group g is Dead with 0 members, not Stable with 2"):
        broker.wait_group("g", members=2, timeout=0.05)
    with pytest.raises(ValueError, match="not Steady"):
        broker.wait_group("g", "Steady")


def commit(broker: Broker, *offsets: TopicPartition) -> None:
    committing = consumer(broker)
    committing.commit(offsets=list(offsets), asynchronous=False)
    committing.close()


def test_lag_is_how_far_commits_are_behind(broker: Broker) -> None:
    topic = broker.create_topic("t", 3)
    for index in range(5):
        topic.produce(str(index), partition=0)
    topic.produce("v", partition=1)
    topic.produce("not of the group", partition=2)
    commit(broker, TopicPartition("t", 0, 2), TopicPartition("t", 1, 1))
    assert broker.group("g").lag == 3
    topic.delete_records(4, partition=0)
    assert broker.group("g").lag == 3  # as Kafka's tools tell it
    broker.faults.partition_offline("t", 0)
    assert broker.group("g").lag is None
    with pytest.raises(TimeoutError, match="g is Empty with 0 members, lag unknown, not Empty with lag 3"):
        broker.wait_group("g", "Empty", lag=3, timeout=0)


def test_uncommitted_partitions_lag_from_their_beginning(broker: Broker) -> None:
    broker.create_topic("t", 2)
    for index in range(4):
        broker.topic("t").produce(str(index), partition=index % 2)
    member = consumer(broker, **{"auto.offset.reset": "earliest", "enable.auto.commit": False})
    member.subscribe(["t"])
    read = member.consume(4, timeout=PATIENCE_S)
    assert broker.wait_group("g").lag == 4
    first = [TopicPartition("t", 0, 2)]
    assert [message.error() for message in read] == [None] * 4
    member.commit(offsets=first, asynchronous=False)
    assert broker.wait_group("g", offsets={("t", 0): 2}).lag == 2
    member.commit(asynchronous=False)
    assert broker.wait_group("g", lag=0).offsets == {("t", 0): 2, ("t", 1): 2}
    member.close()


@pytest.mark.parametrize("wanted", [{"offsets": {("t", 0): 2}}, {"lag": 1}])
def test_a_wait_for_offsets_and_for_lag_ends_with_the_commit(broker: Broker, wanted: dict[str, Any]) -> None:
    topic = broker.create_topic("t")
    for index in range(3):
        topic.produce(str(index))
    commit(broker, TopicPartition("t", 0, 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.wait_group, "g", "Empty", **wanted)
        await_waiter(broker)
        assert not waiting.done()
        commit(broker, TopicPartition("t", 0, 2))
        assert waiting.result().offsets == {("t", 0): 2}
    assert broker.wait_group("g", "Empty", offsets={(topic, 0): 1}, lag=1).lag == 1  # it may have gone further


def test_offsets_that_are_waited_for_in_vain(broker: Broker) -> None:
    broker.create_topic("t").produce("v")
    commit(broker, TopicPartition("t", 0, 0))
    told = r"g is Empty with 0 members, lag 1, t-0 at 0, u-0 at no offset, not Empty with lag 0, t-0 at 1, u-0 at 2"
    with pytest.raises(TimeoutError, match=told):
        broker.wait_group("g", "Empty", offsets={("t", 0): 1, ("u", 0): 2}, lag=0, timeout=0)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"offsets": {"t": 1}}, r"offsets are by topic and partition"),
        ({"offsets": {"t0": 1}}, r"offsets are by topic and partition"),
        ({"offsets": [("t", 0)]}, r"offsets are by topic and partition"),
        ({"offsets": {("t", 0): "1"}}, "offset is a whole number"),
        ({"offsets": {("t", -1): 1}}, "partition is 0 or more"),
        ({"lag": -1}, "lag is 0 or more"),
        ({"lag": True}, "lag is a whole number"),
        ({"state": "Dead", "lag": 0}, "Dead has committed nothing"),
    ],
)
def test_offsets_that_are_none_are_refused_in_words(broker: Broker, wanted: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        broker.wait_group("g", **wanted)


def test_on_an_event_loop(broker: Broker) -> None:
    broker.create_topic("t")

    async def join() -> None:
        with pytest.raises(RuntimeError, match="await wait_group_async"):
            broker.wait_group("g")
        member = AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers, group_id="g")
        starting = asyncio.create_task(member.start())
        group = await broker.wait_group_async("g", members=1)
        assert group.members[0].client_id.startswith("aiokafka")
        await starting
        await member.stop()
        assert (await broker.wait_group_async("g", "Empty")).members == ()

    asyncio.run(join())


def test_a_wait_ends_with_the_broker(broker: Broker) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.wait_group, "g")
        await_waiter(broker)
        broker.stop()
        with pytest.raises(RuntimeError, match="stopped"):
            waiting.result()


def test_nothing_stays_behind(broker: Broker) -> None:
    of_the_broker = list(broker.server.metadata.listeners)
    with pytest.raises(TimeoutError):
        broker.wait_group("g", timeout=0.01)
    with pytest.raises(TimeoutError):
        broker.create_topic("t").wait_records(1, timeout=0.01)
    assert broker.server.groups.runtime.listeners == set()
    assert list(broker.server.metadata.listeners) == of_the_broker
