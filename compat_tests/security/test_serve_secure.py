"""`serve --secure` with clients: what is printed and written is enough for each, and nobody else gets in."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.helpers
import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from barnabas.broker.configuration.properties import parse_properties
from tests.support.required import tool_missing
from tools.processes import children
from tools.waiting import PATIENCE_S

with warnings.catch_warnings():
    # It reads its message definitions through functions of importlib.resources that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.errors import TopicAuthorizationFailedError as KafkaPythonRefusal

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@dataclass
class Running:
    """A broker's process, and its directory. `printed` is what it printed after its ready line."""

    directory: Path
    address: str
    http: str
    process: subprocess.Popen[str]

    def properties(self, name: str) -> dict[str, str]:
        return dict(parse_properties((self.directory / f"{name}.properties").read_text()))


def start(data: Path, port: str = "0") -> Running:
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas", "serve", "--secure", "--data-dir", str(data),
         "--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ready = re.match(r"ready: SASL_SSL://(\S+) ", process.stdout.readline())
    assert ready is not None
    http = ""
    for line in process.stdout:
        if found := re.search(r"token\.endpoint\.url=(http://\S+)/oauth/token", line):
            http = found[1]
        if line.startswith("PASSWORD is in"):
            break
    return Running(data / "secure", ready[1], http, process)


def stop(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)
    children.finish(running.process)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    started = start(tmp_path_factory.mktemp("data"))
    yield started
    stop(started)


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collect those of kafka-python before another file's test does, to which they are an error."""
    yield
    gc.collect()


def command(running: Running, *arguments: str, who: str | None = "client", password: str | None = None) -> Any:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}
    environ["BARNABAS_BOOTSTRAP_SERVER"] = running.address
    if who is not None:
        environ["BARNABAS_COMMAND_CONFIG"] = str(running.directory / f"{who}.properties")
    if password is not None:
        environ["BARNABAS_PASSWORD"] = password
    return children.run(
        [sys.executable, "-m", "barnabas", *arguments], env=environ, capture_output=True, text=True, input="x\n"
    )


def read_one(config: dict[str, str], topic: str) -> bytes:
    consumer = Consumer({**config, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.error() is None
    value = message.value()
    assert value is not None
    return value


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_librdkafka(running: Running, mechanism: str) -> None:
    config = running.properties("librdkafka") | {"sasl.mechanisms": mechanism}
    producer = Producer(config)
    producer.produce(f"of-{mechanism.lower()}", b"hello")
    assert producer.flush(PATIENCE_S) == 0
    assert read_one(config, f"of-{mechanism.lower()}") == b"hello"


def test_kcat(running: Running) -> None:
    """By the line that is printed; librdkafka of Debian 12 repeats the nonce."""
    kcat = shutil.which("kcat")
    if kcat is None:
        tool_missing("kcat is not installed (Debian: apt-get install kcat)")
    config = ("-F", str(running.directory / "librdkafka.properties"))
    children.run([kcat, *config, "-P", "-t", "of-kcat"], input="hello\n", text=True, check=True)
    read = children.run(
        [kcat, *config, "-C", "-t", "of-kcat", "-o", "beginning", "-c", "1"], capture_output=True, text=True
    )
    assert read.stdout == "hello\n", read.stderr


def test_a_token(running: Running) -> None:
    """By the issuer on the HTTP port, in librdkafka and in the commands."""
    account = running.properties("users")
    token = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"{running.http}/oauth/token",
        "sasl.oauthbearer.client.id": "client",
        "sasl.oauthbearer.client.secret": account["client"],
    }
    config = {
        "bootstrap.servers": running.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(running.directory / "ca.pem"),
        **token,
    }
    producer = Producer(config)
    producer.produce("of-tokens", b"hello")
    assert producer.flush(PATIENCE_S) == 0
    path = running.directory / "token.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    assert command(running, "topics", "offsets", "of-tokens", who="token").returncode == 0


def test_aiokafka(running: Running) -> None:
    account = running.properties("users")

    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=running.address,
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="client",
            sasl_plain_password=account["client"],
            ssl_context=aiokafka.helpers.create_ssl_context(cafile=str(running.directory / "ca.pem")),
        )
        await producer.start()
        try:
            await producer.send_and_wait("of-aiokafka", b"hello")
        finally:
            await producer.stop()

    asyncio.run(work())


def test_kafka_python(running: Running) -> None:
    producer = KafkaProducer(
        bootstrap_servers=running.address,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="client",
        sasl_plain_password=running.properties("users")["client"],
        ssl_cafile=str(running.directory / "ca.pem"),
    )
    producer.send("of-kafka-python", b"hello").get(PATIENCE_S)
    producer.close()


def test_the_client_uses_topics_and_does_not_administer(running: Running) -> None:
    assert command(running, "produce", "of-commands").returncode == 0
    assert command(running, "consume", "of-commands", "-g", "g", "--from-beginning", "-n", "1").stdout == "x\n"
    refused = command(running, "users", "add", "mallory")
    assert refused.returncode == 1
    assert (
        "client lacks ALTER on the cluster" in refused.stderr
        or "client lacks DESCRIBE on the cluster" in refused.stderr
    )
    assert "`barnabas acls add --user client --" in refused.stderr


def test_the_administrator_adds_a_user_with_a_permission(running: Running) -> None:
    assert command(running, "topics", "create", "orders-eu", who="admin").returncode == 0
    assert command(running, "users", "add", "alice", "--new-password", "of alice", who="admin").returncode == 0
    ca = ("--ca", str(running.directory / "ca.pem"))
    refused = command(running, "topics", "offsets", "orders-eu", "--user", "alice", *ca, who=None, password="of alice")
    assert (refused.returncode, "alice lacks DESCRIBE on topic orders-eu" in refused.stderr) == (1, True)
    granted = command(running, "acls", "add", "--user", "alice", "--read", "--topic", "orders", "--prefix", who="admin")
    assert granted.stdout == "alice may READ topic orders...\n"
    seen = command(running, "topics", "offsets", "orders-eu", "--user", "alice", *ca, who=None, password="of alice")
    assert seen.returncode == 0, seen.stderr


def test_nobody_else_gets_in(running: Running, tmp_path: Path) -> None:
    plain = command(running, "topics", "list", who=None)
    assert (plain.returncode, "--ca" in plain.stderr) == (1, True)
    ca = ("--ca", str(running.directory / "ca.pem"))
    anonymous = command(running, "topics", "list", *ca, who=None)
    assert (anonymous.returncode, "(give --user)" in anonymous.stderr) == (1, True)
    wrong = command(running, "topics", "list", *ca, "--user", "client", who=None, password="wrong")
    assert (wrong.returncode, "does not accept user client" in wrong.stderr) == (1, True)
    config = running.properties("librdkafka") | {"sasl.password": "wrong", "socket.timeout.ms": "5000"}
    with pytest.raises(KafkaException):
        AdminClient(config).list_topics(timeout=5)  # Real time: librdkafka tries again until then


@pytest.fixture
def eve(running: Running) -> str:
    """The password of a user who has no permission; the topic exists."""
    command(running, "topics", "create", "of-others", who="admin")
    command(running, "users", "remove", "eve", who="admin")
    assert command(running, "users", "add", "eve", "--new-password", "of eve", who="admin").returncode == 0
    return "of eve"


def test_librdkafka_without_permission(running: Running, eve: str) -> None:
    config = running.properties("librdkafka") | {"sasl.username": "eve", "sasl.password": eve}
    errors: list[KafkaError | None] = []
    producer = Producer(config)
    producer.produce("of-others", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(PATIENCE_S)
    [error] = errors
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer(config | {"group.id": "readers"})
    consumer.subscribe(["of-others"])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    found = message.error()
    assert found is not None
    assert found.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


def test_aiokafka_without_permission(running: Running, eve: str) -> None:
    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=running.address,
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="eve",
            sasl_plain_password=eve,
            ssl_context=aiokafka.helpers.create_ssl_context(cafile=str(running.directory / "ca.pem")),
        )
        await producer.start()
        try:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("of-others", b"x")
        finally:
            await producer.stop()

    asyncio.run(work())


def test_kafka_python_without_permission(running: Running, eve: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=running.address,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="eve",
        sasl_plain_password=eve,
        ssl_cafile=str(running.directory / "ca.pem"),
        enable_idempotence=False,
    )
    try:
        with pytest.raises(KafkaPythonRefusal):
            producer.send("of-others", b"x").get(PATIENCE_S)
    finally:
        producer.close(timeout=5)  # Real time: what is left over is not waited for


def test_another_start_keeps_users_and_permissions(tmp_path: Path) -> None:
    """A permission that was taken from the client is not given again."""
    running = start(tmp_path)
    try:
        assert command(running, "users", "add", "bob", "--new-password", "of bob", who="admin").returncode == 0
        assert command(running, "acls", "remove", "--user", "client", "--group", "*", who="admin").returncode == 0
        config = running.properties("librdkafka")
    finally:
        stop(running)
    port = running.address.rpartition(":")[2]
    running = start(tmp_path, port)
    try:
        assert running.properties("librdkafka") == config
        assert set(re.findall(r"^(\w+) ", command(running, "users", "list", who="admin").stdout, re.MULTILINE)) >= {
            "admin", "bob", "client",
        }  # fmt: skip
        rules = command(running, "acls", "list", "--user", "client", who="admin").stdout
        assert "TOPIC" in rules
        assert "GROUP" not in rules
    finally:
        stop(running)


def test_a_lost_directory(tmp_path: Path) -> None:
    """What is made anew counts, for users that the data has already, too."""
    running = start(tmp_path)
    stop(running)
    former = running.properties("users")
    shutil.rmtree(running.directory)
    running = start(tmp_path)
    try:
        assert set(running.properties("users").values()).isdisjoint(former.values())
        for who in ("client", "admin"):
            assert command(running, "topics", "list", who=who).returncode == 0
    finally:
        stop(running)
