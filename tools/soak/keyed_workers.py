"""Stock clients of a compacted topic: values and deletions of keys, alone and in transactions, and readings of all
records.
"""

import sys
import time
from collections.abc import Callable
from math import inf
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tools.soak.compacted import KeyedOperation, KeyedRecord, KeyedWrite, Reading
from tools.soak.history import Status, Value
from tools.soak.workload import ABORT_PROBABILITY, Worker, end_transaction, fencing_producer, value_of

PARTITIONS = 2
NUMBER_HEADER = "number"
READ_MAX_S = 200.0


def compacted_topic(topic: str) -> str:
    """The compacted topic of this topic's round."""
    return f"{topic}-compacted"


class KeyedWorker(Worker):
    """A client of the compacted topic. It writes to separate keys: some of them all the time, most of them seldom, so
    that the loss of one's newest value is not hidden by the next.
    """

    FEW_KEYS = 10
    MANY_KEYS = 1_000
    FEW_PROBABILITY = 0.7
    DELETION_PROBABILITY = 0.1

    def __init__(self, process: int, bootstrap_servers: str, topic: str, *arguments: Any) -> None:
        super().__init__(process, bootstrap_servers, compacted_topic(topic), *arguments)

    def next_writes(self, count: int) -> list[KeyedWrite]:
        """The next writes, to the frequent keys or to the rare ones, so that compaction removes some batches
        completely, and others hardly.
        """
        keys = self.FEW_KEYS if self.random.random() < self.FEW_PROBABILITY else self.MANY_KEYS
        return [self._next_write(self.random.randrange(keys)) for _ in range(count)]

    def _next_write(self, number: int) -> KeyedWrite:
        is_deletion = self.random.random() < self.DELETION_PROBABILITY
        return KeyedWrite(number % PARTITIONS, f"{self.process}-{number}", self.value(), is_deletion)

    def produce(self, producer: Producer, write: KeyedWrite, offsets: dict[int, int]) -> None:
        """Pass a write to the client; `offsets` gets the acknowledged offsets, by number."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets[write.number] = message.offset() or 0

        number = str(write.number).encode()
        producer.produce(
            self.topic,
            key=write.key,
            value=None if write.is_deletion else number,
            partition=write.partition,
            headers={NUMBER_HEADER: number},
            on_delivery=delivered,
        )

    def record_writes(self, status: Status, writes: list[KeyedWrite], offsets: dict[int, int]) -> None:
        """Record the result of writes."""
        told = [
            KeyedWrite(write.partition, write.key, write.number, write.is_deletion, offsets.get(write.number))
            for write in writes
        ]
        self.recorder.add_keyed(KeyedOperation(status, told))
        self.done += status is Status.OK


class KeyedProducer(KeyedWorker):
    """Idempotent, with compressed batches."""

    BATCH = 40
    PAUSE_S = 0.05

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._producer = self._open()

    def _open(self) -> Producer:
        return Producer(
            self.config(
                **{
                    "enable.idempotence": True,
                    "linger.ms": 2,
                    "batch.size": 2_000,  # retries too must fit into a segment
                    "compression.type": "lz4",
                    "message.timeout.ms": 120_000,
                }
            )
        )

    def run_once(self) -> None:
        writes = self.next_writes(self.BATCH)
        offsets: dict[int, int] = {}
        try:
            for write in writes:
                self.produce(self._producer, write, offsets)
            self._producer.flush(150)
        except:  # noqa: E722 - confluent-kafka raises fatal errors as a KafkaError, which is no exception class
            self.problems.append(str(sys.exc_info()[1]))
            self._producer.flush(150)
            self._producer = self._open()
        for status, told in (
            (Status.OK, [write for write in writes if write.number in offsets]),
            (Status.INFO, [write for write in writes if write.number not in offsets]),
        ):
            if told:
                self.record_writes(status, told, offsets)
        time.sleep(self.PAUSE_S)


class KeyedTransactionalProducer(KeyedWorker):
    """Transactions of a few values and deletions; one in ten is aborted on purpose."""

    RECORDS_MAX = 10
    PAUSE_S = 0.02

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._producer: Producer | None = None

    def _open(self) -> Producer:
        if self._producer is None:
            self._producer = fencing_producer(self)
        return self._producer

    def run_once(self) -> None:
        writes: list[KeyedWrite] = []
        offsets: dict[int, int] = {}
        status = Status.INFO
        try:
            producer = self._open()
            producer.begin_transaction()
            writes = self.next_writes(self.random.randint(1, self.RECORDS_MAX))
            for write in writes:
                self.produce(producer, write, offsets)
            aborts = self.random.random() < ABORT_PROBABILITY
            if aborts:
                producer.flush(60)  # otherwise librdkafka would discard unsent records
            status = end_transaction(producer, aborts=aborts)
        except KafkaException:
            self._producer = None  # the next one fences it
        if writes:
            self.record_writes(status, writes, offsets)
        time.sleep(self.PAUSE_S)


class KeyedReader(KeyedWorker):
    """Reads the topic from its start to its end, again and again."""

    PAUSE_S = 0.4

    def run_once(self) -> None:
        reading = read_compacted(self.bootstrap_servers, self.topic, lambda: self._is_stopping)
        if reading is not None:
            self.recorder.add_reading(reading)
            self.done += bool(reading.records)
        self.pause(self.PAUSE_S)


def read_compacted(
    bootstrap_servers: str, topic: str, gives_up: Callable[[], bool] = lambda: False, *, is_last: bool = False
) -> Reading | None:
    """All committed records of the topic; None if it was given up. The last reading, without open transactions and
    writers, must contain everything. Raises TimeoutError.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "keyed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,  # the maximum delay for the end of the log
            "isolation.level": "read_committed",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    records: list[KeyedRecord] = []
    ends: dict[int, float] = {}
    begun = time.monotonic()
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        while len(ends) < PARTITIONS:
            if gives_up():
                return None
            if time.monotonic() > begun + READ_MAX_S:
                raise TimeoutError(f"{topic} does not come to an end (a hanging transaction?)")
            for message in consumer.consume(1_000, timeout=0.2):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends[partition] = inf if is_last else message.offset() or 0
    finally:
        consumer.close()
    return Reading(records, ends, time.monotonic() - begun)


def _record(message: Message) -> KeyedRecord:
    """The record with its number, or with its content if value and header do not name the same number."""
    key, value = message.key(), message.value()
    number: Value = value_of(dict(message.headers() or []).get(NUMBER_HEADER))
    if value is not None and value_of(value) != number:
        number = (value, number)
    name: Value = key.decode(errors="replace") if isinstance(key, bytes) else key
    return KeyedRecord(message.partition() or 0, message.offset() or 0, name, number, value is None)
