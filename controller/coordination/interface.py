"""The controller's interface to a coordination service: ZooKeeper's data model and guarantees, as an asyncio protocol.

A store is a tree of znodes. Each session sees one linear history, numbered by zxid: a write, or all writes of one
`multi`, take one zxid. Ephemeral znodes disappear with the session that created them. A watch is one-shot: it reports
the next change after the read that set it, and is delivered before its session can see any newer data. Implementations:
`embedded` (SQLite, one process) and `zookeeper`.

*Source*: ZooKeeper Programmer's Guide (data model, watches, consistency guarantees), `DataTree.java` for the details of
versions and watches.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
"""The expected version that matches any version."""


class Stat(NamedTuple):
    """A znode's metadata, with ZooKeeper's meaning.

    `version` counts changes of the data, `cversion` changes of the set of children (creations and deletions); times are
    milliseconds since the epoch; `ephemeral_owner` is the id of the owning session, or 0 for a persistent znode.
    `acl_version` counts changes of the ACL; only our own server knows it.
    """

    czxid: int
    mzxid: int
    pzxid: int
    version: int
    cversion: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    acl_version: int = 0


class CoordinationError(Exception):
    """Base of every error of a store; `path` is the znode, `operation_index` its index in a failed `multi`."""

    def __init__(self, path: str = "", detail: str = "") -> None:
        super().__init__(": ".join(part for part in (path, detail) if part))
        self.path = path
        self.operation_index: int | None = None


class NoNode(CoordinationError):
    """The znode, or the parent of the znode to create, does not exist."""


class NodeExists(CoordinationError):
    """A znode of this path exists already."""


class BadVersion(CoordinationError):
    """The znode's version is not the expected one."""


class NotEmpty(CoordinationError):
    """The znode to delete has children."""


class NoChildrenForEphemerals(CoordinationError):
    """The parent of the znode to create is ephemeral."""


class QuotaExceeded(CoordinationError):
    """The server has no room for more data."""


class SessionExpired(CoordinationError):
    """The session was closed or has expired; its ephemeral znodes are gone."""


class StoreUnavailable(CoordinationError):
    """The store could not execute the operation; whether a write took effect is unknown unless the message says
    otherwise.
    """


class ConnectionLost(StoreUnavailable):
    """The connection broke during a write: whether it took effect is unknown. The session may still be alive, and the
    next operation waits for a connection.
    """


class Create(NamedTuple):
    """Create a znode. Its result is the path, which for a sequential znode ends in ten digits."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(NamedTuple):
    """Replace a znode's data if it has the expected version. Its result is the new `Stat`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a childless znode if it has the expected version. Its result is None."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Fail the whole `multi` unless the znode exists with the expected version. Its result is None."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check
OperationResult = str | Stat | None


class EventType(Enum):
    """The type of a watched change."""

    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data changed"
    CHILDREN_CHANGED = "children changed"


class WatchedEvent(NamedTuple):
    """One change of a watched znode."""

    type: EventType
    path: str


Watcher = Callable[[WatchedEvent], None]
"""Called on the session's event loop, once; a watcher set twice on a znode is called once. It must not raise. After a
lost connection a store may report a change that did not happen: a watcher has to check.
"""


class CoordinationStore(Protocol):
    """One session with a store; owned by the event loop on which it was opened.

    Every method may raise `SessionExpired` and `StoreUnavailable`. A malformed path (relative, a trailing slash, an
    empty or dotted component) is a bug of the caller and raises ValueError.
    """

    @property
    def session_id(self) -> int:
        """The id that this session's ephemeral znodes have as their owner."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """The time that the ephemeral znodes of a dead process may remain; 0 if they are removed at once."""
        ...

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a znode and return its path.

        Raises: NodeExists, NoNode (no parent), NoChildrenForEphemerals.
        """
        ...

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """Data and metadata; the watcher is called for the next change of data or the deletion.

        Raises: NoNode (then no watch is set).
        """
        ...

    async def get_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        """Data and metadata of many znodes, None for one that does not exist; the watcher is called for the next change
        of each existing one.

        The reads are pipelined: each is consistent by itself, together they are not a snapshot.
        """
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data.

        Raises: NoNode, BadVersion.
        """
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a childless znode.

        Raises: NoNode, BadVersion, NotEmpty.
        """
        ...

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """Metadata or None; the watcher is called for the next creation, change of data, or deletion."""
        ...

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """Names of the children in ascending order; the watcher is called for the next created or deleted child, or the
        deletion of `path`.

        Raises: NoNode (then no watch is set).
        """
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Execute all operations, in order, or none; they share one zxid.

        Raises: the error of the first impossible operation, with `operation_index` set.
        """
        ...

    async def create_root(self) -> None:
        """Create the root znode of all paths (a chroot), if it was deleted."""
        ...

    def on_expired(self, callback: Callable[[], None]) -> None:
        """Call back, on the event loop, when the session is lost without `close`."""
        ...

    async def close(self) -> None:
        """End the session: deletes its ephemeral znodes in one transaction and drops its watches. Idempotent."""
        ...


class SessionCredentials(NamedTuple):
    """ZooKeeper's proof of ownership of a session: a client that has both may resume it, or end it."""

    session_id: int
    password: bytes


class ProcessSession(CoordinationStore, Protocol):
    """A session with a store that is shared with other processes: it outlives a process that does not end it."""

    @property
    def credentials(self) -> SessionCredentials | None:
        """The credentials with which the next run of a killed process can end this session; None before the session
        exists.
        """
        ...

    @property
    def was_ended(self) -> bool:
        """Whether the store has confirmed that the session is closed."""
        ...


class OpenSession(Protocol):
    """Begins a session with ZooKeeper, or resumes a `former` one that has not ended; see `ZooKeeperSession.open`."""

    async def __call__(
        self,
        connect_string: str,
        /,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int | None,
        in_flight_max: int,
        former: SessionCredentials | None = None,
    ) -> ProcessSession: ...


class OpenStore(Protocol):
    """An open store: brokers of one process may share it, each with its own sessions."""

    async def session(self) -> CoordinationStore:
        """Open a session, which belongs to the running event loop."""
        ...
