"""SaslHandshake and SaslAuthenticate on listeners of SASL: logins, failures, the ends of sessions, and what is served
before."""

import asyncio
import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.broker.configuration.config import ConfigError, load
from barnabas.broker.security.sasl import jaas, oauthbearer, plain
from barnabas.broker.security.sasl.mechanism import MESSAGE_BYTES_MAX
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.running import running
from tests.broker.sasl_clients import ALICE, BOB, Wire, add_scram_user, sasl_listener, wire
from tools.waiting import until

VERSIONS: Final = ApiVersionsRequest(client_software_name="a", client_software_version="1")
AT_ONCE: Final = {"connection.failed.authentication.delay.ms": "0"}
RENEWED: Final = {"connections.max.reauth.ms": "60000"}

pytestmark = pytest.mark.anyio


def clock_of(broker: Broker) -> ManualClock:
    assert isinstance(broker.clock, ManualClock)
    return broker.clock


def session_of(broker: Broker) -> Any:
    (found,) = (each.session for each in broker.connections)
    return found


async def is_served(client: Wire) -> bool:
    return bool((await client.ask(MetadataRequest(), 8)).brokers)


async def test_plain(tmp_path: Path) -> None:
    """With the right password the client has a principal, and is served; also requests larger than before."""
    async with running(tmp_path, **sasl_listener()) as broker, wire(broker) as client:
        answer = await client.log_in(ALICE)
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert await is_served(client)
        (connection,) = broker.connections
        assert connection._dispatcher is broker.dispatcher  # a session without an end costs nothing more
        session = session_of(broker)
        assert (session.principal, session.sasl_mechanism) == ("User:alice", "PLAIN")
        names = [CreatableTopic(name="x" * 1_000, num_partitions=1, replication_factor=1) for _ in range(600)]
        assert (await client.ask(CreateTopicsRequest(topics=names, validate_only=True), 5)).topics


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram(tmp_path: Path, mechanism: str) -> None:
    """The credentials of the metadata store count, as they are when a client logs in."""
    client = Client(mechanism, Credentials("ca,r=ol", "c-secret"), bytes)
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker:
        async with wire(broker) as early:
            assert (await early.log_in(client)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await add_scram_user(broker, "ca,r=ol", "c-secret", mechanism)
        async with wire(broker) as later:
            assert (await later.log_in(client)).error_code == 0
            assert session_of(broker).principal == "User:ca,r=ol"
            assert await is_served(later)


async def test_messages_without_headers(tmp_path: Path) -> None:
    """After SaslHandshake 0 messages and answers have their length only."""
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker:
        await add_scram_user(broker, "carol", "c-secret")
        for password, is_right in (("c-secret", True), ("wrong", False)):
            async with wire(broker) as client:
                assert (await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 0)).error_code == 0
                exchange = Client("SCRAM-SHA-256", Credentials("carol", password), bytes).start()
                client.send_token(exchange.first())
                final = exchange.answer(await client.receive_token())
                assert final is not None
                client.send_token(final)
                if is_right:
                    assert exchange.answer(await client.receive_token()) is None
                    assert await is_served(client)
                else:
                    assert await client.is_closed()
        async with wire(broker) as client:
            await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
            client.send_token(ALICE.first())
            assert await client.receive_token() == b""
            assert await is_served(client)


async def test_what_is_served_before(tmp_path: Path) -> None:
    """ApiVersions, before and after the handshake; anything else closes the connection."""
    async with running(tmp_path, **sasl_listener()) as broker:
        for handshake in (None, SaslHandshakeRequest(mechanism="PLAIN")):
            for request, version in ((MetadataRequest(), 8), (SaslAuthenticateRequest(), 2)):
                async with wire(broker) as client:
                    assert (await client.ask(VERSIONS, 3)).error_code == 0
                    if handshake is not None:
                        assert (await client.ask(handshake, 1)).error_code == 0
                        assert (await client.ask(VERSIONS, 3)).error_code == 0
                    if isinstance(request, SaslAuthenticateRequest):
                        continue
                    client.send(request, version)
                    assert await client.is_closed()
        async with wire(broker) as client:
            answer = await client.ask(SaslAuthenticateRequest(auth_bytes=ALICE.first()), 2)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            client.send(MetadataRequest(), 8)
            assert await client.is_closed()


@pytest.mark.parametrize("version", [0, 8, 13])
async def test_metadata_in_the_middle_of_a_login(tmp_path: Path, version: int) -> None:
    """Clients that take a challenge for a success are told of their error with each topic, after the delay of failed
    logins; the connection is closed."""
    topics = [MetadataRequestTopic(name="a"), MetadataRequestTopic(name="b")]
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker, wire(broker) as client:
        await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        first = Client("SCRAM-SHA-256", Credentials("alice", "x"), bytes).start().first()
        assert (await client.ask(SaslAuthenticateRequest(auth_bytes=first), 2)).error_code == 0
        answer = await client.ask(MetadataRequest(topics=topics), version)
        assert [(each.name, each.error_code, each.partitions) for each in answer.topics] == [
            ("a", ErrorCode.ILLEGAL_SASL_STATE, []),
            ("b", ErrorCode.ILLEGAL_SASL_STATE, []),
        ]
        assert answer.brokers == []
        assert await client.is_closed()
        assert broker.services.sasl.listeners["CLIENTS"].counts.failed == 1


async def test_requests_behind_a_failed_login(tmp_path: Path) -> None:
    """Requests that are sent without waiting are served after a login, and not after a failure."""
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker:
        for login, is_right in ((ALICE, True), (plain.Client(Credentials("alice", "wrong")), False)):
            async with wire(broker) as client:
                client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                client.send(SaslAuthenticateRequest(auth_bytes=login.first()), 2)
                client.send(MetadataRequest(), 8)
                assert (await client.receive(17, 1)).error_code == 0
                assert ((await client.receive(36, 2)).error_code == 0) is is_right
                if is_right:
                    assert (await client.receive(3, 8)).brokers
                else:
                    assert await client.is_closed()


async def test_unsupported_mechanism(tmp_path: Path) -> None:
    """The enabled mechanisms are listed, and the connection is closed."""
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker:
        for version in (0, 1):
            async with wire(broker) as client:
                answer = await client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), version)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
                assert await client.is_closed()


async def test_mechanisms_of_a_listener(tmp_path: Path) -> None:
    """Each listener has its own, and those users."""
    configs = {
        **sasl_listener("PLAIN"),
        **AT_ONCE,
        "listeners": "CLIENTS://127.0.0.1:0,OTHERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,OTHERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "listener.name.others.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    async with running(tmp_path, **configs) as broker:
        for listener, mechanism in (("CLIENTS", "PLAIN"), ("OTHERS", "SCRAM-SHA-512")):
            async with wire(broker, listener) as client:
                assert (await client.ask(SaslHandshakeRequest(mechanism="X"), 1)).mechanisms == [mechanism]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_failures(tmp_path: Path, version: int) -> None:
    """Kafka's messages, in each version; then the connection is closed."""
    general = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512"
    cases: list[tuple[Any, str]] = [
        (plain.Client(Credentials("alice", "x")), "Authentication failed: Invalid username or password"),
        (plain.Client(Credentials("carol", "x")), "Authentication failed: Invalid username or password"),
        (Client("SCRAM-SHA-512", Credentials("carol", "x"), bytes), general),
    ]
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker:
        for login, told in cases:
            async with wire(broker) as client:
                answer = await client.log_in(login, version)
                assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, told)
                assert await client.is_closed()
        counts = broker.services.sasl.listeners["CLIENTS"].counts
        assert (counts.succeeded, counts.failed) == (0, 3)


async def test_failures_are_delayed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By connection.failed.authentication.delay.ms, and twice as long each time, until a login succeeds."""
    wrong = SaslAuthenticateRequest(auth_bytes=plain.encode(Credentials("alice", "wrong")))
    async with running(tmp_path, **sasl_listener()) as broker:
        counts, failures = broker.services.sasl.listeners["CLIENTS"].counts, 0
        for delay_ms in (100, 200, 400, 0, 100):
            async with wire(broker) as client:
                if not delay_ms:
                    await client.log_in(ALICE)
                    continue
                await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                client.send(wrong, 2)
                answer = asyncio.create_task(client.receive(36, 2))
                failures += 1
                await until(lambda count=failures: counts.failed == count)
                clock_of(broker).advance(delay_ms - 1)
                await broker.settle()
                assert not answer.done()
                clock_of(broker).advance(1)
                await broker.settle()
                assert (await answer).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "wrong" not in caplog.text


async def test_requests_before_the_login_are_small(tmp_path: Path) -> None:
    """A length above sasl.server.max.receive.size closes the connection before anything is allocated."""
    limit = {"sasl.server.max.receive.size": "1000"}
    async with running(tmp_path, **sasl_listener(), **limit) as broker:
        async with wire(broker) as client:
            client.writer.write(struct.pack(">i", 1_001))
            assert await client.is_closed()
        async with wire(broker) as client:
            await client.log_in(ALICE)
            names = [MetadataRequestTopic(name=f"topic-{number}") for number in range(200)]
            request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
            assert len((await client.ask(request, 8)).topics) == 200


async def test_messages_of_a_login_are_small(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The length alone is the reason: such a message is not looked into."""
    long = plain.Client(Credentials("alice", "x" * MESSAGE_BYTES_MAX))
    async with running(tmp_path, **sasl_listener(), **AT_ONCE) as broker, wire(broker) as client:
        assert (await client.log_in(long)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()
    assert f"a message of {len(long.first())} bytes; {MESSAGE_BYTES_MAX} are allowed" in caplog.text


async def test_sessions_end(tmp_path: Path) -> None:
    """The client is told the lifetime; after it the next request closes the connection."""
    async with running(tmp_path, **sasl_listener(), **RENEWED) as broker:
        for request, version in ((MetadataRequest(), 8), (SaslAuthenticateRequest(), 2), (VERSIONS, 3)):
            async with wire(broker) as client:
                assert (await client.log_in(ALICE)).session_lifetime_ms == 60_000
                clock_of(broker).advance(60_000)
                assert await is_served(client)
                clock_of(broker).advance(1)
                client.send(request, version)
                assert await client.is_closed()


async def test_reauthentication(tmp_path: Path) -> None:
    """The client may authenticate again, also after the end, but not within a second (KIP-368)."""
    async with running(tmp_path, **sasl_listener(), **RENEWED) as broker, wire(broker) as client:
        await client.log_in(ALICE)
        for wait_ms in (30_000, 70_000):
            clock_of(broker).advance(wait_ms)
            assert (await client.log_in(ALICE)).session_lifetime_ms == 60_000
            assert await is_served(client)
        clock_of(broker).advance(999)
        again = SaslHandshakeRequest(mechanism="PLAIN")
        assert (await client.ask(again, 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(client)
        clock_of(broker).advance(1)
        assert (await client.ask(again, 1)).error_code == 0
        client.send(MetadataRequest(), 8)
        assert await client.is_closed()
        counts = broker.services.sasl.listeners["CLIENTS"].counts
        assert (counts.succeeded, counts.succeeded_again, counts.failed_again) == (1, 2, 0)


async def test_reauthentication_as_somebody_else(tmp_path: Path) -> None:
    """Neither the principal nor the mechanism may change; both fail with Kafka's messages."""
    async with running(tmp_path, **sasl_listener(), **RENEWED, **AT_ONCE) as broker:
        await add_scram_user(broker, "alice", "a-secret")
        cases = {
            "Cannot change principals during re-authentication from User.alice: User.bob": BOB,
            "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism"
            " 'PLAIN'": Client("SCRAM-SHA-256", Credentials("alice", "a-secret"), bytes),
        }
        for told, other in cases.items():
            async with wire(broker) as client:
                await client.log_in(ALICE)
                answer = await client.log_in(other)
                assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, told)
                assert await client.is_closed()
        assert broker.services.sasl.listeners["CLIENTS"].counts.failed_again == 2


async def test_no_reauthentication_of_sessions_that_do_not_end(tmp_path: Path) -> None:
    """Both requests are refused, and the session goes on, as in Kafka."""
    async with running(tmp_path, **sasl_listener()) as broker, wire(broker) as client:
        await client.log_in(ALICE)
        for request, version in ((SaslHandshakeRequest(mechanism="PLAIN"), 1), (SaslAuthenticateRequest(), 2)):
            assert (await client.ask(request, version)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(client)


async def test_listeners_without_sasl(tmp_path: Path) -> None:
    """A listener without SASL refuses both requests, as Kafka's."""
    async with running(tmp_path) as broker, wire(broker, "PLAINTEXT") as client:
        for request, version in ((SaslHandshakeRequest(mechanism="PLAIN"), 1), (SaslAuthenticateRequest(), 2)):
            assert (await client.ask(request, version)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(client)


async def test_oauthbearer(tmp_path: Path) -> None:
    """Tokens signed by a key of the JWK set; the session ends with the token."""
    key = RSAKey.generate_key(2048, {"kid": "one"})
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    configs = {
        **sasl_listener("OAUTHBEARER"),
        **AT_ONCE,
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "listener.name.clients.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
    }
    async with running(tmp_path / "data", **configs) as broker:
        now_s = clock_of(broker).now_ms() // 1000
        claims = {"sub": "alice", "iat": now_s, "exp": now_s + 60, "aud": "kafka"}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)
        async with wire(broker) as client:
            answer = await client.log_in(oauthbearer.Client(lambda: token))
            assert answer.error_code == 0
            assert 59_000 < answer.session_lifetime_ms <= 60_000
            assert session_of(broker).principal == "User:alice"
            assert await is_served(client)
            clock_of(broker).advance(60_001)
            client.send(MetadataRequest(), 8)
            assert await client.is_closed()
        async with wire(broker) as client:
            clock_of(broker).advance(30_000)
            answer = await client.log_in(oauthbearer.Client(lambda: token))
            assert (answer.error_code, json.loads(answer.error_message)) == (
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                {"status": "invalid_token"},
            )


PLAIN_HANDLER: Final = "org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler"
OAUTHBEARER_LINE: Final = jaas.LoginModule(
    jaas.OAUTHBEARER_LOGIN_MODULE, options={"ssl.truststore.location": "/x"}
).line()
SCRAM_LINE: Final = jaas.LoginModule(jaas.SCRAM_LOGIN_MODULE).line()


@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI"),
        ({"sasl.enabled.mechanisms": "PLAIN,X"}, "X is not one of PLAIN, SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
        ({"listener.name.clients.plain.sasl.jaas.config": "x"}, "sasl.jaas.config for PLAIN: "),
        ({"listener.name.clients.plain.sasl.jaas.config": SCRAM_LINE}, "PLAIN needs org.apache.kafka"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "ftp://x"},
            "not a URL that begins with",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "https://x/",
                "listener.name.clients.oauthbearer.sasl.jaas.config": OAUTHBEARER_LINE,
            },
            "SSL_CERT_FILE",
        ),
        ({"sasl.server.callback.handler.class": "a.B"}, "other Java classes cannot be loaded"),
        (
            {"listener.name.clients.scram-sha-256.sasl.server.callback.handler.class": PLAIN_HANDLER},
            "for SCRAM-SHA-256 names a Java class",
        ),
    ],
)
def test_configurations_that_cannot_work(configs: dict[str, str], told: str) -> None:
    """One line, before the start, that names the key."""
    with pytest.raises(ConfigError) as refused:
        load(options={**sasl_listener(), **configs})
    (problem,) = refused.value.problems
    assert told in problem
