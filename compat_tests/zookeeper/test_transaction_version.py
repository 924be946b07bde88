"""The feature `transaction.version` follows the brokers that are registered: 2 while all support it, else none.

The other broker is what Kafka 3.9.1's `KafkaZkClient.registerBroker` writes for one, and ends with its session.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.coordinators.transactions.records import decode_record
from barnabas.broker.coordinators.transactions.state import Transaction, TransactionState
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import iter_records
from compat_tests.semantics.client import Connection, fetch_partition
from compat_tests.transactions.producer import VERSION_2, TransactionalProducer, committed_values
from compat_tests.zookeeper.conftest import KafkaClasses, broker_on
from tools.foreign.zookeeper import ZooKeeperServer
from tools.jvm.shared import SharedJvm
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

CHROOT = "/transaction-version"


@pytest.fixture(scope="module")
def alone(zookeeper: ZooKeeperServer) -> Iterator[BarnabasProcess]:
    with broker_on(zookeeper, CHROOT, **{"transaction.state.log.num.partitions": "1"}) as process:
        yield process


@pytest.fixture
def connection(alone: BarnabasProcess) -> Iterator[Connection]:
    connection = Connection(alone.bootstrap_servers)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """Kafka 4.3's classes."""
    with SharedJvm() as jvm:
        yield jvm.java


@pytest.fixture
def another_broker(kafka: KafkaClasses, zookeeper: ZooKeeperServer) -> Iterator[Callable[..., KafkaClasses]]:
    """Register a broker as Kafka 3.9.1 does, with its features and others; closing `zk` is its end."""
    opened: list[KafkaClasses] = []

    def register(**features: tuple[int, int]) -> KafkaClasses:
        theirs = KafkaClasses(kafka.jvm, zookeeper.address + CHROOT)
        opened.append(theirs)
        java = theirs.java
        supported = java.java.util.HashMap(java.kafka.server.BrokerFeatures.defaultSupportedFeatures(False).features())
        for name, levels in features.items():
            supported[name.replace("_", ".")] = java.org.apache.kafka.common.feature.SupportedVersionRange(
                *(java.java.lang.Short.valueOf(str(level)) for level in levels)
            )
        protocol = java.org.apache.kafka.common.security.auth.SecurityProtocol.PLAINTEXT
        name = java.org.apache.kafka.common.network.ListenerName.forSecurityProtocol(protocol)
        broker = java.kafka.cluster.Broker(
            2,
            theirs.seq(java.kafka.cluster.EndPoint("elsewhere", 9092, name, protocol)),
            java.scala.Option.empty(),
            java.org.apache.kafka.common.feature.Features.supportedFeatures(supported),
        )
        latest = java.org.apache.kafka.server.common.MetadataVersion.latestProduction()
        theirs.zk.registerBroker(java.kafka.zk.BrokerInfo.apply(broker, latest, -1))
        return theirs

    yield register
    for theirs in opened:
        theirs.zk.close()


def finalised(connection: Connection) -> tuple[int, int]:
    """The level that clients are told, 0 for none, and its epoch."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = connection.ask(request, 4)
    (supported,) = response.supported_features
    assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 0, 2)
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    assert levels in ({}, {"transaction.version": 2})
    return levels.get("transaction.version", 0), response.finalized_features_epoch


def await_level_2(connection: Connection) -> None:
    """The broker that a test before has registered may be gone only now."""
    wait_until(lambda: finalised(connection)[0] == 2)


def becomes(connection: Connection, level: int, epoch_before: int) -> int:
    """Wait for a level; its epoch, which clients must take for a later one."""
    wait_until(lambda: finalised(connection)[0] == level)
    epoch = finalised(connection)[1]
    assert epoch > epoch_before
    return epoch


def stored(connection: Connection, transactional_id: str) -> tuple[set[int], list[Transaction]]:
    """The versions of a transactional id's records in the coordinator's log, and what they say."""
    versions, found, offset = set(), [], 0
    while buffer := bytes(fetch_partition(connection, "__transaction_state", offset).records or b""):
        for header in iter_headers(buffer):
            offset = header.next_offset
            for record in iter_records(buffer, header):
                transaction = decode_record(bytes(record.key or b""), record.value)
                if isinstance(transaction, Transaction) and transaction.transactional_id == transactional_id:
                    versions.add(int.from_bytes(bytes(record.value or b"")[:2], "big"))
                    found.append(transaction)
    return versions, found


def completed(connection: Connection, transactional_id: str) -> tuple[set[int], set[int]]:
    """Once the last transaction is complete: versions of the records, transaction versions of the client in them."""

    def is_complete() -> bool:
        return stored(connection, transactional_id)[1][-1].state is TransactionState.COMPLETE_COMMIT

    wait_until(is_complete)
    versions, transactions = stored(connection, transactional_id)
    return versions, {each.client_version for each in transactions}


def by_librdkafka(broker: BarnabasProcess, topic: str, transactional_id: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, transactional_id)
    producer.commit_transaction(PATIENCE_S)


def java_producer(java: Any, broker: BarnabasProcess, transactional_id: str) -> Any:
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    configs = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": transactional_id,
        "key.serializer": serializer,
        "value.serializer": serializer,
    }
    properties = java.java.util.Properties()
    for key, value in configs.items():
        properties.setProperty(key, value)
    producer = java.org.apache.kafka.clients.producer.KafkaProducer(properties)
    producer.initTransactions()
    return producer


def commit(java: Any, producer: Any, topic: str, value: str) -> None:
    producer.beginTransaction()
    producer.send(java.org.apache.kafka.clients.producer.ProducerRecord(topic, value))
    producer.commitTransaction()


def test_the_level_follows_registrations(connection: Connection, another_broker: Callable[..., KafkaClasses]) -> None:
    level, epoch = finalised(connection)
    assert level == 2
    assert epoch >= 0
    theirs = another_broker()
    epoch = becomes(connection, 0, epoch)
    theirs.zk.close()
    epoch = becomes(connection, 2, epoch)
    able = another_broker(transaction_version=(0, 2))
    wait_until(lambda: finalised(connection)[1] > epoch)
    assert finalised(connection)[0] == 2, "it supports the feature, too"
    epoch = finalised(connection)[1]
    able.zk.close()
    another_broker(transaction_version=(0, 1))
    becomes(connection, 0, epoch)


def test_transactions_at_each_level(
    alone: BarnabasProcess, connection: Connection, java: Any, another_broker: Callable[..., KafkaClasses]
) -> None:
    from compat_tests.conftest import create_topic

    create_topic(alone.bootstrap_servers, "t", 1, None)
    await_level_2(connection)
    old = java_producer(java, alone, "java-told-2")
    commit(java, old, "t", "a")
    by_librdkafka(alone, "t", "librdkafka-at-2")
    assert completed(connection, "java-told-2") == ({1}, {0, 2})
    assert completed(connection, "librdkafka-at-2") == ({1}, {0})
    epoch = finalised(connection)[1]

    theirs = another_broker()
    epoch = becomes(connection, 0, epoch)
    new = java_producer(java, alone, "java-told-0")
    commit(java, new, "t", "b")
    by_librdkafka(alone, "t", "librdkafka-at-0")
    commit(java, old, "t", "c")  # over the connections that it has, still as version 2
    assert completed(connection, "java-told-0") == ({0}, {0})
    assert completed(connection, "librdkafka-at-0") == ({0}, {0})
    versions, transactions = stored(connection, "java-told-2")
    assert versions == {0, 1}
    assert transactions[-1].producer_epoch == 2, "bumped at both ends"

    theirs.zk.close()
    becomes(connection, 2, epoch)
    for producer in (old, new):
        commit(java, producer, "t", "d")
        producer.close()
    latest = java_producer(java, alone, "java-told-2-again")
    commit(java, latest, "t", "e")
    latest.close()
    assert completed(connection, "java-told-2-again") == ({1}, {0, 2})
    wait_until(lambda: len(committed_values(connection, "t")) == 8)
    assert sorted(committed_values(connection, "t")) == sorted(
        [b"a", b"b", b"c", b"d", b"d", b"e", b"librdkafka-at-0", b"librdkafka-at-2"]
    )


def test_a_version_2_transaction_outlives_the_fall_of_the_level(
    alone: BarnabasProcess, connection: Connection, another_broker: Callable[..., KafkaClasses]
) -> None:
    from compat_tests.conftest import create_topic

    create_topic(alone.bootstrap_servers, "u", 1, None)
    await_level_2(connection)
    producer = TransactionalProducer(connection, "open", VERSION_2)
    producer.init()
    producer.send("u", b"begun at 2")
    epoch = finalised(connection)[1]
    theirs = another_broker()
    becomes(connection, 0, epoch)
    producer.send("u", b"goes on at 0")
    producer.commit()
    before = producer.identity
    producer.send("u", b"begun at 0")
    theirs.zk.close()
    becomes(connection, 2, epoch)
    producer.commit()
    assert producer.identity.producer_epoch == before.producer_epoch + 1
    wait_until(lambda: len(committed_values(connection, "u")) == 3)


def test_a_restart_has_a_later_epoch(alone: BarnabasProcess, connection: Connection) -> None:
    """Clients that were told before would not listen otherwise."""
    epoch = finalised(connection)[1]
    alone.stop()
    alone.start()
    again = Connection(alone.bootstrap_servers)
    level, epoch_after = finalised(again)
    again.close()
    assert level == 2
    assert epoch_after > epoch
