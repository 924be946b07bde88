"""An issuer of tokens for development, on the HTTP port: `/oauth/token` grants tokens to clients that know a user's
password (RFC 6749, section 4.4), `/oauth/jwks` has the key that checks them (RFC 7517).

A token names its user as the subject. It is signed by ES256, and valid for an hour.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import parse_qs, unquote_plus

from aiohttp import web

from barnabas.broker.http.routes import Route
from barnabas.clock import Clock

LIFETIME_S: Final = 3600
ALGORITHM: Final = "ES256"
BODY_BYTES_MAX: Final = 4096
_ID_BYTES: Final = 16
_FIELDS_MAX: Final = 16

_NO_STORE: Final = {"Cache-Control": "no-store"}


class Issuer:
    """Grants tokens.

    Args:
        key: the private key, P-256 as PEM.
        passwords: passwords by users, which are client ids and secrets here.
        issuer: the claim `iss`. audience: the claim `aud`.
        clock: the time of tokens.
        random_bytes: for ids of tokens.
    """

    def __init__(
        self,
        key: bytes,
        passwords: Mapping[str, str],
        *,
        issuer: str,
        audience: str,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        from joserfc.jwk import ECKey

        self._key = ECKey.import_key(key)
        self._key.ensure_kid()
        self._passwords = dict(passwords)
        self._issuer = issuer
        self._audience = audience
        self._clock = clock
        self._random_bytes = random_bytes

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("POST", "/oauth/token", self._token, body_bytes_max=BODY_BYTES_MAX),
            Route("GET", "/oauth/jwks", self._jwks),
        )

    def key_set(self) -> dict[str, Any]:
        """The JWK set with the public key."""
        return {"keys": [{**self._key.as_dict(private=False), "use": "sig", "alg": ALGORITHM}]}

    async def _jwks(self, request: web.Request, _body: bytes) -> web.Response:
        return web.json_response(self.key_set())

    async def _token(self, request: web.Request, body: bytes) -> web.Response:
        try:
            form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS_MAX)
        except ValueError:
            return _refusal("invalid_request", 400)
        if form.get("grant_type") != ["client_credentials"]:
            return _refusal("unsupported_grant_type", 400)
        client_id, secret = _credentials(request.headers.get("Authorization", ""), form)
        if not self._is_known(client_id, secret):
            return _refusal("invalid_client", 401)
        scope = " ".join(form.get("scope", ()))
        granted = {"access_token": self.token(client_id, scope), "token_type": "Bearer", "expires_in": LIFETIME_S}
        return web.json_response(granted | ({"scope": scope} if scope else {}), headers=_NO_STORE)

    def _is_known(self, client_id: str, secret: str) -> bool:
        known = self._passwords.get(client_id, "")
        return compare_digest(known.encode(), secret.encode()) and bool(known)

    def token(self, subject: str, scope: str = "") -> str:
        """A token for a user."""
        from joserfc import jwt

        now_s = self._clock.now_ms() // 1000
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "sub": subject,
            "aud": self._audience,
            "iat": now_s,
            "exp": now_s + LIFETIME_S,
            "jti": self._random_bytes(_ID_BYTES).hex(),
        }
        if scope:
            claims["scope"] = scope
        return jwt.encode({"alg": ALGORITHM, "kid": self._key.kid}, claims, self._key, algorithms=[ALGORITHM])


def _credentials(authorization: str, form: Mapping[str, list[str]]) -> tuple[str, str]:
    """The client's id and secret, from the header or from the form (RFC 6749, section 2.3.1); empty where invalid."""
    if not authorization:
        return form.get("client_id", [""])[0], form.get("client_secret", [""])[0]
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        client_id, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return unquote_plus(client_id), unquote_plus(secret)


def _refusal(error: str, status: int) -> web.Response:
    headers = {"WWW-Authenticate": "Basic realm=oauth"} if status == 401 else {}
    return web.json_response({"error": error}, status=status, headers=headers | _NO_STORE)


def key_set_text(issuer: Issuer) -> str:
    """The JWK set as a file has it."""
    return json.dumps(issuer.key_set(), indent=2) + "\n"
