"""A controller that resigns and is elected again in the same process: it keeps no state of its first term."""

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
    """Delete the controller's znode, and have that broker elected while the others ignore it."""
    held = [cluster.hold(other) for other in cluster.members if other != broker_id]
    before = cluster.controller.epoch
    elected = cluster.members[broker_id].controller
    await cluster.members[broker_id].session.delete(znodes.CONTROLLER)
    await until(lambda: elected.is_active and elected.epoch > before)  # `cluster.until` waits for those held, too
    for each in held:
        each.set()
    await cluster.until(lambda: cluster.controller is cluster.members[broker_id].controller)


def fire_retries(cluster: Cluster, broker_id: int) -> None:
    """Have that broker retry refused requests."""
    for timer in list(cluster.members[broker_id].timers.waiting):
        timer.cancel()
        timer.callback()


async def create_what_is_refused(cluster: Cluster, *replicas: int) -> None:
    """Create t-0, for which broker 2 has no space."""
    cluster.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
    await cluster.controller.create_topics([NewTopic("t", assignments=[(0, replicas)])], timeout_ms=0)
    await cluster.until(lambda: T in cluster.controller.cluster.offline_replicas[2])


async def test_a_refused_new_log_is_not_new_in_the_next_term(cluster: Cluster) -> None:
    """The log was served since, and is lost. As a new one it would begin empty, although others rely on its records."""
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


async def test_a_refused_creation_is_retried_in_the_second_term(cluster: Cluster) -> None:
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
async def test_deleted_states_are_restored_from_memory(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, is_another_between: bool
) -> None:
    """Not if another controller has been elected since: it may have elected leaders and shrunk ISRs. Then the replicas
    report their logs."""
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


async def test_topics_that_another_controller_deleted_are_forgotten(
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


async def test_a_decision_stands_if_the_next_controller_sends_it(cluster: Cluster) -> None:
    """With NOT_CONTROLLER the client would ask the next controller, which would refuse with TOPIC_ALREADY_EXISTS."""
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


async def test_a_refused_creation_times_out_under_another_controller(cluster: Cluster) -> None:
    """The topic has no leader, and the next controller may find none either: it is not answered as created."""
    async with cluster:
        await cluster.start(1, 2, 3)
        for broker_id in (2, 3):
            cluster.broker(broker_id).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        creating = asyncio.create_task(cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])]))
        await cluster.until(lambda: "t" in cluster.controller.cluster.topics)
        await cluster.until(lambda: cluster.state().leader < 0)
        assert not creating.done()
        await cluster.expire(1)
        assert [(outcome.name, outcome.error) for outcome in await creating] == [("t", ErrorCode.REQUEST_TIMED_OUT)]


async def test_a_creation_that_is_refused_before_the_own_broker_answers_times_out_as_well(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        for broker_id in (2, 3):
            cluster.broker(broker_id).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        cluster.broker(1).hangs = True
        creating = asyncio.create_task(cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])]))
        await cluster.until(lambda: "t" in cluster.controller.cluster.topics)
        await cluster.until(lambda: cluster.state().leader < 0)
        assert not creating.done()
        await cluster.expire(1)
        assert [(outcome.name, outcome.error) for outcome in await creating] == [("t", ErrorCode.REQUEST_TIMED_OUT)]
        cluster.broker(1).speak_again()


async def test_a_refusal_is_waited_for_after_a_reload(cluster: Cluster) -> None:
    """After a reload the controller does not know what the broker refuses until the broker responds."""
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
