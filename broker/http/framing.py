"""The framing of requests, by their heads: the size of the body, and whether another request may follow.

aiohttp parses the request. Both have to agree on where it ends, or bytes of a body would be served as a request. So the
connection closes after a request whose length is not beyond doubt.

*Source*: RFC 9112, sections 6 and 9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n")
_CHUNKED: Final = b"\ntransfer-encoding:"
_NOT_PLAIN: Final = re.compile(rb"transfer-encoding|\nupgrade:|\Aconnect |[^\r]\n")


@dataclass(frozen=True, slots=True)
class Framing:
    """The framing of one request: `body_bytes` is None if only the parser of the body can tell; `is_last` says that
    the connection closes after its response."""

    body_bytes: int | None = 0
    is_chunked: bool = False
    is_last: bool = False


def framing_of(head: bytes) -> Framing:
    """The framing of the request with this complete head."""
    head = head.lower()
    is_plain = _NOT_PLAIN.search(head) is None
    lengths = head.count(b"content-length")
    if lengths == 0 and is_plain:
        return Framing()
    length = _LENGTH.search(head)
    if lengths == 1 and is_plain and length is not None:
        return Framing(int(length[1]))
    return Framing(None, is_chunked=_CHUNKED in head, is_last=True)
