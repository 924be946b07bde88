"""Writes records and their progress in one transaction: exactly once, where Spark's own sink is at least once.

Spark repeats a micro-batch that a crash cut off, and its Kafka sink then writes the batch's records again. A `Unit` is
a part of the work that is always done as a whole by one task (a source partition, or a state partition of a stateful
query). It writes through a transactional producer of its own, and commits how far it has come, as an offset of a
consumer group, in the same transaction. A repeated task finds its progress there and leaves out what is done; one that
still runs somewhere, though Spark has given it up, is fenced by the transactional id.

Readers see the result with isolation.level=read_committed. A broker forgets the offsets of a group that rests for
longer than offsets.retention.minutes (Kafka: seven days): a batch that was cut off has to be repeated before that.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

T = TypeVar("T")
Headers = Sequence[tuple[str, bytes | None]]

TIMEOUT_S = 60.0
ATTEMPTS = 5
POLL_S = 0.05
RECORDS_PER_TRANSACTION = 20_000
COORDINATOR_MOVES = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)


class Outgoing(NamedTuple):
    """A record to be written; without `partition` its key decides, without `timestamp` (ms) it is now.

    To librdkafka 0 is no timestamp: a record of the first millisecond of 1970 gets the present time.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int = -1
    timestamp: int = 0


class Unit:
    """A context manager. `name` is transactional id and consumer group; progress is kept at one partition of a topic.

    `progress` is what the last committed transaction said, or 0. Errors: KafkaException.
    """

    def __init__(self, config: Mapping[str, str], name: str, topic: str, partition: int) -> None:
        self._place = TopicPartition(topic, partition)
        settings = {
            "linger.ms": 20,
            "log_level": 4,  # warnings
            # As Java's clients, and so Spark's sink, choose partitions: a key has one home, whoever writes it.
            "partitioner": "murmur2_random",
            **config,
            "transactional.id": name,
        }
        self._producer = Producer(settings)
        self._group = Consumer({**config, "group.id": name, "enable.auto.commit": False})
        self.progress = 0

    def __enter__(self) -> "Unit":
        # Fences and finishes what an earlier holder of the name left: only then is its progress certain.
        self._retried(self._producer.init_transactions, TIMEOUT_S)
        [place] = self._retried(self._group.committed, [self._place], TIMEOUT_S)
        if place.error is not None:
            raise KafkaException(place.error)
        self.progress = max(0, place.offset)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.close()

    def commit(self, records: Sequence[Outgoing], progress: int) -> None:
        """Write records and progress, both or neither. Errors: KafkaException, when a successor has taken over, too."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._transact(records, progress)
            except KafkaException as problem:
                if not problem.args[0].txn_requires_abort() or attempt == ATTEMPTS:
                    raise
                self._retried(self._producer.abort_transaction, TIMEOUT_S)
            else:
                self.progress = progress
                return

    def _transact(self, records: Sequence[Outgoing], progress: int) -> None:
        self._producer.begin_transaction()
        for record in records:
            self._produce(record)
        place = TopicPartition(self._place.topic, self._place.partition, progress)
        group = self._group.consumer_group_metadata()
        self._retried(self._producer.send_offsets_to_transaction, [place], group, TIMEOUT_S)
        self._retried(self._producer.commit_transaction, TIMEOUT_S)

    def _produce(self, record: Outgoing) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, record.partition,
                    timestamp=record.timestamp, headers=list(record.headers),
                )  # fmt: skip
                break
            except BufferError:  # the producer's queue is full: the broker sets the pace
                self._producer.poll(0.1)
        self._producer.poll(0)

    @staticmethod
    def _retried(call: Callable[..., T], *arguments: Any) -> T:
        """Repeat a call after a retriable error of librdkafka, or if a coordinator moves: its meaning stays the same.

        If a coordinator moves, librdkafka retries the producer's calls itself, but not the consumer's.
        """
        deadline = time.monotonic() + ATTEMPTS * TIMEOUT_S
        while True:
            try:
                return call(*arguments)
            except KafkaException as problem:
                error = problem.args[0]
                is_passing = error.retriable() or error.code() in COORDINATOR_MOVES
                if not is_passing or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)


def wait_until_readable(config: Mapping[str, str], *topics: str) -> bool:
    """Wait until readers of committed data see what is in some topics now: markers follow a producer's commit.

    False if that takes longer than a minute: somebody else has a transaction open there.
    """
    group = {**config, "group.id": "wait-until-readable"}
    everything = Consumer({**group, "isolation.level": "read_uncommitted"})
    committed = Consumer({**group, "isolation.level": "read_committed"})
    try:
        described = everything.list_topics(timeout=TIMEOUT_S).topics
        places = [TopicPartition(topic, number) for topic in topics for number in described[topic].partitions]
        waiting = {place: everything.get_watermark_offsets(place, TIMEOUT_S)[1] for place in places}
        deadline = time.monotonic() + TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            waiting = {
                place: end
                for place, end in waiting.items()
                if committed.get_watermark_offsets(place, TIMEOUT_S)[1] < end
            }
            time.sleep(POLL_S if waiting else 0)
        return not waiting
    finally:
        everything.close()
        committed.close()


def committed_progress(config: Mapping[str, str], name: str, topic: str, partition: int) -> int:
    """The progress that the unit of this name has committed. Errors: KafkaException."""
    group = Consumer({**config, "group.id": name, "enable.auto.commit": False, "log_level": 4})
    try:
        [place] = group.committed([TopicPartition(topic, partition)], TIMEOUT_S)
    finally:
        group.close()
    return max(0, place.offset)


def record_of(row: Any, topic: str, partition: int = -1) -> Outgoing:
    """A row (key, value, headers, millis) as the record it came from."""
    headers = [(header.key, as_bytes(header.value)) for header in row.headers or ()]
    return Outgoing(topic, as_bytes(row.key), as_bytes(row.value), headers, partition, row.millis)


def as_bytes(value: bytearray | None) -> bytes | None:
    """Spark's binary as librdkafka takes it."""
    return None if value is None else bytes(value)


def chunks(items: Iterable[T], size: int = RECORDS_PER_TRANSACTION) -> Iterator[list[T]]:
    """Lists of at most `size` items."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
