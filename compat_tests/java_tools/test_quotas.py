"""kafka-configs with the quotas of users, client ids and addresses, and a client of Kafka's that is throttled."""

import re
import secrets
import shlex
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.store

PAGES = Path(__file__).resolve().parents[2]


@pytest.fixture
def name() -> str:
    """A name that nobody used before, with characters that are encoded in ZooKeeper."""
    return f"quota {secrets.token_hex(6)}"


def test_quotas_of_a_client_id(tools: Any, name: str) -> None:
    entity = ["--entity-type", "clients", "--entity-name", name]
    added = tools.run(
        "kafka-configs", "--alter", *entity, "--add-config", "producer_byte_rate=1024,request_percentage=12.5"
    )
    assert f"Completed updating config for client {name}." in added.out

    described = tools.run("kafka-configs", "--describe", *entity).out
    assert f"Quota configs for client-id '{name}' are" in described
    assert "producer_byte_rate=1024.0" in described
    assert "request_percentage=12.5" in described

    tools.run("kafka-configs", "--alter", *entity, "--delete-config", "producer_byte_rate,request_percentage")
    assert "byte_rate" not in tools.run("kafka-configs", "--describe", *entity).out


def test_the_default_of_a_users_client_ids(tools: Any, name: str) -> None:
    entity = ["--entity-type", "users", "--entity-name", name, "--entity-type", "clients", "--entity-default"]
    tools.run("kafka-configs", "--alter", *entity, "--add-config", "consumer_byte_rate=2048")

    described = tools.run("kafka-configs", "--describe", *entity).out
    assert f"user-principal '{name}', the default client-id are consumer_byte_rate=2048.0" in described
    tools.run("kafka-configs", "--alter", *entity, "--delete-config", "consumer_byte_rate")


def test_the_rate_of_an_addresses_connections(tools: Any) -> None:
    entity = ["--entity-type", "ips", "--entity-name", "192.0.2.7"]
    tools.run("kafka-configs", "--alter", *entity, "--add-config", "connection_creation_rate=50")

    described = tools.run("kafka-configs", "--describe", *entity).out
    assert "Quota configs for ip '192.0.2.7' are connection_creation_rate=50.0" in described
    tools.run("kafka-configs", "--alter", *entity, "--delete-config", "connection_creation_rate")


@pytest.mark.parametrize(
    ("entity", "config", "error"),
    [
        (["clients", "--entity-name", "some"], "unknown_rate=1", "unknown_rate"),
        (["clients", "--entity-name", "some"], "producer_byte_rate=0", "producer_byte_rate"),
        (["ips", "--entity-name", "192.0.2.7"], "producer_byte_rate=1", "producer_byte_rate"),
    ],
)
def test_what_is_no_quota_is_refused(tools: Any, entity: list[str], config: str, error: str) -> None:
    refused = tools.attempt("kafka-configs", "--alter", "--entity-type", *entity, "--add-config", config)
    assert refused.status != 0
    assert error in refused.out + refused.err


def test_a_producer_is_told_of_its_throttle(tools: Any, topic: str, name: str) -> None:
    """Its own metrics have the throttle time of the responses, and it goes on afterwards."""
    client_id = name.replace(" ", "-")
    entity = ["--entity-type", "clients", "--entity-name", client_id]
    tools.run("kafka-configs", "--alter", *entity, "--add-config", "producer_byte_rate=1000000")
    done = tools.run(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", "12000", "--record-size", "1000",
        "--throughput", "-1", "--print-metrics",
        "--command-property", f"client.id={client_id}",
    )  # fmt: skip
    assert "12000 records sent" in done.out
    [throttled] = [line for line in done.lines if "produce-throttle-time-max" in line]
    assert float(throttled.rpartition(":")[2]) > 0
    tools.run("kafka-configs", "--alter", *entity, "--delete-config", "producer_byte_rate")


def test_commands_of_the_page(tools: Any) -> None:
    """In their order; afterwards nothing of it is left."""
    page = (PAGES / "docs/quotas.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if block.startswith("kafka-configs.sh")]
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    outputs = []
    for program, option, _address, *arguments in commands:
        assert (program, option) == ("kafka-configs.sh", "--bootstrap-server")
        outputs.append(tools.run("kafka-configs", *arguments).out)
    assert "client-id 'loader' are consumer_byte_rate=2097152.0, producer_byte_rate=1048576.0" in outputs[3]
    for entity, config in (("users", "request_percentage"), ("ips", "connection_creation_rate")):
        arguments = ["--entity-type", entity, "--entity-default", "--delete-config", config]
        tools.run("kafka-configs", "--alter", *arguments)
