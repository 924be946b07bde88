"""Kafka's TransactionalMessageCopier reads, writes and commits its offsets in transactions, while the broker or the
copier itself is killed or stopped.

Apache Kafka's own system tests are built on it. The one of 3.9.1 speaks the classic protocol, that of 4.3.0 version 2.
A bounce counts only if it hit a transaction under way: `__transaction_state` tells, as the bounce has left it.
"""

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from barnabas.broker.coordinators.transactions.records import decode_record
from barnabas.broker.coordinators.transactions.state import Transaction, TransactionState
from barnabas.spark_examples.java import JavaMissing, find_java
from barnabas.wire.record_batch import CorruptBatch, iter_headers
from barnabas.wire.records import iter_records
from compat_tests.conftest import create_topic
from tests.support.required import tool_missing
from tools.foreign.kafka import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.waiting import PATIENCE_S, wait_until

PROGRESS_S = 60
"""A copier that commits nothing for so long hangs; so long as Kafka's own test gives it."""

OVERRIDES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
UNDER_WAY = {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}


class Size(NamedTuple):
    """How much is copied: rounds of so many records, until so many bounces have hit a transaction."""

    round_records: int
    records_at_least: int
    transaction_records: int
    hits: int


SIZE = Size(round_records=12_500, records_at_least=25_000, transaction_records=750, hits=2)
ROUNDS_MAX = 40


class Cell(NamedTuple):
    """One cell of the matrix. With group metadata the copier is a member of its group, and fenced by generation."""

    victim: str
    end: str
    group_metadata: bool
    version: str

    def __str__(self) -> str:
        membership = "member" if self.group_metadata else "assigned"
        return f"{self.end}-{self.victim}-{membership}-{self.version}"


MATRIX = [
    *(
        Cell(*each, ORACLE_VERSION)
        for each in itertools.product(("broker", "copier"), ("hard", "clean"), (True, False))
    ),
    Cell("broker", "hard", True, ZOOKEEPER_ERA_VERSION),
    Cell("copier", "clean", False, ZOOKEEPER_ERA_VERSION),
]


class Copier:
    """The copier's process; each start takes over from the one before by its transactional id."""

    def __init__(self, cluster: Any, cell: Cell, size: Size, name: str, folder: Path) -> None:
        self.transactional_id = self.group = name
        self._version = cell.version
        self._options = ["--broker-list", cluster.bootstrap_servers, "--input-topic", "source"]
        self._options += ["--input-partition", "0", "--output-topic", "target", "--consumer-group", self.group]
        self._options += ["--transactional-id", self.transactional_id]
        # The next copier asks for its group's offsets first, and is told when the transaction that pends has timed out.
        self._options += ["--transaction-timeout", "6000" if cell.victim == "copier" else "60000"]
        self._options += ["--transaction-size", str(size.transaction_records), "--enable-random-aborts"]
        if cell.group_metadata:
            self._options += ["--group-mode", "--use-group-metadata"]
        self._errors = folder / "errors"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Copy what is in the source now."""
        runtime = kafka_runtime(self._version)
        command = runtime.java_command("org.apache.kafka.tools.TransactionalMessageCopier")
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.DEVNULL, stderr=errors)

    def end(self, *, hard: bool) -> None:
        """Have it end in the middle of things."""
        if self._process is not None:
            self._process.kill() if hard else self._process.terminate()
            self._process.wait(PATIENCE_S)

    @property
    def is_done(self) -> bool:
        """It has copied everything. AssertionError when it failed."""
        status = None if self._process is None else self._process.poll()
        assert status in (None, 0), self._errors.read_text()[-4000:]
        return status == 0


class Follower(threading.Thread):
    """Reads the committed records of the target while they come."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._enough = threading.Event()
        self.values: list[bytes] = []

    def run(self) -> None:
        with assigned(self._bootstrap_servers, "target", "follower") as consumer:
            while not self._enough.is_set():
                self.values += [each.value() or b"" for each in consumer.consume(500, 0.1) if not each.error()]

    def finish(self, count: int) -> list[bytes]:
        """Everything it read, when that is `count` records."""
        wait_until(lambda: len(self.values) >= count, lambda: f"{count} records, not {len(self.values)}")
        self._enough.set()
        self.join()
        return self.values


@pytest.fixture
def java() -> None:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", MATRIX, ids=str)
def test_exactly_once_through_bounces(
    cell: Cell, java: None, start_cluster: Callable[..., Any], transactional_id: str, tmp_path: Path
) -> None:
    copy_through_bounces(cell, SIZE, start_cluster(OVERRIDES), transactional_id, tmp_path)


def copy_through_bounces(cell: Cell, size: Size, cluster: Any, transactional_id: str, folder: Path) -> None:
    """Copy in rounds until enough bounces hit a transaction; what was written, read and committed must be the source,
    in its order.
    """
    for name in ("source", "target"):
        create_topic(cluster.bootstrap_servers, name, 1, None)
    copier = Copier(cluster, cell, size, transactional_id, folder)
    follower = Follower(cluster.bootstrap_servers)
    follower.start()
    written = hits = 0
    with progress_of(cluster, copier.group) as copied:
        while hits < size.hits or written < size.records_at_least:
            assert written < ROUNDS_MAX * size.round_records, f"{hits} bounces hit a transaction"
            fill(cluster, written, size.round_records)
            written += size.round_records
            copier.start()
            try:
                while advances(copied, 2 * size.transaction_records, copier, cluster.log_dir):
                    if hits < size.hits:
                        hits += bounce(cell, cluster, copier)
            finally:
                copier.end(hard=True)
        assert copied() == written
    expected = [str(number).encode() for number in range(written)]
    assert committed_values(cluster) == expected
    assert follower.finish(written) == expected


def bounce(cell: Cell, cluster: Any, copier: Copier) -> bool:
    """Take the victim away and bring it back; whether a transaction was under way."""
    is_hard = cell.end == "hard"
    if cell.victim == "copier":
        copier.end(hard=is_hard)
        is_under_way = state_of(copier.transactional_id, cluster.log_dir) in UNDER_WAY
        copier.start()
    else:
        cluster.kill() if is_hard else cluster.stop()
        is_under_way = state_of(copier.transactional_id, cluster.log_dir) in UNDER_WAY
        cluster.start()
    return is_under_way


def state_of(transactional_id: str, log_dir: Path) -> TransactionState | None:
    """The state that the coordinator's log ends with; None before the first."""
    state = None
    for segment in sorted(log_dir.glob("__transaction_state-*/*.log")):
        data = segment.read_bytes()
        with suppress(CorruptBatch):  # being written, or zeros that Kafka has put behind its batches
            for header in iter_headers(data):
                for record in iter_records(data, header):
                    entry = decode_record(record.key or b"", record.value)
                    if isinstance(entry, Transaction) and entry.transactional_id == transactional_id:
                        state = entry.state
    return state


def advances(copied: Callable[[], int], records: int, copier: Copier, log_dir: Path) -> bool:
    """Wait until so many more records are committed and a transaction is under way; False when the copier is done
    before. TimeoutError when it does not go on.
    """
    target = copied() + records

    def is_under_way() -> bool:
        return copied() >= target and state_of(copier.transactional_id, log_dir) in UNDER_WAY

    return (
        wait_until(lambda: "done" if copier.is_done else "under way" if is_under_way() else "", "the copier goes on")
        == "under way"
    )


def fill(cluster: Any, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce("source", str(number).encode())
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


@contextmanager
def progress_of(cluster: Any, group: str) -> Iterator[Callable[[], int]]:
    """How far the group's transactions have committed; a broker that started just now may have to be asked again."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})

    def copied() -> int:
        def look() -> list[int]:
            with suppress(KafkaException):
                (committed,) = consumer.committed([TopicPartition("source", 0)], PATIENCE_S)
                if committed.error is None:
                    return [max(0, committed.offset)]
            return []

        return wait_until(look, "a coordinator")[0]

    try:
        yield copied
    finally:
        consumer.close()


@contextmanager
def assigned(bootstrap_servers: str, topic: str, group: str) -> Iterator[Consumer]:
    """A consumer of committed records, from the first on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        yield consumer
    finally:
        consumer.close()


def committed_values(cluster: Any) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    with assigned(cluster.bootstrap_servers, "target", "reader") as consumer:
        while time.monotonic() < deadline:
            for message in consumer.consume(1_000, 1):
                error = message.error()
                if error is None:
                    values.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    return values
    raise AssertionError("the end of the topic was not reached")
