"""A disk that fails: nothing is acknowledged that is not on it, the process ends, and the next one has everything.

Through the seam (`tests.support.failing_disk`), and through libfiu, which makes the system calls themselves fail.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.required import tool_missing
from tools.power_cut.disk import CannotMount, CuttableDisk
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]

SETTINGS = {
    "barnabas.flush.before.ack": "true",
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "log.cleaner.enable": "false",
}
FIU = Path("/usr/lib/fiu")


def produce(broker: BarnabasProcess, numbers: range, timeout_ms: int = 15_000) -> list[int]:
    """Write numbers one at a time; those that were acknowledged."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "linger.ms": 0, "message.timeout.ms": timeout_ms,
         "reconnect.backoff.max.ms": 100, "log_level": 0}
    )  # fmt: skip
    acknowledged: list[int] = []
    for number in numbers:
        producer.produce(
            "t", b"%d" % number, partition=0,
            on_delivery=lambda error, message: None if error else acknowledged.append(int(message.value())),
        )  # fmt: skip
        assert producer.flush(PATIENCE_S) == 0
    return acknowledged


def read(broker: BarnabasProcess) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=PATIENCE_S)
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < end and time.monotonic() < deadline:
        found += [int(message.value()) for message in consumer.consume(100, timeout=0.2)]
    consumer.close()
    return found


def fail_and_recover(broker: BarnabasProcess, fail: Callable[[], None], heal: Callable[[], None]) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
    before = produce(broker, range(20))
    assert before == list(range(20))
    started = time.monotonic()
    fail()
    after = produce(broker, range(20, 21), timeout_ms=1000)
    status = broker.wait(PATIENCE_S)
    ended_s = time.monotonic() - started
    assert status != 0
    assert "failed" in broker.log_text()
    assert not (broker.log_dir / ".kafka_cleanshutdown").exists()
    heal()
    broker.start()
    found = read(broker)
    assert set(before + after) <= set(found)
    assert found == sorted(found)
    assert produce(broker, range(100, 105)) == list(range(100, 105))
    broker.stop()
    return f"{len(after)} acknowledged afterwards, status {status} after {ended_s:.1f} s"


def full(*values: str) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.mark.parametrize("call", ["sync", *full("pwrite", "rename", "open")])
def test_a_failing_disk_ends_the_process(call: str, tmp_path: Path) -> None:
    trigger = tmp_path / "fail"
    with BarnabasProcess(SETTINGS, module=f"tests.support.failing_disk:{call}:{trigger}") as broker:
        outcome = fail_and_recover(broker, trigger.touch, trigger.unlink)
    print(f"{call}: {outcome}")
    if call in ("sync", "pwrite"):
        assert outcome.startswith("0 ")


@pytest.mark.parametrize(
    "point",
    ["posix/io/rw/pwrite", *full("posix/io/sync/fdatasync", "posix/io/dir/rename", "posix/io/oc/open")],
)
def test_failing_system_calls_end_the_process(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = shutil.which("fiu-ctrl")
    libraries = [FIU / "fiu_run_preload.so", FIU / "fiu_posix_preload.so"]
    if control is None or not all(library.exists() for library in libraries):
        tool_missing("libfiu is not installed (apt-get install fiu-utils)")
    fifo = str(tmp_path / "fiu")
    with BarnabasProcess(SETTINGS) as broker:
        broker.stop()
        with monkeypatch.context() as patch:
            patch.setenv("LD_PRELOAD", " ".join(map(str, libraries)))
            patch.setenv("FIU_CTRL_FIFO", fifo)
            broker.start()

        def fail() -> None:
            command = [control, "-f", fifo, "-c", f"enable name={point},failinfo=5", str(broker.pid)]
            children.run(command, check=True)

        outcome = fail_and_recover(broker, fail, lambda: None)
    print(f"{point}: {outcome}")
    if point in ("posix/io/rw/pwrite", "posix/io/sync/fdatasync"):
        assert outcome.startswith("0 ")


def test_a_read_only_file_system_ends_the_process() -> None:
    """As ext4 does by default on many systems, when it finds itself damaged or its disk fails. What is being flushed at
    that moment fails with EIO: then it is tried again."""
    fatal = "Input/output error"
    while "Input/output error" in fatal:
        try:
            with CuttableDisk() as disk, BarnabasProcess(SETTINGS, data_dir=disk.path / "data") as broker:
                fail_and_recover(broker, disk.turn_read_only, disk.mount)
                log = broker.log_text()
        except CannotMount as reason:
            tool_missing(f"this machine does not let us mount an image: {reason}")
        fatal = next(line for line in log.splitlines() if " FATAL " in line)
        assert str(disk.path / "data") in fatal
    assert "Read-only file system" in fatal
    assert "mount it for writing, and start the broker again" in fatal
