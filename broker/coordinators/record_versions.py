"""The first fields of records of both coordinators' topics: a type in their keys, a version in their values."""

import struct
from typing import Final

from barnabas.wire.errors import ProtocolError

INT16: Final = struct.Struct(">h")


def leading_int16(data: bytes) -> int:
    """The type of a key, or the version of a value. Errors: ProtocolError."""
    if len(data) < INT16.size:
        raise ProtocolError(f"record has {len(data)} bytes, too few for a version")
    (number,) = INT16.unpack_from(data)
    return int(number)
