"""The pytest plugin: a broker for the test session, a fresh topic for each test. See docs/testing.md.

pytest loads this module in every run of an environment that has Barnabas installed, so it imports the broker only when
a fixture needs it. Under pytest-xdist every worker is a process, with a session and thus a broker of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from barnabas.testing.broker import Broker

INI_OPTION = "kafka_broker_configs"
MARKER = "kafka"
MARKER_ARGUMENTS = frozenset({"partitions", "configs"})
NAME_LENGTH_MAX = 200
_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option of pytest's configuration file."""
    parser.addini(INI_OPTION, "Broker configs of the kafka_broker fixture, one key=value per line", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, for --markers and --strict-markers."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(partitions=None, configs={{}}): partition count and topic configs of the test's kafka_topic",
    )


@pytest.fixture(scope="session")
def kafka_broker_configs(pytestconfig: pytest.Config) -> dict[str, object]:
    """Configs of the session's broker by Kafka's keys; override this fixture to set others."""
    configs: dict[str, object] = {}
    for line in pytestconfig.getini(INI_OPTION):
        key, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"{INI_OPTION}: {line!r} is not key=value")
        configs[key.strip()] = value.strip()
    return configs


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_configs: dict[str, object]) -> Iterator[Broker]:
    """A broker that runs as long as the test session."""
    from barnabas.testing.broker import Broker

    with Broker(configs=kafka_broker_configs) as broker:
        yield broker


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_broker: Broker) -> Iterator[str]:
    """The name of a topic that this test has for itself, deleted afterwards; see the marker `kafka`."""
    from barnabas.testing import ApiError

    partitions, configs = _topic_settings(request)
    name = _fresh_name(request)
    kafka_broker.create_topic(name, partitions, configs)
    yield name
    if kafka_broker.is_running:
        with suppress(ApiError):  # the test deleted it itself, or the broker does not allow it
            kafka_broker.delete_topic(name)


@pytest.fixture
def kafka_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Starts brokers of the test's own: `kafka_broker_factory(num_partitions=3)`, stopped after the test."""
    from barnabas.testing.broker import Broker

    brokers: list[Broker] = []

    def start(**keywords: object) -> Broker:
        broker = Broker(**keywords)  # type: ignore[arg-type]
        brokers.append(broker)
        return broker.start()

    try:
        yield start
    finally:
        for broker in brokers:
            broker.stop()


def _topic_settings(request: pytest.FixtureRequest) -> tuple[int | None, dict[str, object]]:
    """Partition count and configs by the markers around the test: what is nearest to it counts."""
    partitions: int | None = None
    configs: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        unknown = set(marker.kwargs) - MARKER_ARGUMENTS
        if marker.args or unknown:
            raise pytest.UsageError(
                f"the marker {MARKER} takes the keywords {', '.join(sorted(MARKER_ARGUMENTS))}, "
                f"not {', '.join([*map(repr, marker.args), *sorted(unknown)])}"
            )
        partitions = marker.kwargs.get("partitions", partitions)
        configs |= marker.kwargs.get("configs", {})
    return partitions, configs


def _fresh_name(request: pytest.FixtureRequest) -> str:
    """A legal topic name that tells which test made it; the number makes it unique."""
    readable = re.sub(r"[^a-zA-Z0-9_]+", "-", request.node.name).strip("-")[:NAME_LENGTH_MAX]
    return f"{readable or 'topic'}-{next(_numbers)}"
