"""kafka-python."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

from driver import CLIENT_ID, GROUP, LAST, TOPIC, TRANSACTIONAL_ID, Outcome, serve
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError


def produce(servers: str, deadline_s: float, *, idempotence: bool = False) -> Outcome:
    outcome = Outcome()
    producer = KafkaProducer(bootstrap_servers=servers, client_id=CLIENT_ID, enable_idempotence=idempotence)
    try:
        producer.send(TOPIC, b"1").get(timeout=deadline_s)
        outcome.is_done = True
    except KafkaTimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it
        outcome.failed(error)
    with suppress(KafkaTimeoutError):
        producer.close(timeout=1)
    return outcome


def consume(servers: str, deadline_s: float, *, last: str = "1", commits: bool = False, stays: bool = False) -> Outcome:
    outcome = Outcome()
    settings: dict[str, Any] = {"heartbeat_interval_ms": 100} if stays else {}
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=servers, client_id=CLIENT_ID, group_id=GROUP, auto_offset_reset="earliest",
        enable_auto_commit=False, **settings,
    )  # fmt: skip
    deadline = time.monotonic() + deadline_s
    while last not in outcome.values and time.monotonic() < deadline:
        try:
            for records in consumer.poll(timeout_ms=100).values():
                outcome.values += [record.value.decode() for record in records]
        except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it, and asks again
            outcome.failed(error)
            time.sleep(0.1)
    outcome.is_done = last in outcome.values
    if commits and outcome.is_done:
        try:
            consumer.commit(timeout_ms=1000 * deadline_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it
            outcome.is_done = False
            outcome.failed(error)
    consumer.close(timeout_ms=1000)
    return outcome


def transaction(servers: str, deadline_s: float) -> Outcome:
    outcome = Outcome()
    producer = KafkaProducer(
        bootstrap_servers=servers, client_id=CLIENT_ID, transactional_id=TRANSACTIONAL_ID,
        max_block_ms=int(1000 * deadline_s),
    )  # fmt: skip
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"1")
        producer.commit_transaction()
        outcome.is_done = True
    except KafkaTimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it
        outcome.failed(error)
    with suppress(KafkaTimeoutError):
        producer.close(timeout=1)
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
