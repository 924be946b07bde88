"""A broker of the test's own, and a process with `--control` for the tests of a module."""

from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from tests.testing.control_client import ControlClient
from tools.processes.barnabas import BarnabasControl


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def process() -> Iterator[BarnabasControl]:
    with BarnabasControl() as process:
        yield process


@pytest.fixture(scope="module")
def control(process: BarnabasControl) -> ControlClient:
    return ControlClient(process.url)
