"""Partitions without a state, which the controller never knew: some are new, and some have lost their state."""

from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.coordination.interface import Create
from barnabas.controller.state import NO_LEADER, ReplicaAssignment
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from tests.controller.cluster import IN_BOTH_STORES, Cluster

pytestmark = IN_BOTH_STORES

T = ("t", 0)
PATH = znodes.partition_state_path(*T)


@pytest.fixture
def cluster(stores: Any, clock: ManualClock) -> Cluster:
    return Cluster(stores, clock)


async def next_controller(cluster: Cluster) -> None:
    """Broker 1 is the controller, and dies."""
    await cluster.stop(1)
    await cluster.until(lambda: bool(cluster.controller.cluster.topics))
    await cluster.settled()


def named(caplog: pytest.LogCaptureFixture, missed: str) -> int:
    """How often the log names these brokers as missing for t-0."""
    return sum(f"the logs of broker(s) {missed} are not known" in line for line in caplog.messages)


@pytest.mark.parametrize("found_by", ["the controller", "the next one"])
@pytest.mark.parametrize("created", [1, 2, 3])
async def test_a_creation_that_was_interrupted_is_of_a_new_partition(
    cluster: Cluster, created: int, found_by: str
) -> None:
    """At any step, and although one of the replicas is down."""
    topic = znodes.encode_topic(bytes(range(16)), {0: ReplicaAssignment((2, 4))})
    paths = {znodes.topic_path("t"): topic, znodes.partitions_path("t"): b"", znodes.partition_path(*T): b""}
    async with cluster:
        await cluster.start(1, 2)
        session = await cluster.stores.session()
        if found_by == "the next one":
            await cluster.stop(2)
            await cluster.stop(1)
        await session.multi([Create(path, payload) for path, payload in list(paths.items())[:created]])
        if found_by == "the next one":
            await cluster.start(2)
        await cluster.until(lambda: cluster.broker(2).roles[T].is_new)
        assert (cluster.state().leader, cluster.state().leader_epoch, cluster.state().isr) == (2, 0, (2,))
        await session.close()


async def test_a_log_that_cannot_be_opened_is_waited_for(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The log names it once, however often the controller asks the broker."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])])
        await cluster.until(lambda: all(T in cluster.broker(each).roles for each in (2, 3)))
        cluster.broker(2).log_ends[T], cluster.broker(3).log_ends[T] = (4, 90), (6, 70)
        cluster.broker(3).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.members[2].session.delete(PATH)
        await next_controller(cluster)
        await cluster.until(lambda: named(caplog, "3"))
        for _ in range(3):
            cluster.fire_retries()
            await cluster.settled()
        assert (cluster.state().leader, named(caplog, "3")) == (NO_LEADER, 1)
        del cluster.broker(3).errors[T]
        await cluster.until(lambda: cluster.state().leader == 3)
        assert (cluster.state().leader_epoch, cluster.state().isr) == (7, (3,))
        stored = await cluster.members[2].session.get(PATH)
        assert znodes.decode_partition_state(*T, stored[0], stored[1].version) == cluster.state()


async def test_a_machine_that_went_down_since_is_waited_for(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Its broker may have lost records that no other broker has, and no controller knows which replicas were in
    sync."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])])
        await cluster.until(lambda: all(T in cluster.broker(each).roles for each in (2, 3)))
        await cluster.stop(3)
        await cluster.members[2].session.delete(PATH)
        await next_controller(cluster)
        cluster.lacking.add(3)
        await cluster.start(3)
        await cluster.until(lambda: named(caplog, "3") > 1)
        assert cluster.state().leader == NO_LEADER
