"""A valid, meaningful request for every served API."""

from collections.abc import Callable, Mapping
from typing import Final

from barnabas.broker.handlers import load_handler
from barnabas.wire.messages import (
    add_offsets_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    txn_offset_commit,
    write_txn_markers,
)
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.schema import Message
from tools.attack.stage import EMPTY_TOPIC, NODE_ID, TOPIC, Producer, Stage, adding, fetching, joining, produce, syncing

LATEST: Final = -1
TOPIC_RESOURCE: Final = 2
LITERAL_PATTERN: Final = 3
ALL_OPERATIONS: Final = 2
ALLOWED: Final = 3


def _sync(stage: Stage, _version: int) -> Message:
    return syncing(stage.member())


def _produce(stage: Stage, _version: int) -> Message:
    return produce(stage.batch(), topic=stage.topic_id)


def _produce_in_transaction(stage: Stage, _version: int) -> Message:
    producer = stage.producer()
    batch = stage.batch(
        producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=1, transactional=True
    )
    return produce(batch, topic=stage.topic_id, transactional_id=producer.transactional_id)


def _fetch(stage: Stage, _version: int) -> Message:
    return fetching(stage)


def _fetch_of_nothing(stage: Stage, _version: int) -> Message:
    """A Fetch request that may wait for a record."""
    request = fetching(stage)
    request.topics[0].topic, request.topics[0].topic_id = EMPTY_TOPIC, stage.empty_topic_id
    request.max_wait_ms = 1
    return request


def _fetch_in_session(stage: Stage, version: int) -> Message:
    if version < 7:
        return fetching(stage)
    return fetching(stage, session_id=stage.session(version), session_epoch=1)


def _list_offsets(_: Stage, _version: int) -> Message:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topic = list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[partition])
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])


def _metadata(_: Stage, _version: int) -> Message:
    return metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])


def _offset_commit(stage: Stage, version: int) -> Message:
    member = stage.member()
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return offset_commit.OffsetCommitRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        generation_id_or_member_epoch=member.generation,
        topics=[offset_commit.OffsetCommitRequestTopic(name=TOPIC, topic_id=stage.topic_id, partitions=[partition])],
    )


def simple_offset_commit(stage: Stage, _version: int) -> Message:
    """The request of a consumer without a group."""
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return offset_commit.OffsetCommitRequest(
        group_id="offsets",
        topics=[offset_commit.OffsetCommitRequestTopic(name=TOPIC, topic_id=stage.topic_id, partitions=[partition])],
    )


def _offset_fetch(stage: Stage, version: int) -> Message:
    if version < 8:
        topic = offset_fetch.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        return offset_fetch.OffsetFetchRequest(group_id="offsets", topics=[topic])
    topics = [offset_fetch.OffsetFetchRequestTopics(name=TOPIC, topic_id=stage.topic_id, partition_indexes=[0])]
    return offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id="offsets", topics=topics)]
    )


def _find_coordinator(_: Stage, version: int) -> Message:
    if version < 4:
        return find_coordinator.FindCoordinatorRequest(key_type=0, key="a")
    return find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=["a"])


def _join(stage: Stage, _version: int) -> Message:
    member = stage.member()
    return joining(member.group_id, member.member_id)


def _heartbeat(stage: Stage, _version: int) -> Message:
    member = stage.member()
    return heartbeat.HeartbeatRequest(
        group_id=member.group_id, member_id=member.member_id, generation_id=member.generation
    )


def _leave(stage: Stage, version: int) -> Message:
    member = stage.member()
    if version < 3:
        return leave_group.LeaveGroupRequest(group_id=member.group_id, member_id=member.member_id)
    leaving = [leave_group.MemberIdentity(member_id=member.member_id)]
    return leave_group.LeaveGroupRequest(group_id=member.group_id, members=leaving)


def _describe_groups(stage: Stage, _version: int) -> Message:
    return describe_groups.DescribeGroupsRequest(groups=[stage.member().group_id])


def _list_groups(_: Stage, _version: int) -> Message:
    return list_groups.ListGroupsRequest()


def _api_versions(_: Stage, version: int) -> Message:
    if version < 3:
        return ApiVersionsRequest()
    return ApiVersionsRequest(client_software_name="numbers", client_software_version="1")


def _create_topics(stage: Stage, _version: int) -> Message:
    topic = create_topics.CreatableTopic(name=stage.name("topic"), num_partitions=1, replication_factor=1)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=15_000)


def _create_assigned_topics(stage: Stage, _version: int) -> Message:
    assignment = create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[NODE_ID])
    topic = create_topics.CreatableTopic(
        name=stage.name("topic"), num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=15_000)


def _delete_topics(stage: Stage, version: int) -> Message:
    name = stage.make_topic(stage.name("topic"))
    if version < 6:
        return delete_topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=15_000)
    return delete_topics.DeleteTopicsRequest(topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=15_000)


def _delete_records(stage: Stage, _version: int) -> Message:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = delete_records.DeleteRecordsTopic(name=stage.make_topic(stage.name("topic")), partitions=[partition])
    return delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=15_000)


def _init_producer_id(stage: Stage, version: int) -> Message:
    producer = stage.producer()
    # With its transaction open, the client would have to retry until it was aborted.
    stage.ask(ending(producer), 3)
    is_known = version >= 3
    return init_producer_id.InitProducerIdRequest(
        transactional_id=producer.transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer.producer_id if is_known else -1,
        producer_epoch=producer.epoch if is_known else -1,
    )


def _init_idempotent_producer(_: Stage, _version: int) -> Message:
    return init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)


def _offset_for_leader_epoch(_: Stage, _version: int) -> Message:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=TOPIC, partitions=[partition])
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def _add_partitions(stage: Stage, version: int) -> Message:
    return adding(stage.producer(), version)


def _add_offsets(stage: Stage, _version: int) -> Message:
    producer = stage.producer()
    return add_offsets_to_txn.AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="offsets",
    )


def ending(producer: Producer) -> end_txn.EndTxnRequest:
    return end_txn.EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=True,
    )


def _end_transaction(stage: Stage, _version: int) -> Message:
    return ending(stage.producer())


def write_markers(stage: Stage, _version: int) -> Message:
    producer = stage.producer()
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=True,
        topics=[write_txn_markers.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])],
    )
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


def _txn_offset_commit(stage: Stage, _version: int) -> Message:
    producer = stage.with_offsets()
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id="offsets",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )


def _describe_acls(_: Stage, _version: int) -> Message:
    return describe_acls.DescribeAclsRequest(
        resource_type_filter=TOPIC_RESOURCE,
        resource_name_filter=TOPIC,
        pattern_type_filter=LITERAL_PATTERN,
        operation=ALL_OPERATIONS,
        permission_type=ALLOWED,
    )


def _create_acls(_: Stage, _version: int) -> Message:
    creation = create_acls.AclCreation(
        resource_type=TOPIC_RESOURCE,
        resource_name=TOPIC,
        resource_pattern_type=LITERAL_PATTERN,
        principal="User:*",
        host="*",
        operation=ALL_OPERATIONS,
        permission_type=ALLOWED,
    )
    return create_acls.CreateAclsRequest(creations=[creation])


def _delete_acls(_: Stage, _version: int) -> Message:
    wanted = delete_acls.DeleteAclsFilter(
        resource_type_filter=TOPIC_RESOURCE,
        resource_name_filter="another topic",
        pattern_type_filter=LITERAL_PATTERN,
        operation=ALL_OPERATIONS,
        permission_type=ALLOWED,
    )
    return delete_acls.DeleteAclsRequest(filters=[wanted])


def _describe_configs(_: Stage, _version: int) -> Message:
    resource = describe_configs.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=TOPIC)
    return describe_configs.DescribeConfigsRequest(resources=[resource])


def _alter_configs(stage: Stage, _version: int) -> Message:
    config = alter_configs.AlterableConfig(name="retention.ms", value="1000000")
    resource = alter_configs.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=TOPIC, configs=[config])
    return alter_configs.AlterConfigsRequest(resources=[resource])


def _incremental_alter_configs(_: Stage, _version: int) -> Message:
    config = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=0, value="1000000")
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=TOPIC, configs=[config]
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def _describe_log_dirs(_: Stage, _version: int) -> Message:
    topic = describe_log_dirs.DescribableLogDirTopic(topic=TOPIC, partitions=[0])
    return describe_log_dirs.DescribeLogDirsRequest(topics=[topic])


def _create_partitions(stage: Stage, _version: int) -> Message:
    name = stage.make_topic(stage.name("topic"))
    topic = create_partitions.CreatePartitionsTopic(
        name=name, count=2, assignments=[create_partitions.CreatePartitionsAssignment(broker_ids=[NODE_ID])]
    )
    return create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=15_000)


def _elect_leaders(_stage: Stage, _version: int) -> Message:
    return elect_leaders.ElectLeadersRequest(topic_partitions=None, timeout_ms=15_000)


def _alter_reassignments(_stage: Stage, _version: int) -> Message:
    partition = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=[NODE_ID])
    topic = alter_partition_reassignments.ReassignableTopic(name=TOPIC, partitions=[partition])
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=15_000)


def _list_reassignments(_stage: Stage, _version: int) -> Message:
    topic = list_partition_reassignments.ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=[0])
    return list_partition_reassignments.ListPartitionReassignmentsRequest(topics=[topic], timeout_ms=15_000)


def _delete_groups(stage: Stage, _version: int) -> Message:
    stage.ask(simple_offset_commit(stage, 8), 8)
    return delete_groups.DeleteGroupsRequest(groups_names=["offsets"])


def _delete_offsets(stage: Stage, _version: int) -> Message:
    stage.ask(simple_offset_commit(stage, 8), 8)
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=TOPIC, partitions=[partition])
    return offset_delete.OffsetDeleteRequest(group_id="offsets", topics=[topic])


def _describe_cluster(_: Stage, _version: int) -> Message:
    return describe_cluster.DescribeClusterRequest()


def _describe_producers(_: Stage, _version: int) -> Message:
    topic = describe_producers.TopicRequest(name=TOPIC, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def _describe_transactions(stage: Stage, _version: int) -> Message:
    return describe_transactions.DescribeTransactionsRequest(transactional_ids=[stage.producer().transactional_id])


def _list_transactions(_: Stage, version: int) -> Message:
    pattern = "transactional-.*" if version >= 2 else None
    return list_transactions.ListTransactionsRequest(producer_id_filters=[0], transactional_id_pattern=pattern)


def _describe_client_quotas(_: Stage, _version: int) -> Message:
    every = describe_client_quotas.ComponentData(entity_type="user", match_type=2, match=None)
    return describe_client_quotas.DescribeClientQuotasRequest(components=[every])


def _alter_client_quotas(_: Stage, _version: int) -> Message:
    entity = alter_client_quotas.RequestEntityData(entity_type="client-id", entity_name="attacked")
    remove = alter_client_quotas.OpData(key="producer_byte_rate", remove=True)
    entry = alter_client_quotas.RequestEntryData(entity=[entity], ops=[remove])
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry])


def _list_config_resources(_: Stage, version: int) -> Message:
    return list_config_resources.ListConfigResourcesRequest(resource_types=[TOPIC_RESOURCE] if version else [])


def _describe_topic_partitions(_: Stage, _version: int) -> Message:
    return describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=TOPIC)],
        cursor=describe_topic_partitions.RequestCursor(topic_name=TOPIC, partition_index=1),
    )


def _describe_credentials(_: Stage, _version: int) -> Message:
    return describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=None)


def _alter_credentials(_: Stage, _version: int) -> Message:
    upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
    )
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=[upsertion])


WITH_SASL: Final = frozenset({17, 36, 38, 39, 40, 41})
"""The APIs that need a listener of SASL: logins and delegation tokens, which have attacks of their own
(`tests/abuse/test_numbers_between_brokers.py`, `tests/broker/handlers/test_delegation_tokens.py`)."""

Builder = Callable[[Stage, int], Message]

REQUESTS: Final[Mapping[int, tuple[Builder, ...]]] = {
    0: (_produce, _produce_in_transaction),
    1: (_fetch, _fetch_of_nothing, _fetch_in_session),
    2: (_list_offsets,),
    3: (_metadata,),
    8: (_offset_commit, simple_offset_commit),
    9: (_offset_fetch,),
    10: (_find_coordinator,),
    11: (_join,),
    12: (_heartbeat,),
    13: (_leave,),
    14: (_sync,),
    15: (_describe_groups,),
    16: (_list_groups,),
    18: (_api_versions,),
    19: (_create_topics, _create_assigned_topics),
    20: (_delete_topics,),
    21: (_delete_records,),
    22: (_init_producer_id, _init_idempotent_producer),
    23: (_offset_for_leader_epoch,),
    24: (_add_partitions,),
    25: (_add_offsets,),
    26: (_end_transaction,),
    27: (write_markers,),
    28: (_txn_offset_commit,),
    29: (_describe_acls,),
    30: (_create_acls,),
    31: (_delete_acls,),
    32: (_describe_configs,),
    33: (_alter_configs,),
    35: (_describe_log_dirs,),
    37: (_create_partitions,),
    42: (_delete_groups,),
    43: (_elect_leaders,),
    44: (_incremental_alter_configs,),
    45: (_alter_reassignments,),
    46: (_list_reassignments,),
    47: (_delete_offsets,),
    48: (_describe_client_quotas,),
    49: (_alter_client_quotas,),
    50: (_describe_credentials,),
    51: (_alter_credentials,),
    60: (_describe_cluster,),
    61: (_describe_producers,),
    65: (_describe_transactions,),
    66: (_list_transactions,),
    74: (_list_config_resources,),
    75: (_describe_topic_partitions,),
}
"""By API key: a function that creates a request that gets no error, at any served version."""


def served_versions(key: int) -> range:
    """The versions of an API for which requests are created."""
    handler = load_handler(key)
    return range(handler.min_version, handler.max_version + 1)
