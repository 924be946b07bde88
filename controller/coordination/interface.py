"""What the controller needs from a coordination service: ZooKeeper's data model and guarantees, as an asyncio protocol.

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
"""As an expected version: whatever version the znode has."""


class Stat(NamedTuple):
    """A znode's metadata, with ZooKeeper's meaning.

    `version` counts changes of the data, `cversion` changes of the set of children (creations and deletions); times are
    milliseconds since the epoch; `ephemeral_owner` is the id of the owning session, or 0 for a persistent znode.
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


class CoordinationError(Exception):
    """Base of every failure of a store; `path` is the znode concerned, `operation_index` its place in a failed
    `multi`."""

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


class SessionExpired(CoordinationError):
    """The session was closed or has expired; its ephemeral znodes are gone."""


class StoreUnavailable(CoordinationError):
    """The store could not carry out the operation; whether a write took effect is unknown unless the text says
    otherwise."""


class ConnectionLost(StoreUnavailable):
    """The connection broke while a write was under way: whether it took effect is unknown. The session may live on, and
    the next operation waits for a connection."""


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
    """What a watch reports."""

    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data changed"
    CHILDREN_CHANGED = "children changed"


class WatchedEvent(NamedTuple):
    """One change of a watched znode."""

    type: EventType
    path: str


Watcher = Callable[[WatchedEvent], None]
"""Called on the session's event loop, once; the same watcher set twice on a znode is called once. It must not raise.
A store that was out of touch may report a change that did not happen: a watcher looks for itself."""


class CoordinationStore(Protocol):
    """One session with a store; owned by the event loop on which it was opened.

    Every method may raise `SessionExpired` and `StoreUnavailable`. A malformed path (relative, a trailing slash, an
    empty or dotted component) is a bug of the caller and raises ValueError.
    """

    @property
    def session_id(self) -> int:
        """The owner recorded in this session's ephemeral znodes."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """How long the ephemeral znodes of a process that died may stay; 0 where none stays."""
        ...

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a znode and return its path.

        Raises: NodeExists, NoNode (no parent), NoChildrenForEphemerals.
        """
        ...

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """Data and metadata; the watcher learns of the next change of data or of the deletion.

        Raises: NoNode (then no watch is set).
        """
        ...

    async def get_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        """Data and metadata of many znodes, None where one does not exist; the watcher learns of the next change of
        each of those that exist.

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
        """Metadata or None; the watcher learns of the next creation, change of data, or deletion."""
        ...

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """Names of the children in ascending order; the watcher learns of the next created or deleted child, or of the
        deletion of `path`.

        Raises: NoNode (then no watch is set).
        """
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Carry out all operations, in order, or none; they share one zxid.

        Raises: what the first impossible operation alone would raise, with `operation_index` set.
        """
        ...

    async def create_root(self) -> None:
        """Create the znode that all paths are below (a chroot), if somebody has deleted it."""
        ...

    def on_expired(self, callback: Callable[[], None]) -> None:
        """Call back, on the event loop, when the session is lost without `close`."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral znodes are deleted in one transaction and its watches forgotten.
        Idempotent."""
        ...


class SessionCredentials(NamedTuple):
    """What ZooKeeper takes for the owner of a session: who knows both may go on with it, or end it."""

    session_id: int
    password: bytes


class ProcessSession(CoordinationStore, Protocol):
    """A session with a store that other processes reach, too: it outlives the process that does not end it."""

    @property
    def credentials(self) -> SessionCredentials | None:
        """What the next life of a process that was killed needs to end this session; None before there is one."""
        ...

    @property
    def was_ended(self) -> bool:
        """Whether the store has heard that the session is closed."""
        ...


class OpenSession(Protocol):
    """Begins a session with ZooKeeper, or goes on with a `former` one that is not over; see `ZooKeeperSession.open`."""

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
    """A store that is open: brokers of one process may share it, each in sessions of its own."""

    async def session(self) -> CoordinationStore:
        """Open a session, which belongs to the running event loop."""
        ...
