"""OAUTHBEARER with an issuer that is not ours, npm's oauth2-mock-server: clients ask it for their tokens by their own
means, and the broker reads its keys by their URL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from barnabas.broker.security.sasl import jaas
from barnabas.spark_examples.java import JavaMissing, find_java
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
    """`oauth_issuer/issuer.js`; `url` is its address. Raises ToolchainMissing."""

    title = "OAuth issuer"

    def __init__(self) -> None:
        self._node = find_node()
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
    cluster = new_cluster(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/jwks",
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": issuer.url,
            "connection.failed.authentication.delay.ms": "10",
        }
    )
    cluster.start()
    try:
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
