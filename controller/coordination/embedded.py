"""The coordination store of a broker without ZooKeeper: ZooKeeper's tree in memory, made durable by SQLite.

One file (`metadata.sqlite`, WAL, synchronous=FULL) holds every znode and the last zxid. One thread owns file and tree;
sessions hand it work and get answers and watch events on their own event loops. A transaction is written and synced
before the tree changes, before anybody sees it, and before its watches fire. Crash safety is SQLite's: after a power
cut the file holds exactly the acknowledged transactions, and possibly the one that was under way. If a commit fails,
what reached the disk is unknown: the store then refuses everything until it is opened again.

A file is opened by one process at a time; several sessions inside that process may share the store, each on the loop
that opened it.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from barnabas.clock import Clock
from barnabas.controller.coordination.interface import (
    ANY_VERSION,
    Create,
    Delete,
    EventType,
    NoNode,
    Operation,
    OperationResult,
    SessionExpired,
    SetData,
    Stat,
    StoreUnavailable,
    WatchedEvent,
    Watcher,
)
from barnabas.controller.coordination.owner_thread import OwnerThread, Worker, post
from barnabas.controller.coordination.reserve import DiskReserve
from barnabas.controller.coordination.tree import DataTree, Transaction, Znode, validate_path

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""`PRAGMA user_version` of the files written here; a newer file is refused."""

_SCHEMA = """
CREATE TABLE znode (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL, pzxid INTEGER NOT NULL,
    version INTEGER NOT NULL, children_created INTEGER NOT NULL, ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE last_zxid (only INTEGER PRIMARY KEY CHECK (only = 0), zxid INTEGER NOT NULL);
INSERT INTO last_zxid VALUES (0, 0);
"""

_PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN})
"""SQLite's codes for a lack of room, memory or descriptors, which may pass. An exhausted quota (EDQUOT) is not among
them: SQLite has no code of its own for it, but that of a disk that fails."""

_DATA_EVENTS = frozenset({EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED})
_CHILD_EVENTS = frozenset({EventType.CHILDREN_CHANGED, EventType.DELETED})

T = TypeVar("T")


class EmbeddedStore:
    """The file, the tree and the owner thread, shared by all sessions. `session()` gives a broker its
    `CoordinationStore`.

    `path` is the file, created if missing; ":memory:" keeps nothing. Without `is_durable` nothing is synced: what was
    acknowledged survives the process, not the machine. `open` and `close` are called once each, on any event loop.
    `worker` is the owner thread, by default a real one of this store's own; it is stopped with the store.
    """

    def __init__(self, path: str, clock: Clock, *, is_durable: bool = True, worker: Worker | None = None) -> None:
        self._path = path
        self._synchronous = "FULL" if is_durable else "OFF"
        self._clock = clock
        self._worker = OwnerThread("metadata-store") if worker is None else worker
        self._was_opened = False
        self._closed = False
        # Everything below belongs to the owner thread.
        self._database: sqlite3.Connection | None = None
        self._failure: str | None = None
        self._tree = DataTree()
        self._last_zxid = 0
        self._next_session_id = 1
        self._sessions: dict[int, EmbeddedSession] = {}
        self._unwritten: dict[str, Znode | None] = {}
        self._reserve = DiskReserve(path) if path != ":memory:" else None
        self._lacks_reserve = True

    async def open(self) -> None:
        """Open or create the file and delete the ephemeral znodes of its previous life.

        Raises: StoreUnavailable if the file cannot be opened, is damaged, in use by another process, or of a newer
        format.
        """
        opening = self._submit(self._open)
        self._was_opened = True
        try:
            await opening
        except StoreUnavailable:
            self._closed = True
            self._worker.stop()
            raise

    async def session(self) -> "EmbeddedSession":
        """Begin a session, whose watchers are called on the calling loop.

        Raises: SessionExpired if the store is closed.
        """
        loop = asyncio.get_running_loop()
        return await self._submit(lambda: self._open_session(loop))

    async def expire(self, session: "EmbeddedSession") -> None:
        """End a session as if its broker had been out of touch for too long."""
        await self._submit(lambda: self._end_session(session.session_id, expired=True))

    async def close(self) -> None:
        """End all sessions and close the file. Idempotent."""
        if not self._closed and self._was_opened:
            await self._submit(self._close)
        self._closed = True
        self._worker.stop()

    def _submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `work` in the owner thread; its outcome arrives on the calling loop after all events that preceded it."""
        if self._closed:
            raise SessionExpired(detail="the metadata store is closed")
        return self._worker.submit(work)

    # -- in the owner thread

    def _open(self) -> None:
        try:
            try:
                self._open_file()
            except sqlite3.OperationalError as error:
                # The disk may have no room for the name of the write-ahead log (no inodes).
                lacks_name = error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN
                if not lacks_name or self._reserve is None or not self._reserve.give_up():
                    raise
                self._open_file()
        except (sqlite3.Error, StoreUnavailable) as error:
            self._close()
            if isinstance(error, StoreUnavailable):
                raise
            in_use = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            raise StoreUnavailable(self._path, "another process is using it" if in_use else str(error)) from error
        self._make_reserve()

    def _open_file(self) -> None:
        if self._database is not None:
            self._database.close()
        # Transactions are begun and ended here by name, so that no statement begins one by itself.
        self._database = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(f"PRAGMA synchronous = {self._synchronous}")
        self._load(self._database)

    def _make_reserve(self) -> None:
        if self._reserve is not None:
            self._lacks_reserve = not self._reserve.make()

    def _load(self, database: sqlite3.Connection) -> None:
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found == 0:
            database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;")
        elif found != FORMAT_VERSION:
            raise StoreUnavailable(self._path, f"format {found} is newer than the {FORMAT_VERSION} known here")
        (self._last_zxid,) = database.execute("SELECT zxid FROM last_zxid").fetchone()
        self._next_session_id = (self._last_zxid + 1) << 16
        self._tree = DataTree({row[0]: Znode(*row[1:]) for row in database.execute("SELECT * FROM znode")})
        leftovers = self._tree.ephemerals()
        if leftovers:
            # Written along with the next transaction: if that never comes, the next opening finds them again.
            transaction = self._prepare([Delete(path) for path in leftovers], session_id=0)
            self._unwritten = transaction.changes
            self._last_zxid = transaction.zxid
            self._tree.commit(transaction)

    def _open_session(self, loop: asyncio.AbstractEventLoop) -> "EmbeddedSession":
        session = EmbeddedSession(self, self._next_session_id, loop)
        self._sessions[session.session_id] = session
        self._next_session_id += 1
        return session

    def _end_session(self, session_id: int, *, expired: bool) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session._ended = True
        if expired:
            post(session._loop, session._notify_expired)
        ephemerals = self._tree.ephemerals(session_id)
        if ephemerals and self._failure is None:
            try:
                self._commit(self._prepare([Delete(path) for path in ephemerals], session_id))
            except StoreUnavailable as error:  # on a full disk; the next opening deletes them
                logger.warning("the znodes of a session that has ended stay for now: %s", error)

    def _close(self) -> None:
        for session_id in list(self._sessions):
            self._end_session(session_id, expired=False)
        if self._database is not None:
            self._database.close()
            self._database = None
            if self._reserve is not None:
                self._reserve.make(share_max=1)  # in the room of the write-ahead log, which is gone now

    def _multi(self, session_id: int, operations: Sequence[Operation]) -> list[OperationResult]:
        self._require_session(session_id)
        transaction = self._prepare(operations, session_id)
        self._commit(transaction)
        return transaction.results

    def _prepare(self, operations: Sequence[Operation], session_id: int) -> Transaction:
        return self._tree.prepare(operations, self._last_zxid + 1, self._clock.now_ms(), session_id)

    def _commit(self, transaction: Transaction) -> None:
        """Make a transaction durable, then visible, then known to watchers."""
        if transaction.changes:
            self._write({**self._unwritten, **transaction.changes}, transaction.zxid)
            self._unwritten = {}
            self._last_zxid = transaction.zxid
            self._tree.commit(transaction)
        for event in transaction.events:
            for session in list(self._sessions.values()):
                session._fire(event)

    def _write(self, changes: dict[str, Znode | None], zxid: int) -> None:
        assert self._database is not None, "not open"
        upserts = [
            (
                path,
                z.data,
                z.czxid,
                z.mzxid,
                z.pzxid,
                z.version,
                z.children_created,
                z.ctime_ms,
                z.mtime_ms,
                z.ephemeral_owner,
            )
            for path, z in changes.items()
            if z is not None
        ]
        deletions = [(path,) for path, znode in changes.items() if znode is None]
        try:
            self._write_rows(self._database, deletions, upserts, zxid)
        except sqlite3.Error as error:
            self._take_back(error)
            if self._reserve is None or not self._reserve.give_up():
                raise StoreUnavailable(self._path, "no space left; nothing was written") from error
            logger.warning("the disk of %s is full: the store goes on in the room that was kept for it", self._path)
            self._lacks_reserve = True
            try:
                self._write_rows(self._database, deletions, upserts, zxid)
            except sqlite3.Error as second:
                self._take_back(second)
                raise StoreUnavailable(self._path, "no space left; nothing was written") from second
        else:
            if self._lacks_reserve:
                self._make_reserve()

    def _write_rows(
        self,
        database: sqlite3.Connection,
        deletions: Sequence[tuple[str]],
        upserts: Sequence[tuple[object, ...]],
        zxid: int,
    ) -> None:
        database.execute("BEGIN IMMEDIATE")
        database.executemany("DELETE FROM znode WHERE path = ?", deletions)
        database.executemany("INSERT OR REPLACE INTO znode VALUES (?,?,?,?,?,?,?,?,?,?)", upserts)
        database.execute("UPDATE last_zxid SET zxid = ?", (zxid,))
        database.execute("COMMIT")

    def _take_back(self, error: sqlite3.Error) -> None:
        """A write has failed. A lack of room or memory, or of a descriptor for a file that was not open yet, leaves
        the file as it was: the transaction is rolled back. After any other error nobody knows what the file holds, so
        all sessions end, and nothing more is answered from it.

        Raises: StoreUnavailable after such an error.
        """
        assert self._database is not None, "not open"
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            return
        self._failure = str(error)
        logger.critical(
            "the metadata store %s failed and stays closed until the broker restarts: %s", self._path, error
        )
        for session_id in list(self._sessions):
            self._end_session(session_id, expired=True)
        raise StoreUnavailable(self._path, self._failure) from error

    def _require_session(self, session_id: int) -> None:
        if self._failure is not None:
            raise StoreUnavailable(self._path, self._failure)
        if session_id not in self._sessions:
            raise SessionExpired(detail="the session has ended")

    def _get(self, session: "EmbeddedSession", path: str, watcher: Watcher | None) -> tuple[bytes, Stat]:
        self._require_session(session.session_id)
        found = self._tree.get(path)
        if found is None:
            raise NoNode(path)
        if watcher is not None:
            session._data_watches.setdefault(path, {})[watcher] = None
        return found

    def _get_many(
        self, session: "EmbeddedSession", paths: Sequence[str], watcher: Watcher | None
    ) -> list[tuple[bytes, Stat] | None]:
        self._require_session(session.session_id)
        found = [self._tree.get(path) for path in paths]
        if watcher is not None:
            for path, answer in zip(paths, found, strict=True):
                if answer is not None:
                    session._data_watches.setdefault(path, {})[watcher] = None
        return found

    def _exists(self, session: "EmbeddedSession", path: str, watcher: Watcher | None) -> Stat | None:
        self._require_session(session.session_id)
        found = self._tree.get(path)
        if watcher is not None:
            session._data_watches.setdefault(path, {})[watcher] = None
        return None if found is None else found[1]

    def _get_children(self, session: "EmbeddedSession", path: str, watcher: Watcher | None) -> list[str]:
        self._require_session(session.session_id)
        names = self._tree.children(path)
        if names is None:
            raise NoNode(path)
        if watcher is not None:
            session._child_watches.setdefault(path, {})[watcher] = None
        return names


class EmbeddedSession:
    """One session of an `EmbeddedStore`: a `CoordinationStore`. Got from `EmbeddedStore.session()`.

    Its methods may be called on the event loop that opened it, where watchers are called, too. Watches belong to the
    owner thread (they are dicts from a watcher to None, which keep the order in which they were set).
    """

    def __init__(self, store: EmbeddedStore, session_id: int, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._session_id = session_id
        self._loop = loop
        self._ended = False
        self._expiry_callbacks: list[Callable[[], None]] = []
        self._data_watches: dict[str, dict[Watcher, None]] = {}
        self._child_watches: dict[str, dict[Watcher, None]] = {}

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        """0: what a process that died has left goes when the file is opened, so nobody has to wait for it."""
        return 0

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        (created,) = await self.multi([Create(path, data, ephemeral=ephemeral, sequence=sequence)])
        assert isinstance(created, str)
        return created

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        validate_path(path)
        return await self._store._submit(lambda: self._store._get(self, path, watcher))

    async def get_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        return await self._store._submit(lambda: self._store._get_many(self, paths, watcher))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        (stat,) = await self.multi([SetData(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        validate_path(path)
        return await self._store._submit(lambda: self._store._exists(self, path, watcher))

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        validate_path(path)
        return await self._store._submit(lambda: self._store._get_children(self, path, watcher))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        return await self._store._submit(lambda: self._store._multi(self._session_id, operations))

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._expiry_callbacks.append(callback)

    async def create_root(self) -> None:
        """Nothing to do: the root is always there."""

    async def close(self) -> None:
        if not self._store._closed:
            await self._store._submit(lambda: self._store._end_session(self._session_id, expired=False))

    def _fire(self, event: WatchedEvent) -> None:
        """Owner thread: take the watches that this event ends and post their callbacks."""
        watchers: dict[Watcher, None] = {}
        if event.type in _DATA_EVENTS:
            watchers.update(self._data_watches.pop(event.path, {}))
        if event.type in _CHILD_EVENTS:
            watchers.update(self._child_watches.pop(event.path, {}))
        for watcher in watchers:
            post(self._loop, self._deliver, watcher, event)

    def _deliver(self, watcher: Watcher, event: WatchedEvent) -> None:
        if not self._ended:
            watcher(event)

    def _notify_expired(self) -> None:
        for callback in self._expiry_callbacks:
            callback()
