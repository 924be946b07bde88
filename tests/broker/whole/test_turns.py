"""Long work of one request, in pieces: between them everybody else has a turn of the event loop."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import barnabas.broker.cluster.metadata
import barnabas.broker.configuration.changes
import barnabas.broker.handlers.alter_partition_reassignments
import barnabas.broker.handlers.delete_groups
import barnabas.broker.handlers.delete_topics
import barnabas.broker.handlers.describe_groups
import barnabas.broker.handlers.describe_topic_partitions
import barnabas.broker.handlers.describe_transactions
import barnabas.broker.handlers.find_coordinator
import barnabas.broker.handlers.offset_commit
import barnabas.broker.handlers.offset_fetch
import barnabas.broker.handlers.produce
import barnabas.broker.handlers.write_txn_markers
import barnabas.controller.operations.creation
import barnabas.controller.operations.expansion
import barnabas.controller.operations.reassignment
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.configuration.topics import TopicConfigs
from barnabas.broker.coordinators.transactions.id_pattern import STEPS_PER_TURN, IdPattern
from barnabas.broker.replication import append_operation
from barnabas.broker.replication.append_operation import APPENDS_AT_ONCE
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.server import Broker
from barnabas.controller.operations.deletion import DeleteTopics
from barnabas.controller.state import TopicState
from barnabas.controller.topics import NewTopic
from barnabas.storage.log_manager import LogManager
from barnabas.testing.contents.requests import ask
from barnabas.testing.waiting.conditions import wait_until
from barnabas.turns import ENTRIES_PER_TURN, LOGS_PER_TURN, InPieces, Turns, in_turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.records import Record, build_batch
from tests.broker.running import running
from tests.support.watched_calls import TurnsTaken

pytestmark = pytest.mark.slow

PARTITIONS = ENTRIES = 3 * ENTRIES_PER_TURN + 1

REASSIGN = AlterPartitionReassignmentsRequest(
    topics=[
        ReassignableTopic(
            name="t", partitions=[ReassignablePartition(partition_index=n, replicas=[0]) for n in range(ENTRIES)]
        )
    ],
    timeout_ms=1_000,
)
DELETE_TOPICS = DeleteTopicsRequest(
    topics=[DeleteTopicState(name=f"t{number}") for number in range(ENTRIES)], timeout_ms=1_000
)


def commit(topics: list[list[int]]) -> OffsetCommitRequest:
    """Offsets of these partitions of topics, all named `t`."""
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="t", partitions=[OffsetCommitRequestPartition(partition_index=index) for index in partitions]
            )
            for partitions in topics
        ],
    )


def test_a_turn_comes_after_each_so_many_entries() -> None:
    async def work(entries: int) -> list[int]:
        done, seen = 0, []

        async def look() -> None:
            while True:
                seen.append(done)
                await asyncio.sleep(0)

        other = asyncio.create_task(look())
        turns = Turns(10)
        for _ in range(entries):
            done += 1
            await turns.after_one()
        other.cancel()
        return seen

    assert asyncio.run(work(9)) == []
    assert asyncio.run(work(35)) == [10, 20, 30]


def test_work_of_one_piece_is_immediate_and_more_takes_turns() -> None:
    def work(pieces: int, done: list[int]) -> InPieces[str]:
        for number in range(pieces):
            if number:
                yield
            done.append(number)
        return "done"

    assert in_turns(work(1, [])) == "done"

    async def scenario() -> None:
        done: list[int] = []
        seen: list[int] = []
        rest = in_turns(work(4, done))
        assert done == [0]
        assert not isinstance(rest, str)
        task = asyncio.ensure_future(rest)
        while not task.done():
            await asyncio.sleep(0)
            seen.append(len(done))
        assert (task.result(), seen) == ("done", [1, 2, 3, 4])

    asyncio.run(scenario())


def test_creations_and_deletions_leave_the_loop_turns(tmp_path: Path) -> None:
    """Between two turns few logs are made, and nobody ever sees a part of the topic."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            seen: set[int] = set()

            def look() -> None:
                topic = broker.metadata.topic("many")
                seen.add(0 if topic is None else len(topic.partitions))

            taken = TurnsTaken(look)
            taken.watch(LogManager, "get_or_create")
            taken.watch(LogManager, "delete")
            taken.watch(barnabas.broker.cluster.metadata, "_partition")
            outcomes = await broker.controller.create_topics([NewTopic("many", PARTITIONS, 1)])
            assert outcomes[0].error is ErrorCode.NONE
            assert await broker.controller.delete_topics(["many"]) == {"many": None}
            taken.end()
            assert seen == {0, PARTITIONS}
            assert taken.calls("get_or_create") == (PARTITIONS, LOGS_PER_TURN)
            assert taken.calls("_partition") == (PARTITIONS, ENTRIES_PER_TURN)
            assert taken.calls("delete") == (PARTITIONS, LOGS_PER_TURN)
            assert list(broker.replicas.partitions()) == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_message", "version", "owner", "name"),
    [
        (
            CreateTopicsRequest(
                topics=[CreatableTopic(name=f"t{n}", num_partitions=1, replication_factor=1) for n in range(ENTRIES)],
                timeout_ms=1_000,
                validate_only=True,
            ),
            7,
            TopicConfigs,
            "created",
        ),
        (
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(name="t", configs=[CreatableTopicConfig(name="retention.ms", value="1")])
                    for _ in range(ENTRIES)
                ],
                timeout_ms=1_000,
            ),
            7,
            TopicConfigs,
            "validate",
        ),
        (
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=f"t{n}", count=2) for n in range(ENTRIES)], timeout_ms=1_000
            ),
            3,
            barnabas.controller.operations.expansion,
            "check_expansion",
        ),
        (
            IncrementalAlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=2, resource_name=f"t{n}") for n in range(ENTRIES)]
            ),
            1,
            barnabas.broker.configuration.changes,
            "_check_names",
        ),
        (
            WriteTxnMarkersRequest(
                markers=[
                    WritableTxnMarker(producer_id=n, topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])])
                    for n in range(ENTRIES)
                ]
            ),
            1,
            barnabas.broker.handlers.write_txn_markers,
            "_write",
        ),
        (REASSIGN, 0, barnabas.controller.operations.reassignment, "check_reassignment"),
        (REASSIGN, 0, barnabas.broker.handlers.alter_partition_reassignments, "_result"),
        (DELETE_TOPICS, 6, barnabas.broker.handlers.delete_topics, "_Entry"),
        (DELETE_TOPICS, 6, DeleteTopics, "_obstacle"),
        (DELETE_TOPICS, 6, barnabas.broker.handlers.delete_topics, "DeletableTopicResult"),
        (
            DeleteTopicsRequest(
                topics=[
                    DeleteTopicState(name=None, topic_id=number.to_bytes(16, "big")) for number in range(1, ENTRIES + 1)
                ],
                timeout_ms=1_000,
            ),
            6,
            barnabas.broker.handlers.delete_topics,
            "ApiError",
        ),
        (
            DescribeTopicPartitionsRequest(topics=[TopicRequest(name=f"t{n}") for n in range(ENTRIES)]),
            0,
            barnabas.broker.handlers.describe_topic_partitions,
            "_missing",
        ),
        (
            DeleteGroupsRequest(groups_names=[f"g{n}" for n in range(ENTRIES)]),
            2,
            barnabas.broker.handlers.delete_groups,
            "DeletableGroupResult",
        ),
        (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=f"g{n}", topics=[]) for n in range(ENTRIES)]),
            9,
            barnabas.broker.handlers.offset_fetch,
            "OffsetFetchResponseGroup",
        ),
        (
            FindCoordinatorRequest(coordinator_keys=[f"g{n}" for n in range(ENTRIES)]),
            4,
            barnabas.broker.handlers.find_coordinator,
            "_find",
        ),
        (
            DescribeGroupsRequest(groups=[f"g{n}" for n in range(ENTRIES)]),
            5,
            barnabas.broker.handlers.describe_groups,
            "_describe",
        ),
        (
            DescribeTransactionsRequest(transactional_ids=[f"t{n}" for n in range(ENTRIES)]),
            0,
            barnabas.broker.handlers.describe_transactions,
            "_describe",
        ),
        (commit([list(range(ENTRIES))]), 8, barnabas.broker.handlers.offset_commit, "_look_up"),
        (commit([[0]] * ENTRIES), 8, barnabas.broker.handlers.offset_commit, "_look_up"),
        (commit([[0]] * ENTRIES), 10, barnabas.broker.handlers.offset_commit, "_look_up"),
    ],
    ids=[
        "create, validate only",
        "create, one name",
        "expand",
        "alter configs",
        "markers",
        "reassign: checked",
        "reassign: answered",
        "delete topics: read",
        "delete topics: checked",
        "delete topics: answered",
        "delete topics: ids resolved",
        "describe topics",
        "delete groups",
        "offsets of many groups",
        "find coordinators",
        "describe groups",
        "describe transactions",
        "commit, one topic",
        "commit, many topics",
        "commit, many topics by id",
    ],
)
def test_a_request_with_many_entries_leaves_the_loop_to_others(
    tmp_path: Path, request_message: Any, version: int, owner: Any, name: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            taken = TurnsTaken()
            taken.watch(owner, name)
            await ask(broker, request_message, version)
            taken.end()
            calls, most = taken.calls(name)
            assert calls == ENTRIES
            assert most <= ENTRIES_PER_TURN

    asyncio.run(scenario())


def test_long_ids_leave_the_loop_to_others_sooner(tmp_path: Path) -> None:
    keys = [f"{number:04}" + "x" * 32_000 for number in range(50)]

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            taken = TurnsTaken()
            taken.watch(barnabas.broker.handlers.find_coordinator, "_find")
            await ask(broker, FindCoordinatorRequest(coordinator_keys=keys), 4)
            taken.end()
            assert taken.calls("_find") == (50, 1)

    asyncio.run(scenario())


async def group_coordinator(broker: Broker) -> None:
    """Return when the groups of `__consumer_offsets` are here."""
    await broker.controller.create_topics([NewTopic(GROUP_METADATA_TOPIC, 1, 1)])
    await wait_until(lambda: list(broker.groups.runtime.runners()) or None, broker.groups.runtime.listeners)


def test_offsets_of_many_topics_are_fetched_in_slices(tmp_path: Path) -> None:
    topics = [OffsetFetchRequestTopics(name=f"t{number}", partition_indexes=[0]) for number in range(ENTRIES)]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await group_coordinator(broker)
            taken = TurnsTaken()
            taken.watch(barnabas.broker.handlers.offset_fetch, "OffsetFetchResponseTopics")
            response = await ask(broker, request, 9)
            taken.end()
            assert [topic.name for topic in response.groups[0].topics] == [f"t{number}" for number in range(ENTRIES)]
            assert taken.calls("OffsetFetchResponseTopics") == (ENTRIES, ENTRIES_PER_TURN)

    asyncio.run(scenario())


def test_a_topic_deleted_between_turns_keeps_no_offset(tmp_path: Path) -> None:
    """The next topic of its name would be read from there."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await group_coordinator(broker)
            await broker.controller.create_topics([NewTopic("t", 1, 1), NewTopic("u", 1, 1)])
            request = commit([[0]] * ENTRIES)
            request.topics.append(
                OffsetCommitRequestTopic(name="u", partitions=[OffsetCommitRequestPartition(partition_index=0)])
            )
            committing = asyncio.create_task(ask(broker, request, 8))
            await asyncio.sleep(0)
            assert not committing.done()
            del broker.metadata._topics["t"]
            answers = (await committing).topics
            errors = [topic.partitions[0].error_code for topic in answers]
            assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * ENTRIES + [ErrorCode.NONE]
            stored = await broker.groups.fetch_offsets("g", None, require_stable=False)
            assert list(stored) == ["u"]

    asyncio.run(scenario())


@pytest.mark.parametrize("known", [True, False])
def test_producing_to_many_partitions_leaves_the_loop_to_others(tmp_path: Path, known: bool) -> None:
    """In order, from a copy of the bytes that the next request of some connection overwrites."""
    entries = APPENDS_AT_ONCE + ENTRIES
    batch = build_batch([Record(0, 0, None, b"value")])
    received = bytearray(batch * entries)
    views = [memoryview(received)[start : start + len(batch)] for start in range(0, len(received), len(batch))]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1_000,
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[PartitionProduceData(index=n % 2, records=view) for n, view in enumerate(views)],
            )
        ],
    )

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            if known:
                await broker.controller.create_topics([NewTopic("t", 2, 1)])
            taken = TurnsTaken()
            taken.watch(ReplicaManager, "append")
            producing = asyncio.create_task(ask(broker, request, 9))
            await asyncio.sleep(0)
            received[:] = bytes(len(received))
            answers = (await producing).responses[0].partition_responses
            taken.end()
            calls, most = taken.calls("append")
            assert calls == entries
            assert APPENDS_AT_ONCE <= most < APPENDS_AT_ONCE + ENTRIES_PER_TURN, "at once, and the first of the rest"
            error = ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert [answer.error_code for answer in answers] == [error] * entries
            if known:
                assert [answer.base_offset for answer in answers] == [n // 2 for n in range(entries)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("transactional_id", "watched"),
    [(None, (barnabas.broker.handlers.produce, "_message")), ("x", (append_operation, "parse_header"))],
)
def test_many_transactional_batches_leave_the_loop_turns(
    tmp_path: Path, transactional_id: str | None, watched: tuple[Any, str]
) -> None:
    """Refused without an id; with one, of two producers."""
    batches = [
        build_batch(
            [Record(0, 0, None, b"v")], producer_id=n % 2, producer_epoch=0, base_sequence=0, transactional=True
        )
        for n in range(ENTRIES)
    ]
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1_000,
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=memoryview(b)) for b in batches]
            )
        ],
    )

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            taken = TurnsTaken()
            taken.watch(*watched)
            producing = asyncio.create_task(ask(broker, request, 9))
            await asyncio.sleep(0)
            for batch in batches:
                batch[:] = bytes(len(batch))
            answers = (await producing).responses[0].partition_responses
            taken.end()
            assert taken.calls(watched[1]) == (ENTRIES, ENTRIES_PER_TURN)
            expected = (
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                if transactional_id is None
                else ErrorCode.INVALID_PRODUCER_ID_MAPPING
            )
            assert [answer.error_code for answer in answers] == [expected] * ENTRIES

    asyncio.run(scenario())


def test_creating_many_topics_is_planned_in_slices(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            taken = TurnsTaken()
            taken.watch(barnabas.controller.operations.creation, "first_states")
            outcomes = await broker.controller.create_topics(
                [NewTopic(f"t{number}", 1, 1) for number in range(ENTRIES)]
            )
            taken.end()
            assert {outcome.error for outcome in outcomes} == {ErrorCode.NONE}
            assert taken.calls("first_states") == (ENTRIES, ENTRIES_PER_TURN)
            assert len(list(broker.replicas.partitions())) == ENTRIES

    asyncio.run(scenario())


def test_transactional_ids_are_compared_in_turns_per_list(tmp_path: Path) -> None:
    ids = [f"id-{number:02}-{'x' * 4_000}" for number in range(20)]
    pattern = "id-1.*"
    per_turn = math.ceil(STEPS_PER_TURN / IdPattern(pattern).steps(ids[0].encode()))

    async def scenario() -> None:
        async with running(tmp_path, **{"transaction.state.log.num.partitions": "1"}) as broker:
            await broker.controller.create_topics([NewTopic(TRANSACTION_STATE_TOPIC, 1, 1)])
            runtime = broker.services.transactions.runtime
            await wait_until(lambda: list(runtime.runners()) or None, runtime.listeners)
            for transactional_id in ids:
                init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1_000)
                assert (await ask(broker, init, 4)).error_code == ErrorCode.NONE
            taken = TurnsTaken()
            taken.watch(IdPattern, "matches")
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            responses = await asyncio.gather(*(ask(broker, request, 2) for _ in range(3)))
            taken.end()
            for response in responses:
                assert sorted(each.transactional_id for each in response.transaction_states) == ids[10:]
            calls, most = taken.calls("matches")
            assert calls == 3 * len(ids)
            assert most <= per_turn < len(ids) / 2

    asyncio.run(scenario())


def test_ids_of_topics_to_delete_are_looked_up_in_one_pass(tmp_path: Path) -> None:
    """Not among all topics for each of them: a request may name tens of thousands."""
    looks = 0

    class Topics(dict[str, TopicState]):
        def values(self) -> Any:
            nonlocal looks
            looks += 1
            return super().values()

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await broker.controller.create_topics([NewTopic("t", 1, 1)])
            cluster = broker.controller.cluster
            broker.controller._context.cluster = cluster._replace(topics=Topics(cluster.topics))
            ids = [number.to_bytes(16, "big") for number in range(1, 101)]
            topics = [DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids]
            request = DeleteTopicsRequest(topics=topics, timeout_ms=1_000)
            response = await ask(broker, request, 6)
            assert {answer.error_code for answer in response.responses} == {ErrorCode.UNKNOWN_TOPIC_ID}

    asyncio.run(scenario())
    assert 1 <= looks <= 2
