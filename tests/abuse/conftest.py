"""A real broker in a process of its own to attack, and a record of what each attack measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.barnabas_process import BarnabasProcess
from tools.hostile import MIB, HealthyClient, Memory

MEMORY_MAX = 512 * MIB
HEALTHY_GAP_MS_MAX = 1000
HEALTHY_LATE_MAX = 50


@pytest.fixture
def broker() -> Iterator[BarnabasProcess]:
    """Not one attack may take it beyond 512 MiB, end it, or make it log a traceback."""
    yield from _attacked_broker()


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[BarnabasProcess]:
    """For many small attacks in a row."""
    yield from _attacked_broker()


def _attacked_broker() -> Iterator[BarnabasProcess]:
    with BarnabasProcess() as process:
        yield process
        assert Memory(process.pid).peak < MEMORY_MAX
        assert "Traceback" not in process.log_text()


@pytest.fixture
def memory(broker: BarnabasProcess) -> Memory:
    memory = Memory(broker.pid)
    memory.mark()
    return memory


@pytest.fixture
def healthy(broker: BarnabasProcess) -> Iterator[HealthyClient]:
    """A client that must not notice the attack."""
    with HealthyClient(broker.bootstrap_servers) as client:
        yield client
        _judge(client)


@pytest.fixture(scope="module")
def shared_client(shared_broker: BarnabasProcess) -> Iterator[HealthyClient]:
    with HealthyClient(shared_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def shared_healthy(shared_client: HealthyClient) -> Iterator[HealthyClient]:
    """The client beside the shared broker, judged for each attack by itself."""
    shared_client.mark()
    yield shared_client
    _judge(shared_client)


def _judge(client: HealthyClient) -> None:
    """90 of 100 records a second are acknowledged, or all but those of the last half second; and never none for a whole
    second, from which on the broker itself calls its event loop late.
    """
    client.settle()
    assert client.errors == []
    assert client.gap_ms <= HEALTHY_GAP_MS_MAX, client.figures
    assert client.records >= min(client.rate_min * client.seconds, client.due - HEALTHY_LATE_MAX), client.figures


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Note a measurement: printed, and appended to the file that BARNABAS_FIGURES names."""

    def note(**values: float | int | str) -> None:
        line = json.dumps({"test": request.node.name, **values})
        print(line)
        if path := os.environ.get("BARNABAS_FIGURES"):
            with Path(path).open("a") as file:
                file.write(line + "\n")

    return note
