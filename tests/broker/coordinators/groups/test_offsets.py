"""Committed offsets: what a transcript cannot show well (metadata size, subscriptions, open transactions)."""

import gc
import struct
import sys

import pytest

from barnabas.broker.coordinators.groups.changes import (
    CommittedOffset,
    GroupRecord,
    MemberRecord,
    OffsetRecord,
    OffsetTombstone,
)
from barnabas.broker.coordinators.groups.classic.rebalance import GENERATION_MAX, next_generation
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    FetchedOffset,
    ForgetTopics,
    PartitionCommit,
)
from barnabas.broker.coordinators.groups.offsets import OFFSETS_PER_COMMIT_MAX
from barnabas.broker.coordinators.groups.records import decode_record, encode_record
from barnabas.broker.coordinators.groups.shard import GroupShard
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.records import Record, build_batch

START_MS = 1_000_000
WEEK_MS = 7 * 86_400_000


def subscription(*topics):
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def offset_record(offset, topic="t", at_ms=0):
    return OffsetRecord("g", topic, 0, CommittedOffset(offset, -1, "", at_ms))


def stable_group(metadata, protocol_type="consumer"):
    member = MemberRecord("m", None, "c", "/h", 10_000, 10_000, metadata, b"w")
    return GroupRecord("g", protocol_type, 1, "range", "m", 0, (member,))


def store(machine, *records):
    for record in records:
        machine.shard.apply("g", [record], machine.append([record]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "error"),
    [(OFFSETS_PER_COMMIT_MAX, ErrorCode.NONE), (OFFSETS_PER_COMMIT_MAX + 1, ErrorCode.UNKNOWN_SERVER_ERROR)],
)
def test_more_offsets_than_a_batch_can_hold_are_refused_at_once(machine, count, error):
    """The least that one takes: group and topic have the shortest names."""
    commits = tuple(PartitionCommit(index, 0, -1, "") for index in range(count))
    event = CommitOffsets("", 1, "", None, -1, -1, (("t", bytes(16), commits),), ErrorCode.NONE)
    effects = machine.shard.decide(event, START_MS, machine.settings)
    assert effects.replies[0][1].error is error
    if error is not ErrorCode.NONE:
        assert not effects.changes
        return
    records = [encode_record(record) for record in GroupShard.records_of(effects.changes)]
    batch = build_batch([Record(offset, 0, key, value) for offset, (key, value) in enumerate(records)])
    assert len(batch) > 1_048_588  # nothing is refused that the log would take


def test_metadata_has_a_limit_and_the_others_are_stored(machine):
    commits = (
        PartitionCommit(0, 1, -1, "x" * 4096),
        PartitionCommit(1, 1, -1, "x" * 4097),
        PartitionCommit(2, 1, -1, ""),
    )
    effects = machine.run(CommitOffsets("g", 1, "", None, -1, -1, (("t", bytes(16), commits),), ErrorCode.NONE))
    assert machine.replies[1].topics == (
        ("t", ((0, ErrorCode.NONE), (1, ErrorCode.OFFSET_METADATA_TOO_LARGE), (2, ErrorCode.NONE))),
    )
    assert [record.partition for record in effects.changes] == [0, 2]


def test_an_active_group_keeps_what_it_reads(machine):
    store(machine, stable_group(subscription("t", "u")), offset_record(1), offset_record(2, "old"))
    machine.now_ms = WEEK_MS
    assert GroupShard.records_of(machine.run(ExpireOffsets("g")).changes) == [OffsetTombstone("g", "old", 0)]
    machine.run(DeleteOffsets("g", 1, (("t", (0,)), ("v", (0,)))))
    assert machine.replies[1].topics == (
        ("t", ((0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),)),
        ("v", ((0, ErrorCode.NONE),)),
    )


@pytest.mark.parametrize(
    "metadata", [b"", b"\x00\x01", b"\x00\x01\x00\x00\x00\x01\x00\x05t", b"\x00\x01\x7f\xff\xff\xff"]
)
def test_a_group_whose_subscription_is_unreadable_keeps_all(machine, metadata):
    store(machine, stable_group(metadata), offset_record(1))
    machine.now_ms = WEEK_MS
    assert not machine.run(ExpireOffsets("g")).changes
    machine.run(DeleteOffsets("g", 1, (("t", (0,)),)))
    assert machine.replies[1].topics[0][1] == ((0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),)


def test_an_active_group_of_another_type_keeps_all(machine):
    store(machine, stable_group(subscription("t"), "connect"), offset_record(1))
    machine.now_ms = WEEK_MS
    assert not machine.run(ExpireOffsets("g")).changes
    machine.run(DeleteOffsets("g", 1, (("t", (0,)),)))
    assert machine.replies[1].error is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_tells_no_time_goes_by_its_commits(machine):
    """GroupMetadataValue before version 2 does not say since when the group is empty."""
    store(machine, stable_group(b"")._replace(members=(), state_since_ms=-1), offset_record(1, at_ms=1000))
    machine.now_ms = WEEK_MS + 999
    assert not machine.run(ExpireOffsets("g")).changes
    machine.now_ms += 1
    assert len(machine.run(ExpireOffsets("g")).changes) == 2


def transactional_batch(record, base_offset, producer_id=9):
    key, value = encode_record(record)
    return build_batch(
        [Record(base_offset, 0, key, value)], base_offset=base_offset, producer_id=producer_id, producer_epoch=0,
        base_sequence=0, transactional=True,
    )  # fmt: skip


def marker(kind, base_offset, producer_id=9):
    return build_end_txn_marker(
        EndTxnMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=0, base_offset=base_offset
    )


def plain_batch(record, base_offset):
    key, value = encode_record(record)
    return build_batch([Record(base_offset, 0, key, value)], base_offset=base_offset)


def test_loaded_offsets_of_a_transaction_wait_for_its_end():
    shard = GroupShard()
    shard.load(plain_batch(offset_record(1), 0) + transactional_batch(offset_record(2), 1))
    assert shard.offsets.get("g", "t", 0).offset == 1
    unstable = shard.offsets.fetch("g", {"t": [0, 1]}, require_stable=True)
    assert unstable.topics["t"] == [
        FetchedOffset(0, None, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        FetchedOffset(1, None),
    ]
    assert shard.offsets.fetch("g", {"t": [0]}, require_stable=False).topics["t"][0].committed.offset == 1
    shard.load(marker(ControlRecordType.COMMIT, 2))
    assert shard.offsets.get("g", "t", 0).offset == 2
    assert not shard.offsets.pending


def test_offsets_of_an_aborted_transaction_never_count():
    shard = GroupShard()
    shard.load(transactional_batch(offset_record(2), 0) + marker(ControlRecordType.ABORT, 1))
    assert shard.offsets.get("g", "t", 0) is None
    assert not shard.offsets.pending


def test_a_later_plain_commit_wins_over_a_transaction():
    shard = GroupShard()
    shard.load(
        transactional_batch(offset_record(2), 0)
        + plain_batch(offset_record(3), 1)
        + marker(ControlRecordType.COMMIT, 2)
    )
    assert shard.offsets.get("g", "t", 0).offset == 3


def test_deleting_a_group_ends_its_open_transactions_offsets(machine):
    machine.shard.load(transactional_batch(offset_record(2), 0))
    machine.now_ms = 10 * WEEK_MS
    assert not machine.run(ExpireOffsets("g")).changes, "an open transaction keeps its group"
    effects = machine.run(DeleteGroup("g", 1))
    assert OffsetTombstone("g", "t", 0) in effects.changes
    machine.shard.load(marker(ControlRecordType.COMMIT, 1))
    assert machine.shard.offsets.get("g", "t", 0) is None


def test_odd_records_do_not_stop_the_loader():
    shard = GroupShard()
    odd = [Record(0, 0, b"\x00\x03\x00\x01g", b""), Record(1, 0, None, b"x"), Record(2, 0, b"\x00\x01\x00", None)]
    shard.load(build_batch(odd) + plain_batch(offset_record(5), 3))
    assert shard.offsets.get("g", "t", 0).offset == 5
    assert sum(shard.skipped.values()) == 3
    assert shard.end_offset == 4


def test_generations_wrap_to_one():
    assert next_generation(0) == 1
    assert next_generation(GENERATION_MAX - 1) == GENERATION_MAX
    assert next_generation(GENERATION_MAX) == 1


LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("retention_ms", "expire_at_ms"),
    [
        (LONG_MIN, 0),
        (-2, START_MS - 2),
        (-1, -1),
        (0, START_MS),
        (1, START_MS + 1),
        (LONG_MAX - START_MS, LONG_MAX),
        (LONG_MAX - START_MS + 1, LONG_MAX),
        (LONG_MAX, LONG_MAX),
    ],
)
def test_a_retention_of_any_length_ends_within_time(machine, retention_ms, expire_at_ms):
    commits = (PartitionCommit(0, 1, -1, ""),)
    effects = machine.run(
        CommitOffsets("g", 1, "", None, -1, retention_ms, (("t", bytes(16), commits),), ErrorCode.NONE)
    )
    assert machine.replies[1].topics == (("t", ((0, ErrorCode.NONE),)),)
    (record,) = GroupShard.records_of(effects.changes)
    assert record.committed.expire_at_ms == expire_at_ms
    assert decode_record(*encode_record(record)).committed.expire_at_ms == expire_at_ms


def test_a_commit_expires_after_its_own_retention(machine):
    machine.now_ms = START_MS
    for topic, expire_at_ms in (("now", START_MS), ("next", START_MS + 1)):
        store(machine, OffsetRecord("g", topic, 0, CommittedOffset(1, -1, "", START_MS, expire_at_ms)))
    effects = machine.run(ExpireOffsets("g"))
    assert GroupShard.records_of(effects.changes) == [OffsetTombstone("g", "now", 0)]


def calls(function):
    """How many functions, Python's and C's, are called by it."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # what it would call counts, too
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def questions_and_deletions(machine):
    """The operations that look for open transactions' offsets: of every partition of one topic, or of the group."""
    shard, event = machine.shard, DeleteOffsets("g", 0, (("t", tuple(range(100))),))
    return {
        "fetch": lambda: shard.offsets.fetch("g", {"t": range(100)}, require_stable=True),
        "delete offsets": lambda: shard.decide(event, START_MS, machine.settings),
        "delete the group": lambda: shard.decide(DeleteGroup("g", 0), START_MS, machine.settings),
        "expire": lambda: shard.decide(ExpireOffsets("g"), START_MS, machine.settings),
        "forget topics": lambda: shard.decide(ForgetTopics("g", frozenset("t")), START_MS, machine.settings),
        "a tombstone": lambda: shard.offsets.apply(OffsetTombstone("g", "t", 99), 10**6),
    }


def test_nothing_costs_more_with_many_open_transactions(machine):
    """Partitions named x open transactions would be minutes for one request."""
    store(machine, *(offset_record(1)._replace(partition=partition) for partition in range(100)))
    shard = machine.shard
    shard.offsets.apply(offset_record(2), 10**6, producer_id=1)
    few = {name: calls(each) for name, each in questions_and_deletions(machine).items()}
    for producer_id in range(2, 500):
        shard.offsets.apply(offset_record(2), 10**6 + producer_id, producer_id)
        shard.offsets.apply(offset_record(2)._replace(group_id="other"), 10**6 + producer_id, producer_id)
    many = {name: calls(each) for name, each in questions_and_deletions(machine).items()}
    print(few, many)
    assert all(many[name] <= few[name] for name in few)  # one offset fewer: the tombstone's


def test_the_index_of_open_transactions_forgets_what_they_do():
    offsets = GroupShard().offsets
    for producer_id in (7, 8):
        offsets.apply(offset_record(1), 0, producer_id)
        offsets.apply(offset_record(1, topic="u"), 0, producer_id)
    assert offsets.groups_with_pending({"u"}) == {"g"}
    assert not offsets.groups_with_pending({"v"})
    offsets.apply(OffsetTombstone("g", "u", 0), 1)
    assert offsets.is_pending("g", "t", 0)
    assert not offsets.is_pending("g", "u", 0)
    offsets.end_transaction(7, is_commit=True)
    assert offsets.has_pending("g")
    assert set(offsets.pending_of_group("g")) == {("t", 0)}
    offsets.apply(OffsetTombstone("g", "t", 0), 2)
    offsets.end_transaction(8, is_commit=False)
    assert not offsets.has_pending("g")
    assert not offsets.pending
    assert offsets.held_bytes == 0
