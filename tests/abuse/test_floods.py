"""Floods of what the broker remembers (fetch sessions, groups, members, producer ids) and of what it logs."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from barnabas.broker.configuration import changes
from barnabas.broker.configuration.changes import ALL_OVERRIDES_BYTES_MAX
from barnabas.broker.coordinators.groups.settings import HELD_BYTES_WITH_MEMBERS_MAX, PENDING_MEMBERS_MAX, TIMERS_MAX
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import describe_topic_partitions
from barnabas.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from barnabas.wire.messages.alter_configs import AlterConfigsResource as LegacyResource
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from barnabas.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from barnabas.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from barnabas.wire.record_batch import parse_header
from barnabas.wire.records import Record, assemble_batch, build_batch
from barnabas.wire.schema import Message
from tests.support.smaller_limits import module as smaller
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    answer,
    ask,
    connect,
    create_topic,
    eventually,
    frame,
    is_closed,
    produce,
    receive,
)
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.listener("clients")]
Figure = Callable[..., None]
NOW_MS = 1_700_000_000_000
FULL = [pytest.mark.full, pytest.mark.timeout(1800)]
FEW_OVERRIDES = smaller({f"{changes.__name__}.ALL_OVERRIDES_BYTES_MAX": 4 * MIB})


@pytest.mark.parametrize(("count", "partitions"), [(1_500, 20), pytest.param(26, 8_000, marks=FULL)])
def test_a11_fetch_sessions(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, partitions: int
) -> None:
    """Many sessions, or large ones: at most 1,000 and 200,000 partitions; the others are served without."""
    create_topic(broker.bootstrap_servers, "t")
    asked = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=100) for index in range(partitions)]
    request = FetchRequest(
        session_id=0, session_epoch=0, min_bytes=0, max_bytes=100, topics=[FetchTopic(topic="t", partitions=asked)]
    )
    made = 0
    if partitions > 1000:
        # A request of 8,000 partitions takes the event loop a tenth of a second, and one follows the other: beside
        # them a client with one request at a time gets a turn between any two.
        healthy.rate_min = 5
    healthy.mark()
    with connect(broker.bootstrap_servers) as connection:
        for _ in range(count):
            response = ask(connection, request, 11, FetchResponse)
            assert response.error_code == 0
            made += response.session_id != 0
    figure(asked=count, partitions=partitions, made=made, growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert 0 < made <= min(1000, 200_000 // partitions)
    assert memory.growth <= 128 * MIB


@pytest.mark.parametrize(
    ("count", "partitions"),
    [(12_000, 1), pytest.param(1_000_000, 1, marks=FULL), pytest.param(300_000, 30, marks=FULL)],
)
def test_a11_producer_ids(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, partitions: int
) -> None:
    """Every batch from another producer, on one partition or on all in turn, and half as many ids asked for."""
    create_topic(broker.bootstrap_servers, "t", partitions)
    healthy.mark()
    batch = build_batch([Record(0, NOW_MS, None, b"v")], producer_id=1, producer_epoch=0, base_sequence=0)
    header, payload = parse_header(batch), batch[61:]
    with connect(broker.bootstrap_servers) as connection:
        for start in range(0, count, 500):
            requests = [
                produce(
                    "t",
                    assemble_batch(header._replace(producer_id=start + number), payload),
                    partition=number % partitions,
                )
                for number in range(500)
            ]
            connection.sendall(b"".join(frame(request, 9) for request in requests))
            for request in requests:
                response = answer(connection, request, 9, ProduceResponse)
                assert response.responses[0].partition_responses[0].error_code == 0
        ids = set()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        for _ in range(count // 100):
            connection.sendall(frame(request, 2) * 50)
            ids |= {answer(connection, request, 2, InitProducerIdResponse).producer_id for _ in range(50)}
    figure(producers=count, partitions=partitions, ids=len(ids), growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert len(ids) == count // 100 * 50
    assert memory.growth <= 128 * MIB


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=FULL)])
def test_a11_transactional_ids(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """As many transactional ids, which the coordinator remembers for `transactional.id.expiration.ms`: they are let in,
    as that is less than all may take, and what each costs is bounded."""

    def initialise(transactional_id: str) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)

    with connect(broker.bootstrap_servers) as connection:
        find = FindCoordinatorRequest(key="t", key_type=1)
        assert eventually(lambda: ask(connection, find, 1, FindCoordinatorResponse).error_code == 0)
        for number in range(50):  # every partition of the log is loaded
            request = initialise(f"warm-{number}")
            assert eventually(
                lambda request=request: ask(connection, request, 2, InitProducerIdResponse).error_code == 0,
            )
        memory.mark()
        healthy.mark()
        for start in range(0, count, 100):
            requests = [initialise(f"flood-{start + number}") for number in range(100)]
            connection.sendall(b"".join(frame(request, 2) for request in requests))
            for request in requests:
                assert answer(connection, request, 2, InitProducerIdResponse).error_code == 0
    figure(transactional_ids=count, growth_mib=round(memory.growth / MIB, 1), bytes_each=memory.growth // count,
           **healthy.figures)  # fmt: skip
    assert memory.growth <= 128 * MIB
    assert memory.growth <= 1300 * count + 2 * MIB


@pytest.mark.parametrize("broker", [{"group.initial.rebalance.delay.ms": "0"}], indirect=True, ids=[""])
@pytest.mark.parametrize("count", [2_500, pytest.param(100_000, marks=FULL)])
@pytest.mark.parametrize("version", [0, 5], ids=["members", "pending members"])
def test_a11_groups(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, version: int
) -> None:
    """Each member joins a group of its own: with an old version at once, with a newer one after it got its id. A
    consumer that was there before goes on, and another one of its group is let in even when no new group is."""
    _offsets_topic(broker)
    let_in = 0
    with connect(broker.bootstrap_servers) as connection, connect(broker.bootstrap_servers) as live:
        member_id, generation = _consume(live)
        memory.mark()
        healthy.mark()
        for start in range(0, count, 250):
            requests = [_join(f"group-{start + number}") for number in range(250)]
            connection.sendall(b"".join(frame(request, version) for request in requests))
            for request in requests:
                joined = answer(connection, request, version, JoinGroupResponse)
                assert joined.error_code in (
                    ErrorCode.NONE,
                    ErrorCode.MEMBER_ID_REQUIRED,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                )
                let_in += joined.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE
            heartbeat = HeartbeatRequest(group_id="live", generation_id=generation, member_id=member_id)
            assert ask(live, heartbeat, 3, HeartbeatResponse).error_code == 0
        _commit(live, member_id, generation)
        newcomer = ask(live, _join("live"), 5, JoinGroupResponse)
        assert newcomer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    figure(let_in=let_in, groups=count, version=version, growth_mib=round(memory.growth / MIB, 1),
           bytes_each=memory.growth // let_in, **healthy.figures)  # fmt: skip
    # Each has a session; the members, who never ask for their assignment, are waited for besides.
    limit = TIMERS_MAX if version else TIMERS_MAX // 2
    assert let_in == count or limit - 100 <= let_in < limit < count
    assert memory.growth <= 128 * MIB


def _consume(connection: socket.socket) -> tuple[str, int]:
    """Become the one member of the group `live`, with an offset committed: (member id, generation)."""
    joined = ask(connection, _join("live"), 0, JoinGroupResponse)
    assert joined.error_code == 0
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    sync = SyncGroupRequest(
        group_id="live", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[assignment]
    )
    assert ask(connection, sync, 0, SyncGroupResponse).assignment == b"all"
    _commit(connection, joined.member_id, joined.generation_id)
    return joined.member_id, joined.generation_id


def _commit(connection: socket.socket, member_id: str, generation: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id="live",
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name="healthy", partitions=[partition])],
    )
    response = ask(connection, request, 5, OffsetCommitResponse)
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=FULL)])
def test_a11_members_that_never_come_back(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """One group, and member ids that are handed out and never used: everybody gets one, the oldest are forgotten."""
    _offsets_topic(broker)
    memory.mark()
    healthy.mark()
    request = _join("one")
    answers: Counter[int] = Counter()
    with connect(broker.bootstrap_servers) as connection:
        for _ in range(0, count, 250):
            connection.sendall(frame(request, 5) * 250)
            answers.update(answer(connection, request, 5, JoinGroupResponse).error_code for _ in range(250))
    remembered = min(count, PENDING_MEMBERS_MAX)
    figure(members=count, remembered=remembered, growth_mib=round(memory.growth / MIB, 1),
           bytes_each=memory.growth // remembered, **healthy.figures)  # fmt: skip
    assert answers == {ErrorCode.MEMBER_ID_REQUIRED: count}
    assert memory.growth <= 2000 * remembered + 4 * MIB


def _join(group_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=1_800_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(30))],
    )


def _offsets_topic(broker: BarnabasProcess) -> None:
    """The internal topic comes into being with the first question for a coordinator."""
    with connect(broker.bootstrap_servers) as connection:

        def is_there() -> bool:
            found = ask(connection, FindCoordinatorRequest(key="group-0"), 0, FindCoordinatorResponse)
            return bool(found.error_code == 0)

        assert eventually(is_there)
        joined = [_join(f"group-{number}") for number in range(20)]
        for request in joined:
            assert eventually(
                lambda request=request: (  # type: ignore[misc]
                    ask(connection, request, 5, JoinGroupResponse).error_code == ErrorCode.MEMBER_ID_REQUIRED
                ),
            )


HOSTILE_NAME = "evil\r\n2026-01-01 00:00:00.000 FATAL forged: line\x1b[2J\u2028"


@pytest.mark.parametrize("rounds", [4, pytest.param(300, marks=FULL)])
def test_a16_log_flooding_and_injection(
    broker: BarnabasProcess, healthy: HealthyClient, figure: Figure, rounds: int
) -> None:
    """For any behaviour that peers repeat, no cause writes more than 100 lines a second, and no name forges a line."""
    attacks = [
        struct.pack(">i", -1),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 11, 18, 0, 1, 20) + b"x",
        frame(ApiVersionsRequest(client_software_name=HOSTILE_NAME), 3, client_id=HOSTILE_NAME * 300),
        frame(_join(HOSTILE_NAME * 400), 5, client_id=HOSTILE_NAME * 300),
        frame(MetadataRequest(topics=[MetadataRequestTopic(name=HOSTILE_NAME)]), 9, client_id="\r\nforged"),
        frame(produce(HOSTILE_NAME, b"", acks=0), 9, client_id=HOSTILE_NAME),
    ]
    sent = 0
    for _ in range(rounds):
        for attack in attacks[:1] * 50 + attacks:
            with connect(broker.bootstrap_servers) as connection:
                connection.sendall(attack)
            sent += 1
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert response.error_code == 0
        assert ask(connection, MetadataRequest(topics=[]), 9, MetadataResponse).controller_id >= 0
        connection.sendall(attacks[0])
        assert is_closed(connection)
    lines = broker.log_text().splitlines()
    pattern = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.\d{3} ([A-Z]+) +([a-z_.]+): (.*)")
    found = [pattern.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None][:3]
    causes = Counter((match[1], match[3], re.sub(r"\d+", "#", match[4])[:20]) for match in found if match)
    busiest = max(causes.values())
    figure(requests=sent, lines=len(lines), busiest_cause_lines_per_second=busiest,
           log_kib=sum(map(len, lines)) // 1024, **healthy.figures)  # fmt: skip
    assert busiest <= 101
    assert not any(match[2] == "FATAL" for match in found if match)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", broker.log_text())


@pytest.mark.parametrize("broker", [{"group.initial.rebalance.delay.ms": "0"}], indirect=True, ids=[""])
@pytest.mark.parametrize("count", [40, pytest.param(120, marks=FULL)])
def test_a19_metadata_of_members(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """Members with 8 MB of metadata each, in groups of their own, whose connections are closed afterwards. A group
    that was there before goes on."""
    _offsets_topic(broker)
    healthy.rate_min = 30  # each of these requests takes the event loop for some milliseconds
    answers: Counter[int] = Counter()
    with connect(broker.bootstrap_servers) as live:
        member_id, generation = _consume(live)
        memory.mark()
        healthy.mark()
        for number in range(count):
            join = _join(f"group-{number}")
            join.protocols[0].metadata = bytes(8_000_000)
            with connect(broker.bootstrap_servers) as connection:
                answers[ask(connection, join, 0, JoinGroupResponse).error_code] += 1
        _commit(live, member_id, generation)
        assert ask(live, _join("live"), 5, JoinGroupResponse).error_code == ErrorCode.MEMBER_ID_REQUIRED
    let_in = answers[ErrorCode.NONE]
    figure(asked=count, let_in=let_in, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert answers == {ErrorCode.NONE: let_in, ErrorCode.COORDINATOR_NOT_AVAILABLE: count - let_in}
    assert let_in * 8_000_000 < HELD_BYTES_WITH_MEMBERS_MAX
    assert memory.growth <= 288 * MIB


@pytest.mark.parametrize(
    ("groups", "metadata"), [(200, 4096), *(pytest.param(30_000, size, marks=FULL) for size in (0, 4096))]
)
def test_a19_committed_offsets(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, groups: int, metadata: int
) -> None:
    """Offsets of ever more groups, 50 partitions each, until so many were answered or 1,000 refused. Who has committed
    before goes on to."""
    _offsets_topic(broker)
    create_topic(broker.bootstrap_servers, "t", 50)
    healthy.rate_min = 20
    answers: Counter[int] = Counter()

    def request(number: int) -> OffsetCommitRequest:
        text = "m" * metadata
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=text)
            for index in range(50)
        ]
        return OffsetCommitRequest(
            group_id=f"simple-{number}",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
        )

    with connect(broker.bootstrap_servers) as live, connect(broker.bootstrap_servers) as connection:
        member_id, generation = _consume(live)
        memory.mark()
        healthy.mark()
        numbers = itertools.count()
        while answers.total() < groups and answers[ErrorCode.COORDINATOR_NOT_AVAILABLE] < 1_000:
            connection.sendall(b"".join(frame(request(next(numbers)), 5) for _ in range(20)))
            for _ in range(20):
                response = answer(connection, request(0), 5, OffsetCommitResponse)
                answers[response.topics[0].partitions[0].error_code] += 1
        _commit(live, member_id, generation)
    figure(groups=answers[0], offsets=answers[0] * 50, refused=answers.total() - answers[0],
           growth_mib=round(memory.growth / MIB, 1), **healthy.figures)  # fmt: skip
    assert set(answers) <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert memory.growth <= 320 * MIB


@pytest.mark.full
@pytest.mark.parametrize("broker", [{"group.initial.rebalance.delay.ms": "0"}], indirect=True, ids=[""])
def test_a21_the_same_thing_asked_for_many_times(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure
) -> None:
    """One request that names the same group, topic, partition or id 40,000 times: as many answers as fit into 32 MiB,
    then errors."""
    count = 40_000
    _offsets_topic(broker)
    create_topic(broker.bootstrap_servers, "t", 500)
    requests: list[tuple[Message, int, type[Any]]] = [
        (DescribeGroupsRequest(groups=["large"] * count), 5, DescribeGroupsResponse),
        (DescribeGroupsRequest(groups=["long"] * count), 5, DescribeGroupsResponse),
        (DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="t")] * count,
                                include_synonyms=True, include_documentation=True), 4, DescribeConfigsResponse),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="live", topics=None)] * count), 8,
         OffsetFetchResponse),
        (OffsetFetchRequest(group_id="noted", topics=[
            OffsetFetchRequestTopic(name="t", partition_indexes=[0] * count)]), 7, OffsetFetchResponse),
        (DescribeTransactionsRequest(transactional_ids=["x"] * count), 0, DescribeTransactionsResponse),
        (DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])] * (count // 2)), 0,
         DescribeProducersResponse),
        (MetadataRequest(topics=[MetadataRequestTopic(name="t")] * count), 9, MetadataResponse),
        (DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[0])] * (count // 2)), 4,
         DescribeLogDirsResponse),
        (DescribeTopicPartitionsRequest(topics=[describe_topic_partitions.TopicRequest(name="t")] * count), 0,
         DescribeTopicPartitionsResponse),
        (ListConfigResourcesRequest(resource_types=[2] * count), 1, ListConfigResourcesResponse),
    ]  # fmt: skip
    healthy.rate_min = 5  # reading 40,000 names takes the event loop 50 ms and more
    with connect(broker.bootstrap_servers) as live, connect(broker.bootstrap_servers) as connection:
        _consume(live)
        _commit_with_metadata(connection, "noted", [0], "m" * 4_096)
        large, long = _join("large"), _join("long")
        large.protocols[0].metadata = bytes(500_000)
        long.protocol_type = long.protocols[0].name = "\U0001f600" * 8_000
        for join in (large, long):
            joined = ask(connection, join, 0, JoinGroupResponse)
            sync = SyncGroupRequest(
                group_id=join.group_id, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
            )
            assert ask(connection, sync, 0, SyncGroupResponse).error_code == 0
        memory.mark()
        healthy.mark()
        sizes = []
        for request, version, response_class in requests:
            connection.sendall(frame(request, version))
            body = receive(connection)
            assert body is not None, request
            assert len(body) < 40 * MIB, (response_class, len(body))
            sizes.append(len(body))
    figure(requests=len(requests), largest_reply_kib=max(sizes) // 1024, growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert memory.growth <= 96 * MIB


@pytest.mark.parametrize("broker", [{"group.initial.rebalance.delay.ms": "0"}], indirect=True, ids=[""])
@pytest.mark.parametrize("count", [300, pytest.param(3_000, marks=FULL)])
def test_a21_unread_replies_are_bounded(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """Connections that ask for a megabyte each, not by a fetch, and do not read it."""
    _offsets_topic(broker)
    with connect(broker.bootstrap_servers) as connection, contextlib.ExitStack() as stack:
        join = _join("large")
        join.protocols[0].metadata = bytes(1_000_000)
        joined = ask(connection, join, 0, JoinGroupResponse)
        sync = SyncGroupRequest(
            group_id="large", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
        )
        assert ask(connection, sync, 0, SyncGroupResponse).error_code == 0
        request = DescribeGroupsRequest(groups=["large"])
        assert len(ask(connection, request, 5, DescribeGroupsResponse).groups[0].members[0].member_metadata) == 10**6
        memory.mark()
        healthy.mark()
        for number in range(count):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = broker.bootstrap_servers.rpartition(":")
            reader.connect((host, int(port)))
            reader.sendall(frame(request, 5, number))
        assert ask(connection, request, 5, DescribeGroupsResponse).groups[0].error_code == 0
    figure(connections=count, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 288 * MIB


@pytest.mark.parametrize("broker", [{"offset.metadata.max.bytes": "30000"}], indirect=True, ids=[""])
@pytest.mark.parametrize(("count", "partitions"), [(4, 800), pytest.param(64, 1_000, marks=FULL)])
def test_a21_all_offsets_of_a_group_at_once(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, partitions: int
) -> None:
    """Connections that ask at the same time, with 30 bytes each, for the 22 MiB that a group has committed, and do not
    read."""
    healthy.rate_min = 1  # a second of replies, each of which takes the event loop tens of milliseconds
    _offsets_topic(broker)
    create_topic(broker.bootstrap_servers, "t", partitions)
    with connect(broker.bootstrap_servers) as connection, contextlib.ExitStack() as stack:
        for start in range(0, partitions, 25):
            _commit_with_metadata(connection, "noted", range(start, start + 25), "m" * 28_000)
        connections = [stack.enter_context(connect(broker.bootstrap_servers)) for _ in range(count)]
        memory.mark()
        healthy.mark()
        for number, reader in enumerate(connections):
            reader.sendall(frame(OffsetFetchRequest(group_id="noted", topics=None), 7, number))
        assert len(ask(connection, OffsetFetchRequest(group_id="live", topics=None), 7, OffsetFetchResponse).topics) < 2
    figure(connections=count, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 288 * MIB


@pytest.mark.parametrize("broker", [{"group.initial.rebalance.delay.ms": "0"}], indirect=True, ids=[""])
@pytest.mark.parametrize("count", [30, pytest.param(100, marks=FULL)])
def test_a21_large_replies_do_not_delay_others(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """Connections that ask at the same time for 40 groups of 900 KB, of which 32 MiB are told; they do not read."""
    _offsets_topic(broker)
    names = [f"large-{number}" for number in range(40)]
    with connect(broker.bootstrap_servers) as connection, contextlib.ExitStack() as stack:
        for name in names:
            join = _join(name)
            join.protocols[0].metadata = bytes(900_000)
            joined = ask(connection, join, 0, JoinGroupResponse)
            sync = SyncGroupRequest(
                group_id=name, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
            )
            assert ask(connection, sync, 0, SyncGroupResponse).error_code == 0
        connections = [stack.enter_context(connect(broker.bootstrap_servers)) for _ in range(count)]
        memory.mark()
        healthy.mark()
        for number, reader in enumerate(connections):
            reader.sendall(frame(DescribeGroupsRequest(groups=names), 5, number) * 2)
        for _ in range(20):
            assert ask(connection, _one_group(), 5, DescribeGroupsResponse).groups[0].error_code == 0
    figure(connections=count, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 288 * MIB


def _one_group() -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=["large-0"])


def test_a21_unknown_configs_are_bounded(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure
) -> None:
    """20,000 unknown names for all brokers, in one request and by the thousand; then requests that name what is not
    there and an ordinary change."""
    _offsets_topic(broker)
    healthy.rate_min = 5  # 20,000 names are read at a stretch
    memory.mark()
    healthy.mark()
    with connect(broker.bootstrap_servers) as connection:

        def alter(kind: int, name: str, keys: list[str]) -> int:
            configs = [AlterableConfig(name=key, config_operation=0, value="1000000") for key in keys]
            request = IncrementalAlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)]
            )
            return int(ask(connection, request, 1, IncrementalAlterConfigsResponse).responses[0].error_code)

        assert alter(4, "", [f"zz.{number}" for number in range(20_000)]) == ErrorCode.POLICY_VIOLATION
        answers = Counter(alter(4, "", [f"zz.{start + n}" for n in range(1_000)]) for start in range(0, 5_000, 1_000))
        assert answers == {ErrorCode.NONE: 1, ErrorCode.POLICY_VIOLATION: 4}
        unknown = AlterConfigsRequest(
            resources=[LegacyResource(resource_type=2, resource_name=f"nowhere-{number}") for number in range(10_000)]
        )
        response = ask(connection, unknown, 1, AlterConfigsResponse)
        assert {answer.error_code for answer in response.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert alter(4, broker_id_of(connection), ["log.retention.ms"]) == ErrorCode.NONE
    figure(growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 64 * MIB


@pytest.mark.parametrize(
    "module", [pytest.param(FEW_OVERRIDES, id="4 MiB"), pytest.param("barnabas", marks=FULL, id="")]
)
def test_a21_configs_with_long_values(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, module: str
) -> None:
    """Topics with two settings of 32 KB each, until all together would be too much; other settings wait, too."""
    most = 4 * MIB if module == FEW_OVERRIDES else ALL_OVERRIDES_BYTES_MAX
    healthy.rate_min = 5
    values = ",".join(f"{number}:0" for number in range(5_000))[:32_700].rpartition(",")[0]
    keys = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    answers: Counter[int] = Counter()
    memory.mark()
    healthy.mark()
    with connect(broker.bootstrap_servers) as connection:
        for number in range(most // (2 * len(values)) + 10):
            name = f"t-{number}"
            create_topic(broker.bootstrap_servers, name)
            configs = [AlterableConfig(name=key, config_operation=0, value=values) for key in keys]
            resource = AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
            request = IncrementalAlterConfigsRequest(resources=[resource])
            response = ask(connection, request, 1, IncrementalAlterConfigsResponse)
            answers[response.responses[0].error_code] += 1
    figure(let_in=answers[0], refused=answers.total() - answers[0], growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert set(answers) == {ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}
    assert answers[0] * 2 * len(values) <= most
    assert memory.growth <= 3 * most + 16 * MIB


def broker_id_of(connection: socket.socket) -> str:
    return str(ask(connection, MetadataRequest(topics=[]), 9, MetadataResponse).brokers[0].node_id)


def _commit_with_metadata(connection: socket.socket, group_id: str, indexes: Iterable[int], metadata: str) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)
        for index in indexes
    ]
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
    )
    response = ask(connection, request, 5, OffsetCommitResponse)
    assert {partition.error_code for partition in response.topics[0].partitions} == {ErrorCode.NONE}
