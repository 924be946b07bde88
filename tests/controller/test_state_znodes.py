"""Znodes of states that another program deletes or garbles while a controller knows them."""

from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.state import ReplicaAssignment
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from tests.controller.cluster import IN_BOTH_STORES, Cluster

pytestmark = IN_BOTH_STORES

T = ("t", 0)
PATH = znodes.partition_state_path(*T)


@pytest.fixture
def cluster(stores: Any, clock: ManualClock) -> Cluster:
    return Cluster(stores, clock)


@pytest.mark.parametrize("noticed_by", ["a decision", "a new partition"])
@pytest.mark.parametrize("harm", ["deleted", "garbled"])
async def test_a_partition_goes_on_as_it_was_known(cluster: Cluster, harm: str, noticed_by: str) -> None:
    """The controller sends its leader a newer state than it has, so that the leader can change its ISR."""
    async with cluster:
        await cluster.start(1, 2, 3)
        (outcome,) = await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])])
        assert outcome.error is ErrorCode.NONE
        await cluster.until(lambda: all(T in cluster.broker(each).roles for each in (2, 3)))
        for isr in ((2,), (2, 3)):
            await cluster.alter_isr(*isr)
        known = cluster.state()
        session = cluster.members[1].session
        if harm == "deleted":
            await session.delete(PATH)
        else:
            await session.set(PATH, b"nothing")
        if noticed_by == "a decision":
            response = await cluster.controller.alter_partition(cluster.alteration(2))
            assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        else:
            topic = cluster.controller.cluster.topics["t"]
            assignments = {0: ReplicaAssignment((2, 3)), 1: ReplicaAssignment((2,))}
            await session.set(znodes.topic_path("t"), znodes.encode_topic(topic.topic_id, assignments))
            await cluster.until(lambda: ("t", 1) in cluster.broker(2).roles)
        await cluster.settled()
        state = cluster.state()
        assert (state.leader, state.isr) == (2, (2, 3))
        assert (state.leader_epoch, state.partition_epoch) > (known.leader_epoch, known.partition_epoch)
        await cluster.until(lambda: cluster.broker(2).roles[T].leader_epoch == state.leader_epoch)
        stored = await session.get(PATH)
        assert znodes.decode_partition_state(*T, stored[0], stored[1].version) == state
        await cluster.alter_isr(2)
