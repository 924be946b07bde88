"""The client's side of SCRAM (RFC 5802), for SCRAM-SHA-256 and SCRAM-SHA-512 as Kafka has them: without channel
binding, and without the normalization of names and passwords (ScramFormatter)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from typing import Final

ITERATIONS_MIN: Final = 4096
"""Fewer are refused, as by Kafka's clients (ScramMechanism.minIterations)."""
ITERATIONS_MAX: Final = 10_000_000
"""More would keep the client busy for as long as the server likes."""
NONCE_BYTES: Final = 24

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SERVER_FIRST: Final = re.compile(r"(?:m=[^,]*,)?r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?")
_SERVER_FINAL: Final = re.compile(r"(?:v=([A-Za-z0-9+/=]+)|e=([^,]+))(?:,.*)?")
_NO_BINDING: Final = "n,,"


class ScramError(ValueError):
    """A server's message that is invalid, or does not prove that the server knows the password."""


class ScramClient:
    """One login: `first`, `final` and `verify`, in this order."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str = "") -> None:
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or base64.b64encode(os.urandom(NONCE_BYTES)).decode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """The client's first message."""
        return (_NO_BINDING + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The client's final message, which proves that it knows the password. Errors: ScramError."""
        text = server_first.decode("utf-8", "replace")
        parts = _SERVER_FIRST.fullmatch(text)
        if parts is None or not parts[1].startswith(self._nonce) or parts[1] == self._nonce:
            raise ScramError("the first message of the server is invalid")
        iterations = int(parts[3])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramError(f"the server asks for {iterations} iterations, and {ITERATIONS_MIN} are the least")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _decoded(parts[2]), iterations)
        binding = base64.b64encode(_NO_BINDING.encode()).decode()
        without_proof = f"c={binding},r={parts[1]}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password, too. Errors: ScramError."""
        parts = _SERVER_FINAL.fullmatch(server_final.decode("utf-8", "replace"))
        if parts is None or parts[1] is None:
            raise ScramError("the server refuses" if parts else "the final message of the server is invalid")
        if not hmac.compare_digest(_decoded(parts[1]), self._server_signature):
            raise ScramError("the server does not know the password: it may be another one than you mean")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ScramError("a message of the server is invalid") from error
