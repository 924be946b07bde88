"""Brokers that log in to each other by SASL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from barnabas.broker.configuration.config import load
from barnabas.broker.network.peer_connection import PeerConnection, PeerLogin, PeerUnavailable
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.making_clients import ClientSources, make_client
from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.broker.security.sasl.plain import Client, Credentials
from barnabas.broker.security.sasl.scram import Client as ScramClient
from barnabas.broker.security.sasl.token_endpoint import UnsecuredTokens
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock, SystemClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.threads import OneThread, OsThreads
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata import MetadataRequest
from tests.broker.running import running
from tests.broker.sasl_clients import ALICE, add_scram_user, sasl_listener
from tests.broker.whole.cluster import ONE_REPLICA, Cluster
from tools.waiting import until

CREDENTIALS: Final = {"username": "brokers", "password": "b-secret"}
TOKEN_OPTIONS: Final = {"unsecuredLoginStringClaim_sub": "brokers", "unsecuredLoginLifetimeSeconds": "600"}
"""Unsecured tokens of ten minutes."""
LISTENERS: Final = {
    **ONE_REPLICA,
    "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def a_cluster(data_dir: Path) -> AsyncIterator[Cluster]:
    store = EmbeddedStore(":memory:", SystemClock(), is_durable=False)
    await store.open()
    cluster = Cluster(data_dir, store)
    try:
        yield cluster
    finally:
        await cluster.close()
        await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_brokers_replicate(tmp_path: Path, mechanism: str) -> None:
    """Each logs in as the user of its JAAS line, and sends its secret as well: the others know which broker it is."""
    options = {**CREDENTIALS, **({"user_brokers": "b-secret"} if mechanism == "PLAIN" else {})}
    if mechanism == "OAUTHBEARER":
        options = TOKEN_OPTIONS
    configs = {
        **LISTENERS,
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.brokers.{mechanism.lower()}.sasl.jaas.config": jaas.LoginModule(
            jaas.LOGIN_MODULES[mechanism], options=options
        ).line(),
    }
    async with a_cluster(tmp_path) as cluster:
        first = await cluster.start(1, **configs)
        if mechanism.startswith("SCRAM"):
            await add_scram_user(first, "brokers", "b-secret", mechanism)
        second = await cluster.start(2, **configs)
        assert await cluster.create("t", 1, 2) is ErrorCode.NONE
        await until(lambda: sorted(cluster.in_sync("t")) == [1, 2])

        def identities() -> set[tuple[int, int, str]]:
            return {
                (broker.node_id, each.session.broker_id, each.session.principal)
                for broker in (first, second)
                for each in broker.connections
                if each.session.listener.name == "BROKERS"
            }

        expected = {(1, 2, "User:brokers"), (2, 1, "User:brokers")}
        await until(lambda: identities() and identities() <= expected, identities)


@asynccontextmanager
async def peer(broker: Broker, mechanism: ClientMechanism) -> AsyncIterator[PeerConnection]:
    port = broker.socket_server.ports["CLIENTS"]
    login = PeerLogin(mechanism, OsThreads())
    credentials = credentials_of_broker(7, "x")
    found = PeerConnection(
        broker.environment.network,
        lambda: ("127.0.0.1", port),
        broker.timers,
        "broker-7-test",
        30_000,
        credentials=credentials,
        login=login,
    )
    try:
        yield found
    finally:
        found.close()


async def test_sessions_are_renewed(tmp_path: Path) -> None:
    """Before its end, without a request; where others have no use for secrets, none is an error."""
    async with running(tmp_path, **sasl_listener(), **{"connections.max.reauth.ms": "60000"}) as broker:
        assert isinstance(broker.clock, ManualClock)
        counts = broker.services.sasl.listeners["CLIENTS"].counts
        async with peer(broker, ALICE) as connection:
            for renewals in range(3):
                assert (await connection.send(MetadataRequest(), 8)).brokers
                assert connection.sent_count == renewals + 1
                broker.clock.advance(52_000)
                await broker.settle()
                await until(lambda count=renewals + 1: counts.succeeded_again == count)
        assert counts.succeeded == 1


def token_client(clock: ManualClock, **keys: object) -> ClientMechanism:
    """OAUTHBEARER as a broker of this configuration uses it."""
    line = jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE, options=TOKEN_OPTIONS).line()
    config = load(
        options={
            **sasl_listener("OAUTHBEARER", oauthbearer=line),
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            **{key: str(value) for key, value in keys.items()},
        }
    )
    return make_client("CLIENTS", config.value_for_listener, ClientSources(clock, OneThread(), bytes))


async def test_tokens_are_renewed(tmp_path: Path) -> None:
    """A session lasts as long as its token, and is renewed before its end, with a token that lasts longer."""
    line = jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE).line()
    async with running(tmp_path, **sasl_listener("OAUTHBEARER", oauthbearer=line)) as broker:
        assert isinstance(broker.clock, ManualClock)
        counts = broker.services.sasl.listeners["CLIENTS"].counts
        async with peer(broker, token_client(broker.clock)) as connection:
            for renewals in range(4):
                assert (await connection.send(MetadataRequest(), 8)).brokers
                broker.clock.advance(511_000)
                await broker.settle()
                await until(lambda count=renewals + 1: counts.succeeded_again == count)
        assert (counts.succeeded, counts.failed, counts.failed_again) == (1, 0, 0)


async def test_without_a_token(tmp_path: Path) -> None:
    """Requests fail with the reason, and no connection logs in, until there is a token."""
    token = tmp_path / "token"
    line = jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE, options=TOKEN_OPTIONS).line()
    async with running(tmp_path / "data", **sasl_listener("OAUTHBEARER", oauthbearer=line)) as broker:
        assert isinstance(broker.clock, ManualClock)
        client = token_client(broker.clock, **{"sasl.oauthbearer.token.endpoint.url": token.as_uri()})
        async with peer(broker, client) as connection:
            answers = [connection.send(MetadataRequest(), 8) for _ in range(2)]
            for answer in answers:
                with pytest.raises(PeerUnavailable, match=r"cannot be logged in to: sasl\.oauthbearer\.token"):
                    await answer
            token.write_text(UnsecuredTokens(TOKEN_OPTIONS, broker.clock).make())
            broker.clock.advance(1_000)
            assert (await connection.send(MetadataRequest(), 8)).brokers


@pytest.mark.parametrize(
    ("mechanism", "told"),
    [
        (Client(Credentials("alice", "wrong")), "refuses the login of this broker: Authentication failed: Invalid"),
        (ScramClient("SCRAM-SHA-256", Credentials("alice", "wrong"), bytes), "refuses the login of this broker: Auth"),
    ],
)
async def test_refused_logins(tmp_path: Path, mechanism: ClientMechanism, told: str) -> None:
    """Requests fail with the message of the other broker, those behind the first one, too."""
    async with (
        running(tmp_path, **sasl_listener(), **{"connection.failed.authentication.delay.ms": "0"}) as broker,
        peer(broker, mechanism) as connection,
    ):
        answers = [connection.send(MetadataRequest(), 8) for _ in range(2)]
        for answer in answers:
            with pytest.raises(PeerUnavailable, match=told):
                await answer
        assert connection.waiting_count == 0
