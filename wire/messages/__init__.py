"""Every message of the protocol: one generated module per API, imported when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from barnabas.wire.schema import Message

API_NAMES = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    35: "DescribeLogDirs",
    36: "SaslAuthenticate",
    37: "CreatePartitions",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    42: "DeleteGroups",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials",
    56: "AlterPartition",
    57: "UpdateFeatures",
    58: "Envelope",
    60: "DescribeCluster",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    66: "ListTransactions",
    67: "AllocateProducerIds",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
}
"""Kafka's name of each API we have messages of, by key."""


class ApiMessages:
    """An API's key, Kafka's name, and its two message classes."""

    __slots__ = ("key", "name", "request_class", "response_class")

    def __init__(self, key: int, name: str, request_class: type[Message], response_class: type[Message]) -> None:
        self.key = key
        self.name = name
        self.request_class = request_class
        self.response_class = response_class

    def __repr__(self) -> str:
        return f"ApiMessages({self.key}, {self.name!r})"


@cache
def api(key: int) -> ApiMessages:
    """The messages of an API; imports its module. Errors: KeyError for a key we have no messages of."""
    name = API_NAMES[key]
    module = import_module(f"{__name__}.{module_name(name)}")
    return ApiMessages(key, name, getattr(module, f"{name}Request"), getattr(module, f"{name}Response"))


def module_name(name: str) -> str:
    """The module of an API or message by Kafka's name: "ListOffsets" is in `list_offsets`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")
