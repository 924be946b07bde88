"""A broker's responses in a cluster: the leaders, the addresses, and the requests that it does not serve itself."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.handlers import load_handler
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.session import Session, client_id_of_broker
from barnabas.broker.security.broker_secrets import RegisteredSecrets
from barnabas.broker.server import Broker
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from barnabas.wire.records import Record, build_batch
from tests.broker.running import running

HERE, OTHER, HIDDEN, DEAD = 1, 2, 3, 4
"""The broker that is asked; another one; one without a listener for clients; one that is not alive."""

TOPIC_ID = bytes([7] * 16)
PARTITIONS = (
    (OTHER, [OTHER, HERE], [OTHER, HERE], []),
    (HIDDEN, [HIDDEN, HERE], [HIDDEN], []),
    (DEAD, [DEAD, OTHER], [DEAD], [DEAD]),
    (-1, [OTHER, DEAD], [OTHER], []),
    (OTHER, [OTHER, DEAD, HIDDEN, HERE], [OTHER], [HERE]),
)
"""Leader, replicas, those in sync, and those that the controller says are offline."""


def told(name: str, topic_id: bytes, partitions: Any) -> UpdateMetadataTopicState:
    states = [
        UpdateMetadataPartitionState(
            partition_index=index, leader=leader, leader_epoch=5, isr=isr, replicas=replicas, offline_replicas=offline
        )
        for index, (leader, replicas, isr, offline) in enumerate(partitions)
    ]
    return UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=states)


@asynccontextmanager
async def one_of_several(data_dir: Path):
    async with running(data_dir) as broker:
        live = [
            UpdateMetadataBroker(
                id=broker_id,
                rack=f"r{broker_id}",
                endpoints=[
                    UpdateMetadataEndpoint(host=f"host{broker_id}.{listener}", port=9092, listener=listener)
                    for listener in listeners
                ],
            )
            for broker_id, listeners in ((HERE, ["PLAINTEXT"]), (OTHER, ["PLAINTEXT", "INSIDE"]), (HIDDEN, ["INSIDE"]))
        ]
        request = UpdateMetadataRequest(
            controller_id=OTHER, live_brokers=live, topic_states=[told("t", TOPIC_ID, PARTITIONS)]
        )
        await broker.metadata.update(request)
        yield broker


def with_broker(test: Callable[[Broker], Awaitable[None]]) -> Callable[[Path], None]:
    """Runs a test on a broker that was told of others."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        async def call() -> None:
            async with one_of_several(tmp_path) as broker:
                await test(broker)

        asyncio.run(call())

    del run.__wrapped__  # type: ignore[attr-defined]  # its parameter is no fixture
    return run


@with_broker
async def test_metadata_tells_of_brokers_that_the_listener_reaches(broker: Broker) -> None:
    answer = await ask(broker, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    assert [(node.node_id, node.host, node.rack) for node in answer.brokers] == [
        (HERE, "host1.PLAINTEXT", "r1"),
        (OTHER, "host2.PLAINTEXT", "r2"),
    ]
    assert answer.controller_id == OTHER
    [topic] = answer.topics
    none, missing, hidden = ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND
    assert [(p.error_code, p.leader_id) for p in topic.partitions] == [
        (none, OTHER),
        (hidden, -1),
        (missing, -1),
        (missing, -1),
        (none, OTHER),
    ]
    assert [p.leader_epoch for p in topic.partitions] == [5] * 5
    assert [p.replica_nodes for p in topic.partitions] == [replicas for _, replicas, _, _ in PARTITIONS]
    assert [p.isr_nodes for p in topic.partitions] == [isr for _, _, isr, _ in PARTITIONS]


@with_broker
async def test_unreachable_replicas_are_offline(broker: Broker) -> None:
    """For any state that the controller sent: their broker is not alive, or has no listener for this client."""
    offline = [[], [HIDDEN], [DEAD], [DEAD], [DEAD, HIDDEN, HERE]]
    answer = await ask(broker, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    assert [p.offline_replicas for p in answer.topics[0].partitions] == offline
    described = await ask(broker, DescribeTopicPartitionsRequest(response_partition_limit=10), 0)
    [topic] = described.topics
    assert [p.offline_replicas for p in topic.partitions] == offline
    assert [p.leader_id for p in topic.partitions] == [OTHER, -1, -1, -1, OTHER]


@with_broker
async def test_old_versions_of_metadata(broker: Broker) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    five = (await ask(broker, request, 5)).topics[0].partitions
    assert five[1].error_code == ErrorCode.LEADER_NOT_AVAILABLE, "LISTENER_NOT_FOUND is newer"
    zero = (await ask(broker, request, 0)).topics[0].partitions
    assert [(p.error_code, p.replica_nodes, p.isr_nodes) for p in zero] == [
        (ErrorCode.NONE, [OTHER, HERE], [OTHER, HERE]),
        (ErrorCode.LEADER_NOT_AVAILABLE, [HERE], []),
        (ErrorCode.LEADER_NOT_AVAILABLE, [OTHER], []),
        (ErrorCode.LEADER_NOT_AVAILABLE, [OTHER], [OTHER]),
        (ErrorCode.REPLICA_NOT_AVAILABLE, [OTHER, HERE], [OTHER]),
    ]


@with_broker
async def test_the_cluster_is_described_as_the_listener_sees_it(broker: Broker) -> None:
    answer = await ask(broker, DescribeClusterRequest(), 1)
    assert (answer.controller_id, [node.broker_id for node in answer.brokers]) == (OTHER, [HERE, OTHER])
    await broker.metadata.update(UpdateMetadataRequest(controller_id=HIDDEN, live_brokers=[]))
    answer = await ask(broker, DescribeClusterRequest(), 1)
    assert (answer.controller_id, answer.brokers) == (-1, [])


@with_broker
async def test_coordinators_are_where_their_partitions_are_led(broker: Broker) -> None:
    async def find(key_type: int) -> Any:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
        [found] = (await ask(broker, request, 4)).coordinators
        return ErrorCode.of(found.error_code), found.node_id, found.host

    async def tell(leader: int) -> None:
        topics = [
            told(name, bytes([index] * 16), [(leader, [leader], [leader], [])])
            for index, name in enumerate((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC), 1)
        ]
        live = [UpdateMetadataBroker(id=id_, endpoints=endpoints) for id_, endpoints in alive.items()]
        await broker.metadata.update(UpdateMetadataRequest(live_brokers=live, topic_states=topics))

    alive = {
        OTHER: [UpdateMetadataEndpoint(host="other", port=1, listener="PLAINTEXT")],
        HIDDEN: [UpdateMetadataEndpoint(host="hidden", port=1, listener="INSIDE")],
    }
    for key_type in (0, 1):
        await tell(OTHER)
        assert await find(key_type) == (ErrorCode.NONE, OTHER, "other")
        for leader in (HIDDEN, DEAD, -1):
            await tell(leader)
            assert await find(key_type) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "")
    heartbeat = await ask(broker, HeartbeatRequest(group_id="k", member_id="m"), 4)
    assert heartbeat.error_code == ErrorCode.NOT_COORDINATOR
    producer = await ask(broker, InitProducerIdRequest(transactional_id="k", transaction_timeout_ms=1000), 4)
    assert producer.error_code == ErrorCode.NOT_COORDINATOR


async def look_up(_broker_id: int) -> None:
    """There is no more to be known."""


@with_broker
async def test_limits_of_clients_do_not_hold_up_brokers(broker: Broker) -> None:
    """A sender of requests between brokers, on their listener, with the client id of a broker without a secret, is that
    broker."""
    digests = {HERE: "of its secret", OTHER: ""}
    services = replace(broker.services, broker_secrets=RegisteredSecrets(broker.node_id, lambda: digests, look_up))
    markers = client_id_of_broker(OTHER, "markers")

    async def is_broker(
        request: Any, version: int, listener: str = "PLAINTEXT", client_id: str | None = markers
    ) -> bool:
        session = Session(None, ListenerContext.of(services.config, listener), 1)
        context = RequestContext(services, session, request.API_KEY, version, 1, client_id)
        await load_handler(request.API_KEY).handle(request, context)
        return session.is_broker

    assert await is_broker(WriteTxnMarkersRequest(), 1)
    assert await is_broker(AddPartitionsToTxnRequest(), 5)
    assert not await is_broker(AddPartitionsToTxnRequest(), 3)
    assert not await is_broker(WriteTxnMarkersRequest(), 1, "OUTSIDE")
    for stranger in (None, "", "rdkafka", "broker-", f"broker-{OTHER}", f"broker-{HERE}-markers", "broker-99-x"):
        assert not await is_broker(WriteTxnMarkersRequest(), 1, client_id=stranger), stranger
    digests[OTHER] = "of another one"
    assert not await is_broker(WriteTxnMarkersRequest(), 1)


async def produced(broker: Broker, name: str) -> int:
    data = PartitionProduceData(index=0, records=bytearray(build_batch([Record(0, 1, None, b"x")])))
    topic = TopicProduceData(name=name, partition_data=[data])
    answer = await ask(broker, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def fetched(broker: Broker, name: str) -> int:
    topic = FetchTopic(topic=name, partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
    answer = await ask(broker, FetchRequest(max_bytes=1000, session_epoch=-1, topics=[topic]), 12)
    code: int = answer.responses[0].partitions[0].error_code
    return code


async def listed(broker: Broker, name: str) -> int:
    topic = ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    code: int = (
        (await ask(broker, ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)).topics[0].partitions[0].error_code
    )
    return code


async def end_of_epoch(broker: Broker, name: str) -> int:
    topic = OffsetForLeaderTopic(topic=name, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=5)])
    answer = await ask(broker, OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]), 4)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def deleted(broker: Broker, name: str) -> int:
    topic = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])
    answer = await ask(broker, DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def producers(broker: Broker, name: str) -> int:
    answer = await ask(broker, DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0])]), 0)
    code: int = answer.topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("request_of", [produced, fetched, listed, end_of_epoch, deleted, producers])
def test_partitions_led_elsewhere_are_not_served(tmp_path: Path, request_of: Callable[..., Awaitable[int]]) -> None:
    async def call() -> None:
        async with one_of_several(tmp_path) as broker:
            assert await request_of(broker, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await request_of(broker, "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(call())
