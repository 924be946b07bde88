"""Validation of signed JSON Web Tokens (RFC 7519) for OAUTHBEARER.   KIP-768, KIP-1139.

Source: BrokerJwtValidator of Kafka (ValidatorAccessTokenValidator before 4.1), which leaves the claims to jose4j:
`exp` and `iat` are required, `aud` and `iss` are compared with the expected ones, and a token with an audience is
refused where none is expected. Signatures are verified by joserfc, by the algorithms of ALGORITHMS only: a token cannot
choose `none`, nor have a public key used as the secret of an HMAC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from joserfc import jwt
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import Key
from joserfc.jws import CompactSignature, JWSRegistry

from barnabas.broker.security.sasl.oauthbearer import InvalidToken, Token, text_of
from barnabas.clock import Clock

ALGORITHMS: Final = frozenset(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)) | {
    "EdDSA"
}
"""The signature algorithms that are accepted."""

_TIME_MAX_SECONDS: Final = 2**63 // 1000


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims that tokens must have: `sasl.oauthbearer.*` of Kafka. Without `issuer` any is accepted."""

    audiences: frozenset[str] = frozenset()
    issuer: str | None = None
    clock_skew_seconds: int = 30
    scope_claim_name: str = "scope"
    sub_claim_name: str = "sub"


class KeySource(Protocol):
    """Has the keys of the issuer."""

    async def keys(self) -> Mapping[str, Key]:
        """The present keys by their id (`kid`). Raises InvalidToken if there are none."""
        ...

    async def newer_keys(self) -> Mapping[str, Key]:
        """The keys, after a refresh if the last one is not too recent: a key is missing."""
        ...


class _Registry(JWSRegistry):
    """The algorithms and sizes that are accepted."""

    max_header_length = 8 * 1024

    def get_alg(self, name: str) -> Any:
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(f"Algorithm of '{name[:20]}' is not allowed")
        return self.algorithms[name]


class _UnknownKey(Exception):
    """The issuer may have a newer key."""


class JwtValidator:
    """Validates tokens with the issuer's keys."""

    def __init__(self, keys: KeySource, claims: Claims, clock: Clock) -> None:
        self._keys = keys
        self._claims = claims
        self._clock = clock
        # Issuers add header fields of their own. "crit" is refused below.
        self._registry = _Registry(strict_check_header=False)

    async def validate(self, token: str) -> Token:
        """The token. Raises InvalidToken."""
        try:
            claims = self._verify(token, await self._keys.keys())
        except _UnknownKey:
            try:
                claims = self._verify(token, await self._keys.newer_keys())
            except _UnknownKey as error:
                raise InvalidToken("the issuer has no key of the token's id") from error
        return check_claims(claims, self._claims, self._clock.now_ms())

    def _verify(self, token: str, keys: Mapping[str, Key]) -> dict[str, Any]:
        def find_key(signature: Any) -> Key:
            return _find_key(signature, keys)

        try:
            return jwt.decode(token, find_key, registry=self._registry).claims
        except (JoseError, ValueError, TypeError, AttributeError, RecursionError) as error:
            # The others are what joserfc raises at a header that is no JSON object, or at nested JSON.
            raise InvalidToken(f"the token cannot be verified: {type(error).__name__}") from error


def _find_key(signature: CompactSignature, keys: Mapping[str, Key]) -> Key:
    """The key of a token's id, or the only key of the issuer. Raises InvalidToken, _UnknownKey."""
    header = signature.headers()
    if "crit" in header or "b64" in header:
        raise InvalidToken("the token has critical header fields, and none is known")
    key_id = header.get("kid")
    if key_id is None:
        if len(keys) != 1:
            raise InvalidToken("the token does not name its key, and the issuer has not exactly one")
        (key,) = keys.values()
    elif not isinstance(key_id, str) or key_id not in keys:
        raise _UnknownKey
    else:
        key = keys[key_id]
    key.check_alg(header["alg"])
    return key


def check_claims(claims: Mapping[str, Any], expected: Claims, now_ms: int) -> Token:
    """The token with these claims, at a time in ms since the epoch. Raises InvalidToken."""
    now_seconds = now_ms / 1000
    expires = _seconds(claims, "exp", is_required=True)
    issued = _seconds(claims, "iat", is_required=True)
    not_before = _seconds(claims, "nbf", is_required=False)
    if now_seconds - expected.clock_skew_seconds >= expires:
        raise InvalidToken("the token has expired (exp)")
    if now_seconds + expected.clock_skew_seconds < not_before:
        raise InvalidToken("the token is not valid yet (nbf)")
    if expires < max(issued, not_before):
        raise InvalidToken("the token expires (exp) before it is issued (iat) or valid (nbf)")
    _check_audience(claims.get("aud"), expected.audiences)
    if expected.issuer is not None and claims.get("iss") != expected.issuer:
        raise InvalidToken("the token is not from the expected issuer (iss)")
    _check_scope(claims.get(expected.scope_claim_name), expected.scope_claim_name)
    principal = text_of(claims.get(expected.sub_claim_name), expected.sub_claim_name).strip()
    return Token(principal, int(expires * 1000))


def _seconds(claims: Mapping[str, Any], name: str, *, is_required: bool) -> float:
    """A time in a claim, in seconds since the epoch; 0 if it is missing."""
    value = claims.get(name)
    if value is None and not is_required:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidToken(f"the claim {name} is missing, or is not a time")
    if value > _TIME_MAX_SECONDS:
        raise InvalidToken(f"the claim {name} is out of range")
    return value


def _check_audience(audience: Any, expected: frozenset[str]) -> None:
    audiences = [audience] if isinstance(audience, str) else audience
    if audiences is None:
        if expected:
            raise InvalidToken("the token has no audience (aud)")
    elif not isinstance(audiences, list) or not any(isinstance(each, str) and each in expected for each in audiences):
        raise InvalidToken("the token is for another audience (aud; sasl.oauthbearer.expected.audience)")


def _check_scope(scope: Any, name: str) -> None:
    scopes = scope if isinstance(scope, list) else [scope] if isinstance(scope, str) else []
    found = [text_of(each, name).strip() for each in scopes]
    if len(set(found)) != len(found):
        raise InvalidToken(f"the claim {name} has a value twice")
