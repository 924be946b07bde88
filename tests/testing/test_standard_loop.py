"""Brokers of tests without uvloop, on the standard event loop. `make test-full` runs all tests of brokers so, too."""

import os
import sys

import pytest

from tools.gate.tiers import WITHOUT_UVLOOP
from tools.processes import children

pytestmark = pytest.mark.slow

ROUND_TRIP = """
import sys
from barnabas.testing import Broker, Cluster
with Broker() as broker:
    broker.create_topic("t").produce("1")
    assert [record.value for record in broker.topic("t").records()] == [b"1"]
with Cluster() as cluster:
    cluster.create_topic("t")
    assert cluster.leader("t") in (0, 1, 2)
assert not any(name.startswith("uvloop.") for name in sys.modules)
"""


@pytest.mark.live
def test_a_broker_and_a_cluster() -> None:
    environment = {**os.environ, **WITHOUT_UVLOOP}
    done = children.run([sys.executable, "-c", ROUND_TRIP], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
