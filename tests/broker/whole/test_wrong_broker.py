"""Requests for the controller at a broker that is not: answered as Apache Kafka 3.9.1 does with ZooKeeper, which
forwards nothing there (KafkaApis, KafkaController; it would during a migration to KRaft)."""

from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.api.registry import WaitsFor
from barnabas.broker.handlers import apis_between_brokers, load_handler, served_apis
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from barnabas.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from barnabas.wire.messages.alter_partition import AlterPartitionRequest
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.incremental_alter_configs import AlterConfigsResource as Changed
from barnabas.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.broker.whole.cluster import cluster

pytestmark = pytest.mark.anyio

CONTROLLER, OTHER = 1, 2
REFUSED, INVALID, FINE = ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REQUEST, ErrorCode.NONE
NO_TOKENS = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
OF_TOPIC, OF_BROKER = 2, 4
TOPIC_ID = bytes([7] * 16)


def in_topics(answer: Any) -> list[Any]:
    return [(each.name, each.error_code) for each in answer.topics]


def in_responses(answer: Any) -> list[Any]:
    return [(each.name, each.topic_id, each.error_code) for each in answer.responses]


def in_results(answer: Any) -> list[Any]:
    return [(each.name, each.error_code) for each in answer.results]


def of_the_whole(answer: Any) -> list[Any]:
    return [answer.error_code, *getattr(answer, "topics", []), *getattr(answer, "responses", [])]


def of_elections(answer: Any) -> list[Any]:
    partitions = [
        (topic.topic, part.partition_id, part.error_code)
        for topic in answer.replica_election_results
        for part in topic.partition_result
    ]
    return [answer.error_code, *partitions]


def in_resources(answer: Any) -> list[Any]:
    return [(each.resource_name, each.error_code) for each in answer.responses]


def of_acls(answer: Any) -> list[Any]:
    return [each.error_code for each in (*getattr(answer, "results", []), *getattr(answer, "filter_results", []))]


def of_users(answer: Any) -> list[Any]:
    return [(each.user, each.error_code) for each in answer.results]


def of_entities(answer: Any) -> list[Any]:
    return [(each.entity[0].entity_name, each.error_code) for each in answer.entries]


def in_described(answer: Any) -> list[Any]:
    return [(each.resource_name, each.error_code) for each in answer.results]


def elections(partitions: list[TopicPartitions] | None) -> ElectLeadersRequest:
    return ElectLeadersRequest(election_type=0, topic_partitions=partitions, timeout_ms=10_000)


CREATED = CreateTopicsRequest(
    topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "ab"], timeout_ms=10_000
)
DELETED = DeleteTopicsRequest(
    topics=[DeleteTopicState(name="t"), DeleteTopicState(name=None, topic_id=TOPIC_ID)], timeout_ms=10_000
)
NONE_ID = bytes(16)
EXPANDED = CreatePartitionsRequest(
    topics=[CreatePartitionsTopic(name=name, count=9, assignments=None) for name in ("t", "none", "t")],
    timeout_ms=10_000,
)
MOVED = ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])
NAMED = TopicPartitions(topic="t", partitions=[0, 7])
OLD_CHANGE = AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=OF_TOPIC, resource_name="t")])
OLD_CHANGE_OF_BROKER = AlterConfigsRequest(
    resources=[AlterConfigsResource(resource_type=OF_BROKER, resource_name=str(CONTROLLER))]
)
CHANGE = IncrementalAlterConfigsRequest(resources=[Changed(resource_type=OF_TOPIC, resource_name="t")])
CHANGE_OF_BROKER = IncrementalAlterConfigsRequest(
    resources=[Changed(resource_type=OF_BROKER, resource_name=str(CONTROLLER))]
)
NEW_ACL = AclCreation(
    resource_type=OF_TOPIC, resource_name="t", principal="User:a", host="*", operation=2, permission_type=3
)
ACLS = DeleteAclsFilter(resource_type_filter=OF_TOPIC, operation=2, permission_type=3)
DESCRIPTION_OF_BROKER = DescribeConfigsRequest(
    resources=[DescribeConfigsResource(resource_type=OF_BROKER, resource_name=str(CONTROLLER))]
)
QUOTA = AlterClientQuotasRequest(
    entries=[
        RequestEntryData(
            entity=[RequestEntityData(entity_type="user", entity_name="alice")],
            ops=[OpData(key="producer_byte_rate", value=1024.0)],
        )
    ]
)
CREDENTIALS = AlterUserScramCredentialsRequest(
    deletions=[ScramCredentialDeletion(name="alice", mechanism=1)],
    upsertions=[ScramCredentialUpsertion(name=name, mechanism=2, iterations=4096) for name in ("bob", "alice")],
)

# What is asked, in which version; how the error is read from an answer, and what is there.
TABLE = [
    (CREATED, 7, in_topics, [("a", REFUSED), ("b", REFUSED)]),
    (CREATED, 2, in_topics, [("a", REFUSED), ("b", REFUSED)]),
    (DELETED, 6, in_responses, [("t", NONE_ID, REFUSED), (None, TOPIC_ID, REFUSED)]),
    (DeleteTopicsRequest(topic_names=["t"]), 1, in_responses, [("t", NONE_ID, REFUSED)]),
    (EXPANDED, 3, in_results, [("t", REFUSED), ("none", REFUSED)]),
    (elections([NAMED]), 2, of_elections, [FINE, ("t", 0, REFUSED), ("t", 7, REFUSED)]),
    (elections(None), 2, of_elections, [FINE, ("t", 0, REFUSED), ("t", 1, REFUSED)]),
    (elections([]), 2, of_elections, [FINE]),
    (AlterPartitionReassignmentsRequest(topics=[MOVED], timeout_ms=10_000), 1, of_the_whole, [REFUSED]),
    (ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000), 0, of_the_whole, [REFUSED]),
    (CREDENTIALS, 0, of_users, [("alice", REFUSED), ("bob", REFUSED)]),
    (AlterPartitionRequest(broker_id=OTHER, broker_epoch=1), 3, of_the_whole, [REFUSED]),
    (AllocateProducerIdsRequest(broker_id=OTHER, broker_epoch=1), 0, of_the_whole, [REFUSED]),
    (ControlledShutdownRequest(broker_id=OTHER, broker_epoch=1), 3, of_the_whole, [REFUSED]),
    # Any broker writes configs, quotas among them, and has producer ids of its own.
    (OLD_CHANGE, 2, in_resources, [("t", FINE)]),
    (CHANGE, 1, in_resources, [("t", FINE)]),
    (QUOTA, 1, of_entities, [("alice", FINE)]),
    (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4, of_the_whole, [FINE]),
    # Any broker writes ACLs, too, if it has an authorizer.
    (CreateAclsRequest(creations=[NEW_ACL]), 3, of_acls, [ErrorCode.SECURITY_DISABLED]),
    (DeleteAclsRequest(filters=[ACLS]), 3, of_acls, [ErrorCode.SECURITY_DISABLED]),
    # Any broker writes delegation tokens, for clients that have authenticated.
    (CreateDelegationTokenRequest(), 3, of_the_whole, [NO_TOKENS]),
    (RenewDelegationTokenRequest(), 2, of_the_whole, [NO_TOKENS]),
    (ExpireDelegationTokenRequest(), 2, of_the_whole, [NO_TOKENS]),
    # Those of a broker are its own matter, whoever is the controller.
    (OLD_CHANGE_OF_BROKER, 2, in_resources, [("1", INVALID)]),
    (CHANGE_OF_BROKER, 1, in_resources, [("1", INVALID)]),
    (DESCRIPTION_OF_BROKER, 4, in_described, [("1", INVALID)]),
]


def test_the_table_has_every_api_that_waits_for_the_controller() -> None:
    keys = {*served_apis(), *apis_between_brokers()}
    waiting = {key for key in keys if load_handler(key).waits_for is WaitsFor.CONTROLLER}
    assert waiting <= {request.API_KEY for request, *_ in TABLE}


async def test_a_broker_that_is_not_the_controller(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as brokers:
        assert brokers.controller_ids == [CONTROLLER]
        assert await brokers.create("t", 2, 1) is FINE
        for request, version, errors_in, expected in TABLE:
            is_between_brokers = request.API_KEY in apis_between_brokers()
            answer = await brokers.ask(OTHER, request, version, sent_by=OTHER if is_between_brokers else None)
            assert errors_in(answer) == expected, request
        assert set(brokers.brokers[CONTROLLER].controller.cluster.topics) == {"t"}
