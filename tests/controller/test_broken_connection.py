"""The connection to the metadata store breaks during a write: the writer does not know whether it took effect. Each
case has both outcomes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.controller import znodes
from barnabas.controller.state import NO_LEADER
from barnabas.controller.topics import NewPartitions, NewTopic
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tests.controller.conftest import own_broker_obeys

Node = Any
"""A controller under test, see conftest.py."""

both = pytest.mark.parametrize("when", ["before", "after"])


async def refused(work: Awaitable[object], error: ErrorCode) -> None:
    with pytest.raises(ApiError) as failure:
        await work
    assert failure.value.error is error


async def settled(node: Node) -> None:
    """Return when all earlier events, and the responses of the own broker, have been processed."""
    results = await node.controller.delete_topics(["nobody"])
    assert results["nobody"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await own_broker_obeys(node.controller)


async def create(node: Node, name: str) -> ErrorCode:
    (outcome,) = await node.controller.create_topics([NewTopic(name, 2)])
    error: ErrorCode = outcome.error
    return error


Request = Callable[[Node], Awaitable[object]]
REQUESTS: dict[str, Request] = {
    "create": lambda node: node.controller.create_topics([NewTopic("new", 1)]),
    "expand": lambda node: node.controller.create_partitions([NewPartitions("old", 3)]),
    "delete": lambda node: node.controller.delete_topics(["old"]),
}
PARTITIONS = {
    ("create", "before"): {"old": 2},
    ("create", "after"): {"old": 2, "new": 1},
    ("expand", "before"): {"old": 2},
    ("expand", "after"): {"old": 3},
    ("delete", "before"): {"old": 2},
    ("delete", "after"): {},
}


@both
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("reads_break_too", [False, True])
async def test_a_decision(node: Node, request_name: str, when: str, reads_break_too: bool) -> None:
    """The response contains no more than is known. The controller then reads the tree, and goes on."""
    async with node:
        assert await create(node, "old") is ErrorCode.NONE
        node.channel.clear()
        node.connection.break_at("multi", when)
        if reads_break_too:
            node.connection.break_at("get_children", "before")
            node.connection.break_at("get_many", "before")
        await refused(REQUESTS[request_name](node), ErrorCode.REQUEST_TIMED_OUT)
        await settled(node)
        assert node.connection.is_over
        expected = PARTITIONS[request_name, when]
        assert {name: len(topic.assignments) for name, topic in node.controller.cluster.topics.items()} == expected
        assert set(await node.session.get_children(znodes.TOPICS)) == set(expected)
        assert await node.session.get_children(znodes.DELETE_TOPICS) == []
        served = (
            {
                topic.topic_name: len(topic.partition_states)
                for topic in node.channel.take(LeaderAndIsrRequest)[-1].topic_states
            }
            if expected
            else {}
        )
        assert served == expected, "brokers are told what came into being"
        assert node.controller.is_active
        assert await create(node, "later") is ErrorCode.NONE


@both
async def test_a_change_of_configuration(node: Node, when: str) -> None:
    async with node:
        await create(node, "t")
        node.connection.break_at("multi", when)
        await refused(node.configs.change("topics", "t", lambda _: {"retention.ms": "7"}), ErrorCode.REQUEST_TIMED_OUT)
        payload, _ = await node.session.get("/config/topics/t")
        assert znodes.decode_config("topics", "t", payload) == ({"retention.ms": "7"} if when == "after" else {})
        await node.configs.change("topics", "t", lambda _: {"retention.ms": "8"})
        assert node.configs.overrides("topics", "t") == {"retention.ms": "8"}


@both
async def test_producer_ids(node: Node, when: str) -> None:
    """A block may be lost if the outcome of its write is unknown, but it is never given out twice."""
    async with node:
        node.connection.break_at("set", when)
        await refused(node.controller.allocate_producer_ids(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert await node.controller.allocate_producer_ids() == ((0, 999) if when == "before" else (1000, 1999))


@both
@pytest.mark.parametrize("deleting_breaks_too", ["before", "after", None])
@pytest.mark.parametrize("path", ["/brokers/ids/1", "/controller"])
async def test_a_start(node: Node, path: str, when: str, deleting_breaks_too: str | None) -> None:
    """The registration and the election may have succeeded without a response; they are written again, because their
    zxid and epoch were in the response."""
    await node.start()
    await node.stop()
    node.connection.break_at("multi", when, path)
    if when == "after" and deleting_breaks_too is not None:
        node.connection.break_at("delete", deleting_breaks_too, path)
    async with node:
        assert node.connection.is_over
        stat = await node.session.exists(path)
        assert stat is not None
        assert stat.ephemeral_owner == node.session.session_id
        registration = await node.session.exists("/brokers/ids/1")
        assert node.controller.broker_epoch == registration.czxid
        assert node.controller.is_active
        assert await create(node, "t") is ErrorCode.NONE, "its writes are not fenced"


@both
@pytest.mark.parametrize("breaks", [("multi", "/brokers/topics/t/partitions/0/state"), ("exists", znodes.CONTROLLER)])
async def test_the_start(node: Node, when: str, breaks: tuple[str, str]) -> None:
    """It goes on once the connection is back."""
    async with node:
        assert await create(node, "t") is ErrorCode.NONE
    node.connection.break_at(breaks[0], when, breaks[1])
    async with node:
        assert node.connection.is_over
        assert node.controller.is_active
        assert node.controller.cluster.topics["t"].partitions[0].leader != NO_LEADER


async def test_a_replaced_controller_does_not_send_what_it_reads(node: Node) -> None:
    """A replaced controller reads whether its write took effect, and the writes of a newer controller. It does not send
    these with its own epoch."""
    async with node:
        assert await create(node, "old") is ErrorCode.NONE
        await settled(node)
        node.channel.clear()
        epoch = node.controller.epoch
        await node.session.set(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1))
        node.connection.break_at("multi", "before")
        await refused(REQUESTS["create"](node), ErrorCode.REQUEST_TIMED_OUT)
        while node.controller.epoch == epoch:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        await settled(node)
        assert {command.controller_epoch for command in node.channel.take(LeaderAndIsrRequest)} == {epoch + 2}
