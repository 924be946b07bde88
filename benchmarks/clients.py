"""Loads by librdkafka that Kafka's own tools lack: many connections, unrounded latencies, groups that change."""

import contextlib
import math
import multiprocessing
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.clock import SystemClock
from benchmarks.system import Reachable, Secured, Server

TIMEOUT_S = 300
IMPATIENT = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 5,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 5,
    "topic.metadata.refresh.fast.interval.ms": 5,
}
"""The pauses of a client between attempts. With its defaults they grow to a second while there is no broker (KIP-580),
and would be in the figure."""
UNBATCHED = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight.requests.per.connection": 5}
_DUE = struct.Struct("<q")


def now_s() -> float:
    """The system's clock, which Java's tools tell times by."""
    return SystemClock().now_ms() / 1000


def connecting_to(server: Reachable) -> dict[str, Any]:
    """The settings of a client that logs nothing."""
    security = server.librdkafka if isinstance(server, Secured) else {}
    return {"bootstrap.servers": server.bootstrap_servers, "log_level": 0, **security}


def producer_to(server: Reachable, settings: Mapping[str, Any] | None = None) -> Producer:
    """A producer that logs nothing."""
    return Producer({**connecting_to(server), **(settings or {})})


def admin_of(server: Reachable) -> AdminClient:
    """An administrator that logs nothing."""
    return AdminClient({**connecting_to(server), **IMPATIENT})


def create_topics(
    server: Reachable,
    partitions: int,
    *names: str,
    timeout_s: float = 60,
    replicas: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create topics and wait for them."""
    admin = admin_of(server)  # its futures end with it
    topics = [
        NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
        for name in names
    ]
    created = admin.create_topics(topics, operation_timeout=timeout_s, request_timeout=timeout_s)
    for future in created.values():
        future.result(timeout_s)


def wait_for_leaders(server: Server, partitions: int, timeout_s: float = TIMEOUT_S) -> None:
    """Return when the broker's metadata has so many partitions with a leader. Raises RuntimeError in the end."""
    admin = admin_of(server)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        topics = admin.list_topics(timeout=timeout_s).topics.values()
        if sum(each.leader >= 0 for topic in topics for each in topic.partitions.values()) >= partitions:
            return
        time.sleep(0.02)
    raise RuntimeError(f"{partitions} partitions have no leaders after {timeout_s} s")


def requests_per_second(server: Server, topic: str, connections: int, records: int, size: int = 100) -> float:
    """Send records one a request, over several connections with 5 requests under way each; acknowledged ones a second.

    Raises RuntimeError when not every record was acknowledged.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producers = [producer_to(server, {**UNBATCHED, "acks": 1}) for _ in range(connections)]
    for producer in producers:  # connected, and the leader known
        producer.produce(topic, b"x" * size, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
    value = b"x" * size
    started_s = time.perf_counter()
    for number in range(records):
        producer = producers[number % connections]
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
    unsent = sum(producer.flush(TIMEOUT_S) for producer in producers)
    elapsed_s = time.perf_counter() - started_s
    if failures or unsent:
        raise RuntimeError(f"{len(failures)} records failed ({failures[:1]}), {unsent} were not acknowledged")
    return records / elapsed_s


def seconds_to_first_ack(server: Server, topic: str) -> float:
    """Start a broker under a client that waits for it with a record; how long from there to the acknowledgement.

    Raises RuntimeError when none comes.
    """
    producer = producer_to(server, IMPATIENT)
    waited_s: list[float] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            waited_s.append(message.latency() or 0.0)

    produced_s = time.monotonic()
    producer.produce(topic, b"x", on_delivery=delivered)
    producer.poll(0.2)
    started_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:  # `start` may return later than the acknowledgement comes
        starting = pool.submit(server.start)
        producer.flush(TIMEOUT_S)
        starting.result()
    if not waited_s:
        raise RuntimeError("the first record was not acknowledged")
    return waited_s[0] - (started_s - produced_s)


class LiveProducer:
    """A producer that sends small records at a steady rate from a thread, for `with`.

    Raises RuntimeError at the end when a record was not acknowledged.
    """

    def __init__(self, server: Server, topic: str, per_second: int = 200) -> None:
        self._producer = producer_to(server, {"linger.ms": 0, "acks": "all"})
        self._topic = topic
        self._pause_s = 1 / per_second
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._acknowledged: list[tuple[float, float]] = []
        self._failures: list[object] = []

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._over.is_set():
            try:
                self._producer.produce(self._topic, b"x" * 100, on_delivery=self._delivered)
            except BufferError as error:  # the queue is full of what the broker does not take
                self._failures.append(error)
            due_s += self._pause_s
            # librdkafka takes the time when it hands over the acknowledgement, so somebody has to wait for it.
            while (left_s := due_s - time.monotonic()) > 0:
                self._producer.poll(left_s)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._acknowledged.append((now_s(), (message.latency() or 0.0) * 1000))
        else:
            self._failures.append(error)

    def latencies_ms(self, start_s: float = 0.0, end_s: float = math.inf) -> list[float]:
        """The times from send to acknowledgement of records acknowledged between two times of the system's clock."""
        return [latency_ms for at_s, latency_ms in self._acknowledged if start_s <= at_s <= end_s]

    def wait_for(self, count: int) -> None:
        """Wait until so many are acknowledged. Raises RuntimeError when they are not."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(self._acknowledged) < count:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{len(self._acknowledged)} of {count} live records were acknowledged")
            time.sleep(self._pause_s)

    def __enter__(self) -> "LiveProducer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        unsent = self._producer.flush(TIMEOUT_S)
        if kind is None and (self._failures or unsent):
            raise RuntimeError(
                f"{len(self._failures)} live records failed ({self._failures[:1]}), {unsent} are missing"
            )


@contextlib.contextmanager
def consumer_at_end(settings: Mapping[str, Any], topic: str) -> Iterator[Consumer]:
    """A consumer of partition 0 that has arrived at its end; the settings are those of `connecting_to`."""
    consumer = Consumer({**settings, "group.id": "benchmark"})
    try:
        consumer.assign([TopicPartition(topic, 0, _end_offset(consumer, topic))])
        yield consumer
    finally:
        consumer.close()


def _end_offset(consumer: Consumer, topic: str) -> int:
    """The end offset of partition 0. A broker that has just created it may need a moment to lead it.

    Raises KafkaException.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)[1]
            return end
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


def one_by_one_ms(server: Reachable, topic: str, records: int, size: int) -> list[float]:
    """Latencies from a record's send to its receipt, the next record only after that. Raises RuntimeError."""
    producer = producer_to(server, {"linger.ms": 0, "acks": 1})
    found = []
    with consumer_at_end(connecting_to(server), topic) as consumer:
        for number in range(records + 100):
            started_s = time.perf_counter()
            producer.produce(topic, b"x" * size)
            message = consumer.poll(TIMEOUT_S)
            if message is None or message.error() is not None:
                raise RuntimeError("a record did not arrive")
            if number >= 100:  # the first ones make connections
                found.append((time.perf_counter() - started_s) * 1000)
            producer.poll(0)
        producer.flush(TIMEOUT_S)
    return found


def acknowledgements_ms(
    server: Reachable, topic: str, partitions: int, records: int, size: int, acks: str
) -> list[float]:
    """Latencies from a record's send to its acknowledgement, the next record only after that, to the partitions in
    turn. Raises RuntimeError."""
    producer = producer_to(server, {"linger.ms": 0, "acks": acks, "enable.idempotence": acks == "all"})
    found = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    for number in range(records + 100):
        started_s = time.perf_counter()
        producer.produce(topic, b"x" * size, partition=number % partitions, on_delivery=delivered)
        if producer.flush(TIMEOUT_S) or errors:
            raise RuntimeError(f"a record was not acknowledged: {errors}")
        if number >= 100:  # the first ones make connections
            found.append((time.perf_counter() - started_s) * 1000)
    return found


class OneByOne:
    """A producer in a thread that sends the next record, acks=all, when one is acknowledged, to the partitions in turn,
    for `with`. Raises RuntimeError at the end when one was not.
    """

    def __init__(self, server: Reachable, topic: str, partitions: int, size: int) -> None:
        self._producer = producer_to(server, {"linger.ms": 0, "acks": "all", "enable.idempotence": True})
        self._topic, self._partitions, self._size = topic, partitions, size
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._acknowledged: list[tuple[float, float]] = []
        self._failures: list[object] = []

    def _run(self) -> None:
        number = 0
        value = b"x" * self._size
        while not self._over.is_set() and not self._failures:
            started_s = time.monotonic()
            partition = number % self._partitions
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            if self._producer.flush(TIMEOUT_S):
                self._failures.append("no answer")
            ended_s = time.monotonic()
            self._acknowledged.append((ended_s, (ended_s - started_s) * 1000))
            number += 1

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def latencies_ms(self, start_s: float, end_s: float) -> list[float]:
        """The times from send to acknowledgement of records acknowledged between two times of `time.monotonic`.

        If there was none, the time of the first one after them, for which this waits: call it inside of `with`.
        """
        while not (later := [each for each in self._acknowledged if each[0] >= start_s]) and self._thread.is_alive():
            time.sleep(0.001)
        found = [latency_ms for at_s, latency_ms in later if at_s <= end_s]
        return found or [latency_ms for _, latency_ms in later[:1]]

    def __enter__(self) -> "OneByOne":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is None and self._failures:
            raise RuntimeError(f"a record was not acknowledged: {self._failures[:1]}")


def at_rate_ms(server: Server, topic: str, per_second: int, seconds: float, size: int) -> list[float]:
    """Latencies from when a record was to be sent, at a steady rate, to its receipt by another process.

    A record that could not be sent in time counts from when it should have been. Raises RuntimeError.
    """
    count = int(per_second * seconds)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (connecting_to(server), topic, count, theirs)
    receiver = context.Process(target=_receive_at_rate, args=arguments, daemon=True)
    receiver.start()
    theirs.close()
    try:
        ours.recv()
        _send_at_rate(server, topic, per_second, count, size)
        if not ours.poll(TIMEOUT_S):
            raise RuntimeError("records are missing")
        found: list[float] = ours.recv()
    except EOFError:
        raise RuntimeError("the receiving process failed") from None
    finally:
        receiver.kill()
        receiver.join()
    return found


def _send_at_rate(server: Server, topic: str, per_second: int, count: int, size: int) -> None:
    producer = producer_to(server, {"linger.ms": 0, "acks": 1, "queue.buffering.max.messages": 1_000_000})
    padding = bytes(size - _DUE.size)
    interval_ns = 1_000_000_000 // per_second
    started_ns = time.monotonic_ns() + 1_000_000
    for number in range(count):
        due_ns = started_ns + number * interval_ns
        while (early_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(early_ns / 1e9)
        producer.produce(topic, _DUE.pack(due_ns) + padding)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush(TIMEOUT_S)


def _receive_at_rate(settings: Mapping[str, Any], topic: str, count: int, results: Connection) -> None:
    found: list[float] = []
    with consumer_at_end(settings, topic) as consumer:
        consumer.poll(0.5)  # the first fetch is under way
        results.send(None)
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            value = message.value() if message is not None and message.error() is None else None
            if value is None:
                return
            found.append((time.monotonic_ns() - _DUE.unpack_from(value)[0]) / 1e6)
        results.send(found)
