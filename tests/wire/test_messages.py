"""Every message in every version: what was written reads back, and hostile bytes only ever raise ProtocolError."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import barnabas.wire.messages as messages
from barnabas.wire.codec import decode, decoder, encode, encoder
from barnabas.wire.errors import ProtocolError
from barnabas.wire.headers import parse_request_header, request_header
from barnabas.wire.messages.fetch import FetchRequest, FetchResponse, LeaderIdAndEpoch, PartitionData
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.schema import Message, frozen_default

ROOT = Path(__file__).resolve().parents[2]

Sample = Callable[..., Any]


def versions(message_class: type[Message]) -> range:
    return range(message_class.VALID_VERSIONS[0], message_class.VALID_VERSIONS[1] + 1)


@pytest.mark.full
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=False))
def test_round_trip(message_class: type[Message], rng: random.Random, sample: Sample) -> None:
    version = rng.choice(versions(message_class))
    check_round_trip(sample(message_class, version, rng), version)


def test_round_trip_of_every_version(message_class: type[Message], sample: Sample) -> None:
    for version in versions(message_class):
        for seed in range(5):
            check_round_trip(sample(message_class, version, random.Random(seed)), version)


def check_round_trip(message: Message, version: int) -> None:
    message_class = type(message)
    encoded = encode(message, version)
    for buffer in (encoded, bytearray(encoded), memoryview(encoded)):
        assert decode(message_class, version, buffer) == message
    decoded, position = decoder(message_class, version)(b"...." + encoded + b"..", 4)
    assert decoded == message
    assert position == 4 + len(encoded)


def test_defaults_round_trip(message_class: type[Message]) -> None:
    for version in versions(message_class):
        message = message_class()
        for field in message_class.FIELDS:
            if not isinstance(field.type, str) or not field.exists_in(version) or field.is_nullable_in(version):
                continue
            if getattr(message, field.name) is None:  # records have no default but null
                setattr(message, field.name, b"")
        assert decode(message_class, version, encode(message, version)) == message


def test_truncated(message_class: type[Message], sample: Sample) -> None:
    rng = random.Random(1)
    for version in versions(message_class):
        encoded = encode(sample(message_class, version, rng), version)
        cuts = range(len(encoded)) if len(encoded) < 60 else sorted(rng.sample(range(len(encoded)), 60))
        for cut in cuts:
            with pytest.raises(ProtocolError):
                decode(message_class, version, encoded[:cut])


def test_mutated(message_class: type[Message], sample: Sample) -> None:
    rng = random.Random(2)
    for version in versions(message_class):
        encoded = encode(sample(message_class, version, rng), version)
        for _ in range(30):
            mutated = bytearray(encoded)
            for _ in range(rng.randrange(1, 4)):
                if mutated:
                    mutated[rng.randrange(len(mutated))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            decode_or_refuse(message_class, version, bytes(mutated))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise(message_class: type[Message], noise: bytes) -> None:
    for version in versions(message_class):
        decode_or_refuse(message_class, version, noise)


def decode_or_refuse(message_class: type[Message], version: int, buffer: bytes) -> None:
    try:
        message, position = decoder(message_class, version)(buffer, 0)
    except ProtocolError:
        return
    assert 0 <= position <= len(buffer)
    assert isinstance(message, message_class)


def test_every_api_is_listed_with_its_key() -> None:
    for key, name in messages.API_NAMES.items():
        api = messages.api(key)
        assert (api.key, api.name) == (key, name)
        assert api.request_class.__name__ == f"{name}Request"
        assert api.response_class.__name__ == f"{name}Response"
        assert api.request_class.API_KEY == api.response_class.API_KEY == key
        assert api.request_class.VALID_VERSIONS == api.response_class.VALID_VERSIONS
        assert api.request_class.FLEXIBLE_FROM == api.response_class.FLEXIBLE_FROM
    assert repr(messages.api(0)) == "ApiMessages(0, 'Produce')"
    with pytest.raises(KeyError):
        messages.api(999)


def test_importing_the_codec_imports_no_api() -> None:
    code = (
        "import sys, barnabas.wire.codec, barnabas.wire.messages, barnabas.wire.headers\n"
        "print([name for name in sys.modules if name.startswith('barnabas.wire.messages.')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"


@pytest.mark.slow
def test_generated_modules_are_up_to_date() -> None:
    """Downloads Kafka's jars where the cache folder has none yet."""
    subprocess.run([sys.executable, "-m", "tools.wiregen", "--check"], cwd=ROOT, check=True)


def test_records_are_views_when_read_and_references_when_written() -> None:
    records = bytearray(b"r" * 2000)
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=records)])])
    parts: list[Any] = []
    encoder(ProduceRequest, 13)(request, parts)
    assert any(part is records for part in parts)
    frame = bytearray(b"".join(parts))
    view = decode(ProduceRequest, 13, frame).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    position = frame.index(b"rrrr")
    frame[position] = ord("!")
    assert view[0] == ord("!")


@pytest.mark.parametrize("sizes", [(), (0,), (10, 20), (600,), (300, 300), (1, 5000, 2)])
@pytest.mark.parametrize("version", [4, 12, 13])
def test_records_may_come_in_pieces(sizes: tuple[int, ...], version: int) -> None:
    pieces = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    whole = b"".join(pieces)
    response = decode(FetchResponse, version, encode(fetch_response(pieces), version))
    assert response.responses[0].partitions[0].records == whole
    assert encode(fetch_response(pieces), version) == encode(fetch_response(memoryview(whole)), version)


def test_no_records_and_empty_records_differ() -> None:
    for version in (4, 12):
        for records in (None, b""):
            response = decode(FetchResponse, version, encode(fetch_response(records), version))
            assert response.responses[0].partitions[0].records == records


def fetch_response(records: Any) -> FetchResponse:
    from barnabas.wire.messages.fetch import FetchableTopicResponse

    return FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData(records=records)])])


def test_shared_defaults_cannot_be_changed() -> None:
    partition = PartitionData()
    assert partition.current_leader == LeaderIdAndEpoch()
    assert partition.current_leader is PartitionData().current_leader
    with pytest.raises(AttributeError, match="assign a new one"):
        partition.current_leader.leader_id = 3
    partition.current_leader = LeaderIdAndEpoch(leader_id=3)
    assert PartitionData().current_leader.leader_id == -1


def test_lists_are_not_shared() -> None:
    FetchRequest().topics.append(None)  # type: ignore[arg-type]
    assert FetchRequest().topics == []
    assert decode(FetchRequest, 12, encode(FetchRequest(), 12)).topics == []


def test_messages_compare_by_value_and_cannot_be_hashed() -> None:
    assert LeaderIdAndEpoch(leader_id=1) == LeaderIdAndEpoch(leader_id=1)
    assert LeaderIdAndEpoch(leader_id=1) != LeaderIdAndEpoch(leader_id=2)
    assert LeaderIdAndEpoch() != FetchRequest()
    assert LeaderIdAndEpoch() != 1
    assert frozen_default(LeaderIdAndEpoch) == LeaderIdAndEpoch()
    with pytest.raises(TypeError):
        hash(LeaderIdAndEpoch())


def test_repr_is_short_for_large_contents() -> None:
    assert repr(LeaderIdAndEpoch(leader_id=1)) == "LeaderIdAndEpoch(leader_id=1, leader_epoch=-1)"
    assert repr(PartitionProduceData(records=b"ab")) == "PartitionProduceData(index=0, records=b'ab')"
    assert repr(PartitionProduceData(records=bytes(1000))) == "PartitionProduceData(index=0, records=<1000 bytes>)"
    assert "<1000 bytes>" in repr(PartitionProduceData(records=memoryview(bytes(1000))))
    assert repr(PartitionProduceData.FIELDS[0]) == "Field('index')"


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "golden").glob("*.txt")), ids=lambda path: path.stem)
def test_frames_of_real_clients(path: Path) -> None:
    """Requests recorded by golden/record.py are read to the last byte, and written as they were."""
    for line in path.read_text().splitlines():
        name, version, frame = line.split()
        header = parse_request_header(bytes.fromhex(frame))
        api = messages.api(header.api_key)
        assert (api.name, header.api_version) == (name, int(version))
        read = decoder(api.request_class, header.api_version)
        request, end = read(bytes.fromhex(frame), header.body_position)
        assert end == len(frame) // 2
        body = encode(request, header.api_version)
        head = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        assert (head + body).hex() == frame
