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
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tools.waiting import PATIENCE_S

Ask = Callable[[Any, int], Any]
INVALID_RECORD, CORRUPT_MESSAGE, NOT_LEADER, INVALID_REQUEST, FENCED = 87, 2, 6, 42, 74


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


def batch() -> bytearray:
    return build_batch([Record(0, 1, None, b"x")])


def produced(ask: Ask, records: Any, name: str = "t") -> Any:
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=name, partition_data=[data])])
    return ask(request, 9).responses[0].partition_responses[0]


def test_a_batch_that_the_log_refuses_is_answered_with_its_start(ask: Ask) -> None:
    wrong = batch()
    struct.pack_into(">q", wrong, 0, 5)  # a base offset, outside the checksum
    answer = produced(ask, wrong)
    assert (answer.error_code, answer.log_start_offset, answer.error_message) == (INVALID_RECORD, 0, None)


@pytest.mark.parametrize(("position", "layout", "value"), [(8, ">i", -1), (8, ">i", 13), (16, ">b", 3)])
def test_what_cannot_be_a_batch_is_explained(ask: Ask, position: int, layout: str, value: int) -> None:
    wrong = batch()
    struct.pack_into(layout, wrong, position, value)
    answer = produced(ask, wrong)
    assert (answer.error_code, answer.log_start_offset) == (CORRUPT_MESSAGE, -1)
    assert answer.error_message


def test_other_errors_of_produce_are_not_explained(ask: Ask) -> None:
    wrong = batch()
    wrong[-1] ^= 1
    for answer in (produced(ask, wrong), produced(ask, batch(), "no-such"), produced(ask, batch()[:40])):
        assert answer.error_code
        assert (answer.error_message, answer.log_start_offset) == (None, -1)


def test_a_topic_without_partitions_is_not_answered(ask: Ask) -> None:
    assert ask(ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t")]), 9).responses == []
    ask(FindCoordinatorRequest(key="g"), 0)
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[offset])]
    while ask(OffsetCommitRequest(group_id="g", topics=topics), 8).topics[0].partitions[0].error_code:
        pass  # the coordinator is starting
    assert ask(OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t")]), 0).topics == []


def fetched(ask: Ask, name: str = "t", epoch: int = -1, replica_id: int = -1) -> Any:
    partition = FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1000)
    topics = [FetchTopic(topic=name, partitions=[partition])]
    return ask(FetchRequest(max_bytes=1000, session_epoch=-1, topics=topics, replica_id=replica_id), 12).responses[0]


def test_fetch_takes_any_negative_epoch_for_none(ask: Ask) -> None:
    assert fetched(ask, epoch=-2).partitions[0].error_code == 0
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-2)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    assert ask(request, 9).topics[0].partitions[0].error_code == FENCED


def test_aborted_transactions_of_errors(ask: Ask) -> None:
    assert fetched(ask, "no-such").partitions[0].aborted_transactions == []
    assert fetched(ask, epoch=9).partitions[0].aborted_transactions is None


def test_the_leader_does_not_follow_itself(ask: Ask) -> None:
    node_id = ask(MetadataRequest(topics=[]), 9).brokers[0].node_id
    assert fetched(ask, replica_id=node_id).partitions[0].error_code == NOT_LEADER


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
