"""Plans that leave a leader alone in the ISR: whether it is known afterwards which replicas have all committed
records."""

from collections.abc import Callable

import pytest

from barnabas.controller.operations.alter_partition import plan_alterations
from barnabas.controller.operations.announcement import plan_offline_replicas
from barnabas.controller.operations.broker_lives import plan_absences, plan_broker_loss, plan_unproven
from barnabas.controller.operations.controlled_shutdown import plan_departure, plan_relief
from barnabas.controller.operations.elections import plan_elections
from barnabas.controller.operations.leadership import CommitsAlone, marked_if_alone
from barnabas.controller.operations.preferred_election import plan_preferred_elections
from barnabas.controller.operations.reassignment import check_reassignment, plan_begin
from barnabas.controller.plan import Plan
from barnabas.controller.state import NO_LEADER, NOBODY, ClusterState, PartitionState
from barnabas.turns import in_turns
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from tests.controller.operations.clusters import EPOCH, TOPIC_ID, after, cluster, never_alone, state

T = ("t", 0)
TWO = state(1, (1, 3))._replace(left_isr=(2,))
"""Led by 1; 2 has left the ISR."""
ONE = state(NO_LEADER, (1,))._replace(left_isr=(2, 3))


def by_one(topic: str, broker_id: int) -> bool:
    assert topic == "t"
    return broker_id == 1


def never(_topic: str) -> bool:
    return False


def alter(before: ClusterState, commits_alone: CommitsAlone) -> Plan:
    isr = [BrokerState(broker_id=1, broker_epoch=101)]
    wanted = RequestPartitionData(partition_index=0, leader_epoch=3, partition_epoch=11, new_isr_with_epochs=isr)
    topics = [RequestTopicData(topic_id=TOPIC_ID, partitions=[wanted])]
    request = AlterPartitionRequest(broker_id=1, broker_epoch=101, topics=topics)
    return plan_alterations(before, request, EPOCH, commits_alone).plan


def reassign(before: ClusterState, commits_alone: CommitsAlone) -> Plan:
    wanted = {T: check_reassignment(before, T, (1, 2, 3, 4))}
    transfer = in_turns(plan_begin(before, wanted, EPOCH, commits_alone))
    assert transfer is not None
    return transfer.plan


PLANS: dict[str, tuple[PartitionState, tuple[int, ...], Callable[[ClusterState, CommitsAlone], Plan]]] = {
    "brokers are lost": (TWO, (1, 2, 3), lambda of, alone: plan_broker_loss(of, [3], EPOCH, never, alone)),
    "its leader is lost": (
        TWO._replace(leader=3),
        (1, 2, 3),
        lambda of, alone: plan_broker_loss(of, [3], EPOCH, never, alone),
    ),
    "brokers were lost before": (TWO, (1, 2), lambda of, alone: plan_absences(of, [T], EPOCH, alone)),
    "a replica failed": (
        TWO,
        (1, 2, 3),
        lambda of, alone: plan_offline_replicas(of, 3, [T], EPOCH, never, alone),
    ),
    "an election": (ONE, (1, 2), lambda of, alone: plan_elections(of, [], [T], [], EPOCH, never, alone)),
    "the preferred leader": (ONE, (1, 2), lambda of, alone: plan_preferred_elections(of, [T], EPOCH, 1, alone)),
    "the leader stops": (
        TWO._replace(leader=3),
        (1, 2, 3),
        lambda of, alone: plan_relief(of, 3, EPOCH, alone).plan,
    ),
    "a follower stops": (TWO, (1, 2, 3), lambda of, alone: plan_departure(of, 3, [T], EPOCH, alone)),
    "the leader asks for it": (TWO, (1, 2, 3), alter),
    "a reassignment": (ONE._replace(leader=1), (1, 2, 3, 4), reassign),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_leader_that_commits_alone_is_marked(name: str) -> None:
    """The write that leaves it alone in the ISR marks it."""
    old, live, plan = PLANS[name]
    known = after(plan(cluster({0: old}, live), never_alone), old)
    marked = after(plan(cluster({0: old}, live), by_one), old)
    assert (known.leader, known.isr, known.left_isr) == (1, (1,), (2, 3))
    assert marked == known._replace(left_isr=(2, 3, NOBODY))


def test_a_leader_whose_last_follower_is_doubted_is_marked() -> None:
    """It remains the leader, alone in the ISR."""
    left = TWO._replace(left_isr=(2,))
    plan = plan_unproven(cluster({0: left}), {T: [2, 3]}, EPOCH, by_one)
    assert plan.cluster.topics["t"].partitions[0].last_to_leave == NOBODY


def test_only_where_it_leads_alone() -> None:
    for unmarked in (TWO, ONE, ONE._replace(leader=1, left_isr=()), state(1, (1,))):
        assert marked_if_alone("t", unmarked, by_one) is unmarked
    other = state(3, (3,))._replace(left_isr=(1,))
    assert marked_if_alone("t", other, by_one) is other


def test_the_mark_does_not_grow_and_goes() -> None:
    """It goes when another replica has all records again."""
    marked = marked_if_alone("t", ONE._replace(leader=1), by_one)
    for _ in range(3):
        joined = marked.with_isr((1, 3))
        assert (joined.left_isr, joined.with_isr((1,)).last_to_leave) == ((2, NOBODY), 3)
        marked = marked_if_alone("t", joined.with_isr((1,)), by_one)
        assert marked.left_isr == (2, 3, NOBODY)


def test_a_replica_that_left_a_leader_alone_does_not_lead() -> None:
    """The leader committed alone, and `min.insync.replicas` may have changed since."""
    for left, isr in (((2, 3), (3,)), ((2, 3, NOBODY), (1,))):
        old = ONE._replace(left_isr=left)
        plan = plan_unproven(cluster({0: old}), {T: [1]}, EPOCH, never_alone)
        assert plan.cluster.topics["t"].partitions[0].isr == isr
