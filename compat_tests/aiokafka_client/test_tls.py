"""aiokafka over TLS, with and without certificates of clients."""

import asyncio
import ssl
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError

from compat_tests.tls_broker import RECORDS, TlsBroker, tls_broker


def context(trusted: str, client: str | None = None) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=trusted)
    if client is not None:
        found.load_cert_chain(client)
    return found


async def round_trip(broker: TlsBroker, given: ssl.SSLContext) -> list[bytes]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, security_protocol="SSL", ssl_context=given)
    try:
        await producer.start()
        for value in RECORDS:
            await producer.send("t", value, partition=0)
        await producer.flush()
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SSL",
        ssl_context=given,
        auto_offset_reset="earliest",
    )
    try:
        await consumer.start()
        consumer.assign([TopicPartition("t", 0)])
        await consumer.seek_to_beginning()
        return [(await consumer.getone()).value for _ in RECORDS]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_records_come_back(tmp_path: Path, client_auth: str) -> None:
    with tls_broker(tmp_path, client_auth) as broker:
        given = context(broker.trusted, broker.client if client_auth == "required" else None)
        assert asyncio.run(round_trip(broker, given)) == RECORDS


@pytest.mark.parametrize("what", ["authority", "certificate"])
def test_a_client_that_cannot_connect(tmp_path: Path, what: str) -> None:
    """One trusts another authority, the other shows no certificate where one is required."""
    with tls_broker(tmp_path, "none" if what == "authority" else "required") as broker:
        given = context(broker.strange if what == "authority" else broker.trusted)
        with pytest.raises(KafkaConnectionError):
            asyncio.run(round_trip(broker, given))
