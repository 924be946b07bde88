"""OAUTHBEARER with an issuer that is not ours, npm's oauth2-mock-server: clients ask it for their tokens by their own
means, and the broker reads its keys by their URL."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from barnabas.broker.configuration.config import load
from barnabas.broker.network.peer_connection import PeerConnection, PeerLogin, PeerUnavailable
from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.making_clients import ClientSources, make_client
from barnabas.broker.timers import Timers
from barnabas.clock import SystemClock
from barnabas.network import OsNetwork
from barnabas.spark_examples.java import JavaMissing, find_java
from barnabas.threads import OsThreads
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.conftest import new_cluster
from compat_tests.java_tools.kafka_tools import MAIN_CLASSES, PATIENCE_MS
from tests.support.required import tool_missing
from tools.foreign.kafka import SMALL_JVM, kafka_runtime
from tools.foreign.languages import ToolchainMissing, find_node, node_modules
from tools.processes import children
from tools.processes.server import ServerProcess
from tools.waiting import PATIENCE_S, wait_until

SOURCES: Final = Path(__file__).parent / "oauth_issuer"
READY: Final = "ready: "
SECRET: Final = "the secret of a client"
HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"

pytestmark = [pytest.mark.slow]


class Issuer(ServerProcess):
    """`oauth_issuer/issuer.js`; `url` is its address. Raises ToolchainMissing, also for a Node.js that is too old."""

    title = "OAuth issuer"

    def __init__(self) -> None:
        self._node = find_node()
        version = children.run([self._node, "--version"], capture_output=True, text=True, check=True).stdout
        if [int(part) for part in version.strip().removeprefix("v").split(".")[:2]] < [20, 19]:
            raise ToolchainMissing(f"oauth2-mock-server needs Node.js 20.19, here is {version.strip()}")
        self.environment = {"NODE_PATH": str(node_modules(SOURCES))}
        self.url = ""
        super().__init__()

    def _command(self) -> list[str]:
        return [str(self._node), str(SOURCES / "issuer.js")]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        for line in printed:
            if line.startswith(READY):
                self.url = line.removeprefix(READY)
        return bool(self.url)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    try:
        server = Issuer()
    except ToolchainMissing as missing:
        tool_missing(missing)
    with server:
        yield server


@pytest.fixture(scope="module")
def bootstrap_servers(issuer: Issuer) -> Iterator[str]:
    """A broker that accepts the issuer's tokens for the audience kafka."""
    options = {"clientId": "alice", "clientSecret": SECRET}
    login = jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE, options=options).line()
    cluster = new_cluster(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/jwks",
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": issuer.url,
            "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "listener.name.plaintext.oauthbearer.sasl.jaas.config": login,
            "connection.failed.authentication.delay.ms": "10",
        }
    )
    try:
        cluster.start()
        yield cluster.bootstrap_servers
    finally:
        cluster.close()


# --- librdkafka -----------------------------------------------------------------------------------


def of_confluent(bootstrap_servers: str, issuer: Issuer, client: str) -> dict[str, Any]:
    """librdkafka asks the issuer itself (the method oidc)."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
    }


def test_confluent(bootstrap_servers: str, issuer: Issuer, topic_name: str) -> None:
    """A record goes there and back."""
    settings = of_confluent(bootstrap_servers, issuer, "alice")
    producer = Producer(settings)
    producer.produce(topic_name, b"value")
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": topic_name})
    consumer.assign([TopicPartition(topic_name, 0, 0)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"value"


@pytest.mark.parametrize(
    "client", ["elsewhere", *(pytest.param(name, marks=pytest.mark.full) for name in ("expired", "impostor", "nobody"))]
)
def test_confluent_refused(bootstrap_servers: str, issuer: Issuer, client: str) -> None:
    """The error of librdkafka is _AUTHENTICATION, whether the broker or the issuer refuses."""
    codes: list[int] = []
    settings = of_confluent(bootstrap_servers, issuer, client)
    producer = Producer({**settings, "error_cb": lambda error: codes.append(error.code())})

    def is_refused() -> bool:
        producer.poll(0.1)
        return KafkaError._AUTHENTICATION in codes

    wait_until(is_refused, lambda: codes)


# --- brokers ----------------------------------------------------------------------------------------


def log_in_as_broker(bootstrap_servers: str, issuer: Issuer, client: str) -> int:
    """Send a request as a broker does, which has logged in with a token of the issuer; the number of brokers in the
    response."""
    line = jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE, options={"clientId": client, "clientSecret": SECRET}).line()
    keys = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.jaas.config": line,
    }
    host, _, port = bootstrap_servers.rpartition(":")

    async def run() -> int:
        sources = ClientSources(SystemClock(), OsThreads(), os.urandom)
        mechanism = make_client("SASL_PLAINTEXT", load(options=keys).value_for_listener, sources)
        timers = Timers(SystemClock(), asyncio.get_running_loop())
        connection = PeerConnection(
            OsNetwork(), lambda: (host, int(port)), timers, "broker-7-test", int(1000 * PATIENCE_S),
            login=PeerLogin(mechanism, sources.threads),
        )  # fmt: skip
        try:
            return len((await connection.send(MetadataRequest(), 8)).brokers)
        finally:
            connection.close()

    return asyncio.run(run())


def test_brokers(bootstrap_servers: str, issuer: Issuer) -> None:
    """A broker gets its token by the grant of client credentials (KIP-768)."""
    assert log_in_as_broker(bootstrap_servers, issuer, "alice") == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("nobody", r"cannot be logged in to: sasl\.oauthbearer\.token\.endpoint\.url .*: status 401"),
        ("expired", "cannot be logged in to: the token .* has expired"),
        ("elsewhere", "refuses the login of this broker: .*invalid_token"),
    ],
)
def test_brokers_refused(bootstrap_servers: str, issuer: Issuer, client: str, told: str) -> None:
    """By the issuer, by itself, or by the other broker."""
    with pytest.raises(PeerUnavailable, match=told):
        log_in_as_broker(bootstrap_servers, issuer, client)


# --- Java -----------------------------------------------------------------------------------------


@pytest.fixture
def run_tool(bootstrap_servers: str, issuer: Issuer, tmp_path: Path) -> Any:
    """Run one of Kafka's tools as a client of the issuer, in a Java process that may ask it (KIP-768, and since 4.0
    the list of allowed URLs)."""
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    options = (*SMALL_JVM, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/token")

    def run(tool: str, client: str, *arguments: object, stdin: str = "") -> Any:
        line = jaas.LoginModule(
            jaas.OAUTHBEARER_LOGIN_MODULE, options={"clientId": client, "clientSecret": SECRET}
        ).line()
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": HANDLER,
            "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
            "sasl.jaas.config": line,
        }
        properties = tmp_path / f"{client}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = kafka_runtime().java_command(MAIN_CLASSES[tool], jvm_options=options)
        address = ["--bootstrap-server", bootstrap_servers, "--command-config", str(properties)]
        return children.run([*command, *address, *map(str, arguments)], input=stdin, text=True, capture_output=True)

    return run


@pytest.mark.java
def test_console_tools(run_tool: Any, topic_name: str) -> None:
    """A line goes there and back."""
    produced = run_tool("kafka-console-producer", "alice", "--topic", topic_name, stdin="one\n")
    assert produced.returncode == 0, produced.stderr
    read = run_tool(
        "kafka-console-consumer", "alice", "--topic", topic_name, "--from-beginning", "--max-messages", 1,
        "--timeout-ms", PATIENCE_MS,
    )  # fmt: skip
    assert read.stdout.splitlines()[-1:] == ["one"], read.stderr


@pytest.mark.java
@pytest.mark.full
@pytest.mark.parametrize("client", ["elsewhere", "impostor"])
def test_java_refused(run_tool: Any, client: str) -> None:
    """Java's error is SaslAuthenticationException."""
    refused = run_tool("kafka-topics", client, "--list")
    assert refused.returncode != 0
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
