"""Partitions after the death of brokers: each state, and each set of brokers that dies at once."""

import pytest

from barnabas.controller.operations.broker_lives import (
    BrokerDifference,
    compare_brokers,
    lacking,
    plan_broker_loss,
    plan_unproven,
)
from barnabas.controller.state import NO_LEADER, NOBODY, RecoveryState, ReplicaAssignment, TopicState
from tests.controller.operations.clusters import (
    EPOCH,
    REPLICAS,
    after,
    broker,
    cluster,
    every_state,
    never_alone,
    state,
    subsets,
)


def test_changes_of_registrations_are_told_apart() -> None:
    known = {n: broker(n) for n in (1, 2, 3, 4)}
    found = {1: broker(1), 2: broker(2, epoch=300), 4: broker(4)._replace(rack="r"), 6: broker(6), 5: broker(5)}
    assert compare_brokers(known, found) == BrokerDifference(come=(5, 6), gone=(3,), bounced=(2,), changed=(4,))
    assert compare_brokers(known, known) == BrokerDifference()


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("live", subsets(REPLICAS)[1:])
def test_every_loss(live: tuple[int, ...], unclean: bool) -> None:
    """A replica that may lead does; ISRs lose dead members, unless all are dead."""
    cases = 0
    for old in every_state(live):
        for lost in subsets(live)[1:]:
            cases += 1
            left = [broker_id for broker_id in live if broker_id not in lost]
            plan = plan_broker_loss(cluster({0: old}, live), lost, EPOCH, lambda _topic: unclean, never_alone)
            assert sorted(plan.cluster.brokers) == left
            new = after(plan, old)
            in_sync = [member for member in old.isr if member in left]
            if old.leader == NO_LEADER:
                assert new == old, "nobody in it lived before, so nobody does now"
            elif old.leader not in lost:
                assert new.leader == old.leader
                assert new.isr == tuple(member for member in old.isr if member not in lost)
                assert (new.leader_epoch > old.leader_epoch) == (new.isr != old.isr)
            elif in_sync:
                assert new.leader == in_sync[0]
                assert new.isr == tuple(in_sync)
                assert new.leader_epoch == old.leader_epoch + 1
            elif unclean and left:
                assert (new.leader, new.isr) == (left[0], (left[0],))
                assert new.recovery_state is RecoveryState.RECOVERING
            else:
                assert (new.leader, new.isr) == (NO_LEADER, old.isr), "each of the ISR may lead when it comes back"
                assert new.leader_epoch == old.leader_epoch + 1
    assert cases


def test_a_loss_is_one_batch_and_leaves_deletions_alone() -> None:
    before = cluster({0: state(1, (1, 2, 3)), 1: state(2, (2, 3)), 2: state(2, (2, 1))})
    gone = TopicState("gone", bytes(16), {0: ReplicaAssignment((1,))}, {0: state(1, (1,))})
    before = before.with_topics([gone]).with_deleting(["gone"])
    before = before.with_offline_replicas(1, [("t", 0)])._replace(shutting_down=frozenset({1}))
    plan = plan_broker_loss(before, [1], EPOCH, lambda _topic: False, never_alone)
    assert plan.told == (("t", 0), ("t", 2))
    assert len(plan.writes) == 2
    assert plan.cluster.offline_replicas == {}
    assert plan.cluster.shutting_down == frozenset()
    assert plan.cluster.topics["gone"] == gone


@pytest.mark.parametrize("min_insync_replicas", [1, 2])
@pytest.mark.parametrize("doubted", subsets(REPLICAS)[1:])
def test_a_replica_that_may_lack_records_leaves_larger_isrs(doubted: tuple[int, ...], min_insync_replicas: int) -> None:
    """It leaves each ISR that has a member without doubts."""
    for old in every_state(REPLICAS):
        brokers = [broker(member)._replace(may_lack_records=member in doubted) for member in REPLICAS]
        lacks = lacking(brokers, [("t", 0)])
        new = after(
            plan_unproven(cluster({0: old}), lacks, EPOCH, lambda _topic, _broker: min_insync_replicas < 2), old
        )
        assert not set(new.left_isr) & set(doubted), "who is doubted is not known to lack least"
        if set(old.isr) - set(doubted):
            assert new.isr == tuple(member for member in old.isr if member not in doubted)
            assert new.leader == (old.leader if old.leader in new.isr else NO_LEADER)
        else:
            assert len(new.isr) == 1, "nobody has more than the last"
            assert set(new.isr) <= set(old.isr)


@pytest.mark.parametrize(("min_insync_replicas", "isr"), [(1, (1,)), (2, (3,)), (3, (3,))])
def test_the_last_to_leave_has_records_that_took_two_replicas(min_insync_replicas: int, isr: tuple[int, ...]) -> None:
    old = state(NO_LEADER, (1,))._replace(left_isr=(2, 3))
    brokers = [broker(1)._replace(may_lack_records=True), broker(2), broker(3)]
    lacks = lacking(brokers, [("t", 0)])
    plan = plan_unproven(cluster({0: old}), lacks, EPOCH, lambda _topic, _broker: min_insync_replicas < 2)
    new = plan.cluster.topics["t"].partitions[0]
    assert (new.leader, new.isr, len(plan.writes)) == (NO_LEADER, isr, isr != old.isr)
    assert new.leader_epoch - old.leader_epoch == new.partition_epoch - old.partition_epoch == (isr != old.isr)
    assert new.left_isr == ((2, 3) if isr == (1,) else (2, NOBODY)), "who is doubted lacks more than who left before"


def test_a_doubted_last_to_leave_keeps_one_of_the_isr() -> None:
    old = state(NO_LEADER, (1,))._replace(left_isr=(2, 3))
    brokers = [broker(member)._replace(may_lack_records=member != 2) for member in REPLICAS]
    plan = plan_unproven(cluster({0: old}), lacking(brokers, [("t", 0)]), EPOCH, never_alone)
    assert (plan.writes, plan.told) == ((), ())
    new = plan.cluster.topics["t"].partitions[0]
    assert (new.isr, new.left_isr) == ((1,), (2, NOBODY)), "2 lacks what was committed since; it lacks least of those"
    again = plan_unproven(plan.cluster, lacking(brokers[:1], [("t", 0)]), EPOCH, never_alone)
    assert again.told == (), "2 is not taken for the last that left"


def test_a_replica_with_a_damaged_log_leaves_its_isr() -> None:
    brokers = [broker(1)._replace(damaged=frozenset({("t", 0)})), broker(2)]
    states = {0: state(NO_LEADER, (1, 2, 3)), 1: state(NO_LEADER, (1, 2, 3))}
    plan = plan_unproven(cluster(states), lacking(brokers, [("t", 0), ("t", 1)]), EPOCH, never_alone)
    assert {key: new.isr for key, new in plan.cluster.topics["t"].partitions.items()} == {0: (2, 3), 1: (1, 2, 3)}
    assert len(plan.writes) == 1


def test_a_replica_that_failed_does_not_lead() -> None:
    before = cluster({0: state(1, (1, 2, 3))}).with_offline_replicas(2, [("t", 0)])
    plan = plan_broker_loss(before, [1], EPOCH, lambda _topic: False, never_alone)
    assert after(plan, state(1, (1, 2, 3))).leader == 3
