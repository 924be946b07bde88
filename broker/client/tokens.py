"""Bearer tokens for OAUTHBEARER, and the client's message of this mechanism (RFC 7628).

A token comes from a file, from the client credentials grant of an issuer (RFC 6749, section 4.4; Kafka's
ClientCredentialsJwtRetriever), or is an unsecured one (OAuthBearerUnsecuredLoginCallbackHandler), which brokers accept
for development alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import Tls, TokenLogin
from barnabas.broker.client.tls import client_context, sentence
from barnabas.clock import SystemClock

RESPONSE_BYTES_MAX: Final = 1024 * 1024
ANSWER_S: Final = 30.0
_UNSECURED_S: Final = 3600
_SEPARATOR: Final = "\x01"

REFUSAL_ANSWER: Final = _SEPARATOR.encode()
"""The client's response to a refusal in the server's message (RFC 7628, section 3.2.3)."""


def initial_message(token: str, login: TokenLogin) -> bytes:
    """The client's message with a token and extensions."""
    pairs = (f"{key}={value}{_SEPARATOR}" for key, value in login.extensions)
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{''.join(pairs)}{_SEPARATOR}".encode()


async def token_of(login: TokenLogin) -> str:
    """A token for a login. Errors: ClientError."""
    if login.unsecured_subject:
        return _unsecured(login.unsecured_subject, login.scope, SystemClock().now_ms() // 1000)
    url = urllib.parse.urlsplit(login.endpoint_url)
    if url.scheme == "file":
        return _token_in(Path(urllib.request.url2pathname(url.path)))
    if url.scheme not in ("http", "https"):
        raise ClientError(f"{login.endpoint_url} is no token endpoint: expected an https, http or file URL")
    return await asyncio.to_thread(_granted, login)


def _unsecured(subject: str, scope: str, now_s: int) -> str:
    claims: dict[str, Any] = {"sub": subject, "iat": now_s, "exp": now_s + _UNSECURED_S}
    if scope:
        claims["scope"] = scope.split()
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def _encoded(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")


def _token_in(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"the token file {path} cannot be read: {error}") from error
    if not token:
        raise ClientError(f"the token file {path} is empty")
    return token


def _granted(login: TokenLogin) -> str:
    """The token of the client credentials grant; blocks. Errors: ClientError."""
    where = f"the token endpoint {login.endpoint_url}"
    form = {"grant_type": "client_credentials"} | ({"scope": login.scope} if login.scope else {})
    client = [login.client_id, login.client_secret]
    if login.header_urlencode:
        client = [urllib.parse.quote_plus(each) for each in client]
    try:
        request = urllib.request.Request(
            login.endpoint_url,
            urllib.parse.urlencode(form).encode(),
            {
                "Accept": "application/json",
                "Authorization": f"Basic {base64.b64encode(':'.join(client).encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        context = client_context(login.tls or Tls()) if request.type == "https" else None
        with urllib.request.urlopen(request, timeout=ANSWER_S, context=context) as response:
            document = json.loads(response.read(RESPONSE_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        advice = ": check the client's id and secret" if error.code in (400, 401, 403) else ""
        raise ClientError(f"{where} refuses with status {error.code}{advice}") from error
    except urllib.error.URLError as error:
        cause = error.reason if isinstance(error.reason, OSError) else error
        told = sentence(cause, login.endpoint_url, login.tls or Tls())
        raise ClientError(f"{where} cannot be reached: {told or error.reason}") from error
    except (OSError, ValueError) as error:
        raise ClientError(f"{where} does not answer as one: {error}") from error
    token = document.get("access_token") if isinstance(document, dict) else None
    if not isinstance(token, str) or not token:
        raise ClientError(f"{where} answers without an access_token")
    return token
