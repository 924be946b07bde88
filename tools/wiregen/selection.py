"""The generated messages, and the jar of each."""

from __future__ import annotations

from typing import Any

CLIENTS_4 = "kafka-clients-4.3.0.jar"
CLIENTS_3 = "kafka-clients-3.9.1.jar"
GROUP_COORDINATOR = "kafka-group-coordinator-4.3.0.jar"
TRANSACTION_COORDINATOR = "kafka-transaction-coordinator-4.3.0.jar"

_CLIENT_APIS = """
    Produce Fetch ListOffsets Metadata OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup
    SyncGroup DescribeGroups ListGroups SaslHandshake ApiVersions CreateTopics DeleteTopics DeleteRecords
    InitProducerId OffsetForLeaderEpoch AddPartitionsToTxn AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit
    DescribeAcls CreateAcls DeleteAcls DescribeConfigs AlterConfigs DescribeLogDirs SaslAuthenticate
    CreatePartitions CreateDelegationToken RenewDelegationToken ExpireDelegationToken DescribeDelegationToken
    DeleteGroups ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments ListPartitionReassignments
    OffsetDelete DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials AlterUserScramCredentials
    UpdateFeatures DescribeCluster DescribeProducers DescribeTransactions ListTransactions
    ListConfigResources DescribeTopicPartitions
    ConsumerGroupHeartbeat ConsumerGroupDescribe
    """

# The requests between brokers in ZooKeeper mode; Kafka 4 no longer has them, or not their lower versions.
_ZOOKEEPER_MODE_APIS = """
    LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown AlterPartition AllocateProducerIds Envelope
    """

_GROUP_RECORDS = """
    OffsetCommitKey OffsetCommitValue LegacyOffsetCommitKey LegacyOffsetCommitValue
    GroupMetadataKey GroupMetadataValue
    """

APIS = {CLIENTS_4: _CLIENT_APIS.split(), CLIENTS_3: _ZOOKEEPER_MODE_APIS.split()}
"""API names by jar: one module each, with the request and the response."""

DATA = {
    CLIENTS_4: ["ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "EndTxnMarker"],
    GROUP_COORDINATOR: _GROUP_RECORDS.split(),
    TRANSACTION_COORDINATOR: ["TransactionLogKey", "TransactionLogValue"],
}
"""Other messages by jar: one module each."""

OWN_FIELDS: dict[str, list[dict[str, Any]]] = {
    "LeaderAndIsrPartitionError": [
        {"name": name, "type": type_name, "versions": "5+", "taggedVersions": "5+", "tag": tag, "default": default}
        for tag, name, type_name, default in [
            (10_000, "KnownLeaderEpoch", "int32", "-1"),
            (10_001, "LastEpoch", "int32", "-1"),
            (10_002, "LogEndOffset", "int64", "-1"),
            (10_003, "KnewIsr", "bool", "false"),
        ]
    ],
}
"""Additional fields between our brokers beyond Kafka's definitions, by struct: tagged fields, which Kafka's brokers
ignore. Their tags are far above those of Kafka.
"""
