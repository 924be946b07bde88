"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from driver import CLIENT_ID, GROUP, LAST, TOPIC, TRANSACTIONAL_ID, Outcome, serve

QUIET = {"client.id": CLIENT_ID, "log_level": 0}


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


def consume(servers: str, deadline_s: float, *, last: str = "1", commits: bool = False, stays: bool = False) -> Outcome:
    outcome = Outcome()
    settings = {"bootstrap.servers": servers, "group.id": GROUP, "auto.offset.reset": "earliest", **QUIET}
    if stays:
        settings["heartbeat.interval.ms"] = 100
    consumer = Consumer(settings | {"enable.auto.commit": False})
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
    if commits and outcome.is_done:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            outcome.is_done = False
            outcome.failed(name(error.args[0]))
    consumer.close()
    return outcome


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
            "stay": partial(consume, last=LAST, stays=True),
            "commit": partial(consume, commits=True),
            "transaction": transaction,
        }
    )
