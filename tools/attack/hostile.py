"""The attacks and measurements of the abuse tests: raw connections, a healthy client during the attack, and the
broker's memory as the kernel counts it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from barnabas.wire import codec, headers, messages
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.waiting import PATIENCE_S

MIB = 1024 * 1024
_LENGTH = struct.Struct(">i")
M = TypeVar("M", bound=Message)


def connect(address: str, timeout_s: float = PATIENCE_S) -> socket.socket:
    """A plain connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def connect_slow_reader(address: str) -> socket.socket:
    """A connection to HOST:PORT with a small receive buffer in the kernel."""
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, int(port)))
    return connection


def frame(request: Message, version: int, correlation_id: int = 1, client_id: str = "hostile") -> bytes:
    """A request, encoded with its header and length."""
    key = request.API_KEY
    assert isinstance(key, int)
    body = headers.request_header(key, version, correlation_id, client_id) + codec.encode(request, version)
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> bytes | None:
    """The next frame's body; None when the peer has closed the connection."""
    try:
        start = _receive_exactly(connection, _LENGTH.size)
        return None if start is None else _receive_exactly(connection, _LENGTH.unpack(start)[0])
    except (ConnectionResetError, BrokenPipeError):
        return None


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), MIB))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def is_closed(connection: socket.socket, within_s: float = PATIENCE_S) -> bool:
    """Whether the peer closes the connection in time; any data before that is ignored."""
    connection.settimeout(within_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def ask(connection: socket.socket, request: Message, version: int, response_class: type[M]) -> M:
    """Send a request and wait for its response. Raises ConnectionError without a response."""
    connection.sendall(frame(request, version))
    return answer(connection, request, version, response_class)


def answer(connection: socket.socket, request: Message, version: int, response_class: type[M]) -> M:
    """The response to a request that was sent before. Raises ConnectionError without a response."""
    body = receive(connection)
    if body is None:
        raise ConnectionError(f"no answer to {type(request).__name__}")
    key = request.API_KEY
    assert isinstance(key, int)
    _, position = headers.parse_response_header(body, key, version)
    return codec.decode(response_class, version, body, position)


def create_topic(address: str, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic (underscores in config names stand for dots); raises RuntimeError with the error code."""
    from barnabas.wire.messages.create_topics import CreatableTopicConfig

    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    with connect(address) as connection:
        response = ask(connection, CreateTopicsRequest(topics=[topic], timeout_ms=15_000), 5, CreateTopicsResponse)
    if response.topics[0].error_code:
        raise RuntimeError(f"creating {name}: {response.topics[0].error_code} {response.topics[0].error_message}")


def topic_id(address: str, name: str) -> bytes:
    """The id of a topic."""
    with connect(address) as connection:
        response = ask(
            connection,
            MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False),
            12,
            MetadataResponse,
        )
    found: bytes = response.topics[0].topic_id
    return found


def produce(topic: str, batch: bytes | bytearray, acks: int = -1, partition: int = 0) -> ProduceRequest:
    """A request that writes one batch."""
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def http_address(log_text: str) -> str:
    """HOST:PORT of a broker's HTTP pages, from its log."""
    found = re.search(r"HTTP on (127\.0\.0\.1:\d+)", log_text)
    assert found is not None, log_text
    return found[1]


def metrics_page(address: str) -> bytes:
    """The whole response to a request for /metrics."""
    with connect(address) as connection, connection.makefile("rb") as stream:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return stream.read()


class Memory:
    """The resident memory of a process and its peak since `mark`; sizes in bytes."""

    _highest: ClassVar[dict[int, int]] = {}

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._folder = Path(f"/proc/{pid}")
        self.before = self.resident

    def mark(self) -> None:
        """Reset the peak, but not `highest`; `before` becomes the current resident size."""
        self._highest[self._pid] = self.highest
        (self._folder / "clear_refs").write_text("5")
        self.before = self.resident

    @property
    def resident(self) -> int:
        return self._field("VmRSS")

    @property
    def peak(self) -> int:
        return self._field("VmHWM")

    @property
    def highest(self) -> int:
        """The peak since the start of the process, independent of `mark`."""
        return max(self._highest.get(self._pid, 0), self.peak)

    @property
    def growth(self) -> int:
        """The growth of the peak since `mark`."""
        return self.peak - self.before

    def _field(self, name: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise ValueError(name)


def open_sockets(pid: int) -> int:
    """The number of open sockets of a process."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


class ThreadTimes:
    """The processor time of a process since `mark`: of its main thread, which runs the event loop, and of its other
    threads.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tasks = Path(f"/proc/{pid}/task")
        self.mark()

    def mark(self) -> None:
        self._before = self._read()

    @property
    def loop_ms(self) -> float:
        return self._read()[0] - self._before[0]

    @property
    def threads_ms(self) -> float:
        return self._read()[1] - self._before[1]

    def _read(self) -> tuple[float, float]:
        used = {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in self._tasks.iterdir()}
        loop_ns = used.pop(self._pid)
        return loop_ns / 1e6, sum(used.values()) / 1e6


SPINNING = 0.2
"""The share of a processor: a busy loop or a spinning timer takes a whole one. Brokers with minimal intervals take up
to 0.1.
"""


def processor_share(pid: int, span_s: float = 0.5, spans: int = 4) -> float:
    """The share of a processor that all threads of a process take. It is the minimum of a few spans, since earlier work
    may continue in the first; a further span is only measured if the one before was above `SPINNING`.
    """
    least = float("inf")
    for _ in range(spans):
        times = ThreadTimes(pid)
        time.sleep(span_s)
        least = min(least, (times.loop_ms + times.threads_ms) / 1000 / span_s)
        if least < SPINNING:
            break
    return least


class HealthyClient:
    """Writes `rate` records per second, one per request and one request at a time, on a separate connection and thread,
    while the broker is attacked; a context manager.

    Latencies are counted from the scheduled time of each record, so that a record that waits for a slow predecessor
    counts as late, too. Rate and gaps are measured since `mark`.
    """

    def __init__(self, address: str, topic: str = "healthy", rate: int = 100) -> None:
        self._address = address
        self._topic = topic
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._switch_interval_s = sys.getswitchinterval()
        self._marked_at = 0.0
        self._acked: list[tuple[float, float]] = []  # the time of each acknowledgement, and its latency in ms
        self.errors: list[str] = []
        self.rate_min = float(rate)
        """The required rate, in records per second, for the judging test."""

    def mark(self) -> None:
        """Start the measurement here; returns once the client has reached its rate."""
        seen = len(self._acked)
        eventually(lambda: len(self._acked) > seen or self.errors)
        self._marked_at = time.monotonic()

    def settle(self) -> None:
        """Wait for the record in flight, so that the end of an attack counts too."""
        seen = len(self._acked)
        eventually(lambda: len(self._acked) > seen or self.errors)

    def write(self, records: int) -> None:
        """Wait until it has written `records` more, or has failed."""
        wanted = len(self._acked) + records
        assert eventually(lambda: len(self._acked) >= wanted or self.errors)

    @property
    def seconds(self) -> float:
        """The duration of the measurement so far."""
        return time.monotonic() - self._marked_at

    @property
    def records(self) -> int:
        """The number of acknowledged records since `mark`."""
        return len(self._since())

    @property
    def due(self) -> float:
        """The number of records due since `mark`."""
        return self.seconds * self._rate

    @property
    def p99_ms(self) -> float:
        ordered = sorted(latency for _, latency in self._since())
        return ordered[len(ordered) * 99 // 100] if ordered else float("inf")

    @property
    def gap_ms(self) -> float:
        """The longest time since `mark` without an acknowledgement."""
        times = [self._marked_at, *(when for when, _ in self._since()), time.monotonic()]
        return max(after - before for before, after in pairwise(times)) * 1000

    @property
    def figures(self) -> dict[str, float]:
        """Its measurements, for a row of the results."""
        return {
            "healthy_per_second": round(self.records / self.seconds, 1),
            "healthy_gap_ms": round(self.gap_ms, 1),
            "healthy_p99_ms": round(self.p99_ms, 1),
        }

    def _since(self) -> list[tuple[float, float]]:
        return [entry for entry in list(self._acked) if entry[0] >= self._marked_at]

    def __enter__(self) -> HealthyClient:
        create_topic(self._address, self._topic)
        sys.setswitchinterval(0.0005)  # the attacking threads may be busy
        self._thread.start()
        self.mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        sys.setswitchinterval(self._switch_interval_s)

    def _run(self) -> None:
        due = time.monotonic()
        try:
            with connect(self._address) as connection:
                while not self._stopping.wait(max(0, due - time.monotonic())):
                    self._write(connection)
                    now = time.monotonic()
                    self._acked.append((now, (now - due) * 1000))
                    due += 1 / self._rate
        except (OSError, ConnectionError) as error:
            self.errors.append(repr(error))

    def _write(self, connection: socket.socket) -> None:
        batch = build_batch([Record(0, int(time.time() * 1000), None, b"healthy")])  # noqa: TID251
        response = ask(connection, produce(self._topic, batch), 9, ProduceResponse)
        code = response.responses[0].partition_responses[0].error_code
        if code:
            self.errors.append(f"error code {code}")


def eventually(condition: Callable[[], Any], within_s: float = PATIENCE_S) -> bool:
    """Whether a condition becomes true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def request_class(key: int) -> type[Message]:
    """The request class of an API."""
    found: type[Message] = messages.api(key).request_class
    return found
