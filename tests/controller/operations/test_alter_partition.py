"""AlterPartition: the changes that a leader may make, and each refusal, in Kafka's order."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.operations.alter_partition import plan_alterations
from barnabas.controller.state import ClusterState, PartitionState, RecoveryState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from tests.controller.operations.clusters import EPOCH, REPLICAS, TOPIC_ID, after, cluster, never_alone, state

OLD = state(1, (1, 2))


def wanted(isr: Sequence[int | tuple[int, int]], **fields: int) -> RequestPartitionData:
    """The request of leader 1 for partition 0: members of the ISR by id, or by id and epoch."""
    members = [member if isinstance(member, tuple) else (member, 100 + member) for member in isr]
    return RequestPartitionData(
        new_isr_with_epochs=[BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in members],
        **{"leader_epoch": 3, "partition_epoch": 11, **fields},
    )


def alter(
    before: ClusterState,
    *partitions: RequestPartitionData,
    sender: tuple[int, int] = (1, 101),
    topic_id: bytes = TOPIC_ID,
) -> Any:
    topics = [RequestTopicData(topic_id=topic_id, partitions=list(partitions))]
    request = AlterPartitionRequest(broker_id=sender[0], broker_epoch=sender[1], topics=topics)
    return plan_alterations(before, request, EPOCH, never_alone)


def outcome(before: ClusterState, asked: RequestPartitionData, **arguments: Any) -> str:
    """The error of a request for one partition, after checking that a refusal writes nothing."""
    plan, response = alter(before, asked, **arguments)
    if response.error_code:
        return ErrorCode.of(response.error_code).name
    ((answer,),) = [topic.partitions for topic in response.topics]
    if answer.error_code:
        assert (plan.writes, plan.told, plan.cluster) == ((), (), before)
    return ErrorCode.of(answer.error_code).name


def test_a_change_is_written_and_answered() -> None:
    plan, response = alter(cluster({0: OLD}), wanted((1, 2, 3)))
    new = plan.cluster.topics["t"].partitions[0]
    assert new == OLD._replace(isr=(1, 2, 3), controller_epoch=EPOCH, partition_epoch=12)
    (write,) = plan.writes[0]
    assert (write.path, write.version) == ("/brokers/topics/t/partitions/0/state", 11)
    ((answer,),) = [topic.partitions for topic in response.topics]
    assert (answer.leader_id, answer.leader_epoch, answer.isr, answer.partition_epoch) == (1, 3, [1, 2, 3], 12)
    shrunk, _ = alter(cluster({0: OLD}), wanted((1,)))
    assert after(shrunk, OLD).isr == (1,)


@pytest.mark.parametrize("partition_epoch", [11, 10, 0])
def test_an_unchanged_state_is_granted_again(partition_epoch: int) -> None:
    """The first response may have been lost."""
    plan, response = alter(cluster({0: OLD}), wanted((1, 2), partition_epoch=partition_epoch))
    assert plan.writes == ()
    assert response.topics[0].partitions[0].partition_epoch == 11
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize(
    ("asked", "sender", "error"),
    [
        (wanted((1,)), (1, 100), "STALE_BROKER_EPOCH"),
        (wanted((1,)), (1, 102), "STALE_BROKER_EPOCH"),
        (wanted((1,)), (9, 109), "STALE_BROKER_EPOCH"),
        (wanted((1,), partition_index=5), (1, 101), "UNKNOWN_TOPIC_OR_PARTITION"),
        (wanted((1,), partition_epoch=12), (1, 101), "NOT_CONTROLLER"),
        (wanted((1,), leader_epoch=4), (1, 101), "NOT_CONTROLLER"),
        (wanted((1,), leader_epoch=2, partition_epoch=12), (1, 101), "NOT_CONTROLLER"),
        (wanted((1,), leader_epoch=2), (1, 101), "FENCED_LEADER_EPOCH"),
        (wanted((1, 2), leader_epoch=2), (1, 101), "FENCED_LEADER_EPOCH"),
        (wanted((2,)), (2, 102), "INVALID_REQUEST"),
        (wanted((1,), partition_epoch=10), (1, 101), "INVALID_UPDATE_VERSION"),
        (wanted(()), (1, 101), "INVALID_REQUEST"),
        (wanted((2, 3)), (1, 101), "INVALID_REQUEST"),
        (wanted((1, 4)), (1, 101), "INVALID_REQUEST"),
        (wanted((1, 2, 2)), (1, 101), "INVALID_REQUEST"),
        (wanted((1,), leader_recovery_state=1), (1, 101), "INVALID_REQUEST"),
        (wanted((1,), leader_recovery_state=7), (1, 101), "INVALID_REQUEST"),
        (wanted((1, 2, (3, 99))), (1, 101), "INELIGIBLE_REPLICA"),
        (wanted((1, (3, -1))), (1, 101), "NONE"),
    ],
)
def test_refusals(asked: RequestPartitionData, sender: tuple[int, int], error: str) -> None:
    assert outcome(cluster({0: OLD}), asked, sender=sender) == error


def test_dead_and_stopping_replicas_may_not_join() -> None:
    before = cluster({0: OLD}, live=(1, 2))
    assert outcome(before, wanted((1, 3))) == "INELIGIBLE_REPLICA"
    assert outcome(cluster({0: OLD})._replace(shutting_down=frozenset({3})), wanted((1, 2, 3))) == "INELIGIBLE_REPLICA"


def test_an_unknown_topic() -> None:
    assert outcome(cluster({0: OLD}), wanted((1,)), topic_id=bytes(16)) == "UNKNOWN_TOPIC_ID"


def test_a_topic_that_is_being_deleted_is_unknown() -> None:
    """The leader of one of its partitions does not know of the deletion yet."""
    assert outcome(cluster({0: OLD})._replace(deleting=frozenset({"t"})), wanted((1,))) == "UNKNOWN_TOPIC_ID"


def test_recovery_ends_before_others_join() -> None:
    before = cluster({0: state(1, (1,), RecoveryState.RECOVERING)})
    assert outcome(before, wanted((1, 2), leader_recovery_state=1)) == "INVALID_REQUEST"
    plan, _ = alter(before, wanted((1,), leader_recovery_state=0))
    assert plan.cluster.topics["t"].partitions[0].recovery_state is RecoveryState.RECOVERED


def test_each_partition_for_itself_also_where_one_is_named_twice() -> None:
    before = cluster({0: OLD, 1: state(2, (2,))})
    plan, response = alter(
        before, wanted((1,)), wanted((1, 2)), wanted((1,), partition_epoch=12), wanted((1,), partition_index=1)
    )
    codes = [ErrorCode.of(answer.error_code).name for answer in response.topics[0].partitions]
    assert codes == ["NONE", "INVALID_UPDATE_VERSION", "NONE", "INVALID_REQUEST"]
    assert plan.told == (("t", 0),)
    assert len(plan.writes) == 1


members = st.lists(st.sampled_from([1, 2, 3, 4]), max_size=4)


@given(
    isr=members,
    live=st.sets(st.sampled_from(REPLICAS)),
    leader_epoch=st.integers(2, 4),
    partition_epoch=st.integers(10, 12),
    recovery=st.integers(0, 2),
    current=st.sampled_from(
        [OLD, state(1, (1,)), state(2, (1, 2)), state(-1, (1,)), state(1, (1,), RecoveryState.RECOVERING)]
    ),
)
def test_whatever_is_asked_the_state_stays_sound(
    isr: list[int], live: set[int], leader_epoch: int, partition_epoch: int, recovery: int, current: PartitionState
) -> None:
    before = cluster({0: current}, sorted(live | {1}))
    asked = wanted(isr, leader_epoch=leader_epoch, partition_epoch=partition_epoch, leader_recovery_state=recovery)
    plan, _ = alter(before, asked)
    new = plan.cluster.topics["t"].partitions[0]
    if new == current:
        assert not plan.writes
        return
    assert (leader_epoch, partition_epoch) == (current.leader_epoch, current.partition_epoch)
    assert (new.leader, new.leader_epoch, new.partition_epoch) == (1, 3, 12)
    assert current.leader == 1
    assert new.leader in new.isr
    assert set(new.isr) <= live | {1}
    assert len(set(new.isr)) == len(new.isr)
