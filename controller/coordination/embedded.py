"""The coordination store of a broker without ZooKeeper: ZooKeeper's tree, kept in one file (`stored_tree.py`).

One thread owns file and tree; sessions submit work and receive results and watch events on their own event loops. A
transaction is durable before it is visible, and before its watches fire. If a commit fails, the content of the disk is
unknown: the store then refuses everything until it is opened again.

A file is opened by one process at a time; several sessions of that process may share the store, each on the loop that
opened it.
"""

import asyncio
import logging
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
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.tree import validate_path

logger = logging.getLogger(__name__)

_DATA_EVENTS = frozenset({EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED})
_CHILD_EVENTS = frozenset({EventType.CHILDREN_CHANGED, EventType.DELETED})

T = TypeVar("T")


class EmbeddedStore:
    """The file, the tree and the owner thread, shared by all sessions. `session()` returns a `CoordinationStore` for a
    broker.

    `path` is the file, created if missing; ":memory:" stores nothing. Without `is_durable` nothing is synced:
    acknowledged writes survive the process, not the machine. `open` and `close` are called once each, on any event
    loop. `worker` is the owner thread, by default a new real thread; it is stopped with the store.
    """

    def __init__(self, path: str, clock: Clock, *, is_durable: bool = True, worker: Worker | None = None) -> None:
        self._worker = OwnerThread() if worker is None else worker
        self._was_opened = False
        self._closed = False
        # Everything below belongs to the owner thread.
        self._stored = StoredTree(path, clock, is_durable=is_durable)
        self._sessions: dict[int, EmbeddedSession] = {}

    async def open(self) -> None:
        """Open or create the file and delete the ephemeral znodes of the last run.

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
        """Expire a session, as if its broker had been disconnected for too long."""
        await self._submit(lambda: self._end_session(session.session_id, expired=True))

    async def close(self) -> None:
        """End all sessions and close the file. Idempotent."""
        if not self._closed and self._was_opened:
            await self._submit(self._close)
        self._closed = True
        self._worker.stop()

    def _submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `work` in the owner thread; its result is delivered on the calling loop after all earlier events."""
        if self._closed:
            raise SessionExpired(detail="the metadata store is closed")
        return self._worker.submit(work)

    # -- in the owner thread

    def _open(self) -> None:
        self._stored.open()

    def _open_session(self, loop: asyncio.AbstractEventLoop) -> "EmbeddedSession":
        session = EmbeddedSession(self, self._stored.new_session_id(), loop)
        self._sessions[session.session_id] = session
        return session

    def _end_session(self, session_id: int, *, expired: bool) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session._ended = True
        if expired:
            post(session._loop, session._notify_expired)
        ephemerals = self._stored.tree.ephemerals(session_id)
        if ephemerals and self._stored.failure is None:
            try:
                self._change([Delete(path) for path in ephemerals], session_id)
            except StoreUnavailable as error:  # on a full disk; the next opening deletes them
                logger.warning("the znodes of an ended session could not be deleted yet: %s", error)

    def _close(self) -> None:
        for session_id in list(self._sessions):
            self._end_session(session_id, expired=False)
        self._stored.close()

    def _multi(self, session_id: int, operations: Sequence[Operation]) -> list[OperationResult]:
        self._require_session(session_id)
        return self._change(operations, session_id)

    def _change(self, operations: Sequence[Operation], session_id: int) -> list[OperationResult]:
        """Make a transaction durable, then visible, then notify watchers."""
        try:
            transaction = self._stored.change(operations, session_id)
        except StoreUnavailable:
            if self._stored.failure is not None:
                for each in list(self._sessions):
                    self._end_session(each, expired=True)
            raise
        for event in transaction.events:
            for session in list(self._sessions.values()):
                session._fire(event)
        return transaction.results

    def _require_session(self, session_id: int) -> None:
        self._stored.require_no_failure()
        if session_id not in self._sessions:
            raise SessionExpired(detail="the session has ended")

    def _get(self, session: "EmbeddedSession", path: str, watcher: Watcher | None) -> tuple[bytes, Stat]:
        self._require_session(session.session_id)
        found = self._stored.tree.get(path)
        if found is None:
            raise NoNode(path)
        if watcher is not None:
            session._data_watches.setdefault(path, {})[watcher] = None
        return found

    def _get_many(
        self, session: "EmbeddedSession", paths: Sequence[str], watcher: Watcher | None
    ) -> list[tuple[bytes, Stat] | None]:
        self._require_session(session.session_id)
        found = [self._stored.tree.get(path) for path in paths]
        if watcher is not None:
            for path, answer in zip(paths, found, strict=True):
                if answer is not None:
                    session._data_watches.setdefault(path, {})[watcher] = None
        return found

    def _exists(self, session: "EmbeddedSession", path: str, watcher: Watcher | None) -> Stat | None:
        self._require_session(session.session_id)
        found = self._stored.tree.get(path)
        if watcher is not None:
            session._data_watches.setdefault(path, {})[watcher] = None
        return None if found is None else found[1]

    def _get_children(self, session: "EmbeddedSession", path: str, watcher: Watcher | None) -> list[str]:
        self._require_session(session.session_id)
        names = self._stored.tree.children(path)
        if names is None:
            raise NoNode(path)
        if watcher is not None:
            session._child_watches.setdefault(path, {})[watcher] = None
        return names


class EmbeddedSession:
    """One session of an `EmbeddedStore`: a `CoordinationStore`, returned by `EmbeddedStore.session()`.

    Its methods may be called on the event loop that opened it, where watchers are called, too. The owner thread owns
    the watches (dicts from a watcher to None, which keep the order in which they were set).
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
        """0: opening the file deletes the ephemeral znodes of a dead process, so there is nothing to wait for."""
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
        """No-op: the root always exists."""

    async def close(self) -> None:
        if not self._store._closed:
            await self._store._submit(lambda: self._store._end_session(self._session_id, expired=False))

    def _fire(self, event: WatchedEvent) -> None:
        """Owner thread: remove the watches that this event triggers and post their callbacks."""
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
