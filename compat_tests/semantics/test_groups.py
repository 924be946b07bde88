"""The classic group protocol, request by request."""

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from compat_tests.semantics.client import Connection, wait_until
from tools.waiting import PATIENCE_S

Connect = Callable[[], Connection]

NONE = 0
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
MEMBER_ID_REQUIRED = 79
FENCED_INSTANCE_ID = 82


def subscription(text: bytes) -> bytes:
    """A consumer's subscription (version 0) to one topic, told from others by its user data."""
    return struct.pack(">hih", 0, 1, 5) + b"topic" + struct.pack(">i", len(text)) + text


USUAL = subscription(b"usual")


@pytest.fixture(autouse=True)
def _coordinator(connection: Connection, group: str) -> None:
    """The group's coordinator answers: before its first use Kafka creates the offsets topic and loads it."""

    def ready() -> bool:
        found = connection.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0].error_code == 0
        request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
        return found and connection.ask(request, 4).error_code == UNKNOWN_MEMBER_ID

    wait_until(ready)


class Member:
    """One member of a group: what it was told, and the requests it may send."""

    def __init__(self, connection: Connection, group: str, *, instance: str | None = None) -> None:
        self.connection = connection
        self.group = group
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.leader = ""

    def join_request(self, **fields: Any) -> JoinGroupRequest:
        protocols = fields.pop("protocols", {"range": USUAL})
        base: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        }
        return JoinGroupRequest(**{**base, **fields})

    def send_join(self, version: int = 9, **fields: Any) -> None:
        """Send a join; an id that is required first is fetched first."""
        if not self.id and not self.instance and version >= 4:
            self.id = self.connection.ask(self.join_request(**fields), version).member_id
        self.connection.send(self.join_request(**fields), version)

    def joined(self) -> Any:
        """Wait for the answer to the join that was sent."""
        response = self.connection.receive()
        if response.error_code == NONE:
            self.id, self.generation, self.leader = response.member_id, response.generation_id, response.leader
        return response

    def join(self, version: int = 9, **fields: Any) -> Any:
        self.send_join(version, **fields)
        return self.joined()

    def sync_request(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> SyncGroupRequest:
        base: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        }
        return SyncGroupRequest(**{**base, **fields})

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        return self.connection.ask(self.sync_request(assignments, **fields), 5)

    def heartbeat(self, **fields: Any) -> int:
        base: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        return int(self.connection.ask(HeartbeatRequest(**{**base, **fields}), 4).error_code)

    def leave(self) -> int:
        identity = MemberIdentity(member_id=self.id, group_instance_id=self.instance)
        response = self.connection.ask(LeaveGroupRequest(group_id=self.group, members=[identity]), 5)
        return int(response.error_code or response.members[0].error_code)


MakeMember = Callable[..., Member]


@pytest.fixture
def make_member(connect: Connect, group: str) -> MakeMember:
    return lambda **fields: Member(connect(), group, **fields)


def stable_pair(make_member: MakeMember) -> tuple[Member, Member]:
    """A leader and a follower in a stable group."""
    leader, follower = make_member(), make_member()
    leader.join()
    leader.sync({leader.id: b"all"})
    follower.send_join()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    leader.join()
    follower.joined()
    leader.sync({leader.id: b"first", follower.id: b"second"})
    assert follower.sync().assignment == b"second"
    return leader, follower


def test_a_member_gets_an_id_first(make_member: MakeMember) -> None:
    member = make_member()
    refused = member.connection.ask(member.join_request(), 9)
    assert (refused.error_code, refused.generation_id, refused.members) == (MEMBER_ID_REQUIRED, -1, [])
    assert refused.member_id
    member.id = refused.member_id
    joined = member.join()
    assert (joined.error_code, joined.member_id, joined.leader) == (NONE, member.id, member.id)
    assert (joined.generation_id, joined.protocol_type, joined.protocol_name) == (1, "consumer", "range")
    assert [(entry.member_id, entry.metadata) for entry in joined.members] == [(member.id, USUAL)]
    assert joined.skip_assignment is False


@pytest.mark.parametrize("version", range(4))
def test_older_versions_get_in_without_an_id(make_member: MakeMember, version: int) -> None:
    joined = make_member().join(version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (NONE, 1, "range")
    assert joined.member_id == joined.leader != ""


def test_member_ids_start_with_the_client_id(make_member: MakeMember) -> None:
    member = make_member()
    member.join()
    assert member.id.startswith("semantics-")
    static = make_member(instance="instance")
    static.group += "-static"
    static.join()
    assert static.id.startswith("instance-")


@pytest.mark.parametrize("timeout_ms", [5999, 1_800_001, 0, -1])
def test_session_timeouts_out_of_bounds(make_member: MakeMember, timeout_ms: int) -> None:
    member = make_member()
    refused = member.connection.ask(member.join_request(session_timeout_ms=timeout_ms), 9)
    assert (refused.error_code, refused.generation_id) == (INVALID_SESSION_TIMEOUT, -1)


def test_joins_that_are_refused(make_member: MakeMember, group: str) -> None:
    member = make_member()
    ask = member.connection.ask
    assert ask(member.join_request(group_id=""), 9).error_code == INVALID_GROUP_ID
    assert ask(member.join_request(member_id="unknown"), 9).error_code == UNKNOWN_MEMBER_ID
    assert ask(member.join_request(protocols={}), 9).error_code == INCONSISTENT_GROUP_PROTOCOL
    assert ask(member.join_request(protocol_type=""), 9).error_code == INCONSISTENT_GROUP_PROTOCOL
    member.join()
    member.sync({})
    other = make_member()
    assert (
        other.connection.ask(other.join_request(protocols={"other": USUAL}), 9).error_code
        == INCONSISTENT_GROUP_PROTOCOL
    )
    assert (
        other.connection.ask(other.join_request(protocol_type="connect"), 9).error_code == INCONSISTENT_GROUP_PROTOCOL
    )
    assert other.connection.ask(other.join_request(member_id="unknown"), 9).error_code == UNKNOWN_MEMBER_ID
    assert member.heartbeat() == NONE


def test_the_common_protocol_with_most_votes_is_chosen(make_member: MakeMember) -> None:
    leader, follower = make_member(), make_member()
    leader.join(protocols={"a": subscription(b"1"), "b": subscription(b"2"), "c": subscription(b"3")})
    leader.sync({}, protocol_name="a")
    follower.send_join(protocols={"c": subscription(b"4"), "b": subscription(b"5")})
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    told = leader.join(protocols={"b": subscription(b"2"), "c": subscription(b"3")})
    assert follower.joined().protocol_name == told.protocol_name
    assert told.protocol_name in ("b", "c")
    texts = {"b": (b"2", b"5"), "c": (b"3", b"4")}[told.protocol_name]
    assert {entry.metadata for entry in told.members} == {subscription(text) for text in texts}


def test_only_the_leader_is_told_the_members(make_member: MakeMember) -> None:
    leader, follower = make_member(), make_member()
    assert len(leader.join().members) == 1
    leader.sync({})
    follower.send_join()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    told = leader.join()
    other = follower.joined()
    assert {entry.member_id for entry in told.members} == {leader.id, follower.id}
    assert (other.members, other.leader, other.generation_id) == ([], leader.id, told.generation_id)
    assert told.generation_id == 2


def test_followers_wait_for_the_leaders_assignment(make_member: MakeMember) -> None:
    leader, follower = make_member(), make_member()
    leader.join()
    leader.sync({})
    follower.send_join()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    leader.join()
    follower.joined()
    follower.connection.send(follower.sync_request(), 5)
    assert follower.connection.is_silent(0.3)
    assert leader.heartbeat() == NONE  # while assignments are awaited heartbeats are well
    answer = leader.sync({leader.id: b"one", follower.id: b"two"})
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (b"one", "consumer", "range")
    assert follower.connection.receive().assignment == b"two"
    assert follower.sync().assignment == b"two"  # a repeated sync in a stable group
    assert leader.sync({leader.id: b"ignored"}).assignment == b"one"


def test_syncs_that_are_refused(make_member: MakeMember) -> None:
    member = make_member()
    member.join()
    assert member.sync(member_id="unknown").error_code == UNKNOWN_MEMBER_ID
    assert member.sync(generation_id=7).error_code == ILLEGAL_GENERATION
    assert member.sync(protocol_name="other").error_code == INCONSISTENT_GROUP_PROTOCOL
    assert member.sync(protocol_type="connect").error_code == INCONSISTENT_GROUP_PROTOCOL
    assert member.sync(group_id="").error_code == INVALID_GROUP_ID
    assert member.sync(group_id=member.group + "-absent").error_code == UNKNOWN_MEMBER_ID
    assert member.sync({member.id: b"x"}).error_code == NONE


def test_heartbeats(make_member: MakeMember) -> None:
    leader, follower = make_member(), make_member()
    leader.join()
    leader.sync({})
    assert leader.heartbeat() == NONE
    assert leader.heartbeat(generation_id=9) == ILLEGAL_GENERATION
    assert leader.heartbeat(member_id="unknown") == UNKNOWN_MEMBER_ID
    assert leader.heartbeat(group_id=leader.group + "-absent") == UNKNOWN_MEMBER_ID
    assert leader.heartbeat(group_id="") == INVALID_GROUP_ID
    follower.send_join()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    assert leader.sync().error_code == REBALANCE_IN_PROGRESS
    leader.join()
    follower.joined()
    assert leader.heartbeat(generation_id=1) == ILLEGAL_GENERATION
    assert [leader.heartbeat(), follower.heartbeat()] == [NONE, NONE]


def test_joins_again_in_a_stable_group(make_member: MakeMember) -> None:
    leader, follower = stable_pair(make_member)
    # An unchanged follower is told the current generation at once.
    again = follower.join()
    assert (again.error_code, again.generation_id, again.leader) == (NONE, leader.generation, leader.id)
    assert leader.heartbeat() == NONE
    # A leader that joins again starts a rebalance.
    leader.send_join()
    wait_until(lambda: follower.heartbeat() == REBALANCE_IN_PROGRESS)
    generation = follower.generation
    follower.join()
    assert leader.joined().generation_id == generation + 1
    leader.sync({leader.id: b"a", follower.id: b"b"})
    follower.sync()
    # So does a follower with another subscription.
    follower.send_join(protocols={"range": subscription(b"other topics")})
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    told = leader.join()
    assert subscription(b"other topics") in {entry.metadata for entry in told.members}
    assert follower.joined().error_code == NONE


def test_leaving(make_member: MakeMember) -> None:
    leader, follower = stable_pair(make_member)
    assert follower.leave() == NONE
    assert follower.heartbeat() == UNKNOWN_MEMBER_ID
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    assert len(leader.join().members) == 1
    assert follower.leave() == UNKNOWN_MEMBER_ID
    assert leader.leave() == NONE


@pytest.mark.parametrize("version", [0, 1, 2])
def test_leaving_in_older_versions(make_member: MakeMember, version: int) -> None:
    member = make_member()
    member.join()
    request = LeaveGroupRequest(group_id=member.group, member_id=member.id)
    assert member.connection.ask(request, version).error_code == NONE
    assert member.connection.ask(request, version).error_code == UNKNOWN_MEMBER_ID


def test_members_leave_in_a_batch(make_member: MakeMember) -> None:
    static = make_member(instance="kept")
    static.join()
    static.sync({})
    request = LeaveGroupRequest(
        group_id=static.group,
        members=[
            MemberIdentity(member_id="nobody", group_instance_id=None),
            MemberIdentity(member_id="wrong", group_instance_id="kept"),
            MemberIdentity(member_id="", group_instance_id="absent"),
            MemberIdentity(member_id="", group_instance_id="kept"),
        ],
    )
    response = static.connection.ask(request, 5)
    assert response.error_code == NONE
    assert [entry.error_code for entry in response.members] == [
        UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID,
        UNKNOWN_MEMBER_ID,
        NONE,
    ]
    assert static.heartbeat() == UNKNOWN_MEMBER_ID


def test_a_dead_member_is_dropped_from_a_rebalance(make_member: MakeMember) -> None:
    leader, silent = make_member(), make_member()
    leader.join(rebalance_timeout_ms=3000)
    leader.sync({})
    silent.send_join(rebalance_timeout_ms=3000)
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    leader.join(rebalance_timeout_ms=3000)
    silent.joined()
    leader.sync({leader.id: b"", silent.id: b""})
    told = leader.join(rebalance_timeout_ms=3000)
    assert [entry.member_id for entry in told.members] == [leader.id]
    assert silent.heartbeat() == UNKNOWN_MEMBER_ID


def test_a_session_ends_without_heartbeats(make_member: MakeMember) -> None:
    leader = beside_a_silent_member(make_member)
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    assert [entry.member_id for entry in leader.join().members] == [leader.id]


@pytest.mark.full
@pytest.mark.alone
def test_a_session_lasts_as_long_as_was_asked_for(make_member: MakeMember) -> None:
    leader = beside_a_silent_member(make_member)
    started = time.monotonic()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    assert 4 < time.monotonic() - started < 11


def beside_a_silent_member(make_member: MakeMember) -> Any:
    """The leader of a group whose other member is heard of no more; its session takes six seconds."""
    leader, silent = make_member(), make_member()
    leader.join(session_timeout_ms=6000)
    leader.sync({})
    silent.send_join(session_timeout_ms=6000)
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    leader.join(session_timeout_ms=6000)
    silent.joined()
    leader.sync({leader.id: b"", silent.id: b""})
    silent.sync()
    return leader


def test_a_static_member_returns_under_a_new_id(make_member: MakeMember) -> None:
    leader, follower = make_member(instance="one"), make_member(instance="two")
    leader.join()
    leader.sync({})
    follower.send_join()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    told = leader.join()
    follower.joined()
    assert {entry.group_instance_id for entry in told.members} == {"one", "two"}
    leader.sync({leader.id: b"first", follower.id: b"second"})
    follower.sync()
    returned = make_member(instance="two")
    joined = returned.join()
    assert (joined.error_code, joined.generation_id, joined.leader) == (NONE, leader.generation, leader.id)
    assert returned.id != follower.id
    assert returned.sync().assignment == b"second"
    assert leader.heartbeat() == NONE  # nobody had to rebalance
    assert follower.heartbeat() == FENCED_INSTANCE_ID
    assert follower.sync().error_code == FENCED_INSTANCE_ID
    refused = follower.connection.ask(follower.join_request(), 9)
    assert refused.error_code == FENCED_INSTANCE_ID
    assert follower.leave() == FENCED_INSTANCE_ID
    assert returned.heartbeat() == NONE


def test_the_id_of_a_static_member_is_of_no_other_instance(make_member: MakeMember) -> None:
    """Nor does a join without an instance take the place of the one that has the id."""
    member = make_member(instance="one")
    member.join()
    member.sync({member.id: b"first"})
    other = make_member(instance="two")
    other.id = member.id
    assert other.join().error_code == UNKNOWN_MEMBER_ID
    assert member.heartbeat() == NONE
    nameless = make_member()
    nameless.id = member.id
    assert (nameless.join().error_code, nameless.id) == (NONE, member.id)
    nameless.sync({nameless.id: b"second"})
    returned = make_member(instance="one")
    assert returned.join().error_code == NONE
    assert returned.id != member.id
    assert returned.sync().assignment == b"second"
    assert member.heartbeat(generation_id=returned.generation) == FENCED_INSTANCE_ID
    assert returned.leave() == NONE
    assert make_member(instance="one").join().error_code == NONE


def test_a_static_leader_returns_and_need_not_assign(make_member: MakeMember) -> None:
    leader = make_member(instance="leader")
    leader.join()
    leader.sync({leader.id: b"mine"})
    returned = make_member(instance="leader")
    joined = returned.join()
    assert (joined.error_code, joined.generation_id, joined.skip_assignment) == (NONE, leader.generation, True)
    assert (joined.leader, joined.member_id) == (returned.id, returned.id)
    assert len(joined.members) == 1
    assert returned.sync({}).assignment == b"mine"
    older = make_member(instance="leader")
    joined = older.join(version=8)
    assert (joined.error_code, joined.members) == (NONE, [])
    assert joined.leader == returned.id != older.id  # the old leader's name, so that it does not assign


def test_a_static_member_with_another_subscription_rebalances(make_member: MakeMember) -> None:
    leader, follower = make_member(instance="one"), make_member(instance="two")
    leader.join()
    leader.sync({})
    follower.send_join()
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    leader.join()
    follower.joined()
    leader.sync({leader.id: b"", follower.id: b""})
    returned = make_member(instance="two")
    returned.send_join(protocols={"roundrobin": subscription(b"x"), "range": subscription(b"changed")})
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS or returned.connection.has_answer(0.01))
    if not returned.connection.has_answer(0.01):
        leader.join()
    assert returned.joined().error_code == NONE


def test_groups_are_described(make_member: MakeMember) -> None:
    leader, follower = stable_pair(make_member)
    for version in range(7):
        request = DescribeGroupsRequest(groups=[leader.group, leader.group + "-absent"])
        # Kafka answers by the partitions of __consumer_offsets, in no order of ours.
        answers = {entry.group_id: entry for entry in leader.connection.ask(request, version).groups}
        assert answers.keys() == set(request.groups)
        described, absent = (answers[group] for group in request.groups)
        assert (described.error_code, described.group_state) == (NONE, "Stable")
        assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
        members = {entry.member_id: entry for entry in described.members}
        assert members[leader.id].member_assignment == b"first"
        assert members[follower.id].member_assignment == b"second"
        assert {entry.member_metadata for entry in described.members} == {USUAL}
        assert {(entry.client_id, entry.client_host) for entry in described.members} == {("semantics", "/127.0.0.1")}
        assert (absent.group_state, absent.members) == ("Dead", [])
        assert absent.error_code == (GROUP_ID_NOT_FOUND if version >= 6 else NONE)
    follower.send_join(protocols={"range": subscription(b"changed")})
    wait_until(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    (described,) = leader.connection.ask(DescribeGroupsRequest(groups=[leader.group]), 5).groups
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    leader.join()
    follower.joined()
    (described,) = leader.connection.ask(DescribeGroupsRequest(groups=[leader.group]), 5).groups
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")


def test_groups_are_listed_and_filtered(make_member: MakeMember) -> None:
    member = make_member()
    member.join()
    member.sync({})

    def listed(version: int, **filters: Any) -> dict[str, tuple[str, str, str]]:
        response = member.connection.ask(ListGroupsRequest(**filters), version)
        assert response.error_code == NONE
        return {entry.group_id: (entry.protocol_type, entry.group_state, entry.group_type) for entry in response.groups}

    assert listed(0)[member.group][0] == "consumer"
    assert listed(4)[member.group] == ("consumer", "Stable", "")
    assert listed(5)[member.group] == ("consumer", "Stable", "classic")
    assert member.group in listed(4, states_filter=["Stable"])
    assert member.group in listed(4, states_filter=["stable", "Empty"])
    assert member.group not in listed(4, states_filter=["Empty"])
    assert listed(4, states_filter=["NoSuchState"]) == {}
    assert member.group in listed(5, types_filter=["classic"])
    assert member.group not in listed(5, types_filter=["consumer"])


def test_groups_are_deleted(make_member: MakeMember) -> None:
    member = make_member()
    member.join()
    member.sync({})

    def delete(*groups: str) -> dict[str, int]:
        response = member.connection.ask(DeleteGroupsRequest(groups_names=list(groups)), 2)
        return {entry.group_id: entry.error_code for entry in response.results}

    absent = member.group + "-absent"
    assert delete(member.group, absent) == {member.group: NON_EMPTY_GROUP, absent: GROUP_ID_NOT_FOUND}
    member.leave()
    assert delete(member.group) == {member.group: NONE}
    assert delete(member.group) == {member.group: GROUP_ID_NOT_FOUND}


def test_a_new_generation_follows_an_emptied_group(make_member: MakeMember) -> None:
    member = make_member()
    member.join()
    member.sync({})
    generation = member.generation
    member.leave()
    second = make_member()
    assert second.join().generation_id > generation


def test_ten_members_join_at_once(make_member: MakeMember) -> None:
    members = [make_member() for _ in range(10)]
    for member in members:
        member.send_join()
    responses: dict[str, Any] = {}
    pending = list(members)
    deadline = time.monotonic() + PATIENCE_S
    # The first may have to join again for the others: as real members do on REBALANCE_IN_PROGRESS.
    while pending and time.monotonic() < deadline:
        for member in list(pending):
            if not member.connection.has_answer(0.05):
                continue
            responses[member.id] = member.joined()
            pending.remove(member)
        for member in members:
            if member not in pending and member.heartbeat() == REBALANCE_IN_PROGRESS:
                member.send_join()
                pending.append(member)
    assert {response.error_code for response in responses.values()} == {NONE}
    assert len({response.generation_id for response in responses.values()}) == 1
    (leader,) = [response for response in responses.values() if response.members]
    assert {entry.member_id for entry in leader.members} == {member.id for member in members}
