"""A table for `test_authorization.py`: a request of each API, the operations that it needs, and where the response says
that one of them is missing."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_config_resources,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    sync_group,
    txn_offset_commit,
    update_metadata,
    write_txn_markers,
)
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
KAFKA_BROKER_ID = 9
"""A broker of Apache Kafka, which shows no secret."""
TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32


class Names(NamedTuple):
    """The resources that a request names."""

    topic: str
    topic_id: bytes
    group_id: str
    transactional_id: str


class Case(NamedTuple):
    """A request of an API, and its checks: without any of the operations of a check, the response has an error in the
    fields that stand beside it, and no other error. The error is that of the last resource in the check, if `error`
    is not set. Requests `of_broker` come over the inter-broker listener. `tells_existence` is set if an id or a new
    name is given, whose refusal may tell that there is such a topic. The client may do what is `given` in any case.
    What is destroyed where nothing is missing `is_served_elsewhere`, by a test of its own."""

    api: str
    version: int
    request: Callable[[Names], Message]
    checks: Mapping[str, tuple[str, ...]]
    error: ErrorCode | None = None
    of_broker: bool = False
    names_new_topic: bool = False
    tells_existence: bool = False
    given: str = ""
    is_served_elsewhere: bool = False

    def error_of(self, check: str) -> ErrorCode:
        """The error without the operations of a check."""
        of_resource = {"Topic": TOPIC, "Group": GROUP, "Cluster": CLUSTER, "TransactionalId": TRANSACTIONAL_ID}
        return self.error or of_resource[check.split()[-1]]


def _batch(**fields: bool | int) -> bytearray:
    return build_batch([Record(0, 1_700_000_000_000, None, b"v")], **fields)  # type: ignore[arg-type]


def _produce(names: Names, batch: bytearray) -> Message:
    data = produce.PartitionProduceData(index=0, records=batch)
    topic = produce.TopicProduceData(name=names.topic, topic_id=names.topic_id, partition_data=[data])
    return produce.ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[topic], transactional_id=names.transactional_id
    )


def _fetch(names: Names, replica_id: int = -1) -> Message:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = fetch.FetchTopic(topic=names.topic, topic_id=names.topic_id, partitions=[partition])
    return fetch.FetchRequest(replica_id=replica_id, max_wait_ms=0, session_epoch=-1, topics=[topic])


def _offsets(names: Names) -> Message:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = offset_commit.OffsetCommitRequestTopic(name=names.topic, topic_id=names.topic_id, partitions=[partition])
    return offset_commit.OffsetCommitRequest(group_id=names.group_id, topics=[topic])


def _offset_fetch(names: Names) -> Message:
    topic = offset_fetch.OffsetFetchRequestTopics(name=names.topic, topic_id=names.topic_id, partition_indexes=[0])
    group = offset_fetch.OffsetFetchRequestGroup(group_id=names.group_id, topics=[topic])
    return offset_fetch.OffsetFetchRequest(groups=[group])


def _old_offset_fetch(names: Names) -> Message:
    topic = offset_fetch.OffsetFetchRequestTopic(name=names.topic, partition_indexes=[0])
    return offset_fetch.OffsetFetchRequest(group_id=names.group_id, topics=[topic])


def _add_partitions(names: Names, version: int) -> Message:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=names.topic, partitions=[0])]
    if version < 4:
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=names.transactional_id, v3_and_below_topics=topics
        )
    transaction = add_partitions_to_txn.AddPartitionsToTxnTransaction(
        transactional_id=names.transactional_id, topics=topics
    )
    return add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[transaction])


def _txn_offset_commit(names: Names) -> Message:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name=names.topic, partitions=[partition])
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=names.transactional_id, group_id=names.group_id, topics=[topic]
    )


def _markers(names: Names) -> Message:
    topic = write_txn_markers.WritableTxnMarkerTopic(name=names.topic, partition_indexes=[0])
    return write_txn_markers.WriteTxnMarkersRequest(
        markers=[write_txn_markers.WritableTxnMarker(producer_id=-1, topics=[topic])]
    )


def _resource_name(resource_type: int, names: Names) -> str:
    return {TOPIC_CONFIG: names.topic, BROKER_CONFIG: "1", GROUP_CONFIG: names.group_id}[resource_type]


def _describe_configs(resource_type: int, names: Names) -> Message:
    name = _resource_name(resource_type, names)
    resource = describe_configs.DescribeConfigsResource(resource_type=resource_type, resource_name=name)
    return describe_configs.DescribeConfigsRequest(resources=[resource])


def _alter_configs(resource_type: int, names: Names) -> Message:
    name = _resource_name(resource_type, names)
    resource = alter_configs.AlterConfigsResource(resource_type=resource_type, resource_name=name)
    return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=True)


def _incremental(resource_type: int, names: Names) -> Message:
    name = _resource_name(resource_type, names)
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=resource_type, resource_name=name)
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def _producers(names: Names) -> Message:
    topic = describe_producers.TopicRequest(name=names.topic, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def _topic_partitions(names: Names) -> Message:
    topic = describe_topic_partitions.TopicRequest(name=names.topic)
    return describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[topic])


def _list_offsets(names: Names, replica_id: int = -1) -> Message:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name=names.topic, partitions=[partition])
    return list_offsets.ListOffsetsRequest(replica_id=replica_id, topics=[topic])


def _metadata(names: Names, *, by_id: bool = False, may_create: bool = False) -> Message:
    topic = metadata.MetadataRequestTopic(name=names.topic)
    if by_id:
        topic = metadata.MetadataRequestTopic(name=None, topic_id=names.topic_id)
    return metadata.MetadataRequest(topics=[topic], allow_auto_topic_creation=may_create)


def _leader_epochs(names: Names) -> Message:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=names.topic, partitions=[partition])
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def _delete_records(names: Names) -> Message:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = delete_records.DeleteRecordsTopic(name=names.topic, partitions=[partition])
    return delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)


def _offset_delete(names: Names) -> Message:
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=names.topic, partitions=[partition])
    return offset_delete.OffsetDeleteRequest(group_id=names.group_id, topics=[topic])


def _create(names: Names) -> Message:
    topic = create_topics.CreatableTopic(name=names.topic, num_partitions=1, replication_factor=1)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)


def _delete(names: Names) -> Message:
    topic = delete_topics.DeleteTopicState(name=names.topic)
    return delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)


def _delete_by_id(names: Names) -> Message:
    topic = delete_topics.DeleteTopicState(name=None, topic_id=names.topic_id)
    return delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)


def _expand(names: Names) -> Message:
    topic = create_partitions.CreatePartitionsTopic(name=names.topic, count=3)
    return create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)


def _elect(names: Names) -> Message:
    asked = elect_leaders.TopicPartitions(topic=names.topic, partitions=[0])
    return elect_leaders.ElectLeadersRequest(topic_partitions=[asked], timeout_ms=10_000)


def _reassign(names: Names) -> Message:
    partition = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
    topic = alter_partition_reassignments.ReassignableTopic(name=names.topic, partitions=[partition])
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000)


def _reassignments(names: Names) -> Message:
    topic = list_partition_reassignments.ListPartitionReassignmentsTopics(name=names.topic, partition_indexes=[0])
    return list_partition_reassignments.ListPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000)


def _create_acls(_: Names) -> Message:
    creation = create_acls.AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    return create_acls.CreateAclsRequest(creations=[creation])


def _delete_acls(_: Names) -> Message:
    wanted = delete_acls.DeleteAclsFilter(resource_type_filter=2, operation=3, permission_type=3)
    return delete_acls.DeleteAclsRequest(filters=[wanted])


def _alter_quotas(_: Names) -> Message:
    entity = alter_client_quotas.RequestEntityData(entity_type="user", entity_name="a")
    entry = alter_client_quotas.RequestEntryData(entity=[entity])
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry], validate_only=True)


def _alter_credentials(_: Names) -> Message:
    deletion = alter_user_scram_credentials.ScramCredentialDeletion(name="absent", mechanism=1)
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions=[deletion])


def _sync(names: Names) -> Message:
    return sync_group.SyncGroupRequest(group_id=names.group_id, protocol_type="consumer", protocol_name="range")


_IN_PARTITIONS = ("topics.partitions.error_code",)
_AT_TOP = ("error_code",)
_READ_GROUP = {"Read on Group": _AT_TOP}
_CLUSTER_ACTION = {"ClusterAction on Cluster": _AT_TOP}
_TO_COMMIT = {"Read on Group": _IN_PARTITIONS, "Read on Topic": _IN_PARTITIONS}
_IN_PRODUCED = ("responses.partition_responses.error_code",)
_IN_ADDED = ("results_by_topic_v3_and_below.results_by_partition.partition_error_code",)
_IN_FETCHED = ("responses.partitions.error_code",)
_IN_FOUND = {"Describe on Group": ("groups.error_code",), "Describe on Topic": ("groups.topics.partitions.error_code",)}


def _transactional() -> bytearray:
    return _batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)


CASES = (
    Case(
        "Produce",
        9,
        lambda names: _produce(names, _transactional()),
        {"Write on TransactionalId": _IN_PRODUCED, "Write on Topic": _IN_PRODUCED},
    ),
    Case(
        "Produce",
        13,
        lambda names: _produce(names, _batch()),
        {"Write on Topic": _IN_PRODUCED},
        tells_existence=True,
    ),
    Case("Fetch", 12, _fetch, {"Read on Topic": _IN_FETCHED}),
    Case("Fetch", 17, _fetch, {"Read on Topic": _IN_FETCHED}, tells_existence=True),
    Case(
        "Fetch",
        12,
        lambda names: _fetch(names, KAFKA_BROKER_ID),
        {"ClusterAction on Cluster": _IN_FETCHED},
        error=TOPIC,
        of_broker=True,
    ),
    Case("ListOffsets", 7, _list_offsets, {"Describe on Topic": _IN_PARTITIONS}),
    Case(
        "ListOffsets",
        7,
        lambda names: _list_offsets(names, KAFKA_BROKER_ID),
        dict.fromkeys(("Describe on Topic", "ClusterAction on Cluster"), _IN_PARTITIONS),
        error=TOPIC,
        of_broker=True,
    ),
    Case("Metadata", 9, _metadata, {"Describe on Topic": ("topics.error_code",)}),
    Case(
        "Metadata",
        12,
        lambda names: _metadata(names, by_id=True),
        {"Describe on Topic": ("topics.error_code",)},
        tells_existence=True,
    ),
    Case(
        "Metadata",
        9,
        lambda names: _metadata(names, may_create=True),
        {"Describe on Topic": ("topics.error_code",), "Create on Cluster or Create on Topic": ("topics.error_code",)},
        names_new_topic=True,
    ),
    Case("OffsetCommit", 8, _offsets, _TO_COMMIT),
    Case("OffsetCommit", 10, _offsets, _TO_COMMIT, tells_existence=True),
    Case(
        "OffsetFetch", 1, _old_offset_fetch, dict.fromkeys(("Describe on Group", "Describe on Topic"), _IN_PARTITIONS)
    ),
    Case("OffsetFetch", 5, _old_offset_fetch, {"Describe on Group": _AT_TOP, "Describe on Topic": _IN_PARTITIONS}),
    Case("OffsetFetch", 8, _offset_fetch, _IN_FOUND),
    Case("OffsetFetch", 10, _offset_fetch, _IN_FOUND, tells_existence=True),
    Case(
        "FindCoordinator",
        3,
        lambda names: find_coordinator.FindCoordinatorRequest(key_type=0, key=names.group_id),
        {"Describe on Group": _AT_TOP},
    ),
    Case(
        "FindCoordinator",
        4,
        lambda names: find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[names.transactional_id]),
        {"Describe on TransactionalId": ("coordinators.error_code",)},
    ),
    Case("JoinGroup", 7, lambda names: join_group.JoinGroupRequest(group_id=names.group_id), _READ_GROUP),
    Case("Heartbeat", 4, lambda names: heartbeat.HeartbeatRequest(group_id=names.group_id), _READ_GROUP),
    Case("LeaveGroup", 4, lambda names: leave_group.LeaveGroupRequest(group_id=names.group_id), _READ_GROUP),
    Case("SyncGroup", 5, _sync, _READ_GROUP),
    Case(
        "DescribeGroups",
        6,
        lambda names: describe_groups.DescribeGroupsRequest(groups=[names.group_id]),
        {"Describe on Group": ("groups.error_code",)},
    ),
    Case(
        "DeleteGroups",
        2,
        lambda names: delete_groups.DeleteGroupsRequest(groups_names=[names.group_id]),
        {"Delete on Group": ("results.error_code",)},
    ),
    Case(
        "CreateTopics",
        7,
        _create,
        {
            "Create on Cluster or Create on Topic": ("topics.error_code",),
            "DescribeConfigs on Topic": ("topics.topic_config_error_code",),
        },
        names_new_topic=True,
    ),
    Case(
        "DeleteTopics",
        6,
        _delete,
        {"Describe on Topic": ("responses.error_code",)},
        names_new_topic=True,
    ),
    *(
        Case(
            "DeleteTopics",
            6,
            request,
            {"Delete on Cluster or Delete on Topic": ("responses.error_code",)},
            tells_existence=True,
            given=given,
            is_served_elsewhere=True,
        )
        for request in (_delete, _delete_by_id)
        for given in ("", "Describe on Topic")
    ),
    Case("DeleteRecords", 2, _delete_records, {"Delete on Topic": _IN_PARTITIONS}),
    Case(
        "InitProducerId",
        4,
        lambda names: init_producer_id.InitProducerIdRequest(transactional_id=names.transactional_id, producer_epoch=1),
        {"Write on TransactionalId": _AT_TOP},
    ),
    Case(
        "InitProducerId",
        4,
        lambda _: init_producer_id.InitProducerIdRequest(transactional_id=None),
        {"IdempotentWrite on Cluster or Write on Topic": _AT_TOP},
        error=CLUSTER,
    ),
    Case(
        "OffsetForLeaderEpoch",
        4,
        _leader_epochs,
        {"ClusterAction on Cluster or Describe on Topic": _IN_PARTITIONS},
        of_broker=True,
    ),
    Case(
        "AddPartitionsToTxn",
        3,
        lambda names: _add_partitions(names, 3),
        {"Write on TransactionalId": _IN_ADDED, "Write on Topic": _IN_ADDED},
    ),
    Case("AddPartitionsToTxn", 5, lambda names: _add_partitions(names, 5), _CLUSTER_ACTION, of_broker=True),
    Case(
        "AddOffsetsToTxn",
        3,
        lambda names: add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=names.transactional_id, group_id=names.group_id
        ),
        {"Write on TransactionalId": _AT_TOP, **_READ_GROUP},
    ),
    Case(
        "EndTxn",
        5,
        lambda names: end_txn.EndTxnRequest(transactional_id=names.transactional_id),
        {"Write on TransactionalId": _AT_TOP},
    ),
    Case(
        "WriteTxnMarkers",
        1,
        _markers,
        {"Alter on Cluster or ClusterAction on Cluster": ("markers.topics.partitions.error_code",)},
        of_broker=True,
    ),
    Case("TxnOffsetCommit", 5, _txn_offset_commit, {"Write on TransactionalId": _IN_PARTITIONS, **_TO_COMMIT}),
    *(
        Case(api, 1, partial(request, resource_type), {f"{operation} on {resource}": (at,)})
        for api, request, operation, at in (
            ("DescribeConfigs", _describe_configs, "DescribeConfigs", "results.error_code"),
            ("AlterConfigs", _alter_configs, "AlterConfigs", "responses.error_code"),
            ("IncrementalAlterConfigs", _incremental, "AlterConfigs", "responses.error_code"),
        )
        for resource_type, resource in ((TOPIC_CONFIG, "Topic"), (BROKER_CONFIG, "Cluster"), (GROUP_CONFIG, "Group"))
    ),
    Case(
        "DescribeLogDirs",
        4,
        lambda names: describe_log_dirs.DescribeLogDirsRequest(topics=None),
        {"Describe on Cluster": _AT_TOP},
    ),
    Case("CreatePartitions", 3, _expand, {"Alter on Topic": ("results.error_code",)}),
    Case(
        "ElectLeaders",
        2,
        _elect,
        {"Alter on Cluster": (*_AT_TOP, "replica_election_results.partition_result.error_code")},
    ),
    Case("AlterPartitionReassignments", 0, _reassign, {"Alter on Cluster": (*_AT_TOP, *_IN_FETCHED)}),
    Case("ListPartitionReassignments", 0, _reassignments, {"Describe on Cluster": _AT_TOP}),
    Case("OffsetDelete", 0, _offset_delete, {"Delete on Group": _AT_TOP, "Read on Topic": _IN_PARTITIONS}),
    Case("DescribeProducers", 0, _producers, {"Read on Topic": _IN_PARTITIONS}),
    Case(
        "DescribeTransactions",
        0,
        lambda names: describe_transactions.DescribeTransactionsRequest(transactional_ids=[names.transactional_id]),
        {"Describe on TransactionalId": ("transaction_states.error_code",)},
    ),
    Case(
        "ListConfigResources",
        1,
        lambda _: list_config_resources.ListConfigResourcesRequest(),
        {"DescribeConfigs on Cluster": _AT_TOP},
    ),
    Case("DescribeTopicPartitions", 0, _topic_partitions, {"Describe on Topic": ("topics.error_code",)}),
    Case(
        "DescribeAcls",
        3,
        lambda _: describe_acls.DescribeAclsRequest(resource_type_filter=2, operation=3, permission_type=3),
        {"Describe on Cluster": _AT_TOP},
    ),
    Case("CreateAcls", 3, _create_acls, {"Alter on Cluster": ("results.error_code",)}),
    Case("DeleteAcls", 3, _delete_acls, {"Alter on Cluster": ("filter_results.error_code",)}),
    Case(
        "DescribeClientQuotas",
        1,
        lambda _: describe_client_quotas.DescribeClientQuotasRequest(),
        {"DescribeConfigs on Cluster": _AT_TOP},
    ),
    Case("AlterClientQuotas", 1, _alter_quotas, {"AlterConfigs on Cluster": ("entries.error_code",)}),
    Case(
        "DescribeUserScramCredentials",
        0,
        lambda _: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(),
        {"Describe on Cluster": _AT_TOP},
    ),
    Case("AlterUserScramCredentials", 0, _alter_credentials, {"Alter on Cluster": ("results.error_code",)}),
    *(
        Case(api, version, lambda _, request=request: request, _CLUSTER_ACTION, of_broker=True)
        for api, version, request in (
            ("LeaderAndIsr", 7, leader_and_isr.LeaderAndIsrRequest(controller_id=KAFKA_BROKER_ID)),
            ("StopReplica", 4, stop_replica.StopReplicaRequest(controller_id=KAFKA_BROKER_ID)),
            ("UpdateMetadata", 8, update_metadata.UpdateMetadataRequest(controller_id=KAFKA_BROKER_ID)),
            ("ControlledShutdown", 3, controlled_shutdown.ControlledShutdownRequest(broker_id=KAFKA_BROKER_ID)),
            ("AlterPartition", 3, alter_partition.AlterPartitionRequest(broker_id=KAFKA_BROKER_ID)),
            ("AllocateProducerIds", 0, allocate_producer_ids.AllocateProducerIdsRequest(broker_id=KAFKA_BROKER_ID)),
        )
    ),
)
