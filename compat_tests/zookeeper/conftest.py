"""A broker on a real ZooKeeper, and Kafka 3.9.1's own classes aimed at the same tree."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from tests.support.required import tool_missing
from tools.foreign.kafka import ZOOKEEPER_ERA_VERSION
from tools.foreign.zookeeper import ALONE, ZooKeeperServer
from tools.jvm.shared import SharedJvm
from tools.processes.barnabas import BarnabasProcess

CHROOT = "/clusters/one"
SESSION_TIMEOUT_MS = 4000


def broker_on(zookeeper: ZooKeeperServer, chroot: str = CHROOT, **overrides: str) -> BarnabasProcess:
    """A broker that has not been started."""
    settings = {
        "zookeeper.connect": zookeeper.address + chroot,
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "broker.rack": "r1",
        "offsets.topic.num.partitions": "4",
        **ALONE,
    }
    return BarnabasProcess({**settings, **overrides})


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def broker(zookeeper: ZooKeeperServer) -> Iterator[BarnabasProcess]:
    with broker_on(zookeeper) as process:
        yield process


class KafkaClasses:
    """Kafka's Scala, called from Python; `zk` is a KafkaZkClient, `admin` an AdminZkClient."""

    def __init__(self, jvm: SharedJvm, address: str) -> None:
        self.jvm = jvm
        self.java = jvm.java
        self.zk = self.java.kafka.zk.KafkaZkClient.apply(
            address,
            False,
            30_000,
            30_000,
            10,
            self.java.org.apache.kafka.common.utils.Time.SYSTEM,
            "compat",
            self.java.org.apache.zookeeper.client.ZKClientConfig(),
            "kafka.server",
            "SessionExpireListener",
            False,
            True,
        )
        self.admin = self.java.kafka.zk.AdminZkClient(self.zk, self.java.scala.Option.empty())

    def partition(self, topic: str, index: int) -> Any:
        return self.java.org.apache.kafka.common.TopicPartition(topic, index)

    def seq(self, *items: Any) -> Any:
        return self._scala(*items).toSeq()

    def set(self, *items: Any) -> Any:
        return self._scala(*items).toSet()

    def _scala(self, *items: Any) -> Any:
        values = self.java.java.util.ArrayList()
        for item in items:
            values.add(item)
        return self.java.scala.jdk.javaapi.CollectionConverters.asScala(values)

    def python(self, collection: Any) -> Any:
        """A Scala collection as something that Python iterates over."""
        return self.java.scala.jdk.javaapi.CollectionConverters.asJava(collection)

    def properties(self, configs: dict[str, str]) -> Any:
        result = self.java.java.util.Properties()
        for key, value in configs.items():
            result.setProperty(key, value)
        return result


@pytest.fixture(scope="session")
def kafka(zookeeper: ZooKeeperServer, broker: BarnabasProcess) -> Iterator[KafkaClasses]:
    with SharedJvm(ZOOKEEPER_ERA_VERSION) as jvm:
        classes = KafkaClasses(jvm, zookeeper.address + CHROOT)
        yield classes
        with contextlib.suppress(Exception):
            classes.zk.close()


@pytest.fixture
def admin(broker: BarnabasProcess) -> Any:
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def new_topic(broker: BarnabasProcess, topic_name: str) -> Callable[..., str]:
    """Create a topic through the broker; returns its name."""

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        from compat_tests.conftest import create_topic

        create_topic(broker.bootstrap_servers, topic_name, partitions, configs)
        return topic_name

    return create
