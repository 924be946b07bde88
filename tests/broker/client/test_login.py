"""Logins and TLS of the client against a broker of a few lines: mechanisms, refusals, and what each error says."""

from __future__ import annotations

import asyncio
import http.server
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.errors import BrokerUnavailable
from barnabas.broker.client.security import Security, Tls, TokenLogin, UserLogin
from barnabas.broker.client.security_properties import SecurityProperties
from barnabas.wire.errors import ErrorCode
from tests.broker.client.secured_broker import PASSWORD, TOKEN, USER, SecuredBroker


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def context_of(ca: trustme.CA, *names: str, asks: bool = False) -> ssl.SSLContext:
    """A server's context with a certificate for these names; `asks` for one of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        ca.configure_trust(context)
    return context


def trusting(ca: trustme.CA, **others: Any) -> Tls:
    return Tls(trusted=ca.cert_pem.bytes(), **others)


def connect(broker: SecuredBroker, security: Security) -> KafkaClient:
    """A client that has connected and asked, and is closed."""

    async def work() -> KafkaClient:
        async with broker.serving() as address, KafkaClient(address, security=security) as client:
            await client.metadata([])
            return client

    return asyncio.run(work())


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in(mechanism: str) -> None:
    broker = SecuredBroker(mechanisms=MECHANISMS)
    connect(broker, Security(login=UserLogin(USER, PASSWORD, mechanism)))
    assert broker.used == [mechanism]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_without_a_mechanism_the_strongest_is_used(ca: trustme.CA, mechanism: str) -> None:
    offered = MECHANISMS[: MECHANISMS.index(mechanism) + 1]
    broker = SecuredBroker(mechanisms=offered, tls=context_of(ca, "127.0.0.1"))
    connect(broker, Security(trusting(ca), UserLogin(USER, PASSWORD)))
    assert broker.used == [mechanism]


def test_a_user_of_plain_alone(ca: trustme.CA) -> None:
    """The broker offers SCRAM, too, and does not know the user there."""

    class OfPlain(SecuredBroker):
        def _authenticate(self, mechanism: str, scram: Any, message: bytes) -> Any:
            return super()._authenticate(mechanism, scram, message if mechanism == "PLAIN" else b"")

    broker = OfPlain(mechanisms=MECHANISMS, tls=context_of(ca, "127.0.0.1"))
    connect(broker, Security(trusting(ca), UserLogin(USER, PASSWORD)))
    assert broker.used == ["PLAIN"]
    with pytest.raises(ClientError, match="does not accept user alice"):
        connect(OfPlain(mechanisms=MECHANISMS), Security(login=UserLogin(USER, PASSWORD)))


def test_a_password_is_not_sent_in_plain_unless_said() -> None:
    broker = SecuredBroker(mechanisms=["PLAIN"])
    with pytest.raises(ClientError, match=r"offers PLAIN alone, without TLS.*say sasl\.mechanism=PLAIN"):
        connect(broker, Security(login=UserLogin(USER, PASSWORD)))
    assert broker.used == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password(mechanism: str) -> None:
    broker = SecuredBroker(mechanisms=MECHANISMS)
    with pytest.raises(ClientError, match=r"does not accept user alice with this password.*barnabas users password"):
        connect(broker, Security(login=UserLogin(USER, "another", mechanism)))


@pytest.mark.parametrize(
    ("mechanisms", "security", "told"),
    [
        (["SCRAM-SHA-256"], Security(login=UserLogin(USER, PASSWORD, "PLAIN")), "not offer PLAIN, but SCRAM-SHA-256"),
        (["GSSAPI"], Security(login=UserLogin(USER, PASSWORD)), "does not offer SCRAM-SHA-512, but GSSAPI.*knows none"),
        ([], Security(login=UserLogin(USER, PASSWORD, "PLAIN")), "knows no users: leave --user out"),
        (["PLAIN"], Security(), r"closed the connection, as listeners do that ask who you are \(give --user\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit(mechanisms: list[str], security: Security, told: str) -> None:
    with pytest.raises(ClientError, match=told):
        connect(SecuredBroker(mechanisms=mechanisms), security)


def test_a_server_that_does_not_know_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts any proof, and has none of its own."""

    class Impostor(SecuredBroker):
        def _authenticate(self, mechanism: str, scram: Any, message: bytes) -> Any:
            response, is_done = super()._authenticate(mechanism, scram, message)
            if is_done:
                response.auth_bytes = b"v=AAAA"
            return response, is_done

    with pytest.raises(ClientError, match="cannot be believed: the server does not know the password"):
        connect(Impostor(mechanisms=["SCRAM-SHA-512"]), Security(login=UserLogin(USER, PASSWORD)))


def test_a_session_that_ends_is_renewed() -> None:
    """By another connection, after most of its lifetime."""

    async def work() -> None:
        broker = SecuredBroker(mechanisms=["PLAIN"], session_lifetime_ms=1)
        security = Security(login=UserLogin(USER, PASSWORD, "PLAIN"))
        async with broker.serving() as address, KafkaClient(address, security=security) as client:
            before = len(broker.used)
            while len(broker.used) == before:
                await client.metadata([])

    asyncio.run(work())


# --- tokens


def test_an_unsecured_token() -> None:
    broker = SecuredBroker(mechanisms=["OAUTHBEARER"])
    connect(broker, Security(login=TokenLogin(unsecured_subject=USER)))
    assert broker.used == ["OAUTHBEARER"]


def test_a_token_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    broker = SecuredBroker(mechanisms=["OAUTHBEARER"])
    connect(broker, Security(login=TokenLogin(endpoint_url=(tmp_path / "token").as_uri())))
    assert broker.used == ["OAUTHBEARER"]


def test_a_token_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x.y.z")
    with pytest.raises(ClientError, match="does not accept the token: no"):
        connect(
            SecuredBroker(mechanisms=["OAUTHBEARER"]),
            Security(login=TokenLogin(endpoint_url=(tmp_path / "token").as_uri())),
        )


AS_IT_IS, URL_ENCODED = "Basic YXBwOnMvZWNyZXQ=", "Basic YXBwOnMlMkZlY3JldA=="
"""The client app with the secret s/ecret."""


class Issuer(http.server.BaseHTTPRequestHandler):
    """Grants the token to one client."""

    asked: list[tuple[str | None, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked.append((self.headers["Authorization"], body))
        is_known = self.headers["Authorization"] in (AS_IT_IS, URL_ENCODED)
        answer = json.dumps({"access_token": TOKEN} if is_known else {"error": "invalid_client"}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[str]:
    Issuer.asked = []
    with http.server.HTTPServer(("127.0.0.1", 0), Issuer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/token"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("urlencode", "sent"), [("", AS_IT_IS), ("false", AS_IT_IS), ("true", URL_ENCODED)])
def test_a_token_that_is_granted(issuer: str, urlencode: str, sent: str) -> None:
    broker = SecuredBroker(mechanisms=["OAUTHBEARER"])
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": issuer,
        "sasl.oauthbearer.client.id": "app",
        "sasl.oauthbearer.client.secret": "s/ecret",
        "sasl.oauthbearer.scope": "kafka all",
        "sasl.oauthbearer.header.urlencode": urlencode,
    }
    connect(broker, SecurityProperties(properties).security())
    assert Issuer.asked == [(sent, b"grant_type=client_credentials&scope=kafka+all")]
    assert broker.used == ["OAUTHBEARER"]


def test_a_token_that_is_not_granted(issuer: str) -> None:
    login = TokenLogin(issuer, client_id="app", client_secret="another")
    with pytest.raises(ClientError, match=r"/token refuses with status 401: check the client's id and secret"):
        connect(SecuredBroker(mechanisms=["OAUTHBEARER"]), Security(login=login))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "ftp://127.0.0.1/token", "file:///nowhere"])
def test_no_token_endpoint(url: str) -> None:
    with pytest.raises(ClientError, match=r"cannot be reached|no token endpoint|cannot be read"):
        connect(SecuredBroker(mechanisms=["OAUTHBEARER"]), Security(login=TokenLogin(url)))


# --- TLS


def test_tls_with_the_right_ca(ca: trustme.CA) -> None:
    connect(SecuredBroker(tls=context_of(ca, "127.0.0.1")), Security(trusting(ca)))


def test_a_certificate_of_the_client(ca: trustme.CA) -> None:
    own = ca.issue_cert("somebody", common_name="alice")
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    broker = SecuredBroker(tls=context_of(ca, "127.0.0.1", asks=True))
    connect(broker, Security(trusting(ca, chain=chain, key=own.private_key_pem.bytes())))
    assert (("commonName", "alice"),) in broker.peer_certificates[0]["subject"]


def test_a_certificate_for_another_name(ca: trustme.CA) -> None:
    broker = SecuredBroker(tls=context_of(ca, "elsewhere.example"))
    with pytest.raises(ClientError, match=r"is for other names.*ssl\.endpoint\.identification\.algorithm="):
        connect(broker, Security(trusting(ca)))
    connect(broker, Security(trusting(ca, checks_host_name=False)))


def test_a_certificate_of_another_ca(ca: trustme.CA) -> None:
    broker = SecuredBroker(tls=context_of(trustme.CA(), "127.0.0.1"))
    with pytest.raises(ClientError, match="is of another CA than the one given: give the file of its CA with --ca"):
        connect(broker, Security(trusting(ca)))
    with pytest.raises(ClientError, match="of a CA that this system does not know: give the file of its CA with --ca"):
        connect(broker, Security(Tls()))
    connect(broker, Security(Tls(checks_certificate=False)))


def test_no_certificate_where_one_is_asked_for(ca: trustme.CA) -> None:
    """In TLS 1.3 the broker says so after the handshake of the client."""
    broker = SecuredBroker(tls=context_of(ca, "127.0.0.1", asks=True))
    with pytest.raises(ClientError, match=r"asks? for a certificate:? \(?give --certificate and --key"):
        connect(broker, Security(trusting(ca)))


def test_a_plain_listener_asked_by_tls(ca: trustme.CA) -> None:
    """It closes the connection, as a listener with TLS does that has no room for it."""
    with pytest.raises(BrokerUnavailable, match=CLOSED_IN_HANDSHAKE):
        connect(SecuredBroker(), Security(trusting(ca)))


CLOSED_IN_HANDSHAKE = (
    r"^the broker at 127\.0\.0\.1:\d+ closed the connection during the TLS handshake: either the listener does not"
    r" speak TLS \(ask for its TLS listener, or leave TLS out: .*\), or the broker has no room for another"
)


class Peer(SecuredBroker):
    """Reads this many bytes of each connection, answers, and closes it: by a FIN, or by a RST."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, reads: int = 0, answer: bytes = b"", resets: bool = False):
        super().__init__(tls=tls)
        self.reads, self.answer, self.resets = reads, answer, resets

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.reads:
            await reader.read(self.reads)
        writer.write(self.answer)
        await writer.drain()
        if self.resets:
            own = writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.tls is None:
            writer.write_eof()
            await reader.read()


@pytest.mark.parametrize("resets", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("reads", [0, 10_000], ids=["at once", "after the first message"])
def test_a_peer_that_closes_during_the_handshake(ca: trustme.CA, reads: int, resets: bool) -> None:
    with pytest.raises(BrokerUnavailable, match=CLOSED_IN_HANDSHAKE):
        connect(Peer(reads=reads, resets=resets), Security(trusting(ca)))


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x06\0\0\0\1\0\x23"], ids=["HTTP", "Kafka"]
)
def test_a_plain_answer_to_a_handshake(ca: trustme.CA, answer: bytes) -> None:
    """Then it is sure."""
    with pytest.raises(ClientError, match=r"^the listener at \S+ does not speak TLS: ask for its TLS listener") as told:
        connect(Peer(reads=10_000, answer=answer), Security(trusting(ca)))
    assert "no room" not in str(told.value)


@pytest.mark.parametrize("has_certificate", [False, True])
def test_a_peer_that_closes_after_the_handshake(ca: trustme.CA, has_certificate: bool) -> None:
    own = ca.issue_cert("somebody", common_name="alice")
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    identity = {"chain": chain, "key": own.private_key_pem.bytes()} if has_certificate else {}
    why = r"does not accept the client's certificate \(" if has_certificate else r"asks for a certificate \(give --cert"
    told = rf"closed the connection before it answered anything: either it {why}.*, or the broker has no room"
    with pytest.raises(BrokerUnavailable, match=told):
        connect(Peer(context_of(ca, "127.0.0.1"), reads=1), Security(trusting(ca, **identity)))


def test_a_tls_listener_asked_in_plain(ca: trustme.CA) -> None:
    with pytest.raises(ClientError, match="with --ca") as refused:
        connect(SecuredBroker(tls=context_of(ca, "127.0.0.1")), Security())
    assert not isinstance(refused.value, BrokerUnavailable) or "either the listener speaks TLS" in str(refused.value)


def test_a_key_of_another_certificate(ca: trustme.CA) -> None:
    one, another = ca.issue_cert("a.example"), ca.issue_cert("b.example")
    tls = trusting(ca, chain=one.cert_chain_pems[0].bytes(), key=another.private_key_pem.bytes())
    with pytest.raises(ClientError, match="the private key is not that of the client's certificate"):
        KafkaClient("127.0.0.1:1", security=Security(tls))


# --- what is not permitted


def test_a_refusal_is_noted() -> None:
    broker = SecuredBroker(topic_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    [refusal] = connect(broker, Security()).refusals
    assert refusal.advice("alice") == (
        "alice lacks DESCRIBE on topic orders; an administrator grants it with"
        " `barnabas acls add --user alice --describe --topic orders`"
    )
