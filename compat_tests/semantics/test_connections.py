"""Framing, order of replies, and what closes a connection."""

import struct
from collections.abc import Callable

import pytest

from barnabas.wire import codec, headers
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.conftest import plays_broker
from compat_tests.semantics.client import (
    Connection,
    batch_of,
    fetch_partition,
    fetch_request,
    produce_batch,
    produce_request,
    records_of,
    topic_metadata,
)

Connect = Callable[[], Connection]

ADVERTISED = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2), 40: (1, 2),
    41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1),
    50: (0, 0), 51: (0, 0), 57: (0, 1), 60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1), 69: (0, 1),
    74: (0, 1), 75: (0, 0),
}  # fmt: skip
"""The widest ranges that Barnabas may advertise; an API that is not here must not be advertised by it."""
NEEDED_BY_EVERY_CLIENT = {
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 42, 44, 47, 60, 61,
}  # fmt: skip


def advertised_ranges(connection: Connection) -> dict[int, tuple[int, int]]:
    response = connection.ask(ApiVersionsRequest(client_software_name="semantics", client_software_version="1"), 3)
    assert response.error_code == 0
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}


def test_replies_come_in_the_order_of_the_requests(topic: str, connection: Connection) -> None:
    """A long poll that nothing ends early holds back what was asked after it."""
    connection.send(produce_request(topic, batch_of([b"first"])), 9)
    connection.send(fetch_request([(topic, 0, 1)], max_wait_ms=1000), 12)
    connection.send(MetadataRequest(topics=[]), 12)
    connection.send(produce_request(topic, batch_of([b"second"])), 9)
    connection.send(ListGroupsRequest(), 4)
    assert connection.receive().responses[0].partition_responses[0].base_offset == 0
    polled = connection.receive().responses[0].partitions[0]
    assert (polled.error_code, bytes(polled.records or b"")) == (0, b""), "it was over before the second was written"
    assert connection.receive().topics == []
    assert connection.receive().responses[0].partition_responses[0].base_offset == 1
    assert connection.receive().error_code == 0


def test_pipelined_produces_are_appended_and_answered_in_order(topic: str, connection: Connection) -> None:
    for number in range(100):
        connection.send(produce_request(topic, batch_of([b"%d" % number]), acks=1 if number % 2 else -1), 9)
    answers = [connection.receive().responses[0].partition_responses[0] for _ in range(100)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, number) for number in range(100)]
    assert [int(record.value or b"") for record in records_of(fetch_partition(connection, topic, 0))] == list(
        range(100)
    )


def test_requests_split_over_many_segments(topic: str, connection: Connection) -> None:
    header = headers.request_header(3, 12, 77, "split")
    frame = header + codec.encode(MetadataRequest(topics=[]), 12)
    for byte in struct.pack(">i", len(frame)) + frame:
        connection.send_bytes(bytes([byte]))
    answer = connection.receive_frame()
    assert struct.unpack_from(">i", answer) == (77,)


def test_acks_0_is_never_answered(topic: str, connection: Connection) -> None:
    for number in range(10):
        connection.send(produce_request(topic, batch_of([b"%d" % number]), acks=0), 9, answered=False)
    assert connection.is_silent()
    assert len(records_of(fetch_partition(connection, topic, 0, min_bytes=1, max_wait_ms=2000))) == 10


def test_acks_0_closes_the_connection_on_an_error(topic: str, connect: Connect) -> None:
    connection = connect()
    broken = batch_of([b"x"])
    broken[-1] ^= 0xFF
    connection.send(produce_request(topic, broken, acks=0), 9, answered=False)
    assert connection.is_closed_by_broker()


def test_acks_0_to_an_unknown_topic_closes_the_connection(topic_name: str, connect: Connect) -> None:
    connection = connect()
    connection.send(produce_request(topic_name, batch_of([b"x"]), acks=0), 9, answered=False)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_gets_version_0(connection: Connection, version: int) -> None:
    connection.send_frame(struct.pack(">hhih", 18, version, 5, 4) + b"test" + b"\x00\x07nothing\x00")
    frame = connection.receive_frame()
    assert struct.unpack_from(">i", frame) == (5,)
    response = codec.decode(ApiVersionsResponse, 0, frame, 4)
    assert response.error_code == 35
    assert [(entry.api_key, entry.min_version, entry.max_version) for entry in response.api_keys] == [(18, 0, 4)]
    assert codec.encode(response, 0) == frame[4:]
    assert advertised_ranges(connection)[18] == (0, 4)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_api_versions_in_every_version(connection: Connection, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="a-b.c", client_software_version="1.2")
    response = connection.ask(request, version)
    assert response.error_code == 0
    assert 18 in {entry.api_key for entry in response.api_keys}


@pytest.mark.parametrize("name", ["", "-x", "a b", "ü"])
def test_api_versions_checks_the_name_of_the_client(connection: Connection, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert connection.ask(request, 3).error_code == 42


def test_api_versions_lists_the_served_versions(cluster: object, connection: Connection) -> None:
    advertised = advertised_ranges(connection)
    assert advertised.keys() >= NEEDED_BY_EVERY_CLIENT
    assert advertised[0][0] == 0
    if getattr(cluster, "target", "") == "barnabas":
        assert advertised.keys() <= ADVERTISED.keys()
        for api_key, (lowest, highest) in advertised.items():
            assert ADVERTISED[api_key][0] <= lowest <= highest <= ADVERTISED[api_key][1], api_key


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (3, 99),
        (3, -1),
        (1, 3),
        (0, 2),
        (2, 0),
        (999, 0),
        (-1, 0),
        (4, 0),
        (7, 0),
        pytest.param(67, 0, marks=plays_broker),
    ],
)
def test_an_unsupported_key_or_version_closes_the_connection(connect: Connect, api_key: int, version: int) -> None:
    connection = connect()
    connection.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + b"\0" * 30)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 104_857_601),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["minus one", "most negative", "most positive", "one more than allowed", "HTTP"],
)
def test_a_bad_frame_length_closes_the_connection(connect: Connect, data: bytes) -> None:
    connection = connect()
    connection.send_bytes(data)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        struct.pack(">hhi", 3, 12, 1),
        struct.pack(">hhih", 3, 12, 1, 500) + b"short",
        headers.request_header(3, 1, 1, "x") + struct.pack(">i", 2**31 - 1),
        headers.request_header(3, 1, 1, "x") + struct.pack(">ih", 1, 300) + b"short",
        headers.request_header(0, 9, 1, "x") + b"\xff" * 40,
    ],
    ids=["empty", "one byte", "no client id", "cut client id", "endless array", "cut string", "noise"],
)
def test_a_frame_that_is_no_request_closes_that_connection_only(
    topic: str, connect: Connect, connection: Connection, frame: bytes
) -> None:
    hostile = connect()
    hostile.send_frame(frame)
    assert hostile.is_closed_by_broker()
    assert topic_metadata(connection, topic).error_code == 0


def test_a_connection_cut_within_a_frame_does_no_harm(topic: str, connect: Connect, connection: Connection) -> None:
    cut = connect()
    cut.send_bytes(struct.pack(">i", 1_000_000) + b"x" * 1000)
    cut.close()
    assert produce_batch(connection, topic, batch_of([b"x"])).error_code == 0
