"""Calls of the disk that fail at random: what was acknowledged is there afterwards, and after a failure nothing is
acknowledged that depends on it.

One data directory goes through all failures, one after the other; each start has to cope with what the last one left.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

SEED = 20261121
CALLS = ("sync", "pwrite", "sync_directory", "rename", "open", "truncate")
SETTINGS = {
    "barnabas.flush.before.ack": "true",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
TOPICS = {
    "deleted": {"segment.bytes": "20000"},  # a roll every few batches
    "compacted": {"segment.bytes": "20000", "cleanup.policy": "compact"},
}
WRITTEN_BEFORE = 40
"""So many records are acknowledged by each topic before the disk may fail."""
PATIENT_FOR_S = 0.5
"""After so long without a failure every call fails."""
FENCED_WITHIN_S = 1


@dataclass(slots=True)
class Writer:
    """Writes numbered records until the broker is gone; what was acknowledged, and when the record was sent."""

    broker: BarnabasProcess
    message_timeout_ms: int = 1000
    acknowledged: dict[str, dict[int, float]] = field(default_factory=lambda: {topic: {} for topic in TOPICS})
    next_number: int = 0
    refused: bool = False

    def write(self, probability: float, trigger: Path, later_max: int = sys.maxsize) -> None:
        """Give the disk this chance to fail, and write until it has failed and somebody is refused: before, a busy
        machine may have let a record run out of time. AssertionError where `later_max` records after the failure none
        is refused."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "acks": "all", "linger.ms": 1, "retries": 0,
             "message.timeout.ms": self.message_timeout_ms, "log_level": 0}
        )  # fmt: skip
        self.refused = False
        failed = Path(f"{trigger}.failed")
        wanted = {topic: len(numbers) + WRITTEN_BEFORE for topic, numbers in self.acknowledged.items()}
        may_fail_since_s = given_up_s = time.monotonic() + PATIENCE_S
        later = 0
        while not self.refused:
            now_s = time.monotonic()
            if not trigger.exists() and all(len(self.acknowledged[topic]) >= wanted[topic] for topic in TOPICS):
                trigger.write_text(str(probability))
                may_fail_since_s = now_s
            if now_s > may_fail_since_s + PATIENT_FOR_S:
                trigger.write_text("1")
            later += failed.exists()
            assert later <= later_max, "nobody is refused"
            assert now_s < given_up_s, "nobody is refused"
            for topic in TOPICS:
                self._produce(producer, topic, failed)
            self.next_number += 1
            if self.next_number % 10 == 0:
                assert producer.flush(PATIENCE_S) == 0

    def _produce(self, producer: Producer, topic: str, failed: Path) -> None:
        number, sent_s = self.next_number, time.monotonic()

        def delivered(error: object, message: Message) -> None:
            if error is None:
                self.acknowledged[topic][number] = sent_s
            elif failed.exists():
                self.refused = True

        producer.produce(topic, b"%d" % number + b" " * 500, key=b"%d" % number, partition=0, on_delivery=delivered)


def read(broker: BarnabasProcess, topic: str) -> set[int]:
    """The numbers that a topic has."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
    _, end = consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
    consumer.assign([partition])
    found: set[int] = set()
    deadline, last = time.monotonic() + PATIENCE_S, -1
    while last < end - 1 and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.2):
            assert message.error() is None, message.error()
            found.add(int(message.value() or b""))
            last = message.offset() or 0
    consumer.close()
    assert last == end - 1, f"{topic} was not read to its end"
    return found


def check_nothing_depends_on(failure: str, writer: Writer, is_timed: bool) -> int:
    """Records that were sent after the disk had failed: how many were acknowledged, of another log; where that is
    judged, within the time that a broker may take to end."""
    failed_s, path = failure.split(" ", 1)
    later = 0
    for topic, numbers in writer.acknowledged.items():
        sent = [sent_s for sent_s in numbers.values() if sent_s > float(failed_s)]
        assert not sent or f"/{topic}-0" not in path, f"{len(sent)} acknowledged after {failure}"
        late = [sent_s for sent_s in sent if sent_s > float(failed_s) + FENCED_WITHIN_S]
        assert not late or not is_timed, f"acknowledged after {failure}"
        later += len(sent)
    return later


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("count", "is_timed"), [(6, False), pytest.param(204, True, marks=[pytest.mark.full, pytest.mark.alone])]
)
def test_failures_at_random_take_away_nothing_acknowledged(count: int, is_timed: bool, tmp_path: Path) -> None:
    """Each kind of call fails; alone on the machine, the broker has to end in time, too."""
    chance = random.Random(SEED)
    later = 0
    with BarnabasProcess(SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for created in admin.create_topics([NewTopic(name, 1, 1, config=TOPICS[name]) for name in TOPICS]).values():
            created.result(PATIENCE_S)
        broker.stop()
        writer = Writer(broker)
        for number in range(count):
            trigger = tmp_path / f"fail-{number}"
            broker.module = f"tests.support.failing_disk:{CALLS[number % len(CALLS)]}:{trigger}:{number}"
            broker.start()
            writer.write(10 ** chance.uniform(-3, -1), trigger)
            assert broker.wait(PATIENCE_S) != 0
            assert not (broker.log_dir / ".kafka_cleanshutdown").exists()
            later += check_nothing_depends_on(Path(f"{trigger}.failed").read_text(), writer, is_timed)
        broker.module = "barnabas"
        broker.start()
        for topic, acknowledged in writer.acknowledged.items():
            assert acknowledged.keys() <= read(broker, topic), topic
    acknowledged_count = sum(map(len, writer.acknowledged.values()))
    print(f"{count} failures, {acknowledged_count} acknowledged, {later} of them sent later to logs that were whole")
    assert acknowledged_count >= 2 * WRITTEN_BEFORE * count


@pytest.mark.slow
@pytest.mark.live
def test_unnoticed_failures_are_found(tmp_path: Path) -> None:
    """Show that the test above finds such failures."""
    trigger = tmp_path / "fail"
    with BarnabasProcess(SETTINGS, module=f"tests.support.failing_disk:unnoticed sync:{trigger}") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in TOPICS]).values():
            created.result(PATIENCE_S)
        writer = Writer(broker, message_timeout_ms=60_000)  # nobody is refused for being slow
        with pytest.raises(AssertionError, match="nobody is refused"):
            writer.write(0.1, trigger, later_max=100)
        with pytest.raises(AssertionError, match="acknowledged after"):
            check_nothing_depends_on(Path(f"{trigger}.failed").read_text(), writer, is_timed=False)
        broker.kill()
