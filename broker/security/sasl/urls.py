"""Files and web pages of an issuer of tokens: its keys, and its token endpoint. They are read within a time and a size,
in a thread, and redirections, which may lead to other hosts, are not followed."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname as path_of

from barnabas.clock import Clock

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

CONTENT_BYTES_MAX: Final = 1024 * 1024
"""The maximum size of a file or page."""

FETCH_TIMEOUT_S: Final = 10.0
"""The time for which a server may be silent, and in which its page must be complete."""

_JSON: Final = {"Accept": "application/json"}


def check_url(url: str) -> None:
    """Check that a URL can be read. Raises ValueError."""
    parts = urlsplit(url)
    port = parts.port  # ValueError if it is none
    if parts.scheme not in ("file", "http", "https") or (parts.scheme != "file" and (not parts.hostname or port == 0)):
        raise ValueError("it is not a URL that begins with file://, http:// or https://")


def shown(url: str) -> str:
    """A URL for the log: without what may be a secret, which are a user's name and password, and a query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def read_url(
    url: str,
    clock: Clock,
    *,
    form: bytes | None = None,
    headers: Mapping[str, str] = _JSON,
    connect_timeout_s: float = FETCH_TIMEOUT_S,
    read_timeout_s: float = FETCH_TIMEOUT_S,
) -> bytes:
    """The content of a file or web page; with `form`, the answer to a POST request. Blocking. Raises OSError, also for
    redirections, and contents that are large or take long."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(path_of(parts.path), "rb") as file:
            content = file.read(CONTENT_BYTES_MAX + 1)
    else:
        new_connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = new_connection(parts.hostname or "", parts.port, timeout=connect_timeout_s)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.connect()
            connection.sock.settimeout(read_timeout_s)
            method = "GET" if form is None else "POST"
            answer: Any = _Answer(connection.sock, clock, read_timeout_s)
            connection.request(method, target, form, dict(headers))
            with HTTPResponse(answer, method=method) as response:
                content = _read_page(response)
        except HTTPException as error:
            raise OSError(f"an answer that is not one of HTTP ({type(error).__name__})") from error
        finally:
            connection.close()
    if len(content) > CONTENT_BYTES_MAX:
        raise OSError(f"more than {CONTENT_BYTES_MAX} bytes")
    return content


def _read_page(response: HTTPResponse) -> bytes:
    response.begin()
    if response.status not in (200, 201):
        raise OSError(f"status {response.status}")
    return response.read(CONTENT_BYTES_MAX + 1)


class _Answer(RawIOBase):
    """What a server sends, headers included, until the time for it is over, which begins with this object; in place of
    a socket, of which a response wants a file."""

    def __init__(self, connected: Any, clock: Clock, timeout_s: float) -> None:
        self._connected = connected
        self._clock = clock
        self._timeout_s = timeout_s
        self._end_ms = clock.monotonic_ms() + timeout_s * 1000

    def makefile(self, mode: str) -> BufferedReader:
        return BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        left_s = (self._end_ms - self._clock.monotonic_ms()) / 1000
        if left_s <= 0:
            raise TimeoutError(f"not complete within {self._timeout_s:g} s")
        self._connected.settimeout(left_s)
        return int(self._connected.recv_into(buffer))
