"""Authentication between the brokers of a cluster: each sends a secret when it connects to another one.

With ZooKeeper, where brokers may share their listener with clients, each process makes a secret of its own, and its
registration has the digest of it: ZooKeeper does not contain the secret itself. A broker whose registration has no
digest, as one of Apache Kafka, is believed without a secret; any client that can connect can claim to be that broker.

Brokers that a parent has started (`serve --brokers`) share the parent's secret, and have a listener on which no request
is served without it. Reasons: docs/decisions/0017-brokers-know-brokers.md.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Protocol

from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.mechanism import Identity
from barnabas.broker.security.sasl.plain import Credentials

SECRET_BYTES: Final = 32

_USERNAME: Final = re.compile(r"broker-(\d{1,10})", re.ASCII)


def credentials_of_broker(broker_id: int, secret: str) -> Credentials:
    """The credentials of a broker for another one."""
    return Credentials(f"broker-{broker_id}", secret)


def broker_of_username(username: str) -> int:
    """The broker that a username names; -1 if it names none."""
    named = _USERNAME.fullmatch(username)
    return -1 if named is None else int(named[1])


def digest_of(secret: str) -> str:
    """The digest of a secret, for its registration. The secret is random and long, so that it needs neither salt nor
    many rounds."""
    return sha256(secret.encode()).hexdigest()


class BrokerSecrets(Protocol):
    """Identifies brokers; owned by the event loop."""

    async def is_shown(self, broker_id: int, secret: str) -> bool:
        """Whether `secret` is this broker's. Raises: CoordinationError if its registration cannot be read."""
        ...

    def believes(self, broker_id: int) -> bool:
        """Whether a broker is registered that needs no secret."""
        ...

    def believes_anybody(self) -> bool:
        """Whether there is any such broker."""
        ...

    def believes_another(self) -> bool:
        """Whether there is such a broker other than this one."""
        ...

    async def look_up(self, broker_id: int) -> None:
        """Read the registration of a broker that is unknown so far. Raises: CoordinationError."""
        ...


class RegisteredSecrets:
    """Uses the digests of registrations.

    Args:
        node_id: this broker, which has no connection to itself.
        digests: those of the known registrations, by broker; "" where one has none.
        look_up: reads one registration again. Raises CoordinationError.
    """

    def __init__(
        self, node_id: int, digests: Callable[[], dict[int, str]], look_up: Callable[[int], Awaitable[None]]
    ) -> None:
        self._node_id = node_id
        self._digests = digests
        self._look_up = look_up

    async def is_shown(self, broker_id: int, secret: str) -> bool:
        digest = digest_of(secret)
        if self._is_registered(broker_id, digest):
            return True
        await self._look_up(broker_id)  # the broker may have restarted, with a registration that is not known yet here
        return self._is_registered(broker_id, digest)

    def _is_registered(self, broker_id: int, digest: str) -> bool:
        return compare_digest(self._digests().get(broker_id, "").encode(), digest.encode())

    def believes(self, broker_id: int) -> bool:
        return self._digests().get(broker_id) == ""

    def believes_anybody(self) -> bool:
        return "" in self._digests().values()

    def believes_another(self) -> bool:
        return any(not digest for broker_id, digest in self._digests().items() if broker_id != self._node_id)

    async def look_up(self, broker_id: int) -> None:
        if broker_id not in self._digests():
            await self._look_up(broker_id)


class SharedSecret:
    """Uses the shared secret that all brokers have from their parent."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def is_shown(self, broker_id: int, secret: str) -> bool:
        return compare_digest(secret.encode(), self._secret.encode())

    def believes(self, broker_id: int) -> bool:
        return False

    def believes_anybody(self) -> bool:
        return False

    def believes_another(self) -> bool:
        return False

    async def look_up(self, broker_id: int) -> None:
        return None


class BrokerSecretMechanism:
    """SASL's mechanism PLAIN, with the secrets of brokers as passwords."""

    def __init__(self, secrets: BrokerSecrets) -> None:
        self._secrets = secrets

    def start(self) -> _Exchange:
        return _Exchange(self._secrets)


class _Exchange:
    def __init__(self, secrets: BrokerSecrets) -> None:
        self._secrets = secrets
        self.identity: Identity | None = None

    async def take(self, message: bytes) -> bytes:
        """As any exchange. Raises also: CoordinationError if a registration cannot be read."""
        authorization_id, (username, secret) = plain.decode(message)
        broker_id = broker_of_username(username)
        if broker_id < 0 or not await self._secrets.is_shown(broker_id, secret):
            raise plain.refuse_invalid()
        plain.check_authorization_id(authorization_id, username)
        self.identity = Identity(username, broker_id=broker_id)
        return b""
