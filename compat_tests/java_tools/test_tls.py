"""Kafka's console tools over TLS, with a PKCS12 trust store and key store."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

from compat_tests.java_tools.kafka_tools import PATIENCE_MS
from compat_tests.tls_broker import tls_broker
from tests.support.certificates import pkcs12_of

pytestmark = pytest.mark.java


def test_lines_go_through(tmp_path: Path, tools_for: Any) -> None:
    with tls_broker(tmp_path, "required") as broker:
        certificate = PKCS12Certificate(x509.load_pem_x509_certificate(broker.authority.pem.encode()), b"authority")
        trusted, key = tmp_path / "trusted.p12", tmp_path / "key.p12"
        trusted.write_bytes(serialize_java_truststore([certificate], BestAvailableEncryption(b"secret")))
        key.write_bytes(pkcs12_of(broker.authority.issue("alice", common_name="alice"), "secret"))
        settings = tmp_path / "client.properties"
        settings.write_text(
            "security.protocol=SSL\n"
            f"ssl.truststore.location={trusted}\nssl.truststore.password=secret\nssl.truststore.type=PKCS12\n"
            f"ssl.keystore.location={key}\nssl.keystore.password=secret\nssl.keystore.type=PKCS12\n"
        )
        tools = tools_for(SimpleNamespace(bootstrap_servers=broker.bootstrap_servers))
        tools.run("kafka-console-producer", "--topic", "t", "--command-config", settings, stdin="one\ntwo\n")
        done = tools.run(
            "kafka-console-consumer", "--topic", "t", "--from-beginning", "--max-messages", 2,
            "--timeout-ms", PATIENCE_MS, "--command-config", settings,
        )  # fmt: skip
        assert done.out.splitlines() == ["one", "two"]
