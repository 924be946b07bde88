"""Reassignments as plans: after any changes of ISRs, leaders and brokers a partition ends with its last target, and
always has a replica with all its records."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import SetData
from barnabas.controller.operations.reassignment import (
    Transfer,
    check_reassignment,
    is_complete,
    plan_begin,
    plan_completion,
    reassigned,
)
from barnabas.controller.state import NO_LEADER, ClusterState, PartitionState, ReplicaAssignment
from barnabas.turns import InPieces, in_turns
from barnabas.wire.errors import ApiError, ErrorCode
from tests.controller.operations.clusters import EPOCH, TOPIC_ID, broker, cluster, never_alone, state

T = ("t", 0)
BROKERS = (1, 2, 3, 4, 5, 6)


def started(replicas: tuple[int, ...], live: tuple[int, ...] = BROKERS) -> ClusterState:
    return cluster({0: state(replicas[0], replicas)}, live, replicas)


def made(plan: Callable[..., InPieces[Transfer]], *arguments: Any) -> Transfer:
    """A plan in one part."""
    transfer = in_turns(plan(*arguments))
    assert isinstance(transfer, Transfer)
    return transfer


def moved_to(before: ClusterState, *target: int) -> Transfer:
    return made(plan_begin, before, {T: check_reassignment(before, T, target)}, EPOCH, never_alone)


def assignment(of: ClusterState) -> ReplicaAssignment:
    return of.topics["t"].assignments[0]


def partition(of: ClusterState) -> PartitionState:
    return of.topics["t"].partitions[0]


def with_isr(before: ClusterState, *isr: int) -> ClusterState:
    return before.with_states({T: partition(before)._replace(isr=isr)})


def test_the_example_of_kafka() -> None:
    """The one in the documentation of `KafkaController.onPartitionReassignment`: from 1, 2, 3 to 4, 5, 6."""
    begun = moved_to(started((1, 2, 3)), 4, 5, 6)
    after = begun.plan.cluster
    assert assignment(after) == ReplicaAssignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert (partition(after).leader, partition(after).isr, partition(after).leader_epoch) == (1, (1, 2, 3), 4)
    told, topic = [group[0] for group in begun.plan.writes]
    assert isinstance(topic, SetData)
    stored = znodes.decode_topic("t", topic.data)
    assert (topic.path, stored) == ("/brokers/topics/t", (TOPIC_ID, {0: assignment(after)})), "after the state"
    assert told.path == "/brokers/topics/t/partitions/0/state"
    assert begun.lost == {}
    assert not is_complete(after, T)
    assert made(plan_completion, after, [T], EPOCH, never_alone).plan.told == ()
    assert not is_complete(with_isr(after, 1, 2, 3, 4, 5), T)

    done = made(plan_completion, with_isr(after, 1, 2, 3, 4, 5, 6), [T], EPOCH, never_alone)
    assert assignment(done.plan.cluster) == ReplicaAssignment((4, 5, 6))
    assert (partition(done.plan.cluster).leader, partition(done.plan.cluster).isr) == (4, (4, 5, 6))
    assert [group[0].path for group in done.plan.writes] == ["/brokers/topics/t/partitions/0/state"]
    assert [group[0].path for group in done.last_writes] == ["/brokers/topics/t"]
    assert done.lost == {1: (T,), 2: (T,), 3: (T,)}
    assert reassigned(done.plan.cluster) == []


def stored_parts(before: ClusterState, transfer: Transfer) -> list[tuple[ReplicaAssignment, PartitionState]]:
    """The contents of the store after each part of a plan; the last one is the whole."""
    found, parts = (assignment(before), partition(before)), []
    for group in transfer.plan.writes:
        for write in group:
            assert isinstance(write, SetData)
            if write.path == znodes.topic_path("t"):
                found = znodes.decode_topic("t", write.data)[1][0], found[1]
            else:
                found = found[0], znodes.decode_partition_state("t", 0, write.data, 1)
        parts.append(found)
    return parts


@pytest.mark.parametrize("target", [None, (5, 2), (1, 2), (3, 5)])
def test_a_part_of_a_plan_leaves_no_isr_member_without_a_replica(target: tuple[int, ...] | None) -> None:
    """If a controller is replaced between the transactions of a large plan, the next one repairs nothing: a broker
    without a replica would count as one that has the acknowledged records."""
    moving = moved_to(started((1, 2)), 3, 4).plan.cluster
    moving = moving.with_states({T: partition(moving)._replace(leader=3, isr=(1, 2, 3))})
    wanted = check_reassignment(moving, T, target)
    parts = stored_parts(moving, made(plan_begin, moving, {T: wanted}, EPOCH, never_alone))
    assert len(parts) == 2
    for replicas, led in parts:
        assert {*led.isr, led.leader} <= set(replicas.replicas)
    assert parts[-1][0] == wanted


def test_a_leader_that_stays_leads_on() -> None:
    after = moved_to(started((1, 2, 3)), 3, 4, 1).plan.cluster
    assert assignment(after) == ReplicaAssignment((3, 4, 1, 2), (4,), (2,))
    done = made(plan_completion, with_isr(after, 1, 2, 3, 4), [T], EPOCH, never_alone)
    assert (partition(done.plan.cluster).leader, partition(done.plan.cluster).isr) == (1, (1, 3, 4))
    assert done.lost == {2: (T,)}


def test_another_order_is_there_at_once() -> None:
    begun = moved_to(started((1, 2, 3)), 3, 2, 1)
    assert assignment(begun.plan.cluster) == ReplicaAssignment((3, 2, 1))
    assert (begun.lost, partition(begun.plan.cluster).leader) == ({}, 1)
    again = moved_to(begun.plan.cluster, 3, 2, 1)
    assert (again.plan.writes, again.plan.told) == ((), ()), "nothing to do"


def test_a_reassignment_is_replaced_by_another() -> None:
    first = moved_to(started((1, 2)), 3, 4).plan.cluster
    second = moved_to(with_isr(first, 1, 2, 3), 4, 5)
    assert assignment(second.plan.cluster) == ReplicaAssignment((4, 5, 1, 2), (4, 5), (1, 2))
    assert second.lost == {3: (T,)}
    assert partition(second.plan.cluster).isr == (1, 2)


def test_a_reassignment_is_cancelled() -> None:
    first = with_isr(moved_to(started((1, 2)), 3, 4).plan.cluster, 1, 2, 3)
    led = first.with_states({T: partition(first)._replace(leader=3)})
    back = made(plan_begin, led, {T: check_reassignment(led, T, None)}, EPOCH, never_alone)
    assert assignment(back.plan.cluster) == ReplicaAssignment((1, 2))
    assert back.lost == {3: (T,), 4: (T,)}
    assert (partition(back.plan.cluster).leader, partition(back.plan.cluster).isr) == (1, (1, 2))


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, -1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_impossible_reassignments_are_refused(target: list[int] | None, error: ErrorCode) -> None:
    with pytest.raises(ApiError) as refusal:
        check_reassignment(started((1, 2)), T, target)
    assert refusal.value.error is error


def test_reassignments_of_missing_partitions_are_unknown() -> None:
    before = started((1, 2))
    for of, each in ((before, ("t", 1)), (before, ("u", 0)), (before.with_deleting(["t"]), T)):
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            check_reassignment(of, each, [1])


def test_the_number_of_replicas_may_be_held() -> None:
    for target in ([1], [1, 2, 3]):
        check_reassignment(started((1, 2)), T, target)
        with pytest.raises(ApiError, match="INVALID_REPLICATION_FACTOR"):
            check_reassignment(started((1, 2)), T, target, allow_replication_factor_change=False)
    check_reassignment(started((1, 2)), T, [3, 4], allow_replication_factor_change=False)
    growing = moved_to(started((1, 2)), 1, 2, 3).plan.cluster
    check_reassignment(growing, T, [1, 2, 4], allow_replication_factor_change=False)
    with pytest.raises(ApiError, match="from 3 to 2"):
        check_reassignment(growing, T, [1, 4], allow_replication_factor_change=False)


def test_an_absent_broker_keeps_its_replica_but_gets_none() -> None:
    before = started((1, 2), live=(1, 3))
    check_reassignment(before, T, [2, 3])
    with pytest.raises(ApiError, match="no such broker is registered"):
        check_reassignment(before, T, [1, 4])


def test_the_last_replica_with_every_record_is_kept() -> None:
    first = moved_to(started((1, 2)), 3, 4).plan.cluster
    only_new = with_isr(first, 3).with_states({T: partition(first)._replace(isr=(3,), leader=3)})
    for target in (None, [4]):
        with pytest.raises(ApiError, match="INVALID_REPLICA_ASSIGNMENT"):
            check_reassignment(only_new, T, target)
    check_reassignment(only_new, T, [3])


@settings(max_examples=300, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_whatever_happens_in_between(data: st.DataObject) -> None:
    """Requests, ISRs that grow and shrink, brokers that go and come, in any order."""
    some = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True)
    of = started(tuple(data.draw(some, "replicas")))
    hosts = set(assignment(of).replicas)
    target = assignment(of).replicas
    for _ in range(data.draw(st.integers(1, 12), "steps")):
        kind = data.draw(st.sampled_from(["move", "cancel", "isr", "brokers", "advance"]))
        if kind in ("move", "cancel"):
            asked = None if kind == "cancel" else data.draw(some)
            origin = assignment(of).origin_replicas
            try:
                wanted = check_reassignment(of, T, asked)
            except ApiError:
                continue
            of, target = (
                settled(of, made(plan_begin, of, {T: wanted}, EPOCH, never_alone), hosts),
                tuple(asked or origin),
            )
        elif kind == "isr" and partition(of).leader != NO_LEADER:
            live = [each for each in assignment(of).replicas if each in of.brokers]
            isr = {*data.draw(st.lists(st.sampled_from(live))), partition(of).leader}
            of = with_isr(of, *sorted(isr))
        elif kind == "brokers":
            live = {*data.draw(st.lists(st.sampled_from(BROKERS), unique=True)), *partition(of).isr}
            of = of._replace(brokers={each: broker(each) for each in live})
        of = settled(of, made(plan_completion, of, [T], EPOCH, never_alone), hosts)
    of = with_isr(of._replace(brokers={each: broker(each) for each in BROKERS}), *assignment(of).replicas)
    of = settled(of, made(plan_completion, of, [T], EPOCH, never_alone), hosts)
    assert assignment(of) == ReplicaAssignment(target)
    assert hosts == set(target)


def settled(before: ClusterState, step: Transfer, hosts: set[int]) -> ClusterState:
    """The cluster after a step; `hosts` are the brokers that have a replica according to the requests."""
    after = step.plan.cluster
    old, new = partition(before), partition(after)
    if not step.plan.told:
        assert after == before
        return after
    assert (new.leader_epoch, new.partition_epoch) == (old.leader_epoch + 1, old.partition_epoch + 1)
    assert new.isr
    assert set(new.isr) == set(old.isr) & set(assignment(after).replicas)
    assert new.leader == NO_LEADER or new.leader in new.isr
    if any(member in after.brokers for member in new.isr):
        assert new.leader in after.brokers
    hosts.update(assignment(after).replicas)
    hosts.difference_update(step.lost)
    assert hosts == set(assignment(after).replicas), "who has a replica is exactly who was told so"
    return after
