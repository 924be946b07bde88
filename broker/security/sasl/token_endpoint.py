"""The tokens by which a broker logs in to others, from where its configuration says: a token endpoint, by the grant of
client credentials (RFC 6749, section 4.4), a file, or JAAS options of unsecured tokens.

Source: ClientCredentialsJwtRetriever, FileJwtRetriever, ClientJwtValidator (KIP-768, KIP-1139) and
OAuthBearerUnsecuredLoginCallbackHandler of Kafka. The client's id and secret are not encoded as a URL, which Kafka's
brokers do not do either.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from barnabas.broker.security.sasl.mechanism import CredentialsUnavailable
from barnabas.broker.security.sasl.oauthbearer import InvalidToken
from barnabas.broker.security.sasl.unsecured_jwt import claims_of, time_ms
from barnabas.broker.security.sasl.urls import FETCH_TIMEOUT_S, read_url, shown
from barnabas.clock import Clock

_LOGIN: Final = "unsecuredLogin"
_LIFETIME_SECONDS: Final = 3600
_BEARER_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")


class TokenUnavailable(CredentialsUnavailable):
    """There is no token."""


class OwnToken(NamedTuple):
    """A token of this broker, with the times, in ms since the epoch, at which it begins and ceases to be valid."""

    text: str
    begins_ms: int
    expires_ms: int

    def __repr__(self) -> str:
        return f"<token until {self.expires_ms}>"


class ClientCredentials(NamedTuple):
    """A client of a token endpoint."""

    client_id: str
    client_secret: str
    scope: str = ""

    def __repr__(self) -> str:
        return f"<client {self.client_id}>"


Retrieve = Callable[[], str]
"""Retrieves a token. Blocking. Raises TokenUnavailable."""


def retrieve(
    url: str,
    credentials: ClientCredentials | None,
    clock: Clock,
    connect_timeout_s: float = FETCH_TIMEOUT_S,
    read_timeout_s: float = FETCH_TIMEOUT_S,
) -> str:
    """A token of the endpoint, or without credentials that of a file. Blocking. Raises TokenUnavailable."""
    where = f"sasl.oauthbearer.token.endpoint.url {shown(url)}"
    try:
        if credentials is None:
            return _checked(read_url(url, clock).decode().strip(), where)
        form = {"grant_type": "client_credentials", **({"scope": credentials.scope} if credentials.scope else {})}
        client = f"{credentials.client_id}:{credentials.client_secret}".encode()
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {b64encode(client).decode()}",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        content = read_url(
            url,
            clock,
            form=urlencode(form).encode(),
            headers=headers,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        answer = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        told = f"{error}" if isinstance(error, OSError) else type(error).__name__  # the others show the content
        raise TokenUnavailable(f"{where}: {told}") from error
    return _checked(answer.get("access_token") if isinstance(answer, dict) else None, where)


def _checked(token: Any, where: str) -> str:
    if not isinstance(token, str) or _BEARER_TOKEN.fullmatch(token.strip()) is None:
        raise TokenUnavailable(f"{where}: there is no token in the answer")
    return token.strip()


def own_token(text: str, now_ms: int) -> OwnToken:
    """The times of a token, whose signature is the issuer's business. A token without a time of issue begins now.
    Raises TokenUnavailable."""
    try:
        claims = claims_of(text)
        begins_ms, expires_ms = time_ms(claims, "iat"), time_ms(claims, "exp")
    except InvalidToken as error:
        raise TokenUnavailable(f"the token for logging in to other brokers cannot be read: {error}") from error
    if expires_ms is None or expires_ms <= now_ms:
        raise TokenUnavailable("the token for logging in to other brokers has expired, or has no time at which it does")
    return OwnToken(text, now_ms if begins_ms is None else int(begins_ms), int(expires_ms))


# --- unsecured tokens -------------------------------------------------------------------------------


class UnsecuredTokens:
    """Unsecured tokens with the claims of JAAS options that begin with `unsecuredLogin`. Raises ValueError."""

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._lifetime_seconds = int(options.get(f"{_LOGIN}LifetimeSeconds", "").strip() or _LIFETIME_SECONDS)
        self._claims: dict[str, Any] = {}
        for name, value in options.items():
            for kind, read in (("String", str), ("Number", float), ("List", _list_of)):
                claim = name.removeprefix(f"{_LOGIN}{kind}Claim_")
                if claim not in (name, ""):
                    if claim in ("iat", "exp"):
                        raise ValueError(f"the claim {claim} cannot be set by {name}")
                    self._claims[claim] = read(value)
        json.dumps(self._claims, allow_nan=False)  # ValueError for a number that JSON does not have
        principal_claim = options.get(f"{_LOGIN}PrincipalClaimName", "").strip() or "sub"
        principal = self._claims.get(principal_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise ValueError(
                f"{_LOGIN}StringClaim_{principal_claim} is not set: it is the user as whom this broker logs in to"
                " others"
            )
        if self._lifetime_seconds <= 0:
            raise ValueError(f"{_LOGIN}LifetimeSeconds must be positive")

    def make(self) -> str:
        """A token from now on."""
        now_seconds = self._clock.now_ms() / 1000
        claims = {"exp": now_seconds + self._lifetime_seconds, "iat": now_seconds, **self._claims}
        return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def _list_of(text: str) -> list[str]:
    """The elements of a list; its first character separates them."""
    return text[1:].split(text[0]) if len(text) > 1 else []


def _encoded(value: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")
