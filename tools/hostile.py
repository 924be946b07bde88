"""What the abuse tests attack a broker with, and what they measure meanwhile: raw connections, a healthy client beside
the attack, and the broker's memory as the kernel counts it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

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

MIB = 1024 * 1024
_LENGTH = struct.Struct(">i")
M = TypeVar("M", bound=Message)


def connect(address: str, timeout_s: float = 20) -> socket.socket:
    """A plain connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def frame(request: Message, version: int, correlation_id: int = 1, client_id: str = "hostile") -> bytes:
    """A request as it goes over the wire."""
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


def is_closed(connection: socket.socket, within_s: float = 5) -> bool:
    """Whether the peer closes the connection in time; what it still sends is ignored."""
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
    """Send a request and wait for its response. Raises ConnectionError when there is none."""
    connection.sendall(frame(request, version))
    return answer(connection, request, version, response_class)


def answer(connection: socket.socket, request: Message, version: int, response_class: type[M]) -> M:
    """The response to a request that was sent before. Raises ConnectionError when there is none."""
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


def produce(topic: str, batch: bytes | bytearray, acks: int = -1) -> ProduceRequest:
    """A request that writes one batch to partition 0."""
    data = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


class Memory:
    """The resident memory of a process and its peak since `mark`; sizes in bytes."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.before = self.resident

    def mark(self) -> None:
        """Forget the peak so far; `before` is what is resident now."""
        (self._folder / "clear_refs").write_text("5")
        self.before = self.resident

    @property
    def resident(self) -> int:
        return self._field("VmRSS")

    @property
    def peak(self) -> int:
        return self._field("VmHWM")

    @property
    def growth(self) -> int:
        """The peak above what was there at `mark`."""
        return self.peak - self.before

    def _field(self, name: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise ValueError(name)


def open_files(pid: int) -> int:
    """How many descriptors a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class HealthyClient:
    """Writes records one after the other, up to `rate` per second, on a connection and a thread of its own, while the
    broker is attacked; a context manager."""

    def __init__(self, address: str, topic: str = "healthy", rate: int = 100) -> None:
        self._address = address
        self._topic = topic
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.latencies_ms: list[float] = []
        self.errors: list[str] = []

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[len(ordered) * 99 // 100] if ordered else float("inf")

    def __enter__(self) -> HealthyClient:
        create_topic(self._address, self._topic)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        eventually(lambda: self.latencies_ms or self.errors, 10)
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        try:
            with connect(self._address) as connection:
                while not self._stopping.wait(1 / self._rate):
                    self._write(connection)
        except (OSError, ConnectionError) as error:
            self.errors.append(repr(error))

    def _write(self, connection: socket.socket) -> None:
        batch = build_batch([Record(0, int(time.time() * 1000), None, b"healthy")])  # noqa: TID251
        started = time.perf_counter()
        response = ask(connection, produce(self._topic, batch), 9, ProduceResponse)
        self.latencies_ms.append((time.perf_counter() - started) * 1000)
        code = response.responses[0].partition_responses[0].error_code
        if code:
            self.errors.append(f"error code {code}")


def eventually(condition: Callable[[], Any], within_s: float) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def request_class(key: int) -> type[Message]:
    """The request of an API."""
    found: type[Message] = messages.api(key).request_class
    return found
