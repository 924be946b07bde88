"""The records of `__consumer_offsets`, against the bytes that Apache Kafka 4.3.0 wrote (golden/record.py)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinators.groups.changes import (
    CommittedOffset,
    GroupRecord,
    GroupTombstone,
    MemberRecord,
    OffsetRecord,
    OffsetTombstone,
)
from barnabas.broker.coordinators.groups.classic.subscriptions import parse_topics
from barnabas.broker.coordinators.groups.records import UnknownRecordType, decode_record, encode_record
from barnabas.broker.coordinators.groups.shard import GroupShard
from barnabas.wire.codec import encode
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.group_metadata_value import GroupMetadataValue, MemberMetadata
from barnabas.wire.messages.offset_commit_key import OffsetCommitKey
from barnabas.wire.messages.offset_commit_value import OffsetCommitValue
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import iter_records

GOLDEN = Path(__file__).parent / "golden"
KAFKA_LOG = (GOLDEN / "offsets.log").read_bytes()
KAFKA_SAYS = json.loads((GOLDEN / "offsets.json").read_text())

text = st.text(st.characters(codec="utf-8"), max_size=200)
int32 = st.integers(-(2**31), 2**31 - 1)
positive64 = st.integers(0, 2**63 - 1)


@pytest.fixture(scope="module")
def kafka_shard():
    shard = GroupShard()
    shard.load(KAFKA_LOG)
    return shard


def kafka_records():
    for header in iter_headers(KAFKA_LOG):
        if not header.is_control:
            yield from iter_records(KAFKA_LOG, header)


def test_every_record_that_kafka_wrote_is_written_alike():
    seen = set()
    for record in kafka_records():
        try:
            decoded = decode_record(record.key, record.value)
        except UnknownRecordType:
            continue
        seen.add(type(decoded))
        assert encode_record(decoded) == (record.key, record.value)
    assert seen == {GroupRecord, GroupTombstone, OffsetRecord, OffsetTombstone}


@pytest.mark.parametrize("group_id", sorted(set(KAFKA_SAYS) - {"next-generation"}))
def test_a_log_of_kafka_loads_to_what_kafka_tells(kafka_shard, group_id):
    told = KAFKA_SAYS[group_id]
    offsets = sorted(
        [topic, partition, committed.offset] for topic, partition, committed in kafka_shard.offsets.of_group(group_id)
    )
    assert offsets == told["offsets"]
    group = kafka_shard.groups[group_id]
    assert group.state.name == told["state"]
    members = [
        {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "client_id": member.client_id,
         "client_host": member.client_host}
        for member in group.members.values()
    ]  # fmt: skip
    assert members == [
        {name: value for name, value in member.items() if name != "partitions"} for member in told["members"]
    ]


def test_deleted_records_are_gone_and_unknown_ones_left_out(kafka_shard):
    assert "gone" not in kafka_shard.groups
    assert not list(kafka_shard.offsets.of_group("gone"))
    assert not kafka_shard.offsets.pending
    assert kafka_shard.skipped
    assert all(reason.startswith("record type") for reason in kafka_shard.skipped)


def test_a_static_member_of_kafka_keeps_its_work(kafka_shard):
    (member,) = kafka_shard.groups["static"].members.values()
    assert member.group_instance_id == "instance-1"
    assert kafka_shard.groups["static"].static_members == {"instance-1": member.member_id}
    assert parse_topics(member.metadata("range")) == {"t"}
    assert b"\x00\x01t" in member.assignment


def test_metadata_is_kept(kafka_shard):
    # The NUL at its end is the client's (confluent-kafka).
    assert kafka_shard.offsets.get("members", "t", 0).metadata == "five\0"
    assert kafka_shard.offsets.get("simple", "t", 0).metadata == "ohne Gruppe: äöü\0"


def test_a_retention_of_its_own_is_kept(kafka_shard):
    committed = kafka_shard.offsets.get("retention", "t", 1)
    assert committed.metadata == "a day"
    assert committed.expire_at_ms == committed.commit_timestamp_ms + 86_400_000


@given(
    text, text, int32, positive64, int32, text, positive64, st.none() | positive64, st.binary(min_size=16, max_size=16)
)
def test_offsets_are_written_as_the_schema_says(
    group_id, topic, partition, offset, leader_epoch, metadata, committed_at, expire_at, topic_id
):
    version = 4 if expire_at is None else 1
    committed = CommittedOffset(
        offset, leader_epoch, metadata, committed_at, -1 if expire_at is None else expire_at, topic_id
    )
    key, value = encode_record(OffsetRecord(group_id, topic, partition, committed))
    assert key == b"\x00\x01" + encode(OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0)
    fields = OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=committed_at,
        expire_timestamp=committed.expire_at_ms,
        topic_id=topic_id,
    )
    assert value == version.to_bytes(2, "big") + encode(fields, version)


members = st.builds(
    MemberRecord, text, st.none() | text, text, text, st.integers(0, 2**31 - 1), int32, st.binary(), st.binary()
)
records = st.one_of(
    st.builds(
        GroupRecord,
        text,
        text,
        int32,
        st.none() | text,
        st.none() | text,
        positive64,
        st.lists(members, max_size=3).map(tuple),
    ),
    st.builds(GroupTombstone, text),
    st.builds(OffsetTombstone, text, text, int32),
)


@given(records)
def test_records_survive_the_log(record):
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize("version", range(5))
def test_older_offset_values_can_be_read(version):
    value = version.to_bytes(2, "big") + encode(OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1), version)
    for key_type in (b"\x00\x00", b"\x00\x01"):
        key = key_type + encode(OffsetCommitKey(group="g", topic="t", partition=3), 0)
        assert decode_record(key, value) == OffsetRecord("g", "t", 3, CommittedOffset(7, -1, "m", 1))


@pytest.mark.parametrize("version", range(5))
def test_older_group_values_can_be_read(version):
    member = MemberMetadata(member_id="m", client_id="c", client_host="/h", session_timeout=6000)
    fields = GroupMetadataValue(protocol_type="consumer", generation=2, protocol="range", leader="m", members=[member])
    _, value = encode_record(GroupTombstone("g"))
    key, _ = encode_record(GroupTombstone("g"))
    value = version.to_bytes(2, "big") + encode(fields, version)
    record = decode_record(key, value)
    assert record.members == (MemberRecord("m", None, "c", "/h", 6000, 6000, b"", b""),)
    assert record.state_since_ms == -1


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_nonsense_is_refused(key, value):
    try:
        record = decode_record(key, value)
    except (ProtocolError, UnknownRecordType):
        return
    assert decode_record(*encode_record(record)) == record


@given(st.binary(max_size=80))
def test_nonsense_is_no_subscription(data):
    topics = parse_topics(data)
    assert topics is None or all(isinstance(topic, str) for topic in topics)
