"""SASL's mechanism PLAIN: a name and a password, as they are.   RFC 4616.

Source: PlainSaslServer of Kafka, which takes an authorization id only where it is the name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MECHANISM: Final = "PLAIN"

MESSAGE_BYTES_MAX: Final = 4096
"""How long a message may be: more than any name and password of ours."""


class Credentials(NamedTuple):
    """What somebody shows to be let in. The password is in no text of it that a log could have."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"<credentials of {self.username}>"


def encode(credentials: Credentials) -> bytes:
    """The client's only message."""
    return f"\0{credentials.username}\0{credentials.password}".encode()


def decode(message: bytes) -> Credentials | None:
    """What a client's message shows; None where it is none of this mechanism, or asks to act for somebody else."""
    if len(message) > MESSAGE_BYTES_MAX:
        return None
    try:
        authorization_id, username, password = message.decode().split("\0")
    except ValueError:  # not UTF-8, or not three parts
        return None
    if not username or not password or authorization_id not in ("", username):
        return None
    return Credentials(username, password)
