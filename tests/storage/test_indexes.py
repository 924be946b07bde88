"""The index files and the epoch cache, by themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.checkpoints import (
    MetaProperties,
    decode_checkpoint,
    decode_leader_epochs,
    decode_offsets,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from barnabas.storage.descriptors import LogFile
from barnabas.storage.errors import CorruptFile
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.offset_index import OffsetIndex, OffsetIndexCache
from barnabas.storage.producer_snapshot import decode_snapshot, encode_snapshot
from barnabas.storage.producer_state import BatchMetadata, ProducerEntry
from barnabas.storage.time_index import TimeIndex
from barnabas.storage.txn_index import AbortedTransaction, TransactionIndex, collect_aborted

offsets = st.lists(st.integers(1, 1000), unique=True, max_size=50).map(sorted)


@given(offsets, st.integers(0, 1100))
def test_offset_index_finds_the_entry_at_or_before(found, wanted):
    index = OffsetIndex(100)
    for number, offset in enumerate(found):
        index.append(100 + offset, 10 * number + 10)
    before = [(100 + offset, 10 * number + 10) for number, offset in enumerate(found) if 100 + offset <= wanted]
    assert index.lookup(wanted) == (before[-1] if before else (-1, 0))
    again = OffsetIndex.from_bytes(100, index.to_bytes(), 10_000)
    assert (again.relative_offsets, again.positions) == (index.relative_offsets, index.positions)
    again.truncate_to(wanted)
    assert [100 + relative for relative in again.relative_offsets] == [100 + o for o in found if 100 + o < wanted]


def test_offset_index_file_is_big_endian():
    index = OffsetIndex(1000)
    index.append(1001, 258)
    assert index.to_bytes() == bytes([0, 0, 0, 1, 0, 0, 1, 2])


@pytest.mark.parametrize("data", [bytes(7), bytes(16), b"\x80" + bytes(7), bytes([0, 0, 0, 1, 0, 0, 0, 99])])
def test_an_impossible_offset_index_is_refused(data):
    with pytest.raises(CorruptFile):
        OffsetIndex.from_bytes(0, data, 99)


@given(st.lists(st.integers(0, 100), unique=True, max_size=20).map(sorted), st.integers(-1, 110))
def test_time_index_looks_up_the_entry_at_or_before(timestamps, wanted):
    index = TimeIndex(50)
    for number, timestamp in enumerate(timestamps):
        index.append(timestamp, 50 + number)
        index.append(timestamp, 500)
    earlier = [(timestamp, 50 + number) for number, timestamp in enumerate(timestamps) if timestamp <= wanted]
    assert index.lookup(wanted) == (earlier[-1] if earlier else (-1, 50))
    assert TimeIndex.from_bytes(50, index.to_bytes()).timestamps == index.timestamps
    assert len(index.to_bytes()) == 12 * len(timestamps)


def test_an_impossible_time_index_is_refused():
    for data in (bytes(11), bytes(24), b"\xff" * 12):
        with pytest.raises(CorruptFile):
            TimeIndex.from_bytes(0, data)


def test_a_transaction_index_stops_at_the_last_overlap():
    """Later transactions cannot overlap."""
    entries = [AbortedTransaction(1, 0, 10, 5), AbortedTransaction(2, 5, 20, 21), AbortedTransaction(1, 22, 30, 31)]
    index = TransactionIndex(entries)
    assert index.collect(0, 10) == (entries[:2], True)
    assert index.collect(11, 40) == (entries[1:], False)
    again = TransactionIndex.from_bytes(0, index.to_bytes())
    assert again.entries == entries
    again.truncate_to(20)
    assert again.entries == entries[:1]
    assert len(index.to_bytes()) == 3 * 34
    for data in (bytes(33), index.to_bytes() * 2, b"\x00\x07" + bytes(32)):
        with pytest.raises(CorruptFile):
            TransactionIndex.from_bytes(0, data)


def test_the_index_cache_is_bounded_by_entries():
    cache = OffsetIndexCache(entry_limit=10)
    files = [LogFile(str(number)) for number in range(4)]
    for file in files:
        index = OffsetIndex(0)
        for number in range(3):
            index.append(number + 1, number + 1)
        cache.put(file, index)
    assert [cache.get(file) is not None for file in files] == [False, False, True, True]
    cache.drop(files[3])
    assert cache.get(files[3]) is None


# What Kafka's LeaderEpochFileCacheTest asks for.
def test_leader_epochs_answer_where_an_epoch_ended():
    epochs = LeaderEpochs([(2, 10), (3, 20), (7, 30)])
    assert epochs.end_offset_for(7, 45) == (7, 45)
    assert epochs.end_offset_for(3, 45) == (3, 30)
    assert epochs.end_offset_for(5, 45) == (3, 30)
    assert epochs.end_offset_for(1, 45) == (1, 10)
    assert epochs.end_offset_for(8, 45) == epochs.end_offset_for(-1, 45) == (-1, -1)
    assert LeaderEpochs().end_offset_for(0, 5) == (-1, -1)
    assert [epochs.epoch_for(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 3, 7]


def test_leader_epochs_drop_entries_that_a_new_one_contradicts():
    epochs = LeaderEpochs([(2, 10), (3, 20), (7, 30)])
    assert not epochs.assign(7, 40)
    assert epochs.assign(8, 20)
    assert epochs.entries == [(2, 10), (8, 20)]
    assert epochs.assign(1, 5)
    assert epochs.entries == [(1, 5)]
    with pytest.raises(ValueError, match="neither may be negative"):
        epochs.assign(-1, 0)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (5, [(2, 10), (3, 20)]),
        (10, [(2, 10), (3, 20)]),
        (15, [(2, 15), (3, 20)]),
        (20, [(3, 20)]),
        (25, [(3, 25)]),
    ],
)
def test_leader_epochs_follow_the_log_start(start, expected):
    epochs = LeaderEpochs([(2, 10), (3, 20)])
    epochs.truncate_from_start(start)
    assert epochs.entries == expected


def test_leader_epochs_follow_truncation():
    epochs = LeaderEpochs([(2, 10), (3, 20)])
    epochs.truncate_from_end(20)
    assert epochs.entries == [(2, 10)]
    assert epochs.dirty
    epochs.truncate_from_end(11)
    assert epochs.entries == [(2, 10)]


topics = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)


@pytest.mark.slow
@given(st.dictionaries(st.tuples(topics, st.integers(0, 999)), st.integers(0, 1 << 62), max_size=5))
def test_offset_checkpoints_round_trip(found):
    assert decode_offsets(encode_offsets(found)) == found


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_called_corrupt(data):
    decoders: list[Callable[[bytes], object]] = [
        decode_checkpoint,
        decode_offsets,
        decode_leader_epochs,
        decode_partition_metadata,
        decode_snapshot,
        MetaProperties.decode,
        lambda found: OffsetIndex.from_bytes(0, found, 50),
        lambda found: TimeIndex.from_bytes(0, found),
        lambda found: TransactionIndex.from_bytes(0, found),
    ]
    for decode in decoders:
        with suppress(CorruptFile):
            decode(data)


def test_the_other_text_files_round_trip():
    assert decode_leader_epochs(encode_leader_epochs([(1, 2), (3, 4)])) == [(1, 2), (3, 4)]
    topic_id = bytes(range(16))
    assert decode_partition_metadata(encode_partition_metadata(topic_id)) == topic_id
    with pytest.raises(CorruptFile):
        decode_partition_metadata(encode_partition_metadata(bytes(16)))
    properties = MetaProperties(3, "x_Y-z")
    assert MetaProperties.decode(properties.encode()) == properties
    # As java.util.Properties writes it.
    assert MetaProperties.decode(b"#\n#Sat Nov 21\nbroker.id=3\nversion=0\ncluster.id=x_Y-z\n") == properties


def test_snapshots_round_trip_and_notice_every_flipped_bit():
    entry = ProducerEntry(7, 2, 5, 1234, 40)
    entry.batches.append(BatchMetadata(2**31 - 1, 1, 52, 2, 1234))
    data = encode_snapshot([entry, ProducerEntry(8)])
    (again, empty) = decode_snapshot(data)
    assert (again.producer_id, again.epoch, again.coordinator_epoch, again.last_timestamp) == (7, 2, 5, 1234)
    assert (again.batches, again.transaction_first_offset) == (entry.batches, 40)
    assert (empty.batches, empty.transaction_first_offset) == ([], -1)
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decode_snapshot(bytes(broken))


@given(data=st.data())
def test_a_transaction_index_is_searched_as_it_is_read(data):
    entries = []
    last_offset = 0
    for _ in range(data.draw(st.integers(0, 12))):
        first_offset = data.draw(st.integers(max(0, last_offset - 20), last_offset + 5))
        last_offset = max(first_offset, last_offset) + data.draw(st.integers(1, 8))
        stable = data.draw(st.integers(first_offset, last_offset + 1))
        entries.append(AbortedTransaction(7, first_offset, last_offset, stable))
    index = TransactionIndex(entries)
    start_offset = data.draw(st.integers(0, 120))
    upper_offset = start_offset + data.draw(st.integers(1, 50))
    collected, _ = index.collect(start_offset, upper_offset)
    assert collect_aborted(bytearray(index.to_bytes()), start_offset, upper_offset)[0] == collected
