"""Apache Kafka as the cases want it: each of its brokers behind a proxy of its own, and what is done to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.client_behaviour.beside import reassign
from compat_tests.client_behaviour.drivers.driver import GROUP, TOPIC
from compat_tests.client_behaviour.proxy import Asked, Proxy, Troubles
from compat_tests.semantics.client import Connection, topic_metadata
from tools.foreign.kafka import KafkaServer
from tools.processes.server import free_ports
from tools.waiting import PATIENCE_S, wait_until

METADATA_VERSION = 12
LIST_OFFSETS_VERSION = 4
EARLIEST = -2
NOBODY = -1

CONTROLLER = 0
"""The broker that is the controller, too. No case has it die, so that one is enough."""

SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "replica.lag.time.max.ms": "3000",
    "transaction.state.log.num.partitions": "1",
}
"""Of all brokers: a death is noticed soon, and whatever moves does so because a case wants it to."""


class KafkaBroker:
    """One broker; `number` is its broker id. `bootstrap_servers` are HOST:PORT of its proxy."""

    def __init__(self, number: int, troubles: Troubles, ports: tuple[int, int], settings: Mapping[str, str]) -> None:
        self.number = number
        self._proxy = Proxy(troubles, target_port=ports[0])
        self.bootstrap_servers = f"127.0.0.1:{self._proxy.port}"
        own = {"node.id": str(number), "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}"}
        if number != CONTROLLER:
            own |= {"process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]}"}
        self._server = KafkaServer(overrides={**settings, **own}, ports=ports)

    @property
    def is_running(self) -> bool:
        return self._server.is_running

    def start(self) -> None:
        """Start it, on its data of before if it ran already; returns when clients can connect."""
        self._server.start()
        self._proxy.open()

    def stop(self) -> None:
        """Stop it cleanly, once others lead what it leads."""
        self._server.stop()
        self._proxy.close()

    def kill(self) -> None:
        """End it with SIGKILL; what the proxy still has for clients is lost, too."""
        self._proxy.close()
        self._server.kill()

    def close(self) -> None:
        """It is not needed any more."""
        self.kill()
        self._server.close()


class KafkaTopic:
    """A topic of one partition."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka = kafka
        self._name = name

    def produce(self, value: str) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap_servers, "log_level": 0})
        producer.produce(self._name, value)
        assert producer.flush(PATIENCE_S) == 0

    def records(self) -> list[Value]:
        """The committed values; none where the topic is gone."""
        settings = {"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": "check", "log_level": 0}
        consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
        values: list[Value] = []
        if self._name not in consumer.list_topics(timeout=PATIENCE_S).topics:
            consumer.close()
            return values
        consumer.assign([TopicPartition(self._name, 0, 0)])
        while (message := consumer.poll(PATIENCE_S)) is not None:
            if message.error() is None:
                values.append(Value(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                break
        consumer.close()
        return values


@dataclass
class Value:
    """Of a record."""

    value: bytes


class KafkaFaults(Troubles):
    """The proxies' verbs, and those that Kafka itself does."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__()
        self._kafka = kafka

    def fence_producer(self, transactional_id: str) -> None:
        servers = {"bootstrap.servers": self._kafka.bootstrap_servers}
        Producer({**servers, "transactional.id": transactional_id}).init_transactions(PATIENCE_S)

    def move_leader(self, topic: str, *, to: int) -> None:
        """Have a broker lead the topic, as the first of its replicas, which all brokers are; all know on return."""
        others = [broker.number for broker in self._kafka.brokers if broker.number != to]
        reassign(self._kafka, topic, [to, *others])
        admin = self._kafka.admin()
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(PATIENCE_S)
        wait_until(lambda: self._kafka.leader(topic) == to)

    def move_coordinator(self, *, group: str | None = None, transactional_id: str | None = None, to: int) -> None:
        """The same of all groups, or all transactions: their topics have one partition."""
        self.move_leader(GROUP_METADATA_TOPIC if transactional_id is None else TRANSACTION_STATE_TOPIC, to=to)


class Kafka:
    """A `play.Stage`: Apache Kafka with so many brokers, numbered from 0, each a process; a context manager."""

    def __init__(self, brokers: int = 1) -> None:
        self.faults = KafkaFaults(self)
        [controller_port, *ports] = free_ports(1 + brokers)
        replicas, in_sync = str(brokers), str(min(brokers, 2))
        settings = {
            **SETTINGS,
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{controller_port}",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
        }
        self.brokers = [
            KafkaBroker(number, self.faults, (port, controller_port), settings) for number, port in enumerate(ports)
        ]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for broker in self.brokers:
                stack.callback(broker.close)
                broker.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def bootstrap_servers(self) -> str:
        """Of those that run."""
        return ",".join(broker.bootstrap_servers for broker in self._running())

    def _running(self) -> list[KafkaBroker]:
        return [broker for broker in self.brokers if broker.is_running]

    def admin(self) -> AdminClient:
        """A new one, which knows of no broker that died and no coordinator of before; it is kept until it has done what
        it was asked for."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def controller(self) -> int:
        """The number of the broker that is the controller."""
        return CONTROLLER

    def leader(self, topic: str) -> int:
        """The number of the broker that leads a topic, as soon as all that run say so, and no other serves it."""
        told: set[int] = set()

        def is_agreed() -> bool:
            told.clear()
            told.update(_leader(broker, topic) for broker in self._running())
            told.update(broker.number for broker in self._running() if _serves(broker, topic))
            return len(told) == 1 and NOBODY not in told

        wait_until(is_agreed)
        return min(told)

    def create_topic(self, name: str, *, configs: Mapping[str, Any]) -> KafkaTopic:
        """One partition, on all brokers, which know it on return."""
        admin = self.admin()
        made = admin.create_topics([NewTopic(name, 1, config={k: str(v) for k, v in configs.items()})])
        made[name].result(PATIENCE_S)
        self.leader(name)
        return self.topic(name)

    def topic(self, name: str) -> KafkaTopic:
        return KafkaTopic(self, name)

    def delete_topic(self, name: str) -> None:
        admin = self.admin()
        admin.delete_topics([name])[name].result(PATIENCE_S)

    @contextmanager
    def recorded(self) -> Iterator[list[Asked]]:
        """The clients' requests meanwhile; the list stays afterwards."""
        self.faults.asked = asked = []
        yield asked
        self.faults.asked = []

    def restart(self) -> None:
        for broker in self.brokers:
            broker.stop()
            broker.start()

    def reset(self) -> None:
        """All brokers run, and are in sync; topic and group are gone; the members that were left are waited for."""
        self.faults.clear()
        for broker in self.brokers:
            if not broker.is_running:
                broker.start()
        wait_until(lambda: all(map(_sees_all_in_sync, self.brokers)))
        with suppress(KafkaException):  # it is gone already
            self.delete_topic(TOPIC)
        wait_until(lambda: all(_leader(broker, TOPIC) == NOBODY for broker in self.brokers))
        wait_until(self._is_without_group)

    def _is_without_group(self) -> bool:
        """Whether the group is gone, which is deleted here when it has no members any more."""
        admin = self.admin()
        if all(group.group_id != GROUP for group in admin.list_consumer_groups().result(PATIENCE_S).valid):
            return True
        with suppress(KafkaException):  # it still has members
            admin.delete_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
        return False


def _leader(broker: KafkaBroker, topic: str) -> int:
    """The leader of a topic, by the metadata of one broker."""
    with Connection(broker.bootstrap_servers) as connection:
        partitions = topic_metadata(connection, topic).partitions
    return int(partitions[0].leader_id) if partitions else NOBODY


def _serves(broker: KafkaBroker, topic: str) -> bool:
    """Whether a broker answers as the leader: soon after it says that it is, and no longer that it is not."""
    earliest = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[earliest])])
    with Connection(broker.bootstrap_servers) as connection:
        [answer] = connection.ask(request, LIST_OFFSETS_VERSION).topics[0].partitions
    return not answer.error_code


def _sees_all_in_sync(broker: KafkaBroker) -> bool:
    with Connection(broker.bootstrap_servers) as connection:
        topics = connection.ask(MetadataRequest(topics=None), METADATA_VERSION).topics
    return all(
        partition.leader_id != NOBODY and set(partition.isr_nodes) == set(partition.replica_nodes)
        for topic in topics
        for partition in topic.partitions
    )
