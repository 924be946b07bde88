"""Partitions that move between brokers, in a cluster of controllers: the phases, and what interrupts them."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.operations.elect_leaders import ElectionType
from barnabas.controller.operations.topics import NewPartitions, NewTopic
from barnabas.controller.state import NO_LEADER, ReplicaAssignment
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from tests.controller.company import Company

pytestmark = pytest.mark.parametrize(
    "stores",
    ["memory", pytest.param("zookeeper", marks=[pytest.mark.java, pytest.mark.slow])],
    indirect=True,
)

T = ("t", 0)
PATH = znodes.REASSIGN_PARTITIONS


@pytest.fixture
def company(stores: Any, clock: ManualClock) -> Company:
    return Company(stores, clock)


async def begin(company: Company, *replicas: int) -> None:
    """Four brokers, of which 1 is the controller, and a topic t on these."""
    await company.start(1, 2, 3, 4)
    (outcome,) = await company.controller.create_topics([NewTopic("t", assignments=[(0, replicas)])])
    assert outcome.error is ErrorCode.NONE
    await company.until(lambda: all(T in company.broker(each).roles for each in replicas))


async def reassign(company: Company, *replicas: int, cancel: bool = False) -> ErrorCode:
    wanted = {T: None if cancel else replicas}
    error = (await company.controller.alter_reassignments(wanted, 30_000))[T]
    return ErrorCode.NONE if error is None else error.error


async def join(company: Company, *isr: int) -> None:
    """Have the leader of t-0 ask for this ISR."""
    state, brokers = company.state(), company.controller.cluster.brokers
    wanted = RequestPartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=brokers[each].epoch) for each in isr],
    )
    topic = RequestTopicData(topic_id=company.controller.cluster.topics["t"].topic_id, partitions=[wanted])
    request = AlterPartitionRequest(broker_id=state.leader, broker_epoch=brokers[state.leader].epoch, topics=[topic])
    response = await company.controller.alter_partition(request)
    assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)


def assignment(company: Company) -> ReplicaAssignment:
    return company.controller.cluster.topics["t"].assignments[0]


async def stored(company: Company) -> tuple[Any, Any]:
    """Assignment and state of t-0 as they stand in the store, which must be what the controller knows."""
    await company.settled()
    session = next(member.session for member in company.members.values() if member.controller.is_active)
    topic = znodes.decode_topic("t", (await session.get(znodes.topic_path("t")))[0])
    payload, stat = await session.get(znodes.partition_state_path(*T))
    state = znodes.decode_partition_state(*T, payload, stat.version)
    assert (topic.partitions[0], state) == (assignment(company), company.state())
    return topic.partitions[0], state


async def is_reassigned(company: Company, *replicas: int) -> None:
    """Wait until t-0 is on exactly these brokers, as everybody was told."""
    await company.until(
        lambda: (
            assignment(company) == ReplicaAssignment(replicas)
            and all(
                (T in company.broker(each).roles) == (each in replicas)
                for each, member in company.members.items()
                if not member.is_dead
            )
        )
    )
    _, state = await stored(company)
    assert set(state.isr) <= set(replicas)


async def test_a_partition_moves_to_other_brokers(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        first = company.state()
        assert await reassign(company, 3, 4) is ErrorCode.NONE
        assert (await stored(company))[0] == ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2))
        await company.until(lambda: all(T in company.broker(each).roles for each in (3, 4)))
        role = company.broker(3).roles[T]
        assert (role.is_new, role.leader, role.isr, role.adding_replicas, role.removing_replicas) == (
            *(True, 1, [1, 2]),
            *([3, 4], [1, 2]),
        )
        assert company.state().leader_epoch == first.leader_epoch + 1
        await join(company, 1, 2, 3)
        assert assignment(company).is_being_reassigned
        refused = await company.controller.create_partitions([NewPartitions("t", 2)])
        assert refused["t"] is not None
        assert refused["t"].error is ErrorCode.REASSIGNMENT_IN_PROGRESS
        await join(company, 1, 2, 3, 4)
        await is_reassigned(company, 3, 4)
        assert (company.state().leader, company.state().isr) == (3, (3, 4))
        for each in (1, 2):
            stops = [command for command in company.broker(each).log if isinstance(command, StopReplicaRequest)]
            (state,) = stops[-1].topic_states[0].partition_states
            assert (state.delete_partition, state.leader_epoch) == (True, company.state().leader_epoch)
        await company.until(lambda: all(company.broker(each).leaders[T] == 3 for each in (1, 2, 3, 4)))
        assert await company.controller.create_partitions([NewPartitions("t", 2)]) == {"t": None}


async def test_errors_are_those_of_each_partition(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await company.members[2].controller.alter_reassignments({T: (3,)}, 30_000)
        wanted = {T: (1, 9), ("t", 5): (1,), ("u", 0): None}
        results = await company.controller.alter_reassignments(wanted, 30_000)
        assert [error and error.error for error in results.values()] == [
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await reassign(company, cancel=True) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert company.state().leader_epoch == 0, "nothing has happened"


async def test_a_reassignment_is_cancelled(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        await reassign(company, 3, 4)
        await company.until(lambda: T in company.broker(3).roles)
        await join(company, 1, 2, 3)
        (elected,) = (await company.controller.elect_leaders([T], ElectionType.PREFERRED, 30_000)).values()
        assert elected is None
        assert company.state().leader == 3
        assert await reassign(company, cancel=True) is ErrorCode.NONE
        await is_reassigned(company, 1, 2)
        assert company.state().leader == 1


async def test_a_reassignment_is_replaced(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        await reassign(company, 3, 1)
        await join(company, 1, 2, 3)
        await is_reassigned(company, 3, 1)
        await reassign(company, 2, 4)
        await join(company, 1, 3, 4)
        await reassign(company, 4, 3)
        await is_reassigned(company, 4, 3)


async def test_fewer_replicas_and_another_order_are_there_at_once(company: Company) -> None:
    async with company:
        await begin(company, 1, 2, 3)
        await reassign(company, 3, 2)
        await is_reassigned(company, 3, 2)
        await reassign(company, 2, 3)
        await is_reassigned(company, 2, 3)
        assert company.state().leader == 3, "who leads may go on"


@pytest.mark.parametrize("isr", [(2, 3), (2, 3, 4)])
async def test_another_controller_goes_on(company: Company, isr: tuple[int, ...]) -> None:
    """The one in office dies while a replica is being added, or when all are in sync and it has not seen to that."""
    async with company:
        await begin(company, 2, 3)
        await reassign(company, 4, 3)
        await company.until(lambda: T in company.broker(4).roles)
        if 4 in isr:
            session = company.members[3].session
            state = company.state()._replace(isr=isr)
            await session.set(znodes.partition_state_path(*T), znodes.encode_partition_state(state))
            await company.expire(1)
        else:
            await company.stop(1)
        await company.until(lambda: company.controller.epoch > 1 and company.broker(4).live >= {2, 3, 4})
        await company.until(lambda: "t" in company.controller.cluster.topics)  # it has taken over
        if 4 not in isr:
            assert assignment(company) == ReplicaAssignment((4, 3, 2), (4,), (2,))
            await company.until(lambda: company.broker(4).roles[T].controller_epoch >= 1)
            await join(company, 2, 3, 4)
        await is_reassigned(company, 4, 3)
        assert company.state().leader in (3, 4)


async def test_a_broker_that_dies_while_it_is_added_goes_on_when_it_is_back(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        await reassign(company, 3, 4)
        await company.until(lambda: T in company.broker(4).roles)
        await company.stop(4)
        await company.until(lambda: company.broker(1).live == {1, 2, 3})
        await join(company, 1, 2, 3)
        assert assignment(company).is_being_reassigned
        await company.start(4)
        await company.until(lambda: T in company.broker(4).roles)
        assert company.broker(4).roles[T].is_new
        await join(company, 1, 2, 3, 4)
        await is_reassigned(company, 3, 4)


async def test_a_partition_without_a_leader_waits_for_one(company: Company) -> None:
    async with company:
        await begin(company, 2)
        await company.stop(2)
        await company.until(lambda: company.state().leader == NO_LEADER)
        assert await reassign(company, 3) is ErrorCode.NONE
        assert (company.state().leader, company.state().isr) == (NO_LEADER, (2,))
        await company.start(2)
        await company.until(lambda: company.state().leader == 2)
        await join(company, 2, 3)
        await is_reassigned(company, 3)


async def test_a_topic_is_deleted_while_it_moves(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        await reassign(company, 3, 4)
        await company.until(lambda: T in company.broker(3).roles)
        assert await company.controller.delete_topics(["t"], 30_000) == {"t": None}
        await company.until(lambda: all("t" in company.broker(each).deleted for each in (1, 2, 3, 4)))


# -- the znode


def asked(**targets: list[int]) -> bytes:
    return znodes.encode_reassign_partitions({(name, 0): replicas for name, replicas in targets.items()})


async def gone(company: Company, session: Any) -> None:
    while await session.exists(PATH, lambda _event: company.news.set()) is not None:
        await company.news.wait()
        company.news.clear()


@pytest.mark.parametrize("is_in_office", [True, False])
async def test_what_old_tools_ask_for(company: Company, is_in_office: bool, caplog: pytest.LogCaptureFixture) -> None:
    """`kafka-reassign-partitions.sh --zookeeper`, as it was until Kafka 2.8."""
    async with company:
        await begin(company, 1, 2)
        other = await company.stores.session()
        if is_in_office:
            await other.create(PATH, asked(t=[3, 4], gone=[1]))
        else:
            released = company.hold(1)
            await other.create(PATH, asked(t=[3, 4], gone=[1]))
            await company.expire(1)
            released.set()
        await company.until(lambda: assignment(company) == ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2)))
        await company.settled()
        assert znodes.decode_reassign_partitions((await other.get(PATH))[0]) == {T: (3, 4)}, "what can be done"
        assert "gone-0 is not reassigned" in caplog.text
        await company.until(lambda: T in company.broker(4).roles and T in company.broker(3).roles)
        if not is_in_office:
            await company.until(lambda: company.controller.epoch > 1)
        await join(company, *company.state().isr, *(each for each in (3, 4) if each not in company.state().isr))
        await company.until(lambda: assignment(company) == ReplicaAssignment((3, 4)))
        await gone(company, other)
        await other.close()


async def test_the_latest_that_is_asked_for_holds(company: Company) -> None:
    async with company:
        await begin(company, 1, 2)
        other = await company.stores.session()
        await other.create(PATH, asked(t=[3, 4]))
        await company.until(lambda: assignment(company).adding_replicas == (3, 4))
        await reassign(company, 4, 1)
        await asyncio.wait_for(gone(company, other), 30)
        assert assignment(company) == ReplicaAssignment((4, 1, 2), (4,), (2,))
        await other.create(PATH, b"{}")
        await asyncio.wait_for(gone(company, other), 30)
        await other.create(PATH, asked(t=[1, 2]))
        await is_reassigned(company, 1, 2)
        await asyncio.wait_for(gone(company, other), 30)
        await other.close()
