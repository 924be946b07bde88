"""Brokers of tests under what people run their tests with: unittest, and the plugins of pytest of anyio and trio."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.required import tool_missing
from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.live]

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

UNITTEST = """
import unittest

from barnabas.testing import Broker, Cluster
from confluent_kafka import Producer


class OfOneBroker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.broker = cls.enterClassContext(Broker())

    def setUp(self):
        self.addCleanup(self.broker.reset)

    def test_first(self):
        self.write()

    def test_second(self):
        self.write()

    def write(self):
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        producer.produce("orders", "1")
        self.assertEqual(producer.flush(30), 0)
        self.assertEqual([record.value for record in self.broker.topic("orders").records()], [b"1"])


class OfAsynchronousTests(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.broker = await self.enterAsyncContext(Broker())
        self.cluster = await self.enterAsyncContext(Cluster(2))

    async def test_both(self):
        for owner in (self.broker, self.cluster):
            topic = owner.create_topic("t")
            topic.produce("1")
            self.assertEqual(len(await topic.wait_records_async(1)), 1)
            await owner.wait_group_async("g", "Dead")


unittest.main()
"""

ANYIO = """
import anyio
import pytest
from barnabas.testing import Broker

pytestmark = pytest.mark.anyio


@pytest.fixture(params=BACKENDS)
def anyio_backend(request):
    return request.param


@pytest.fixture
async def orders(kafka_broker, kafka_topic):
    return kafka_broker.topic(kafka_topic)


async def test_fixtures_are_the_same(kafka_broker, orders):
    with anyio.fail_after(30):
        orders.produce("1")
        assert [record.value for record in orders.records()] == [b"1"]
        hold = kafka_broker.faults.hold("Produce")
        assert hold.held == 0
        hold.remove()
        kafka_broker.clock.now_ms()


async def test_waits_in_threads(kafka_broker, orders):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, orders.wait_records, 1)
        orders.produce("1")
"""

OF_ASYNCIO = """

async def test_twins_that_are_awaited(anyio_backend):
    async with Broker() as broker:
        topic = broker.create_topic("t")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(topic.wait_records_async, 1)
            await anyio.sleep(0)
            topic.produce("1")
        with anyio.move_on_after(0.05) as scope:
            await broker.wait_group_async("g", "Stable")
        assert scope.cancelled_caught
"""

TRIO = """
import pytest
import trio
from barnabas.testing import Broker

pytestmark = pytest.mark.trio


@pytest.fixture
async def orders(kafka_broker, kafka_topic):
    yield kafka_broker.topic(kafka_topic)


async def test_fixtures_are_the_same(kafka_broker, orders):
    with trio.fail_after(30):
        orders.produce("1")
        assert [record.value for record in orders.records()] == [b"1"]
        with kafka_broker.faults.hold("Produce") as hold:
            assert hold.held == 0
        kafka_broker.clock.now_ms()


async def test_waits_in_threads(orders, nursery):
    nursery.start_soon(trio.to_thread.run_sync, orders.wait_records, 1)
    orders.produce("1")


async def test_a_broker_of_its_own():
    with Broker() as broker:
        topic = broker.create_topic("t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, topic.wait_records, 1)
            await trio.to_thread.run_sync(topic.produce, "1")
"""


def test_unittest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(UNITTEST)
    done = children.run(
        [sys.executable, "-W", "error", "test_it.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    of_asyncio = OF_ASYNCIO if backend == "asyncio" else ""
    pytester.makepyfile(f"BACKENDS = [{backend!r}]\n{ANYIO}{of_asyncio}")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error")
    result.assert_outcomes(passed=3 if of_asyncio else 2)


def test_trio(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside anyio's plugin, which is there, too, and leaves these tests alone."""
    if find_spec("pytest_trio") is None:
        tool_missing("no pytest-trio")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    pytester.makepyfile(TRIO)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error")
    result.assert_outcomes(passed=3)
