"""kafka-configs makes a user of SCRAM, and the console tools log in as that user."""

from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.security.sasl import jaas
from compat_tests.java_tools.kafka_tools import PATIENCE_MS

pytestmark = [pytest.mark.java, pytest.mark.slow]


def client_file(path: Path, mechanism: str, password: str) -> Path:
    """The client's properties of alice."""
    line = jaas.LoginModule(jaas.LOGIN_MODULES[mechanism], options={"username": "alice", "password": password}).line()
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={line}\n")
    return path


def test_scram(tools_for: Any, start_cluster: Any, topic_name: str, tmp_path: Path) -> None:
    """A line goes there and back; with another password the producer fails."""
    credentials = {"username": "alice", "password": "first", "user_alice": "first"}
    users = jaas.LoginModule(jaas.PLAIN_LOGIN_MODULE, options=credentials).line()
    cluster = start_cluster(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.plaintext.plain.sasl.jaas.config": users,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
        }
    )
    tools = tools_for(cluster)
    admin = client_file(tmp_path / "admin", "PLAIN", "first")
    alice = client_file(tmp_path / "alice", "SCRAM-SHA-512", "second")
    tools.run(
        "kafka-configs", "--alter", "--entity-type", "users", "--entity-name", "alice",
        "--add-config", "SCRAM-SHA-512=[password=second]", "--command-config", admin,
    )  # fmt: skip
    tools.run("kafka-console-producer", "--topic", topic_name, "--producer.config", alice, stdin="one\n")
    read = tools.run(
        "kafka-console-consumer", "--topic", topic_name, "--from-beginning", "--max-messages", 1,
        "--timeout-ms", PATIENCE_MS, "--consumer.config", alice,
    )  # fmt: skip
    assert read.out.splitlines()[-1] == "one"  # a remark on options may come before
    wrong = client_file(tmp_path / "wrong", "SCRAM-SHA-512", "third")
    refused = tools.attempt("kafka-topics", "--list", "--command-config", wrong)
    assert "SaslAuthenticationException" in refused.out + refused.err
