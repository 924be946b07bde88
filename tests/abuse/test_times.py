"""Times at their extremes: what a client says of its own time-outs, and what an operator says of intervals, never
makes the broker spin, nor keeps it from serving others.
"""

from __future__ import annotations

import socket
import time

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tools.barnabas_process import BarnabasProcess
from tools.hostile import ThreadTimes, answer, ask, connect, eventually, frame

SPAN_S = 0.5
SPINNING = 0.25
"""Of a processor: a loop that spins, or a timer that never rests, takes all that there is. Idle brokers took up to
0.03 on a machine with work beside."""


def processor_share(process: BarnabasProcess) -> float:
    """How much of a processor a broker takes that nobody asks for anything: the least of a few spans, since work that
    was begun before may go on in the first."""
    least = float("inf")
    for _ in range(4):
        times = ThreadTimes(process.pid)
        time.sleep(SPAN_S)  # what is measured is a span of time
        least = min(least, (times.loop_ms + times.threads_ms) / 1000 / SPAN_S)
        if least < SPINNING:
            break
    return least


class StaticMember:
    """A member with an instance id that does what it is told, on a connection of its own."""

    def __init__(self, process: BarnabasProcess, group_id: str, name: str) -> None:
        self.connection: socket.socket = connect(process.bootstrap_servers, timeout_s=5)
        self.group_id = group_id
        self.name = name
        self.member_id = ""
        self.generation = -1
        self._join: JoinGroupRequest | None = None

    def begin_join(self, rebalance_timeout_ms: int) -> None:
        self._join = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.name,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range")],
        )
        self.connection.sendall(frame(self._join, 5))

    def end_join(self) -> None:
        assert self._join is not None
        response = answer(self.connection, self._join, 5, JoinGroupResponse)
        assert response.error_code == ErrorCode.NONE
        self.member_id, self.generation = response.member_id, response.generation_id

    def sync(self, *others: StaticMember) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"work") for member in others
            ],
        )
        assert ask(self.connection, request, 3, SyncGroupResponse).error_code == ErrorCode.NONE

    def leave(self) -> None:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.name)
        response = ask(
            self.connection, LeaveGroupRequest(group_id=self.group_id, members=[identity]), 3, LeaveGroupResponse
        )
        assert response.error_code == response.members[0].error_code == ErrorCode.NONE

    def heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.name,
        )
        code: int = ask(self.connection, request, 3, HeartbeatResponse).error_code
        return code


def await_coordinator(process: BarnabasProcess, group_id: str) -> None:
    """Have the broker create `__consumer_offsets` and load the group's part of it."""

    def is_ready() -> bool:
        with connect(process.bootstrap_servers) as connection:
            found = ask(connection, FindCoordinatorRequest(key=group_id), 2, FindCoordinatorResponse)
            probe = HeartbeatRequest(group_id=group_id, member_id="nobody")
            return found.error_code == ErrorCode.NONE and (
                ask(connection, probe, 3, HeartbeatResponse).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            )

    assert eventually(is_ready, 20)


@pytest.mark.parametrize("rebalance_timeout_ms", [-(2**31), -1, 0, 1])
def test_a_static_member_comes_back_with_no_time_for_rebalances(
    shared_broker: BarnabasProcess, rebalance_timeout_ms: int
) -> None:
    """Nobody but it is left in the group, and it does not join: the rebalance has no end until its session has one."""
    group_id = f"g{rebalance_timeout_ms}"
    await_coordinator(shared_broker, group_id)
    first, second = (StaticMember(shared_broker, group_id, name) for name in ("a", "b"))
    first.begin_join(60_000)
    first.end_join()
    second.begin_join(rebalance_timeout_ms)
    assert eventually(lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, 5)
    first.begin_join(60_000)
    for member in (first, second):
        member.end_join()
    first.sync(first, second)
    second.sync()
    restarted = StaticMember(shared_broker, group_id, "a")
    restarted.begin_join(rebalance_timeout_ms)
    restarted.end_join()
    assert restarted.generation == first.generation, "it was replaced without a rebalance"
    second.leave()
    assert restarted.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert processor_share(shared_broker) < SPINNING
    restarted.begin_join(60_000)
    restarted.end_join()
    restarted.sync(restarted)
    assert restarted.heartbeat() == ErrorCode.NONE
    for member in (first, second, restarted):
        member.connection.close()
