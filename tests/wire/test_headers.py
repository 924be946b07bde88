import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import barnabas.wire.messages as messages
from barnabas.wire.api_table import FLEXIBLE_FROM
from barnabas.wire.errors import ProtocolError
from barnabas.wire.headers import (
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)

RANGES = {key: messages.api(key).request_class.VALID_VERSIONS for key in messages.API_NAMES}
EVERY_REQUEST = [(key, version) for key, (lowest, highest) in RANGES.items() for version in range(lowest, highest + 1)]


def test_table_of_flexible_versions() -> None:
    apis = [messages.api(key) for key in messages.API_NAMES]
    flexible = {api.key: api.request_class.FLEXIBLE_FROM for api in apis}
    assert {key: version for key, version in flexible.items() if version is not None} == FLEXIBLE_FROM


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "grüße"])
def test_request_round_trip(client_id: str | None) -> None:
    for key, version in EVERY_REQUEST:
        encoded = request_header(key, version, 77, client_id)
        for buffer in (encoded + b"body", bytearray(encoded + b"body"), memoryview(encoded + b"body")):
            header = parse_request_header(buffer)
            assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 77)
            assert header.client_id == (None if (key, version) == (7, 0) else client_id)
            assert header.body_position == len(encoded)


def test_kio_agrees() -> None:
    import io

    from kio.schema.request_header.v1.header import RequestHeader as Version1
    from kio.schema.request_header.v2.header import RequestHeader as Version2
    from kio.serial import entity_writer

    for key, version in EVERY_REQUEST:
        if (key, version) == (7, 0):
            continue
        kind: Any = Version2 if version >= FLEXIBLE_FROM.get(key, 99) else Version1
        out = io.BytesIO()
        header = kind(request_api_key=key, request_api_version=version, correlation_id=5, client_id="me")
        entity_writer(kind)(out, header)
        assert out.getvalue() == request_header(key, version, 5, "me")


def test_known_bytes() -> None:
    assert request_header(3, 8, 1, "ab") == bytes.fromhex("0003 0008 00000001 0002 6162")
    assert request_header(3, 9, 1, "ab") == bytes.fromhex("0003 0009 00000001 0002 6162 00")
    assert request_header(18, 3, 1, None) == bytes.fromhex("0012 0003 00000001 ffff 00")
    assert request_header(7, 0, 9, "ignored") == bytes.fromhex("0007 0000 00000009")
    assert response_header(3, 8, 1) == bytes.fromhex("00000001")
    assert response_header(3, 9, 1) == bytes.fromhex("00000001 00")
    assert response_header(18, 3, 1) == response_header(18, 0, 1) == bytes.fromhex("00000001")
    assert "rdkafka" in repr(parse_request_header(request_header(3, 8, 1, "rdkafka")))


def test_unknown_versions_and_keys_are_refused() -> None:
    newer = parse_request_header(request_header(18, 30, 4, "from the future") + b"??")
    assert (newer.api_version, newer.client_id) == (30, "from the future")
    unknown = parse_request_header(bytes.fromhex("03e7 0000 00000001 0001 61"))
    assert (unknown.api_key, unknown.client_id, unknown.body_position) == (999, "a", 11)
    negative = parse_request_header(bytes.fromhex("0000 ffff 00000001 ffff"))
    assert negative.api_version == -1


def test_tagged_fields_are_skipped() -> None:
    encoded = request_header(3, 9, 1, "ab")[:-1] + bytes.fromhex("02 00 01 ff 05 00")
    assert parse_request_header(encoded + b"body").body_position == len(encoded)
    assert parse_response_header(bytes.fromhex("00000007 01 00 01 ff") + b"body", 3, 9) == (7, 8)


def test_response_round_trip() -> None:
    for key, version in EVERY_REQUEST:
        encoded = response_header(key, version, -5)
        assert parse_response_header(encoded, key, version) == (-5, len(encoded))


def test_truncated() -> None:
    for encoded in (request_header(3, 8, 1, "abcdef"), request_header(3, 9, 1, "abcdef")):
        for cut in range(len(encoded)):
            with pytest.raises(ProtocolError):
                parse_request_header(encoded[:cut])
    for cut in range(5):
        with pytest.raises(ProtocolError):
            parse_response_header(response_header(3, 9, 1)[:cut], 3, 9)


def test_client_id_that_is_not_utf8() -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(bytes.fromhex("0003 0008 00000001 0002 c328"))


@given(st.binary(max_size=40))
def test_noise(noise: bytes) -> None:
    try:
        header = parse_request_header(noise)
    except ProtocolError:
        return
    assert 8 <= header.body_position <= len(noise)


def test_mutated() -> None:
    rng = random.Random(3)
    for key, version in EVERY_REQUEST:
        encoded = bytearray(request_header(key, version, 1, "client"))
        encoded[rng.randrange(len(encoded))] = rng.randrange(256)
        try:
            parse_request_header(encoded)
        except ProtocolError:
            continue
