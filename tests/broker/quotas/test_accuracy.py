"""A client of full speed is held to its quota: on a clock that the test moves, and in real time."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.testing import Broker
from barnabas.wire import codec
from barnabas.wire.messages.fetch import FetchResponse
from tests.broker.quotas.clients import (
    FETCH_VERSION,
    TOPIC,
    configure,
    create,
    fetch_request,
    local_client,
    produce,
    produce_bytes,
)
from tests.broker.running import running

RATE = 60_000
"""The quota, in bytes per second."""

MEASURED_MS = 30_000
TOLERANCE = 0.05


WINDOWS = [
    (2, 50, 2_000),
    (2, 2, 2_000),
    pytest.param(11, 2, 110_000, marks=pytest.mark.slow),
    pytest.param(11, 1.5, 110_000, marks=pytest.mark.full),
]
"""The number of samples, the speed of a client as a multiple of its quota, and the time before the measurement. With
Kafka's window of eleven samples a client that begins may transfer ten seconds' worth at once, then waits for these
samples to expire, and approaches the quota after some windows."""


async def measure(
    broker: Any, transfer: Callable[[], Awaitable[tuple[int, int]]], speed: float, before_ms: int
) -> float:
    """The rate of a client as a multiple of its quota. Each request takes the time that `speed` times the quota allows
    it, and each throttle its own. `transfer` sends a request; it returns its bytes and its throttle."""
    began_ms, owed_ms, total_bytes = broker.clock.monotonic_ms(), 0.0, 0
    while (now_ms := broker.clock.monotonic_ms() - began_ms) < before_ms + MEASURED_MS:
        transferred_bytes, throttle_time_ms = await transfer()
        if now_ms >= before_ms:
            total_bytes += transferred_bytes
        owed_ms += transferred_bytes / (RATE * speed) * 1_000 + throttle_time_ms
        broker.clock.advance(int(owed_ms))
        owed_ms -= int(owed_ms)
        await broker.settle()
    ratio = total_bytes / (RATE * MEASURED_MS / 1_000)
    print(f"{ratio:.3f} of the quota")
    return ratio


@pytest.mark.anyio
@pytest.mark.parametrize(("samples", "speed", "before_ms"), WINDOWS)
async def test_a_producer_of_full_speed(tmp_path: Path, samples: int, speed: float, before_ms: int) -> None:
    async with running(tmp_path, quota_window_num=str(samples)) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        await configure(broker, "clients", "app", producer_byte_rate=str(RATE))
        request_bytes = produce_bytes("app")

        async def transfer() -> tuple[int, int]:
            return request_bytes, await produce(client)

        assert abs(await measure(broker, transfer, speed, before_ms) - 1) < TOLERANCE


@pytest.mark.anyio
@pytest.mark.parametrize(("samples", "speed", "before_ms"), WINDOWS)
async def test_a_consumer_of_full_speed(tmp_path: Path, samples: int, speed: float, before_ms: int) -> None:
    """Kafka, too, counts the size of a response without its length and header."""
    async with running(tmp_path, quota_window_num=str(samples)) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        await produce(client)
        await configure(broker, "clients", "app", consumer_byte_rate=str(RATE))

        async def transfer() -> tuple[int, int]:
            response = await client.ask(fetch_request(), FETCH_VERSION, FetchResponse)
            return len(codec.encode(response, FETCH_VERSION)), response.throttle_time_ms

        assert abs(await measure(broker, transfer, speed, before_ms) - 1) < TOLERANCE


@pytest.mark.alone
def test_a_real_producer_in_real_time() -> None:
    """librdkafka sends as fast as it may for half a minute."""
    rate = 2_000_000
    with Broker(quota_window_num=2) as broker:
        broker.create_topic("t")
        broker.call(configure(broker.server, "clients", "app", producer_byte_rate=str(rate)))
        acknowledged: list[tuple[float, int]] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "app", "linger.ms": 5})
        value = b"x" * 10_000

        def note(error: object, message: object) -> None:
            assert error is None
            acknowledged.append((time.monotonic(), len(value)))

        began_s = time.monotonic()
        end_s = began_s + 5 + MEASURED_MS / 1_000
        while time.monotonic() < end_s:
            try:
                producer.produce("t", value, on_delivery=note)
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        producer.purge()
    total_bytes = sum(size for at_s, size in acknowledged if began_s + 5 <= at_s < end_s)
    ratio = total_bytes / (rate * MEASURED_MS / 1_000)
    print(f"{ratio:.3f} of the quota")
    assert abs(ratio - 1) < TOLERANCE
