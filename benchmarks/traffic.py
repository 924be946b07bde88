"""A client that writes and reads at a steady rate while a cluster changes, and its results: errors, latencies, lost and
duplicate records.
"""

import ctypes
import struct
import sys
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.spread import percentile

PATIENCE_S: Final = 120.0
_NUMBER: Final = struct.Struct(">q")
_BURST_S: Final = 0.005
"""Records that are due within so long are handed over together."""


class Traffic:
    """Writes numbered records to all partitions of a topic with acks=all, idempotent, from a thread, for `with`; with
    `reads` another one reads them meanwhile.

    At the end everything that was sent has been acknowledged or is in `errors`, and `lost` and `doubled` are known: the
    topic, which has to be empty before, is read from its start. Nothing is read behind a block that raised.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        records_per_second: int = 500,
        record_bytes: int = 100,
        settings: Mapping[str, Any] | None = None,
        reads: bool = True,
        stall_s: float = 10.0,
    ) -> None:
        """A reader that has got nothing for `stall_s`, though there is more, is looked at."""
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._per_second = records_per_second
        self._padding = bytes(record_bytes - _NUMBER.size)
        own = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer({**own, **(settings or {})})
        self._stall_s = stall_s
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, name="writer", daemon=True)]
        if reads:
            self._threads.append(threading.Thread(target=self._read, name="reader", daemon=True))
        self._sent = 0
        self._is_acknowledged = bytearray()
        self._acknowledged_s, self._latencies_ms = array("d"), array("d")
        """The time and the latency of each acknowledgement, in order. With millions of objects, a pause of the garbage
        collector would count as the brokers'."""
        self.errors: list[str] = []
        self.read_errors: list[str] = []
        self.read_count = 0
        self.lost: int | None = None
        self.doubled: int | None = None

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged records so far."""
        return len(self._latencies_ms)

    def latencies_ms(self, start_s: float, end_s: float) -> list[float]:
        """The times from hand-over to acknowledgement, in ms, of records acknowledged between two monotonic times.

        Call it after the block: the writer waits meanwhile.
        """
        first, end = (bisect_left(self._acknowledged_s, at_s) for at_s in (start_s, end_s))
        return self._latencies_ms[first:end].tolist()

    def p99_ms(self, start_s: float, end_s: float) -> float:
        """The 99th percentile of these. Raises ValueError when there were none."""
        return percentile(self.latencies_ms(start_s, end_s), 99)

    def wait_for(self, more: int) -> None:
        """Return when so many more records are acknowledged, and read where they are read. Raises TimeoutError."""
        written, read = self.acknowledged + more, self.read_count + more
        deadline = time.monotonic() + PATIENCE_S
        while self.acknowledged < written or (len(self._threads) > 1 and self.read_count < read):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.acknowledged} of {written} were acknowledged, {self.read_count} were read")
            time.sleep(0.01)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._producer.flush(PATIENCE_S)
        if kind is None:
            self._count()

    def _write(self) -> None:
        started = time.monotonic()
        while not self._over.is_set():
            due = int((time.monotonic() - started) * self._per_second)
            while self._sent < due:
                try:
                    value = _NUMBER.pack(self._sent) + self._padding
                    self._producer.produce(self._topic, value, on_delivery=self._delivered)
                except BufferError:  # as a producer in Java would, this one waits
                    break
                self._sent += 1
                self._is_acknowledged.append(0)
            self._producer.poll(_BURST_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        value = message.value()
        assert value is not None
        self._is_acknowledged[_NUMBER.unpack_from(value)[0]] = 1
        self._latencies_ms.append((message.latency() or 0.0) * 1000)
        self._acknowledged_s.append(time.monotonic())

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "traffic",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )

    def _partitions(self, consumer: Consumer) -> int:
        """The number of the topic's partitions. A broker that does not know a new topic yet is asked again.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not (found := consumer.list_topics(self._topic, timeout=PATIENCE_S).topics[self._topic].partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody knows of partitions of {self._topic}")
            time.sleep(0.05)
        return len(found)

    def _assign(self, consumer: Consumer, positions: Mapping[int, int]) -> None:
        consumer.assign([TopicPartition(self._topic, index, offset) for index, offset in positions.items()])

    def _read(self) -> None:
        consumer = self._consumer()
        positions = dict.fromkeys(range(self._partitions(consumer)), 0)
        self._assign(consumer, positions)
        while not self._read_on(consumer, positions):
            sys.stderr.write("a consumer of librdkafka holds itself up: another one reads on\n")
            _leave_alone(consumer)
            consumer = self._consumer()
            self._assign(consumer, positions)
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(self._stall_s)
        if closing.is_alive():
            _leave_alone(consumer)

    def _read_on(self, consumer: Consumer, positions: dict[int, int]) -> bool:
        """Read until all is over; False if the consumer can read no more, as it holds itself up."""
        heard_s = time.monotonic()
        while not self._over.is_set():
            for message in consumer.consume(10_000, timeout=0.1):
                heard_s = time.monotonic()
                error, index, offset = message.error(), message.partition(), message.offset()
                if error is None and index is not None and offset is not None:
                    self.read_count += 1
                    positions[index] = offset + 1
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    self.read_errors.append(str(error))
            if time.monotonic() - heard_s > self._stall_s and self.read_count < self.acknowledged:
                if self._holds_itself_up(consumer):
                    return False
                heard_s = time.monotonic()
        return True

    def _holds_itself_up(self, consumer: Consumer) -> bool:
        """Whether one consumer gets no metadata, while another one gets them at once. Two threads of librdkafka
        2.16 can wait for each other for ever when a broker leaves the cluster
        (https://github.com/confluentinc/librdkafka/issues/5476)."""
        if _has_metadata(consumer):
            return False
        other = self._consumer()
        try:
            return _has_metadata(other)
        finally:
            other.close()

    def _count(self) -> None:
        """Read everything back, and compare."""
        times_read = bytearray(self._sent)
        consumer = self._consumer()
        at_end: set[int | None] = set()
        partitions = self._partitions(consumer)
        self._assign(consumer, dict.fromkeys(range(partitions), 0))
        deadline = time.monotonic() + PATIENCE_S
        while len(at_end) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._topic} was not read to its end")
            for message in consumer.consume(10_000, timeout=0.1):
                error, value = message.error(), message.value()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        at_end.add(message.partition())
                    continue
                assert value is not None
                number = _NUMBER.unpack_from(value)[0]
                times_read[number] = min(times_read[number] + 1, 2)
        consumer.close()
        pairs = zip(self._is_acknowledged, times_read, strict=True)
        self.lost = sum(is_acknowledged and not times for is_acknowledged, times in pairs)
        self.doubled = times_read.count(2)


def _has_metadata(consumer: Consumer) -> bool:
    try:
        consumer.list_topics(timeout=5)
    except KafkaException:
        return False
    return True


def _leave_alone(consumer: Consumer) -> None:
    """Never free a consumer that holds itself up: whoever frees it waits for it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
