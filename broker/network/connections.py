"""The live connections of a broker: limits of their number, and closing of inactive ones.

Limits: `max.connections`, `max.connections.per.ip`, `max.connections.per.ip.overrides` (KIP-402);
`connections.max.idle.ms` for clients that neither send anything nor read their responses, 30 s for a client that
started a frame and does not finish it (Kafka has no such deadline: any byte resets its idle timer), and 30 s for a
client that has gone while its request waits and others wait behind it (Kafka would close it when it is idle). An
address with a quota of new connections that it exceeds is not served, and its connection closes later (KIP-612).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.network.connection import Connection
from barnabas.broker.network.listener import PrincipalSource
from barnabas.broker.network.session import Session
from barnabas.broker.network.turns import RequestTurns
from barnabas.clock import Clock, SystemClock, seconds_of
from barnabas.set_aside import SetAside
from barnabas.threads import Threads

if TYPE_CHECKING:
    from barnabas.broker.network.tls_handshakes import TlsHandshakes
    from barnabas.broker.quotas.connection_quotas import ConnectionQuotas

UNSENT_BYTES_MAX = 192 * 1024 * 1024
"""The limit of memory of all responses together that clients do not read. (Fetches return less long before:
`FetchOperation`.)"""

STRANGERS_MAX = 32
"""The limit of strangers on a listener of brokers alone: connections that have neither authenticated nor shown a
secret, nor named a registered broker that has none. Where nothing is served before, it always applies. On a listener
that clients can use, too, it applies to those that have sent no request, once descriptors run out.
"""

STRANGERS_IN_RESERVE_MAX = 8
"""The limit of strangers on a listener of brokers alone that hold descriptors reserved for files: who is a broker is
only known after its first request."""

PARTIAL_FRAME_TIMEOUT_MS = 30_000
ABANDONED_TIMEOUT_MS = 30_000


class Connections:
    """The set of accepted connections; owned by the event loop.

    The limits are those of `config` when a connection arrives; existing connections stay. `unsent_bytes` is the memory
    of responses that clients do not read; fetches return less while it is large, so that slow readers cannot grow
    memory without bound (`FetchOperation`). While it `is_crowded` no request is begun and no response is built.
    """

    def __init__(
        self,
        config: BrokerConfig,
        threads: Threads,
        clock: Clock | None = None,
        work_s: Callable[[], float] | None = None,
        *,
        is_reserved_descriptor: Callable[[int], bool] = lambda _descriptor: False,
    ) -> None:
        clock = clock or SystemClock()
        work_s = work_s or seconds_of(clock)
        self._config = config
        self._is_reserved_descriptor = is_reserved_descriptor
        self.threads = threads
        self.unsent_bytes = 0
        self.is_crowded = False
        self.is_over = False
        """Whether the broker has stopped: connections accepted just before are reported afterwards."""
        self.tls_handshakes: TlsHandshakes | None = None
        """The handshakes before connections, if a listener has TLS."""
        self.has_room = asyncio.Event()
        self.set_aside = SetAside[Connection](
            "closing the connection", clock, name=lambda found: found.session.client_host
        )
        self.turns = RequestTurns(work_s)
        self.turns_of_brokers = RequestTurns(work_s)
        self.refusal: Callable[[Session], str | None] = lambda session: None
        """The reason why a new connection is refused although there is room for it; for tests."""
        self.quotas: ConnectionQuotas | None = None
        """The quotas of new connections by address; None as long as no quota was configured."""
        self._leaving_bytes = 0
        self.sending: set[asyncio.Task[None]] = set()
        self._connections: dict[Connection, None] = {}
        self._per_host: dict[str, int] = {}
        self._strangers: dict[Connection, None] = {}
        self._strangers_in_reserve: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections))

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection; returns why it must be closed at once, or None.

        A connection must not take the last descriptors, which are reserved for files: a log that cannot open one is
        useless. A connection beyond the quota of its address stays for a while, without being served. Where brokers
        have a listener of their own, none of these limits applies to it (`SocketServer.protectedListener` of Kafka is
        exempt from max.connections), but strangers there are few once descriptors run out.
        """
        host = connection.session.client_host
        self._connections[connection] = None
        self._per_host[host] = self._per_host.get(host, 0) + 1
        if self.is_over:
            return "the broker has stopped"
        if (refused := self.refusal(connection.session)) is not None:
            return refused
        listener = connection.session.listener
        if listener.principal_source is PrincipalSource.SASL:
            connection.bound_frames(listener.unauthenticated_bytes_max)
        if listener.is_for_brokers_alone:
            self._bound_strangers(connection)
            return None
        config = self._config
        if len(self._connections) > config.max_connections:
            return f"more than max.connections={config.max_connections} connections"
        per_ip_max = config.max_connections_per_ip_overrides.get(host, config.max_connections_per_ip)
        if self._per_host[host] > per_ip_max:
            return f"more than {per_ip_max} connections from {host} (max.connections.per.ip)"
        if self._is_reserved_descriptor(connection.descriptor):
            self._cut_silent_strangers()
            return f"{len(self._connections)} connections, and the remaining descriptors are reserved for files"
        if self.quotas is not None:
            connection.close_later(self.quotas.record(host))
        return None

    def _bound_strangers(self, newcomer: Connection) -> None:
        """Cut the oldest strangers on the brokers' listener if there are too many with the newcomer: a broker sends its
        secret with its first bytes, and silent connections would take descriptors without a limit.
        """
        self._strangers[newcomer] = None
        if _authenticates(newcomer):
            self._strangers = _cut_oldest(self._strangers, STRANGERS_MAX, "show no secret")
        if self._is_reserved_descriptor(newcomer.descriptor):
            self._strangers_in_reserve[newcomer] = None
            self._strangers_in_reserve = _cut_oldest(
                self._strangers_in_reserve, STRANGERS_IN_RESERVE_MAX, "have descriptors that are reserved for files"
            )
            self._cut_silent_strangers()

    def _cut_silent_strangers(self) -> None:
        """Make room on the brokers' listener, as no descriptors are left but those reserved for files. Connections that
        have sent a request are clients like others there, and no longer looked at."""
        silent = (each for each in self._strangers if each.is_silent or _authenticates(each))
        self._strangers = _cut_oldest(silent, STRANGERS_MAX, "have sent no request")

    def discard(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._strangers_in_reserve.pop(connection, None)
        if connection in self._connections:
            del self._connections[connection]
            left = self._per_host[connection.session.client_host] - 1
            if left:
                self._per_host[connection.session.client_host] = left
            else:
                del self._per_host[connection.session.client_host]

    def add_unsent(self, size: int) -> None:
        """Add to the bytes that clients do not read. Beyond the limit, the connection that has been inactive for
        longest is cut, and no requests are served until its memory is released.
        """
        self.unsent_bytes += size
        self.is_crowded = self.unsent_bytes > UNSENT_BYTES_MAX
        if self.is_crowded:
            self.has_room.clear()
            self.turns.hold()
        else:
            self.has_room.set()
            self.turns.release()
        while self.is_crowded and self.unsent_bytes - self._leaving_bytes > UNSENT_BYTES_MAX:
            unread = (other for other in self._connections if other.unsent_bytes and not other.is_closing)
            slowest = min(unread, key=lambda other: other.last_active_ms, default=None)
            if slowest is None:
                return
            self._leaving_bytes += slowest.unsent_bytes
            slowest.abort(f"{slowest.unsent_bytes} bytes of responses are unread, too many with those of others")
        if not self.is_crowded:
            self._leaving_bytes = 0

    def close_idle(self, now_ms: int) -> None:
        """Close connections that neither sent nor read anything for too long, that have been in the middle of a frame
        for too long, or whose clients have gone. Called at short intervals."""
        for connection in self.set_aside.ready(self._connections):
            with self.set_aside.attempt(connection):
                self._close_if_idle(connection, now_ms)

    def _close_if_idle(self, connection: Connection, now_ms: int) -> None:
        connection.note_progress(now_ms)
        idle_ms = now_ms - connection.last_active_ms
        started_ms = connection.frame_started_ms
        if (
            started_ms is not None
            and idle_ms > 0
            and now_ms - started_ms > PARTIAL_FRAME_TIMEOUT_MS
            and connection.is_reading
        ):
            connection.close(f"a request took longer than {PARTIAL_FRAME_TIMEOUT_MS} ms to arrive")
        elif idle_ms > self._config.connections_max_idle_ms >= 0 and not connection.is_busy:
            connection.close()
        elif idle_ms > ABANDONED_TIMEOUT_MS and connection.is_busy and connection.has_hung_up:
            connection.abort()


def _authenticates(connection: Connection) -> bool:
    """Whether nothing is served on the listener before a login."""
    return connection.session.listener.principal_source is PrincipalSource.SASL


def _cut_oldest(connections: Iterable[Connection], most: int, what: str) -> dict[Connection, None]:
    """Cut the oldest connections of strangers beyond `most`; returns the others. Those that proved to be brokers are no
    strangers any more.
    """
    strangers = [
        each for each in connections if not (each.is_closing or each.session.is_authenticated or each.session.is_broker)
    ]
    for oldest in strangers[:-most]:
        oldest.abort(f"more than {most} connections to the brokers' listener {what}")
    return dict.fromkeys(strangers[-most:])
