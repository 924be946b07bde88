"""`__transaction_state` records: what is written is read back, and what is not understood stops nothing."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinators.transactions.records import decode_record, encode_record
from barnabas.broker.coordinators.transactions.shard import TransactionShard
from barnabas.broker.coordinators.transactions.state import Transaction, TransactionState, TransactionTombstone
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ProtocolError
from barnabas.wire.records import Record, build_batch

WRITTEN = [state for state in TransactionState if state.value not in ("Dead", "PrepareEpochFence")]
INT64 = st.integers(-1, 2**63 - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(max_size=10), st.integers(0, 2**31 - 1)), max_size=5)


@st.composite
def transactions(draw):
    state = draw(st.sampled_from(WRITTEN))
    return Transaction(
        draw(st.text(max_size=20)),
        draw(INT64),
        draw(st.integers(-1, 32_767)),
        draw(st.integers(0, 2**31 - 1)),
        state,
        frozenset() if state is TransactionState.EMPTY else draw(PARTITIONS),
        draw(INT64),
        draw(INT64),
        draw(INT64),
        draw(INT64),
        client_version=draw(st.integers(0, 2)),
    )


@given(transaction=transactions())
def test_version_1_is_read_back(transaction):
    key, value = encode_record(transaction, 1)
    assert decode_record(key, value) == transaction


@given(transaction=transactions())
def test_version_0_is_read_back_without_what_it_lacks(transaction):
    key, value = encode_record(transaction, 0)
    lacking = transaction._replace(previous_producer_id=-1, next_producer_id=-1, client_version=0)
    assert decode_record(key, value) == lacking


def test_the_bytes_of_version_1():
    transaction = Transaction(
        "id", 7, 3, 60_000, TransactionState.ONGOING, frozenset({("t", 1), ("t", 0)}), 5, 6, 7, -1, client_version=2
    )
    key, value = encode_record(transaction, 1)
    assert key == b"\x00\x00\x00\x02id"
    assert value == (
        b"\x00\x01"  # version
        + struct.pack(">qhib", 7, 3, 60_000, 1)
        + b"\x02\x02t\x03"  # one topic, two partitions
        + struct.pack(">ii", 0, 1)
        + b"\x00"
        + struct.pack(">qq", 6, 5)
        + b"\x02\x00\x08"  # two tagged fields; the previous producer id
        + struct.pack(">q", 7)
        + b"\x02\x02\x00\x02"  # the client's transaction version
    )


def test_a_tombstone_has_no_value():
    key, value = encode_record(TransactionTombstone("id"), 1)
    assert value is None
    assert decode_record(key, None) == TransactionTombstone("id")


GOOD_KEY, GOOD_VALUE = encode_record(Transaction("id", 7, 3, 60_000), 1)
ODD = [
    (b"\x00\x01" + GOOD_KEY[2:], GOOD_VALUE, "type 1"),
    (b"", GOOD_VALUE, "too few"),
    (GOOD_KEY, b"\x00", "too few"),
    (GOOD_KEY, b"\x00\x02" + GOOD_VALUE[2:], "version 2"),
    (GOOD_KEY, GOOD_VALUE[:16] + b"\x06" + GOOD_VALUE[17:], "state 6"),
    (GOOD_KEY, GOOD_VALUE[:-1], "bytes"),
]


@pytest.mark.parametrize(("key", "value", "reason"), ODD, ids=lambda part: part if isinstance(part, str) else "")
def test_odd_records_are_refused(key, value, reason):
    with pytest.raises(ProtocolError, match=reason):
        decode_record(key, value)


def test_loading_leaves_odd_records_out():
    shard = TransactionShard()
    records = [*((key, value) for key, value, _ in ODD), (GOOD_KEY, GOOD_VALUE), (None, None)]
    shard.load(build_batch([Record(number, 0, key, value) for number, (key, value) in enumerate(records)]))
    marker = EndTxnMarker(ControlRecordType.COMMIT, 0)
    shard.load(build_end_txn_marker(marker, producer_id=7, producer_epoch=0, timestamp_ms=0))
    assert list(shard.transactions) == ["id"]
    assert shard.skipped.total() == len(ODD) + 1
