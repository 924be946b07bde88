"""One connection to a broker: TLS, version negotiation, login, and requests with their responses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import barnabas
from barnabas.broker.client.errors import NO_ROOM, BrokerUnavailable, ClientError, check
from barnabas.broker.client.permissions import Refusals
from barnabas.broker.client.security import PLAINTEXT, Security
from barnabas.wire import codec, messages
from barnabas.wire.errors import ErrorCode, ProtocolError
from barnabas.wire.headers import parse_response_header, request_header
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    import ssl

RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
ANSWER_S: Final = 5.0
"""The additional time for the response that a request was not completed within its own timeout."""
SESSION_SHARE: Final = 0.8
"""The share of a session's lifetime after which a connection is replaced by a new one, which logs in (KIP-368)."""

_LENGTH: Final = struct.Struct(">i")
_HTTP: Final = int.from_bytes(b"HTTP")
"""The first four bytes of a web server's response, read as the length of a response."""
_TLS_ALERT: Final = 0x1503
"""An alert (21) of TLS, or of SSL 3: the response to a request that is no handshake. The next byte is the minor
version, which differs between them."""


class BrokerConnection:
    """One connection. Requests may overlap; responses come in their order. Owned by the task that opened it."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        request_timeout_s: float,
        *,
        security: Security = PLAINTEXT,
        tls_context: ssl.SSLContext | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host, self._port = host, port
        self._client_id = client_id
        self._timeout_s = request_timeout_s
        self._security = security
        self._tls_context = tls_context
        self._refusals = Refusals() if refusals is None else refusals
        self._versions: dict[int, tuple[int, int]] = {}
        self._has_been_served = False
        """Whether the broker has answered more than what it answers to anybody."""
        self._stale_at_s: float | None = None
        self._correlation_id = 0
        self._waiting: deque[tuple[int, int, int, asyncio.Future[tuple[memoryview, int]]]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._receiving: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._writer is not None and not self._writer.is_closing()

    @property
    def is_stale(self) -> bool:
        """Whether the session of its user is about to end, so that new requests need a new connection."""
        return self._stale_at_s is not None and asyncio.get_running_loop().time() >= self._stale_at_s

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its response."""
        return not self._waiting

    async def open(self, limit_s: float | None = None) -> None:
        """Connect, negotiate versions and log in, each within `limit_s`, by default within the timeout of requests.
        Errors: BrokerUnavailable; ClientError if TLS or the login is refused.
        """
        limit_s = self._timeout_s if limit_s is None else min(limit_s, self._timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                reader, self._writer = await asyncio.open_connection(
                    self._host,
                    self._port,
                    ssl=self._tls_context,
                    server_hostname=self._host if self._tls_context else None,
                )
        except TimeoutError as error:
            raise BrokerUnavailable(f"no broker answers at {self.address} (waited {limit_s:g} s)") from error
        except OSError as error:
            if self._security.tls is not None:
                self._check_handshake(error)
            # asyncio's messages are for programmers; unknown hosts have no errno of the system's.
            number = error.errno or 0
            reason = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
            raise BrokerUnavailable(f"no broker answers at {self.address} ({reason})") from error
        except (OverflowError, UnicodeError) as error:  # the address of another broker in a response may be anything
            raise BrokerUnavailable(f"no broker can be at {self.address:.300}: that is no address") from error
        self._receiving = asyncio.create_task(self._receive(reader), name=f"responses of {self.address}")
        await self._negotiate(limit_s)
        if self._security.login is not None:
            await self._log_in(limit_s)

    def _check_handshake(self, error: OSError) -> None:
        """Raise what to do about an error of a new connection with TLS, if TLS may be its cause."""
        import ssl

        from barnabas.broker.client.tls import closed_in_handshake

        if isinstance(error, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)):
            raise BrokerUnavailable(closed_in_handshake(self.address)) from error
        if (told := self._of_tls(error)) is not None:
            raise ClientError(told) from error

    def _of_tls(self, error: OSError) -> str | None:
        """What to do if TLS is the cause of an error, None if it is not."""
        from barnabas.broker.client.tls import sentence

        assert self._security.tls is not None
        return sentence(error, self.address, self._security.tls)

    async def _log_in(self, limit_s: float) -> None:
        from barnabas.broker.client.login import log_in

        async def exchange(request: Message) -> Any:
            version = self.version_of(type(request))
            return await self._decode(request, version, *await self._exchange(request, version, limit_s))

        assert self._security.login is not None
        has_tls = self._security.tls is not None
        lifetime_ms = await log_in(exchange, self._security.login, self.address, has_tls=has_tls)
        self._has_been_served = True
        if lifetime_ms:
            self._stale_at_s = asyncio.get_running_loop().time() + SESSION_SHARE * lifetime_ms / 1000

    async def _negotiate(self, limit_s: float) -> None:
        request = ApiVersionsRequest(
            client_software_name="barnabas", client_software_version=barnabas.__version__.replace("+", "-")
        )
        for version in (3, 0):
            body, position = await self._exchange(request, version, limit_s)
            # A broker without version 3 responds in version 0, with this error (KIP-511).
            if version and _error_code(body, position) == ErrorCode.UNSUPPORTED_VERSION:
                continue
            response: ApiVersionsResponse = await self._decode(request, version, body, position)
            check(response.error_code, f"{self.address} does not report its API versions")
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            return

    def version_of(self, request_class: type[Message], max_version: int | None = None) -> int:
        """The highest version that both sides support. Errors: ClientError if there is none."""
        ours, name = request_class.VALID_VERSIONS, request_class.__name__.removesuffix("Request")
        theirs = self._versions.get(request_class.API_KEY)
        if theirs is None:
            raise ClientError(f"the broker at {self.address} does not serve {name}")
        lowest, highest = max(ours[0], theirs[0]), min(ours[1], theirs[1])
        if max_version is not None:
            highest = min(highest, max_version)
        if lowest > highest:
            raise ClientError(
                f"the broker at {self.address} serves {name} in versions {theirs[0]} to {theirs[1]},"
                " and this program knows none of them"
            )
        return highest

    async def send(self, request: Message, *, max_version: int | None = None, wait_s: float = 0.0) -> Any:
        """The response to `request`. `wait_s` is how long the broker may delay it on purpose (fetches, joins); a
        request with its own timeout may be answered after that.

        Errors: BrokerUnavailable (closed, no response), ClientError (no common version, an invalid response).
        """
        version = self.version_of(type(request), max_version)
        limit_s = max(self._timeout_s + wait_s, getattr(request, "timeout_ms", 0) / 1000 + ANSWER_S)
        body, position = await self._exchange(request, version, limit_s)
        response = await self._decode(request, version, body, position)
        self._has_been_served = True
        self._refusals.note(request, response)
        return response

    async def _decode(self, request: Message, version: int, body: memoryview, position: int) -> Any:
        try:
            return codec.decode(messages.api(request.API_KEY).response_class, version, body, position)
        except ProtocolError as error:
            await self.close()
            raise self._not_kafka(error) from error

    async def _exchange(self, request: Message, version: int, limit_s: float) -> tuple[memoryview, int]:
        if self._writer is None:
            raise BrokerUnavailable(f"the connection to {self.address} is closed")
        self._correlation_id += 1
        parts: list[Any] = [request_header(request.API_KEY, version, self._correlation_id, self._client_id)]
        codec.encoder(type(request), version)(request, parts)
        answer: asyncio.Future[tuple[memoryview, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._correlation_id, request.API_KEY, version, answer))
        self._writer.writelines([_LENGTH.pack(sum(map(len, parts))), *parts])
        try:
            async with asyncio.timeout(limit_s):
                await self._writer.drain()
                return await answer
        except TimeoutError as error:
            await self.close()
            name = messages.API_NAMES[request.API_KEY]
            hint = ": is it a listener of Kafka's protocol?" if name == "ApiVersions" else ""
            raise BrokerUnavailable(
                f"the broker at {self.address} did not answer {name} within {limit_s:g} s{hint}"
            ) from error
        except OSError as error:
            await self.close()
            raise self._closed(error) from error
        finally:
            # If the wait ended without the response, its exception has to be retrieved, or asyncio would complain.
            if not answer.cancel() and not answer.cancelled():
                answer.exception()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        reason: Exception = BrokerUnavailable(f"the connection to {self.address} is closed")
        try:
            while True:
                (size,) = _LENGTH.unpack(await reader.readexactly(4))
                if size >> 16 == _TLS_ALERT:
                    raise ClientError(
                        f"the listener at {self.address} speaks TLS: give the file of its CA with --ca, or"
                        " security.protocol=SSL or SASL_SSL in --command-config"
                    )
                if not 4 <= size <= RESPONSE_BYTES_MAX:
                    raise ProtocolError("HTTP" if size == _HTTP else f"a response of {size} bytes")
                self._hand_over(memoryview(await reader.readexactly(size)))
        except ProtocolError as error:
            reason = self._not_kafka(error)
        except ClientError as error:
            reason = error
        except (OSError, asyncio.IncompleteReadError) as error:
            reason = self._closed(error)
        finally:
            if self._writer is not None:
                self._writer.close()
            for *_, answer in self._waiting:
                if not answer.done():
                    answer.set_exception(reason)
            self._waiting.clear()

    def _closed(self, error: Exception) -> ClientError:
        closed = f"the broker at {self.address} closed the connection"
        if self._has_been_served:
            return BrokerUnavailable(closed)
        if isinstance(error, OSError) and self._security.tls is not None and (told := self._of_tls(error)) is not None:
            return ClientError(told)  # in TLS 1.3 a server judges the client's certificate after the handshake
        if not self._versions:
            return BrokerUnavailable(f"{closed} before it answered anything: {self._reasons()}")
        if self._security.login is None:
            return BrokerUnavailable(f"{closed}, as listeners do that ask who you are (give --user)")
        return BrokerUnavailable(closed)

    def _reasons(self) -> str:
        """Why a connection may be closed before the first response."""
        if self._security.tls is None:
            why = "the listener speaks TLS (give the file of its CA with --ca)"
        elif self._security.tls.chain:
            why = "it does not accept the client's certificate (use one of a CA it trusts)"
        else:
            why = "it asks for a certificate (give --certificate and --key)"
        return f"either {why}, or {NO_ROOM}"

    def _not_kafka(self, error: ProtocolError) -> ClientError:
        return ClientError(f"{self.address} answered with something that is not Kafka's protocol: {error}")

    def _hand_over(self, frame: memoryview) -> None:
        if not self._waiting:
            raise ProtocolError("a response without a request")
        expected, api_key, version, answer = self._waiting[0]
        correlation_id, position = parse_response_header(frame, api_key, version)
        if correlation_id != expected:
            raise ProtocolError(f"the response to request {correlation_id} instead of {expected}")
        self._waiting.popleft()
        if not answer.done():
            answer.set_result((frame, position))

    async def close(self) -> None:
        """Close the connection; requests in flight fail, including those that the broker has not
        received completely."""
        if self._writer is not None:
            # asyncio's transport of TLS raises it where it has closed already (CPython 3.11).
            with contextlib.suppress(AttributeError):
                self._writer.transport.abort()
        if self._receiving is not None and self._receiving is not asyncio.current_task():
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


def _error_code(body: memoryview, position: int) -> int:
    return int.from_bytes(body[position : position + 2], "big", signed=True)
