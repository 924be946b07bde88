"""Apache Kafka's Java clients, in a Java process of the driver's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from driver import CLIENT_ID, GROUP, INSTANCE_ID, LAST, TOPIC, TRANSACTIONAL_ID, Outcome, serve
from py4j.protocol import Py4JJavaError

from tools.jvm.shared import SharedJvm

VERSION = "4.3.0"
BLOCK_MS_MAX = 8000
STAYS = {"heartbeat.interval.ms": "100"}
STATIC = {"group.instance.id": INSTANCE_ID}

Commit = Callable[["Java", Any, str, float], None]


class Java:
    """The classes that are needed, in one Java process."""

    def __init__(self, jvm: SharedJvm) -> None:
        self._java: Any = jvm.java
        clients = self._java.org.apache.kafka.clients
        self._strings = self._java.org.apache.kafka.common.serialization
        self.new_producer, self.new_consumer = clients.producer.KafkaProducer, clients.consumer.KafkaConsumer
        self._offset = clients.consumer.OffsetAndMetadata
        self.record = clients.producer.ProducerRecord
        self.timeout: Any = self._java.java.util.concurrent.TimeUnit.MILLISECONDS

    def duration(self, seconds: float) -> Any:
        return self._java.java.time.Duration.ofMillis(int(1000 * seconds))

    def topics(self) -> Any:
        return self._java.java.util.List.of(TOPIC)

    def read(self, consumer: Any) -> Any:
        """The offsets up to which a consumer has read."""
        found = self._java.java.util.HashMap()
        partitions = consumer.assignment().iterator()
        while partitions.hasNext():
            partition = partitions.next()
            found.put(partition, self._offset(consumer.position(partition)))
        return found

    def properties(self, settings: dict[str, Any]) -> Any:
        found = self._java.java.util.Properties()
        for key, value in ({"client.id": CLIENT_ID} | settings).items():
            found.put(key, str(value))
        return found

    def producer(self, **settings: Any) -> Any:
        serializer = self._strings.StringSerializer
        return self.new_producer(self.properties(settings), serializer(), serializer())

    def consumer(self, **settings: Any) -> Any:
        deserializer = self._strings.StringDeserializer
        return self.new_consumer(self.properties(settings), deserializer(), deserializer())


def name(error: Py4JJavaError) -> str:
    """Of the error, or of what a Future wraps."""
    found = error.java_exception
    if found.getClass().getSimpleName() == "ExecutionException":
        found = found.getCause()
    return str(found.getClass().getSimpleName())


def produce(java: Java, servers: str, deadline_s: float, *, idempotence: bool = False) -> Outcome:
    outcome = Outcome()
    settings = {"bootstrap.servers": servers, "enable.idempotence": str(idempotence).lower()}
    producer = java.producer(**settings, **{"max.block.ms": BLOCK_MS_MAX})
    try:
        producer.send(java.record(TOPIC, "1")).get(int(1000 * deadline_s), java.timeout)
        outcome.is_done = True
    except Py4JJavaError as error:
        if name(error) != "TimeoutException":
            outcome.failed(name(error))
    producer.close(java.duration(0.5))
    return outcome


def consume(
    java: Java, servers: str, deadline_s: float, *, last: str = "1", commit: Commit | None = None,
    more: dict[str, Any] | None = None,
) -> Outcome:  # fmt: skip
    outcome = Outcome()
    settings = {"bootstrap.servers": servers, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = java.consumer(**settings, **{"enable.auto.commit": "false"}, **(more or {}))
    consumer.subscribe(java.topics())
    deadline = time.monotonic() + deadline_s
    while last not in outcome.values and time.monotonic() < deadline:
        try:
            records = consumer.poll(java.duration(0.1)).iterator()
            while records.hasNext():
                outcome.values.append(str(records.next().value()))
        except Py4JJavaError as error:
            outcome.failed(name(error))
            time.sleep(0.1)  # Real time: the pace of a program that asks again
    outcome.is_done = last in outcome.values
    if commit is not None and outcome.is_done:
        try:
            commit(java, consumer, servers, deadline_s)
        except Py4JJavaError as error:
            outcome.is_done = False
            outcome.failed(name(error))
    try:
        consumer.close(java.duration(1))
    except Py4JJavaError as error:
        outcome.failed(f"{name(error)} (close)")
    return outcome


def commit_it(java: Java, consumer: Any, servers: str, deadline_s: float) -> None:
    consumer.commitSync(java.duration(deadline_s))


def commit_in_transaction(java: Java, consumer: Any, servers: str, deadline_s: float) -> None:
    producer = new_transactional(java, servers, deadline_s)
    try:
        producer.initTransactions()
        producer.beginTransaction()
        producer.sendOffsetsToTransaction(java.read(consumer), consumer.groupMetadata())
        producer.commitTransaction()
    finally:
        producer.close(java.duration(0.5))


def new_transactional(java: Java, servers: str, deadline_s: float) -> Any:
    settings = {"bootstrap.servers": servers, "transactional.id": TRANSACTIONAL_ID}
    return java.producer(**settings, **{"max.block.ms": int(1000 * deadline_s)})


def transaction(java: Java, servers: str, deadline_s: float) -> Outcome:
    outcome = Outcome()
    producer = new_transactional(java, servers, deadline_s)
    try:
        producer.initTransactions()
        producer.beginTransaction()
        producer.send(java.record(TOPIC, "1"))
        producer.commitTransaction()
        outcome.is_done = True
    except Py4JJavaError as error:
        outcome.failed(name(error))
    producer.close(java.duration(0.5))
    return outcome


if __name__ == "__main__":
    with SharedJvm(VERSION) as jvm:
        java = Java(jvm)
        serve(
            {
                "produce": partial(produce, java),
                "idempotent": partial(produce, java, idempotence=True),
                "consume": partial(consume, java),
                "stay": partial(consume, java, last=LAST, more=STAYS),
                "commit": partial(consume, java, commit=commit_it),
                "static_stay": partial(consume, java, last=LAST, more=STAYS | STATIC),
                "static_commit": partial(consume, java, commit=commit_it, more=STATIC),
                "transaction": partial(transaction, java),
                "process": partial(consume, java, commit=commit_in_transaction),
            }
        )
