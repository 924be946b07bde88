"""The table of entries: for each API, the fields of its request and of its response that say what an entry is about,
and where the response has error codes.

An entry is a struct in an array, or a plain value in one, that names a topic, a partition, a group and so on. A table
below has the fields of a struct by name: a text is the role of a field, or of the plain values in an array, and a
table is for the structs in an array. What is in no table is about nothing, such as the topics that a Fetch forgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

TOPIC: Final = "topic"
TOPIC_ID: Final = "topic id"
PARTITION: Final = "partition"
GROUP: Final = "group"
TRANSACTIONAL_ID: Final = "transactional id"
COORDINATOR_KEY: Final = "coordinator key"
MEMBER: Final = "member"
RESOURCE: Final = "resource"
PRODUCER: Final = "producer id"
ERROR: Final = "error"
"""The role of error codes; the other roles are of what an entry is about."""

Roles: TypeAlias = Mapping[str, "str | Roles"]


class ApiEntries(NamedTuple):
    """The fields with a role in a request and in its response."""

    asked: Roles
    answered: Roles


_FAILING: Final[Roles] = {"error_code": ERROR}
_INDEX: Final[Roles] = {"partition_index": PARTITION}
_NAMED: Final[Roles] = {"name": TOPIC}
_IDENTIFIED: Final[Roles] = {"name": TOPIC, "topic_id": TOPIC_ID}
_STATE: Final[Roles] = {"topic_name": TOPIC, **_INDEX}
_STATES_BY_TOPIC: Final[Roles] = {"topic_name": TOPIC, "topic_id": TOPIC_ID, "partition_states": _STATE}
_PARTITIONS: Final[Roles] = {**_NAMED, "partitions": _INDEX}
_INDEXES: Final[Roles] = {**_NAMED, "partition_indexes": PARTITION}
_RESULTS: Final[Roles] = {**_NAMED, "partitions": {**_INDEX, **_FAILING}}
_RESOURCE: Final[Roles] = {"resource_name": RESOURCE}
_TRANSACTION: Final[Roles] = {"transactional_id": TRANSACTIONAL_ID}
_TRANSACTION_RESULTS: Final[Roles] = {
    **_NAMED,
    "results_by_partition": {**_INDEX, "partition_error_code": ERROR},
}

NOTHING: Final = ApiEntries({}, _FAILING)
"""For a request about nothing."""

API_ENTRIES: Final[Mapping[str, ApiEntries]] = {
    "Produce": ApiEntries(
        {**_TRANSACTION, "topic_data": {**_IDENTIFIED, "partition_data": {"index": PARTITION}}},
        {"responses": {**_IDENTIFIED, "partition_responses": {"index": PARTITION, **_FAILING}}},
    ),
    "Fetch": ApiEntries(
        {"topics": {"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": {"partition": PARTITION}}},
        {**_FAILING, "responses": {"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": {**_INDEX, **_FAILING}}},
    ),
    "ListOffsets": ApiEntries({"topics": _PARTITIONS}, {"topics": _RESULTS}),
    "Metadata": ApiEntries(
        {"topics": _IDENTIFIED},
        {**_FAILING, "topics": {**_IDENTIFIED, **_FAILING, "partitions": {**_INDEX, **_FAILING}}},
    ),
    "LeaderAndIsr": ApiEntries(
        {"ungrouped_partition_states": _STATE, "topic_states": _STATES_BY_TOPIC},
        {
            **_FAILING,
            "partition_errors": {**_STATE, **_FAILING},
            "topics": {"topic_id": TOPIC_ID, "partition_errors": {**_STATE, **_FAILING}},
        },
    ),
    "StopReplica": ApiEntries(
        {
            "ungrouped_partitions": _STATE,
            "topics": _INDEXES,
            "topic_states": {"topic_name": TOPIC, "partition_states": _INDEX},
        },
        {**_FAILING, "partition_errors": {**_STATE, **_FAILING}},
    ),
    "UpdateMetadata": ApiEntries({"ungrouped_partition_states": _STATE, "topic_states": _STATES_BY_TOPIC}, _FAILING),
    "ControlledShutdown": NOTHING,
    "OffsetCommit": ApiEntries(
        {"group_id": GROUP, "topics": {**_IDENTIFIED, "partitions": _INDEX}},
        {"topics": {**_RESULTS, "topic_id": TOPIC_ID}},
    ),
    "OffsetFetch": ApiEntries(
        {
            "group_id": GROUP,
            "topics": _INDEXES,
            "groups": {"group_id": GROUP, "topics": {**_INDEXES, "topic_id": TOPIC_ID}},
        },
        {
            **_FAILING,
            "topics": _RESULTS,
            "groups": {"group_id": GROUP, **_FAILING, "topics": {**_RESULTS, "topic_id": TOPIC_ID}},
        },
    ),
    "FindCoordinator": ApiEntries(
        {"key": COORDINATOR_KEY, "coordinator_keys": COORDINATOR_KEY},
        {**_FAILING, "coordinators": {"key": COORDINATOR_KEY, **_FAILING}},
    ),
    "JoinGroup": ApiEntries({"group_id": GROUP}, _FAILING),
    "Heartbeat": ApiEntries({"group_id": GROUP}, _FAILING),
    "LeaveGroup": ApiEntries(
        {"group_id": GROUP, "members": {"member_id": MEMBER}},
        {**_FAILING, "members": {"member_id": MEMBER, **_FAILING}},
    ),
    "SyncGroup": ApiEntries({"group_id": GROUP}, _FAILING),
    "DescribeGroups": ApiEntries({"groups": GROUP}, {"groups": {"group_id": GROUP, **_FAILING}}),
    "ListGroups": NOTHING,
    "SaslHandshake": NOTHING,
    "ApiVersions": NOTHING,
    "CreateTopics": ApiEntries({"topics": {**_NAMED, "assignments": _INDEX}}, {"topics": {**_IDENTIFIED, **_FAILING}}),
    "DeleteTopics": ApiEntries(
        {"topics": _IDENTIFIED, "topic_names": TOPIC}, {"responses": {**_IDENTIFIED, **_FAILING}}
    ),
    "DeleteRecords": ApiEntries({"topics": _PARTITIONS}, {"topics": _RESULTS}),
    "InitProducerId": ApiEntries(_TRANSACTION, _FAILING),
    "OffsetForLeaderEpoch": ApiEntries(
        {"topics": {"topic": TOPIC, "partitions": {"partition": PARTITION}}},
        {"topics": {"topic": TOPIC, "partitions": {"partition": PARTITION, **_FAILING}}},
    ),
    "AddPartitionsToTxn": ApiEntries(
        {
            "transactions": {**_TRANSACTION, "topics": {**_NAMED, "partitions": PARTITION}},
            "v3_and_below_transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_topics": {**_NAMED, "partitions": PARTITION},
        },
        {
            **_FAILING,
            "results_by_transaction": {**_TRANSACTION, "topic_results": _TRANSACTION_RESULTS},
            "results_by_topic_v3_and_below": _TRANSACTION_RESULTS,
        },
    ),
    "AddOffsetsToTxn": ApiEntries({**_TRANSACTION, "group_id": GROUP}, _FAILING),
    "EndTxn": ApiEntries(_TRANSACTION, _FAILING),
    "WriteTxnMarkers": ApiEntries(
        {"markers": {"producer_id": PRODUCER, "topics": _INDEXES}},
        {"markers": {"producer_id": PRODUCER, "topics": _RESULTS}},
    ),
    "TxnOffsetCommit": ApiEntries({**_TRANSACTION, "group_id": GROUP, "topics": _PARTITIONS}, {"topics": _RESULTS}),
    "DescribeConfigs": ApiEntries({"resources": _RESOURCE}, {"results": {**_RESOURCE, **_FAILING}}),
    "AlterConfigs": ApiEntries({"resources": _RESOURCE}, {"responses": {**_RESOURCE, **_FAILING}}),
    "DescribeLogDirs": ApiEntries(
        {"topics": {"topic": TOPIC, "partitions": PARTITION}}, {**_FAILING, "results": _FAILING}
    ),
    "SaslAuthenticate": NOTHING,
    "CreatePartitions": ApiEntries({"topics": _NAMED}, {"results": {**_NAMED, **_FAILING}}),
    "DeleteGroups": ApiEntries({"groups_names": GROUP}, {"results": {"group_id": GROUP, **_FAILING}}),
    "ElectLeaders": ApiEntries(
        {"topic_partitions": {"topic": TOPIC, "partitions": PARTITION}},
        {
            **_FAILING,
            "replica_election_results": {
                "topic": TOPIC,
                "partition_result": {"partition_id": PARTITION, **_FAILING},
            },
        },
    ),
    "IncrementalAlterConfigs": ApiEntries({"resources": _RESOURCE}, {"responses": {**_RESOURCE, **_FAILING}}),
    "AlterPartitionReassignments": ApiEntries({"topics": _PARTITIONS}, {**_FAILING, "responses": _RESULTS}),
    "ListPartitionReassignments": ApiEntries({"topics": _INDEXES}, _FAILING),
    "OffsetDelete": ApiEntries({"group_id": GROUP, "topics": _PARTITIONS}, {**_FAILING, "topics": _RESULTS}),
    "CreateDelegationToken": NOTHING,
    "RenewDelegationToken": NOTHING,
    "ExpireDelegationToken": NOTHING,
    "DescribeDelegationToken": NOTHING,
    "DescribeClientQuotas": NOTHING,
    "AlterClientQuotas": ApiEntries({}, {"entries": _FAILING}),
    "DescribeUserScramCredentials": ApiEntries({}, {**_FAILING, "results": _FAILING}),
    "AlterUserScramCredentials": ApiEntries({}, {"results": _FAILING}),
    "AlterPartition": ApiEntries(
        {"topics": {"topic_name": TOPIC, "topic_id": TOPIC_ID, "partitions": _INDEX}},
        {
            **_FAILING,
            "topics": {"topic_name": TOPIC, "topic_id": TOPIC_ID, "partitions": {**_INDEX, **_FAILING}},
        },
    ),
    "DescribeCluster": NOTHING,
    "DescribeProducers": ApiEntries({"topics": _INDEXES}, {"topics": _RESULTS}),
    "DescribeTransactions": ApiEntries(
        {"transactional_ids": TRANSACTIONAL_ID},
        {"transaction_states": {**_TRANSACTION, "producer_id": PRODUCER, **_FAILING}},
    ),
    "ListTransactions": NOTHING,
    "AllocateProducerIds": NOTHING,
    "ListConfigResources": NOTHING,
    "DescribeAcls": NOTHING,
    "CreateAcls": ApiEntries({"creations": _RESOURCE}, {"results": _FAILING}),
    "DeleteAcls": ApiEntries(
        {"filters": {"resource_name_filter": RESOURCE}},
        {"filter_results": {**_FAILING, "matching_acls": {**_RESOURCE, **_FAILING}}},
    ),
    "DescribeTopicPartitions": ApiEntries(
        {"topics": _NAMED},
        {"topics": {**_IDENTIFIED, **_FAILING, "partitions": {**_INDEX, **_FAILING}}},
    ),
}
"""By Kafka's names of the APIs that brokers here serve."""
