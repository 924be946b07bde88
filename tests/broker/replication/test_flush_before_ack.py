"""`barnabas.flush.before.ack`: acknowledged records are on the disk."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.storage.os_files import OsFiles
from barnabas.testing import Broker
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


class DiskOf20Ms(OsFiles):
    """Syncs take 20 ms, and are counted."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        time.sleep(0.02)  # Real time: of a disk, in which other records come
        super().sync(descriptor)


@pytest.fixture
def disk() -> DiskOf20Ms:
    return DiskOf20Ms()


@pytest.fixture
def broker(disk: DiskOf20Ms) -> Iterator[Broker]:
    with Broker(
        files=disk, configs={"barnabas.flush.before.ack": "true", "offsets.topic.num.partitions": "1"}
    ) as broker:
        yield broker


async def _unflushed(server: Any, topic: str) -> int:
    log = server.replicas.partition(topic, 0).log
    return int(log.high_watermark - log.recovery_point)


@pytest.mark.parametrize("acks", ["1", "all"])
def test_an_acknowledged_record_is_below_the_flushed_offset(broker: Broker, acks: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": acks, "linger.ms": 0})
    offsets: list[int] = []
    for number in range(50):
        producer.produce("t", str(number).encode(), on_delivery=lambda error, message: offsets.append(message.offset()))
        assert producer.flush(PATIENCE_S) == 0
        log = broker.server.replicas.partition("t", 0).log  # type: ignore[union-attr]
        assert log.recovery_point > offsets[-1]
    assert offsets == list(range(50))


def test_offsets_are_committed_durably(broker: Broker) -> None:
    Producer({"bootstrap.servers": broker.bootstrap_servers}).flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    broker.create_topic("t")
    consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    assert broker.call(_unflushed(broker.server, "__consumer_offsets")) <= 0
    consumer.close()


def test_producers_that_wait_share_a_flush(broker: Broker, disk: DiskOf20Ms) -> None:
    broker.create_topic("t")
    before = disk.syncs

    def send() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": 1, "linger.ms": 0})
        for _ in range(10):
            producer.produce("t", b"x")
            assert producer.flush(PATIENCE_S) == 0

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < disk.syncs - before < 80, "80 acknowledged records took a flush each"
    assert broker.call(_unflushed(broker.server, "t")) <= 0
