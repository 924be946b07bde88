"""SASL's mechanism PLAIN: a name and a password in clear text.   RFC 4616.

Source: PlainSaslServer and PlainServerCallbackHandler of Kafka: the users are options of the JAAS line, and an
authorization id is accepted only if it equals the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity

MECHANISM: Final = "PLAIN"

_USER_OPTION: Final = "user_"
_INVALID: Final = "Authentication failed: Invalid username or password"
_OTHER_USER: Final = "Authentication failed: Client requested an authorization id that is different from username"


class Credentials(NamedTuple):
    """A username and a password. The password is in no text form of it, which a log could contain."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"<credentials of {self.username}>"


def encode(credentials: Credentials) -> bytes:
    """The client's only message."""
    return f"\0{credentials.username}\0{credentials.password}".encode()


def decode(message: bytes) -> tuple[str, Credentials]:
    """The authorization id, which may be empty, and the credentials in a client's message. Raises
    AuthenticationFailed."""
    tokens = message.decode(errors="replace").split("\0", 3)
    if len(tokens) != 3:
        raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}")
    authorization_id, username, password = tokens
    if not username:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    return authorization_id, Credentials(username, password)


def refuse_invalid() -> AuthenticationFailed:
    """The failure of an unknown user or a wrong password: the message does not reveal which."""
    return AuthenticationFailed(_INVALID)


def check_authorization_id(authorization_id: str, username: str) -> None:
    """Check that a client does not request to act for another user (CVE-2017-12610). Raises AuthenticationFailed."""
    if authorization_id not in ("", username):
        raise AuthenticationFailed(_OTHER_USER)


def users_of(options: Mapping[str, str]) -> dict[str, str]:
    """The passwords of the users in the options of PlainLoginModule: `user_NAME` has that of NAME."""
    return {
        name.removeprefix(_USER_OPTION): password for name, password in options.items() if name.startswith(_USER_OPTION)
    }


class Plain:
    """PLAIN with the passwords of users."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = {name: _digest(password) for name, password in users.items()}

    def start(self) -> _Exchange:
        return _Exchange(self._users)


def _digest(password: str) -> bytes:
    """Passwords are compared by their digests: these have one length, so that the time reveals nothing."""
    return sha256(password.encode()).digest()


_OF_NOBODY = bytes(sha256().digest_size)


class _Exchange:
    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = users
        self.identity: Identity | None = None

    def take(self, message: bytes) -> bytes:
        authorization_id, (username, password) = decode(message)
        if not compare_digest(_digest(password), self._users.get(username, _OF_NOBODY)):
            raise refuse_invalid()
        check_authorization_id(authorization_id, username)
        self.identity = Identity(username)
        return b""


class Client:
    """PLAIN on the client's side."""

    name = MECHANISM

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def start(self, host: str = "") -> Client:
        return self

    def first(self) -> bytes:
        return encode(self._credentials)

    def answer(self, challenge: bytes) -> bytes | None:
        return None
