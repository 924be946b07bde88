"""ListConfigResources: what has configs, by type."""

import socket
from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from tools.attack.hostile import ask, connect

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
TOPICS = {(TOPIC, "a"), (TOPIC, "b")}


@pytest.fixture(scope="module")
def connection() -> Iterator[socket.socket]:
    with Broker() as broker:
        for name in ("a", "b"):
            broker.create_topic(name)
        with connect(broker.bootstrap_servers) as connection:
            yield connection


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([TOPIC], TOPICS),
        ([BROKER], {(BROKER, "1")}),
        ([BROKER_LOGGER, BROKER], {(BROKER, "1"), (BROKER_LOGGER, "1")}),
        ([CLIENT_METRICS, GROUP], set()),
        ([], {*TOPICS, (BROKER, "1"), (BROKER_LOGGER, "1")}),
        ([TOPIC, TOPIC], TOPICS),
    ],
)
def test_resources_with_configs_are_listed_by_type(
    connection: socket.socket, types: list[int], expected: set[tuple[int, str]]
) -> None:
    response = ask(connection, ListConfigResourcesRequest(resource_types=types), 1, ListConfigResourcesResponse)
    listed = [(each.resource_type, each.resource_name) for each in response.config_resources]
    assert response.error_code == ErrorCode.NONE
    assert set(listed) == expected
    assert len(listed) == len(expected)


@pytest.mark.parametrize("types", [[0], [TOPIC, 3], [-1], [127]])
def test_other_types_are_refused(connection: socket.socket, types: list[int]) -> None:
    response = ask(connection, ListConfigResourcesRequest(resource_types=types), 1, ListConfigResourcesResponse)
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


def test_version_0_lists_client_metrics_of_which_there_are_none(connection: socket.socket) -> None:
    response = ask(connection, ListConfigResourcesRequest(), 0, ListConfigResourcesResponse)
    assert (response.error_code, response.config_resources) == (ErrorCode.NONE, [])
