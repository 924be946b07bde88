"""State that strangers make the broker keep, up to its limits: partitions, transactional ids, transactions, one group,
the lines of groups on a page, descriptors.

The short attacks meet smaller limits where the real ones take minutes to reach.
"""

from __future__ import annotations

import re
import resource
import select
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from barnabas.broker.coordinators.groups.settings import HELD_BYTES_OF_GROUP_MAX
from barnabas.broker.coordinators.transactions import settings as transactions
from barnabas.broker.http.figures import GROUPS_TEXT_BYTES_MAX
from barnabas.broker.network.connections import STRANGERS_IN_RESERVE_MAX
from barnabas.controller import topics
from barnabas.storage.descriptors import descriptor_reserve
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.records import Record, build_batch
from tests.support.smaller_limits import module as smaller
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    ThreadTimes,
    answer,
    ask,
    connect,
    create_topic,
    eventually,
    frame,
    http_address,
    is_closed,
    metrics_page,
    produce,
)
from tools.attack.stage import TOPIC, Stage, errors
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.listener("clients")]
Figure = Callable[..., None]
NOW_MS = 1_700_000_000_000
FULL = [pytest.mark.full, pytest.mark.timeout(1800)]
REAL = pytest.param("barnabas", marks=FULL, id="real")
HTTP = {"barnabas.http.address": "127.0.0.1:0"}
NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}

FEW_PARTITIONS = smaller({f"{topics.__name__}.PARTITIONS_MAX": 300})
FEW_IDS = smaller(
    {
        f"{transactions.__name__}.TransactionSettings.held_bytes_max": 4 * MIB,
        f"{transactions.__name__}.TransactionSettings.held_bytes_of_known_ids_max": 5 * MIB,
    }
)


def create(connection: socket.socket, name: str, partitions: int) -> int:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    response = ask(connection, CreateTopicsRequest(topics=[topic], timeout_ms=120_000), 5, CreateTopicsResponse)
    code: int = response.topics[0].error_code
    return code


def await_coordinator(connection: socket.socket, key_type: int) -> None:
    find = FindCoordinatorRequest(key="x", key_type=key_type)
    assert eventually(lambda: ask(connection, find, 1, FindCoordinatorResponse).error_code == ErrorCode.NONE)


@pytest.mark.parametrize("module", [pytest.param(FEW_PARTITIONS, id="300"), REAL])
def test_a27_partitions(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, module: str
) -> None:
    """Topics until there are too many partitions: no more in any way, but for those of the broker's own topics."""
    most = 300 if module == FEW_PARTITIONS else topics.PARTITIONS_MAX
    healthy.rate_min = 20  # creating thousands takes turns of 10 ms and more
    with connect(broker.bootstrap_servers) as connection:
        left = most - 1  # the healthy client has one
        answers = Counter(create(connection, f"t-{number}", most // 5) for number in range(6))
        assert answers == {ErrorCode.NONE: 4, ErrorCode.POLICY_VIOLATION: 2}
        left -= 4 * (most // 5)
        assert create(connection, "rest", left) == ErrorCode.NONE
        held = memory.growth
        assert create(connection, "one", 1) == ErrorCode.POLICY_VIOLATION
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="rest", count=left + 1)], timeout_ms=10_000)
        grown = ask(connection, more, 2, CreatePartitionsResponse)
        assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION
        named = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
        for _ in range(5):
            (topic,) = ask(connection, named, 9, MetadataResponse).topics
            assert topic.error_code != ErrorCode.NONE
        for key_type in (0, 1):
            await_coordinator(connection, key_type)
        every = ask(connection, MetadataRequest(topics=None), 9, MetadataResponse)
        assert sum(len(topic.partitions) for topic in every.topics) == most + 100
    figure(partitions=most, growth_mib=round(held / MIB, 1), bytes_each=held // most, **healthy.figures)
    assert held <= 8 * 1024 * most + 16 * MIB


@pytest.mark.parametrize("module", [pytest.param(FEW_IDS, id="4 MiB"), REAL])
def test_a28_long_transactional_ids(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, module: str
) -> None:
    """Ids of 30 KB until new ones are refused; then partitions for those that are known, until these are. Who was there
    before goes on."""
    healthy.rate_min = 20
    create_topic(broker.bootstrap_servers, "t", 400)
    answers: Counter[int] = Counter()
    producers: list[tuple[str, InitProducerIdResponse]] = []

    def initialise(transactional_id: str) -> int:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        response = ask(connection, request, 2, InitProducerIdResponse)
        if not response.error_code:
            producers.append((transactional_id, response))
        code: int = response.error_code
        return code

    def add(number: int, count: int) -> set[int]:
        transactional_id, producer = producers[number]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(range(count)))],
        )
        (topic,) = ask(connection, request, 3, AddPartitionsToTxnResponse).results_by_topic_v3_and_below
        return {partition.partition_error_code for partition in topic.results_by_partition}

    with connect(broker.bootstrap_servers) as connection:
        await_coordinator(connection, 1)
        assert eventually(lambda: initialise("known") == ErrorCode.NONE)
        warm = [f"warm-{number}" for number in range(50)]  # every partition of the log is loaded
        for name in warm:
            assert eventually(lambda name=name: initialise(name) == ErrorCode.NONE)  # type: ignore[misc]
        memory.mark()
        healthy.mark()
        number = 0
        while answers[ErrorCode.COORDINATOR_NOT_AVAILABLE] < 50:
            answers[initialise(f"{number:x<30000}")] += 1
            number += 1
        held = memory.growth
        added: Counter[int] = Counter()
        for index in range(1, len(producers)):
            added.update(add(index, 400))
            if added[ErrorCode.COORDINATOR_NOT_AVAILABLE] >= 10:
                break
        assert initialise("known") == ErrorCode.NONE
        assert initialise("new") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    figure(ids=answers[0], refused=answers.total() - answers[0], transactions=added[0],
           growth_of_ids_mib=round(held / MIB, 1), growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert set(answers) == set(added) == {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert memory.growth <= (16 if module == FEW_IDS else 320) * MIB


@pytest.mark.parametrize("broker", [NO_DELAY], indirect=True, ids=[""])
def test_a29_members_of_one_group(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure
) -> None:
    """Twenty members with 3 MB of metadata each want to join one group; its leader is told of those that are in."""
    size = 3_000_000
    healthy.rate_min = 20
    join = JoinGroupRequest(
        group_id="one",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(size))],
    )
    with connect(broker.bootstrap_servers) as leader, ExitStack() as stack:
        await_coordinator(leader, 0)
        joined: list[JoinGroupResponse] = []

        def is_in() -> bool:
            joined.append(ask(leader, join, 0, JoinGroupResponse))
            return bool(joined[-1].error_code == ErrorCode.NONE)

        assert eventually(is_in)
        memory.mark()
        healthy.mark()
        others = [stack.enter_context(connect(broker.bootstrap_servers)) for _ in range(20)]
        for other in others:
            other.sendall(frame(join, 0))
        let_in = HELD_BYTES_OF_GROUP_MAX // size - 1
        assert eventually(lambda: len(select.select(others, [], [], 0)[0]) == 20 - let_in)
        refused = [answer(each, join, 0, JoinGroupResponse).error_code for each in select.select(others, [], [], 0)[0]]
        assert refused == [ErrorCode.GROUP_MAX_SIZE_REACHED] * (20 - let_in)
        beat = HeartbeatRequest(group_id="one", generation_id=joined[-1].generation_id, member_id=joined[-1].member_id)
        assert ask(leader, beat, 0, HeartbeatResponse).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        join.member_id = joined[-1].member_id
        told = ask(leader, join, 0, JoinGroupResponse)
        assert told.error_code == ErrorCode.NONE
        assert sum(len(member.metadata) for member in told.members) == (let_in + 1) * size
    figure(asked=20, members=len(told.members), growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 96 * MIB


@pytest.mark.parametrize("broker", [HTTP], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("name", "topic", "count"),
    [
        ("x" * 30_000, "t", 40),
        ('"' * 30_000, "t", 40),
        pytest.param("\U0001f600" * 7_500, "t", 40, marks=pytest.mark.full),
        pytest.param("", "t" * 249, 1_200, marks=pytest.mark.full),
    ],
    ids=["long names", "escaped", "of four bytes", "long topics"],
)
def test_a30_groups_on_the_page(
    broker: BarnabasProcess,
    memory: Memory,
    healthy: HealthyClient,
    figure: Figure,
    name: str,
    topic: str,
    count: int,
) -> None:
    """Offsets of groups and topics with names as long as they can be: a page with all of them would take 16 MB and
    more."""
    healthy.rate_min = 20
    create_topic(broker.bootstrap_servers, topic, 20)
    partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(20)]

    def commit(number: int) -> bool:
        request = OffsetCommitRequest(
            group_id=f"{number}{name}",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )
        return errors(ask(connection, request, 5, OffsetCommitResponse)) == []

    with connect(broker.bootstrap_servers) as connection:
        await_coordinator(connection, 0)
        for number in range(count):
            assert eventually(lambda number=number: commit(number))  # type: ignore[misc]
    memory.mark()
    healthy.mark()
    pages = [metrics_page(http_address(broker.log_text())) for _ in range(3)]
    figure(page_mib=round(len(pages[-1]) / MIB, 1), growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    left_out = re.search(rb"^barnabas_groups_left_out (\d+)", pages[-1], re.MULTILINE)
    assert left_out is not None
    assert count / 3 < int(left_out[1]) < count
    assert len(pages[-1]) <= GROUPS_TEXT_BYTES_MAX + MIB
    assert memory.growth <= 64 * MIB


@pytest.mark.listener("clients", "http")
@pytest.mark.parametrize("broker", [HTTP], indirect=True, ids=[""])
def test_a32_descriptors(broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure) -> None:
    """Idle connections to both ports until no descriptor is left for them: topics are made, and records written to
    them, with those that are kept for files."""
    http = http_address(broker.log_text())
    with connect(broker.bootstrap_servers) as live, ExitStack() as stack:
        assert create(live, "before", 1) == ErrorCode.NONE
        limit = 250
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, hard))
        memory.mark()
        healthy.mark()
        strangers = [stack.enter_context(connect(address)) for address in (broker.bootstrap_servers, http) * limit]
        assert eventually(lambda: "the remaining descriptors are reserved for files" in broker.log_text())
        batch = build_batch([Record(0, NOW_MS, None, b"v")])
        for number in range(10):
            assert create(live, f"during-{number}", 3) == ErrorCode.NONE
            response = ask(live, produce(f"during-{number}", batch), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        closed = 0

        def enough_are_closed() -> bool:
            nonlocal closed
            closed = sum(is_closed(stranger, 0.001) for stranger in strangers)
            return closed >= limit + descriptor_reserve(limit)

        assert eventually(enough_are_closed)
    figure(connections=2 * limit, closed=closed, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 32 * MIB


class BrokerWithTwoListeners(BarnabasProcess):
    """Clients use another listener than brokers."""

    def _command(self) -> list[str]:
        overrides = (
            f"log.dirs={self.log_dir}",
            "listeners=PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name=BROKERS",
        )
        return [*self._serve, *(word for each in overrides for word in ("--override", each))]

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT for clients and for brokers."""
        return self.bootstrap_servers.split(",BROKERS://")


@pytest.mark.listener("brokers")
@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "with a request"])
def test_a43_descriptors_at_the_listener_of_brokers(figure: Figure, speaks: bool) -> None:
    """Idle connections to the listener of brokers until no descriptor is left for them. Topics are made, and records
    written to them, with those that are kept for files. Silent connections make room for clients."""
    limit = 250
    request = frame(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    with BrokerWithTwoListeners() as broker, ExitStack() as stack:
        of_clients, of_brokers = broker.addresses
        live = stack.enter_context(connect(of_clients))
        assert create(live, "before", 1) == ErrorCode.NONE
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, hard))
        strangers = []
        for _ in range(limit + 50):
            strangers.append(stack.enter_context(connect(of_brokers)))
            if speaks:
                with suppress(OSError):
                    strangers[-1].sendall(request)
        told = "descriptors that are reserved for files" if speaks else "have sent no request"
        assert eventually(lambda: told in broker.log_text())
        batch = build_batch([Record(0, NOW_MS, None, b"v")])
        for number in range(10):
            assert create(live, f"during-{number}", 3) == ErrorCode.NONE
            response = ask(live, produce(f"during-{number}", batch), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE

        def newcomer_is_served() -> bool:
            try:
                with connect(of_clients) as newcomer:
                    return create(newcomer, "newcomer", 1) in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            except OSError:
                return False  # it came too late for the last descriptor, and made room

        assert speaks or eventually(newcomer_is_served)
        open_count = sum(not is_closed(stranger, 0.001) for stranger in strangers)
        figure(connections=len(strangers), open=open_count)
        assert open_count <= limit - descriptor_reserve(limit) + STRANGERS_IN_RESERVE_MAX
        assert "Traceback" not in broker.log_text()
        assert "Too many open files" not in broker.log_text()
        broker.stop()


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=FULL)])
def test_a33_producers_that_never_begin(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """Batches of transactions that nobody began, each of another producer: none is written."""
    healthy.rate_min = 20
    create_topic(broker.bootstrap_servers, "t")
    answers: Counter[int] = Counter()
    with connect(broker.bootstrap_servers) as connection:
        await_coordinator(connection, 1)
        memory.mark()
        healthy.mark()
        for start in range(0, count, 100):
            requests = []
            for number in range(start, start + 100):
                batch = build_batch(
                    [Record(0, NOW_MS, None, b"v")],
                    producer_id=10**6 + number,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
                requests.append(produce("t", batch))
                requests[-1].transactional_id = f"nobody-{number}"
            connection.sendall(b"".join(frame(request, 9) for request in requests))
            for request in requests:
                response = answer(connection, request, 9, ProduceResponse)
                answers[response.responses[0].partition_responses[0].error_code] += 1
    figure(producers=count, growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert ErrorCode.NONE not in answers
    assert memory.growth <= 16 * MIB


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=FULL)])
def test_a34_open_transactions_with_offsets_of_one_group(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, is_timed: bool
) -> None:
    """A consumer of that group is answered as if there were none of them: its offsets are not gone through."""
    healthy.rate_min = 20
    stage = Stage(broker.bootstrap_servers)
    memory.mark()
    healthy.mark()
    for _ in range(count):
        producer = stage.with_offsets()
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id="offsets",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )
        assert errors(stage.ask(request, 3)) == []
    fetching = OffsetFetchRequest(
        group_id="offsets", topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])], require_stable=True
    )
    deleting = OffsetDeleteRequest(
        group_id="offsets",
        topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=1)])],
    )
    spent_ms = []
    for _ in range(3):
        times = ThreadTimes(broker.pid)
        for _ in range(50):
            assert errors(stage.ask(fetching, 7)) == [ErrorCode.UNSTABLE_OFFSET_COMMIT]
            stage.ask(deleting, 0)
        spent_ms.append(times.loop_ms / 100)
    stage.close()
    figure(transactions=count, ms_each=round(min(spent_ms), 2), growth_mib=round(memory.growth / MIB, 1),
           bytes_each=memory.growth // count, **healthy.figures)  # fmt: skip
    assert min(spent_ms) <= 1 or not is_timed
    assert memory.growth <= 6 * 1024 * count + 8 * MIB
