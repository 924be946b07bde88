"""The messages of OAUTHBEARER."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from barnabas.broker.security.sasl.oauthbearer import Client, InvalidToken, OAuthBearer, Token, parse_initial

pytestmark = pytest.mark.anyio


async def validate(token: str) -> Token:
    """Accepts the token of alice."""
    if token == "poor":
        raise InvalidToken("too little", "insufficient_scope", "[a, b]")
    if token != "good":
        raise InvalidToken("another token")
    return Token("alice", 5_000)


async def test_a_good_token() -> None:
    """The login has one message, and ends when the token does."""
    exchange, client = OAuthBearer(validate).start(), Client(lambda: "good").start()
    assert await exchange.take(client.first()) == b""
    assert client.answer(b"") is None
    assert exchange.identity == Identity("alice", expires_ms=5_000)


@pytest.mark.parametrize(
    ("token", "told"),
    [("bad", {"status": "invalid_token"}), ("poor", {"status": "insufficient_scope", "scope": "[a, b]"})],
)
async def test_a_bad_token(token: str, told: dict[str, str]) -> None:
    """The client is told in JSON, replies with 0x01, and is refused with the same text."""
    exchange, client = OAuthBearer(validate).start(), Client(lambda: token).start()
    challenge = await exchange.take(client.first())
    assert json.loads(challenge) == told
    reply = client.answer(challenge)
    assert reply == b"\x01"
    with pytest.raises(AuthenticationFailed) as failed:
        await exchange.take(reply)
    assert failed.value.message == challenge.decode()
    assert exchange.identity is None


async def test_no_second_token() -> None:
    """After a refusal another token is none."""
    exchange = OAuthBearer(validate).start()
    await exchange.take(Client(lambda: "bad").first())
    with pytest.raises(AuthenticationFailed):
        await exchange.take(Client(lambda: "good").first())
    assert exchange.identity is None


async def test_another_authorization_id() -> None:
    """alice cannot act for another user (CVE-2017-12610)."""
    message = b"n,a=%s,\x01auth=Bearer good\x01host=x\x01\x01"
    exchange = OAuthBearer(validate).start()
    assert await exchange.take(message % b"alice") == b""
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        await OAuthBearer(validate).start().take(message % b"admin")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Bearer g\xffd\x01\x01",
        b"n,,\x01host=x\x01\x01",
    ],
)
async def test_invalid_messages(message: bytes) -> None:
    """What is no first message of RFC 7628."""
    with pytest.raises(AuthenticationFailed):
        parse_initial(message)


@given(st.binary())
def test_no_bytes_break_the_parser(message: bytes) -> None:
    """Anything is a message or a failure."""
    with contextlib.suppress(AuthenticationFailed):
        parse_initial(b"n,,\x01" + message + b"\x01\x01")
