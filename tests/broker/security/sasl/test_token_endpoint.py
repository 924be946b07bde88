"""The tokens of a broker: the grant of client credentials, files, and unsecured ones."""

import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import pytest

from barnabas.broker.security.sasl.token_endpoint import (
    ClientCredentials,
    OwnToken,
    TokenUnavailable,
    UnsecuredTokens,
    own_token,
    retrieve,
)
from barnabas.broker.security.sasl.unsecured_jwt import UnsecuredJwtValidator, claims_of
from barnabas.clock import ManualClock

SECRET: Final = "a secret: +ü"
CREDENTIALS: Final = ClientCredentials("the client", SECRET, "one two")

pytestmark = pytest.mark.anyio


@contextmanager
def serving(status: int, content: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A token endpoint that answers each request the same; its URL, and the requests."""
    requests: list[Any] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, self.headers, body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token?tenant=1", requests
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 201])
def test_client_credentials(status: int) -> None:
    """The request of RFC 6749, section 4.4.2, with the client's secret in its header."""
    with serving(status, b'{"access_token": " a.b.c ", "expires_in": 5}') as (url, requests):
        assert retrieve(url, CREDENTIALS, ManualClock()) == "a.b.c"
    [(path, headers, body)] = requests
    assert path == "/token?tenant=1"
    kind, encoded = headers["Authorization"].split()
    assert (kind, b64decode(encoded).decode()) == ("Basic", f"the client:{SECRET}")
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert parse_qs(body.decode()) == {"grant_type": ["client_credentials"], "scope": ["one two"]}


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (401, b'{"error": "invalid_client"}', "status 401"),
        (302, b"", "status 302"),
        (200, b"", "JSONDecodeError"),
        (200, b"\xff", "UnicodeDecodeError"),
        (200, b"[" * 100_000, "RecursionError"),
        (200, b"[]", "there is no token"),
        (200, b"{}", "there is no token"),
        (200, b'{"access_token": 5}', "there is no token"),
        (200, b'{"access_token": " "}', "there is no token"),
        (200, b'{"access_token": "a\\u0001b"}', "there is no token"),
        (200, b'{"access_token": "a b"}', "there is no token"),
    ],
)
def test_refused_credentials(status: int, content: bytes, told: str) -> None:
    """One line that names the key, without the secret, and without the answer, which may have a token."""
    with serving(status, content) as (url, _), pytest.raises(TokenUnavailable, match=told) as failure:
        retrieve(url, CREDENTIALS, ManualClock())
    assert str(failure.value).startswith("sasl.oauthbearer.token.endpoint.url http://127.0.0.1:")
    assert SECRET not in str(failure.value)


def test_no_endpoint() -> None:
    with serving(200, b"") as (url, _):
        pass
    with pytest.raises(TokenUnavailable, match="refused"):
        retrieve(url, CREDENTIALS, ManualClock())


def test_files(tmp_path: Path) -> None:
    """A token in a file, which is read each time."""
    path = tmp_path / "the token"
    path.write_text("a.b.c\n")
    assert retrieve(path.as_uri(), None, ManualClock()) == "a.b.c"
    path.write_text("d.e.f")
    assert retrieve(path.as_uri(), None, ManualClock()) == "d.e.f"
    path.write_text("")
    with pytest.raises(TokenUnavailable, match="there is no token"):
        retrieve(path.as_uri(), None, ManualClock())
    path.unlink()
    with pytest.raises(TokenUnavailable, match="No such file"):
        retrieve(path.as_uri(), None, ManualClock())


def test_secrets_are_not_shown() -> None:
    assert SECRET not in repr(CREDENTIALS)
    assert "a.b.c" not in repr(OwnToken("a.b.c", 0, 1))


# --- unsecured tokens -----------------------------------------------------------------------------


async def test_unsecured_tokens() -> None:
    """The claims of the options, and those of the time; the broker's validator accepts them."""
    clock = ManualClock(5_000)
    options = {
        "unsecuredLoginStringClaim_sub": "broker ü",
        "unsecuredLoginNumberClaim_number": "5",
        "unsecuredLoginListClaim_scope": ",one,two",
        "unsecuredLoginListClaim_none": "",
        "unsecuredLoginLifetimeSeconds": "60",
        "unsecuredValidatorRequiredScope": "two",
    }
    token = UnsecuredTokens(options, clock).make()
    assert claims_of(token) == {
        "sub": "broker ü", "number": 5, "scope": ["one", "two"], "none": [], "iat": 5, "exp": 65,
    }  # fmt: skip
    assert await UnsecuredJwtValidator(options, clock).validate(token) == ("broker ü", 65_000)
    assert own_token(token, clock.now_ms()) == (token, 5_000, 65_000)


def test_lifetime_and_principal() -> None:
    """An hour, unless the options say another time; the principal may be in another claim."""
    options = {"unsecuredLoginPrincipalClaimName": "user", "unsecuredLoginStringClaim_user": "b"}
    token = UnsecuredTokens(options, ManualClock(0)).make()
    assert claims_of(token) == {"user": "b", "iat": 0, "exp": 3600}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "unsecuredLoginStringClaim_sub is not set"),
        ({"unsecuredLoginStringClaim_sub": " "}, "unsecuredLoginStringClaim_sub is not set"),
        ({"unsecuredLoginNumberClaim_sub": "5"}, "unsecuredLoginStringClaim_sub is not set"),
        ({"unsecuredLoginPrincipalClaimName": "user"}, "unsecuredLoginStringClaim_user is not set"),
        ({"unsecuredLoginStringClaim_exp": "5"}, "the claim exp cannot be set"),
        ({"unsecuredLoginNumberClaim_iat": "5"}, "the claim iat cannot be set"),
        ({"unsecuredLoginNumberClaim_x": "y"}, "could not convert"),
        ({"unsecuredLoginNumberClaim_x": "nan"}, "not JSON compliant"),
        ({"unsecuredLoginLifetimeSeconds": "x"}, "invalid literal"),
        ({"unsecuredLoginStringClaim_sub": "b", "unsecuredLoginLifetimeSeconds": "0"}, "must be positive"),
    ],
)
def test_refused_options(options: Mapping[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        UnsecuredTokens(options, ManualClock())


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c", "a.bnVsbA.c", "a.e30.c", "a.eyJleHAiOiJ4In0.c"])
def test_unreadable_tokens(token: str) -> None:
    """No JWT, or one without the time at which it expires."""
    with pytest.raises(TokenUnavailable, match="the token for logging in to other brokers"):
        own_token(token, 0)


def test_expired_tokens() -> None:
    clock = ManualClock(0)
    token = UnsecuredTokens({"unsecuredLoginStringClaim_sub": "b", "unsecuredLoginLifetimeSeconds": "1"}, clock).make()
    assert own_token(token, 999).expires_ms == 1_000
    with pytest.raises(TokenUnavailable, match="has expired"):
        own_token(token, 1_000)


def test_claims_are_json() -> None:
    """Quotes and backslashes of options arrive as they are."""
    options = {"unsecuredLoginStringClaim_sub": 'a"b\\c'}
    assert claims_of(UnsecuredTokens(options, ManualClock()).make())["sub"] == 'a"b\\c'
