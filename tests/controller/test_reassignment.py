"""Partitions that move between brokers, in a cluster of controllers: the phases, and what interrupts them."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import requests, znodes
from barnabas.controller.admin_request import ElectionType
from barnabas.controller.operations import reassignment
from barnabas.controller.state import NO_LEADER, ReplicaAssignment
from barnabas.controller.topics import NewPartitions, NewTopic
from barnabas.turns import ENTRIES_PER_TURN
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from tests.controller.cluster import IN_BOTH_STORES, Cluster
from tests.support.watched_calls import TurnsTaken
from tools.waiting import PATIENCE_S

pytestmark = IN_BOTH_STORES

T = ("t", 0)
PATH = znodes.REASSIGN_PARTITIONS


@pytest.fixture
def cluster(stores: Any, clock: ManualClock) -> Cluster:
    return Cluster(stores, clock)


async def begin(cluster: Cluster, *replicas: int) -> None:
    """Four brokers, of which 1 is the controller, and a topic t on these."""
    await cluster.start(1, 2, 3, 4)
    (outcome,) = await cluster.controller.create_topics([NewTopic("t", assignments=[(0, replicas)])])
    assert outcome.error is ErrorCode.NONE
    await cluster.until(lambda: all(T in cluster.broker(each).roles for each in replicas))


async def reassign(cluster: Cluster, *replicas: int, cancel: bool = False) -> ErrorCode:
    wanted = {T: None if cancel else replicas}
    error = (await cluster.controller.alter_reassignments(wanted, 30_000))[T]
    return ErrorCode.NONE if error is None else error.error


def assignment(cluster: Cluster) -> ReplicaAssignment:
    return cluster.controller.cluster.topics["t"].assignments[0]


async def stored(cluster: Cluster) -> tuple[Any, Any]:
    """Assignment and state of t-0 in the store; the controller must have the same."""
    await cluster.settled()
    session = next(member.session for member in cluster.members.values() if member.controller.is_active)
    topic = znodes.decode_topic("t", (await session.get(znodes.topic_path("t")))[0])
    payload, stat = await session.get(znodes.partition_state_path(*T))
    state = znodes.decode_partition_state(*T, payload, stat.version)
    assert (topic.partitions[0], state) == (assignment(cluster), cluster.state())
    return topic.partitions[0], state


async def is_reassigned(cluster: Cluster, *replicas: int) -> None:
    """Wait until t-0 is on exactly these brokers, and all brokers know that."""
    await cluster.until(
        lambda: (
            assignment(cluster) == ReplicaAssignment(replicas)
            and all(
                (T in cluster.broker(each).roles) == (each in replicas)
                for each, member in cluster.members.items()
                if not member.is_dead
            )
        )
    )
    _, state = await stored(cluster)
    assert set(state.isr) <= set(replicas)


async def test_a_partition_moves_to_other_brokers(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        first = cluster.state()
        assert await reassign(cluster, 3, 4) is ErrorCode.NONE
        assert (await stored(cluster))[0] == ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2))
        await cluster.until(lambda: all(T in cluster.broker(each).roles for each in (3, 4)))
        role = cluster.broker(3).roles[T]
        assert (role.is_new, role.leader, role.isr, role.adding_replicas, role.removing_replicas) == (
            *(True, 1, [1, 2]),
            *([3, 4], [1, 2]),
        )
        assert cluster.state().leader_epoch == first.leader_epoch + 1
        await cluster.alter_isr(1, 2, 3)
        assert assignment(cluster).is_being_reassigned
        refused = await cluster.controller.create_partitions([NewPartitions("t", 2)])
        assert refused["t"] is not None
        assert refused["t"].error is ErrorCode.REASSIGNMENT_IN_PROGRESS
        await cluster.alter_isr(1, 2, 3, 4)
        await is_reassigned(cluster, 3, 4)
        assert (cluster.state().leader, cluster.state().isr) == (3, (3, 4))
        for each in (1, 2):
            stops = [command for command in cluster.broker(each).log if isinstance(command, StopReplicaRequest)]
            (state,) = stops[-1].topic_states[0].partition_states
            assert (state.delete_partition, state.leader_epoch) == (True, cluster.state().leader_epoch)
        await cluster.until(lambda: all(cluster.broker(each).leaders[T] == 3 for each in (1, 2, 3, 4)))
        assert await cluster.controller.create_partitions([NewPartitions("t", 2)]) == {"t": None}


async def test_a_replica_in_the_isr_begins_no_log(cluster: Cluster) -> None:
    """Not even while the move goes on: if its log is lost, others would truncate theirs to it."""
    async with cluster:
        await begin(cluster, 2)
        assert await reassign(cluster, 3, 4) is ErrorCode.NONE
        await cluster.until(lambda: cluster.broker(3).roles[T].is_new)
        await cluster.alter_isr(2, 3)
        await cluster.stop(2)
        await cluster.until(lambda: (cluster.state().leader, cluster.state().isr) == (3, (3,)))
        assert cluster.broker(4).roles[T].is_new, "it has no record yet"
        await cluster.stop(3)
        await cluster.until(lambda: (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (3,)))
        await cluster.start(3)
        await cluster.until(lambda: T in cluster.broker(3).roles)
        role = cluster.broker(3).roles[T]
        assert (role.is_new, role.adding_replicas) == (False, [3, 4])


async def test_errors_are_those_of_each_partition(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await cluster.members[2].controller.alter_reassignments({T: (3,)}, 30_000)
        wanted = {T: (1, 9), ("t", 5): (1,), ("u", 0): None}
        results = await cluster.controller.alter_reassignments(wanted, 30_000)
        assert [error and error.error for error in results.values()] == [
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await reassign(cluster, cancel=True) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert cluster.state().leader_epoch == 0, "nothing has happened"


async def test_a_reassignment_is_cancelled(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        await reassign(cluster, 3, 4)
        await cluster.until(lambda: T in cluster.broker(3).roles)
        await cluster.alter_isr(1, 2, 3)
        (elected,) = (await cluster.controller.elect_leaders([T], ElectionType.PREFERRED, 30_000)).values()
        assert elected is None
        assert cluster.state().leader == 3
        assert await reassign(cluster, cancel=True) is ErrorCode.NONE
        await is_reassigned(cluster, 1, 2)
        assert cluster.state().leader == 1


async def test_a_reassignment_is_replaced(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        await reassign(cluster, 3, 1)
        await cluster.alter_isr(1, 2, 3)
        await is_reassigned(cluster, 3, 1)
        await reassign(cluster, 2, 4)
        await cluster.alter_isr(1, 3, 4)
        await reassign(cluster, 4, 3)
        await is_reassigned(cluster, 4, 3)


async def test_fewer_replicas_and_another_order_are_there_at_once(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2, 3)
        await reassign(cluster, 3, 2)
        await is_reassigned(cluster, 3, 2)
        await reassign(cluster, 2, 3)
        await is_reassigned(cluster, 2, 3)
        assert cluster.state().leader == 3, "who leads may go on"


@pytest.mark.parametrize("isr", [(2, 3), (2, 3, 4)])
async def test_another_controller_goes_on(cluster: Cluster, isr: tuple[int, ...]) -> None:
    """The active controller dies while a replica is being added, or when all are in sync and it has not processed
    that."""
    async with cluster:
        await begin(cluster, 2, 3)
        await reassign(cluster, 4, 3)
        await cluster.until(lambda: T in cluster.broker(4).roles)
        if 4 in isr:
            session = cluster.members[3].session
            state = cluster.state()._replace(isr=isr)
            await session.set(znodes.partition_state_path(*T), znodes.encode_partition_state(state))
            await cluster.expire(1)
        else:
            await cluster.stop(1)
        await cluster.until(lambda: cluster.controller.epoch > 1 and cluster.broker(4).live >= {2, 3, 4})
        await cluster.until(lambda: "t" in cluster.controller.cluster.topics)  # it has taken over
        if 4 not in isr:
            assert assignment(cluster) == ReplicaAssignment((4, 3, 2), (4,), (2,))
            await cluster.until(lambda: cluster.broker(4).roles[T].controller_epoch >= 1)
            await cluster.alter_isr(2, 3, 4)
        await is_reassigned(cluster, 4, 3)
        assert cluster.state().leader in (3, 4)


async def test_a_broker_that_dies_while_it_is_added_continues_later(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        await reassign(cluster, 3, 4)
        await cluster.until(lambda: T in cluster.broker(4).roles)
        await cluster.stop(4)
        await cluster.until(lambda: cluster.broker(1).live == {1, 2, 3})
        await cluster.alter_isr(1, 2, 3)
        assert assignment(cluster).is_being_reassigned
        await cluster.start(4)
        await cluster.until(lambda: T in cluster.broker(4).roles)
        assert cluster.broker(4).roles[T].is_new
        await cluster.alter_isr(1, 2, 3, 4)
        await is_reassigned(cluster, 3, 4)


async def test_a_partition_without_a_leader_waits_for_one(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 2)
        await cluster.stop(2)
        await cluster.until(lambda: cluster.state().leader == NO_LEADER)
        assert await reassign(cluster, 3) is ErrorCode.NONE
        assert (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (2,))
        await cluster.start(2)
        await cluster.until(lambda: cluster.state().leader == 2)
        await cluster.alter_isr(2, 3)
        await is_reassigned(cluster, 3)


async def test_a_topic_is_deleted_while_it_moves(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        await reassign(cluster, 3, 4)
        await cluster.until(lambda: T in cluster.broker(3).roles)
        assert await cluster.controller.delete_topics(["t"], 30_000) == {"t": None}
        await cluster.until(lambda: all("t" in cluster.broker(each).deleted for each in (1, 2, 3, 4)))


# -- the znode


def asked(**targets: list[int]) -> bytes:
    return znodes.encode_reassign_partitions({(name, 0): replicas for name, replicas in targets.items()})


async def gone(cluster: Cluster, session: Any) -> None:
    while await session.exists(PATH, lambda _event: cluster.news.set()) is not None:
        await cluster.news.wait()
        cluster.news.clear()


@pytest.mark.parametrize("is_active", [True, False])
async def test_reassignments_of_old_tools_are_carried_out(
    cluster: Cluster, is_active: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`kafka-reassign-partitions.sh --zookeeper`, as it was until Kafka 2.8."""
    async with cluster:
        await begin(cluster, 1, 2)
        other = await cluster.stores.session()
        if is_active:
            await other.create(PATH, asked(t=[3, 4], gone=[1]))
        else:
            released = cluster.hold(1)
            await other.create(PATH, asked(t=[3, 4], gone=[1]))
            await cluster.expire(1)
            released.set()
        await cluster.until(lambda: assignment(cluster) == ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2)))
        await cluster.settled()
        assert znodes.decode_reassign_partitions((await other.get(PATH))[0]) == {T: (3, 4)}, "what can be done"
        assert "gone-0 is not reassigned" in caplog.text
        await cluster.until(lambda: T in cluster.broker(4).roles and T in cluster.broker(3).roles)
        if not is_active:
            await cluster.until(lambda: cluster.controller.epoch > 1)
        await cluster.alter_isr(*cluster.state().isr, *(each for each in (3, 4) if each not in cluster.state().isr))
        await cluster.until(lambda: assignment(cluster) == ReplicaAssignment((3, 4)))
        await gone(cluster, other)
        await other.close()


async def test_a_topic_that_is_deleted_is_asked_for_no_more(cluster: Cluster) -> None:
    """Otherwise a later topic of the name would be moved."""
    async with cluster:
        await begin(cluster, 1, 2)
        other = await cluster.stores.session()
        await other.create(PATH, asked(t=[3, 4]))
        await cluster.until(lambda: assignment(cluster).adding_replicas == (3, 4))
        assert await cluster.controller.delete_topics(["t"], 30_000) == {"t": None}
        await asyncio.wait_for(gone(cluster, other), PATIENCE_S)
        await other.close()


async def test_the_latest_that_is_asked_for_holds(cluster: Cluster) -> None:
    async with cluster:
        await begin(cluster, 1, 2)
        other = await cluster.stores.session()
        await other.create(PATH, asked(t=[3, 4]))
        await cluster.until(lambda: assignment(cluster).adding_replicas == (3, 4))
        await reassign(cluster, 4, 1)
        await asyncio.wait_for(gone(cluster, other), PATIENCE_S)
        assert assignment(cluster) == ReplicaAssignment((4, 1, 2), (4,), (2,))
        await other.create(PATH, b"{}")
        await asyncio.wait_for(gone(cluster, other), PATIENCE_S)
        await other.create(PATH, asked(t=[1, 2]))
        await is_reassigned(cluster, 1, 2)
        await asyncio.wait_for(gone(cluster, other), PATIENCE_S)
        await other.close()


async def test_many_partitions_are_reassigned_in_turns(cluster: Cluster) -> None:
    """Plans, writes and requests, to the own broker and to others, leave the event loop to other tasks."""
    count = 5 * ENTRIES_PER_TURN + 1
    async with cluster:
        await cluster.start(1, 2, 3)
        topic = NewTopic("t", assignments=[(number, (1, 2)) for number in range(count)])
        (outcome,) = await cluster.controller.create_topics([topic])
        assert outcome.error is ErrorCode.NONE
        await cluster.settled()
        taken = TurnsTaken()
        for owner, name in ((reassignment, "state_among"), (requests, "_partition_metadata")):
            taken.watch(owner, name)
        wanted = {("t", number): (2, 3) for number in range(count)}
        results = await cluster.controller.alter_reassignments(wanted, 30_000)
        await cluster.settled()
        taken.end()
        assert set(results.values()) == {None}
        assert assignment(cluster) == ReplicaAssignment((2, 3, 1), (3,), (1,))
        for name, least in (("state_among", 1), ("_partition_metadata", 3)):  # for each of three brokers
            total, in_one_turn = taken.calls(name)
            assert total >= least * count
            assert in_one_turn <= 2 * ENTRIES_PER_TURN, name


async def test_a_refusal_by_a_former_replica_is_not_waited_for(
    cluster: Cluster,
) -> None:
    """After the move is cancelled the broker responds that it could not create the log. A later move creates it."""
    async with cluster:
        await begin(cluster, 1, 2)
        broker = cluster.broker(3)
        broker.is_silent = True
        broker.errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        assert await reassign(cluster, 1, 2, 3) is ErrorCode.NONE
        assert await reassign(cluster, cancel=True) is ErrorCode.NONE
        broker.speak_again()
        await cluster.until(lambda: any(isinstance(command, StopReplicaRequest) for command in broker.log))
        await cluster.settled()
        cluster.fire_retries()
        await cluster.settled()
        broker.errors.clear()
        assert await reassign(cluster, 1, 2, 3) is ErrorCode.NONE
        await cluster.until(lambda: T in broker.roles)
