"""SASL's mechanism OAUTHBEARER: the client sends a JSON Web Token.   RFC 7628, KIP-255, KIP-768.

Source: OAuthBearerSaslServer and OAuthBearerClientInitialResponse of Kafka. A token that is not accepted is answered
with a JSON text; the client replies with one byte 0x01, and then the login fails. The tokens are validated in `jwt.py`
and `unsecured_jwt.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity

MECHANISM: Final = "OAUTHBEARER"

_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_INITIAL: Final = re.compile(rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_BEARER: Final = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ACKNOWLEDGEMENT: Final = b"\x01"


class InvalidToken(Exception):
    """A token is not accepted; the text is the reason, for the log. `status` and `scope` are for the client."""

    def __init__(self, reason: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope

    def to_json(self) -> str:
        """The answer for the client (RFC 7628, section 3.2.2)."""
        told = {"status": self.status} if self.scope is None else {"status": self.status, "scope": self.scope}
        return json.dumps(told)


class Token(NamedTuple):
    """A valid token: the name of its principal, and its expiry in ms since the epoch."""

    principal: str
    expires_ms: int


Validate = Callable[[str], Awaitable[Token]]
"""Validates a token; raises InvalidToken."""


def text_of(value: object, claim: str) -> str:
    """The text of a claim. Raises InvalidToken if it is blank, no text, or has half a character of two: JSON can have
    one (`"\\ud800"`), and neither logs nor the metadata store can."""
    if not isinstance(value, str) or not value.strip() or _SURROGATE.search(value) is not None:
        raise InvalidToken(f"the claim {claim} is missing, empty, or not a text")
    return value


class OAuthBearer:
    """OAUTHBEARER with tokens that `validate` accepts."""

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    def start(self) -> _Exchange:
        return _Exchange(self._validate)


class _Exchange:
    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._refusal = self._reason = ""
        self.identity: Identity | None = None

    async def take(self, message: bytes) -> bytes:
        if self._refusal:
            # Another message than the acknowledgement fails, too: a client has one token for each login.
            raise AuthenticationFailed(self._refusal if message == _ACKNOWLEDGEMENT else "", self._reason)
        authorization_id, text = parse_initial(message)
        try:
            token = await self._validate(text)
        except InvalidToken as error:
            self._refusal = error.to_json()
            self._reason = str(error)
            return self._refusal.encode()
        if authorization_id not in ("", token.principal):
            raise AuthenticationFailed(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different"
                f" from the token's principal name ({token.principal})"
            )
        self.identity = Identity(token.principal, expires_ms=token.expires_ms)
        return b""


def parse_initial(message: bytes) -> tuple[str, str]:
    """The authorization id, which may be empty, and the token of a client's first message. Extensions are ignored, as
    by Kafka's validators. Raises AuthenticationFailed."""
    found = _INITIAL.fullmatch(message.decode(errors="replace"))
    if found is None:
        raise AuthenticationFailed(reason="the first message of OAUTHBEARER is invalid")
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01")[:-1])
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None or bearer[1].lower() != "bearer":
        raise AuthenticationFailed(reason="the first message of OAUTHBEARER has no bearer token")
    return found["authorization"] or "", bearer[2]


class Client:
    """OAUTHBEARER on the client's side; `token` returns the present token, which `prepare` renews where it has to
    be."""

    name = MECHANISM

    def __init__(
        self,
        token: Callable[[], str],
        prepare: Callable[[], Awaitable[None]] | None = None,
        extensions: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._token = token
        self._prepare = prepare
        self._extensions = "".join(f"{name}={text}\x01" for name, text in extensions)

    async def prepare(self) -> None:
        """Have a token. Raises CredentialsUnavailable."""
        if self._prepare is not None:
            await self._prepare()

    def start(self, host: str = "") -> Client:
        return self

    def first(self) -> bytes:
        return f"n,,\x01auth=Bearer {self._token()}\x01{self._extensions}\x01".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        return _ACKNOWLEDGEMENT if challenge else None
