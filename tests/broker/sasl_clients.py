"""Clients of SASL listeners in tests: single requests over a socket, logins, and the configuration of a listener."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.broker.security.sasl.plain import Client, Credentials
from barnabas.broker.security.sasl.scram_credentials import Credential
from barnabas.broker.server import Broker
from barnabas.controller.sanitizer import sanitize
from barnabas.wire import codec, messages
from barnabas.wire.headers import parse_response_header
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message
from tools.attack.hostile import frame

ALICE: Final = Client(Credentials("alice", "a-secret"))
BOB: Final = Client(Credentials("bob", "b-secret"))

PLAIN_LINE: Final = f'{jaas.PLAIN_LOGIN_MODULE} required user_alice="a-secret" user_bob="b-secret";'

_LENGTH: Final = struct.Struct(">i")


def sasl_listener(mechanisms: str = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", **lines: str) -> dict[str, str]:
    """The keys of a listener CLIENTS with SASL; `lines` are JAAS lines by mechanism in lower case, with underscores."""
    keys = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": mechanisms,
        "listener.name.clients.plain.sasl.jaas.config": PLAIN_LINE,
    }
    for mechanism, line in lines.items():
        keys[f"listener.name.clients.{mechanism.replace('_', '-')}.sasl.jaas.config"] = line
    return keys


async def add_scram_user(broker: Broker, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
    """Write a user's credential as a client's AlterUserScramCredentials has it."""
    text = Credential.of_password(mechanism, password, b"salt").to_text()
    await broker.configs.change("users", sanitize(name), lambda current: {**current, mechanism: text})


class Wire:
    """A connection that sends what a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, request: Message, version: int) -> None:
        self.writer.write(frame(request, version))

    def send_token(self, token: bytes) -> None:
        self.writer.write(_LENGTH.pack(len(token)) + token)

    async def receive_token(self) -> bytes:
        (size,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
        return await self.reader.readexactly(size)

    async def receive(self, key: int, version: int) -> Any:
        answer = memoryview(await self.receive_token())
        _, position = parse_response_header(answer, key, version)
        return codec.decode(messages.api(key).response_class, version, answer, position)

    async def ask(self, request: Message, version: int) -> Any:
        self.send(request, version)
        return await self.receive(request.API_KEY, version)

    async def log_in(self, client: ClientMechanism, version: int = 2) -> Any:
        """Authenticate; returns the last response."""
        handshake = await self.ask(SaslHandshakeRequest(mechanism=client.name), 1)
        assert handshake.error_code == 0, handshake
        exchange = client.start()
        message: bytes | None = exchange.first()
        while message is not None:
            response = await self.ask(SaslAuthenticateRequest(auth_bytes=message), version)
            if response.error_code:
                return response
            message = exchange.answer(bytes(response.auth_bytes))
        return response

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@asynccontextmanager
async def wire(broker: Broker, listener: str = "CLIENTS") -> AsyncIterator[Wire]:
    """A connection to a listener of the broker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.socket_server.ports[listener])
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
