"""A broker with SASL and an authorizer, its users, and what they send: for the replays of published vulnerabilities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.server import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch, iter_records
from tests.broker.handlers.test_between_brokers import member
from tests.broker.sasl_clients import ALICE, BOB, Wire, add_scram_user, sasl_listener, wire

NOW_MS: Final = 1_700_000_000_000
MIB: Final = 1 << 20
ALLOW, LITERAL = 3, 3

SECURED: Final = {
    **sasl_listener(),
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "connection.failed.authentication.delay.ms": "0",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:alice",
}
"""alice may do everything, bob what a test permits him; brokers have a listener of their own."""

CAROL: Final = Credentials("carol", "c-secret")

Permission = tuple[Operation, ResourceType, str]
READ_T: Final = (Operation.READ, ResourceType.TOPIC, "t")
WRITE_T: Final = (Operation.WRITE, ResourceType.TOPIC, "t")


@asynccontextmanager
async def secured(data_dir: Path, *permissions: Permission, **topics: dict[str, str]) -> AsyncIterator[Broker]:
    """A broker with SASL and an authorizer. It has the topic t, of two partitions, and others with their configs."""
    async with member(data_dir, **SECURED) as broker, wire(broker) as admin:
        await admin.log_in(ALICE)
        await add_scram_user(broker, *CAROL)
        made = [
            CreatableTopic(
                name=name,
                num_partitions=2,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name, configs in {"t": {}, **topics}.items()
        ]
        created = await admin.ask(CreateTopicsRequest(topics=made, timeout_ms=10_000), 5)
        assert not any(each.error_code for each in created.topics)
        creations = [
            AclCreation(
                resource_type=resource_type,
                resource_name=name,
                resource_pattern_type=LITERAL,
                principal="User:bob",
                host="*",
                operation=operation,
                permission_type=ALLOW,
            )
            for operation, resource_type, name in permissions
        ]
        response = await admin.ask(CreateAclsRequest(creations=creations), 3)
        assert not any(each.error_code for each in response.results)
        yield broker


@asynccontextmanager
async def logged_in(broker: Broker, client: Any = BOB) -> AsyncIterator[Wire]:
    async with wire(broker) as connection:
        assert (await connection.log_in(client)).error_code == ErrorCode.NONE
        yield connection


def producing(*batches: bytes | bytearray, topic: str = "t", transactional_id: str | None = None) -> ProduceRequest:
    """A batch for each partition."""
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    return ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
        transactional_id=transactional_id,
    )


def batch(value: bytes = b"v", **fields: Any) -> bytearray:
    return build_batch([Record(0, NOW_MS, None, value)], **fields)


async def produced(client: Wire, request: ProduceRequest) -> list[ErrorCode]:
    """The error of each partition."""
    response = await client.ask(request, 9)
    return [ErrorCode.of(each.error_code) for topic in response.responses for each in topic.partition_responses]


def fetching(topic: str = "t", **fields: Any) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 * MIB)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(max_wait_ms=0, session_epoch=-1, topics=topics, **fields)


async def values_of(client: Wire, topic: str) -> list[bytes]:
    """All records of the first partition."""
    [found] = (await client.ask(fetching(topic), 12)).responses
    data = found.partitions[0].records
    return [bytes(record.value or b"") for each in iter_headers(data) for record in iter_records(data, each)]
