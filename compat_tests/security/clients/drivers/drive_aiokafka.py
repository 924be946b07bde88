"""aiokafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context
from driver import NOTHING, OK, Login, serve


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def arguments(login: Login) -> dict[str, Any]:
    found: dict[str, Any] = {"bootstrap_servers": login.servers, "security_protocol": login.protocol}
    if login.has_tls:
        own = login.certificate or None
        found["ssl_context"] = create_ssl_context(cafile=login.ca, certfile=own, keyfile=own)
    if login.mechanism:
        found["sasl_mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        return found | {"sasl_oauth_token_provider": Tokens(login.token)}
    return found | {"sasl_plain_username": login.username, "sasl_plain_password": login.password}


async def within(login: Login, client: Any, work: Awaitable[Any]) -> str:
    try:
        async with asyncio.timeout(login.deadline_s):
            await work
    except TimeoutError:
        return NOTHING
    except (KafkaError, OSError) as error:
        return type(error).__name__
    finally:
        await client.stop()
    return OK


def produce(login: Login) -> str:
    async def run() -> str:
        producer = AIOKafkaProducer(**arguments(login))

        async def work() -> None:
            await producer.start()
            await producer.send_and_wait(login.topic, b"1")

        return await within(login, producer, work())

    return asyncio.run(run())


def consume(login: Login) -> str:
    async def run() -> str:
        consumer = AIOKafkaConsumer(login.topic, group_id=login.group, auto_offset_reset="earliest", **arguments(login))

        async def work() -> None:
            await consumer.start()
            await consumer.getone()

        return await within(login, consumer, work())

    return asyncio.run(run())


if __name__ == "__main__":
    logging.disable()
    serve(produce, consume)
