"""librdkafka over TLS, with and without certificates of clients."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from compat_tests.tls_broker import RECORDS, TlsBroker, tls_broker
from tools.waiting import PATIENCE_S, wait_until


def settings(broker: TlsBroker, *, shows_certificate: bool, **more: Any) -> dict[str, Any]:
    found = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": broker.trusted,
        **more,
    }
    if shows_certificate:
        found |= {"ssl.certificate.location": broker.client, "ssl.key.location": broker.client}
    return found


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_records_come_back(tmp_path: Path, client_auth: str) -> None:
    with tls_broker(tmp_path, client_auth) as broker:
        given = settings(broker, shows_certificate=client_auth == "required")
        producer = Producer(given)
        for value in RECORDS:
            producer.produce("t", value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        consumer = Consumer({**given, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        found: list[Any] = []
        while len(found) < len(RECORDS):
            messages = consumer.consume(len(RECORDS), PATIENCE_S)
            assert messages
            found += [message.value() for message in messages]
        consumer.close()
        assert found == RECORDS


def errors_of(given: dict[str, Any]) -> str:
    """What a producer that cannot connect says."""
    told: list[KafkaError] = []
    producer = Producer({**given, "error_cb": told.append})
    producer.produce("t", b"x")

    def has_told() -> bool:
        producer.poll(0.1)
        return any("certificate" in error.str() for error in told)

    wait_until(has_told)
    producer.purge()
    producer.flush(5)  # Real time: what is left over is not waited for
    return " ".join(error.str() for error in told)


def test_a_wrong_authority_is_refused_by_the_client(tmp_path: Path) -> None:
    with tls_broker(tmp_path) as broker:
        given = settings(broker, shows_certificate=False) | {"ssl.ca.location": broker.strange}
        assert "certificate verify failed" in errors_of(given)


def test_a_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with tls_broker(tmp_path, "required") as broker:
        assert "certificate required" in errors_of(settings(broker, shows_certificate=False))
