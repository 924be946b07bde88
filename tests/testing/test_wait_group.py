"""Waiting for groups."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer

from barnabas.testing import Broker
from tools.waiting import wait_until


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
    assert broker.group("g").state == "Dead"
    assert broker.wait_group("g", "Dead").members == ()
    with pytest.raises(TimeoutError, match=r"after 0\.05 s group g is Dead with 0 members, not Stable with 2"):
        broker.wait_group("g", members=2, timeout=0.05)
    with pytest.raises(ValueError, match="not Steady"):
        broker.wait_group("g", "Steady")


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
