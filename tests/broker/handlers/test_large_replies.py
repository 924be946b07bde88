"""Replies that would be too large: each API that tells what clients have stored refuses what does not fit any more, and
what comes after it, and its estimate is never below the size of what it sends.
"""

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from barnabas.broker.api.reply_room import ReplyRoom
from barnabas.broker.services import REPLY_BYTES_MAX
from barnabas.testing import Broker
from barnabas.testing.contents.requests import ask as ask_here
from barnabas.wire import codec
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.attack.hostile import answer, ask, connect, eventually, frame, produce

NONE, REFUSED = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
LONG = "x" * 4_000
OF_FOUR_BYTES = "\U0001f600" * 1_000
TOPIC, BROKER = 2, 4
WIDE, MANY = "wide", 300
LONG_TOPICS = [f"{number:x<200}" for number in range(10)]

Ask = Callable[[Message, int], Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    configs = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    with Broker(configs=configs) as broker:
        broker.create_topic(WIDE, partitions=MANY)
        for name in LONG_TOPICS:
            broker.create_topic(name)
        with connect(broker.bootstrap_servers) as connection:
            for key_type in (0, 1):
                find = FindCoordinatorRequest(key="x", key_type=key_type)
                assert eventually(
                    lambda find=find: ask(connection, find, 1, FindCoordinatorResponse).error_code == NONE,
                )
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[socket.socket]:
    with connect(broker.bootstrap_servers) as connection:
        yield connection


def join(
    connection: socket.socket,
    group_id: str,
    client_id: str = "c",
    instance_id: str | None = None,
    protocol_type: str = "consumer",
    protocol: str = "range",
    metadata: bytes = b"",
    assignment: bytes = b"",
) -> None:
    """Make a stable group of one member."""
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=protocol, metadata=metadata)],
    )
    version = 5 if instance_id else 3  # the first one is a member without being told its id first
    joined: list[Any] = []

    def is_let_in() -> bool:
        connection.sendall(frame(request, version, client_id=client_id))
        joined.append(answer(connection, request, version, JoinGroupResponse))
        return bool(joined[-1].error_code == NONE)

    assert eventually(is_let_in)
    sync = SyncGroupRequest(
        group_id=group_id,
        generation_id=joined[-1].generation_id,
        member_id=joined[-1].member_id,
        group_instance_id=instance_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined[-1].member_id, assignment=assignment)],
    )
    assert ask(connection, sync, 3, SyncGroupResponse).error_code == NONE


def commit(connection: socket.socket, group_id: str, topics: dict[str, int], metadata: str = "") -> None:
    """Commit offsets of so many partitions of each topic."""
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)
                    for index in range(count)
                ],
            )
            for name, count in topics.items()
        ],
    )

    def is_committed() -> bool:
        response = ask(connection, request, 5, OffsetCommitResponse)
        return {each.error_code for topic in response.topics for each in topic.partitions} == {NONE}

    assert eventually(is_committed)


def begin(connection: socket.socket, transactional_id: str, topics: dict[str, int]) -> None:
    """Begin a transaction on so many partitions of each topic."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    made: list[Any] = []

    def is_made() -> bool:
        made.append(ask(connection, request, 2, InitProducerIdResponse))
        return bool(made[-1].error_code == NONE)

    assert eventually(is_made)
    if topics:
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=made[-1].producer_id,
            v3_and_below_producer_epoch=made[-1].producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=list(range(count))) for name, count in topics.items()
            ],
        )
        added = ask(connection, add, 3, AddPartitionsToTxnResponse).results_by_topic_v3_and_below
        assert {each.partition_error_code for topic in added for each in topic.results_by_partition} == {NONE}


def write(connection: socket.socket, partition: int, producers: int) -> None:
    """One record each of so many producers."""
    for _ in range(producers):
        made = ask(
            connection,
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000),
            2,
            InitProducerIdResponse,
        )
        batch = build_batch([Record(0, 0, None, b"v")], producer_id=made.producer_id, producer_epoch=0, base_sequence=0)
        response = ask(connection, produce(WIDE, batch, partition=partition), 9, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == NONE


def alter(connection: socket.socket, kind: int, name: str, key: str, value: str) -> None:
    config = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = ask(connection, request, 1, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == NONE, response


def set_for_all_and_for_one(connection: socket.socket, key: str) -> None:
    for name in ("", "1"):
        alter(connection, BROKER, name, key, "v")


# What one request may name often


class Api(NamedTuple):
    """`request` asks for what these names say, and `entries` are the answers to them."""

    request: Callable[[list[Any]], Message]
    version: int
    entries: Callable[[Any], list[Any]]


GROUPS = Api(lambda names: DescribeGroupsRequest(groups=names), 5, lambda response: list(response.groups))
TRANSACTIONS = Api(
    lambda names: DescribeTransactionsRequest(transactional_ids=names),
    0,
    lambda response: list(response.transaction_states),
)
OFFSETS = Api(
    lambda names: OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]),
    8,
    lambda response: list(response.groups),
)
PRODUCERS = Api(
    lambda indexes: DescribeProducersRequest(topics=[TopicRequest(name=WIDE, partition_indexes=indexes)]),
    0,
    lambda response: [each for topic in response.topics for each in topic.partitions],
)
CONFIGS = Api(
    lambda resources: DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        ],
        include_synonyms=True,
        include_documentation=True,
    ),
    4,
    lambda response: list(response.results),
)
ONE_KEY = (TOPIC, WIDE, ["segment.jitter.ms"])
THROTTLED = "leader.replication.throttled.replicas"
MANY_REPLICAS = ",".join(f"{index}:0" for index in range(1_000))


class Case(NamedTuple):
    """Something small and something large, which `make` makes of their names."""

    api: Api
    make: Callable[[socket.socket, Any], None]
    large: Any
    small: Any


def of_group(**fields: Any) -> Case:
    (what,) = fields
    return Case(GROUPS, lambda connection, name: join(connection, name, **fields), f"large-{what}", f"small-{what}")


CASES = {
    "DescribeGroups, metadata": of_group(metadata=bytes(4_000)),
    "DescribeGroups, assignment": of_group(assignment=bytes(4_000)),
    "DescribeGroups, instance id": of_group(instance_id=LONG),
    "DescribeGroups, client id": of_group(client_id=LONG),
    "DescribeGroups, protocol type": of_group(protocol_type=LONG),
    "DescribeGroups, protocol": of_group(protocol=OF_FOUR_BYTES),
    "DescribeTransactions, partitions": Case(
        TRANSACTIONS, lambda connection, name: begin(connection, name, {WIDE: MANY}), "large", "small"
    ),
    "DescribeTransactions, topics": Case(
        TRANSACTIONS,
        lambda connection, name: begin(connection, name, dict.fromkeys(LONG_TOPICS, 1)),
        "large-topics",
        "small",
    ),
    "DescribeTransactions, id": Case(
        TRANSACTIONS, lambda connection, name: begin(connection, name, {}), OF_FOUR_BYTES, "small"
    ),
    "OffsetFetch, metadata": Case(
        OFFSETS,
        lambda connection, name: commit(connection, name, {WIDE: 1}, OF_FOUR_BYTES),
        "offsets-metadata",
        "small",
    ),
    "OffsetFetch, partitions": Case(
        OFFSETS, lambda connection, name: commit(connection, name, {WIDE: MANY}), "offsets-partitions", "small"
    ),
    "OffsetFetch, topics": Case(
        OFFSETS,
        lambda connection, name: commit(connection, name, dict.fromkeys(LONG_TOPICS, 1)),
        "offsets-topics",
        "small",
    ),
    "DescribeProducers": Case(PRODUCERS, lambda connection, index: write(connection, index, 40), 1, 2),
    "DescribeConfigs, number": Case(CONFIGS, lambda *_: None, (BROKER, "1", None), ONE_KEY),
    "DescribeConfigs, value": Case(
        CONFIGS,
        lambda connection, _: alter(connection, TOPIC, WIDE, THROTTLED, MANY_REPLICAS),
        (TOPIC, WIDE, [THROTTLED]),
        ONE_KEY,
    ),
    "DescribeConfigs, name": Case(
        CONFIGS,
        lambda connection, _: set_for_all_and_for_one(connection, LONG),
        (BROKER, "1", [LONG]),
        ONE_KEY,
    ),
}


def reply(broker: Broker, request: Message, version: int, bytes_max: int = REPLY_BYTES_MAX) -> Any:
    """The answer of a broker whose replies may have so many bytes."""
    server = broker.server
    assert server is not None
    server.services = replace(server.services, reply_bytes_max=bytes_max)
    return broker.call(ask_here(server, request, version))


def error_codes(broker: Broker, api: Api, names: list[Any], bytes_max: int = REPLY_BYTES_MAX) -> list[ErrorCode]:
    answer = reply(broker, api.request(names), api.version, bytes_max)
    return [ErrorCode(entry.error_code) for entry in api.entries(answer)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_entries_from_the_first_that_does_not_fit_are_refused(
    broker: Broker, connection: socket.socket, case: Case
) -> None:
    """Where the limit is what the large one takes, another one besides is too much; where it is ten times that, ten are
    answered at most."""
    case.make(connection, case.large)
    size = len(codec.encode(reply(broker, case.api.request([case.large]), case.api.version), case.api.version))
    assert size > 1_000
    small, large = error_codes(broker, case.api, [case.small, case.large])
    assert large == NONE
    assert error_codes(broker, case.api, [case.small, case.large, case.small], size) == [small, REFUSED, REFUSED]
    found = error_codes(broker, case.api, [case.large] * 20, 10 * size)
    answered = found.index(REFUSED)
    assert 1 <= answered <= 10
    assert found == [NONE] * answered + [REFUSED] * (20 - answered)


LISTS = {
    "ListGroups, ids": (ListGroupsRequest(), 4, lambda connection: join(connection, OF_FOUR_BYTES)),
    "ListGroups, protocol types": (
        ListGroupsRequest(),
        4,
        lambda connection: join(connection, "g", protocol_type=OF_FOUR_BYTES),
    ),
    "ListTransactions, ids": (ListTransactionsRequest(), 1, lambda connection: begin(connection, OF_FOUR_BYTES, {})),
    "ListTransactions, ids that match": (
        ListTransactionsRequest(transactional_id_pattern=".+"),
        2,
        lambda connection: begin(connection, OF_FOUR_BYTES, {}),
    ),
}


@pytest.mark.parametrize(("request_", "version", "make"), LISTS.values(), ids=LISTS)
def test_a_list_that_does_not_fit_is_refused(
    broker: Broker,
    connection: socket.socket,
    request_: Message,
    version: int,
    make: Callable[[socket.socket], None],
) -> None:
    make(connection)
    whole = reply(broker, request_, version)
    size = len(codec.encode(whole, version))
    assert whole.error_code == NONE
    assert size > 1_000
    refused = reply(broker, request_, version, size - 20)
    assert refused.error_code == REFUSED
    assert len(codec.encode(refused, version)) < 20
    assert codec.encode(reply(broker, request_, version, 10 * size), version) == codec.encode(whole, version)


def test_nothing_is_worked_out_for_a_reply_that_is_full() -> None:
    room: ReplyRoom[str, bytes] = ReplyRoom(len, REPLY_BYTES_MAX)
    with pytest.raises(ApiError, match="larger than 33554432 bytes"):
        room.first("large", bytes(32 * 1024 * 1024 + 1))
    for question in ("large", "another"):
        with pytest.raises(ApiError):
            room.again(question)
