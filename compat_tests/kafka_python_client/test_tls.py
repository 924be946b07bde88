"""kafka-python over TLS, with and without certificates of clients."""

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from compat_tests.tls_broker import RECORDS, TlsBroker, tls_broker
from tools.waiting import PATIENCE_S


def settings(broker: TlsBroker, *, shows_certificate: bool) -> dict[str, Any]:
    found = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_cafile": broker.trusted,
    }
    if shows_certificate:
        found |= {"ssl_certfile": broker.client, "ssl_keyfile": broker.client}
    return found


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_records_come_back(tmp_path: Path, client_auth: str) -> None:
    with tls_broker(tmp_path, client_auth) as broker:
        given = settings(broker, shows_certificate=client_auth == "required")
        producer = KafkaProducer(**given)
        for value in RECORDS:
            producer.send("t", value, partition=0)
        producer.flush(PATIENCE_S)
        producer.close()
        consumer = KafkaConsumer(**given, auto_offset_reset="earliest", consumer_timeout_ms=int(PATIENCE_S * 1000))
        consumer.assign([TopicPartition("t", 0)])
        found = [next(consumer).value for _ in RECORDS]
        consumer.close()
        assert found == RECORDS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that the client leaves open
@pytest.mark.parametrize("what", ["authority", "certificate"])
def test_a_client_that_cannot_connect(tmp_path: Path, what: str) -> None:
    """One trusts another authority, the other shows no certificate where one is required."""
    with tls_broker(tmp_path, "none" if what == "authority" else "required") as broker:
        given = settings(broker, shows_certificate=False)
        if what == "authority":
            given["ssl_cafile"] = broker.strange
        with pytest.raises(KafkaError):
            KafkaProducer(**given, bootstrap_timeout_ms=3_000)
