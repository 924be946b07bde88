"""A disk that fills up, a real one: a small tmpfs under the real command. Reads go on, nothing acknowledged is lost,
and when there is room again the same process takes records again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tools.barnabas_process import BarnabasProcess
from tools.required import tool_missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MIB = 1 << 20
DISK_BYTES = 24 * MIB
HEALED_WITHIN_S = 30


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BarnabasProcess]:
    process = BarnabasProcess({"barnabas.disk.reserve.bytes": request.param, "log.cleaner.enable": "false"})
    process.log_dir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(process.log_dir)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        if mounted.returncode:
            tool_missing(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
        try:
            process.start()
            yield process
        finally:
            process.kill()
            subprocess.run(["umount", str(process.log_dir)], check=True)
    finally:
        process.close()


class Writer:
    """Writes numbers to a partition, one at a time, and keeps what was acknowledged."""

    def __init__(self, broker: BarnabasProcess, topic: str, size: int) -> None:
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "linger.ms": 0, "message.timeout.ms": 20_000,
             "retries": 0}
        )  # fmt: skip
        self._topic, self._size = topic, size
        self._number = 0
        self.acknowledged: dict[int, int] = {}

    def write(self) -> KafkaError | None:
        """One record; why it was refused, if it was."""
        outcome: list[tuple[KafkaError | None, int]] = []
        value = self._number.to_bytes(4) + os.urandom(self._size - 4)
        self._producer.produce(
            self._topic, value, partition=0,
            on_delivery=lambda error, message: outcome.append((error, message.offset())),
        )  # fmt: skip
        assert self._producer.flush(20) == 0
        ((error, offset),) = outcome
        if error is None:
            self.acknowledged[offset] = self._number
        self._number += 1
        return error

    def write_until_refused(self) -> KafkaError:
        for _ in range(1_000):
            error = self.write()
            if error is not None:
                assert error.code() == KafkaError.KAFKA_STORAGE_ERROR, error
                return error
        raise AssertionError("the disk never was full")

    def write_until_taken(self, count: int) -> float:
        """How long it took until so many records in a row were taken, in seconds."""
        started, taken = time.monotonic(), 0
        while taken < count:
            taken = 0 if self.write() is not None else taken + 1
            assert time.monotonic() - started < HEALED_WITHIN_S, "it does not heal"
        return time.monotonic() - started


def check_all_read(broker: BarnabasProcess, topic: str, acknowledged: dict[int, int]) -> None:
    """Everything acknowledged is read, at its offset; what is read besides was written without an answer."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    found: dict[int, int] = {}
    deadline = time.monotonic() + 30
    while max(found, default=-1) < end - 1 and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=0.2):
            assert message.error() is None, message.error()
            found[message.offset()] = int.from_bytes(message.value()[:4])
    consumer.close()
    assert sorted(found) == list(range(end))
    assert acknowledged.items() <= found.items()


def make_topic(broker: BarnabasProcess, name: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"segment.bytes": str(4 * MIB), "file.delete.delay.ms": "0"}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(20)
    return admin


def commit(broker: BarnabasProcess, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    (found,) = consumer.committed([TopicPartition("t", 0)], timeout=20)
    consumer.close()
    assert found.offset == offset


@pytest.mark.parametrize("broker", ["67108864", "0"], indirect=True)
def test_a_full_disk_is_survived(broker: BarnabasProcess, request: pytest.FixtureRequest) -> None:
    has_reserve = "67108864" in request.node.name
    disk, pid = broker.log_dir, broker.pid
    make_topic(broker, "filler")
    admin = make_topic(broker, "t")
    commit(broker, 1)
    writer, filler = Writer(broker, "t", 20_000), Writer(broker, "filler", 100_000)
    for _ in range(50):
        assert writer.write() is None
    error = filler.write_until_refused()
    free = _free_bytes(disk)
    if has_reserve:
        # Before the disk was full: whoever tidies up needs room.
        assert 0.25 * DISK_BYTES / 20 < free < 1.5 * DISK_BYTES / 20, free
        commit(broker, 2)
    else:
        assert free < MIB
        _fill(disk / "ballast")
    writer.write_until_refused()  # smaller records than those of the other may still fit
    check_all_read(broker, "t", writer.acknowledged)
    check_all_read(broker, "filler", filler.acknowledged)
    (disk / "ballast").unlink(missing_ok=True)
    admin.delete_topics(["filler"])["filler"].result(30)
    healed_s = writer.write_until_taken(50)
    commit(broker, 3)
    check_all_read(broker, "t", writer.acknowledged)
    assert broker.pid == pid
    print(f"{request.node.name}: {error}; {free} bytes free when refused; healed in {healed_s:.1f} s")
    broker.kill()
    broker.start()
    check_all_read(broker, "t", writer.acknowledged)
    assert "Traceback" not in broker.log_text(), broker.log_text()
    broker.stop()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
