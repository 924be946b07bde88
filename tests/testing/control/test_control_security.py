"""`POST /brokers` with `security`: what it returns is all that clients of any language need, and its faults."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from tests.testing.control_client import ControlClient
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture(scope="module")
def started(control: ControlClient) -> Iterator[dict[str, Any]]:
    told = control.done("POST", "/brokers", name="secured", security="sasl_ssl")
    yield told
    control.done("DELETE", "/brokers/secured")


def write(config: dict[str, str]) -> int:
    """How many records a producer with this configuration could not write."""
    producer = Producer({**config, "log_level": 0})
    producer.produce("orders", b"hello")
    return producer.flush(PATIENCE_S)


def test_the_response_has_what_clients_need(started: dict[str, Any]) -> None:
    security = started["security"]
    assert (security["protocol"], security["mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert security["users"].keys() == {"admin", "client"}
    assert security["ca_pem"].startswith("-----BEGIN CERTIFICATE-----")
    assert Path(security["ca"]).read_text() == security["ca_pem"]
    config = {
        "bootstrap.servers": started["bootstrap_servers"],
        "security.protocol": security["protocol"],
        "sasl.mechanisms": security["mechanism"],
        "sasl.username": "client",
        "sasl.password": security["users"]["client"],
        "ssl.ca.pem": security["ca_pem"],
    }
    assert write(config) == 0


@pytest.mark.usefixtures("started")
def test_a_client_is_told_in_its_own_words(control: ControlClient) -> None:
    alice = control.done("POST", "/brokers/secured/client_config", user="alice")
    assert alice["user"] == alice["config"]["sasl.username"] == "alice"
    assert write(alice["config"]) == 0
    java = control.done("POST", "/brokers/secured/client_config", user="alice", client="java")
    assert f'password="{alice["password"]}"' in java["config"]["sasl.jaas.config"]
    python = control.done("POST", "/brokers/secured/client_config", user="alice", client="kafka_python")
    assert python["config"]["sasl_plain_password"] == alice["password"]


def test_without_security_it_is_the_address(control: ControlClient) -> None:
    told = control.done("POST", "/brokers", name="open")
    assert told["security"] is None
    config = control.done("POST", "/brokers/open/client_config")
    assert config["config"] == {"bootstrap.servers": told["bootstrap_servers"]}
    assert (config["protocol"], config["user"], config["ca"]) == ("PLAINTEXT", None, None)
    control.done("DELETE", "/brokers/open")


@pytest.mark.usefixtures("started")
def test_faults_of_security_over_http(control: ControlClient) -> None:
    def client_config() -> dict[str, str]:
        found: dict[str, str] = control.done("POST", "/brokers/secured/client_config", user="bob")["config"]
        return found

    def remove(fault: dict[str, Any]) -> int:
        hits: int = control.done("DELETE", f"/brokers/secured/faults/{fault['fault']}")["hits"]
        return hits

    config = client_config()
    refused = control.done("POST", "/brokers/secured/fail_authentication", user="bob", times=1)
    assert write(config) == 0
    assert remove(refused) == 1
    assert control.done("POST", "/brokers/secured/expire_authentication", user="nobody")["sessions"] == 0
    expired = control.done("POST", "/brokers/secured/certificate_expired")
    assert expired["description"].startswith("certificate_expired")
    other = control.done("POST", "/brokers/secured/certificate_of_other_host", host="kafka.example")
    assert other["description"].startswith("certificate_of_other_host kafka.example")
    control.done("DELETE", "/brokers/secured/faults")
    assert write(config) == 0
    quota = control.done("POST", "/brokers/secured/quota", user="bob", producer_byte_rate=1_000_000)
    assert write(config) == 0
    assert remove(quota) >= 1
    denied = control.done("POST", "/brokers/secured/deny", user="bob", operation="WRITE", topic="orders")
    errors: list[KafkaError | None] = []
    producer = Producer({**config, "log_level": 0})
    producer.produce("orders", b"hello", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    [error] = errors
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert remove(denied) >= 1


def test_a_cluster(control: ControlClient) -> None:
    """A user that is added is known to all brokers."""
    told = control.done("POST", "/brokers", name="several", security="sasl_ssl", brokers=3)
    assert told["security"]["users"].keys() == {"admin", "client"}
    config = control.done("POST", "/brokers/several/client_config", user="alice")["config"]
    for address in told["bootstrap_servers"].split(","):
        assert write({**config, "bootstrap.servers": address}) == 0
    control.done("DELETE", "/brokers/several")


def test_other_security_is_refused(control: ControlClient) -> None:
    answer = control.ask("POST", "/brokers", security="kerberos")
    assert answer.status == 400
    assert "one of sasl_ssl" in answer.content["error"]
