"""The markers of transactions: Kafka's own bytes, and control records that are none."""

from pathlib import Path

import pytest

from barnabas.wire.control_records import (
    ControlRecordType,
    EndTxnMarker,
    build_end_txn_marker,
    control_record_type,
    parse_end_txn_marker,
)
from barnabas.wire.record_batch import CorruptBatch, parse_header
from barnabas.wire.records import Record, iter_records

GOLDEN = Path(__file__).parent.parent / "storage" / "golden_batches"
"""Bytes that Kafka's own classes wrote (tools/golden)."""


@pytest.mark.parametrize("outcome", [ControlRecordType.COMMIT, ControlRecordType.ABORT])
def test_transaction_markers_equal_kafkas_bytes(outcome: ControlRecordType) -> None:
    marker = EndTxnMarker(outcome, 12)
    batch = build_end_txn_marker(
        marker,
        producer_id=4000,
        producer_epoch=1,
        timestamp_ms=1_700_000_000_000,
        base_offset=500,
        partition_leader_epoch=2,
    )
    written_by_kafka = (GOLDEN / f"marker-{outcome.name.lower()}.hex").read_text()
    assert batch == bytes.fromhex(written_by_kafka.replace("\n", ""))
    assert [parse_end_txn_marker(record) for record in iter_records(batch, parse_header(batch))] == [marker]


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_control_keys_that_are_none(key: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        control_record_type(Record(0, 0, key, None))


def test_control_records_of_other_types_and_versions() -> None:
    assert parse_end_txn_marker(Record(0, 0, b"\0\0\0\2", None)) is None
    assert control_record_type(Record(0, 0, b"\0\5\0\1more", None)) is ControlRecordType.COMMIT
    for value in (None, b"\0\0\0\0\0", b"\xff\xff\0\0\0\1"):
        with pytest.raises(CorruptBatch):
            parse_end_txn_marker(Record(0, 0, b"\0\0\0\1", value))
    marker = parse_end_txn_marker(Record(0, 0, b"\0\0\0\0", b"\0\1\0\0\0\7\0\2"))
    assert marker == EndTxnMarker(ControlRecordType.ABORT, 7)
