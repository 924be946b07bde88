"""Stock clients under load, which record the responses they get: producers, transactions, readers, groups."""

import json
import random
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tools.soak.commits import Place, fetch, moved_back
from tools.soak.compacted import KeyedHistory, KeyedOperation, KeyedRecord, Reading
from tools.soak.history import History, Mode, Operation, Poll, Send, Status, Value

TOPIC_PREFIX = "soak-"
ABORT_PROBABILITY = 0.1
TRANSACTION_TIMEOUT_S = 10.0
VALUES_PER_PROCESS = 1_000_000_000
POLL_RECORDS_MAX = 500
STATISTICS_MS = 5_000
TOLD_OF_PARTITIONS = ("fetch_state", "leader", "broker", "next_offset", "app_offset", "fetchq_cnt", "rxmsgs")
"""Fields of librdkafka's statistics."""


class Amount(NamedTuple):
    """The amount of work done in a round: acknowledged records and transactions, transactions aborted by their
    producer, and committed offsets.
    """

    acknowledged: int = 0
    transactions: int = 0
    aborted: int = 0
    commits: int = 0

    def reaches(self, least: "Amount") -> bool:
        """Whether each number is at least that of `least`."""
        return all(count >= wanted for count, wanted in zip(self, least, strict=True))


class Recorder:
    """The history, written by many threads."""

    def __init__(self) -> None:
        self.history = History()
        self.keyed = KeyedHistory()
        self.acknowledged = 0
        self.transactions: Counter[Status] = Counter()
        self.committed: dict[Place, int] = defaultdict(int)
        """The largest acknowledged offset, by group and partition."""
        self._records: dict[KeyedRecord, KeyedRecord] = {}
        self._lock = threading.Lock()

    def add(self, operation: Operation) -> None:
        with self._lock:
            self.history.events.append(operation)
            if operation.status is Status.OK:
                self.acknowledged += sum(1 for _ in operation.sends())
            self.transactions[operation.status] += operation.is_transaction

    def add_keyed(self, operation: KeyedOperation) -> None:
        with self._lock:
            self.keyed.operations.append(operation)
            if operation.status is Status.OK:
                self.acknowledged += len(operation.writes)

    def add_reading(self, reading: Reading) -> None:
        with self._lock:
            # Most records of a reading are in others too.
            known = self._records
            same = [known.setdefault(record, record) for record in reading.records]
            self.keyed.readings.append(Reading(same, reading.ends, reading.seconds))

    def add_commit(self, group: str, offsets: dict[int, int]) -> None:
        with self._lock:
            for partition, offset in offsets.items():
                self.committed[group, partition] = max(self.committed[group, partition], offset)

    def commits(self) -> dict[Place, int]:
        """The acknowledged commits until now."""
        with self._lock:
            return dict(self.committed)


class Worker(threading.Thread, ABC):
    """One process of the history; `run_once` does one operation."""

    def __init__(
        self, process: int, bootstrap_servers: str, topic: str, partitions: int, recorder: Recorder, seed: int
    ) -> None:
        super().__init__(name=f"{type(self).__name__}-{process}", daemon=True)
        self.process = process
        self.topic = topic
        self.partitions = partitions
        self.recorder = recorder
        self.random = random.Random(seed * 1000 + process)
        self.error: BaseException | None = None
        self.problems: list[str] = []
        self.commits = 0
        self.done = 0
        """The number of operations that were confirmed as successful."""
        self.bootstrap_servers = bootstrap_servers
        self._is_stopping = False
        self._invoked = 0.0
        self._next_value = process * VALUES_PER_PROCESS

    def config(self, **more: object) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **more,
        }

    def value(self) -> int:
        self._next_value += 1
        return self._next_value

    def sends_of_transaction(self) -> list[Send]:
        """Up to four records, or a pair: one value to two partitions."""
        if self.random.random() < 0.5:
            value = self.value()
            return [Send(partition, value) for partition in self.random.sample(range(self.partitions), 2)]
        return [Send(self.random.randrange(self.partitions), self.value()) for _ in range(self.random.randint(1, 4))]

    def operation(self, status: Status, parts: Sequence[Send | Poll], **more: Any) -> Operation:
        """The operation of this round."""
        completed = time.monotonic() if status is Status.OK else inf
        return Operation(self.process, status, list(parts), invoked=self._invoked, completed=completed, **more)

    def record(self, status: Status, parts: Sequence[Send | Poll], **more: Any) -> None:
        """Record this round's operation, and count it if it was successful."""
        operation = self.operation(status, parts, **more)
        self.recorder.add(operation)
        self.done += status is Status.OK and not operation.is_empty

    def add_commit(self, group: str, offsets: dict[int, int]) -> None:
        """Record acknowledged offsets."""
        self.recorder.add_commit(group, offsets)
        self.commits += 1

    def stop(self) -> None:
        self._is_stopping = True

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until it is stopped."""
        deadline = time.monotonic() + seconds
        while not self._is_stopping and time.monotonic() < deadline:
            time.sleep(0.05)

    def run(self) -> None:
        try:
            try:
                while not self._is_stopping:
                    self._invoked = time.monotonic()
                    self.run_once()
            finally:
                self.close()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            self.error = error

    def standing(self) -> str:
        """The current position of its thread, for the report of an idle worker."""
        frame = sys._current_frames().get(self.ident or 0)
        return f"{self.name}: {''.join(traceback.format_stack(frame)[-3:]) if frame else 'has ended'}"

    @abstractmethod
    def run_once(self) -> None: ...

    def close(self) -> None:
        """Close the client."""


class PlainProducer(Worker):
    """Idempotent, acks=all, otherwise defaults: batches of records to one partition at a time."""

    BATCH = 100
    PAUSE_S = 0.03
    """The pause between batches: the history of a long run must fit into memory, and transactions get their share."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._producer = self._open()

    def _open(self) -> Producer:
        return Producer(self.config(**{"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 120_000}))

    def run_once(self) -> None:
        partition = self.random.randrange(self.partitions)
        outcome: list[tuple[int, int | None]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            outcome.append((int(message.value() or b""), None if error else message.offset()))

        try:
            for _ in range(self.BATCH):
                self._producer.produce(
                    self.topic, str(self.value()).encode(), partition=partition, on_delivery=delivered
                )
            self._producer.flush(150)
        except:  # noqa: E722 - confluent-kafka raises fatal errors as a KafkaError, which is no exception class
            self.problems.append(str(sys.exc_info()[1]))
            self._producer.flush(150)
            self._producer = self._open()
        for status, sends in (
            (Status.OK, [Send(partition, value, offset) for value, offset in outcome if offset is not None]),
            (Status.INFO, [Send(partition, value) for value, offset in outcome if offset is None]),
        ):
            if sends:
                self.record(status, sends)
        time.sleep(self.PAUSE_S)


def fencing_producer(worker: Worker) -> Producer:
    """A transactional producer, which has fenced the worker's former one."""
    settings = {
        "transactional.id": f"soak-{worker.process}",
        "transaction.timeout.ms": round(TRANSACTION_TIMEOUT_S * 1000),
    }
    producer = Producer(worker.config(**settings))
    producer.init_transactions(120)
    return producer


class TransactionalProducer(Worker):
    """Transactions of a few records; one in ten is aborted on purpose."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._producer: Producer | None = None

    def _open(self) -> Producer:
        if self._producer is None:
            self._producer = fencing_producer(self)
        return self._producer

    def run_once(self) -> None:
        sends: list[Send] = []
        offsets: dict[tuple[Any, Any], int] = {}
        status = Status.INFO

        def delivered(error: object, message: Message) -> None:
            if not error:
                offsets[message.partition(), int(message.value() or b"")] = message.offset() or 0

        try:
            producer = self._open()
            producer.begin_transaction()
            for send in self.sends_of_transaction():
                sends.append(send)
                producer.produce(self.topic, str(send.value).encode(), partition=send.key, on_delivery=delivered)  # type: ignore[arg-type]
            aborts = self.random.random() < ABORT_PROBABILITY
            if aborts:
                producer.flush(60)  # otherwise librdkafka would discard unsent records
            status = end_transaction(producer, aborts=aborts)
        except KafkaException:
            self._producer = None  # the next one fences it
        if sends:
            parts = [Send(send.key, send.value, offsets.get((send.key, send.value))) for send in sends]
            self.record(status, parts, is_transaction=True)


class Deserter(Worker):
    """Begins transactions and abandons them: only the broker ends them, after their time-out."""

    TIMEOUT_S = 2.0
    PAUSE_S = 3.0

    def run_once(self) -> None:
        self._desert()
        self.pause(self.PAUSE_S)

    def close(self) -> None:
        """Do nothing: the last transaction is left open."""
        self._desert()

    def _desert(self) -> None:
        # If a producer is deleted with an open transaction, confluent_kafka may silently leave an exception behind: the
        # next call of any function written in C raises it as a SystemError.
        try:  # `suppress` would be such a call
            self._leave_open()
            time.monotonic()
        except SystemError:
            pass

    def _leave_open(self) -> None:
        send = Send(self.random.randrange(self.partitions), self.value())
        delivered: list[object] = []
        producer = Producer(
            self.config(
                **{
                    "transactional.id": f"soak-{self.process}-{send.value}",
                    "transaction.timeout.ms": round(self.TIMEOUT_S * 1000),
                    "message.timeout.ms": round(self.TIMEOUT_S * 1000),
                }
            )
        )
        with suppress(KafkaException):
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce(
                self.topic,
                str(send.value).encode(),
                partition=send.key,  # type: ignore[arg-type]
                on_delivery=lambda error, _: delivered.append(error),
            )
            producer.flush(60)
            self.record(Status.FAIL, [send], is_transaction=True)
        self.done += delivered == [None]


def end_transaction(producer: Producer, *, aborts: bool) -> Status:
    """Commit or abort, for as long as it takes; FAIL for a transaction that was aborted.

    Raises KafkaException if the result cannot be known, or the producer has become unusable.
    """
    while True:
        try:
            producer.abort_transaction(60) if aborts else producer.commit_transaction(60)
            return Status.FAIL if aborts else Status.OK
        except KafkaException as error:
            problem = error.args[0]
            if problem.retriable():
                continue
            if problem.txn_requires_abort() and not aborts:
                aborts = True
                continue
            raise


class Reader(Worker):
    """Follows all partitions from the beginning with read_committed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._consumer = Consumer(
            self.config(
                **{
                    "group.id": f"reader-{self.process}",
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                }
            )
        )
        self._consumer.assign(
            [TopicPartition(self.topic, partition, OFFSET_BEGINNING) for partition in range(self.partitions)]
        )

    def run_once(self) -> None:
        records = _records(self._consumer.consume(POLL_RECORDS_MAX, timeout=0.2))
        # Empty polls are recorded too: they show how far behind the reader is.
        self.record(Status.OK, [Poll({partition: records.get(partition, []) for partition in range(self.partitions)})])

    def close(self) -> None:
        self._consumer.close()


class Member(Worker):
    """One of a group's members: reads its partitions, and commits offsets after a check of the group's committed
    offsets.
    """

    GROUP = "members"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rebalanced: set[int] = set()
        self._statistics = "{}"
        self._consumer = Consumer(
            self.config(
                **{
                    "client.id": self.name,
                    "statistics.interval.ms": STATISTICS_MS,
                    "stats_cb": self._keep,
                    "group.id": self.GROUP,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "session.timeout.ms": 6_000,
                    "heartbeat.interval.ms": 1_000,
                }
            )
        )
        self._consumer.subscribe([self.topic], on_assign=self._assigned)

    def _keep(self, statistics: str) -> None:
        self._statistics = statistics

    def standing(self) -> str:
        """Also librdkafka's report: its state in the group, and for each partition whether it is fetched."""
        told = json.loads(self._statistics)
        group = {name: told.get("cgrp", {}).get(name) for name in ("state", "join_state", "stateage")}
        lines = [super().standing().rstrip(), f"  {group}"]
        for topic in told.get("topics", {}).values():
            for number, each in topic["partitions"].items():
                lines.append(f"  partition {number}: " + ", ".join(f"{k} {each.get(k)}" for k in TOLD_OF_PARTITIONS))
        return "\n".join(lines)

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._rebalanced |= {partition.partition for partition in partitions}

    def run_once(self) -> None:
        records = _records(self._consumer.consume(POLL_RECORDS_MAX, timeout=0.2))
        if not records:
            return
        rebalanced, self._rebalanced = frozenset(self._rebalanced), set()
        self.recorder.add(self.operation(Status.OK, [Poll(records)], mode=Mode.SUBSCRIBE, rebalanced=rebalanced))
        targets = {partition: polled[-1][0] + 1 for partition, polled in records.items()}
        before = self.recorder.commits()
        try:
            self.problems += moved_back(before, fetch(self._consumer, self.GROUP, self.topic, targets))
            self._consumer.commit(
                offsets=[TopicPartition(self.topic, partition, offset) for partition, offset in targets.items()],
                asynchronous=False,
            )
        except KafkaException:
            return
        self.add_commit(self.GROUP, targets)
        self.done += 1

    def close(self) -> None:
        self._consumer.close()


class Committer(Worker):
    """Commits increasing offsets of a group without members and checks before each that they did not move back."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = f"group-{self.process}"
        self._consumer = Consumer(self.config(**{"group.id": self._group, "enable.auto.commit": False}))

    def run_once(self) -> None:
        before = self.recorder.commits()
        target = before.get((self._group, 0), 0) + 1
        try:
            self.problems += moved_back(before, fetch(self._consumer, self._group, self.topic, [0]))
            self._consumer.commit(offsets=[TopicPartition(self.topic, 0, target)], asynchronous=False)
        except KafkaException:
            time.sleep(0.05)
            return
        self.add_commit(self._group, {0: target})
        self.done += 1

    def close(self) -> None:
        self._consumer.close()


def read_commits(bootstrap_servers: str, topic: str, places: Iterable[Place]) -> dict[Place, int]:
    """The committed offsets of the groups. Raises KafkaException, TimeoutError."""
    found: dict[Place, int] = {}
    by_group: dict[str, list[int]] = defaultdict(list)
    for group, partition in places:
        by_group[group].append(partition)
    for group, partitions in by_group.items():
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            told = fetch(consumer, group, topic, partitions)
        finally:
            consumer.close()
        if len(told) < len(partitions):
            raise TimeoutError(f"the broker does not tell what group {group} has committed")
        found |= told
    return found


def read_everything(bootstrap_servers: str, topic: str, partitions: int) -> dict[Any, list[tuple[int, Any]]]:
    """All committed records of every partition, from the start to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "final",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    found: dict[Any, list[tuple[int, Any]]] = {partition: [] for partition in range(partitions)}
    at_end: set[int | None] = set()
    deadline = time.monotonic() + 200
    while len(at_end) < partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"partitions {set(range(partitions)) - at_end} do not come to an end (a hanging transaction?)"
            )
        messages = consumer.consume(1_000, timeout=0.2)
        for partition, records in _records(messages).items():
            found[partition] += records
        at_end |= {message.partition() for message in messages if message.error() is not None}
    consumer.close()
    return found


def _records(messages: list[Message]) -> dict[Any, list[tuple[int, Any]]]:
    records: dict[Any, list[tuple[int, Any]]] = {}
    for message in messages:
        if message.error() is None:
            records.setdefault(message.partition(), []).append((message.offset() or 0, value_of(message.value())))
    return records


def value_of(written: bytes | str | None) -> Value:
    """The number that a worker wrote, or the bytes of a value that no worker can have written."""
    return int(written) if written and written.isdigit() else written


Workers = tuple[tuple[type[Worker], int], ...]
