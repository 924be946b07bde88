"""Sessions of clients, which survive their connections: identity, timeout, expiry.

*Source*: ZooKeeper's `SessionTrackerImpl.java`, `ZooKeeperServer.java` (`processConnectRequest`, `reopenSession`).
"""

import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from barnabas.controller.coordination.zookeeper_server.messages import PASSWORD_BYTES

SESSION_TIMEOUT_MS_MIN: Final = 4_000
SESSION_TIMEOUT_MS_MAX: Final = 40_000
"""ZooKeeper's default bounds: 2 to 20 ticks of 2 s."""

Connection = TypeVar("Connection")


@dataclass(slots=True, eq=False)
class Session(Generic[Connection]):
    """One session. `connection` is its current one, `port` the one where it was opened or last used; `is_over` while
    its znodes could not be deleted yet (a full disk).
    """

    session_id: int
    password: bytes
    timeout_ms: int
    deadline_ms: int
    port: int
    connection: Connection | None = None
    is_over: bool = False


@dataclass(slots=True)
class SessionTable(Generic[Connection]):
    """All sessions. Times are monotonic; granted timeouts are between `timeout_ms_min` and `timeout_ms_max`. `new_id`
    returns an id that no session had before.
    """

    new_id: Callable[[], int]
    random_bytes: Callable[[int], bytes]
    timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN
    timeout_ms_max: int = SESSION_TIMEOUT_MS_MAX
    _sessions: dict[int, Session[Connection]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session[Connection]]:
        return iter(list(self._sessions.values()))

    def begin(self, asked_ms: int, port: int, now_ms: int) -> Session[Connection]:
        """Begin a session whose timeout is the requested one, within the bounds."""
        timeout_ms = self._granted(asked_ms)
        password = self.random_bytes(PASSWORD_BYTES)
        session = Session[Connection](self.new_id(), password, timeout_ms, now_ms + timeout_ms, port)
        self._sessions[session.session_id] = session
        return session

    def grant(self, session: Session[Connection], asked_ms: int) -> None:
        """A client that resumes its session requests a timeout again."""
        session.timeout_ms = self._granted(asked_ms)

    def _granted(self, asked_ms: int) -> int:
        return min(max(asked_ms, self.timeout_ms_min), self.timeout_ms_max)

    def find(self, session_id: int, password: bytes) -> Session[Connection] | None:
        """The session, if the password is right; None if it has expired."""
        session = self._sessions.get(session_id)
        if session is None or session.is_over or not hmac.compare_digest(session.password, password):
            return None
        return session

    def remove(self, session: Session[Connection]) -> None:
        """Remove a session whose znodes are deleted."""
        self._sessions.pop(session.session_id, None)

    def heard_of(self, session: Session[Connection], now_ms: int) -> None:
        """Extend a session's deadline by its timeout, after a request of its client."""
        session.deadline_ms = now_ms + session.timeout_ms

    def give_time(self, duration_ms: int, now_ms: int) -> None:
        """Extend all sessions by the time for which this process was stalled: no request could be read.

        A session with a request since then, because received requests are served first, gets one full timeout and no
        more.
        """
        for session in self._sessions.values():
            session.deadline_ms = min(session.deadline_ms + duration_ms, now_ms + session.timeout_ms)

    def expired(self, now_ms: int) -> list[Session[Connection]]:
        """The sessions whose timeout has passed, and those that are over already."""
        return [session for session in self._sessions.values() if session.is_over or session.deadline_ms <= now_ms]
