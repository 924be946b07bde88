"""The issuer of tokens on the HTTP port: by the client of the commands, and by requests that it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from joserfc import jwk, jwt

from barnabas.broker.cli.authority import Authority
from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import TokenLogin
from barnabas.broker.client.tokens import token_of
from barnabas.broker.http.oauth import Issuer
from barnabas.broker.http.server import HttpServer
from barnabas.clock import ManualClock
from barnabas.network import OsNetwork

KEY = Authority.new("key", 0).key
GRANT = "grant_type=client_credentials"


def served(work: Callable[[str], Awaitable[Any]]) -> Any:
    """The result of `work`, called with the address of an issuer that knows alice."""

    async def scenario() -> Any:
        issuer = Issuer(KEY, {"alice": "pw"}, issuer="here", audience="kafka", clock=ManualClock(), random_bytes=bytes)
        server = HttpServer(issuer.routes(), "127.0.0.1:0", OsNetwork())
        await server.start()
        try:
            return await work(f"http://127.0.0.1:{server.port}/oauth")
        finally:
            await server.stop()

    return asyncio.run(scenario())


async def post(url: str, body: str, authorization: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if authorization is not None:
        headers["Authorization"] = authorization
    async with aiohttp.ClientSession() as session, session.post(f"{url}/token", data=body, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


def test_a_token_that_the_key_set_verifies() -> None:
    async def work(url: str) -> None:
        login = TokenLogin(f"{url}/token", client_id="alice", client_secret="pw", scope="kafka")
        token = await token_of(login)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/jwks") as answer:
            keys = jwk.KeySet.import_key_set(json.loads(await answer.read()))
        claims = jwt.decode(token, keys, algorithms=["ES256"]).claims
        assert (claims["sub"], claims["scope"]) == ("alice", "kafka")

    served(work)


def test_another_secret_is_refused() -> None:
    with pytest.raises(ClientError, match="refuses with status 401"):
        served(lambda url: token_of(TokenLogin(f"{url}/token", client_id="alice", client_secret="other")))


@pytest.mark.parametrize(
    ("body", "authorization", "status", "error"),
    [
        (f"{GRANT}&client_id=alice&client_secret=pw", None, 200, None),
        (f"{GRANT}&client_id=alice&client_secret=", None, 401, "invalid_client"),
        (f"{GRANT}&client_id=&client_secret=", None, 401, "invalid_client"),
        (f"{GRANT}&client_id=bob&client_secret=pw", None, 401, "invalid_client"),
        (GRANT, None, 401, "invalid_client"),
        (GRANT, "Basic YWxpY2U6cHc=", 200, None),
        (GRANT, "Basic YWxpY2U=", 401, "invalid_client"),
        (GRANT, "Basic \u00e4", 401, "invalid_client"),
        (GRANT, "Basic /w==", 401, "invalid_client"),
        (GRANT, "Bearer pw", 401, "invalid_client"),
        ("grant_type=password&username=alice&password=pw", None, 400, "unsupported_grant_type"),
        ("", None, 400, "unsupported_grant_type"),
        ("&".join(f"a{number}=1" for number in range(100)), None, 400, "invalid_request"),
        ("\u00ff" * 10, None, 400, "unsupported_grant_type"),
    ],
)
def test_requests(body: str, authorization: str | None, status: int, error: str | None) -> None:
    answered, document = served(lambda url: post(url, body, authorization))
    assert (answered, document.get("error")) == (status, error)
