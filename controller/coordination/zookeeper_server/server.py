"""The server: ports, connections and sessions over one tree.

One event loop owns everything and serves one request after the other; a write blocks the loop for the disk. That is the
purpose of the process: nothing else runs on this loop. If the loop has been stalled (a slow disk, a stopped process),
no request could arrive, so every session's deadline is extended by that time: a server that was stalled never expires
its clients because of it.

Sessions do not survive the server: its file is opened without any, and a client that reconnects learns that its session
has expired.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.clock import Clock
from barnabas.controller.coordination.interface import StoreUnavailable
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.zookeeper_server.authentication import Authentication, ClientLogins
from barnabas.controller.coordination.zookeeper_server.connection import ZooKeeperConnection
from barnabas.controller.coordination.zookeeper_server.messages import PASSWORD_BYTES, ConnectRequest, connect_response
from barnabas.controller.coordination.zookeeper_server.service import (
    Client,
    InPieces,
    LastRequest,
    TreeService,
)
from barnabas.controller.coordination.zookeeper_server.sessions import (
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
    Session,
    SessionTable,
)
from barnabas.network import BoundSocket, Network, NewProtocol
from barnabas.timers import ScheduledCall, Timers

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1_000
NEWCOMERS_MAX: Final = 32
"""The number of connections for clients without a session. There are at most as many sessions as the remaining
connections, so that a client that returns with its session always finds room.
"""

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum memory of all clients' unread responses and incomplete requests, plus one response. Brokers send a
request at once, and read responses at once.
"""

STORED_BYTES_MAX: Final = 256 * 1024 * 1024
"""The maximum memory of all znodes. Those of 50,000 partitions take 75 MiB, and the settings of topics 64 MiB at most.
ZooKeeper keeps as much as its heap takes, and then ends; it has quotas for subtrees, which have the same error.
"""

TICK_MS: Final = 500
"""The interval of checks for expired sessions."""

HANDSHAKE_MS_MAX: Final = 10_000
"""The time that a connection may take to begin a session."""

CLOSING_MS_MAX: Final = 5_000
"""The time that a client may take to read the rest after its connection is closed."""

_LATE_MS: Final = 2 * TICK_MS
"""A longer interval between two ticks means that the loop was stalled."""


class ZooKeeperServer:
    """Serves a `StoredTree`, which it opens and closes, on one or several ports of one address.

    `on_failure` is called when the file cannot be used any more; everything is closed then. `version` is reported to
    tools. Sessions are granted timeouts between `timeout_ms_min` and `timeout_ms_max`. `connections_max` is the number
    of connections for which the process has descriptors. `authentication` knows the logins; by default there are no
    users of SASL.
    """

    def __init__(
        self,
        stored: StoredTree,
        network: Network,
        clock: Clock,
        timers: Timers,
        random_bytes: Callable[[int], bytes],
        on_failure: Callable[[str], None],
        *,
        version: str,
        timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN,
        timeout_ms_max: int = SESSION_TIMEOUT_MS_MAX,
        connections_max: int = CONNECTIONS_MAX,
        authentication: Authentication | None = None,
    ) -> None:
        self._stored = stored
        stored.bytes_max = STORED_BYTES_MAX
        self._network = network
        self._clock = clock
        self._timers = timers
        self._on_failure = on_failure
        self._version = version
        self._sessions = SessionTable[Client](stored.new_session_id, random_bytes, timeout_ms_min, timeout_ms_max)
        self._authentication = authentication or Authentication(random_bytes)
        self._service = TreeService(stored, self._close_session, self._authentication)
        self._connections_max = max(min(connections_max, CONNECTIONS_MAX), NEWCOMERS_MAX + 1)
        self._sessions_max = self._connections_max - NEWCOMERS_MAX
        self._connections: dict[ZooKeeperConnection, None] = {}
        self._held_bytes = 0
        self._held_bytes_max = HELD_BYTES_MAX
        self._closing_since_ms: dict[ZooKeeperConnection, int] = {}
        self._bound: list[BoundSocket] = []
        self._tick: ScheduledCall | None = None
        self._ticked_ms = 0
        self._has_failed = False
        self._ending: deque[Session[Client]] = deque()
        self._waiting_for_turn: deque[ZooKeeperConnection] = deque()

    def open(self) -> None:
        """Open the file. Raises: StoreUnavailable."""
        self._stored.open()

    async def listen(
        self,
        host: str,
        port: int,
        encrypted: Callable[[Callable[[], ZooKeeperConnection]], NewProtocol] | None = None,
    ) -> int:
        """Accept connections on one more port; returns the port. `encrypted` makes the protocol of connections with
        TLS, out of what makes those behind it. Raises: OSError.
        """
        bound = self._network.bind(host, port)
        self._bound.append(bound)
        number = bound.port

        def new_connection() -> ZooKeeperConnection:
            return ZooKeeperConnection(self, number, self._clock)

        await bound.listen(new_connection if encrypted is None else encrypted(new_connection))
        if self._tick is None:
            self._ticked_ms = self._clock.monotonic_ms()
            self._tick = self._timers.call_later(TICK_MS, self._look_at_sessions)
        return number

    def close(self) -> None:
        """Close ports, connections and the file. Idempotent."""
        if self._tick is not None:
            self._tick.cancel()
        for bound in self._bound:
            bound.close()
        self._bound.clear()
        self._ending.clear()
        for connection in list(self._connections):
            connection.close("")
        self._stored.close()

    def end_sessions(self, port: int) -> int:
        """End the sessions of the process that connects to that port, and is known to be dead; returns their number."""
        dead = [session for session in self._sessions if session.port == port]
        for session in dead:
            self._end(session)
        return len(dead)

    def znode(self, path: str) -> bytes | None:
        """The data of a znode; None if it does not exist."""
        found = self._stored.tree.znode(path)
        return None if found is None else found.data

    # -- called by connections

    def accept(self, connection: ZooKeeperConnection) -> None:
        """Register a new connection. Beyond the limit the oldest one without a session is closed."""
        self._connections[connection] = None
        if len(self._connections) > self._connections_max:
            oldest = next(other for other in self._connections if other.session is None or other.is_closing)
            oldest.abort("it has no session, and there are too many connections")
            self.forget(oldest)

    def meet(self, logins: ClientLogins, host: str, certificate: bytes | None) -> None:
        """Note who a new client is. Raises: AuthFailed."""
        self._authentication.meet(logins, host, certificate)

    @property
    def is_crowded(self) -> bool:
        return self._held_bytes > self._held_bytes_max

    def add_held(self, size: int) -> None:
        """Add to the memory that connections hold. Beyond the limit the connections that have made no progress for the
        longest time are closed, and no request is served until their memory is freed.
        """
        self._held_bytes += size
        if size <= 0 or not self.is_crowded:
            return
        for connection in self._connections:
            connection.look_at_held()  # the server is not notified of each piece that a client reads
        excess = self._held_bytes - self._held_bytes_max
        for slowest in sorted(self._connections, key=lambda connection: connection.progress_ms):
            if excess <= 0:
                return
            if slowest.held_bytes:
                excess -= slowest.held_bytes
                slowest.abort(
                    f"it holds {slowest.held_bytes} bytes and is the slowest; connections hold too many bytes in all"
                )

    def forget(self, connection: ZooKeeperConnection) -> None:
        """Remove a closed connection; its session waits for the next one."""
        self._connections.pop(connection, None)
        self._forget_watches(connection)
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None

    def wait_for_turn(self, connection: ZooKeeperConnection) -> None:
        """Let a connection serve a large request: one in a round of the event loop, in the order of the calls."""
        self._waiting_for_turn.append(connection)
        if len(self._waiting_for_turn) == 1:
            asyncio.get_running_loop().call_soon(self._give_turn)

    def _give_turn(self) -> None:
        try:
            self._waiting_for_turn[0].take_turn()
        finally:
            self._waiting_for_turn.popleft()
            if self._waiting_for_turn:
                asyncio.get_running_loop().call_soon(self._give_turn)

    def _forget_watches(self, connection: ZooKeeperConnection) -> None:
        self._service.forget(connection)
        self._forget_some()

    def _forget_some(self) -> None:
        if self._service.forget_some():
            asyncio.get_running_loop().call_soon(self._forget_some)

    def connect(self, connection: ZooKeeperConnection, request: ConnectRequest) -> bytes:
        """Begin a session, or resume one."""
        now_ms = self._clock.monotonic_ms()
        if request.session_id:
            session = self._sessions.find(request.session_id, request.password)
            if session is None:
                raise LastRequest(connect_response(request, 0, 0, bytes(PASSWORD_BYTES)))
            self._sessions.grant(session, request.timeout_ms)
        elif request.last_zxid_seen > self._stored.last_zxid:
            logger.warning(
                "a client is refused: it has seen zxid 0x%x, which is later than this tree's", request.last_zxid_seen
            )
            raise LastRequest
        elif len(self._sessions) >= self._sessions_max:
            logger.warning("a client is refused: there are %d sessions, the maximum", len(self._sessions))
            raise LastRequest
        else:
            session = self._sessions.begin(request.timeout_ms, connection.port, now_ms)
        former = session.connection
        session.connection, session.port, connection.session = connection, connection.port, session
        if isinstance(former, ZooKeeperConnection):
            former.close("its session has moved to another connection")
            self._forget_watches(former)
        self._sessions.heard_of(session, now_ms)
        return connect_response(request, session.timeout_ms, session.session_id, session.password)

    def serve(self, session: Session[Client], connection: ZooKeeperConnection, frame: bytes) -> bytes | InPieces:
        """Serve one request, at once or in several turns."""
        self._sessions.heard_of(session, self._clock.monotonic_ms())
        answer = self._service.serve(session, connection, frame)
        if self._stored.failure is not None:
            self._fail(self._stored.failure)
            raise LastRequest(answer if isinstance(answer, bytes) else b"")
        return answer

    def four_letter_word(self, word: bytes) -> bytes | None:
        """`ruok`, `srvr` and `stat`."""
        if word == b"ruok":
            return b"imok"
        if word not in (b"srvr", b"stat"):
            return None
        lines = [
            f"Zookeeper version: {self._version}",
            f"Connections: {len(self._connections)}",
            f"Sessions: {len(list(self._sessions))}",
            f"Zxid: 0x{self._stored.last_zxid:x}",
            "Mode: standalone",
            f"Node count: {len(self._stored.tree)}",
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    # -- expired sessions

    def _look_at_sessions(self) -> None:
        # First of all: an unexpected error must not end the checks.
        self._tick = self._timers.call_later(TICK_MS, self._look_at_sessions)
        now_ms = self._clock.monotonic_ms()
        since_ms, self._ticked_ms = now_ms - self._ticked_ms, now_ms
        if since_ms > _LATE_MS:
            self._sessions.give_time(since_ms - TICK_MS, now_ms)  # all of it would postpone every expiry for ever
        if not self._ending:
            self._ending.extend(self._sessions.expired(now_ms))
        self._end_expired()
        for connection in list(self._connections):
            connection.look_at_held()
            if connection.session is None and now_ms - connection.opened_ms > HANDSHAKE_MS_MAX:
                connection.close("it has not begun a session")
        self._abort_closing(now_ms)

    def _end_expired(self) -> None:
        """End expired sessions until as many znodes are deleted as one session may have; the others after all
        connections had a turn, in which requests of their clients may arrive.
        """
        znodes = 0
        while self._ending and znodes < self._service.ephemerals_max:
            session = self._ending.popleft()
            if not session.is_over and session.deadline_ms > self._clock.monotonic_ms():
                continue
            if not session.is_over:
                logger.info(
                    "session 0x%x has timed out: it was silent for %d ms", session.session_id, session.timeout_ms
                )
            znodes += self._service.ephemeral_count(session.session_id)
            self._end(session)
        if self._ending:
            asyncio.get_running_loop().call_soon(self._end_expired)

    def _abort_closing(self, now_ms: int) -> None:
        """A client that does not read could keep a closed connection, and its unsent responses, for ever."""
        closing = [connection for connection in self._connections if connection.is_closing]
        self._closing_since_ms = {each: self._closing_since_ms.get(each, now_ms) for each in closing}
        for connection, since_ms in self._closing_since_ms.items():
            if now_ms - since_ms >= CLOSING_MS_MAX:
                connection.abort("")

    def _close_session(self, session: Session[Client]) -> None:
        """End a session at its client's request; the client waits for the response on its connection."""
        session.connection = None
        self._end(session)

    def _end(self, session: Session[Client]) -> None:
        session.is_over = True
        connection, session.connection = session.connection, None
        try:
            self._service.delete_ephemerals(session.session_id)
        except StoreUnavailable as error:
            logger.warning("the znodes of an ended session could not be deleted yet: %s", error)
            if self._stored.failure is not None:
                self._fail(self._stored.failure)
        else:
            self._sessions.remove(session)
        if isinstance(connection, ZooKeeperConnection):
            connection.close("its session has ended")

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            for connection in list(self._connections):
                connection.close("the metadata store has failed")
            self._on_failure(reason)
