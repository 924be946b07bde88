"""A client that writes and reads at a steady rate while something is done to a cluster, and what it was told: errors,
latencies, what was lost or doubled.
"""

import struct
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

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
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._per_second = records_per_second
        self._padding = bytes(record_bytes - _NUMBER.size)
        own = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer({**own, **(settings or {})})
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, name="writer", daemon=True)]
        if reads:
            self._threads.append(threading.Thread(target=self._read, name="reader", daemon=True))
        self._sent = 0
        self._is_acknowledged = bytearray()
        self._acknowledged_s, self._latencies_ms = array("d"), array("d")
        """When each was acknowledged, in order, and how long it took. Of millions of objects the garbage collector
        would make a pause that counts as the brokers'."""
        self.errors: list[str] = []
        self.read_errors: list[str] = []
        self.read_count = 0
        self.lost: int | None = None
        self.doubled: int | None = None

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged by now."""
        return len(self._latencies_ms)

    def latencies_ms(self, start_s: float, end_s: float) -> list[float]:
        """How long records took from hand-over to acknowledgement, of those acknowledged between two times of
        `time.monotonic`; in ms. To be asked for when the block is over: the writer waits meanwhile.
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

    def _assigned(self, consumer: Consumer) -> int:
        """Have it read everything from the start; the number of partitions."""
        partitions = consumer.list_topics(self._topic, timeout=PATIENCE_S).topics[self._topic].partitions
        consumer.assign([TopicPartition(self._topic, each, 0) for each in partitions])
        return len(partitions)

    def _read(self) -> None:
        consumer = self._consumer()
        self._assigned(consumer)
        while not self._over.is_set():
            for message in consumer.consume(10_000, timeout=0.1):
                error = message.error()
                if error is None:
                    self.read_count += 1
                elif error.code() != KafkaError._PARTITION_EOF:
                    self.read_errors.append(str(error))
        consumer.close()

    def _count(self) -> None:
        """Read everything back, and compare."""
        times_read = bytearray(self._sent)
        consumer = self._consumer()
        at_end: set[int | None] = set()
        partitions = self._assigned(consumer)
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
