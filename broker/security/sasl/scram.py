"""SASL's mechanisms SCRAM-SHA-256 and SCRAM-SHA-512: both sides prove that they know a password, and send none.
RFC 5802, 7677.

Source: ScramSaslServer, ScramMessages and ScramServerCallbackHandler of Kafka. The server checks the whole nonce of the
final message (CVE-2024-56128). Unlike Kafka's, it checks the channel binding, and an unknown user gets a challenge with
a salt that is made up: the login fails with the last message, after the same work, as with a wrong password.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from hashlib import new
from hmac import compare_digest, digest
from typing import Final, NamedTuple

from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from barnabas.broker.security.sasl.plain import Credentials, check_authorization_id
from barnabas.broker.security.sasl.scram_credentials import (
    ITERATIONS_MIN,
    MECHANISMS,
    Credential,
    client_key,
    salted_password,
    xor,
)

NONCE_BYTES: Final = 24

CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""The largest number of iterations that a client carries out: any server, also a wrong one, may ask for some."""

_SASL_NAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\0,]+)*"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"[A-Za-z0-9+/]*={0,2}"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization>{_SASL_NAME}))?,)"
    rf"(?P<bare>(?:m=[^\0,]+,)?n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_SERVER_FINAL: Final = re.compile(rf"v=(?P<signature>{_BASE64}){_EXTENSIONS}")
_TOKEN_EXTENSION: Final = "tokenauth=true"
"""The extension by which a client says that the name is a delegation token's id (KIP-48)."""

_SALT_BYTES: Final = 26
"""The length of the salts that Kafka's tools make (ScramFormatter.secureRandomBytes)."""


class Found(NamedTuple):
    """The credential of a user, or of a delegation token: `identity` is the user's, or that of the token's owner."""

    credential: Credential
    identity: Identity


Lookup = Callable[[str, bool], Found | Awaitable[Found | None] | None]
"""The credential of a user, or with True of a delegation token by its id; None if it is unknown. That of a token may
have to be derived first, and is awaited."""


class Scram:
    """A SCRAM mechanism.

    Args:
        name: SCRAM-SHA-256 or SCRAM-SHA-512.
        look_up: finds credentials.
        secret: the salts of unknown users are made of it; random, and the same for the process's life.
        random_bytes: for nonces.
    """

    def __init__(self, name: str, look_up: Lookup, secret: bytes, random_bytes: Callable[[int], bytes]) -> None:
        self.hash_name = MECHANISMS[name].name
        self.look_up = look_up
        self._secret = digest(secret, name.encode(), "sha256")
        self._random_bytes = random_bytes

    def start(self) -> _Exchange:
        return _Exchange(self)

    def new_nonce(self) -> str:
        """The server's part of a nonce."""
        return b64encode(self._random_bytes(NONCE_BYTES)).decode()

    def usable(self, found: Found | None, name: str, *, is_token: bool) -> tuple[Credential, Identity | None]:
        """The credential of a name; where it is unknown, one that no password fits, with the same salt each time. That
        one is made in any case, so that known names take as long."""
        stored_key, server_key, salt = (
            digest(self._secret, f"{purpose}\0{is_token}\0{name}".encode(), self.hash_name)
            for purpose in ("stored key", "server key", "salt")
        )
        unknown = Credential(salt[:_SALT_BYTES], stored_key, server_key, ITERATIONS_MIN)
        if found is None or found.credential.iterations < ITERATIONS_MIN:
            return unknown, None
        return found.credential, found.identity


class _Exchange:
    """A login: the client's first message, and its final one."""

    def __init__(self, mechanism: Scram) -> None:
        self._mechanism = mechanism
        self._first: re.Match[str] | None = None
        self._is_over = False
        self.identity: Identity | None = None

    def take(self, message: bytes) -> bytes | Awaitable[bytes]:
        if self._is_over:
            raise AuthenticationFailed(reason="a message after the end of the exchange")
        try:
            text = message.decode()
            if self._first is None:
                return self._take_first(text)
            self._is_over = True
            return self._take_final(text, self._first)
        except (UnicodeDecodeError, binascii.Error) as error:
            self._is_over = True
            raise AuthenticationFailed(reason="a message is not UTF-8, or not base64") from error
        except AuthenticationFailed:
            self._is_over = True
            raise

    def _take_first(self, text: str) -> bytes | Awaitable[bytes]:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed(reason="the client's first message is invalid, or asks for a channel binding")
        name = _unescaped(found["name"])
        if found["authorization"] is not None:
            check_authorization_id(_unescaped(found["authorization"]), name)
        is_token = _TOKEN_EXTENSION in found["extensions"].lower().split(",")
        self._first = found
        looked_up = self._mechanism.look_up(name, is_token)
        if isinstance(looked_up, Found | None):
            return self._challenge_for(looked_up, name, found["nonce"], is_token=is_token)
        return self._challenge_later(looked_up, name, found["nonce"])

    async def _challenge_later(self, looked_up: Awaitable[Found | None], name: str, nonce: str) -> bytes:
        """The challenge for a delegation token."""
        return self._challenge_for(await looked_up, name, nonce, is_token=True)

    def _challenge_for(self, known: Found | None, name: str, nonce: str, *, is_token: bool) -> bytes:
        self._credential, self._found = self._mechanism.usable(known, name, is_token=is_token)
        self._nonce = nonce + self._mechanism.new_nonce()
        salt = b64encode(self._credential.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._challenge.encode()

    def _is_answered_by(self, nonce: str, of_client: str) -> bool:
        """Whether the nonce of a final message is that of the challenge. librdkafka before 2.6.1 puts its own part
        before it once more, which Kafka 3.9 allows and 4.0 does not; the server's part is fresh all the same."""
        return any(compare_digest(nonce.encode(), each.encode()) for each in (self._nonce, of_client + self._nonce))

    def _take_final(self, text: str, first: re.Match[str]) -> bytes:
        final = _CLIENT_FINAL.fullmatch(text)
        if final is None:
            raise AuthenticationFailed(reason="the client's final message is invalid")
        if not self._is_answered_by(final["nonce"], first["nonce"]):
            raise AuthenticationFailed(reason="the nonce of the final message is not that of the challenge")
        if b64decode(final["binding"], validate=True) != first["header"].encode():
            raise AuthenticationFailed(reason="the channel binding is not that of the first message")
        credential, hash_name = self._credential, self._mechanism.hash_name
        signed = f"{first['bare']},{self._challenge},{final['without_proof']}".encode()
        signature = digest(credential.stored_key, signed, hash_name)
        proof = b64decode(final["proof"], validate=True)
        if len(proof) != len(signature):
            raise AuthenticationFailed(reason="the proof has the wrong length")
        stored_key = new(hash_name, xor(proof, signature)).digest()
        if not compare_digest(stored_key, credential.stored_key) or self._found is None:
            raise AuthenticationFailed(reason="an unknown user, or a wrong password")
        self.identity = self._found
        return b"v=" + b64encode(digest(credential.server_key, signed, hash_name))


def _unescaped(sasl_name: str) -> str:
    return sasl_name.replace("=2C", ",").replace("=3D", "=")


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


class Client:
    """SCRAM with a user's password, or with a delegation token's id and HMAC (`is_token`), on the client's side.

    It keeps the last salted password: a login after the first one costs no key derivation.
    """

    def __init__(
        self, name: str, credentials: Credentials, random_bytes: Callable[[int], bytes], *, is_token: bool = False
    ) -> None:
        self.name = name
        self.credentials = credentials
        self.is_token = is_token
        self.random_bytes = random_bytes
        self._salted: tuple[bytes, int, bytes] | None = None

    def start(self, host: str = "") -> _ClientExchange:
        return _ClientExchange(self)

    def salted_password(self, salt: bytes, iterations: int) -> bytes:
        """The salted password, derived if it is not the last one."""
        if self._salted is None or self._salted[:2] != (salt, iterations):
            hash_name = MECHANISMS[self.name].name
            self._salted = salt, iterations, salted_password(hash_name, self.credentials.password, salt, iterations)
        return self._salted[2]


class _ClientExchange:
    """A login on the client's side."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hash_name = MECHANISMS[client.name].name
        self._nonce = b64encode(client.random_bytes(NONCE_BYTES)).decode()
        extension = f",{_TOKEN_EXTENSION}" if client.is_token else ""
        self._bare = f"n={_escaped(client.credentials.username)},r={self._nonce}{extension}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        text = challenge.decode(errors="replace")
        if not self._server_signature:
            return self._final(text)
        found = _SERVER_FINAL.fullmatch(text)
        if found is None or not compare_digest(_decoded(found["signature"]), self._server_signature):
            raise AuthenticationFailed("the server does not know the password: it may be another one than you mean")
        return None

    def _final(self, text: str) -> bytes:
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce) or len(found["nonce"]) == len(self._nonce):
            raise AuthenticationFailed("the server's first message is invalid")
        iterations = int(found["iterations"])
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise AuthenticationFailed(f"the server asks for {iterations} iterations")
        salted = self._client.salted_password(_decoded(found["salt"]), iterations)
        key = client_key(self._hash_name, salted)
        without_proof = f"c=biws,r={found['nonce']}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = digest(new(self._hash_name, key).digest(), signed, self._hash_name)
        server_key = digest(salted, b"Server Key", self._hash_name)
        self._server_signature = digest(server_key, signed, self._hash_name)
        return f"{without_proof},p={b64encode(xor(key, signature)).decode()}".encode()


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise AuthenticationFailed("a message of the server is not base64") from error
