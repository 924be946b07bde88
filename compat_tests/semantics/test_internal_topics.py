"""A coordinator whose topic gets more partitions while it runs."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.coordinators.runtime import abs_java_hash
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from compat_tests.semantics.client import Connection, topic_metadata
from tools.waiting import wait_until

KEYS = [f"key-{number}" for number in range(30)]
GROUP, TRANSACTION = 0, 1


@pytest.fixture
def small_cluster(start_cluster: Callable[..., Any]) -> Any:
    return start_cluster({"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"})


def is_served(connection: Connection, key_type: int) -> bool:
    answer = connection.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=KEYS), 4)
    return not any(found.error_code for found in answer.coordinators)


def expand(connection: Connection, topic: str) -> None:
    wanted = CreatePartitionsTopic(name=topic, count=4, assignments=None)
    answer = connection.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000), 2)
    assert answer.results[0].error_code == ErrorCode.NONE
    wait_until(lambda: len(topic_metadata(connection, topic).partitions) == 4)


def stay(keys: list[str]) -> list[bool]:
    """Whether each key has the same partition of 4 as it had of 3."""
    return [abs_java_hash(key) % 3 == abs_java_hash(key) % 4 for key in keys]


def commit(connection: Connection, group: str, offset: int) -> bool:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name=GROUP_METADATA_TOPIC, partitions=[partition])
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
    return bool(connection.ask(request, 8).topics[0].partitions[0].error_code == ErrorCode.NONE)


def committed(connection: Connection, group: str) -> int:
    """-1 if there is nothing."""
    topic = OffsetFetchRequestTopic(name=GROUP_METADATA_TOPIC, partition_indexes=[0])
    found = []

    def is_told() -> bool:
        answer = connection.ask(OffsetFetchRequest(group_id=group, topics=[topic]), 6)
        if not answer.error_code:
            found.append(answer.topics[0].partitions[0].committed_offset)
        return bool(found)

    wait_until(is_told)
    return int(found[0])


def test_groups_keep_their_offsets_until_the_next_start(small_cluster: Any) -> None:
    with Connection(small_cluster.bootstrap_servers) as connection:
        wait_until(lambda: is_served(connection, GROUP))
        for number, group in enumerate(KEYS):
            wait_until(lambda group=group, number=number: commit(connection, group, number))
        expand(connection, GROUP_METADATA_TOPIC)
        assert [committed(connection, group) for group in KEYS] == list(range(30))
        assert all(commit(connection, group, 100) for group in KEYS)
        assert [committed(connection, group) for group in KEYS] == [100] * 30
    small_cluster.stop()
    small_cluster.start()
    with Connection(small_cluster.bootstrap_servers) as connection:
        wait_until(lambda: is_served(connection, GROUP))
        expected = [100 if stays else -1 for stays in stay(KEYS)]
        assert [committed(connection, group) for group in KEYS] == expected


def producer_id(connection: Connection, transactional_id: str) -> int:
    found = []

    def is_told() -> bool:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000)
        answer = connection.ask(request, 3)
        if not answer.error_code:
            found.append(answer.producer_id)
        return bool(found)

    wait_until(is_told)
    return int(found[0])


def known(connection: Connection) -> list[bool]:
    """Whether the coordinator knows each transactional id; asked again where it still loads what it knows."""
    codes: list[int] = []

    def is_loaded() -> bool:
        answer = connection.ask(DescribeTransactionsRequest(transactional_ids=KEYS), 0)
        codes[:] = [state.error_code for state in answer.transaction_states]
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in codes

    wait_until(is_loaded)
    assert set(codes) <= {ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    return [code == ErrorCode.NONE for code in codes]


def test_producers_keep_their_ids_until_the_next_start(small_cluster: Any) -> None:
    with Connection(small_cluster.bootstrap_servers) as connection:
        wait_until(lambda: is_served(connection, TRANSACTION))
        producers = [producer_id(connection, each) for each in KEYS]
        expand(connection, TRANSACTION_STATE_TOPIC)
        assert all(known(connection))
        assert [producer_id(connection, each) for each in KEYS] == producers
    small_cluster.stop()
    small_cluster.start()
    with Connection(small_cluster.bootstrap_servers) as connection:
        wait_until(lambda: is_served(connection, TRANSACTION))
        for each, stays in zip(KEYS, stay(KEYS), strict=True):
            if stays:  # its shard is loaded then
                producer_id(connection, each)
        assert known(connection) == stay(KEYS)
