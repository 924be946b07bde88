import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.errors import ProtocolError
from barnabas.wire.primitives import read_unsigned_varint, skip_tagged_fields, unsigned_varint


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
        (2**31 - 1, "ffffffff07"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varint(value: int, encoded: str) -> None:
    assert unsigned_varint(value).hex() == encoded
    assert read_unsigned_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_round_trip(value: int, before: bytes, after: bytes) -> None:
    for buffer_type in (bytes, bytearray, memoryview):
        buffer = buffer_type(before + unsigned_varint(value) + after)
        assert read_unsigned_varint(buffer, len(before)) == (value, len(buffer) - len(after))


def test_ends_inside() -> None:
    for encoded in (b"", b"\x80", b"\xff\xff"):
        with pytest.raises(ProtocolError):
            read_unsigned_varint(encoded, 0)


def test_too_long() -> None:
    with pytest.raises(ProtocolError):
        read_unsigned_varint(b"\x80\x80\x80\x80\x80\x00", 0)  # six bytes
    with pytest.raises(ProtocolError):
        read_unsigned_varint(b"\xff\xff\xff\xff\x1f", 0)  # 33 bits


def test_padded_zero_is_read() -> None:
    assert read_unsigned_varint(b"\x80\x80\x80\x80\x00", 0) == (0, 5)


def test_values_that_do_not_fit() -> None:
    for value in (-1, 2**64):
        with pytest.raises(ValueError, match="is no"):
            unsigned_varint(value)


def test_skip_tagged_fields() -> None:
    assert skip_tagged_fields(b"\x00", 0) == 1
    assert skip_tagged_fields(b"..\x02\x05\x03abc\x05\x00rest", 2) == 10
    for encoded in (b"", b"\x01", b"\x01\x00", b"\x01\x00\x01", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(ProtocolError):
            skip_tagged_fields(encoded, 0)
