"""Control records: the markers that end a transaction in each of its partitions.

Source: Kafka `ControlRecordType`, `EndTransactionMarker` (KIP-98).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.wire.record_batch import NO_PARTITION_LEADER_EPOCH, CorruptBatch
from barnabas.wire.records import Record, build_batch


class ControlRecordType(IntEnum):
    """The type of a control record; types of other versions and of KRaft are UNKNOWN."""

    ABORT = 0
    COMMIT = 1
    UNKNOWN = -1


class EndTxnMarker(NamedTuple):
    """The outcome of a transaction, as its coordinator writes it into every partition of the transaction."""

    control_type: ControlRecordType
    coordinator_epoch: int


_CONTROL_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


def build_end_txn_marker(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytearray:
    """Build the control batch that ends a transaction: one record, without a sequence."""
    key = _CONTROL_KEY.pack(0, marker.control_type)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        (Record(base_offset, timestamp_ms, key, value),),
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        partition_leader_epoch=partition_leader_epoch,
    )


def control_record_type(record: Record) -> ControlRecordType:
    """The type in a control record's key.

    Raises:
        CorruptBatch: the key is too short or has a negative version.
    """
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptBatch("control record has no complete key")
    version, number = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatch(f"control record key has version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def parse_end_txn_marker(record: Record) -> EndTxnMarker | None:
    """Read a control record that ends a transaction; None if it is of another type.

    Raises:
        CorruptBatch: key or value are too short or have a negative version.
    """
    control_type = control_record_type(record)
    if control_type is ControlRecordType.UNKNOWN:
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise CorruptBatch("end of transaction marker has no complete value")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"end of transaction marker has version {version}")
    return EndTxnMarker(control_type, coordinator_epoch)
