"""The group APIs from request bytes to response bytes, at every version served, over a coordinator whose log is a
list.
"""

import asyncio
import tracemalloc
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, MetadataCache
from barnabas.broker.coordinators.groups.changes import OffsetRecord
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.handlers import load_handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.session import Session
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.security.operations import GROUP_OPERATIONS, NOT_ASKED
from barnabas.broker.services import REPLY_BYTES_MAX
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock, SystemClock
from barnabas.wire.codec import decode, encode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
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
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.record_batch import parse_header

NONE = ErrorCode.NONE


class ListLog:
    """A coordinator's log that keeps its batches and replicates when told to."""

    def __init__(self):
        self.batches = {}
        self.waiting = None
        self.readable = asyncio.Event()
        self.readable.set()

    def append(self, partition, batch):
        self.batches.setdefault(partition, []).append(batch)
        return sum(parse_header(each).record_count for each in self.batches[partition])

    def committed(self, partition, end_offset):
        return self.waiting

    async def read_all(self, partition, take):
        await self.readable.wait()
        for chunk in self.batches.get(partition, []):
            take(chunk)


TOPIC_IDS = {"t": b"T" * 16, "nowhere": b"N" * 16}
"""By name; the second one does not exist."""


def topic_name(topic):
    """The name of a topic in an answer, which may tell its id only."""
    return topic.name or {topic_id: name for name, topic_id in TOPIC_IDS.items()}[topic.topic_id]


class Server:
    """As much of a broker as the group handlers look at: topic `t` with two partitions, one listener with two
    addresses.
    """

    def __init__(self, reply_bytes_max=REPLY_BYTES_MAX):
        clock = ManualClock(now_ms=1_700_000_000_000)
        self.log = ListLog()
        timers = Timers(clock, asyncio.get_running_loop())
        ids = iter(range(1, 1000))
        settings = GroupSettings(group_initial_rebalance_delay_ms=0, barnabas_group_newcomer_delay_ms=0)
        self.groups = GroupService(self.log, timers, clock, settings, 4, lambda: str(next(ids)))
        self.metadata = MetadataCache()
        self.created = []
        self.services = SimpleNamespace(
            groups=self.groups,
            transactions=SimpleNamespace(runtime=SimpleNamespace(partition_for=lambda transactional_id: 3)),
            metadata=self.metadata,
            auto_topics=SimpleNamespace(create=self.created.extend, why_missing=lambda topic: None),
            disk_space=SimpleNamespace(complaint=lambda: None),
            unforeseen=UnforeseenErrors(SystemClock()),
            reply_bytes_max=reply_bytes_max,
            authorizer=None,
        )
        self.update("t", 2)

    def update(self, topic, partitions, leader=7):
        endpoints = [
            UpdateMetadataEndpoint(port=port, host=host, listener=listener)
            for listener, host, port in (("INSIDE", "10.0.0.1", 1), ("OUTSIDE", "example.org", 2))
        ]
        states = [
            UpdateMetadataPartitionState(partition_index=index, leader=leader, replicas=[7], isr=[7])
            for index in range(partitions)
        ]
        state = UpdateMetadataTopicState(topic_name=topic, topic_id=TOPIC_IDS["t"], partition_states=states)
        live = [UpdateMetadataBroker(id=7, endpoints=endpoints)]
        request = UpdateMetadataRequest(controller_id=7, live_brokers=live, topic_states=[state])
        with pytest.raises(StopIteration):  # so few partitions take no turn of the loop
            self.metadata.update(request).send(None)

    def ask(self, request, version, listener="OUTSIDE"):
        """Send a request through its bytes; returns a task for the response, likewise."""
        handler = load_handler(request.API_KEY)
        assert handler.min_version <= version <= handler.max_version
        request = decode(type(request), version, encode(request, version))
        session = Session(None, ListenerContext(listener), 1, client_host="10.9.8.7")
        context = RequestContext(self.services, session, request.API_KEY, version, 1, "client")

        async def answer():
            response = handler.handle(request, context)
            if asyncio.isfuture(response) or asyncio.iscoroutine(response):
                response = await response
            return decode(type(response), version, encode(response, version))

        return asyncio.ensure_future(answer())

    async def join(self, version=9, member_id="", group_id="g", instance=None):
        fields = {"group_instance_id": instance} if version >= 5 else {}
        response = await self.ask(join_request(member_id, group_id, **fields), version)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            response = await self.ask(join_request(response.member_id, group_id, **fields), version)
        return response

    async def stable_member(self, group_id="g", instance=None):
        joined = await self.join(group_id=group_id, instance=instance)
        assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"work")]
        await self.ask(sync_request(joined.member_id, assignments, group_id=group_id), 4)
        return joined.member_id


def versions_of(key):
    handler = load_handler(key)
    return range(handler.min_version, handler.max_version + 1)


def join_request(member_id="", group_id="g", **fields):
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"topics")],
        **fields,
    )


def sync_request(member_id, assignments=(), group_id="g", generation=1, **fields):
    return SyncGroupRequest(
        group_id=group_id, member_id=member_id, generation_id=generation, assignments=list(assignments), **fields
    )


def commit_request(*positions, **fields):
    topics = {}
    for topic, partition, offset in positions:
        each = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="m")
        topics.setdefault(topic, []).append(each)
    fields.setdefault("group_id", "g")
    return OffsetCommitRequest(
        topics=[
            OffsetCommitRequestTopic(name=topic, topic_id=TOPIC_IDS[topic], partitions=each)
            for topic, each in topics.items()
        ],
        **fields,
    )


def commit_errors(response):
    return {
        (topic_name(topic), partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


@asynccontextmanager
async def server(*, elect=True, **options):
    made = Server(**options)
    await made.groups.start()
    if elect:
        for partition in range(4):
            made.groups.runtime.on_elected(partition, 0)
        while work := made.groups.runtime.running():
            await asyncio.wait(work)
    try:
        yield made
    finally:
        await made.groups.stop()


def run(scenario, **options):
    async def main():
        async with server(**options) as made:
            await scenario(made)

    asyncio.run(main())


@pytest.mark.parametrize("version", versions_of(11))
def test_join_group(version):
    async def scenario(server):
        first = await server.ask(join_request(), version)
        if version >= 4:
            assert (first.error_code, first.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
            assert first.protocol_name == (None if version >= 7 else "")
            first = await server.ask(join_request(first.member_id), version)
        assert first.error_code == NONE
        assert (first.generation_id, first.leader, first.protocol_name) == (1, first.member_id, "range")
        assert first.protocol_type == ("consumer" if version >= 7 else None)
        assert first.member_id == "client-1"
        assert [(member.member_id, member.metadata) for member in first.members] == [("client-1", b"topics")]
        member = server.groups.describe("g").members[0]
        assert (member.client_id, member.client_host) == ("client", "/10.9.8.7")
        group = server.groups.runtime.runner("g").shard.groups["g"]
        # Version 0 has no rebalance timeout: its session timeout serves as one.
        assert group.rebalance_timeout_ms == (10_000 if version == 0 else 60_000)

    run(scenario)


def test_join_group_counts_a_protocol_once():
    async def scenario(server):
        request = join_request(group_instance_id="i")
        request.protocols.append(JoinGroupRequestProtocol(name="range", metadata=b"other"))
        response = await server.ask(request, 9)
        assert response.members[0].metadata == b"topics"
        assert server.groups.runtime.runner("g").shard.groups["g"].supporters == {"range": 1}

    run(scenario)


def test_waiting_joins_keep_only_what_the_group_keeps():
    async def scenario(server):
        async def kept_bytes(request):
            """Of a request that waits for other members, and its task."""
            before, _ = tracemalloc.get_traced_memory()
            waiting = server.ask(request, 3)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done()
            return tracemalloc.get_traced_memory()[0] - before, waiting

        leader_id = await server.stable_member()
        join = join_request()
        join.protocols.append(JoinGroupRequestProtocol(name="range", metadata=bytes(1_000_000)))
        tracemalloc.start()
        try:
            kept, joining = await kept_bytes(join)
            assert kept < 100_000
            await server.ask(join_request(leader_id), 3)
            follower_id = (await joining).member_id
            assignments = [SyncGroupRequestAssignment(member_id="x", assignment=bytes(1_000_000))]
            kept, syncing = await kept_bytes(sync_request(follower_id, assignments, generation=2))
            assert kept < 100_000
            await server.ask(sync_request(leader_id, generation=2), 3)
            assert (await syncing).error_code == NONE
        finally:
            tracemalloc.stop()

    run(scenario)


def test_join_group_tells_what_is_wrong():
    async def scenario(server):
        assert (await server.ask(join_request(group_id=""), 9)).error_code == ErrorCode.INVALID_GROUP_ID
        request = join_request()
        request.session_timeout_ms = 1
        assert (await server.ask(request, 9)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT

    run(scenario)


@pytest.mark.parametrize("version", versions_of(14))
def test_sync_group(version):
    async def scenario(server):
        member_id = (await server.join()).member_id
        fields = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"work")]
        response = await server.ask(sync_request(member_id, assignments, **fields), version)
        assert (response.error_code, response.assignment) == (NONE, b"work")
        expected = ("consumer", "range") if version >= 5 else (None, None)
        assert (response.protocol_type, response.protocol_name) == expected
        stale = await server.ask(sync_request(member_id, generation=9, **fields), version)
        assert (stale.error_code, stale.assignment) == (ErrorCode.ILLEGAL_GENERATION, b"")

    run(scenario)


def test_sync_group_names_its_protocol_from_version_5_on():
    async def scenario(server):
        member_id = await server.stable_member()
        response = await server.ask(sync_request(member_id, protocol_type="consumer"), 5)
        assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await server.ask(sync_request(member_id, group_id=""), 4)).error_code == ErrorCode.INVALID_GROUP_ID

    run(scenario)


@pytest.mark.parametrize("version", versions_of(12))
def test_heartbeat(version):
    async def scenario(server):
        member_id = await server.stable_member()
        for generation, error in ((1, NONE), (2, ErrorCode.ILLEGAL_GENERATION)):
            request = HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)
            assert (await server.ask(request, version)).error_code == error

    run(scenario)


def test_heartbeats_are_taken_for_good_while_the_shard_loads():
    async def scenario(server):
        request = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
        assert (await server.ask(request, 4)).error_code == ErrorCode.NOT_COORDINATOR
        server.log.readable.clear()
        server.groups.runtime.on_elected(server.groups.runtime.partition_for("g"), 0)
        assert (await server.ask(request, 4)).error_code == NONE
        assert (await server.ask(join_request(), 9)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        server.log.readable.set()

    run(scenario, elect=False)


@pytest.mark.parametrize("version", versions_of(13))
def test_leave_group(version):
    async def scenario(server):
        member_id = await server.stable_member()
        if version < 3:
            request = LeaveGroupRequest(group_id="g", member_id=member_id)
            assert (await server.ask(request, version)).error_code == NONE
            assert (await server.ask(request, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            return
        leavers = [MemberIdentity(member_id=member_id), MemberIdentity(member_id="", group_instance_id="i")]
        response = await server.ask(LeaveGroupRequest(group_id="g", members=leavers), version)
        assert response.error_code == NONE
        assert [(member.member_id, member.group_instance_id, member.error_code) for member in response.members] == [
            (member_id, None, NONE),
            ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
        ]
        empty = await server.ask(LeaveGroupRequest(group_id="", members=leavers), version)
        assert (empty.error_code, empty.members) == (ErrorCode.INVALID_GROUP_ID, [])

    run(scenario)


@pytest.mark.parametrize("version", versions_of(8))
def test_offset_commit_and_fetch(version):
    async def scenario(server):
        request = commit_request(("t", 0, 10), ("t", 5, 11), ("nowhere", 0, 12), ("t", 1, 13))
        response = await server.ask(request, version)
        assert commit_errors(response) == {
            ("t", 0): NONE,
            ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 1): NONE,
            ("nowhere", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID),
        }
        stored = server.groups.runtime.runner("g").shard.offsets
        assert stored.get("g", "t", 0).topic_id == b"T" * 16
        assert {(topic, partition): each.offset for topic, partition, each in stored.of_group("g")} == {
            ("t", 0): 10,
            ("t", 1): 13,
        }

    run(scenario)


def test_offset_commit_names_its_own_retention_until_version_4():
    async def scenario(server):
        await server.ask(commit_request(("t", 0, 1), retention_time_ms=1000), 4)
        committed = server.groups.runtime.runner("g").shard.offsets.get("g", "t", 0)
        assert committed.expire_at_ms == committed.commit_timestamp_ms + 1000

    run(scenario)


def test_offset_commit_tells_each_partition_what_is_wrong():
    async def scenario(server):
        request = commit_request(("t", 0, 1), ("nowhere", 0, 1), member_id="m", generation_id_or_member_epoch=3)
        for version, error in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
            assert commit_errors(await server.ask(request, version)) == {
                ("t", 0): error,
                ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
        nothing = await server.ask(commit_request(("nowhere", 0, 1)), 9)
        assert commit_errors(nothing) == {("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await server.groups.stop()
        assert commit_errors(await server.ask(commit_request(("t", 0, 1)), 9)) == {
            ("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE
        }

    run(scenario)


def test_offset_commit_answers_when_it_is_replicated():
    async def scenario(server):
        server.log.waiting = asyncio.get_running_loop().create_future()
        answer = server.ask(commit_request(("t", 0, 1)), 9)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not answer.done()
        server.log.waiting.set_result(None)
        assert commit_errors(await answer) == {("t", 0): NONE}

    run(scenario)


def fetch_request(version, partitions, **fields):
    if version >= 8:
        topics = None
        if partitions is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic, topic_id=TOPIC_IDS[topic], partition_indexes=each)
                for topic, each in partitions.items()
            ]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)], **fields)
    topics = None
    if partitions is not None:
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=each) for topic, each in partitions.items()]
    return OffsetFetchRequest(group_id="g", topics=topics, **fields)


def fetched(response, version):
    group = response.groups[0] if version >= 8 else response
    return group.error_code, {
        (topic.name if version < 10 else topic_name(topic), offset.partition_index): (
            offset.committed_offset, offset.committed_leader_epoch, offset.metadata, offset.error_code,
        )
        for topic in group.topics
        for offset in topic.partitions
    }  # fmt: skip


@pytest.mark.parametrize("version", versions_of(9))
def test_offset_fetch(version):
    async def scenario(server):
        asked = {"t": [0, 1], "nowhere": [0]}
        unknown = (-1, -1, "", NONE)
        nowhere = unknown if version < 10 else (-1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)
        response = await server.ask(fetch_request(version, asked), version)
        assert fetched(response, version) == (
            NONE,
            {("t", 0): unknown, ("t", 1): unknown, ("nowhere", 0): nowhere},
        )
        request = commit_request(("t", 0, 10))
        request.topics[0].partitions[0].committed_leader_epoch = 3
        await server.ask(request, 9)
        found = (10, 3 if version >= 5 else -1, "m", NONE)
        response = await server.ask(fetch_request(version, asked), version)
        assert fetched(response, version)[1] == {("t", 0): found, ("t", 1): unknown, ("nowhere", 0): nowhere}
        if version >= 2:
            assert fetched(await server.ask(fetch_request(version, None), version), version)[1] == {("t", 0): found}
            assert fetched(await server.ask(fetch_request(version, {}), version), version)[1] == {}
        if version >= 7:
            stable = await server.ask(fetch_request(version, asked, require_stable=True), version)
            assert fetched(stable, version)[1][("t", 0)] == found

    run(scenario)


def test_offsets_of_an_earlier_topic_are_not_found_by_id():
    """A topic that is gone has no offsets either; here those of an earlier one are still there."""

    async def scenario(server):
        await server.ask(commit_request(("t", 0, 10)), 9)
        offsets = server.groups.runtime.runner("g").shard.offsets
        for earlier_id, told in ((b"E" * 16, -1), (bytes(16), 10)):  # what 3.9 committed has no id
            committed = offsets.get("g", "t", 0)._replace(topic_id=earlier_id)
            offsets.apply(OffsetRecord("g", "t", 0, committed), 1)
            by_id = await server.ask(fetch_request(10, {"t": [0, 1]}, require_stable=True), 10)
            assert [offset for offset, *_ in fetched(by_id, 10)[1].values()] == [told, -1]
            by_name = await server.ask(fetch_request(9, {"t": [0]}), 9)
            assert [offset for offset, *_ in fetched(by_name, 9)[1].values()] == [10]

    run(scenario)


def test_a_groups_offsets_have_the_ids_of_existing_topics():
    async def scenario(server):
        await server.ask(commit_request(("t", 0, 10)), 10)
        offsets = server.groups.runtime.runner("g").shard.offsets
        offsets.apply(OffsetRecord("g", "gone", 0, offsets.get("g", "t", 0)), 1)
        response = await server.ask(fetch_request(10, None), 10)
        assert [topic.topic_id for topic in response.groups[0].topics] == [TOPIC_IDS["t"]]
        response = await server.ask(fetch_request(9, None), 9)
        assert [topic.name for topic in response.groups[0].topics] == ["t", "gone"]

    run(scenario)


def test_a_topic_id_of_nothing_is_unknown():
    async def scenario(server):
        request = commit_request(("t", 0, 10))
        request.topics[0].topic_id = bytes(16)
        committed = await server.ask(request, 10)
        asked = fetch_request(10, {"t": [0]})
        asked.groups[0].topics[0].topic_id = bytes(16)
        told = await server.ask(asked, 10)
        for answer in (committed.topics[0], told.groups[0].topics[0]):
            assert [each.error_code for each in answer.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(9))
def test_offset_fetch_without_coordinator(version):
    async def scenario(server):
        error, offsets = fetched(await server.ask(fetch_request(version, {"t": [0]}), version), version)
        if version < 2:
            assert (error, offsets) == (NONE, {("t", 0): (-1, -1, "", ErrorCode.NOT_COORDINATOR)})
        else:
            assert (error, offsets) == (ErrorCode.NOT_COORDINATOR, {})

    run(scenario, elect=False)


def test_offset_fetch_of_several_groups():
    async def scenario(server):
        await server.ask(commit_request(("t", 0, 1), group_id="a"), 9)
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in ("a", "b")]
        response = await server.ask(OffsetFetchRequest(groups=groups), 9)
        assert [(group.group_id, group.error_code, len(group.topics)) for group in response.groups] == [
            ("a", NONE, 1),
            ("b", NONE, 0),
        ]

    run(scenario)


def coordinators(response, version):
    if version >= 4:
        return [(each.key, each.error_code, each.node_id, each.host, each.port) for each in response.coordinators]
    return [("g", response.error_code, response.node_id, response.host, response.port)]


def find_request(version, key_type=0):
    fields = {"key_type": key_type} if version >= 1 else {}
    if version >= 4:
        return FindCoordinatorRequest(coordinator_keys=["g"], **fields)
    return FindCoordinatorRequest(key="g", **fields)


@pytest.mark.parametrize("version", versions_of(10))
@pytest.mark.parametrize(("key_type", "topic"), [(0, GROUP_METADATA_TOPIC), (1, TRANSACTION_STATE_TOPIC)])
def test_find_coordinator(version, key_type, topic):
    if version == 0 and key_type:
        return  # it knows groups only

    async def scenario(server):
        request = find_request(version, key_type) if key_type else find_request(version)
        response = await server.ask(request, version)
        assert coordinators(response, version) == [("g", ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)]
        assert server.created == [topic]
        server.update(topic, 4, leader=-1)
        response = await server.ask(request, version)
        assert coordinators(response, version)[0][1] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        server.update(topic, 4)
        for listener, host, port in (("OUTSIDE", "example.org", 2), ("INSIDE", "10.0.0.1", 1)):
            response = await server.ask(request, version, listener)
            assert coordinators(response, version) == [("g", NONE, 7, host, port)]
        response = await server.ask(request, version, "UNKNOWN")
        assert coordinators(response, version)[0][1] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert server.created == [topic]

    run(scenario)


@pytest.mark.parametrize("version", [version for version in versions_of(10) if version >= 1])
@pytest.mark.parametrize("key_type", [2, 9])
def test_find_coordinator_of_what_there_is_not(version, key_type):
    async def scenario(server):
        response = await server.ask(find_request(version, key_type), version)
        assert coordinators(response, version) == [("g", ErrorCode.INVALID_REQUEST, -1, "", -1)]
        message = response.coordinators[0].error_message if version >= 4 else response.error_message
        assert message.startswith("This broker does not support")
        assert server.created == []

    run(scenario)


@pytest.mark.parametrize("version", versions_of(15))
def test_describe_groups(version):
    async def scenario(server):
        member_id = await server.stable_member(instance="i")
        asks = version >= 3
        request = DescribeGroupsRequest(groups=["g", "nobody"], include_authorized_operations=asks)
        known, unknown = (await server.ask(request, version)).groups
        assert (known.error_code, known.group_id, known.group_state) == (NONE, "g", "Stable")
        assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
        assert known.authorized_operations == (GROUP_OPERATIONS if asks else NOT_ASKED)
        (member,) = known.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "client", "/10.9.8.7")
        assert (member.member_metadata, member.member_assignment) == (b"topics", b"work")
        assert member.group_instance_id == ("i" if version >= 4 else None)
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else NONE)
        assert unknown.error_message == ("Group nobody not found." if version >= 6 else None)
        if asks:
            request.include_authorized_operations = False
            assert (await server.ask(request, version)).groups[0].authorized_operations == NOT_ASKED

    run(scenario)


def test_describe_groups_elsewhere():
    async def scenario(server):
        (group,) = (await server.ask(DescribeGroupsRequest(groups=["g"]), 6)).groups
        assert (group.error_code, group.group_state) == (ErrorCode.NOT_COORDINATOR, "")

    run(scenario, elect=False)


@pytest.mark.parametrize("version", versions_of(16))
def test_list_groups(version):
    async def scenario(server):
        await server.stable_member()
        await server.ask(commit_request(("t", 0, 1), group_id="simple"), 9)
        response = await server.ask(ListGroupsRequest(), version)
        state = ("Stable", "Empty") if version >= 4 else ("", "")
        kind = "classic" if version >= 5 else ""
        listed = sorted(
            (each.group_id, each.protocol_type, each.group_state, each.group_type) for each in response.groups
        )
        assert listed == [("g", "consumer", state[0], kind), ("simple", "", state[1], kind)]
        if version >= 4:
            response = await server.ask(ListGroupsRequest(states_filter=["EMPTY"]), version)
            assert [each.group_id for each in response.groups] == ["simple"]
        if version >= 5:
            response = await server.ask(ListGroupsRequest(types_filter=["share"]), version)
            assert response.groups == []

    run(scenario)


@pytest.mark.parametrize("version", versions_of(42))
def test_delete_groups(version):
    async def scenario(server):
        await server.stable_member()
        await server.ask(commit_request(("t", 0, 1), group_id="simple"), 9)
        request = DeleteGroupsRequest(groups_names=["g", "simple", "nobody", "simple"])
        response = await server.ask(request, version)
        assert [(result.group_id, result.error_code) for result in response.results] == [
            ("g", ErrorCode.NON_EMPTY_GROUP),
            ("simple", NONE),
            ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        ]

    run(scenario)


def test_offset_delete():
    async def scenario(server):
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
            )
            for name, partitions in (("t", (0, 1, 5)), ("nowhere", (0,)))
        ]
        request = OffsetDeleteRequest(group_id="g", topics=topics)
        response = await server.ask(request, 0)
        assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        await server.ask(commit_request(("t", 0, 1)), 9)
        response = await server.ask(request, 0)
        assert response.error_code == NONE
        assert commit_errors(response) == {
            ("t", 0): NONE,
            ("t", 1): NONE,
            ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert not list(server.groups.runtime.runner("g").shard.offsets.of_group("g"))
        await server.groups.stop()
        assert (await server.ask(request, 0)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario)


@pytest.mark.parametrize("version", versions_of(9))
def test_repeated_names_are_answered_up_to_a_bound(version):
    """As in Kafka; a thousand times the metadata of one offset would be a reply of megabytes."""

    async def scenario(server):
        await server.ask(commit_request(("t", 0, 10)), 8)

        async def fetch(indexes):
            if version >= 8:
                topics = fetch_request(version, {"t": indexes}).groups[0].topics * 2
                request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
                return (await server.ask(request, version)).groups[0]
            topics = [OffsetFetchRequestTopic(name="t", partition_indexes=indexes)] * 2
            return await server.ask(OffsetFetchRequest(group_id="g", topics=topics), version)

        response = await fetch([0, 1, 0])
        told = [
            [(each.partition_index, each.committed_offset) for each in topic.partitions] for topic in response.topics
        ]
        assert told == [[(0, 10), (1, -1), (0, 10)]] * 2
        response = await fetch([0, 1] * 1_000)
        if version < 2:
            errors = {partition.error_code for topic in response.topics for partition in topic.partitions}
            assert errors == {ErrorCode.POLICY_VIOLATION}
        else:
            assert (response.error_code, response.topics) == (ErrorCode.POLICY_VIOLATION, [])

    run(scenario, reply_bytes_max=10_000)


def test_a_group_that_is_named_again_is_asked_for_what_it_says():
    async def scenario(server):
        await server.ask(commit_request(("t", 0, 10), ("t", 1, 11)), 8)
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[1])]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=each) for each in (topics, None, topics)]
        response = await server.ask(OffsetFetchRequest(groups=groups), 8)
        told = [[each.partition_index for each in group.topics[0].partitions] for group in response.groups]
        assert told == [[1], [0, 1], [1]]
        described = await server.ask(DescribeGroupsRequest(groups=["g", "g"]), 5)
        assert [group.group_id for group in described.groups] == ["g", "g"]

    run(scenario)


def test_a_repeated_partition_is_deleted_once_and_answered_twice():
    async def scenario(server):
        await server.ask(commit_request(("t", 0, 10)), 8)
        indexes = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
        topics = [OffsetDeleteRequestTopic(name="t", partitions=indexes)] * 2
        before = sum(map(len, server.log.batches.values()))
        response = await server.ask(OffsetDeleteRequest(group_id="g", topics=topics), 0)
        assert [len(topic.partitions) for topic in response.topics] == [4]
        assert commit_errors(response) == {("t", 0): NONE, ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert sum(map(len, server.log.batches.values())) == before + 1
        written = [batch for batches in server.log.batches.values() for batch in batches]
        assert [parse_header(batch).record_count for batch in written] == [1, 1]

    run(scenario)
