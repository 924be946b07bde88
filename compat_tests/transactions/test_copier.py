"""Kafka's TransactionalMessageCopier reads, writes and commits its offsets in transactions, while the broker is killed.

Apache Kafka's own system tests are built on it. Its Java client is of 3.9.1 and speaks the classic protocol.
"""

import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.conftest import create_topic
from tools.jvm.java import JavaMissing, find_java
from tools.kafka_runtime import ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.required import tool_missing

RECORDS = 3000
KILLS = 3
TIMEOUT_S = 120


@pytest.fixture
def java() -> None:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)


def test_exactly_once_while_the_broker_is_killed(
    java: None, start_cluster: Callable[..., Any], transactional_id: str, group: str, tmp_path: Any
) -> None:
    cluster = start_cluster()
    for name in ("source", "target"):
        create_topic(cluster.bootstrap_servers, name, 1, None)
    fill("source", cluster)
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        copier = start_copier(cluster, transactional_id, group, out, err)
        try:
            for _ in range(KILLS):
                copied = copied_offset(cluster, group)
                wait_until_copied(cluster, group, copied + 200, copier)
                cluster.kill()
                cluster.start()
            status = copier.wait(TIMEOUT_S)
        finally:
            copier.kill()
            copier.wait()
    assert status == 0, (tmp_path / "err").read_text()[-4000:]
    assert committed_values(cluster, "target") == [str(number).encode() for number in range(RECORDS)]
    assert copied_offset(cluster, group) == RECORDS


def fill(topic: str, cluster: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode())
    assert producer.flush(30) == 0


def start_copier(cluster: Any, transactional_id: str, group: str, out: Any, err: Any) -> "subprocess.Popen[bytes]":
    command = kafka_runtime(ZOOKEEPER_ERA_VERSION).java_command("org.apache.kafka.tools.TransactionalMessageCopier")
    options = {
        "--broker-list": cluster.bootstrap_servers,
        "--input-topic": "source",
        "--input-partition": "0",
        "--output-topic": "target",
        "--consumer-group": group,
        "--transactional-id": transactional_id,
        "--transaction-size": "50",
        "--transaction-timeout": "10000",
        "--max-messages": str(RECORDS),
    }
    given = [word for option in options.items() for word in option]
    return subprocess.Popen([*command, *given, "--enable-random-aborts"], stdout=out, stderr=err)


def copied_offset(cluster: Any, group: str) -> int:
    """How far the copier's transactions have committed; a broker that started just now may have to be asked again."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                (committed,) = consumer.committed([TopicPartition("source", 0)], 30)
                return max(0, committed.offset)
            except KafkaException:
                assert time.monotonic() < deadline, "no coordinator"
                time.sleep(0.1)
    finally:
        consumer.close()


def wait_until_copied(cluster: Any, group: str, offset: int, copier: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while copied_offset(cluster, group) < min(offset, RECORDS):
        assert time.monotonic() < deadline, "the copier does not go on"
        if copier.poll() is not None:
            return
        time.sleep(0.05)


def committed_values(cluster: Any, topic: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                return values
            values.append(message.value() or b"")
        raise AssertionError("the end of the topic was not reached")
    finally:
        consumer.close()
