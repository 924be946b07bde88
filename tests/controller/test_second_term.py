"""A controller that resigns and is elected again in the same process: nothing of its first term is left behind."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tests.controller.cluster import IN_BOTH_STORES, Cluster
from tools.waiting import until

pytestmark = IN_BOTH_STORES

T = ("t", 0)


@pytest.fixture
def cluster(stores: Any, clock: ManualClock) -> Cluster:
    return Cluster(stores, clock)


async def elect(cluster: Cluster, broker_id: int) -> None:
    """Have the controller's znode go, and that broker be elected, while the others look at something else."""
    held = [cluster.hold(other) for other in cluster.members if other != broker_id]
    before = cluster.controller.epoch
    elected = cluster.members[broker_id].controller
    await cluster.members[broker_id].session.delete(znodes.CONTROLLER)
    await until(lambda: elected.is_active and elected.epoch > before)  # `cluster.until` waits for those held, too
    for each in held:
        each.set()
    await cluster.until(lambda: cluster.controller is cluster.members[broker_id].controller)


def fire_retries(cluster: Cluster, broker_id: int) -> None:
    """It is time for that broker to ask again for what was refused."""
    for timer in list(cluster.members[broker_id].timers.waiting):
        timer.cancel()
        timer.callback()


async def create_what_is_refused(cluster: Cluster, *replicas: int) -> None:
    """t-0, which broker 2 has no room for."""
    cluster.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
    await cluster.controller.create_topics([NewTopic("t", assignments=[(0, replicas)])], timeout_ms=0)
    await cluster.until(lambda: T in cluster.controller.cluster.offline_replicas[2])


async def test_what_was_refused_in_an_earlier_term_is_not_told_as_new(cluster: Cluster) -> None:
    """It was served since, and is lost: told as new, it would begin empty where others count on its records."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create_what_is_refused(cluster, 2, 3)
        await elect(cluster, 3)
        await cluster.until(lambda: T in cluster.controller.cluster.offline_replicas[2])
        del cluster.broker(2).errors[T]
        fire_retries(cluster, 3)
        await cluster.until(lambda: T in cluster.broker(2).roles)
        await cluster.until(lambda: not cluster.controller.cluster.offline_replicas.get(2))
        await cluster.alter_isr(3, 2)
        cluster.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        await elect(cluster, 1)
        await cluster.until(lambda: T in cluster.controller.cluster.offline_replicas[2])
        cluster.broker(2).roles.clear()
        del cluster.broker(2).errors[T]
        fire_retries(cluster, 1)
        await cluster.until(lambda: T in cluster.broker(2).roles)
        assert not cluster.broker(2).roles[T].is_new


async def test_what_is_refused_is_asked_for_again_where_the_last_time_was_not(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create_what_is_refused(cluster, 2)
        await elect(cluster, 3)
        fire_retries(cluster, 1)  # which is not the controller
        for _ in range(10):
            await asyncio.sleep(0)
        await elect(cluster, 1)
        await cluster.until(lambda: T in cluster.controller.cluster.offline_replicas[2])
        del cluster.broker(2).errors[T]
        fire_retries(cluster, 1)
        await cluster.until(lambda: cluster.controller.cluster.topics["t"].partitions[0].leader == 2)


@pytest.mark.parametrize("is_another_between", [False, True])
async def test_what_somebody_deletes_is_put_back_unless_another_controller_knew_it_last(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, is_another_between: bool
) -> None:
    """Which may have elected leaders, and have had replicas leave, that nobody remembers: the replicas are asked."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])])
        if is_another_between:
            await elect(cluster, 3)
            await cluster.until(lambda: "t" in cluster.controller.cluster.topics)
        await cluster.members[2].session.delete(znodes.partition_state_path("t", 0))
        before = cluster.controller.epoch
        await elect(cluster, 1)
        await cluster.until(lambda: cluster.controller.epoch == before + 1 and cluster.state().leader == 2)
        await cluster.until(
            lambda: any(
                isinstance(each, LeaderAndIsrRequest) and each.controller_epoch == before + 1
                for each in cluster.broker(2).log
            )
        )
        assert not cluster.broker(2).roles[T].is_new
        assert ("the states of 1 partitions, t-0 first, are gone" in caplog.text) != is_another_between
        assert ("t-0, whose state was lost, is led by broker 2" in caplog.text) == is_another_between


async def test_topics_that_another_controller_has_deleted_are_not_missed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))]), NewTopic("u")])
        await elect(cluster, 3)
        await cluster.until(lambda: "t" in cluster.controller.cluster.topics)
        await cluster.controller.delete_topics(["t"])
        await elect(cluster, 1)
        await cluster.until(lambda: set(cluster.controller.cluster.topics) == {"u"})
        assert "another program has deleted" not in caplog.text


async def test_what_was_decided_stands_where_another_controller_tells_of_it(cluster: Cluster) -> None:
    """Told NOT_CONTROLLER, the client would ask the next one, and hear that the topic exists."""
    async with cluster:
        await cluster.start(1, 2, 3)
        cluster.broker(1).hangs = True
        creating = asyncio.create_task(cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])]))
        await cluster.until(lambda: T in cluster.broker(2).roles)
        assert not creating.done()
        await cluster.expire(1)
        assert [(outcome.name, outcome.error) for outcome in await creating] == [("t", ErrorCode.NONE)]
        await cluster.until(lambda: cluster.controller.cluster.topics["t"])
        cluster.broker(1).speak_again()


async def test_what_brokers_refused_is_not_waited_for_where_another_controller_asks_them(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        for broker_id in (2, 3):
            cluster.broker(broker_id).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        creating = asyncio.create_task(cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])]))
        await cluster.until(lambda: "t" in cluster.controller.cluster.topics)
        await cluster.until(lambda: cluster.state().leader < 0)
        assert not creating.done()
        await cluster.expire(1)
        assert [(outcome.name, outcome.error) for outcome in await creating] == [("t", ErrorCode.NONE)]


async def test_what_a_broker_refused_is_waited_for_after_the_cluster_was_read_again(cluster: Cluster) -> None:
    """Nobody knows then what it refuses, until it has answered."""
    async with cluster:
        await cluster.start(1, 2, 3)
        cluster.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        creating = asyncio.create_task(cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2,))])]))
        await cluster.until(lambda: cluster.state().leader < 0)
        cluster.broker(2).is_silent = True
        told = len(cluster.broker(3).log)
        await elect(cluster, 1)
        await cluster.until(lambda: len(cluster.broker(3).log) > told + 2)
        await cluster.settled()
        assert not creating.done()
        del cluster.broker(2).errors[T]
        cluster.broker(2).speak_again()
        await cluster.until(creating.done)
        assert [(outcome.name, outcome.error) for outcome in await creating] == [("t", ErrorCode.NONE)]
        assert cluster.state().leader == 2
