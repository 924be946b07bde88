"""`barnabas zookeeper` in ZooKeeper's place: Kafka's own shell, and brokers of Kafka 3.9.1 and of ours, on it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import create_topic
from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.kafka_broker import KafkaOnZooKeeper
from compat_tests.zookeeper.test_change_of_broker import admin_of, hand_over
from compat_tests.zookeeper.waiting import consume, produce, topic_of
from tools.foreign.kafka import ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.processes.barnabas import BarnabasZooKeeper
from tools.waiting import wait_until

pytestmark = pytest.mark.java

SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
"""The main class of `bin/zookeeper-shell.sh` of Kafka 3.9."""


@pytest.fixture
def server() -> Iterator[BarnabasZooKeeper]:
    with BarnabasZooKeeper() as process:
        yield process


def in_shell(server: BarnabasZooKeeper, *lines: str) -> str:
    """The output of zookeeper-shell for each line, with its complaints."""
    done = kafka_runtime(ZOOKEEPER_ERA_VERSION).tool(
        SHELL, ["-server", server.address], stdin="".join(f"{line}\n" for line in lines)
    )
    return done.stdout + done.stderr


def test_zookeeper_shell(server: BarnabasZooKeeper) -> None:
    out = in_shell(
        server,
        "create /a one",
        "create -e /a/lock here",
        "create -s /a/n- x",
        "create -s /a/n- y",
        "create /a again",
        "create /none/of/this x",
        "set /a two",
        "set -v 7 /a three",
        "get -s /a",
        "ls /a",
        "stat -w /a",
        "getAcl /a",
        "setAcl /a nowhere:x:r",
        "getEphemerals /",
        "getAllChildrenNumber /",
        "sync /a",
        "delete /a",
        "delete /a/n-0000000001",
        "deleteall /a",
        "ls /",
        "quit",
    )
    for expected in (
        "Created /a\n",
        "Created /a/lock",
        "Created /a/n-0000000001",
        "Created /a/n-0000000002",
        "Node already exists: /a",
        "Node does not exist: /none/of/this",
        "version No is not valid : /a",
        "two\n",
        "dataVersion = 1",
        "[lock, n-0000000001, n-0000000002]",
        "'world,'anyone\n: cdrwa",
        "Acl is not valid : /a",
        "[/a/lock]",
        "Node not empty: /a",
    ):
        assert expected in out, out
    assert re.search(r"^\[\]$", out, re.MULTILINE), out
    assert "WATCHER::" in out, out


@pytest.mark.full
def test_kafka_3_9_on_it(server: BarnabasZooKeeper, tmp_path: Path) -> None:
    """Serves; goes on when the server was killed and comes back without any session; is served the same tree."""
    with KafkaOnZooKeeper(f"{server.address}/kafka", tmp_path / "data") as kafka:
        create_topic(kafka.bootstrap_servers, "letters", 2, {"retention.ms": "86400000"})
        assert produce(kafka.bootstrap_servers, "letters", "a") == 0
        assert consume(kafka.bootstrap_servers, "letters", "readers", 1) == ["a"]
        assert "retention.ms" in in_shell(server, "get /kafka/config/topics/letters", "quit")
        server.kill()
        assert produce(kafka.bootstrap_servers, "letters", "b") == 1, "nobody needs ZooKeeper for that"
        server.start()

        def is_controller_again() -> bool:
            """It registers before it is."""
            out = in_shell(server, "ls /kafka/brokers/ids", "get /kafka/controller", "quit")
            return "[1]" in out and '"brokerid":1' in out

        wait_until(is_controller_again)
        create_topic(kafka.bootstrap_servers, "more", 1, {})
        assert produce(kafka.bootstrap_servers, "more", "c") == 0
        kafka.stop()
    with KafkaOnZooKeeper(f"{server.address}/kafka", tmp_path / "data") as kafka:
        wait_until(lambda: topic_of(admin_of(kafka), "letters", 2))
        assert consume(kafka.bootstrap_servers, "letters", "readers", 1) == ["b"]


@pytest.mark.full
def test_from_barnabas_to_kafka_and_back(server: BarnabasZooKeeper, tmp_path: Path) -> None:
    hand_over(server, tmp_path)


def test_barnabas_goes_on_without_it_and_registers_anew(server: BarnabasZooKeeper) -> None:
    with broker_on(server) as broker:
        create_topic(broker.bootstrap_servers, "letters", 1, {})
        assert produce(broker.bootstrap_servers, "letters", "a") == 0
        server.kill()
        assert produce(broker.bootstrap_servers, "letters", "b") == 1
        server.start()
        wait_until(lambda: "the broker has joined its cluster again" in broker.log_text())
        create_topic(broker.bootstrap_servers, "more", 1, {})
        assert produce(broker.bootstrap_servers, "more", "c") == 0
