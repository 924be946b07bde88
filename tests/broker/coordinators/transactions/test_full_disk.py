"""Transactions that end while the disk is full: they do when there is room, in the same process, and until then readers
of committed data wait where the transaction begins.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from barnabas.broker.coordinators.transactions.retries import MARKERS_PER_TURN
from barnabas.clock import ManualClock
from barnabas.testing import Broker
from tests.support.reference_loop import assert_within, work_s
from tools.waiting import PATIENCE_S, wait_until

REFUSALS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class FullDisk:
    """The broker's disk has no room for files of a `wanted` path, be they new or longer."""

    def __init__(self, broker: Broker, wanted: Callable[[str], bool]) -> None:
        self._files: Any = broker.server.log_manager.files
        self._usable = self._files.open, self._files.pwrite
        self._wanted = wanted
        self.refusals = 0

    def __enter__(self) -> FullDisk:
        files, (open_, pwrite) = self._files, self._usable

        def refuse(path: str) -> None:
            if self._wanted(path):
                self.refusals += 1
                raise OSError(errno.ENOSPC, "the disk is full")

        def open_or_refuse(path: str, *, create: bool = False, truncate: bool = False) -> int:
            if create and not files.exists(path):
                refuse(path)
            return int(open_(path, create=create, truncate=truncate))

        def pwrite_or_refuse(descriptor: int, data: Any, position: int) -> int:
            refuse(os.readlink(f"/proc/self/fd/{descriptor}"))
            return int(pwrite(descriptor, data, position))

        files.open, files.pwrite = open_or_refuse, pwrite_or_refuse
        return self

    def __exit__(self, *_: object) -> None:
        self._files.open, self._files.pwrite = self._usable

    def refuses(self) -> None:
        """Wait until the broker has tried, and tried again."""
        wait_until(lambda: self.refusals >= REFUSALS, lambda: f"{REFUSALS} refusals, not {self.refusals}")


def committed_values(broker: Broker, topic: str) -> list[bytes]:
    """The values that a reader of committed data sees until the topic's end, which it reaches."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False,
         "isolation.level": "read_committed", "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    _, high_watermark = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            values.append(message.value())
        elif message.offset() == high_watermark:
            consumer.close()
            return values
    raise AssertionError(f"{topic} is not read to its end: {values}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "is_commit"),
    [("", True), ("", False), ("/{topic}-0/", True), ("/{topic}-0/", False), (".txnindex", False)],
    ids=[
        "everything, commit",
        "everything, abort",
        "the partition, commit",
        "the partition, abort",
        "the index, abort",
    ],
)
def test_a_transaction_ends_when_there_is_room(broker: Broker, what: str, is_commit: bool) -> None:
    topic = f"t-{len(broker.topic_names())}"
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    log = broker.server.log_manager.get(topic, 0)
    wanted = what.format(topic=topic)
    with FullDisk(broker, lambda path: wanted in path) as disk:
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        ending = threading.Thread(target=end, args=(PATIENCE_S,))
        ending.start()
        disk.refuses()
        assert (log.last_stable_offset, log.log_end_offset) == (0, 1)
    ending.join(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"next", partition=0)
    producer.commit_transaction(PATIENCE_S)
    assert committed_values(broker, topic) == ([b"value", b"next"] if is_commit else [b"next"])
    assert log.last_stable_offset == log.log_end_offset == 4


@pytest.mark.slow
def test_markers_refused_by_a_full_disk_are_retried_with_pauses() -> None:
    """So many in a second of the broker's clock."""
    with Broker(clock=ManualClock()) as broker:
        ending = end_of_many(broker)
        with FullDisk(broker, lambda path: "/many-" in path) as disk:
            ending.start()
            while disk.refusals < REFUSALS:
                broker.clock.advance(timedelta(milliseconds=100))
            refusals = disk.refusals
            for _ in range(10):
                broker.clock.advance(timedelta(milliseconds=100))
            assert 0 < disk.refusals - refusals <= 12 * MARKERS_PER_TURN
        while ending.is_alive():
            broker.clock.advance(timedelta(milliseconds=100))


@pytest.mark.full
@pytest.mark.alone
def test_retries_of_refused_markers_take_little_processor_time(broker: Broker) -> None:
    """A quarter of it at most."""

    def used_s() -> float:
        before_s = broker.call(loop_time_s())
        time.sleep(1)  # Real time: what is measured is a span of it
        return float(broker.call(loop_time_s()) - before_s)

    ending = end_of_many(broker)
    with FullDisk(broker, lambda path: "/many-" in path) as disk:
        ending.start()
        disk.refuses()
        assert_within(25, work_s, used_s, "in a second")
    ending.join(PATIENCE_S)
    assert not ending.is_alive()


def end_of_many(broker: Broker) -> threading.Thread:
    """A thread that commits a transaction of many partitions, once it is started."""
    partitions = 2 * MARKERS_PER_TURN
    topic = broker.create_topic("many", partitions=partitions)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "many"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic.name, b"value", partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    return threading.Thread(target=producer.commit_transaction, args=(PATIENCE_S,))


async def loop_time_s() -> float:
    """The processor time that the broker's event loop has used."""
    return time.thread_time()
