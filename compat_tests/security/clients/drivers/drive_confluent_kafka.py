"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from driver import NOTHING, OK, Login, serve

FOREVER_S = 2.0**31
AFTERWARDS = KafkaError._ALL_BROKERS_DOWN
"""Follows an error that has a cause."""


def config(login: Login, errors: list[KafkaError]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": login.servers,
        "security.protocol": login.protocol,
        "error_cb": errors.append,
        "log_level": 0,
    }
    if login.has_tls:
        found |= {"ssl.ca.location": login.ca}
    if login.certificate:
        found |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
    if not login.mechanism:
        return found
    found["sasl.mechanisms"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        return found | {"oauth_cb": lambda _: (login.token, FOREVER_S)}
    return found | {"sasl.username": login.username, "sasl.password": login.password}


def first(errors: list[KafkaError]) -> str | None:
    """The name of the first error that is a cause."""
    return next((str(error.name()) for error in errors if error.code() != AFTERWARDS), None)


def produce(login: Login) -> str:
    errors: list[KafkaError] = []
    reports: list[KafkaError | None] = []
    producer = Producer(config(login, errors))
    producer.produce(login.topic, b"1", on_delivery=lambda error, _: reports.append(error))
    deadline = time.monotonic() + login.deadline_s
    while not reports and not first(errors) and time.monotonic() < deadline:
        producer.poll(0.05)
    producer.purge()
    if reports and reports[0] is None:
        return OK
    return first([*errors, *(each for each in reports if each is not None)]) or NOTHING


def consume(login: Login) -> str:
    errors: list[KafkaError] = []
    consumer = Consumer(config(login, errors) | {"group.id": login.group, "auto.offset.reset": "earliest"})
    consumer.subscribe([login.topic])
    deadline = time.monotonic() + login.deadline_s
    outcome = None
    while outcome is None and time.monotonic() < deadline:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            outcome = OK
        elif message is not None:
            errors.append(message.error())
        outcome = outcome or first(errors)
    consumer.close()
    return outcome or NOTHING


if __name__ == "__main__":
    serve(produce, consume)
