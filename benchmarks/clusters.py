"""Clusters of three brokers on this machine: each broker is a process with its defaults and what a cluster needs."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tools.foreign.kafka import DEFAULT_BROKER_JVM, KafkaServer
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes.barnabas import BarnabasProcess
from tools.processes.server import ServerProcess, free_ports
from tools.soak.write_gap import Kafka3

BROKERS = 3
SESSION_TIMEOUT_MS = 6_000
SHORT_SESSIONS = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
"""The session timeout with ZooKeeper in workloads that measure the death of a broker."""


class Cluster:
    """Brokers that know of each other; a context manager, at whose end all their data goes.

    `brokers` makes them, once `zookeeper` runs, where they need one. They start together, since some wait for each
    other.
    """

    def __init__(
        self, brokers: Callable[[], Sequence[ServerProcess]], zookeeper: ZooKeeperServer | None = None
    ) -> None:
        self._make_brokers = brokers
        self.zookeeper = zookeeper
        self._stack = ExitStack()
        self.brokers: Sequence[ServerProcess] = ()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each broker."""
        return [broker.bootstrap_servers for broker in self.brokers]  # type: ignore[attr-defined]

    @property
    def pids(self) -> list[int]:
        """The process ids of the brokers, without ZooKeeper's."""
        return [broker.pid for broker in self.brokers]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.zookeeper is not None:
                stack.enter_context(self.zookeeper)
            self.brokers = self._make_brokers()
            for broker in self.brokers:
                stack.callback(broker.close)
            stack.callback(self._kill)  # first: without each other Kafka's take half a minute to stop
            with ThreadPoolExecutor(BROKERS) as threads:
                list(threads.map(lambda broker: broker.start(), self.brokers))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _kill(self) -> None:
        for broker in self.brokers:
            broker.kill()


def barnabas_cluster() -> Cluster:
    """Barnabas beside a ZooKeeper; ids from 1."""
    return _beside_zookeeper(lambda settings, _: BarnabasProcess(settings), {})


def barnabas_beside_zookeeper() -> Cluster:
    """A cluster like `barnabas_cluster`, with sessions of SESSION_TIMEOUT_MS."""
    return _beside_zookeeper(lambda settings, _: BarnabasProcess(settings), SHORT_SESSIONS)


def kafka_beside_zookeeper() -> Cluster:
    """Kafka 3.9 in ZooKeeper mode, with sessions of SESSION_TIMEOUT_MS; ids from 1."""
    return _beside_zookeeper(lambda settings, port: Kafka3(settings, port, DEFAULT_BROKER_JVM), SHORT_SESSIONS)


def _beside_zookeeper(make: Callable[[Mapping[str, str], int], ServerProcess], settings: Mapping[str, str]) -> Cluster:
    zookeeper = ZooKeeperServer()

    def brokers() -> list[ServerProcess]:
        own = {**settings, "zookeeper.connect": zookeeper.address}
        ports = free_ports(BROKERS)
        return [make({**own, "broker.id": str(number)}, port) for number, port in enumerate(ports, 1)]

    return Cluster(brokers, zookeeper)


def kafka_cluster() -> Cluster:
    """Kafka in KRaft mode: each of the three is a broker and a controller; ids from 1."""

    def brokers() -> list[ServerProcess]:
        ports = [free_ports(2) for _ in range(BROKERS)]
        voters = ",".join(f"{number}@127.0.0.1:{controller}" for number, (_, controller) in enumerate(ports, 1))
        return [
            KafkaServer(
                overrides={
                    "node.id": str(number),
                    "controller.quorum.voters": voters,
                    "offsets.topic.replication.factor": "3",
                    "transaction.state.log.replication.factor": "3",
                    "transaction.state.log.min.isr": "2",
                    "share.coordinator.state.topic.replication.factor": "3",
                    "share.coordinator.state.topic.min.isr": "2",
                },
                jvm_options=DEFAULT_BROKER_JVM,
                ports=(port, controller),
            )
            for number, (port, controller) in enumerate(ports, 1)
        ]

    return Cluster(brokers)
