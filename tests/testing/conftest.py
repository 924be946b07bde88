"""A broker of the test's own."""

from collections.abc import Iterator

import pytest

from barnabas.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
