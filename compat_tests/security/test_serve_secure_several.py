"""`serve --secure --brokers 3` with clients: all brokers have the same authority and users, which a kill of one of them
and another start keep; among each other they speak on a listener of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.broker.configuration.properties import parse_properties
from tools.processes import children
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.store]


@dataclass
class Running:
    """The parent's process, and the directory of its data. `tokens` is the address of the issuer that was printed."""

    data: Path
    addresses: list[str]
    tokens: str
    process: subprocess.Popen[str]

    def properties(self, name: str) -> dict[str, str]:
        return dict(parse_properties((self.data / "secure" / f"{name}.properties").read_text()))

    def note(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "brokers.json").read_text())
        return found

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        children.finish(self.process)
        assert self.process.returncode == 0


def start(data: Path) -> Running:
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas", "serve", "--secure", "--brokers", "3", "--data-dir", str(data),
         "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ready = process.stdout.readline()
    tokens = ""
    for line in process.stdout:
        if found := re.search(r"token\.endpoint\.url=(\S+)", line):
            tokens = found[1]
        if line.startswith("PASSWORD is in"):
            break
    addresses = re.findall(r"SASL_SSL://([^, ]+)", ready)
    assert len(addresses) == 3, ready
    assert "PLAINTEXT" not in ready
    return Running(data, addresses, tokens, process)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    started = start(tmp_path)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()


def command(running: Running, *arguments: str, who: str = "admin") -> str:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}
    environ["BARNABAS_COMMAND_CONFIG"] = str(running.data / "secure" / f"{who}.properties")
    done = children.run([sys.executable, "-m", "barnabas", *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def write(running: Running, *values: str) -> None:
    producer = Producer({**running.properties("librdkafka"), "acks": "all", "log_level": 0})
    for value in values:
        producer.produce("letters", value)
    assert producer.flush(PATIENCE_S) == 0


def read(running: Running, count: int) -> list[bytes | None]:
    config = {**running.properties("librdkafka"), "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "log_level": 0})
    consumer.subscribe(["letters"])
    found: list[bytes | None] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message.value())
    consumer.close()
    return sorted(found, key=lambda value: value or b"")


def create(running: Running) -> None:
    admin = AdminClient({**running.properties("librdkafka")})
    new = NewTopic("letters", 3, 3, config={"min.insync.replicas": "2"})
    (done,) = admin.create_topics([new], operation_timeout=PATIENCE_S).values()
    assert done.exception(PATIENCE_S) is None


def test_three_brokers_with_one_command(running: Running) -> None:
    """Each takes the users; one is killed meanwhile; another start keeps the users that somebody added, too."""
    assert running.properties("client")["bootstrap.servers"] == ",".join(running.addresses)
    for address in running.addresses:
        alone = {**running.properties("librdkafka"), "bootstrap.servers": address}
        assert len(AdminClient({**alone}).list_topics(timeout=PATIENCE_S).brokers) == 3
    create(running)
    write(running, "a", "b")

    command(running, "users", "password", "client", "--new-password", "of the client")
    killed = running.note()["2"]["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: running.note()["2"]["pid"] not in (0, killed))
    changed = {**running.properties("librdkafka"), "sasl.password": "of the client"}
    path = running.data / "secure" / "librdkafka.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in changed.items()))
    write(running, "c")  # with the password that the broker which has come back has not set again

    running.stop()
    again = start(running.data)
    try:
        assert again.addresses == running.addresses
        path.write_text("".join(f"{key}={value}\n" for key, value in changed.items()))
        assert read(again, 3) == [b"a", b"b", b"c"]
        assert re.findall(r"^(\w+) ", command(again, "users", "list"), re.MULTILINE) == ["USER", "admin", "client"]
    finally:
        again.stop()


@pytest.mark.full
def test_tokens_of_one_broker_are_for_all(running: Running) -> None:
    form = {"grant_type": "client_credentials", "client_id": "client"}
    form["client_secret"] = running.properties("users")["client"]
    with urllib.request.urlopen(running.tokens, urlencode(form).encode(), timeout=PATIENCE_S) as answer:
        token = json.load(answer)["access_token"]
    path = running.data / "token"
    path.write_text(token)
    for address in running.addresses:
        config = running.data / "secure" / "token.properties"
        config.write_text(
            f"bootstrap.servers={address}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            f"ssl.ca.location={running.data}/secure/ca.pem\nsasl.oauthbearer.token.endpoint.url={path.as_uri()}\n"
        )
        command(running, "topics", "list", who="token")


@pytest.mark.full
def test_the_brokers_listener_is_for_brokers_alone(running: Running) -> None:
    """It is on loopback, and serves nobody without their secret."""
    for each in running.note().values():
        clients, of_brokers = each["given"]["listeners"].split(",")
        assert clients.startswith("SASL_SSL://")
        host, _, port = of_brokers.partition("://")[2].partition(":")
        assert host == "127.0.0.1"
        plain: dict[str, Any] = {"bootstrap.servers": f"{host}:{port}", "log_level": 0}
        with socket.create_connection((host, int(port))):
            pass
        with pytest.raises(KafkaException):
            AdminClient(plain).list_topics(timeout=PATIENCE_S)


@pytest.mark.full
def test_no_password_is_in_the_note_or_the_arguments(running: Running) -> None:
    passwords = running.properties("users").values()
    texts = [(running.data / "brokers.json").read_text()]
    texts += [Path(f"/proc/{each['pid']}/cmdline").read_text() for each in running.note().values()]
    assert not [text for text in texts if any(password in text for password in passwords)]
