"""aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from driver import CLIENT_ID, GROUP, INSTANCE_ID, LAST, TOPIC, TRANSACTIONAL_ID, Outcome, Workload, serve

STAYS = {"heartbeat_interval_ms": 100}
STATIC = {"group_instance_id": INSTANCE_ID}

Commit = Callable[[AIOKafkaConsumer, str], Awaitable[None]]


async def produce(outcome: Outcome, servers: str, *, idempotence: bool = False) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=servers, client_id=CLIENT_ID, enable_idempotence=idempotence)
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"1")
        outcome.is_done = True
    finally:
        await producer.stop()


async def consume(
    outcome: Outcome, servers: str, *, last: str = "1", commit: Commit | None = None, more: dict[str, Any] | None = None
) -> None:
    consumer = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=servers, client_id=CLIENT_ID, group_id=GROUP, auto_offset_reset="earliest",
        enable_auto_commit=False, **(more or {}),
    )  # fmt: skip
    try:
        await consumer.start()
        while last not in outcome.values:
            try:
                outcome.values.append((await consumer.getone()).value.decode())
            except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it, and asks again
                outcome.failed(error)
                await asyncio.sleep(0.1)  # Real time: the pace of a program that asks again
        if commit is not None:
            await commit(consumer, servers)
        outcome.is_done = True
    finally:
        await consumer.stop()


async def commit_it(consumer: AIOKafkaConsumer, servers: str) -> None:
    await consumer.commit()


async def commit_in_transaction(consumer: AIOKafkaConsumer, servers: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=servers, client_id=CLIENT_ID, transactional_id=TRANSACTIONAL_ID)
    await producer.start()
    try:
        await producer.begin_transaction()
        read = {partition: await consumer.position(partition) for partition in consumer.assignment()}
        await producer.send_offsets_to_transaction(read, GROUP)
        await producer.commit_transaction()
    finally:
        with suppress(Exception):
            await producer.stop()


async def transaction(outcome: Outcome, servers: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=servers, client_id=CLIENT_ID, transactional_id=TRANSACTIONAL_ID)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(TOPIC, b"1")
        await producer.commit_transaction()
        outcome.is_done = True
    finally:
        with suppress(Exception):
            await producer.stop()


def until_deadline(work: Callable[..., Awaitable[None]]) -> Workload:
    """Errors end it; what takes longer is given up."""

    async def run(servers: str, deadline_s: float) -> Outcome:
        outcome = Outcome()
        try:
            await asyncio.wait_for(work(outcome, servers), deadline_s)
        except TimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the program hears of it
            outcome.failed(error)
        return outcome

    return lambda servers, deadline_s: asyncio.run(run(servers, deadline_s))


if __name__ == "__main__":
    serve(
        {
            "produce": until_deadline(produce),
            "idempotent": until_deadline(partial(produce, idempotence=True)),
            "consume": until_deadline(consume),
            "stay": until_deadline(partial(consume, last=LAST, more=STAYS)),
            "commit": until_deadline(partial(consume, commit=commit_it)),
            "static_stay": until_deadline(partial(consume, last=LAST, more=STAYS | STATIC)),
            "static_commit": until_deadline(partial(consume, commit=commit_it, more=STATIC)),
            "transaction": until_deadline(transaction),
            "process": until_deadline(partial(consume, commit=commit_in_transaction)),
        }
    )
