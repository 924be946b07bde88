"""Three brokers, each a process, that speak SASL_SSL with clients and among themselves: one is killed while the
certificates of the others are replaced, and nothing that was acknowledged is lost."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas.broker.security.sasl import jaas
from tests.support.certificates import Authority
from tools.processes.barnabas import BarnabasProcess, BarnabasZooKeeper
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.store]

NODE_IDS: Final = (1, 2, 3)
TOPIC: Final = "letters"
PARTITIONS: Final = 3
OF_BROKERS: Final = "of the brokers"
OF_ALICE: Final = "of alice"
ALL_ALLOWED: Final = (
    (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
    (ResourceType.TOPIC, TOPIC, AclOperation.READ),
    (ResourceType.GROUP, "readers", AclOperation.READ),
)


class Secured:
    """The brokers, with a key store each, of one authority. Brokers log in to each other by PLAIN, and are super users;
    alice logs in by SCRAM, and has permissions for the topic."""

    def __init__(self, zookeeper: str, directory: Path) -> None:
        self.authority = Authority(directory)
        options = {"username": "brokers", "password": OF_BROKERS, "user_brokers": OF_BROKERS}
        common = {
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": "6000",
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",  # the listener of `--listen` has that name
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": jaas.LoginModule(
                jaas.PLAIN_LOGIN_MODULE, options=options
            ).line(),
            "ssl.truststore.location": str(self.authority.trust_store),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:brokers",
            "offsets.topic.num.partitions": "1",
            "min.insync.replicas": "2",
        }
        self.brokers = {
            each: BarnabasProcess(
                {
                    **common,
                    "node.id": str(each),
                    "ssl.keystore.location": str(self.authority.key_store(f"broker-{each}")),
                }
            )
            for each in NODE_IDS
        }

    def client(self, name: str, mechanism: str, password: str) -> dict[str, Any]:
        """librdkafka's settings for a user."""
        return {
            "bootstrap.servers": ",".join(each.bootstrap_servers for each in self.brokers.values()),
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.trust_store),
            "log_level": 0,
        }

    @property
    def administrator(self) -> AdminClient:
        return AdminClient(self.client("brokers", "PLAIN", OF_BROKERS))

    @property
    def alice(self) -> dict[str, Any]:
        return self.client("alice", "SCRAM-SHA-512", OF_ALICE)

    def prepare(self) -> None:
        """Add alice, the permissions and the topic."""
        administrator = self.administrator
        wait_until(lambda: len(administrator.list_topics(timeout=PATIENCE_S).brokers) == len(NODE_IDS))
        administrator.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(PATIENCE_S)
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion("alice", credential, OF_ALICE.encode())
        administrator.alter_user_scram_credentials([upsertion])["alice"].result(PATIENCE_S)
        rules = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
            for kind, name, operation in ALL_ALLOWED
        ]
        for done in administrator.create_acls(rules).values():
            done.result(PATIENCE_S)
        self.wait_in_sync(*NODE_IDS)

    def wait_in_sync(self, *node_ids: int) -> None:
        """Return when exactly these are in sync in each partition."""
        administrator = self.administrator

        def partitions() -> list[tuple[int, list[int]]]:
            found = administrator.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions.values()
            return [(each.leader, sorted(each.isrs)) for each in found]

        def are_in_sync() -> bool:
            return all(leader in node_ids and isrs == [*node_ids] for leader, isrs in partitions())

        wait_until(are_in_sync, partitions)

    def shown(self, node_id: int) -> str:
        """The certificate of a broker, in PEM, as a new client sees it."""
        host, _, port = self.brokers[node_id].bootstrap_servers.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), ca_certs=str(self.authority.trust_store))

    def replace_certificates(self, *node_ids: int) -> None:
        """Write other key stores to the files of running brokers, and return when they show those."""
        before = {each: self.shown(each) for each in node_ids}
        for each in node_ids:
            self.authority.key_store(f"broker-{each}")
        for each in node_ids:
            wait_until(lambda node_id=each: self.shown(node_id) != before[node_id])  # type: ignore[misc]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with contextlib.ExitStack() as stack:
        found = Secured(stack.enter_context(BarnabasZooKeeper()).address, tmp_path)
        for each in found.brokers.values():
            stack.enter_context(each)
        found.prepare()
        yield found


class Letters:
    """Values that alice produces with acks=all, and those of them that were acknowledged."""

    def __init__(self, secured: Secured) -> None:
        self._producer = Producer({**secured.alice, "acks": "all", "enable.idempotence": "true", "linger.ms": "0"})
        self._count = 0
        self.acknowledged: list[bytes] = []

    def send(self, count: int) -> None:
        """Produce so many, over all partitions, and wait for the acknowledgements."""

        def told(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            self.acknowledged.append(message.value() or b"")

        for _ in range(count):
            self._producer.produce(TOPIC, b"%d" % self._count, partition=self._count % PARTITIONS, on_delivery=told)
            self._count += 1
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0


def read_all(secured: Secured) -> list[bytes]:
    """The values in the topic, as alice reads them."""
    consumer = Consumer({**secured.alice, "group.id": "readers", "enable.auto.commit": "false"})
    try:
        values: list[bytes] = []
        for index in range(PARTITIONS):
            partition = TopicPartition(TOPIC, index, 0)
            _, end = consumer.get_watermark_offsets(partition, PATIENCE_S)
            consumer.assign([partition])
            for _ in range(end):
                message = consumer.poll(PATIENCE_S)
                assert message is not None
                assert message.error() is None
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


def test_a_killed_broker_and_replaced_certificates(secured: Secured) -> None:
    """Records are acknowledged before, meanwhile and after; the broker that was killed is in sync again by connections
    that show the other certificates, and has all when another one is killed."""
    letters = Letters(secured)
    letters.send(100)
    secured.brokers[2].kill()
    letters.send(100)
    secured.replace_certificates(1, 3)
    letters.send(100)
    secured.brokers[2].start()
    secured.wait_in_sync(*NODE_IDS)
    letters.send(100)
    secured.brokers[1].kill()
    secured.wait_in_sync(2, 3)
    letters.send(100)
    assert len(letters.acknowledged) == 500
    assert sorted(read_all(secured)) == sorted(letters.acknowledged)
