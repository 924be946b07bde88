"""Unsecured JSON Web Tokens (`"alg": "none"`), for development: whoever connects chooses its name.   KIP-255.

Source: OAuthBearerUnsecuredValidatorCallbackHandler, OAuthBearerUnsecuredJws and OAuthBearerValidationUtils of Kafka,
which validates tokens like this unless another callback handler is configured.
"""

from __future__ import annotations

import binascii
import json
import math
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Final

from barnabas.broker.security.sasl.oauthbearer import InvalidToken, Token, text_of
from barnabas.clock import Clock

_PREFIX: Final = "unsecuredValidator"


class UnsecuredJwtValidator:
    """Validates unsecured tokens by the options of OAuthBearerLoginModule that begin with "unsecuredValidator". Raises
    ValueError for an invalid clock skew."""

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._principal_claim_name = options.get(f"{_PREFIX}PrincipalClaimName", "").strip() or "sub"
        self._scope_claim_name = options.get(f"{_PREFIX}ScopeClaimName", "").strip() or "scope"
        self._required_scope = options.get(f"{_PREFIX}RequiredScope", "").split()
        self._clock_skew_ms = int(options.get(f"{_PREFIX}AllowableClockSkewMs", "").strip() or 0)
        if self._clock_skew_ms < 0:
            raise ValueError("Allowable clock skew millis must not be negative")

    async def validate(self, token: str) -> Token:
        """The token. Raises InvalidToken."""
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise InvalidToken("an unsecured token has three parts, and the last one is empty")
        header, claims = _json_of(parts[0]), _json_of(parts[1])
        if header.get("alg") != "none":
            raise InvalidToken("an unsecured token has the algorithm none")
        principal = text_of(claims.get(self._principal_claim_name), self._principal_claim_name)
        expires_ms, issued_ms = time_ms(claims, "exp"), time_ms(claims, "iat")
        now_ms = self._clock.now_ms()
        if expires_ms is None or now_ms - self._clock_skew_ms >= expires_ms:
            raise InvalidToken("the token has expired, or has no time at which it does")
        if issued_ms is not None and (issued_ms > now_ms + self._clock_skew_ms or expires_ms <= issued_ms):
            raise InvalidToken("the token is issued in the future, or expires before")
        self._check_scope(claims.get(self._scope_claim_name))
        return Token(principal, int(expires_ms))

    def _check_scope(self, scope: Any) -> None:
        scopes = scope.split() if isinstance(scope, str) else scope if isinstance(scope, list) else []
        if any(required not in scopes for required in self._required_scope):
            text = f"[{', '.join(self._required_scope)}]"
            raise InvalidToken("the token lacks a required scope", "insufficient_scope", text)


def _json_of(part: str) -> dict[str, Any]:
    try:
        found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise InvalidToken("a part of the token is not base64, or not JSON") from error
    if not isinstance(found, dict):
        raise InvalidToken("a part of the token is not a JSON object")
    return found


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a token, whoever has signed it. Raises InvalidToken."""
    parts = token.split(".")
    if len(parts) != 3:
        raise InvalidToken("a token has three parts")
    return _json_of(parts[1])


def time_ms(claims: Mapping[str, Any], name: str) -> float | None:
    """A time in a claim, in ms since the epoch; None if it is missing. Raises InvalidToken."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 2**53:
        raise InvalidToken(f"the claim {name} is not a time")
    return 1000 * value
