"""Proxies in front of Apache Kafka, which hold, delay or lose what clients ask of its brokers, and note it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from barnabas.wire import messages
from compat_tests.client_behaviour.drivers.driver import CLIENT_ID
from tools.processes.server import free_ports
from tools.waiting import PATIENCE_S

T = TypeVar("T", bound="Trouble")


@dataclass
class Asked:
    """A request; of `barnabas.testing.RecordedRequest` what `play.tell` looks at. Answers are not read: where nothing
    came over the request, any is "ok"."""

    api: str
    client_id: str | None
    time_ms: int
    answered_ms: int | None = None
    outcome: str = "ok"


class Trouble:
    """A fault of the proxies that hits one request of an API, the next one or the one `after` so many."""

    def __init__(self, api: str | None, *, after: int = 0, after_work: bool = False) -> None:
        self.api = api
        self.after_work = after_work
        self.hits = 0
        self._to_pass = after

    def comes_over(self, asked: Asked) -> bool:
        """Whether it is for this request, which is so counted; not one of Kafka's own, which come this way, too."""
        is_of_client = (asked.client_id or "").startswith(CLIENT_ID)
        if not is_of_client or asked.api != self.api or self.hits:
            return False
        is_hit = not self._to_pass
        self._to_pass -= not is_hit
        self.hits += is_hit
        return is_hit

    def request(self) -> bool:
        """Apply the fault to the request; whether it gets through."""
        return True

    def answer(self) -> bool:
        """Apply the fault to the response; whether it gets through."""
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
        time.sleep(self._duration_ms / 1000)  # Real time: the delay is the fault
        return True


class Hold(Trouble):
    """The request waits, or its answer does."""

    def __init__(self, api: str, *, after: int = 0, after_work: bool = False) -> None:
        super().__init__(api, after=after, after_work=after_work)
        self._held, self._released = threading.Event(), threading.Event()

    def request(self) -> bool:
        return self.after_work or self._wait()

    def answer(self) -> bool:
        return not self.after_work or self._wait()

    def _wait(self) -> bool:
        self._held.set()
        self._released.wait(PATIENCE_S)
        return True

    def wait_held(self, timeout: float) -> None:
        """Raises TimeoutError."""
        if not self._held.wait(timeout):
            raise TimeoutError

    def release(self) -> None:
        self._released.set()


class Troubles:
    """The faults of all proxies of a cluster, and their requests; the verbs of `broker.faults` that they have."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._trouble = Trouble(None)

    def hold(self, api: str, times: int, *, topic: str | None = None, after: int = 0, after_work: bool = False) -> Hold:
        """`topic` is said to those who serve followers, too: what a client asks here is about no other one."""
        return self._begin(Hold(api, after=after, after_work=after_work))

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

    def over(self, asked: Asked) -> Trouble | None:
        """The fault that hits a request, which is recorded."""
        self.asked.append(asked)
        if not self._trouble.comes_over(asked):
            return None
        asked.outcome = "trouble"
        return self._trouble


class Proxy:
    """Forwards 127.0.0.1:`port` to `target_port`, request by request, while it is open."""

    def __init__(self, troubles: Troubles, target_port: int) -> None:
        [self.port] = free_ports(1)
        self._troubles = troubles
        self._target_port = target_port
        self._listener = socket.socket()
        self._clients: set[socket.socket] = set()

    def open(self) -> None:
        """From now on clients can connect."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), name="proxy", daemon=True).start()

    def close(self) -> None:
        """Connections end, and who connects is refused, as where no broker runs."""
        _end(self._listener, *tuple(self._clients))
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        pending: deque[tuple[Asked, Trouble | None]] = deque()
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target_port)) as server:
            self._clients.add(client)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answers, args=(client, server, pending), daemon=True).start()
            for frame in _frames(client):
                asked = _read_header(frame)
                trouble = self._troubles.over(asked)
                pending.append((asked, trouble))
                if trouble is not None and not trouble.request():
                    break
                server.sendall(frame)
            else:
                pending.clear()  # the client has left, and misses no answer
            _end(client, server)
        self._clients.discard(client)

    def _answers(self, client: socket.socket, server: socket.socket, pending: deque[Any]) -> None:
        with suppress(OSError, IndexError):  # the connection has ended, the client has left
            for frame in _frames(server):
                asked, trouble = pending[0]
                if trouble is not None and not trouble.answer():
                    break
                asked.answered_ms = _now_ms()
                client.sendall(frame)
                pending.popleft()
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
