"""OffsetCommit, OffsetFetch and OffsetDelete: who may, in which state, and what is answered."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from barnabas.wire.messages import offset_fetch
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest
from compat_tests.semantics.client import Connection
from tools.waiting import wait_until

Connect = Callable[[], Connection]

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_METADATA_TOO_LARGE = 12
ILLEGAL_GENERATION = 22
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86


@pytest.fixture(autouse=True)
def _coordinator(connection: Connection, group: str) -> None:
    """The group's coordinator answers."""

    def ready() -> bool:
        found = connection.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0].error_code == 0
        request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
        return found and connection.ask(request, 4).error_code == UNKNOWN_MEMBER_ID

    wait_until(ready)


def commit(connection: Connection, group: str, topic: str, offset: int, **fields: Any) -> int:
    """Commit an offset of one partition and return the error."""
    version = fields.pop("version", 9)
    partition = OffsetCommitRequestPartition(
        partition_index=fields.pop("partition", 0),
        committed_offset=offset,
        committed_metadata=fields.pop("metadata", ""),
        committed_leader_epoch=fields.pop("leader_epoch", -1),
    )
    base: dict[str, Any] = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    }
    response = connection.ask(OffsetCommitRequest(**{**base, **fields}), version)
    return int(response.topics[0].partitions[0].error_code)


def fetch_all(connection: Connection, group: str, version: int = 7) -> dict[tuple[str, int], tuple[int, str]]:
    """Every committed (offset, metadata) of a group."""
    if version < 8:
        response = connection.ask(offset_fetch.OffsetFetchRequest(group_id=group, topics=None), version)
        topics, error = response.topics, response.error_code
    else:
        wanted = [offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None)]
        (answer,) = connection.ask(offset_fetch.OffsetFetchRequest(groups=wanted), version).groups
        topics, error = answer.topics, answer.error_code
    assert error == NONE
    return {
        (topic.name, part.partition_index): (part.committed_offset, part.metadata)
        for topic in topics
        for part in topic.partitions
    }


def fetch_one(connection: Connection, group: str, topic: str, version: int, partition: int = 0) -> Any:
    """The answer for one partition."""
    if version < 8:
        wanted = [offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        response = connection.ask(offset_fetch.OffsetFetchRequest(group_id=group, topics=wanted), version)
        assert response.error_code == NONE
        return response.topics[0].partitions[0]
    entry = offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=[entry])]
    (answer,) = connection.ask(offset_fetch.OffsetFetchRequest(groups=groups), version).groups
    assert (answer.group_id, answer.error_code) == (group, NONE)
    return answer.topics[0].partitions[0]


class Member:
    """The only member of a group, subscribed to some topics."""

    def __init__(self, connection: Connection, group: str, topics: Sequence[str] = ()) -> None:
        self.connection, self.group, self.topics = connection, group, topics
        self.id = self.send_join_and_wait(3)
        self.generation = 1

    def request(self, member_id: str = "") -> JoinGroupRequest:
        names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in self.topics)
        subscription = struct.pack(">hi", 0, len(self.topics)) + names + struct.pack(">i", -1)
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )

    def send_join_and_wait(self, version: int) -> str:
        response = self.connection.ask(self.request(), version)
        assert response.error_code == NONE
        return str(response.member_id)

    def sync(self) -> None:
        request = SyncGroupRequest(group_id=self.group, generation_id=self.generation, member_id=self.id)
        assert self.connection.ask(request, 3).error_code == NONE

    def leave(self) -> None:
        identity = MemberIdentity(member_id=self.id, group_instance_id=None)
        assert self.connection.ask(LeaveGroupRequest(group_id=self.group, members=[identity]), 4).error_code == NONE

    def commit(self, topic: str, offset: int, **fields: Any) -> int:
        base = {"generation_id_or_member_epoch": self.generation, "member_id": self.id}
        return commit(self.connection, self.group, topic, offset, **{**base, **fields})


@pytest.mark.parametrize("version", range(2, 10))
def test_commit_in_every_version(connection: Connection, topic: str, group: str, version: int) -> None:
    assert commit(connection, group, topic, 5, metadata="note — ½", leader_epoch=0, version=version) == NONE
    assert fetch_all(connection, group) == {(topic, 0): (5, "note — ½")}


@pytest.mark.parametrize("version", range(1, 10))
def test_fetch_in_every_version(connection: Connection, topic: str, group: str, version: int) -> None:
    nothing = fetch_one(connection, group, topic, version)
    assert (nothing.committed_offset, nothing.committed_leader_epoch) == (-1, -1)
    assert (nothing.metadata, nothing.error_code) == ("", NONE)
    assert commit(connection, group, topic, 5, metadata="note", leader_epoch=3) == NONE
    found = fetch_one(connection, group, topic, version)
    assert (found.committed_offset, found.metadata, found.error_code) == (5, "note", NONE)
    assert found.committed_leader_epoch == (3 if version >= 5 else -1)
    if version >= 2:
        assert fetch_all(connection, group, version) == {(topic, 0): (5, "note")}


def test_fetch_of_many_groups(connection: Connection, topic: str, group: str) -> None:
    commit(connection, group, topic, 5)
    groups = [
        offset_fetch.OffsetFetchRequestGroup(
            group_id=group, topics=[offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
        ),
        offset_fetch.OffsetFetchRequestGroup(group_id=group + "-absent", topics=None),
        offset_fetch.OffsetFetchRequestGroup(group_id=group + "-empty", topics=[]),
    ]
    answers = connection.ask(offset_fetch.OffsetFetchRequest(groups=groups, require_stable=True), 8).groups
    found = {answer.group_id: answer for answer in answers}
    assert {answer.error_code for answer in answers} == {NONE}
    assert [(part.partition_index, part.committed_offset) for part in found[group].topics[0].partitions] == [
        (0, 5),
        (1, -1),
    ]
    assert found[group + "-absent"].topics == found[group + "-empty"].topics == []


def test_a_topic_without_partitions_is_left_out_if_it_exists(connection: Connection, topic: str, group: str) -> None:
    nothing = OffsetCommitRequestTopic(name=topic, partitions=[])
    unknown = OffsetCommitRequestTopic(name=f"{topic}-unknown", partitions=[])
    one = OffsetCommitRequestTopic(
        name=topic, partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    )
    for topics, answered in ([nothing], []), ([unknown], [unknown]), ([nothing, unknown, one], [one, unknown]):
        request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
        names = sorted(topic.name for topic in connection.ask(request, 9).topics)
        assert names == sorted(topic.name for topic in answered)


def test_unknown_topics(connection: Connection, topic: str, topic_name: str, group: str) -> None:
    assert commit(connection, group, topic_name, 1) == UNKNOWN_TOPIC_OR_PARTITION
    assert commit(connection, group, topic, 1, partition=9) == UNKNOWN_TOPIC_OR_PARTITION
    assert fetch_all(connection, group) == {}
    missing = fetch_one(connection, group, topic_name, 7)
    assert (missing.committed_offset, missing.error_code) == (-1, NONE)


def test_good_and_bad_entries_of_one_commit(connection: Connection, topic: str, topic_name: str, group: str) -> None:
    def entry(index: int, metadata: str | None = "") -> OffsetCommitRequestPartition:
        return OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata=metadata)

    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(name=topic, partitions=[entry(0), entry(5)]),
            OffsetCommitRequestTopic(name=topic_name, partitions=[entry(0)]),
        ],
    )
    codes = {
        (answered.name, part.partition_index): part.error_code
        for answered in connection.ask(request, 8).topics
        for part in answered.partitions
    }
    assert codes == {(topic, 0): NONE, (topic, 5): 3, (topic_name, 0): 3}
    assert fetch_all(connection, group) == {(topic, 0): (7, "")}


def test_metadata_may_have_4096_characters_or_be_null(connection: Connection, topic: str, group: str) -> None:
    assert commit(connection, group, topic, 1, metadata="x" * 4096) == NONE
    assert commit(connection, group, topic, 2, metadata="x" * 4097) == OFFSET_METADATA_TOO_LARGE
    assert fetch_all(connection, group) == {(topic, 0): (1, "x" * 4096)}
    assert commit(connection, group, topic, 3, metadata=None) == NONE
    assert fetch_all(connection, group) == {(topic, 0): (3, "")}


def test_commits_to_a_group_without_members(connection: Connection, topic: str, group: str) -> None:
    assert commit(connection, group, topic, 1) == NONE
    assert commit(connection, group, topic, 2, member_id="ghost", generation_id_or_member_epoch=0) in (
        UNKNOWN_MEMBER_ID,
        ILLEGAL_GENERATION,
    )
    absent = group + "-absent"
    assert commit(connection, absent, topic, 2, generation_id_or_member_epoch=3) == GROUP_ID_NOT_FOUND
    assert commit(connection, absent, topic, 2, generation_id_or_member_epoch=3, version=8) == ILLEGAL_GENERATION
    assert commit(connection, "", topic, 1) in (INVALID_GROUP_ID, NONE)
    (described,) = connection.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    assert (described.group_state, described.protocol_type) == ("Empty", "")


def test_commits_to_a_group_with_members(connect: Connect, connection: Connection, topic: str, group: str) -> None:
    member = Member(connection, group)
    stranger = connect()
    # Assignments are awaited: members have to come back later.
    assert member.commit(topic, 1) == REBALANCE_IN_PROGRESS
    member.sync()
    assert member.commit(topic, 2) == NONE
    assert member.commit(topic, 3, generation_id_or_member_epoch=9) == ILLEGAL_GENERATION
    assert member.commit(topic, 3, generation_id_or_member_epoch=-1) in (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID)
    assert member.commit(topic, 3, member_id="ghost") == UNKNOWN_MEMBER_ID
    assert commit(stranger, group, topic, 3) == UNKNOWN_MEMBER_ID
    assert member.commit(topic, 3, group_instance_id="absent") == UNKNOWN_MEMBER_ID
    # A rebalance is being prepared: what was processed may still be committed.
    stranger.send(member.request(), 3)
    request = HeartbeatRequest(group_id=group, generation_id=1, member_id=member.id)
    wait_until(lambda: bool(connection.ask(request, 3).error_code == REBALANCE_IN_PROGRESS))
    assert member.commit(topic, 4) == NONE
    assert fetch_all(connection, group) == {(topic, 0): (4, "")}


def test_offsets_survive_the_members(connection: Connection, topic: str, group: str) -> None:
    member = Member(connection, group)
    member.sync()
    assert member.commit(topic, 2) == NONE
    member.leave()
    assert fetch_all(connection, group) == {(topic, 0): (2, "")}
    assert commit(connection, group, topic, 8) == NONE
    assert fetch_all(connection, group) == {(topic, 0): (8, "")}


def delete_offsets(connection: Connection, group: str, *wanted: tuple[str, int]) -> tuple[int, dict[Any, int]]:
    """(error, {(topic, partition): error})."""
    topics = [
        OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
        for topic, partition in wanted
    ]
    response = connection.ask(OffsetDeleteRequest(group_id=group, topics=topics), 0)
    return response.error_code, {
        (topic.name, part.partition_index): part.error_code for topic in response.topics for part in topic.partitions
    }


def test_offsets_are_deleted(
    connection: Connection, ready_topic: Callable[..., str], topic_name: str, group: str
) -> None:
    subscribed, other = ready_topic(), ready_topic()
    assert delete_offsets(connection, group + "-absent", (other, 0)) == (GROUP_ID_NOT_FOUND, {})
    member = Member(connection, group, [subscribed])
    member.sync()
    for topic in (subscribed, other):
        assert member.commit(topic, 5) == NONE
    error, codes = delete_offsets(connection, group, (subscribed, 0), (other, 0), (topic_name, 0))
    assert (error, codes) == (
        NONE,
        {(subscribed, 0): GROUP_SUBSCRIBED_TO_TOPIC, (other, 0): NONE, (topic_name, 0): UNKNOWN_TOPIC_OR_PARTITION},
    )
    assert fetch_all(connection, group) == {(subscribed, 0): (5, "")}
    member.leave()
    assert delete_offsets(connection, group, (subscribed, 0)) == (NONE, {(subscribed, 0): NONE})
    assert fetch_all(connection, group) == {}


def test_offsets_of_a_deleted_topic_are_forgotten(
    connection: Connection, ready_topic: Callable[..., str], group: str
) -> None:
    gone, kept = ready_topic(), ready_topic()
    for topic in (gone, kept):
        assert commit(connection, group, topic, 5) == NONE
    request = DeleteTopicsRequest(topic_names=[gone], timeout_ms=20_000)
    assert connection.ask(request, 5).responses[0].error_code == NONE
    wait_until(lambda: fetch_all(connection, group) == {(kept, 0): (5, "")})
