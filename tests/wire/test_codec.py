"""The compiled readers and writers with each kind of field, and with values that do not fit."""

import random
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from barnabas.wire.codec import decode, decoder, encode, encoder
from barnabas.wire.errors import ErrorCode, ProtocolError, TooManyElements
from barnabas.wire.function_source import FunctionSource
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription, TopicPartition
from barnabas.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.offset_commit_key import OffsetCommitKey
from barnabas.wire.messages.transaction_log_value import TransactionLogValue
from barnabas.wire.reader_source import ELEMENTS_MAX, ReaderSource
from barnabas.wire.schema import UNSET, Array, Field, Message, version_range
from barnabas.wire.writer_source import WriterSource


def heartbeat(**values: Any) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="group", generation_id=3, member_id="member", **values)


class TestKnownBytes:
    def test_strings_and_integers(self) -> None:
        encoded = bytes.fromhex("0005 67726f7570 00000003 0006 6d656d626572")
        assert encode(heartbeat(), 0) == encoded
        assert decode(HeartbeatRequest, 0, encoded) == heartbeat()

    def test_flexible_version(self) -> None:
        encoded = bytes.fromhex("06 67726f7570 00000003 07 6d656d626572 00 00")
        assert encode(heartbeat(), 4) == encoded
        assert decode(HeartbeatRequest, 4, encoded) == heartbeat()

    def test_nullable_string(self) -> None:
        assert encode(heartbeat(group_instance_id=""), 3).endswith(bytes.fromhex("0000"))
        assert encode(heartbeat(), 3).endswith(bytes.fromhex("ffff"))
        assert encode(heartbeat(group_instance_id=""), 4).endswith(bytes.fromhex("01 00"))

    def test_null_list_and_empty_list(self) -> None:
        assert encode(MetadataRequest(topics=None), 1) == bytes.fromhex("ffffffff")
        assert encode(MetadataRequest(topics=[]), 1) == bytes.fromhex("00000000")
        assert encode(MetadataRequest(topics=None), 9)[:1] == b"\x00"
        assert encode(MetadataRequest(topics=[]), 9)[:1] == b"\x01"
        assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None

    def test_nullable_struct(self) -> None:
        empty = ConsumerGroupHeartbeatResponse()
        assert empty.assignment is None
        assert encode(empty, 0).endswith(b"\xff\x00")
        assert decode(ConsumerGroupHeartbeatResponse, 0, encode(empty, 0)).assignment is None

    def test_tagged_struct(self) -> None:
        partition = PartitionData(current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9), records=b"")
        response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
        assert encode(response, 12).endswith(bytes.fromhex("01 01 09 00000002 00000009 00 00 00"))
        assert decode(FetchResponse, 12, encode(response, 12)) == response

    def test_tags_are_written_in_their_order(self) -> None:
        value = TransactionLogValue(next_producer_epoch=4, client_transaction_version=2, previous_producer_id=1)
        assert encode(value, 1).endswith(bytes.fromhex("03 00 08 0000000000000001 02 02 0002 03 02 0004"))

    def test_lists_of_integers(self) -> None:
        subscription = ConsumerProtocolSubscription(
            topics=["a"], owned_partitions=[TopicPartition(topic="a", partitions=[1, 2])]
        )
        encoded = bytes.fromhex("00000001 0001 61 ffffffff 00000001 0001 61 00000002 00000001 00000002")
        assert encode(subscription, 1) == encoded
        assert decode(ConsumerProtocolSubscription, 1, encoded) == subscription

    def test_record_type_of_a_coordinator_key(self) -> None:
        assert OffsetCommitKey.API_KEY == 1
        key = OffsetCommitKey(group="g", topic="t", partition=5)
        assert encode(key, 0) == bytes.fromhex("0001 67 0001 74 00000005")


class TestVersions:
    def test_unknown_version(self) -> None:
        for version in (-1, 5):
            with pytest.raises(ValueError, match=rf"versions 0 to 4, not {version}"):
                encoder(HeartbeatRequest, version)
            with pytest.raises(ValueError, match=rf"versions 0 to 4, not {version}"):
                decoder(HeartbeatRequest, version)

    def test_functions_are_compiled_once(self) -> None:
        assert decoder(HeartbeatRequest, 1) is decoder(HeartbeatRequest, 1)
        assert encoder(HeartbeatRequest, 1) is encoder(HeartbeatRequest, 1)

    def test_absent_field_that_must_not_be_ignored(self) -> None:
        with pytest.raises(ValueError, match=r"HeartbeatRequest version 2 .*HeartbeatRequest\.group_instance_id"):
            encode(heartbeat(group_instance_id="static"), 2)

    def test_absent_field_that_may_be_ignored(self) -> None:
        assert encode(HeartbeatResponse(throttle_time_ms=100), 0) == b"\x00\x00"

    def test_absent_field_in_a_nested_struct(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
        with pytest.raises(ValueError, match="cannot be written"):
            encode(request, 9)

    def test_absent_tagged_list(self) -> None:
        from barnabas.wire.messages.fetch import NodeEndpoint

        response = FetchResponse(node_endpoints=[NodeEndpoint(node_id=1)])
        with pytest.raises(ValueError, match="node_endpoints"):
            encode(response, 12)

    def test_fields_the_version_lacks_are_read_as_defaults(self) -> None:
        request = decode(JoinGroupRequest, 0, encode(JoinGroupRequest(), 0))
        assert request.rebalance_timeout_ms == -1
        assert request.group_instance_id is None


class TestValuesThatDoNotFit:
    @pytest.mark.parametrize("version", [0, 4])
    def test_writing(self, version: int) -> None:
        for request in (
            HeartbeatRequest(generation_id=2**31),
            HeartbeatRequest(generation_id="x"),  # type: ignore[arg-type]
            HeartbeatRequest(group_id=None),  # type: ignore[arg-type]
            HeartbeatRequest(group_id=7),  # type: ignore[arg-type]
            HeartbeatRequest(group_id="x" * 32768),
        ):
            with pytest.raises(ValueError, match=f"HeartbeatRequest version {version}"):
                encode(request, version)

    @pytest.mark.parametrize("version", [0, 4])
    def test_longest_string(self, version: int) -> None:
        request = HeartbeatRequest(group_id="x" * 32767)
        assert decode(HeartbeatRequest, version, encode(request, version)) == request

    def test_error_codes_are_integers(self) -> None:
        encoded = encode(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION), 0)
        assert decode(HeartbeatResponse, 0, encoded).error_code == 22


class TestHostileBytes:
    @pytest.mark.parametrize(
        ("version", "encoded"),
        [
            (0, "ffff 00000003 0001 61"),  # null group id
            (0, "7fff 61"),
            (0, "8000 61"),
            (4, "00 00000003 02 61 00 00"),  # null group id
            (4, "ffffffff0f 61"),
            (4, "8180808000 61"),  # more than fits
            (4, "ffffffffff01 61"),  # six bytes
            (4, "02 ff 00000003 02 61 00 00"),  # not UTF-8
            (4, "02 61 00000003 02 61 00 01 00"),  # a tag without a size
            (4, "02 61 00000003 02 61 00 01 00 7f"),
            (4, "02 61 00000003 02 61 00 ffffffff0f"),
        ],
    )
    def test_heartbeat(self, version: int, encoded: str) -> None:
        with pytest.raises(ProtocolError):
            decode(HeartbeatRequest, version, bytes.fromhex(encoded))

    def test_string_over_32767_bytes(self) -> None:
        encoded = bytes.fromhex("818002") + b"x" * 32768 + bytes.fromhex("00000003 02 61 00 00")
        with pytest.raises(ProtocolError, match="group_id"):
            decode(HeartbeatRequest, 4, encoded)

    @pytest.mark.parametrize("count", ["7fffffff", "00000002", "80000000", "ffffffff"])
    def test_counts_are_checked_before_anything_is_allocated(self, count: str) -> None:
        for cls in (ConsumerProtocolSubscription, ApiVersionsResponse):
            prefix = b"" if cls is ConsumerProtocolSubscription else b"\0\0"
            with pytest.raises(ProtocolError, match=r"count of|ends inside|unpack"):
                decode(cls, 0, prefix + bytes.fromhex(count) + b"\0\0")

    def test_a_request_may_not_have_any_number_of_elements(self) -> None:
        def request(sizes: list[int]) -> bytes:
            """Fetch version 4 with a topic per size, of so many partitions."""
            head = bytes(17) + len(sizes).to_bytes(4)
            return head + b"".join(bytes(2) + size.to_bytes(4) + bytes(16 * size) for size in sizes)

        allowed = decode(FetchRequest, 4, request([ELEMENTS_MAX // 2 - 1] * 2))
        assert sum(len(topic.partitions) for topic in allowed.topics) == ELEMENTS_MAX - 2
        with pytest.raises(ProtocolError, match="partitions"):
            decode(FetchRequest, 4, request([ELEMENTS_MAX // 2] * 2))
        with pytest.raises(ProtocolError, match="topics"):
            decode(FetchRequest, 4, request([0] * (ELEMENTS_MAX + 1)))
        decoder(FetchRequest, 4)(request([3, 3]), 0, left=8)
        with pytest.raises(TooManyElements, match="partitions"):
            decoder(FetchRequest, 4)(request([3, 3]), 0, left=7)

    def test_a_struct_may_not_have_any_number_of_tagged_fields(self) -> None:
        body = encode(heartbeat(), 4)[:-1]
        assert decode(HeartbeatRequest, 4, body + bytes([127]) + b"\x09\0" * 127) == heartbeat()
        for count in ("8001", "ffffffff0f"):
            with pytest.raises(ProtocolError, match="tagged fields"):
                decode(HeartbeatRequest, 4, body + bytes.fromhex(count) + b"\x09\0" * 128)
        topic = bytes(16) + b"\0" + bytes([100]) + b"\x09\0" * 100
        with pytest.raises(ProtocolError, match="tagged fields"):
            decode(MetadataRequest, 12, b"\x81\x08" + topic * 1024 + b"\0\0\0")
        with pytest.raises(ProtocolError, match="tagged fields"):
            decode(FetchRequest, 12, bytes(25) + b"\1\1\1" + b"\x80\x01" + b"\x09\0" * 128)

    def test_null_list_where_none_is_allowed(self) -> None:
        with pytest.raises(ProtocolError, match="topics"):
            decode(MetadataRequest, 0, b"\xff\xff\xff\xff")

    def test_memory_is_proportional_to_the_bytes(self) -> None:
        rng = random.Random(5)
        frames = [
            bytes.fromhex("ffffffff07") + bytes(10_000),
            bytes.fromhex("ce8f06") + bytes(100_000),
            bytes.fromhex("00000000") + bytes.fromhex("7fffffff") * 2_500,
            bytes(rng.randrange(256) for _ in range(10_000)),
        ]
        tracemalloc.start()
        try:
            for frame in frames:
                for version in range(13):
                    with suppress(ProtocolError):
                        decode(MetadataResponse, version, frame)
            assert tracemalloc.get_traced_memory()[1] < 20 * max(map(len, frames))
        finally:
            tracemalloc.stop()


class TestTaggedFields:
    def test_unknown_ones_are_skipped(self) -> None:
        encoded = encode(heartbeat(), 4)[:-1] + bytes.fromhex("03 05 02 abcd 8001 00 07 01 ff")
        message, position = decoder(HeartbeatRequest, 4)(encoded + b"rest", 0)
        assert message == heartbeat()
        assert position == len(encoded)

    def test_unsorted_and_repeated_ones_are_read(self) -> None:
        body = bytes.fromhex("0000 01 00000000")
        epoch_7, epoch_8 = b"\x01\x08" + bytes(7) + b"\x07", b"\x01\x08" + bytes(7) + b"\x08"
        ready = bytes.fromhex("03 01 01")
        encoded = body + b"\x04" + ready + epoch_7 + bytes.fromhex("63 01 00") + epoch_8
        response = decode(ApiVersionsResponse, 3, encoded)
        assert response.finalized_features_epoch == 8
        assert response.zk_migration_ready is True
        assert response.supported_features == []

    def test_size_that_contradicts_the_content(self) -> None:
        with pytest.raises(ProtocolError, match="finalized_features_epoch"):
            decode(ApiVersionsResponse, 3, bytes.fromhex("0000 01 00000000 01 01 09 0000000000000007 00"))

    def test_in_the_struct_of_a_list(self) -> None:
        encoded = bytes.fromhex("02 02 61 01 09 01 ff 01 00 00")
        assert decode(MetadataRequest, 9, encoded[:-2] + b"\x00\x00\x00").topics == [MetadataRequestTopic(name="a")]


class TestSchema:
    @pytest.mark.parametrize(
        ("text", "expected"), [("0+", (0, 32767)), ("3+", (3, 32767)), ("1-4", (1, 4)), ("2", (2, 2)), ("none", (1, 0))]
    )
    def test_version_range(self, text: str, expected: tuple[int, int]) -> None:
        assert version_range(text) == expected

    def test_every_kind_of_field_at_once(self) -> None:
        class Leaf(Message):
            __slots__ = ("number",)
            FIELDS = (Field("number", "int16", default=3),)

            def __init__(self, *, number: int = 3) -> None:
                self.number = number

        class Inner(Message):
            __slots__ = ("child", "flag", "ids", "late", "ratio")
            FIELDS = (
                Field("child", Leaf, nullable="0+", default=None),
                Field("late", Leaf, "2+"),
                Field("ratio", "float64", default=0.0),
                Field("flag", "bool", default=False),
                Field("ids", Array("uuid"), "1+", nullable="2+", default=None),
            )

            def __init__(self, *, ratio: float = 0.0, flag: bool = False, ids: Any = None, child: Any = None) -> None:
                self.ratio, self.flag, self.ids, self.child, self.late = ratio, flag, ids, child, Leaf()

        class Outer(Message):
            __slots__ = ("blob", "inner", "letters", "many", "optional", "small")
            VALID_VERSIONS = (0, 3)
            FLEXIBLE_FROM = 3
            FIELDS = (
                Field("inner", Inner),
                Field("optional", Inner, "1+", nullable="1+", default=None),
                Field("many", Array(Inner), nullable="1+"),
                Field("letters", Array("string")),
                Field("blob", "bytes", nullable="2+", default=b""),
                Field("small", "uint16", "3+", tag=5, default=1),
            )

            def __init__(self, **values: Any) -> None:
                self.inner = values.get("inner", Inner())
                self.optional = values.get("optional")
                self.many = values.get("many", [])
                self.letters = values.get("letters", [])
                self.blob = values.get("blob", b"")
                self.small = values.get("small", 1)

        ids = [bytes(range(16)), bytes(16)]
        for version in range(4):
            inner = Inner(ratio=0.5, flag=True, ids=ids if version else None, child=Leaf(number=-1))
            outer = Outer(inner=inner, letters=["", "b" * 200], blob=b"x" * 200, many=[inner] * 130)
            assert decode(Outer, version, encode(outer, version)) == outer
            if version >= 1:
                outer = Outer(inner=inner, optional=inner, many=None)
                assert decode(Outer, version, encode(outer, version)) == outer
            if version >= 2:
                outer = Outer(blob=None)
                assert decode(Outer, version, encode(outer, version)) == outer
        outer = Outer(small=65535, inner=Inner(ids=[]))
        assert decode(Outer, 3, encode(outer, 3)) == outer
        with pytest.raises(ValueError, match="small"):
            encode(outer, 2)
        inner = Inner()
        inner.late = Leaf(number=4)
        with pytest.raises(ValueError, match=r"Inner\.late"):
            encode(Outer(inner=inner), 1)
        assert decode(Outer, 2, encode(Outer(inner=inner), 2)).inner.late.number == 4
        with pytest.raises(ValueError, match="optional"):
            encode(Outer(optional=Inner()), 0)
        with pytest.raises(ValueError, match="cannot be written"):
            encode(Outer(many=None), 0)
        assert Field("inner", Inner).default is UNSET


def test_source_is_kept_for_reading() -> None:
    assert "def read(buf, pos, left=50000):" in decoder(HeartbeatRequest, 4).source  # type: ignore[attr-defined]
    assert "def write(m, parts):" in encoder(ApiVersionsRequest, 3).source  # type: ignore[attr-defined]


@pytest.mark.parametrize("source_of", [ReaderSource, WriterSource])
@pytest.mark.parametrize("message", [FetchRequest, FetchResponse, MetadataResponse, TransactionLogValue])
def test_source_depends_on_the_schema_alone(source_of: type[FunctionSource], message: type[Message]) -> None:
    """A build could write it to a module."""
    lowest, highest = message.VALID_VERSIONS
    for version in range(lowest, highest + 1):
        first, second = source_of(message, version), source_of(message, version)
        assert first.text() == second.text()
        assert first.names.keys() == second.names.keys()
