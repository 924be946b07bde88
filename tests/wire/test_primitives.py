from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.errors import ProtocolError
from barnabas.wire.primitives import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    Buffer,
    read_unsigned_varint,
    read_varint,
    read_varlong,
    skip_tagged_fields,
    unsigned_varint,
    varint,
    varlong,
)

Reader = Callable[[Buffer, int], tuple[int, int]]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (INT32_MAX, "ffffffff07"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varint(value: int, encoded: str) -> None:
    assert unsigned_varint(value).hex() == encoded
    assert read_unsigned_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (INT32_MAX, "feffffff0f"), (INT32_MIN, "ffffffff0f")],
)
def test_varint(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)
    assert varlong(value).hex() == encoded


@pytest.mark.parametrize(
    ("value", "encoded"), [(INT64_MAX, "feffffffffffffffff01"), (INT64_MIN, "ffffffffffffffffff01")]
)
def test_varlong(value: int, encoded: str) -> None:
    assert varlong(value).hex() == encoded
    assert read_varlong(bytes.fromhex(encoded), 0) == (value, 10)


@given(st.integers(INT64_MIN, INT64_MAX), st.binary(max_size=3), st.binary(max_size=3))
def test_round_trip(value: int, before: bytes, after: bytes) -> None:
    for buffer_type in (bytes, bytearray, memoryview):
        buffer = buffer_type(before + varlong(value) + after)
        assert read_varlong(buffer, len(before)) == (value, len(buffer) - len(after))
    if INT32_MIN <= value <= INT32_MAX:
        assert read_varint(varint(value), 0)[0] == value
    if 0 <= value < 2**32:
        assert read_unsigned_varint(unsigned_varint(value), 0)[0] == value


@pytest.mark.parametrize("read", [read_unsigned_varint, read_varint, read_varlong])
def test_ends_inside(read: Reader) -> None:
    for encoded in (b"", b"\x80", b"\xff\xff"):
        with pytest.raises(ProtocolError):
            read(encoded, 0)


def test_too_long() -> None:
    for read in (read_unsigned_varint, read_varint):
        with pytest.raises(ProtocolError):
            read(b"\x80\x80\x80\x80\x80\x00", 0)  # six bytes
        with pytest.raises(ProtocolError):
            read(b"\xff\xff\xff\xff\x1f", 0)  # 33 bits
    with pytest.raises(ProtocolError):
        read_varlong(b"\x80" * 10 + b"\x00", 0)
    with pytest.raises(ProtocolError):
        read_varlong(b"\xff" * 9 + b"\x02", 0)


def test_padded_zero_is_read() -> None:
    assert read_unsigned_varint(b"\x80\x80\x80\x80\x00", 0) == (0, 5)


def test_values_that_do_not_fit() -> None:
    for write, value in [
        (unsigned_varint, -1),
        (unsigned_varint, 2**64),
        (varint, INT32_MAX + 1),
        (varint, INT32_MIN - 1),
        (varlong, INT64_MAX + 1),
        (varlong, INT64_MIN - 1),
    ]:
        with pytest.raises(ValueError, match="is no"):
            write(value)


def test_skip_tagged_fields() -> None:
    assert skip_tagged_fields(b"\x00", 0) == 1
    assert skip_tagged_fields(b"..\x02\x05\x03abc\x05\x00rest", 2) == 10
    for encoded in (b"", b"\x01", b"\x01\x00", b"\x01\x00\x01", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(ProtocolError):
            skip_tagged_fields(encoded, 0)
