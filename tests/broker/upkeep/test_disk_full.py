"""A disk that fills up, a real one: a small tmpfs under the real command. Reads go on, nothing acknowledged is lost,
and when there is room again the same process takes records again. The cleaner runs, and transactions are open.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.required import tool_missing
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]

MIB = 1 << 20
DISK_BYTES = 24 * MIB
HEALED_WITHIN_S = PATIENCE_S


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BarnabasProcess]:
    process = BarnabasProcess({
        "barnabas.disk.reserve.bytes": request.param,
        "log.cleaner.backoff.ms": "100",
        "log.retention.check.interval.ms": "300",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    })  # fmt: skip
    process.log_dir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(process.log_dir)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        if mounted.returncode:
            tool_missing(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
        try:
            (process.log_dir / "ballast").write_bytes(bytes(MIB))  # whoever tidies up goes by throwing it away first
            process.start()
            yield process
        finally:
            print(process.log_text())
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
        assert self._producer.flush(PATIENCE_S) == 0
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
        deadline = started + HEALED_WITHIN_S
        while taken < count:
            taken = 0 if self.write() is not None else taken + 1
            assert time.monotonic() < deadline, "it does not heal"
        return time.monotonic() - started


def check_all_read(broker: BarnabasProcess, topic: str, acknowledged: dict[int, int]) -> None:
    """Everything acknowledged is read, at its offset; what is read besides was written without an answer."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
    found: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
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
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(PATIENCE_S)
    return admin


def begin_transaction(broker: BarnabasProcess, name: str) -> Producer:
    """A producer with ten records in an open transaction, and a name that fits into no page that has room left."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name * 6000, "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(10):
        producer.produce("transactions", f"{name}{number}", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def read_committed(broker: BarnabasProcess, until: str, patience_s: float = PATIENCE_S) -> list[str]:
    """The values that readers of committed data find, up to a value, or as far as they can read."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "r", "enable.auto.commit": False})
    consumer.assign([TopicPartition("transactions", 0, OFFSET_BEGINNING)])
    found: list[str] = []
    deadline = time.monotonic() + patience_s
    while until not in found and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=0.2):
            assert message.error() is None, message.error()
            found.append((message.value() or b"").decode())
    consumer.close()
    return found


def clean_offset(broker: BarnabasProcess) -> int:
    path = broker.log_dir / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return max((int(line.split()[2]) for line in lines if line.startswith("compacted ")), default=0)


def commit(broker: BarnabasProcess, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    (found,) = consumer.committed([TopicPartition("t", 0)], timeout=PATIENCE_S)
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
        _fill(disk)
    writer.write_until_refused()  # smaller records than those of the other may still fit
    check_all_read(broker, "t", writer.acknowledged)
    check_all_read(broker, "filler", filler.acknowledged)
    (disk / "ballast").unlink()
    admin.delete_topics(["filler"])["filler"].result(PATIENCE_S)
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


@pytest.mark.parametrize("broker", ["67108864", "0"], indirect=True)
def test_transactions_and_compaction_get_through_a_full_disk(
    broker: BarnabasProcess, request: pytest.FixtureRequest
) -> None:
    """While the disk is full if there is a reserve, else when there is room again."""
    has_reserve = "67108864" in request.node.name
    disk, pid = broker.log_dir, broker.pid
    admin = make_topic(broker, "filler")
    settings = {"cleanup.policy": "compact", "segment.bytes": "100000", "min.cleanable.dirty.ratio": "1"}
    for created in admin.create_topics(
        [NewTopic("transactions", 1, 1), NewTopic("compacted", 1, 1, config=settings)]
    ).values():
        created.result(PATIENCE_S)
    keyed = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 10_000})
    for number in range(500):
        keyed.produce("compacted", os.urandom(1000), key=b"%d" % (number % 10), partition=0)
    assert keyed.flush(PATIENCE_S) == 0
    committed, aborted = begin_transaction(broker, "c"), begin_transaction(broker, "a")
    # Its group makes __consumer_offsets, for which the metadata store would give up the room that it keeps.
    assert read_committed(broker, "c9", 1) == []
    Writer(broker, "filler", 100_000).write_until_refused()
    if not has_reserve:
        _fill(disk)
    assert clean_offset(broker) == 0
    ratio = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "compacted", incremental_configs=[ratio])
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(committed.commit_transaction, 60), pool.submit(aborted.abort_transaction, 60)]
        if has_reserve:
            admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
            wait_until(lambda: clean_offset(broker) > 300, "it is not compacted while the disk is full")
            for end in ends:
                end.result(PATIENCE_S)
        else:
            wait_until(lambda: "__transaction_state-0/" in broker.log_text(), "no transaction was refused")
            assert read_committed(broker, "c9", 1) == []
            assert not [end for end in ends if end.done()]
            (disk / "ballast").unlink()
        admin.delete_topics(["filler"])["filler"].result(PATIENCE_S)
        for end in ends:
            end.result(PATIENCE_S)
    if not has_reserve:
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        wait_until(lambda: clean_offset(broker) > 300, "it is not compacted when there is room")
    expected = [f"c{number}" for number in range(10)]
    assert read_committed(broker, "c9") == expected
    assert broker.pid == pid
    broker.kill()
    broker.start()
    begin_transaction(broker, "d").commit_transaction(PATIENCE_S)  # the next one's last stable offset shows what hangs
    assert read_committed(broker, "d9") == [*expected, *(f"d{number}" for number in range(10))]
    assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("broker", ["0"], indirect=True)
def test_retention_and_a_restart_on_a_full_disk(broker: BarnabasProcess, end: str) -> None:
    """Retention rolls the active segment, which needs room; a start recovers logs and elects leaders, which does, too.
    Not a byte is left, so that all of that comes later, or goes on in the room that was kept.
    """
    disk, pid = broker.log_dir, broker.pid
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    old = NewTopic("old", 1, 1, config={"retention.ms": "6000", "file.delete.delay.ms": "0"})
    for created in admin.create_topics([old, NewTopic("t", 1, 1)]).values():
        created.result(PATIENCE_S)
    commit(broker, 1)
    aging, writer = Writer(broker, "old", 1_000), Writer(broker, "t", 1_000)
    for _ in range(20):
        assert aging.write() is None
        assert writer.write() is None
    _fill(disk)
    wait_until(lambda: "old-0: " in broker.log_text(), "retention found the disk full")
    assert broker.pid == pid
    check_all_read(broker, "old", aging.acknowledged)
    if end == "stop":
        broker.stop()
        _fill(disk)
    else:
        broker.kill()
    broker.start()
    check_all_read(broker, "t", writer.acknowledged)
    (disk / "rest").unlink()
    writer.write_until_taken(20)
    check_all_read(broker, "t", writer.acknowledged)
    wait_until(lambda: "old-0: deleting" in broker.log_text(), "retention goes on")
    commit(broker, 2)
    broker.kill()
    broker.start()
    check_all_read(broker, "t", writer.acknowledged)
    assert "Traceback" not in broker.log_text(), broker.log_text()
    broker.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("broker", ["0"], indirect=True)
def test_a_restart_on_a_disk_without_names(broker: BarnabasProcess, end: str) -> None:
    """All inodes are used up, so that no file can be made: new topics wait, what is there is served."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
    writer = Writer(broker, "t", 1_000)
    assert writer.write() is None
    subprocess.run(["mount", "-o", "remount,nr_inodes=150", str(broker.log_dir)], check=True)
    for _ in range(2):
        _use_up_names(broker.log_dir)
        assert writer.write() is None
        if end == "stop":
            broker.stop()
            _use_up_names(broker.log_dir)
        else:
            broker.kill()
        broker.start()
        check_all_read(broker, "t", writer.acknowledged)
        assert writer.write() is None
    for name in broker.log_dir.glob("name-*"):
        name.unlink()
    wait_until(lambda: "u" in admin.list_topics("u", PATIENCE_S).topics, "topics are created again")
    broker.stop()
    assert "Traceback" not in broker.log_text(), broker.log_text()


def _use_up_names(disk: Path) -> None:
    with contextlib.suppress(OSError):
        for number in range(1_000):
            (disk / f"name-{number}").touch()
    assert os.statvfs(disk).f_ffree == 0


def _fill(disk: Path) -> None:
    """To the last byte of the last page of a file."""
    for size in (4096, 1):
        with (disk / "rest").open("ab", buffering=0) as rest, contextlib.suppress(OSError):
            while rest.write(bytes(size)):
                pass


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
