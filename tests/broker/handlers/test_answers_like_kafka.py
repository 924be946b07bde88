"""Details of answers that Apache Kafka's own answers have taught: what is null, left out, or said beside an error."""

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.wire import codec, headers, messages
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestTopic
from tools.waiting import PATIENCE_S

Ask = Callable[[Any, int], Any]
INVALID_REQUEST, FENCED = 42, 74


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    with Broker() as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection,
            connection.makefile("rb") as stream,
        ):

            def ask(request: Any, version: int) -> Any:
                key = request.API_KEY
                frame = headers.request_header(key, version, 1, "test") + codec.encode(request, version)
                connection.sendall(struct.pack(">i", len(frame)) + frame)
                (size,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(size)
                _, position = headers.parse_response_header(answer, key, version)
                return codec.decode(messages.api(key).response_class, version, answer, position)

            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            yield ask


def test_a_topic_without_partitions_is_not_answered(ask: Ask) -> None:
    ask(FindCoordinatorRequest(key="g"), 0)
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[offset])]
    while ask(OffsetCommitRequest(group_id="g", topics=topics), 8).topics[0].partitions[0].error_code:
        pass  # the coordinator is starting
    assert ask(OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t")]), 0).topics == []


def test_list_offsets_fences_a_negative_epoch(ask: Ask) -> None:
    """Fetch takes any negative epoch for none."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-2)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    assert ask(request, 9).topics[0].partitions[0].error_code == FENCED


def test_a_partition_named_twice_is_refused_once(ask: Ask) -> None:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked, asked])])
    (topic,) = ask(request, 7).topics
    assert [partition.error_code for partition in topic.partitions] == [INVALID_REQUEST]


def test_a_refused_metadata_request_tells_nothing(ask: Ask) -> None:
    answer = ask(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 10)
    assert (answer.brokers, answer.cluster_id, answer.controller_id) == ([], None, -1)
    assert [topic.error_code for topic in answer.topics] == [INVALID_REQUEST]


def test_messages_beside_errors(ask: Ask) -> None:
    topics = [TopicRequest(name="no-such", partition_indexes=[0]), TopicRequest(name="t", partition_indexes=[7])]
    unknown, missing = ask(DescribeProducersRequest(topics=topics), 0).topics
    assert unknown.partitions[0].error_message
    assert missing.partitions[0].error_message is None
    growing = CreatePartitionsTopic(name="no-such", count=2, assignments=None)
    (result,) = ask(CreatePartitionsRequest(topics=[growing], timeout_ms=1000), 3).results
    assert (result.error_code, result.error_message) == (3, None)
