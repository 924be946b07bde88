"""The cluster under test, for every client's folder.

`BARNABAS_COMPAT_TARGET` chooses it: `barnabas` (default) is the real command `python -m barnabas serve` on a free port
with an empty data directory; `barnabas-zookeeper` is the same with its metadata in a real ZooKeeper; `kafka` is Apache
Kafka 4.3.0, the oracle: it shows whether a test asks for Kafka's ways.
`BARNABAS_COMPAT_BOOTSTRAP=HOST:PORT` takes a broker that runs already instead.
"""

import os
import secrets
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # for `tools`, which no wheel contains

import tests.support.hypothesis_profiles  # noqa: E402, F401 - registers them
from tools.processes.barnabas import BarnabasProcess  # noqa: E402
from tools.waiting import PATIENCE_S  # noqa: E402

BARNABAS, BARNABAS_ZOOKEEPER, KAFKA = "barnabas", "barnabas-zookeeper", "kafka"
TARGET = os.environ.get("BARNABAS_COMPAT_TARGET", BARNABAS)
LOG_TAIL_CHARACTERS = 6000

plays_broker = pytest.mark.skipif(
    TARGET == BARNABAS_ZOOKEEPER, reason="with ZooKeeper only registered brokers are believed (decision 17)"
)
"""Marks tests that send what only brokers may send. A broker alone believes them, and Apache Kafka does."""

MakeTopic = Callable[..., str]


class Cluster(Protocol):
    """The facts about the cluster under test that tests may use."""

    target: str
    """`barnabas` or `kafka`."""

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for clients."""

    @property
    def pid(self) -> int:
        """The broker's process."""

    @property
    def log_dir(self) -> Path:
        """The broker's log directory (Kafka's sense: where the partitions are)."""

    def stop(self) -> None:
        """Stop the broker cleanly."""

    def kill(self) -> None:
        """Stop the broker as a crash would."""

    def start(self) -> None:
        """Start it again on the same data directory and the same port."""

    def close(self) -> None:
        """Stop it for good and delete what it wrote."""

    def log_text(self) -> str:
        """Everything the broker logged so far."""


class BarnabasTarget(BarnabasProcess):
    """The command as a user starts it."""

    target = BARNABAS


class BarnabasOnZooKeeperTarget(BarnabasProcess):
    """The same with `zookeeper.connect`: a ZooKeeper of its own that lives as long as it does."""

    target = BARNABAS

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        from tools.foreign.zookeeper import ALONE, ZooKeeperServer

        self._zookeeper = ZooKeeperServer()
        self._zookeeper.start()
        alone = {
            **ALONE,
            "zookeeper.connect": f"{self._zookeeper.address}/kafka",
            "zookeeper.session.timeout.ms": "4000",  # a killed broker's successor waits that long
        }
        super().__init__({**alone, **(overrides or {})})

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._zookeeper.close()


class KafkaTarget:
    """Apache Kafka 4.3.0, one KRaft node, with the settings by which Barnabas alone differs from its defaults."""

    target = KAFKA

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        from tools.foreign.kafka import KafkaServer  # nothing to do with Java is loaded for Barnabas

        alone = {"group.initial.rebalance.delay.ms": "0"}
        self._server = KafkaServer(overrides={**alone, **(overrides or {})})

    @property
    def bootstrap_servers(self) -> str:
        return self._server.bootstrap_servers

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def log_dir(self) -> Path:
        return self._server.log_dir

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def close(self) -> None:
        self._server.close()

    def log_text(self) -> str:
        return self._server.log_text()


class RunningBroker:
    """A broker that somebody else started: nothing but its address is known."""

    target = TARGET

    def __init__(self, address: str) -> None:
        self.bootstrap_servers = address

    @property
    def pid(self) -> int:
        pytest.skip("the process of a broker somebody else started is unknown")

    @property
    def log_dir(self) -> Path:
        pytest.skip("the log directory of a broker somebody else started is unknown")

    def start(self) -> None:
        pytest.skip("a broker somebody else started is not restarted")

    stop = kill = start

    def close(self) -> None:
        """Leaves it as it is."""

    def log_text(self) -> str:
        return ""


def new_cluster(overrides: Mapping[str, str] | None = None) -> Cluster:
    """A broker of the chosen target, not started yet."""
    if TARGET == BARNABAS:
        return BarnabasTarget(overrides)
    if TARGET == BARNABAS_ZOOKEEPER:
        return BarnabasOnZooKeeperTarget(overrides)
    if TARGET == KAFKA:
        return KafkaTarget(overrides)
    raise pytest.UsageError(
        f"BARNABAS_COMPAT_TARGET is {TARGET!r}: expected {BARNABAS}, {BARNABAS_ZOOKEEPER} or {KAFKA}"
    )


SHARED_SETTINGS = {"log.retention.check.interval.ms": "86400000"}
"""Tests give records timestamps of their own, years old, which retention would delete from under them when it looks.
(Kafka looks once more, 30 s after its start.) The settings that say how old are left alone: tests look at these."""

_clusters: list[Cluster] = []
_log_position_at_start_of_test: dict[int, int] = {}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster that all tests share; each uses topics and groups of its own."""
    address = os.environ.get("BARNABAS_COMPAT_BOOTSTRAP")
    shared: Cluster = RunningBroker(address) if address else new_cluster(SHARED_SETTINGS)
    yield from _started(shared)


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Start a broker of one's own, for example to stop it or to give it settings: `start_cluster({"key": "value"})`."""
    started: list[Iterator[Cluster]] = []

    def start(overrides: Mapping[str, str] | None = None) -> Cluster:
        lifetime = _started(new_cluster(overrides))
        started.append(lifetime)
        return next(lifetime)

    yield start
    for lifetime in started:
        next(lifetime, None)


def _started(each: Cluster) -> Iterator[Cluster]:
    _clusters.append(each)
    try:
        if not isinstance(each, RunningBroker):
            each.start()
        yield each
    finally:
        _clusters.remove(each)
        each.close()


@pytest.fixture
def topic_name() -> str:
    """The name of a topic that does not exist."""
    return f"compat-{secrets.token_hex(6)}"


@pytest.fixture
def make_topic(cluster: Cluster) -> MakeTopic:
    """Create a topic: `make_topic(partitions=1, configs={...}, name=...)` returns its name (a fresh one by default)."""

    def make(partitions: int = 1, configs: Mapping[str, str] | None = None, name: str | None = None) -> str:
        name = name or f"compat-{secrets.token_hex(6)}"
        create_topic(cluster.bootstrap_servers, name, partitions, configs)
        return name

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A fresh topic of one partition."""
    return make_topic()


def create_topic(bootstrap_servers: str, name: str, partitions: int, configs: Mapping[str, str] | None) -> None:
    """Create a topic with librdkafka's admin client.

    Raises confluent_kafka.KafkaException.
    """
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
    admin.create_topics([new], operation_timeout=30)[name].result(PATIENCE_S)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nearly all tests below this folder drive processes and clients that are not ours."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.live)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what the broker logged during it."""
    report = yield
    for each in _clusters:
        text = each.log_text()
        since = _log_position_at_start_of_test.get(id(each), 0)
        if report.failed and text[since:]:
            title = f"log of {each.target} at {each.bootstrap_servers}"
            report.sections.append((title, text[since:][-LOG_TAIL_CHARACTERS:]))
        if report.when == "teardown":
            _log_position_at_start_of_test[id(each)] = len(text)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With pytest-xdist the tests of a client share a process, and with it a cluster, a Spark and a Java machine."""
    from xdist.scheduler import LoadScopeScheduling

    class ByClient(LoadScopeScheduling):
        """Goes by folder here, and by file in `tests`."""

        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::")[0]
            return "/".join(path.split("/")[:2]) if path.startswith("compat_tests/") else path

    return ByClient(config, log)


def pytest_report_header() -> str:
    return f"compatibility target: {os.environ.get('BARNABAS_COMPAT_BOOTSTRAP', TARGET)}"
