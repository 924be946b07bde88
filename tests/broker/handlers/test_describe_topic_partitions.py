"""DescribeTopicPartitions: pages, their cursors, and how much of them the broker allows."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    RequestCursor,
    TopicRequest,
)
from tools.attack.hostile import ask, connect

TOPICS = {"a": 1, "b": 3, "c": 2}
EVERY_PARTITION = [(name, index) for name, count in TOPICS.items() for index in range(count)]
LIMIT = 4


@pytest.fixture(scope="module")
def connection() -> Iterator[socket.socket]:
    with Broker(configs={"max.request.partition.size.limit": str(LIMIT)}) as broker:
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions=partitions)
        with connect(broker.bootstrap_servers) as connection:
            yield connection


def describe(connection: socket.socket, *names: str, cursor: tuple[str, int] | None = None, limit: int = 2000) -> Any:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else RequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return ask(connection, request, 0, DescribeTopicPartitionsResponse)


def told(response: Any) -> list[tuple[str, int]]:
    return [(topic.name, partition.partition_index) for topic in response.topics for partition in topic.partitions]


def codes(response: Any) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 2000, 0, -5])
@pytest.mark.parametrize("names", [(), ("c", "b", "a", "b")], ids=["all topics", "named topics"])
def test_pages_tell_of_every_partition_once_and_in_order(
    connection: socket.socket, names: tuple[str, ...], limit: int
) -> None:
    found: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    while True:
        page = describe(connection, *names, cursor=cursor, limit=limit)
        assert 1 <= len(told(page)) <= min(max(1, limit), LIMIT)
        found += told(page)
        if page.next_cursor is None:
            break
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
        assert cursor == EVERY_PARTITION[len(found)]
    assert found == EVERY_PARTITION


def test_a_partition_is_told_with_its_leader_and_replicas(connection: socket.socket) -> None:
    (topic,) = describe(connection, "a").topics
    (partition,) = topic.partitions
    assert (topic.error_code, topic.is_internal) == (0, False)
    assert topic.topic_id != bytes(16)
    assert topic.topic_authorized_operations > 0
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert partition.replica_nodes == partition.isr_nodes == [1]
    assert partition.eligible_leader_replicas == partition.last_known_elr == partition.offline_replicas == []


def test_topics_that_do_not_exist_are_refused_and_not_created(connection: socket.socket) -> None:
    refused = {"no-such": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a b": ErrorCode.INVALID_TOPIC_EXCEPTION}
    for _ in range(2):
        assert codes(describe(connection, "a", "no-such", "a b")) == {"a": 0, **refused}
    assert set(codes(describe(connection))) <= set(TOPICS)


@pytest.mark.parametrize(
    ("names", "cursor"), [(("a", "b"), ("c", 0)), (("a", "b"), ("a", -1)), (("a", "a"), ("b", 0)), ((), ("a", -1))]
)
def test_cursors_that_point_nowhere_are_refused(
    connection: socket.socket, names: tuple[str, ...], cursor: tuple[str, int]
) -> None:
    refused = describe(connection, *names, cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in refused.topics] == [
        (name, ErrorCode.INVALID_REQUEST) for name in names
    ]


@pytest.mark.parametrize(
    ("cursor", "first"),
    [(("b", 3), ("c", 0)), (("b", 2**31 - 1), ("c", 0)), (("bb", 7), ("c", 0)), (("", 7), ("a", 0))],
)
def test_a_page_begins_at_its_cursor(
    connection: socket.socket, cursor: tuple[str, int], first: tuple[str, int]
) -> None:
    assert told(describe(connection, cursor=cursor))[0] == first
