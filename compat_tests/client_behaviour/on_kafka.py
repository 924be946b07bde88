"""Apache Kafka as the cases want it: behind a proxy that holds, delays or loses what clients ask, and is told."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.wire import messages
from compat_tests.client_behaviour.drivers.driver import GROUP, TOPIC
from tools.kafka_runtime import KafkaServer

PATIENCE_S = 180.0

T = TypeVar("T", bound="Trouble")


@dataclass
class Asked:
    """A request; of `barnabas.testing.RecordedRequest` what `play.tell` looks at. Answers are not read: any is "ok"."""

    api: str
    client_id: str | None
    time_ms: int
    answered_ms: int | None = None
    outcome: str = "ok"


class Trouble:
    """What comes over the next request of an API, once: a fault of the proxy."""

    def __init__(self, api: str | None, *, after_work: bool = False) -> None:
        self.api = api
        self.after_work = after_work
        self.hits = 0

    def comes_over(self, asked: Asked) -> bool:
        """Whether it is for this request, which is so counted."""
        is_hit = asked.api == self.api and not self.hits
        self.hits += is_hit
        return is_hit

    def request(self) -> bool:
        """What is done to the request; whether it gets through."""
        return True

    def answer(self) -> bool:
        """What is done to the answer; whether it gets through."""
        return True

    def remove(self) -> None:
        """All is as before."""


class Disconnect(Trouble):
    """The connection ends, before the work or after it."""

    def request(self) -> bool:
        return self.after_work

    def answer(self) -> bool:
        return False


class Delay(Trouble):
    """The answer takes so long."""

    def __init__(self, api: str, duration_ms: int) -> None:
        super().__init__(api)
        self._duration_ms = duration_ms

    def answer(self) -> bool:
        time.sleep(self._duration_ms / 1000)
        return True


class Hold(Trouble):
    """The request waits."""

    def __init__(self, api: str) -> None:
        super().__init__(api)
        self._held, self._released = threading.Event(), threading.Event()

    def request(self) -> bool:
        self._held.set()
        self._released.wait(2 * PATIENCE_S)
        return True

    def wait_held(self, timeout: float) -> None:
        """Raises TimeoutError."""
        if not self._held.wait(timeout):
            raise TimeoutError

    def release(self) -> None:
        self._released.set()


class Proxy:
    """Forwards 127.0.0.1:`port` to `target_port`, request by request; the verbs of `broker.faults` that it has."""

    def __init__(self, fence: Callable[[str], None]) -> None:
        self.target_port = 0
        self.asked: list[Asked] = []
        self.fence_producer = fence
        self._trouble = Trouble(None)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def hold(self, api: str, times: int) -> Hold:
        return self._begin(Hold(api))

    def delay(self, api: str, duration_ms: int, times: int) -> Delay:
        return self._begin(Delay(api, duration_ms))

    def disconnect(self, api: str, times: int, *, after_work: bool = False) -> Disconnect:
        return self._begin(Disconnect(api, after_work=after_work))

    def _begin(self, trouble: T) -> T:
        self._trouble = trouble
        return trouble

    def clear(self) -> None:
        """No trouble any more."""
        self._trouble = Trouble(None)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        pending: deque[tuple[Asked, Trouble | None]] = deque()
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.target_port)) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answers, args=(client, server, pending), daemon=True).start()
            for frame in _frames(client):
                asked = _read_header(frame)
                self.asked.append(asked)
                trouble = self._trouble if self._trouble.comes_over(asked) else None
                pending.append((asked, trouble))
                if trouble is not None and not trouble.request():
                    break
                server.sendall(frame)
            _end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, pending: deque[Any]) -> None:
        with suppress(OSError):
            for frame in _frames(server):
                asked, trouble = pending.popleft()
                if trouble is not None and not trouble.answer():
                    pending.appendleft((asked, trouble))
                    break
                asked.answered_ms = _now_ms()
                client.sendall(frame)
        for asked, _ in pending:
            asked.answered_ms, asked.outcome = _now_ms(), "closed"
        _end(client, server)


def _frames(source: socket.socket) -> Iterator[bytes]:
    stream = source.makefile("rb")
    while len(size := stream.read(4)) == 4:
        yield size + stream.read(*struct.unpack(">i", size))


def _read_header(frame: bytes) -> Asked:
    api_key, _, _, length = struct.unpack_from(">hhih", frame, 4)
    client_id = frame[14 : 14 + length].decode() if length >= 0 else None
    return Asked(messages.api(api_key).name, client_id, _now_ms())


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _now_ms() -> int:
    return int(1000 * time.monotonic())


class KafkaTopic:
    """A topic of it."""

    def __init__(self, bootstrap_servers: str, name: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._name = name

    def produce(self, value: str) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})
        producer.produce(self._name, value)
        assert producer.flush(PATIENCE_S) == 0

    def records(self) -> list[Value]:
        """What is committed, of its one partition; none where the topic is gone."""
        settings = {"bootstrap.servers": self._bootstrap_servers, "group.id": "check", "log_level": 0}
        consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
        values: list[Value] = []
        if self._name not in consumer.list_topics(timeout=PATIENCE_S).topics:
            consumer.close()
            return values
        consumer.assign([TopicPartition(self._name, 0, 0)])
        while (message := consumer.poll(PATIENCE_S)) is not None:
            if message.error() is None:
                values.append(Value(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                break
        consumer.close()
        return values


@dataclass
class Value:
    """Of a record."""

    value: bytes


class Kafka:
    """A `play.Stage`: Apache Kafka, a process of its own; a context manager."""

    def __init__(self) -> None:
        self.faults = Proxy(self._fence_producer)
        self.bootstrap_servers = f"127.0.0.1:{self.faults.port}"
        self._server = KafkaServer(
            overrides={
                "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
            }
        )
        self.faults.target_port = int(self._server.bootstrap_servers.rpartition(":")[2])

    def __enter__(self) -> Self:
        self._server.start()
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return self

    def __exit__(self, *error: object) -> None:
        self.faults.close()
        self._server.close()

    def create_topic(self, name: str, *, configs: Mapping[str, Any]) -> KafkaTopic:
        """One partition."""
        made = self._admin.create_topics([NewTopic(name, 1, 1, config={k: str(v) for k, v in configs.items()})])
        made[name].result(PATIENCE_S)
        return self.topic(name)

    def topic(self, name: str) -> KafkaTopic:
        return KafkaTopic(self.bootstrap_servers, name)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(PATIENCE_S)

    @contextmanager
    def recorded(self) -> Iterator[list[Asked]]:
        """What clients ask meanwhile; stays as it is afterwards."""
        self.faults.asked = asked = []
        yield asked
        self.faults.asked = []

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def reset(self) -> None:
        """Topic and group are gone; the members that were left are waited for."""
        self.faults.clear()
        deadline = time.monotonic() + PATIENCE_S
        with suppress(KafkaException):  # it is gone already
            self.delete_topic(TOPIC)
        while TOPIC in self._admin.list_topics(timeout=PATIENCE_S).topics:
            time.sleep(0.05)
        while any(group.group_id == GROUP for group in self._admin.list_consumer_groups().result(PATIENCE_S).valid):
            with suppress(Exception):  # it still has members, or is gone
                self._admin.delete_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the group {GROUP} still has members")
            time.sleep(0.05)

    def _fence_producer(self, transactional_id: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "transactional.id": transactional_id})
        producer.init_transactions(PATIENCE_S)
