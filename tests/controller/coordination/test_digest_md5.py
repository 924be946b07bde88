"""DIGEST-MD5 on both sides: RFC 2831's example, any names and passwords, and what is no login."""

import contextlib
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.controller.coordination.digest_md5 import (
    MESSAGE_BYTES_MAX,
    DigestMd5Client,
    DigestMd5Error,
    DigestMd5Login,
    DigestMd5Server,
    _Exchange,
    parse,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def counting(count: int) -> bytes:
    return bytes(range(count))


def login(username: str, password: str, users: dict[str, str]) -> tuple[DigestMd5Client, DigestMd5Server]:
    """Both sides after a whole login. Raises DigestMd5Error."""
    client, server = DigestMd5Client(DigestMd5Login(username, password, counting)), DigestMd5Server(users.get, counting)
    token = client.respond(server.respond(b""))
    assert client.respond(server.respond(token)) == b""
    return client, server


@given(username=NAMES, password=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_names_and_passwords(username: str, password: str) -> None:
    """Quotes, backslashes, commas and letters beyond ISO 8859-1 included."""
    client, server = login(username, password, {username: password})
    assert client.is_complete
    assert server.username == username


@given(password=NAMES, other=NAMES)
def test_wrong_password(password: str, other: str) -> None:
    if password != other:
        with pytest.raises(DigestMd5Error, match="a wrong user or password"):
            login("kafka", password, {"kafka": other})
    with pytest.raises(DigestMd5Error, match="a wrong user or password"):
        login("nobody", password, {"kafka": password})


def test_rfc_2831_example() -> None:
    """Section 4, with its names in place of ZooKeeper's; response and `rspauth` are those of the text."""

    def md5(text: bytes) -> bytes:
        return hashlib.md5(text, usedforsecurity=False).digest()

    exchange = _Exchange("chris", "elwood.innosoft.com", "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk", None)
    secret = exchange.secret("secret")
    uri = "imap/elwood.innosoft.com"
    found = []
    for method in ("AUTHENTICATE", ""):
        a2 = md5(f"{method}:{uri}".encode()).hex()
        found.append(md5(f"{secret}:OA6MG9tEQGm2hh:00000001:OA6MHXh6VqTrRk:auth:{a2}".encode()).hex())
    assert found == ["d388dad90d4bbd760a152321f2143af7", "ea40f60335c427b5527b84dbabcdfffd"]


def test_authorization_id() -> None:
    """Java's client of ZooKeeper sends one; it is part of the proof."""
    server = DigestMd5Server({"kafka": "secret"}.get, counting)
    nonce = parse(server.respond(b""))["nonce"]
    exchange = _Exchange("kafka", "zk-sasl-md5", nonce, "client", "kafka")
    proof = exchange.proof(exchange.secret("secret"), "AUTHENTICATE")
    server.respond(
        f'charset=utf-8,username="kafka",realm="zk-sasl-md5",nonce="{nonce}",nc=00000001,cnonce="client",'
        f'digest-uri="zookeeper/zk-sasl-md5",maxbuf=65536,response={proof},qop=auth,authzid="kafka"'.encode()
    )
    assert server.username == "kafka"


def test_challenge_of_java() -> None:
    """With white space, several realms and qualities, as RFC 2831 allows."""
    client = DigestMd5Client(DigestMd5Login("kafka", "secret", counting))
    response = client.respond(
        b' realm="zk-sasl-md5" , realm="other",nonce="a\\"b", qop="auth,auth-int", charset=utf-8,algorithm=md5-sess,'
    )
    assert parse(response)["nonce"] == 'a"b'
    assert parse(response)["realm"] == "zk-sasl-md5"


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b'nonce="x"',
        b'realm="x",algorithm=md5-sess',
        b'nonce="x",algorithm=md5-sess,qop="auth-conf"',
        b"\xff",
        b"nonce",
        b'nonce="x',
        b"nonce=x,nonce=y,algorithm=md5-sess",
        b"a=" + b"b" * MESSAGE_BYTES_MAX,
    ],
)
def test_no_challenge(challenge: bytes) -> None:
    with pytest.raises(DigestMd5Error):
        DigestMd5Client(DigestMd5Login("kafka", "secret", counting)).respond(challenge)


def test_a_server_that_proves_nothing() -> None:
    """It may be another than ZooKeeper, which does not know the password."""
    client, server = DigestMd5Client(DigestMd5Login("kafka", "secret", counting)), DigestMd5Server({}.get, counting)
    client.respond(server.respond(b""))
    with pytest.raises(DigestMd5Error, match="the server does not know the password"):
        client.respond(b"rspauth=" + b"0" * 32)
    assert not client.is_complete


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nonce", '"other"'),
        ("nc", "00000002"),
        ("digest-uri", '"zookeeper/elsewhere"'),
        ("realm", '"other"'),
        ("qop", "auth-int"),
        ("cnonce", '""'),
        ("response", "0" * 32),
    ],
)
def test_responses_of_another_kind(name: str, value: str) -> None:
    """A replay of a former login has another nonce."""
    client = DigestMd5Client(DigestMd5Login("kafka", "secret", counting))
    server = DigestMd5Server({"kafka": "secret"}.get, counting)
    right = client.respond(server.respond(b"")).decode()
    before = next(part for part in right.split(",") if part.startswith(f"{name}="))
    with pytest.raises(DigestMd5Error):
        server.respond(right.replace(before, f"{name}={value}").encode())
    assert server.username is None


@settings(max_examples=200)
@given(first=st.binary(max_size=20), last=st.binary(max_size=300))
def test_no_bytes_break_a_side(first: bytes, last: bytes) -> None:
    """Anything is an error of this mechanism, none an exception of another kind."""
    server = DigestMd5Server({"kafka": "secret"}.get, counting)
    client = DigestMd5Client(DigestMd5Login("kafka", "secret", counting))
    for message in (first, b"", last, last):
        with contextlib.suppress(DigestMd5Error):
            server.respond(message)
        with contextlib.suppress(DigestMd5Error):
            client.respond(message)
    assert server.username is None
    assert not client.is_complete
    assert "secret" not in repr(DigestMd5Login("kafka", "secret", counting))
