"""The interface of SASL's mechanisms, on both sides of a login (RFC 4422).

A `Mechanism` makes an `Exchange` for each login. The exchange takes the client's messages and returns the challenges;
when it is complete it knows the identity of the client. A client has a `ClientExchange`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol, runtime_checkable

MESSAGE_BYTES_MAX = 64 * 1024
"""The maximum length of a client's message: more than any password or token in use. Kafka's limit is
`sasl.server.max.receive.size` alone."""


class AuthenticationFailed(Exception):
    """A login failed.

    `message` is for the client; it is empty where the general message is sent, which does not reveal whether the user
    exists (SaslServerAuthenticator.handleSaslToken). `reason` is for the log, without secrets.
    """

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(reason or message or "invalid credentials")
        self.message = message


class Identity(NamedTuple):
    """The client of a completed login.

    `is_token` is whether it used a delegation token of the user `name`. `expires_ms` is the time, in ms since the
    epoch, at which its token expires; None if nothing expires. `broker_id` is the broker that has sent its secret,
    else -1.
    """

    name: str
    is_token: bool = False
    expires_ms: int | None = None
    broker_id: int = -1


class Exchange(Protocol):
    """One login on the server's side; `identity` is None until it is complete."""

    identity: Identity | None

    def take(self, message: bytes) -> bytes | Awaitable[bytes]:
        """Take the client's next message; returns the challenge, or the final message. Raises AuthenticationFailed, at
        once or when awaited; then the exchange is over."""
        ...


class Mechanism(Protocol):
    """A mechanism that a listener has enabled."""

    def start(self) -> Exchange:
        """An exchange for one login."""
        ...


class PreparationFailed(Exception):
    """A mechanism cannot be used: one line that names the key, and has no secret."""


@runtime_checkable
class PreparedMechanism(Protocol):
    """A mechanism that reads files."""

    def prepare(self) -> None:
        """Check that they can be read. Blocking. Raises PreparationFailed."""
        ...


class ClientExchange(Protocol):
    """One login on the client's side."""

    def first(self) -> bytes:
        """The first message. That of Kerberos blocks. Raises AuthenticationFailed if there can be none."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The response to a message of the server; None if the login is complete. Raises AuthenticationFailed if the
        server is not the right one. A step that derives a key from a password takes milliseconds."""
        ...


class ClientMechanism(Protocol):
    """The credentials of a client; `name` is the mechanism's."""

    name: str

    def start(self, host: str = "") -> ClientExchange:
        """An exchange for one login at a host, which Kerberos has to know."""
        ...


class CredentialsUnavailable(Exception):
    """A client has no credentials at the moment. The text has no secret."""


@runtime_checkable
class RenewedMechanism(Protocol):
    """A client's mechanism whose credentials are renewed now and then."""

    async def prepare(self) -> None:
        """Have credentials for a login that begins now. Raises CredentialsUnavailable."""
        ...
