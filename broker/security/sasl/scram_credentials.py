"""The credentials of SCRAM's users, and the functions by which both sides derive keys and signatures.   RFC 5802, 7677.

The text form is the value of a user's dynamic configuration `SCRAM-SHA-256` or `SCRAM-SHA-512` in the metadata store
(ScramCredentialUtils.java of Kafka, which stays able to read it). It contains no password, but whoever reads the server
key and the stored key can pretend to be the server.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import new, pbkdf2_hmac
from hmac import digest
from typing import Final, NamedTuple

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""The limits of Kafka for new credentials (ZkAdminManager.alterUserScramCredentials)."""


class Hash(NamedTuple):
    """A mechanism's hash: its name in `hashlib`, and the number that requests have for the mechanism
    (ScramMechanism.type)."""

    name: str
    type: int


MECHANISMS: Final[Mapping[str, Hash]] = {
    "SCRAM-SHA-256": Hash("sha256", 1),
    "SCRAM-SHA-512": Hash("sha512", 2),
}
"""The hash of each mechanism."""

_FIELD: Final = re.compile(r"([a-z_]+)=([A-Za-z0-9+/=]*)")
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")


@dataclass(frozen=True, slots=True)
class Credential:
    """A user's credential for one mechanism: salt, stored key and server key, and the number of iterations."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def to_text(self) -> str:
        """The value in the metadata store."""
        salt, stored_key, server_key = (
            b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key)
        )
        return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={self.iterations}"

    @classmethod
    def from_text(cls, text: str) -> Credential:
        """The credential of a value in the metadata store. Raises ValueError, whose message has nothing of the text."""
        found = [_FIELD.fullmatch(part) for part in text.split(",")]
        values = {each[1]: each[2] for each in found if each is not None}
        if len(found) != len(_FIELDS) or set(values) != set(_FIELDS):
            raise ValueError("it is not a SCRAM credential (salt, stored_key, server_key, iterations)")
        try:
            salt, stored_key, server_key = (b64decode(values[name], validate=True) for name in _FIELDS[:3])
            iterations = int(values["iterations"])
        except (binascii.Error, ValueError):
            raise ValueError("it is not a SCRAM credential: a value is not base64, or not a number") from None
        return cls(salt, stored_key, server_key, iterations)

    @classmethod
    def of_salted_password(cls, mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
        """The credential of a salted password, which is what administrators' clients send."""
        hash_name = MECHANISMS[mechanism].name
        stored_key = new(hash_name, client_key(hash_name, salted_password)).digest()
        return cls(salt, stored_key, digest(salted_password, b"Server Key", hash_name), iterations)

    @classmethod
    def of_password(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS_MIN) -> Credential:
        """The credential of a password; takes milliseconds."""
        salted = salted_password(MECHANISMS[mechanism].name, password, salt, iterations)
        return cls.of_salted_password(mechanism, salted, salt, iterations)


def salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password (RFC 5802: Hi). Takes a millisecond for some thousand iterations. Kafka does not prepare
    passwords by SASLprep either."""
    return pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def client_key(hash_name: str, salted_password: bytes) -> bytes:
    """The client's key, whose hash is the stored key."""
    return digest(salted_password, b"Client Key", hash_name)


def xor(first: bytes, second: bytes) -> bytes:
    """The bits that differ, of two texts of the same length."""
    return (int.from_bytes(first, "big") ^ int.from_bytes(second, "big")).to_bytes(len(first), "big")
