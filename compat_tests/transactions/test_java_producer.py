"""Kafka's own producer of 4.3.0 where the command-line tools do not get."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.semantics.client import Connection
from compat_tests.transactions.producer import READ_COMMITTED, VERSION_2, TransactionalProducer
from compat_tests.transactions.test_protocol import (
    LAST_EPOCH,
    committed_values,
    latest_offset,
    stored_offset,
    use_up_epochs,
)
from tools.jvm.shared import SharedJvm
from tools.waiting import wait_until


@pytest.fixture(scope="module")
def kafka() -> Iterator[Any]:
    """Kafka's classes."""
    with SharedJvm() as jvm:
        yield jvm.java.org.apache.kafka


@pytest.mark.full
def test_a_producer_goes_on_after_its_last_epoch(
    kafka: Any,
    cluster: Any,
    new_producer: Callable[..., TransactionalProducer],
    connection: Connection,
    topic: str,
    transactional_id: str,
    group: str,
) -> None:
    """Each of its transactions ends with another epoch; the end after the last one brings another producer id."""
    before = new_producer(spoken=VERSION_2)
    use_up_epochs(before, left=5)
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    producer = kafka.clients.producer.KafkaProducer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "key.serializer": serializer,
            "value.serializer": serializer,
        }
    )
    expected = [f"{number}".encode() for number in range(12)]
    try:
        producer.initTransactions()
        for number, value in enumerate(expected):
            producer.beginTransaction()
            producer.send(kafka.clients.producer.ProducerRecord(topic, 0, None, value.decode()))
            offsets = {kafka.common.TopicPartition(topic, 0): kafka.clients.consumer.OffsetAndMetadata(number)}
            producer.sendOffsetsToTransaction(offsets, kafka.clients.consumer.ConsumerGroupMetadata(group))
            producer.commitTransaction()
    finally:
        producer.close()
    after = new_producer(spoken=VERSION_2).init()
    assert after.producer_id != before.identity.producer_id
    assert after.producer_epoch < LAST_EPOCH - 5
    wait_until(lambda: latest_offset(connection, topic, READ_COMMITTED) == latest_offset(connection, topic, 0))
    assert committed_values(connection, topic) == expected
    assert stored_offset(connection, group, topic, stable=True) == (len(expected) - 1, 0)
