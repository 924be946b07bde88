"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from driver import CLIENT_ID, GROUP, INSTANCE_ID, LAST, TOPIC, TRANSACTIONAL_ID, Outcome, serve

QUIET = {"client.id": CLIENT_ID, "log_level": 0}
STAYS = {"heartbeat.interval.ms": 100}
STATIC = {"group.instance.id": INSTANCE_ID}

Commit = Callable[[Consumer, str, float], None]


def name(error: Any) -> str:
    return str(error.name()) + (" (fatal)" if error.fatal() else "")


def produce(servers: str, deadline_s: float, *, idempotence: bool = False) -> Outcome:
    outcome = Outcome()
    reports: list[Any] = []  # errors are looked at later: a fatal one is on its way as an exception meanwhile
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": idempotence, **QUIET})
    producer.produce(TOPIC, "1", on_delivery=lambda error, message: reports.append(error))
    try:
        producer.flush(deadline_s)
    except KafkaException as error:
        outcome.failed(name(error.args[0]))
    for error in reports:
        if error is None:
            outcome.is_done = True
        else:
            outcome.failed(name(error))
    producer.purge()
    return outcome


def consume(
    servers: str,
    deadline_s: float,
    *,
    last: str = "1",
    commit: Commit | None = None,
    more: dict[str, Any] | None = None,
) -> Outcome:
    outcome = Outcome()
    settings = {"bootstrap.servers": servers, "group.id": GROUP, "auto.offset.reset": "earliest", **QUIET}
    consumer = Consumer(settings | {"enable.auto.commit": False} | (more or {}))
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            outcome.failed(name(message.error()))
            continue
        outcome.values.append(message.value().decode())
        if outcome.values[-1] == last:
            outcome.is_done = True
            break
    if commit is not None and outcome.is_done:
        try:
            commit(consumer, servers, deadline_s)
        except KafkaException as error:
            outcome.is_done = False
            outcome.failed(name(error.args[0]))
    consumer.close()
    return outcome


def commit_it(consumer: Consumer, servers: str, deadline_s: float) -> None:
    consumer.commit(asynchronous=False)


def commit_in_transaction(consumer: Consumer, servers: str, deadline_s: float) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": TRANSACTIONAL_ID, **QUIET})
    producer.init_transactions(deadline_s)
    producer.begin_transaction()
    read = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata(), deadline_s)
    producer.commit_transaction(deadline_s)


def transaction(servers: str, deadline_s: float) -> Outcome:
    outcome = Outcome()
    producer = Producer({"bootstrap.servers": servers, "transactional.id": TRANSACTIONAL_ID, **QUIET})
    try:
        producer.init_transactions(deadline_s)
        producer.begin_transaction()
        producer.produce(TOPIC, "1")
        producer.commit_transaction(deadline_s)
        outcome.is_done = True
    except KafkaException as error:
        outcome.failed(name(error.args[0]))
    return outcome


if __name__ == "__main__":
    serve(
        {
            "produce": produce,
            "idempotent": partial(produce, idempotence=True),
            "consume": consume,
            "stay": partial(consume, last=LAST, more=STAYS),
            "commit": partial(consume, commit=commit_it),
            "static_stay": partial(consume, last=LAST, more=STAYS | STATIC),
            "static_commit": partial(consume, commit=commit_it, more=STATIC),
            "transaction": transaction,
            "process": partial(consume, commit=commit_in_transaction),
        }
    )
