"""Several brokers in one store: all of them are registered, one is the controller, and the others stand by. On both
stores."""

from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.controller_election import ControllerElection, ControllerElsewhere, Deposed
from barnabas.controller.coordination.interface import CoordinationStore, Create, Delete, SessionExpired
from barnabas.controller.plan import TRANSACTION_BYTES_MAX
from barnabas.controller.registration import Registration
from barnabas.controller.sessions import StoreSessions
from barnabas.controller.state import BrokerRegistration, EndPoint, PartitionState
from tests.support.manual_timers import ManualTimers

Stores = Any
"""A store under test, see conftest.py."""


class Member:
    """One broker's registration and candidacy, without a controller."""

    def __init__(self, session: CoordinationStore, clock: ManualClock, broker_id: int) -> None:
        self.session = session
        sessions = StoreSessions(session)
        broker = BrokerRegistration(broker_id, (EndPoint("PLAINTEXT", "localhost", 9090 + broker_id),))
        self.registration = Registration(sessions, broker, clock, ManualTimers())
        self.election = ControllerElection(sessions, broker_id, clock, TRANSACTION_BYTES_MAX)


@pytest.fixture
def members(stores: Stores, clock: ManualClock) -> Any:
    async def make() -> list[Member]:
        made = []
        for broker_id in (1, 2, 3):
            session = await stores.session()
            for path in znodes.with_ancestors(znodes.PERSISTENT_PATHS) if broker_id == 1 else ():
                await session.create(path)
            made.append(Member(session, clock, broker_id))
            await made[-1].registration.register()
        return made

    return make


async def test_all_are_registered_and_one_is_elected(stores: Stores, members: Any) -> None:
    async with stores:
        first, *others = everybody = await members()
        await first.election.elect()
        for other in others:
            with pytest.raises(ControllerElsewhere):
                await other.election.elect()
        assert await first.session.get_children(znodes.BROKER_IDS) == ["1", "2", "3"], "who stands by is registered"
        epochs = [member.registration.broker.epoch for member in everybody]
        assert epochs == sorted(set(epochs)), "each has its own, in the order of registration"
        assert [member.election.epoch for member in everybody] == [1, 0, 0]


async def test_another_takes_over_when_the_controller_has_gone(stores: Stores, members: Any) -> None:
    async with stores:
        first, second, third = await members()
        await first.election.elect()
        await first.session.close()
        await second.election.elect()
        assert second.election.epoch == 2
        assert znodes.decode_controller((await third.session.get(znodes.CONTROLLER))[0]) == 2
        assert await third.session.get_children(znodes.BROKER_IDS) == ["2", "3"]
        with pytest.raises(SessionExpired):
            await first.election.write([(Create("/late"),)])


async def test_a_controller_that_was_replaced_can_write_nothing(stores: Stores, members: Any) -> None:
    async with stores:
        first, second, _ = await members()
        await first.election.elect()
        await first.election.write([(Create("/in-time"),)])
        await second.session.delete(znodes.CONTROLLER)
        await second.election.elect()
        with pytest.raises(Deposed):
            await first.election.write([(Create("/late"),)])
        assert await second.session.exists("/in-time") is not None
        assert await second.session.exists("/late") is None


async def test_foreign_children_of_a_znode_are_deleted_with_it(stores: Stores, members: Any) -> None:
    """Otherwise the transaction could never succeed."""
    async with stores:
        first, second, _ = await members()
        await first.election.elect()
        for path in ("/t", "/t/0", "/t/0/state", "/t/0/state/strange", "/t/0/state/strange/deep", "/t/other", "/u"):
            await second.session.create(path)
        await second.session.create("/u/ephemeral", ephemeral=True)
        await first.election.write([(Delete("/t/0/state"),), (Delete("/t/0"), Delete("/t")), (Delete("/u"),)])
        for path in ("/t", "/u"):
            assert await second.session.exists(path) is None
        await second.session.create("/t")
        await second.session.create("/t/strange")
        await second.session.delete(znodes.CONTROLLER)
        await second.election.elect()
        with pytest.raises(Deposed):
            await first.election.write([(Delete("/t"),)])
        assert await second.session.exists("/t/strange") is not None


async def test_znodes_deleted_by_another_controller_have_no_children(stores: Stores, members: Any) -> None:
    """A controller learns of its end by a write, and not by a read of a znode that the next one has deleted."""
    async with stores:
        first, second, _ = await members()
        await first.election.elect()
        await second.session.create("/t")
        await second.session.create("/t/strange")
        get_children = first.session.get_children

        async def after_its_end(path: str) -> Any:
            await second.session.delete(znodes.CONTROLLER)
            await second.election.elect()
            await second.election.write([(Delete("/t/strange"), Delete("/t"))])
            return await get_children(path)

        first.session.get_children = after_its_end
        with pytest.raises(Deposed):
            await first.election.write([(Delete("/t"),)])


async def test_no_epoch_is_given_out_twice_where_its_znode_is_gone(stores: Stores, members: Any) -> None:
    """Another broker is elected, which has never been the controller. A controller that wrote a state had a greater
    epoch, and later ones have written nothing. Their later writes are refused."""
    async with stores:
        first, second, _ = await members()
        session = first.session
        for path in znodes.with_ancestors([znodes.partition_path("t", 0)])[2:]:
            await session.create(path)
        await first.election.elect()
        for _ in range(4):
            await first.election.renew()
        state = PartitionState(1, 0, (1,), controller_epoch=3, partition_epoch=0)
        await first.election.write(
            [(Create(znodes.partition_state_path("t", 0), znodes.encode_partition_state(state)),)]
        )
        for path in (znodes.CONTROLLER_EPOCH, znodes.CONTROLLER):
            await session.delete(path)
        await second.election.elect()
        assert second.election.epoch > first.election.epoch == 5
        for _ in range(5):
            with pytest.raises(Deposed):
                await first.election.write([(Create("/late"),)])
            await second.election.renew()
        assert await session.exists("/late") is None
