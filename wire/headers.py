"""The headers of requests and responses: encoding and decoding.

A request header has three versions: 0 (ControlledShutdown version 0 only: no client id), 1, and 2 for requests of a
flexible version, which adds tagged fields; the client id keeps its two-byte length even there. A response header is a
correlation id (version 0), in flexible versions with tagged fields (version 1); but ApiVersions responses always have
version 0, because a client that asks for versions cannot know the broker's (KIP-511). Source: RequestHeader.json,
ResponseHeader.json and ApiMessageType of Kafka 3.9 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from barnabas.wire.api_table import FLEXIBLE_FROM
from barnabas.wire.errors import ProtocolError
from barnabas.wire.primitives import Buffer, new_tuple, skip_tagged_fields

API_VERSIONS: Final = 18
CONTROLLED_SHUTDOWN: Final = 7

_START: Final = Struct(">hhi")
_START_WITH_CLIENT_ID: Final = Struct(">hhih")
_CORRELATION_ID: Final = Struct(">i")
_CORRELATION_ID_AND_TAGS: Final = Struct(">ix")
_NEVER: Final = 32768


class RequestHeader(NamedTuple):
    """A request's header. `body_position` is the position of the request body in the buffer of the header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def parse_request_header(buffer: Buffer) -> RequestHeader:
    """Read the header at the start of a frame.

    The key and version may be unknown: an unknown key's header is read as version 1, a version newer than ours as that
    of our newest, which is enough for an ApiVersions request from a newer client. Errors: ProtocolError when the frame
    ends inside the header, or the client id is not UTF-8.
    """
    try:
        api_key, api_version, correlation_id, size = _START_WITH_CLIENT_ID.unpack_from(buffer, 0)
        if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
            return RequestHeader(api_key, api_version, correlation_id, None, _START.size)
        position = _START_WITH_CLIENT_ID.size
        client_id = None
        if size >= 0:
            end = position + size
            if end > len(buffer):
                raise ProtocolError(f"a client id of {size} bytes does not fit into the request")
            client_id = str(buffer[position:end], "utf-8")
            position = end
        if api_version >= FLEXIBLE_FROM.get(api_key, _NEVER):
            position = position + 1 if buffer[position] == 0 else skip_tagged_fields(buffer, position)
    except (struct_error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"request header: {error}") from None
    return new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, position))


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request to another broker."""
    if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
        return _START.pack(api_key, api_version, correlation_id)
    encoded = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(encoded)
    tags = b"\0" if api_version >= FLEXIBLE_FROM.get(api_key, _NEVER) else b""
    return _START_WITH_CLIENT_ID.pack(api_key, api_version, correlation_id, size) + encoded + tags


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of the response to a request of this key and version."""
    return response_header_packer(api_key, api_version)(correlation_id)


def response_header_packer(api_key: int, api_version: int) -> Callable[[int], bytes]:
    """A function from correlation ids to the headers of responses of this key and version."""
    return (_CORRELATION_ID_AND_TAGS if response_header_is_flexible(api_key, api_version) else _CORRELATION_ID).pack


def parse_response_header(buffer: Buffer, api_key: int, api_version: int) -> tuple[int, int]:
    """Correlation id and body position of a response to a request of this key and version.

    Errors: ProtocolError when the frame ends inside the header.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, 0)
    except struct_error as error:
        raise ProtocolError(f"response header: {error}") from None
    if not response_header_is_flexible(api_key, api_version):
        return correlation_id, 4
    return correlation_id, skip_tagged_fields(buffer, 4)


def response_header_is_flexible(api_key: int, api_version: int) -> bool:
    """Whether tagged fields follow the correlation id (response header version 1)."""
    return api_key != API_VERSIONS and api_version >= FLEXIBLE_FROM.get(api_key, _NEVER)
