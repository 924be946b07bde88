"""A broker of a few lines that speaks TLS and SASL as it is told, for tests of the client: it knows one user.

Its SCRAM is scramp's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scramp import ScramException, ScramMechanism

from barnabas.wire import codec, messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import parse_request_header
from barnabas.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeResponse

API_VERSIONS, METADATA, HANDSHAKE, AUTHENTICATE = 18, 3, 17, 36
USER, PASSWORD = "alice", "a=secret,of hers"
TOKEN = "a.b.c"


@dataclass
class Client:
    """One connection."""

    is_known: bool
    mechanism: str = ""
    scram: Any = None
    is_over: bool = False


@dataclass
class SecuredBroker:
    """What it offers, and what clients did. Without `mechanisms` it knows no users."""

    mechanisms: Sequence[str] = ()
    tls: ssl.SSLContext | None = None
    session_lifetime_ms: int = 0
    topic_error: ErrorCode = ErrorCode.NONE
    port: int = 0
    used: list[str] = field(default_factory=list)
    """The mechanisms of successful logins."""
    peer_certificates: list[Any] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve; the value is its address."""
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
                    await self._serve(reader, writer)
            finally:
                writer.transport.abort()

        async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=self.tls) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield f"127.0.0.1:{self.port}"
            for each in connections:
                each.cancel()
            await asyncio.gather(*connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer_certificates.append(writer.get_extra_info("peercert"))
        client = Client(is_known=not self.mechanisms)
        while not client.is_over:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            if not 8 <= size <= 1_000_000:
                return
            frame = await reader.readexactly(size)
            header = parse_request_header(frame)
            api = messages.api(header.api_key)
            request: Any = codec.decode(api.request_class, header.api_version, frame, header.body_position)
            response = self._response(client, header.api_key, request)
            if response is None:
                return
            body = codec.encode(response, header.api_version)
            head = struct.pack(">i", header.correlation_id)
            if header.api_key != API_VERSIONS and header.api_version >= (api.request_class.FLEXIBLE_FROM or 99):
                head += b"\0"
            writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
            await writer.drain()

    def _response(self, client: Client, api_key: int, request: Any) -> Any:
        """The response to one request; None closes the connection."""
        if api_key == API_VERSIONS:
            served = ((API_VERSIONS, 3), (METADATA, 9), (HANDSHAKE, 1), (AUTHENTICATE, 2))
            versions = [ApiVersion(api_key=key, min_version=0, max_version=highest) for key, highest in served]
            return ApiVersionsResponse(api_keys=versions)
        if api_key == HANDSHAKE:
            client.mechanism, client.scram = request.mechanism, None
            response = SaslHandshakeResponse(mechanisms=list(self.mechanisms))
            if not self.mechanisms:
                response.error_code = ErrorCode.ILLEGAL_SASL_STATE
            elif client.mechanism not in self.mechanisms:
                response.error_code, client.is_over = ErrorCode.UNSUPPORTED_SASL_MECHANISM, True
            return response
        if api_key == AUTHENTICATE:
            if client.mechanism.startswith("SCRAM") and client.scram is None:
                client.scram = _scram(client.mechanism)
            answer, client.is_known = self._authenticate(client.mechanism, client.scram, request.auth_bytes)
            client.is_over = bool(answer.error_code)
            self.used += [client.mechanism] * client.is_known
            return answer
        if not client.is_known:
            return None
        topics = [MetadataResponseTopic(name="orders", error_code=self.topic_error)] if self.topic_error else []
        return MetadataResponse(cluster_id="c", controller_id=-1, topics=topics)

    def _authenticate(self, mechanism: str, scram: Any, message: bytes) -> tuple[SaslAuthenticateResponse, bool]:
        """The response, and whether the client is known by it."""
        refused = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="no")
        done = SaslAuthenticateResponse(session_lifetime_ms=self.session_lifetime_ms)
        if mechanism == "PLAIN":
            is_right = message == f"\0{USER}\0{PASSWORD}".encode()
            return (done, True) if is_right else (refused, False)
        if mechanism == "OAUTHBEARER":
            if message == b"\x01":
                return refused, False
            token = message.partition(b"auth=Bearer ")[2].partition(b"\x01")[0].decode()
            if token == TOKEN or _subject(token) == USER:
                return done, True
            return SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}'), False
        try:
            if message.startswith(b"n,"):
                scram.set_client_first(message.decode())
                return SaslAuthenticateResponse(auth_bytes=scram.get_server_first().encode()), False
            scram.set_client_final(message.decode())
            done.auth_bytes = scram.get_server_final().encode()
        except ScramException:
            return refused, False
        return done, True


def _scram(mechanism: str) -> Any:
    known = ScramMechanism(mechanism)
    return known.make_server(lambda _user: known.make_auth_info(PASSWORD, iteration_count=4096))


def _subject(token: str) -> str:
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        return ""
    return str(json.loads(base64.urlsafe_b64decode(parts[1] + "=="))["sub"])
