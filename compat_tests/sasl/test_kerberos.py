"""Kerberos: logins by GSSAPI at a broker, in a realm with a key distribution center that the tests start.

librdkafka of confluent-kafka's wheel has no GSSAPI, so that the clients are Java's and a login message by message.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from barnabas.broker.security.sasl import jaas, kerberos
from barnabas.spark_examples.ivy import FetchFailed
from barnabas.spark_examples.java import JavaMissing, find_java
from barnabas.wire.errors import ErrorCode
from compat_tests.conftest import BARNABAS, TARGET, BarnabasTarget
from compat_tests.java_tools.kafka_tools import MAIN_CLASSES, PATIENCE_MS
from tests.support.required import tool_missing
from tools.foreign.kafka import SMALL_JVM, kafka_runtime
from tools.foreign.kerberos import REALM, KerberosMissing, KerberosServer
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess, BarnabasZooKeeper
from tools.waiting import PATIENCE_S, wait_until

RULES: Final = r"RULE:[1:$1@$0](admin-.*@.*)s/admin-(.*)@.*/$1/U,DEFAULT"
"""admin-alice is ALICE, alice is alice."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TARGET != BARNABAS, reason="the broker needs the variables of the realm"),
]


class KerberosCluster(NamedTuple):
    """A broker with GSSAPI, and its realm. `settings(principal)` are a client's properties."""

    bootstrap_servers: str
    realm: KerberosServer

    def settings(self, principal: str) -> dict[str, str]:
        line = jaas.LoginModule(
            jaas.KERBEROS_LOGIN_MODULE,
            options={
                "useKeyTab": "true",
                "storeKey": "true",
                "keyTab": str(self.realm.key_table(principal)),
                "principal": f"{principal}@{REALM}",
            },
        ).line()
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": line,
        }


@pytest.fixture(scope="module")
def realm() -> Iterator[KerberosServer]:
    try:
        kerberos.find_package()
        server = KerberosServer()
    except ImportError as missing:
        tool_missing(f"{missing} (barnabas[kerberos])")
    except KerberosMissing as missing:
        tool_missing(missing)
    with server:
        yield server


def broker_settings(cluster: KerberosCluster) -> dict[str, str]:
    """GSSAPI for everybody, and all rights for alice and for ADMIN."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": RULES,
        "listener.name.plaintext.gssapi.sasl.jaas.config": cluster.settings("kafka/localhost")["sasl.jaas.config"],
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice;User:ADMIN",
        "connection.failed.authentication.delay.ms": "10",
    }


@pytest.fixture(scope="module")
def kerberos_cluster(realm: KerberosServer) -> Iterator[KerberosCluster]:
    found = KerberosCluster("", realm)
    cluster = BarnabasTarget(broker_settings(found))
    cluster.environment = realm.environment
    try:
        cluster.start()
        yield found._replace(bootstrap_servers=cluster.bootstrap_servers)
    finally:
        cluster.close()


def log_in(cluster: KerberosCluster, principal: str, way: str = "right") -> Any:
    """The outcome of a login by `gssapi_client.py`."""
    key_table = cluster.realm.key_table(principal)
    done = children.run(
        [sys.executable, "-m", "compat_tests.sasl.gssapi_client",
         cluster.bootstrap_servers, f"{principal}@{REALM}", key_table, way],
        env={**os.environ, **cluster.realm.environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_messages(kerberos_cluster: KerberosCluster) -> None:
    """The broker offers no security layer, in a message that the context signs, and then serves."""
    assert log_in(kerberos_cluster, "alice") == {"error": 0, "message": None, "is_served": True}


@pytest.mark.parametrize(
    "way", ["garbage", *(pytest.param(way, marks=pytest.mark.full) for way in ("layer", "early", "replayed"))]
)
def test_refused_messages(kerberos_cluster: KerberosCluster, way: str) -> None:
    """A layer that was not offered, a message that is not expected, no token, and one that was used before."""
    outcome = log_in(kerberos_cluster, "alice", way)
    assert outcome == {
        "error": ErrorCode.SASL_AUTHENTICATION_FAILED,
        "message": "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI",
    }


def test_a_key_table_without_the_broker(realm: KerberosServer) -> None:
    """The broker does not start, and says which principal it misses."""
    settings = broker_settings(KerberosCluster("", realm))
    key = "listener.name.plaintext.gssapi.sasl.jaas.config"
    settings[key] = settings[key].replace(f"kafka/localhost@{REALM}", f"kafka/elsewhere@{REALM}")
    broker = BarnabasTarget(settings)
    broker.environment = realm.environment
    try:
        with pytest.raises(RuntimeError, match=f"No key table entry found for kafka/elsewhere@{REALM}"):
            broker.start()
    finally:
        broker.close()


@pytest.mark.full
@pytest.mark.store
def test_brokers_log_in_to_each_other(realm: KerberosServer) -> None:
    """Two brokers replicate, and do so again after one of them was killed; a client, which librdkafka lets in by
    PLAIN alone, only looks on."""
    module = jaas.LoginModule(jaas.PLAIN_LOGIN_MODULE, options={"user_alice": "of alice"})
    with BarnabasZooKeeper() as zookeeper, ExitStack() as stack:
        settings = {
            **broker_settings(KerberosCluster("", realm)),
            "zookeeper.connect": zookeeper.address,
            "zookeeper.session.timeout.ms": "6000",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI,PLAIN",
            "sasl.mechanism.inter.broker.protocol": "GSSAPI",
            "listener.name.plaintext.plain.sasl.jaas.config": module.line(),
        }
        brokers = [BarnabasProcess({**settings, "node.id": str(each)}, listen="localhost:0") for each in (1, 2)]
        for broker in brokers:
            broker.environment = realm.environment
            stack.enter_context(broker)
        client = {
            "bootstrap.servers": ",".join(each.bootstrap_servers for each in brokers),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "of alice",
        }
        admin = AdminClient(client)
        wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2)
        admin.create_topics([NewTopic("t", 1, 2, config={"min.insync.replicas": "2"})])["t"].result(PATIENCE_S)
        producer = Producer({**client, "acks": "all"})
        for is_killed in (True, False):
            producer.produce("t", b"hello")
            assert producer.flush(PATIENCE_S) == 0
            if is_killed:
                brokers[1].kill()
                brokers[1].start()


@pytest.fixture
def zookeeper_with_kerberos(realm: KerberosServer, tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper whose principal is zookeeper/localhost."""
    file = tmp_path / "server.conf"
    file.write_text(login_section(realm, "Server", "zookeeper/localhost"))
    properties = {
        "java.security.auth.login.config": str(file),
        "java.security.krb5.conf": str(realm.client_file),
        "zookeeper.authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    try:
        server = ZooKeeperServer(properties=properties)
    except (FetchFailed, JavaMissing) as missing:
        tool_missing(missing)
    with server:
        yield server


def login_section(realm: KerberosServer, section: str, principal: str) -> str:
    """A section of a JAAS file, which ZooKeeper and the broker read alike."""
    options = {"useKeyTab": "true", "storeKey": "true", "keyTab": str(realm.key_table(principal))}
    module = jaas.LoginModule(jaas.KERBEROS_LOGIN_MODULE, options={**options, "principal": f"{principal}@{REALM}"})
    return f"{section} {{ {module.line()} }};"


@pytest.mark.java
@pytest.mark.store
def test_login_to_zookeeper(realm: KerberosServer, zookeeper_with_kerberos: ZooKeeperServer, tmp_path: Path) -> None:
    """The znodes belong to the broker's principal, also those of after a restart of ZooKeeper."""
    file = tmp_path / "client.conf"
    file.write_text(login_section(realm, "Client", "kafka"))
    address = zookeeper_with_kerberos.address.replace("127.0.0.1", "localhost")
    broker = BarnabasProcess(
        {
            "zookeeper.connect": address,
            "java.security.auth.login.config": str(file),
            "zookeeper.set.acl": "true",
        }
    )
    broker.environment = realm.environment
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        zookeeper_with_kerberos.stop()
        zookeeper_with_kerberos.start()
        admin.create_topics([NewTopic("u", 1, 1)])["u"].result(PATIENCE_S)
        client = KazooClient(zookeeper_with_kerberos.address)
        client.start(timeout=PATIENCE_S)
        try:
            for topic in ("t", "u"):
                acls, _ = client.get_acls(f"/brokers/topics/{topic}")
                assert {(acl.perms, *acl.id) for acl in acls} == {
                    (31, "sasl", f"kafka@{REALM}"),
                    (1, "world", "anyone"),
                }
        finally:
            client.stop()
            client.close()


@pytest.mark.java
@pytest.mark.store
def test_no_ticket_for_zookeeper(
    realm: KerberosServer, zookeeper_with_kerberos: ZooKeeperServer, tmp_path: Path
) -> None:
    """The start ends with the reason: ZooKeeper's address is not that of its principal."""
    file = tmp_path / "client.conf"
    file.write_text(login_section(realm, "Client", "kafka"))
    broker = BarnabasProcess(
        {
            "zookeeper.connect": zookeeper_with_kerberos.address,
            "zookeeper.connection.timeout.ms": "2000",
            "java.security.auth.login.config": str(file),
        }
    )
    broker.environment = realm.environment
    with pytest.raises(RuntimeError, match=r"zookeeper@127\.0\.0\.1: .*not found in Kerberos database"), broker:
        pass


@pytest.fixture
def run_tool(kerberos_cluster: KerberosCluster, tmp_path: Path) -> Any:
    """Run one of Kafka's tools as a principal, in a Java process that knows the realm."""
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    options = (*SMALL_JVM, f"-Djava.security.krb5.conf={kerberos_cluster.realm.client_file}")

    def run(tool: str, principal: str, *arguments: object, stdin: str = "") -> Any:
        properties = tmp_path / f"{principal}.properties"
        settings = kerberos_cluster.settings(principal)
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = kafka_runtime().java_command(MAIN_CLASSES[tool], jvm_options=options)
        address = ["--bootstrap-server", kerberos_cluster.bootstrap_servers, "--command-config", str(properties)]
        return children.run([*command, *address, *map(str, arguments)], input=stdin, text=True, capture_output=True)

    return run


@pytest.mark.java
def test_console_tools(run_tool: Any, topic_name: str) -> None:
    """A line goes there and back."""
    produced = run_tool("kafka-console-producer", "alice", "--topic", topic_name, stdin="one\n")
    assert produced.returncode == 0, produced.stderr
    read = run_tool(
        "kafka-console-consumer", "alice", "--topic", topic_name, "--from-beginning", "--max-messages", 1,
        "--timeout-ms", PATIENCE_MS,
    )  # fmt: skip
    assert read.stdout.splitlines()[-1:] == ["one"], read.stderr


@pytest.mark.java
@pytest.mark.full
def test_short_names_decide(run_tool: Any, topic_name: str) -> None:
    """admin-admin is ADMIN, who may do everything; bob is bob, who may do nothing."""
    create = ("--create", "--topic", topic_name)
    refused = run_tool("kafka-topics", "bob", *create)
    assert refused.returncode != 0
    assert "TopicAuthorizationException" in refused.stdout + refused.stderr
    created = run_tool("kafka-topics", "admin-admin", *create)
    assert created.returncode == 0, created.stdout + created.stderr
