"""When a broker stops being the controller, and when it is the controller again."""

from typing import Any

import pytest

from barnabas.controller import znodes
from barnabas.controller.controller_election import Deposed
from barnabas.controller.controllership import RECOVERY_RETRY_DELAY_MS, RENEWALS_AT_ONCE
from barnabas.controller.coordination.interface import ConnectionLost, Create, Delete, NoNode, SetData
from barnabas.controller.topics import NewPartitions, NewTopic
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tests.controller.conftest import told

Node = Any
"""A controller under test, see conftest.py."""


async def test_a_deposed_controller_writes_nothing(node: Node) -> None:
    async with node:
        other = await node.store.session()
        await other.multi(
            [Delete("/controller"), Create("/controller", b"other", ephemeral=True), SetData("/controller_epoch", b"2")]
        )
        before = await node.tree()
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await node.controller.create_topics([NewTopic("t")])
        assert await node.tree() == before
        assert not node.controller.is_active
        for request in (
            node.controller.create_topics([NewTopic("t")]),
            node.controller.delete_topics(["t"]),
            node.controller.create_partitions([NewPartitions("t", 2)]),
        ):
            with pytest.raises(ApiError, match="NOT_CONTROLLER"):
                await request


async def test_a_broker_that_knows_a_newer_controller_deposes_this_one(node: Node) -> None:
    async with node:
        node.channel.top_error = ErrorCode.STALE_CONTROLLER_EPOCH
        [outcome] = await node.controller.create_topics([NewTopic("t")])
        assert outcome.error is ErrorCode.NONE  # its epoch was the store's when that was written
        assert not node.controller.is_active


async def test_a_lost_session_ends_the_controllership(node: Node) -> None:
    async with node:
        await node.store.expire(node.session)
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await node.controller.create_topics([NewTopic("t")])


async def test_a_controller_that_cannot_recover_resigns_until_it_can(node: Node) -> None:
    node.settings = node.settings._replace(transaction_bytes_max=1)
    async with node:
        node.faults.fatal = node.faults.effects + 2  # the first write succeeds, and nothing after it
        with pytest.raises(Exception, match=r"^$"):
            await node.controller.create_topics([NewTopic("t")])
        for _ in range(2):
            with pytest.raises(ApiError, match="NOT_CONTROLLER"):
                await node.controller.create_topics([NewTopic("u")])
            node.timers.fire()
            await node.timers.has(RECOVERY_RETRY_DELAY_MS)
        node.faults.fatal = None
        node.channel.clear()
        node.channel.arrived.clear()
        node.timers.fire()
        await node.channel.arrived.wait()
        (outcome,) = await node.controller.create_topics([NewTopic("u")])
        assert outcome.error is ErrorCode.NONE
        assert set(told(node.channel.take(LeaderAndIsrRequest))) == {("t", 0), ("u", 0)}


async def test_a_replaced_controller_resigns_after_a_broken_write(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It reads whether its write took effect, and finds another controller."""
    async with node:
        multi, get_many = node.session.multi, node.session.get_many

        async def replaced(*_arguments: object) -> Any:
            node.session.get_many = get_many
            raise Deposed("broker 0 knows a newer controller")

        async def break_off(_operations: object) -> Any:
            node.session.multi, node.session.get_many = multi, replaced
            raise ConnectionLost(znodes.CONTROLLER_EPOCH, "the connection broke")

        node.session.multi = break_off
        with pytest.raises(ApiError, match="REQUEST_TIMED_OUT"):
            await node.controller.create_topics([NewTopic("t")])
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await node.controller.create_topics([NewTopic("t")])
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert [record.getMessage().split(": ", 1)[1] for record in errors] == ["broker 0 knows a newer controller"]
        assert not node.controller.set_aside.members


async def test_a_controller_does_not_resume_after_an_election(node: Node) -> None:
    """Another controller was elected."""
    node.settings = node.settings._replace(transaction_bytes_max=1)
    async with node:
        node.faults.fatal = node.faults.effects + 2
        with pytest.raises(Exception, match=r"^$"):
            await node.controller.create_topics([NewTopic("t")])
        await node.store.expire(node.session)
        node.timers.fire()
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await node.controller.create_topics([NewTopic("u")])


async def test_a_controller_refused_by_its_own_broker_slows_down(
    node: Node,
) -> None:
    """The broker knows an epoch that no controller ever had. The controller makes up for a few lost epochs at once, and
    then gives itself one epoch per retry delay."""
    async with node:
        node.channel.top_error = ErrorCode.STALE_CONTROLLER_EPOCH
        await node.controller.create_topics([NewTopic("t", partition_count=1, replication_factor=1)])
        for renewals in range(3):
            await node.timers.has(RECOVERY_RETRY_DELAY_MS)
            assert node.controller.epoch == 1 + RENEWALS_AT_ONCE + renewals
            node.clock.advance(RECOVERY_RETRY_DELAY_MS)
            node.timers.fire(RECOVERY_RETRY_DELAY_MS)


async def test_partitions_without_a_controller_wait_for_an_election(node: Node) -> None:
    """They wait for nothing else: whether another program has deleted znodes of every cluster is checked afterwards."""
    async with node:
        asked: list[list[str]] = []
        get_many, multi = node.session.get_many, node.session.multi

        def read(paths: Any, *arguments: Any) -> Any:
            asked.append(list(paths))
            return get_many(paths, *arguments)

        def write(operations: Any) -> Any:
            asked.append([each.path for each in operations])
            return multi(operations)

        node.session.get_many, node.session.multi = read, write
        node.channel.arrived.clear()
        other = await node.store.session()
        await other.delete(znodes.CONTROLLER)
        await node.channel.arrived.wait()
        assert asked[:2] == [[znodes.CONTROLLER_EPOCH], [znodes.CONTROLLER, znodes.CONTROLLER_EPOCH]]
        assert [znodes.TOPICS in paths for paths in asked].count(True) == 1, "once, and after the election"
        await other.close()


async def test_an_election_makes_a_deleted_tree_again(node: Node) -> None:
    async with node:
        multi = node.session.multi
        refusals = [NoNode("/", "there is no root")]

        async def write(operations: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return await multi(operations)

        node.session.multi = write
        node.channel.arrived.clear()
        other = await node.store.session()
        await other.delete("/feature")
        await other.delete(znodes.CONTROLLER)
        await node.channel.arrived.wait()
        assert node.controller.is_active
        assert not refusals
        assert await other.exists("/feature") is not None
        await other.close()
