"""SASL's mechanism DIGEST-MD5, with which clients log in to ZooKeeper by a user name and a password (pure).

The server sends a challenge, the client a response, and the server a proof that it knows the password, too. Messages
are lists of directives, `name=value` or `name="value"`. Only authentication is done (`qop=auth`): ZooKeeper encrypts
nothing by SASL. The mechanism is obsolete (RFC 6331): without TLS, whoever reads the network can try passwords.

*Source*: RFC 2831; the names are those of ZooKeeper's `SecurityUtils.java` and `ZooKeeperSaslServer.java`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.controller.coordination.session_security import LoginFailed

SERVICE: Final = "zookeeper"
SERVER_NAME: Final = "zk-sasl-md5"
"""ZooKeeper's realm, and the name of every server."""

MESSAGE_BYTES_MAX: Final = 4096
"""The limit of a message (RFC 2831, 2.1.2)."""

_NONCE_BYTES: Final = 30
_URI: Final = f"{SERVICE}/{SERVER_NAME}"
_NONCE_COUNT: Final = "00000001"
"""Each login is the first with its nonce: nothing is logged in again (RFC 2831, 2.2)."""

_DIRECTIVE: Final = re.compile(
    r"""[\s,]*(?P<name>[A-Za-z-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^\s,"=]+))\s*(?=,|$)""", re.DOTALL
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class DigestMd5Error(LoginFailed):
    """A message that is not of this mechanism, or a wrong user or password. It contains no secret."""


@dataclass(frozen=True, slots=True)
class DigestMd5Login:
    """A user of ZooKeeper, and the password. `random_bytes` makes nonces."""

    username: str
    password: str = field(repr=False)
    random_bytes: Callable[[int], bytes] = field(repr=False)

    def begin(self, _host: str) -> DigestMd5Client:
        """A login on a new connection."""
        return DigestMd5Client(self)


class DigestMd5Client:
    """The client's side of one login."""

    def __init__(self, login: DigestMd5Login) -> None:
        self._login = login
        self._cnonce = login.random_bytes(_NONCE_BYTES).hex()
        self._expected = ""
        self.is_complete = False
        """Whether the server has proved that it knows the password."""

    def first(self) -> bytes:
        """An empty message, which asks for the challenge."""
        return b""

    def respond(self, message: bytes) -> bytes:
        """The response to the server's message; after the last one, empty. Raises DigestMd5Error."""
        directives = parse(message)
        if self._expected:
            if not hmac.compare_digest(directives.get("rspauth", "").encode(), self._expected.encode()):
                raise DigestMd5Error("the server does not know the password of this user")
            self.is_complete = True
            return b""
        nonce = directives.get("nonce")
        if nonce is None or directives.get("algorithm") != "md5-sess":
            raise DigestMd5Error("the server does not offer DIGEST-MD5")
        if "auth" not in re.split(r"[\s,]+", directives.get("qop", "auth")):
            raise DigestMd5Error("the server requires encryption by DIGEST-MD5")
        exchange = _Exchange(self._login.username, directives.get("realm", ""), nonce, self._cnonce, None)
        secret = exchange.secret(self._login.password)
        self._expected = exchange.proof(secret, "")
        response = exchange.proof(secret, "AUTHENTICATE")
        return (
            f"charset=utf-8,username={_quoted(exchange.username)},realm={_quoted(exchange.realm)}"
            f",nonce={_quoted(nonce)},nc={_NONCE_COUNT},cnonce={_quoted(self._cnonce)},digest-uri={_quoted(_URI)}"
            f",maxbuf=65536,response={response},qop=auth"
        ).encode()


class DigestMd5Server:
    """The server's side of one login. `password_of` returns the password of a user, or None; `random_bytes` makes the
    nonce."""

    def __init__(self, password_of: Callable[[str], str | None], random_bytes: Callable[[int], bytes]) -> None:
        self._password_of = password_of
        self._nonce = random_bytes(_NONCE_BYTES).hex()
        self._was_challenged = False
        self.username: str | None = None
        """The user, once it has logged in."""

    def respond(self, message: bytes) -> bytes:
        """The challenge, in response to an empty message; then the last message, to the client's response. Raises
        DigestMd5Error."""
        if not self._was_challenged:
            if message:
                raise DigestMd5Error("a response without a challenge")
            self._was_challenged = True
            challenge = f'realm="{SERVER_NAME}",nonce="{self._nonce}",charset=utf-8,algorithm=md5-sess'
            return challenge.encode()
        if self.username is not None:
            raise DigestMd5Error("a response after the login")
        found = parse(message)
        expected = {"realm": SERVER_NAME, "nonce": self._nonce, "nc": _NONCE_COUNT, "digest-uri": _URI}
        for name, value in expected.items():
            if not hmac.compare_digest(found.get(name, "").encode(), value.encode()):
                raise DigestMd5Error(f"another {name} than that of the challenge")
        if found.get("qop", "auth") != "auth" or not found.get("cnonce"):
            raise DigestMd5Error("a response of another kind")
        username = found.get("username", "")
        password = self._password_of(username)
        exchange = _Exchange(username, SERVER_NAME, self._nonce, found["cnonce"], found.get("authzid"))
        secret = exchange.secret(password or "")
        is_right = hmac.compare_digest(
            exchange.proof(secret, "AUTHENTICATE").encode(), found.get("response", "").encode()
        )
        if password is None or not is_right:
            raise DigestMd5Error("a wrong user or password")
        self.username = username
        return f"rspauth={exchange.proof(secret, '')}".encode()


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What both sides compute from: the names, and the nonces of server and client."""

    username: str
    realm: str
    nonce: str
    cnonce: str
    authorization_id: str | None

    def secret(self, password: str) -> str:
        """H(A1), in hexadecimal digits."""
        parts = [_bytes(self.username), _bytes(self.realm), _bytes(password)]
        a1 = [_md5(b":".join(parts)), self.nonce.encode(), self.cnonce.encode()]
        if self.authorization_id is not None:
            a1.append(self.authorization_id.encode())
        return _md5(b":".join(a1)).hex()

    def proof(self, secret: str, method: str) -> str:
        """The client's proof for the method AUTHENTICATE, and the server's for an empty one."""
        a2 = _md5(f"{method}:{_URI}".encode()).hex()
        return _md5(f"{secret}:{self.nonce}:{_NONCE_COUNT}:{self.cnonce}:auth:{a2}".encode()).hex()


def parse(message: bytes) -> Mapping[str, str]:
    """The directives of a message, by their names in lower case. Raises DigestMd5Error."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise DigestMd5Error("a message that is too long")
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise DigestMd5Error("a message that is not text") from error
    directives: dict[str, str] = {}
    position, end = 0, len(text.rstrip(" \t\r\n,"))
    while position < end:
        match = _DIRECTIVE.match(text, position, end)
        if match is None:
            raise DigestMd5Error("a message that is no list of directives")
        name, token = match["name"].lower(), match["token"]
        value = token if token is not None else _ESCAPED.sub(r"\1", match["quoted"])
        if name in directives and name != "realm":
            raise DigestMd5Error("a directive that is there twice")
        directives.setdefault(name, value)
        position = match.end()
    return directives


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _bytes(value: str) -> bytes:
    """ISO 8859-1 where it is enough, else UTF-8 (RFC 2831, 2.1.2.1)."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()


def _md5(value: bytes) -> bytes:
    return hashlib.md5(value, usedforsecurity=False).digest()
