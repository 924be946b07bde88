"""Elections that a test requests: another leader, none, or the same leader in a new epoch. The controller decides and
announces it like any other election.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import marked_if_alone, replicas_of
from barnabas.controller.plan import Plan, state_update
from barnabas.controller.state import NO_LEADER, PartitionState
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.context import ControllerContext
    from barnabas.controller.controller import Controller

TIMEOUT_MS: Final = 30_000

Choose = Callable[[PartitionState, list[int]], int]
"""Chooses the leader from a partition's current state and its online in-sync replicas. Errors: ApiError."""


def another(to: int | None) -> Choose:
    """Broker `to`, or any but the current leader."""

    def choose(state: PartitionState, able: list[int]) -> int:
        others = [replica for replica in able if replica != state.leader]
        if to is None and others:
            return others[0]
        if to is not None and to in able:
            return to
        wanted = "another broker" if to is None else f"broker {to}"
        raise ApiError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{wanted} cannot lead it: in sync and online are {able}"
        )

    return choose


def the_same(state: PartitionState, able: list[int]) -> int:
    """Choose the current leader."""
    if state.leader == NO_LEADER:
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "it has no leader")
    return state.leader


def nobody(state: PartitionState, able: list[int]) -> int:
    """Choose no broker."""
    return NO_LEADER


def whoever_can(former: int) -> Choose:
    """The former leader, if it can lead; the current leader, if there is one."""

    def choose(state: PartitionState, able: list[int]) -> int:
        if state.leader != NO_LEADER:
            return state.leader
        if former in able or not able:
            return former if former in able else NO_LEADER
        return able[0]

    return choose


async def elect(controller: Controller, topic: str, partition: int, choose: Choose) -> PartitionState:
    """Elect the leader that `choose` returns, in a new leader epoch; returns the partition's state before. On return
    the controller's own broker knows it. Errors: ApiError, also UNKNOWN_TOPIC_OR_PARTITION and NOT_CONTROLLER.
    """
    context = controller.context

    def timed_out(decided: PartitionState | None) -> PartitionState:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    request = AdminRequest(context.timers, TIMEOUT_MS, timed_out)
    return await context.ask(lambda: _elect(context, topic, partition, choose, request), request)


async def _elect(
    context: ControllerContext, name: str, partition: int, choose: Choose, request: AdminRequest[PartitionState]
) -> None:
    topic = context.cluster.topics.get(name)
    old = None if topic is None else topic.partitions.get(partition)
    if old is None:
        return request.fail(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}"))
    _, online = replicas_of(context.cluster, name, partition)
    try:
        leader = choose(old, [replica for replica in online if replica in old.isr])
    except ApiError as refused:
        return request.fail(refused)
    elected = old._replace(
        leader=leader,
        leader_epoch=old.leader_epoch + 1,
        controller_epoch=context.election.epoch,
        partition_epoch=old.partition_epoch + 1,
    )
    new = marked_if_alone(name, elected, context.commits_alone)
    plan = Plan(
        ((state_update(name, partition, old, new),),),
        context.cluster.with_states({(name, partition): new}),
        ((name, partition),),
    )
    await context.election.write(plan.writes)
    context.adopt(plan)
    request.decide(old)
    await tell(context, plan)
    return context.when_own_told(lambda: request.finish(old), request)
