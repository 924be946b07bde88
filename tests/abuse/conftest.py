"""A real broker in a process of its own to attack, and a record of what each attack measured.

Each attack is there twice. In the gate the broker has to answer what it must, within its memory, and a healthy client
is served. `in time`, alone on the machine, it is judged as well how fast that client is served, and what the broker
spends of a processor.

The mark `listener` says which ports a test attacks: each cell of `docs/limits/listeners.md` names an attack on its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.attack.hostile import MIB, HealthyClient, Memory
from tools.processes.barnabas import BarnabasProcess

MEMORY_MAX = 512 * MIB


class Bar(NamedTuple):
    """The minimum for a healthy client that asks for 100 records a second beside an attack: so many of them, and one at
    least in so many milliseconds."""

    rate: float
    gap_ms: float


FULL = Bar(90, 1000)
"""From a second on the broker itself calls its event loop late."""

SHORT = Bar(50, 2000)
"""For short attacks."""

LATE_MAX = 50
"""The maximum number of records in flight when an attack ends, which may take no longer than that."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An attack at its full size is there once: judged."""
    twice = [item for item in items if _is_full_and_not_judged(item)]
    if twice:
        config.hook.pytest_deselected(items=twice)
        items[:] = [item for item in items if item not in twice]


def _is_full_and_not_judged(item: pytest.Item) -> bool:
    is_judged = item.get_closest_marker("alone") is not None
    return (
        item.get_closest_marker("full") is not None
        and "is_timed" in getattr(item, "fixturenames", ())
        and not is_judged
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the parameter `listener` runs for each that its mark names."""
    if "listener" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("listener")
        assert mark is not None, metafunc.definition.name
        metafunc.parametrize("listener", mark.args)


@pytest.fixture(params=[pytest.param(False, id="served"), pytest.param(True, id="in time", marks=pytest.mark.alone)])
def is_timed(request: pytest.FixtureRequest) -> bool:
    """Whether times, rates and shares of a processor are judged."""
    judges: bool = request.param
    return judges


@pytest.fixture
def module() -> str:
    """The module that Python runs: the broker, unless a test names another one."""
    return "barnabas"


@pytest.fixture
def broker(request: pytest.FixtureRequest, module: str) -> Iterator[BarnabasProcess]:
    """Not one attack may take it beyond 512 MiB, end it, or make it log a traceback. Parametrized (indirectly) it has
    these settings."""
    yield from _attacked_broker(getattr(request, "param", {}), module)


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[BarnabasProcess]:
    """For many small attacks in a row."""
    yield from _attacked_broker({})


def _attacked_broker(settings: Mapping[str, str], module: str = "barnabas") -> Iterator[BarnabasProcess]:
    with BarnabasProcess(settings, module=module) as process:
        yield process
        assert Memory(process.pid).highest < MEMORY_MAX
        assert "Traceback" not in process.log_text()
        process.stop()


@pytest.fixture
def memory(broker: BarnabasProcess) -> Memory:
    memory = Memory(broker.pid)
    memory.mark()
    return memory


@pytest.fixture
def healthy(request: pytest.FixtureRequest, broker: BarnabasProcess, is_timed: bool) -> Iterator[HealthyClient]:
    """A client that must not notice the attack."""
    with HealthyClient(broker.bootstrap_servers) as client:
        yield client
        _judge(client, FULL if request.node.get_closest_marker("full") else SHORT, is_timed)


@pytest.fixture(scope="module")
def shared_client(shared_broker: BarnabasProcess) -> Iterator[HealthyClient]:
    with HealthyClient(shared_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def shared_healthy(shared_client: HealthyClient, is_timed: bool) -> Iterator[HealthyClient]:
    """The client beside the shared broker, judged for each attack by itself."""
    shared_client.mark()
    yield shared_client
    _judge(shared_client, SHORT, is_timed)


def _judge(client: HealthyClient, bar: Bar, is_timed: bool) -> None:
    client.settle()
    assert client.errors == []
    assert client.records > 0
    if not is_timed:
        return
    assert client.gap_ms <= bar.gap_ms, client.figures
    rate = min(bar.rate, client.rate_min)
    assert client.records >= min(rate * client.seconds, client.due - LATE_MAX), client.figures


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
