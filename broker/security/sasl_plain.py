"""SASL's mechanism PLAIN: a name and a password in clear text.   RFC 4616.

Source: PlainSaslServer of Kafka, which accepts an authorization id only if it equals the name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MECHANISM: Final = "PLAIN"

MESSAGE_BYTES_MAX: Final = 4096
"""The maximum length of a message: more than any name and password of ours."""


class Credentials(NamedTuple):
    """A username and a password. The password is in no text form of it, which a log could contain."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"<credentials of {self.username}>"


def encode(credentials: Credentials) -> bytes:
    """The client's only message."""
    return f"\0{credentials.username}\0{credentials.password}".encode()


def decode(message: bytes) -> Credentials | None:
    """The credentials in a client's message; None if it is invalid, or requests to act for another user."""
    if len(message) > MESSAGE_BYTES_MAX:
        return None
    try:
        authorization_id, username, password = message.decode().split("\0")
    except ValueError:  # not UTF-8, or not three parts
        return None
    if not username or not password or authorization_id not in ("", username):
        return None
    return Credentials(username, password)
