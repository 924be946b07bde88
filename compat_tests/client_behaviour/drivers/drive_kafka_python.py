"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from driver import CLIENT_ID, GROUP, INSTANCE_ID, LAST, TOPIC, TRANSACTIONAL_ID, Outcome, serve
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

STAYS = {"heartbeat_interval_ms": 100}
STATIC = {"group_instance_id": INSTANCE_ID}

Commit = Callable[[KafkaConsumer, str, float], None]


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
        producer.close(timeout=1)  # Real time: what is left over is not waited for
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
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=servers, client_id=CLIENT_ID, group_id=GROUP, auto_offset_reset="earliest",
        enable_auto_commit=False, **(more or {}),
    )  # fmt: skip
    deadline = time.monotonic() + deadline_s
    while last not in outcome.values and time.monotonic() < deadline:
        try:
            for records in consumer.poll(timeout_ms=100).values():
                outcome.values += [record.value.decode() for record in records]
        except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it, and asks again
            outcome.failed(error)
            time.sleep(0.1)  # Real time: the pace of a program that asks again
    outcome.is_done = last in outcome.values
    if commit is not None and outcome.is_done:
        try:
            commit(consumer, servers, deadline_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it
            outcome.is_done = False
            outcome.failed(error)
    consumer.close(timeout_ms=1000)
    return outcome


def commit_it(consumer: KafkaConsumer, servers: str, deadline_s: float) -> None:
    consumer.commit(timeout_ms=1000 * deadline_s)


def commit_in_transaction(consumer: KafkaConsumer, servers: str, deadline_s: float) -> None:
    producer = new_transactional(servers, deadline_s)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        read = {
            partition: OffsetAndMetadata(consumer.position(partition), "", -1) for partition in consumer.assignment()
        }
        producer.send_offsets_to_transaction(read, consumer.group_metadata())
        producer.commit_transaction()
    finally:
        with suppress(KafkaTimeoutError):
            producer.close(timeout=1)  # Real time: what is left over is not waited for


def new_transactional(servers: str, deadline_s: float) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=servers, client_id=CLIENT_ID, transactional_id=TRANSACTIONAL_ID,
        max_block_ms=int(1000 * deadline_s),
    )  # fmt: skip


def transaction(servers: str, deadline_s: float) -> Outcome:
    outcome = Outcome()
    producer = new_transactional(servers, deadline_s)
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
        producer.close(timeout=1)  # Real time: what is left over is not waited for
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
