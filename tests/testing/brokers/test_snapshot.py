"""A prepared state that can be had again and again."""

import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.os_files import OsFiles
from barnabas.testing import Broker
from barnabas.testing.brokers.snapshot import LINKED_BYTES_MIN
from tests.support.reference_loop import assert_within, timed, work_s
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


def fill(broker: Broker, mebibytes: int, topic: str = "large") -> None:
    """Write a large log, by batches as a client sends them."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, "batch.size": 900_000})
    value = os.urandom(100_000)
    for _ in range(mebibytes * 10):
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.topic(topic).records()]


def check_disk(broker: Broker) -> None:
    """Whether what is on the disk is sound and all there. The broker is killed for that, after a clean stop, which
    writes down what else only memory has."""
    broker.restart()
    broker.kill()
    findings = check_directory(OsFiles(), broker.data_dir, deep=True).findings
    assert [each for each in findings if each.level is Level.ERROR] == []
    broker.start()


def test_topics_groups_and_time(broker: Broker) -> None:
    broker.create_topic("t", partitions=2, configs={"retention.ms": 999_999_999})
    broker.topic("t").produce("1")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    broker.clock.advance(timedelta(hours=1))
    ahead = broker.clock.now_ms()
    prepared = broker.snapshot()
    for _ in range(3):
        broker.topic("t").produce("2")
        broker.create_topic("u").produce("3")
        consumer.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        broker.clock.advance(timedelta(hours=5))
        broker.faults.delay("Produce", 1)
        assert broker.group("g").offsets == {("t", 0): 2}
        broker.restore(prepared)
        assert broker.topic_names() == ["t"]
        assert values(broker, "t") == [b"1"]
        assert broker.topic("t").partition_count == 2
        assert broker.group("g").offsets == {("t", 0): 1}
        assert ahead <= broker.clock.now_ms() < ahead + 3_600_000
        assert len(broker.faults) == 0
    broker.reset()
    assert broker.topic_names() == []
    broker.restore(prepared)
    assert values(broker, "t") == [b"1"]
    check_disk(broker)
    assert values(broker, "t") == [b"1"]
    consumer.close()


def test_members_transactions_and_connections_survive_a_snapshot(broker: Broker) -> None:
    """Members stay members, an open transaction can be committed, and nobody loses a connection."""
    broker.create_topic("t")
    config = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1}
    consumer = Consumer(config | {"group.id": "g", "heartbeat.interval.ms": 50, "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.05)
    [member] = broker.wait_group("g").members
    producer = Producer(config | {"transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", "1")
    assert producer.flush(PATIENCE_S) == 0
    count = len(broker.server.connections)
    broker.snapshot()
    assert len(broker.server.connections) == count
    producer.produce("t", "2")
    producer.commit_transaction(PATIENCE_S)
    assert values(broker, "t") == [b"1", b"2"]
    read = []
    while len(read) < 2:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            read.append(message.value())
    assert read == [b"1", b"2"]
    assert [each.member_id for each in broker.wait_group("g").members] == [member.member_id]
    consumer.close()


def test_snapshots_that_share_a_log_file(broker: Broker) -> None:
    """None of them loses what came before it, or has what came after, in whatever order they are put back."""
    broker.create_topic("large")
    fill(broker, 1)
    assert broker.topic("large").produce("first").offset == 10
    first = broker.snapshot()
    assert first._linked
    broker.topic("large").produce("second")
    second = broker.snapshot()
    broker.topic("large").produce("third")
    for prepared, tail in ((first, [b"first"]), (second, [b"first", b"second"])) * 2 + ((first, [b"first"]),) * 2:
        broker.restore(prepared)
        assert values(broker, "large")[10:] == tail
        broker.topic("large").produce("something else")
        assert values(broker, "large")[10:] == [*tail, b"something else"]
    check_disk(broker)
    first.remove()
    with pytest.raises(ValueError, match="or was removed"):
        broker.restore(first)
    broker.restore(second)
    assert values(broker, "large")[10:] == [b"first", b"second"]
    check_disk(broker)
    assert values(broker, "large")[10:] == [b"first", b"second"]


def test_small_files_are_not_shared(broker: Broker) -> None:
    broker.create_topic("t").produce("1")
    prepared = broker.snapshot()
    assert prepared._linked == {}
    assert all(path.stat().st_nlink == 1 for path in prepared._directory.rglob("*.log"))
    assert LINKED_BYTES_MIN > 0


@pytest.mark.parametrize("mebibytes", [1, 100])
def test_a_large_log_that_was_written_to_since(broker: Broker, mebibytes: int) -> None:
    broker.create_topic("large")
    fill(broker, mebibytes)
    prepared = broker.snapshot()
    end = broker.topic("large").produce("end").offset
    for _ in range(2):
        fill(broker, 1)
        broker.restore(prepared)
        assert broker.topic("large").produce("v").offset == end
    size = sum(path.stat().st_size for path in broker.data_dir.rglob("large-0/*.log"))
    assert mebibytes * MIB * 0.9 < size < mebibytes * MIB * 1.1


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("mebibytes", [1, 100])
def test_a_restore_takes_milliseconds(broker: Broker, mebibytes: int) -> None:
    """100 MB of log are back within some 15 ms, also after more was written to them."""
    broker.create_topic("large")
    fill(broker, mebibytes)
    prepared = broker.snapshot()

    def restore_s() -> float:
        fill(broker, 1)
        return timed(lambda: broker.restore(prepared))()

    assert_within(10, work_s, restore_s, f"a restore of {mebibytes} MiB")


def test_a_restore_that_fails(broker: Broker) -> None:
    """Nobody waits for a broker that does not come, and the next start is a whole one."""
    broker.create_topic("t").produce("1")
    prepared = broker.snapshot()
    address = broker.bootstrap_servers
    host, _, port = address.rpartition(":")
    (prepared._directory / "t-0" / "00000000000000000000.log").unlink()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        with pytest.raises(FileNotFoundError):
            broker.restore(prepared)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert not broker.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    broker.stop()
    broker.start()
    assert broker.topic_names() == []


def test_whose_snapshots_they_are(tmp_path: Path) -> None:
    with Broker() as broker, Broker() as another:
        prepared = broker.snapshot()
        with pytest.raises(ValueError, match="belongs to another broker"):
            another.restore(prepared)
        directory = broker.data_dir
        broker.stop()
        assert prepared._is_removed
        assert list(directory.parent.glob(directory.name + "*")) == []
        broker.start()
        with pytest.raises(ValueError, match="are removed when their broker stops"):
            broker.restore(prepared)
    with Broker(data_dir=tmp_path) as durable, pytest.raises(RuntimeError, match="would exchange the data"):
        durable.snapshot()
    with pytest.raises(RuntimeError, match="does not run"):
        Broker().snapshot()
