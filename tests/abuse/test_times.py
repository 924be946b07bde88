"""Times at their extremes that a client asks for: they never make the broker spin, nor keep it from serving others.

What an operator configures of times is in test_times_of_settings.py; numbers of all kinds, and what is answered to
them, in test_numbers.py.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from barnabas.broker.handlers import load_handler, served_apis
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from barnabas.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Array, Field, Message
from tests.abuse.conftest import SHORT
from tools.attack.hostile import (
    SPINNING,
    HealthyClient,
    answer,
    ask,
    connect,
    create_topic,
    eventually,
    frame,
    processor_share,
    produce,
)
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

GREATEST = {"int32": 2**31 - 1, "int64": 2**63 - 1}
TIME_FIELD = re.compile(r"_ms$|timeout|wait|lifetime|retention|duration")
WIDE_OPEN = {
    "group.min.session.timeout.ms": "-2147483648",
    "group.max.session.timeout.ms": "2147483647",
    "transaction.max.timeout.ms": "2147483647",
}
"""Settings that let every duration of a request through."""


class StaticMember:
    """A member with an instance id that does what it is told, on a connection of its own."""

    def __init__(self, process: BarnabasProcess, group_id: str, name: str) -> None:
        self.connection: socket.socket = connect(process.bootstrap_servers, timeout_s=PATIENCE_S)
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

    assert eventually(is_ready)


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("rebalance_timeout_ms", [-(2**31), -1, 0, 1])
def test_a25_a_static_member_returns_without_a_rebalance_timeout(
    shared_broker: BarnabasProcess, rebalance_timeout_ms: int, is_timed: bool
) -> None:
    """Nobody but it is left in the group, and it does not join: the rebalance has no end until its session has one."""
    group_id = f"g{rebalance_timeout_ms}-{is_timed}"
    await_coordinator(shared_broker, group_id)
    first, second = (StaticMember(shared_broker, group_id, name) for name in ("a", "b"))
    first.begin_join(60_000)
    first.end_join()
    second.begin_join(rebalance_timeout_ms)
    assert eventually(lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
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
    assert not is_timed or processor_share(shared_broker.pid) < SPINNING
    restarted.begin_join(60_000)
    restarted.end_join()
    restarted.sync(restarted)
    assert restarted.heartbeat() == ErrorCode.NONE
    for member in (first, second, restarted):
        member.connection.close()


# Every duration of every request


def join(number: int, instance: str | None) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=f"group-{number}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )


def fetch(_number: int) -> FetchRequest:
    partition = FetchPartition(fetch_offset=0, partition_max_bytes=1000)
    topic = FetchTopic(topic="empty", partitions=[partition])
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=[topic])


def commit(number: int) -> OffsetCommitRequest:
    topic = OffsetCommitRequestTopic(name="empty", partitions=[OffsetCommitRequestPartition(committed_offset=0)])
    return OffsetCommitRequest(group_id=f"commits-{number}", topics=[topic])


PLAUSIBLE: dict[int, list[tuple[int, Callable[[int], Message]]]] = {
    0: [(9, lambda number: produce("t", build_batch([Record(0, number, None, b"value")])))],
    1: [(11, fetch)],
    2: [
        (
            10,
            lambda _number: ListOffsetsRequest(
                replica_id=-1,
                topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=-1)])],
            ),
        )
    ],
    8: [(4, commit)],
    11: [
        (3, lambda number: join(number, None)),
        (4, lambda number: join(number, None)),
        (9, lambda number: join(number, "instance")),
    ],
    19: [
        (
            5,
            lambda number: CreateTopicsRequest(
                topics=[CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=1)]
            ),
        )
    ],
    20: [(3, lambda number: DeleteTopicsRequest(topic_names=[f"new-{number}"]))],
    21: [
        (
            2,
            lambda _number: DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(offset=-1)])]
            ),
        )
    ],
    22: [(4, lambda number: InitProducerIdRequest(transactional_id=f"id-{number}"))],
    37: [(3, lambda number: CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2 + number)]))],
    38: [(3, lambda _number: CreateDelegationTokenRequest())],
    39: [(2, lambda _number: RenewDelegationTokenRequest())],
    40: [(2, lambda _number: ExpireDelegationTokenRequest())],
    43: [(2, lambda _number: ElectLeadersRequest(topic_partitions=None))],
    45: [(1, lambda _number: AlterPartitionReassignmentsRequest())],
    46: [(0, lambda _number: ListPartitionReassignmentsRequest())],
    66: [(1, lambda _number: ListTransactionsRequest())],
}
"""Requests that get as far as their durations, with the version, by API key; each is told its own number. (Those of
delegation tokens do so on a listener of SASL.)"""


def time_fields(key: int) -> Iterator[Field]:
    """The fields of a request that are durations, by their names."""
    for field in messages.api(key).request_class.FIELDS:
        kind = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(kind, str):
            if kind in GREATEST and TIME_FIELD.search(field.name):
                yield field
        else:
            assert not [inner for inner in kind.FIELDS if TIME_FIELD.search(inner.name)], "look deeper, too"


def test_a25_every_api_with_durations_is_tried() -> None:
    served = {key for key in served_apis() if list(time_fields(key))}
    assert served == set(PLAUSIBLE)
    for key, requests in PLAUSIBLE.items():
        assert all(load_handler(key).min_version <= version <= load_handler(key).max_version for version, _ in requests)
        for field in time_fields(key):
            assert any(field.exists_in(version) for version, _ in requests), field


def extreme_requests() -> Iterator[tuple[str, bytes]]:
    """A name and a frame for every duration of every request at its extremes."""
    number = 0
    for key, requests in PLAUSIBLE.items():
        for version, request_of in requests:
            for field in time_fields(key):
                if not field.exists_in(version):
                    continue
                greatest = GREATEST[str(field.type)]
                for value in (-greatest - 1, -1, 0, 1, greatest):
                    number += 1
                    request = request_of(number)
                    setattr(request, field.name, value)
                    yield f"{type(request).__name__} v{version} {field.name}={value}", frame(request, version)


def spins(process: BarnabasProcess, frames: list[bytes], is_timed: bool = True) -> bool:
    """Whether the broker spins while these requests wait for their answers, or after their clients have gone; where
    that is not judged, they are only sent."""
    with ExitStack() as stack:
        for data in frames:
            stack.enter_context(connect(process.bootstrap_servers)).sendall(data)
        if is_timed and processor_share(process.pid) >= SPINNING:
            return True
    return is_timed and processor_share(process.pid) >= SPINNING


def prepare(process: BarnabasProcess) -> None:
    create_topic(process.bootstrap_servers, "t")
    create_topic(process.bootstrap_servers, "empty")
    await_coordinator(process, "group")


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("broker", [{}, WIDE_OPEN], indirect=True, ids=["defaults", "wide open"])
def test_a25_durations_of_requests_at_their_extremes(broker: BarnabasProcess, is_timed: bool) -> None:
    """All at once beside a healthy client, which gets answers as beside any short attack."""
    prepare(broker)
    requests = dict(extreme_requests())
    assert not spins(broker, list(requests.values()), is_timed), "the full size names it"
    with HealthyClient(broker.bootstrap_servers, rate=20) as client:
        assert spins(broker, list(requests.values()), is_timed) is False
        client.settle()
        assert client.errors == []
        assert client.gap_ms <= SHORT.gap_ms or not is_timed, client.figures


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("broker", [WIDE_OPEN], indirect=True)
def test_a25_each_duration_of_a_request_by_itself(broker: BarnabasProcess) -> None:
    prepare(broker)
    assert [name for name, data in extreme_requests() if spins(broker, [data])] == []
