"""The records in `__consumer_offsets`: Kafka's schemas, at the versions that Kafka 4.3 writes.

    key    int16 type | fields at version 0          1 offset (group, topic, partition), 2 group (group)
    value  int16 version | fields at that version    null is a tombstone

Offsets are written at value version 4, which carries the topic id in a tagged field, or 1 when the commit named its own
retention; groups at version 3. Every value version ever written can be read. The other record types of Kafka (consumer,
share and streams groups) are skipped. Source: GroupCoordinatorRecordHelpers, GroupCoordinatorRecordSerde.
"""

import struct
from typing import Final

from barnabas.broker.coordinators.groups.changes import (
    CommittedOffset,
    GroupRecord,
    GroupTombstone,
    MemberRecord,
    OffsetRecord,
    OffsetTombstone,
    Record,
)
from barnabas.broker.coordinators.record_versions import INT16, leading_int16
from barnabas.wire.codec import decode, encode
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.group_metadata_key import GroupMetadataKey
from barnabas.wire.messages.group_metadata_value import GroupMetadataValue, MemberMetadata
from barnabas.wire.messages.offset_commit_key import OffsetCommitKey
from barnabas.wire.messages.offset_commit_value import OffsetCommitValue
from barnabas.wire.names import ZERO_TOPIC_ID

_INT32: Final = struct.Struct(">i")

LEGACY_OFFSET_TYPE: Final = 0
OFFSET_TYPE: Final = 1
GROUP_TYPE: Final = 2

OFFSET_VALUE_VERSION: Final = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
GROUP_VALUE_VERSION: Final = 3

_OFFSET_VALUE_START: Final = struct.Struct(">hqi")
_INT64: Final = struct.Struct(">q")
_SHORT_METADATA_MAX: Final = 126
"""Up to this length the compact string's length takes one byte."""


class UnknownRecordType(ProtocolError):
    """A record of a group type that this coordinator does not support."""

    def __init__(self, record_type: int) -> None:
        super().__init__(f"record type {record_type}")


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value for the log; no value for a tombstone."""
    if isinstance(record, OffsetRecord):
        return _offset_key(record.group_id, record.topic, record.partition), _offset_value(record.committed)
    if isinstance(record, OffsetTombstone):
        return _offset_key(record.group_id, record.topic, record.partition), None
    key = INT16.pack(GROUP_TYPE) + encode(GroupMetadataKey(group=record.group_id), 0)
    if isinstance(record, GroupTombstone):
        return key, None
    return key, INT16.pack(GROUP_VALUE_VERSION) + encode(_group_value(record), GROUP_VALUE_VERSION)


def decode_record(key: bytes, value: bytes | None) -> Record:
    """Decode a record of the log.

    Errors: UnknownRecordType; ProtocolError when the bytes are invalid or of an unknown version.
    """
    record_type = leading_int16(key)
    if record_type in (OFFSET_TYPE, LEGACY_OFFSET_TYPE):
        offset_key = decode(OffsetCommitKey, 0, key, INT16.size)
        return _decode_offset(offset_key, value)
    if record_type == GROUP_TYPE:
        return _decode_group(decode(GroupMetadataKey, 0, key, INT16.size).group, value)
    raise UnknownRecordType(record_type)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    # Encoded by hand, as is the value, for speed: every commit of every consumer needs it.
    group_bytes = group_id.encode()
    topic_bytes = topic.encode()
    return b"".join(
        (
            b"\x00\x01",
            INT16.pack(len(group_bytes)),
            group_bytes,
            INT16.pack(len(topic_bytes)),
            topic_bytes,
            _INT32.pack(partition),
        )
    )


def _offset_value(committed: CommittedOffset) -> bytes:
    if committed.expire_at_ms >= 0 or len(committed.metadata) > _SHORT_METADATA_MAX or not committed.metadata.isascii():
        return _general_offset_value(committed)
    tags = b"\x00" if committed.topic_id == ZERO_TOPIC_ID else b"\x01\x00\x10" + committed.topic_id
    return b"".join(
        (
            _OFFSET_VALUE_START.pack(OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch),
            bytes((len(committed.metadata) + 1,)),
            committed.metadata.encode("ascii"),
            _INT64.pack(committed.commit_timestamp_ms),
            tags,
        )
    )


def _general_offset_value(committed: CommittedOffset) -> bytes:
    version = OFFSET_VALUE_VERSION if committed.expire_at_ms < 0 else OFFSET_VALUE_VERSION_WITH_EXPIRY
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_at_ms,
        topic_id=committed.topic_id,
    )
    return INT16.pack(version) + encode(value, version)


def _group_value(record: GroupRecord) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol_name,
        leader=record.leader_id,
        current_state_timestamp=record.state_since_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in record.members
        ],
    )


def _decode_offset(key: OffsetCommitKey, value: bytes | None) -> OffsetRecord | OffsetTombstone:
    if value is None:
        return OffsetTombstone(key.group, key.topic, key.partition)
    fields = decode(OffsetCommitValue, _value_version(OffsetCommitValue.VALID_VERSIONS, value), value, INT16.size)
    committed = CommittedOffset(
        fields.offset,
        fields.leader_epoch,
        fields.metadata,
        fields.commit_timestamp,
        fields.expire_timestamp,
        fields.topic_id,
    )
    return OffsetRecord(key.group, key.topic, key.partition, committed)


def _decode_group(group_id: str, value: bytes | None) -> GroupRecord | GroupTombstone:
    if value is None:
        return GroupTombstone(group_id)
    fields = decode(GroupMetadataValue, _value_version(GroupMetadataValue.VALID_VERSIONS, value), value, INT16.size)
    return GroupRecord(
        group_id,
        fields.protocol_type,
        fields.generation,
        fields.protocol,
        fields.leader,
        fields.current_state_timestamp,
        tuple(_member_record(member) for member in fields.members),
    )


def _member_record(member: MemberMetadata) -> MemberRecord:
    # Version 0 had one timeout for both.
    rebalance_timeout_ms = member.rebalance_timeout if member.rebalance_timeout >= 0 else member.session_timeout
    return MemberRecord(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        rebalance_timeout_ms,
        member.session_timeout,
        member.subscription,
        member.assignment,
    )


def _value_version(versions: tuple[int, int], value: bytes) -> int:
    version = leading_int16(value)
    if not versions[0] <= version <= versions[1]:
        raise ProtocolError(f"record value has version {version}, known are {versions[0]} to {versions[1]}")
    return version
