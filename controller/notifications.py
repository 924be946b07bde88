"""Notifications of changes: sequential znodes that all brokers watch, as Kafka 3.9 in ZooKeeper mode has them for
configs and for ACLs.

A broker that changes something also creates a notification, which names the changed subject. Every broker reads the
subjects of new notifications again. Notifications older than 15 minutes are deleted.

*Source*: kafka 3.9.1 `ZkNodeChangeNotificationListener.scala`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from barnabas.clock import Clock
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationStore,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreUnavailable,
    WatchedEvent,
)
from barnabas.controller.znodes import DamagedZnode
from barnabas.set_aside import SetAside
from barnabas.timers import Timers, pause, time_limit
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
"""Older notifications are deleted (`ZkNodeChangeNotificationListener`'s `changeExpirationMs`)."""

CHANGE_TIMEOUT_MS = 30_000
"""The time that a change waits for an unreachable store: Kafka's default `request.timeout.ms`, after which its client
times out.
"""

FOLLOWING_RETRY_DELAY_MS = 1_000
"""The delay before changes are read again after a failure."""

_PURGED_AT_ONCE = 100
"""The number of notifications that are read together in the search for old ones."""

Subject = TypeVar("Subject")


@asynccontextmanager
async def answered_in_time(timers: Timers, timeout_ms: int, what: str) -> AsyncIterator[None]:
    """Limit the time of a change for a client; `what` names the change in the log.

    Raises: ApiError(REQUEST_TIMED_OUT) if the store is unreachable: the change may take effect later;
    ApiError(KAFKA_STORAGE_ERROR) if it could not be written (a full disk): nothing has changed.
    """
    try:
        async with time_limit(timers, timeout_ms):
            yield
    except (ConnectionLost, SessionExpired, TimeoutError) as error:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "The metadata store is out of reach.") from error
    except StoreUnavailable as error:
        logger.error("%s could not be written: %s", what, error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata store could not be written.") from error


class ChangeNotifications(Generic[Subject]):
    """Follows the notifications below one znode; owned by the event loop.

    Args:
        path: the parent of the notifications.
        prefix: the beginning of their names, before the sequence number.
        decode: returns the subject of a notification, from its path and payload; None if nobody here follows it.
            Raises DamagedZnode.
        refresh: reads a subject again, and calls the listeners if it has changed. Raises CoordinationError.
        restore: creates the fixed znodes that another program has deleted; returns their paths.
        set_aside: counts failures, under `path`.
    """

    def __init__(
        self,
        path: str,
        prefix: str,
        decode: Callable[[str, bytes], Subject | None],
        refresh: Callable[[Subject], Awaitable[None]],
        restore: Callable[[], Awaitable[list[str]]],
        *,
        clock: Clock,
        timers: Timers,
        set_aside: SetAside[str],
    ) -> None:
        self.path = path
        self.last_change = -1
        """The number of the last notification that was read."""
        self._prefix = prefix
        self._decode = decode
        self._refresh = refresh
        self._restore = restore
        self._clock = clock
        self._timers = timers
        self._set_aside = set_aside
        self._store: CoordinationStore | None = None
        self._unread: dict[Subject, None] = {}
        """Subjects with a notification that has not been processed yet, in the order of notifications."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def watch(self, store: CoordinationStore) -> None:
        """Watch for the notifications that come after those that exist: the caller reads everything afterwards, and
        then calls `follow`. Raises: CoordinationError.
        """
        self._store = store
        names = await store.get_children(self.path, self._on_change)
        self.last_change = max(map(self._number, names), default=-1)
        self._unread.clear()  # what the caller reads covers them

    def follow(self) -> None:
        """Begin to process notifications, until `stop`."""
        self._changed.set()  # the first round only deletes old notifications
        self._task = asyncio.create_task(self._follow(), name=f"changes below {self.path}")

    async def stop(self) -> None:
        """Stop processing notifications."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def were_deleted(self) -> None:
        """The parent of the notifications was created again: their numbers restart."""
        self.last_change = -1

    def _on_change(self, _event: WatchedEvent) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        assert self._store is not None, "watch comes first"
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._process_changes(self._store)
            except ConnectionLost:
                self._changed.set()  # the next round waits for a connection
            except SessionExpired:
                return  # until there is another session
            except Exception as error:  # noqa: BLE001 - an error must not end the following of changes
                self._set_aside.put(self.path, error, reason=str(error) or repr(error))
                await pause(self._timers, FOLLOWING_RETRY_DELAY_MS)
                self._changed.set()
            else:
                self._set_aside.release(self.path)

    async def _process_changes(self, store: CoordinationStore) -> None:
        # The watch is set again by the very read whose result is processed: no change falls between the two.
        try:
            children = await store.get_children(self.path, self._on_change)
        except NoNode:
            logger.error("another program has deleted %s", ", ".join(await self._restore()) or self.path)
            children = await store.get_children(self.path, self._on_change)
        names = sorted(children, key=self._number)
        new = [name for name in names if self._number(name) > self.last_change]
        paths = [f"{self.path}/{name}" for name in new]
        for name, path, answer in zip(new, paths, await store.get_many(paths), strict=True):
            if answer is None:
                continue
            self._note(path, answer[0])
            self.last_change = self._number(name)
        failure = await self._read_changed()
        await self._purge(store, names)
        if failure is not None:
            raise failure

    def _note(self, path: str, payload: bytes) -> None:
        try:
            subject = self._decode(path, payload)
        except DamagedZnode as error:
            logger.error("a notification of a change is ignored: %s", error)
        else:
            if subject is not None:
                self._unread[subject] = None

    async def _read_changed(self) -> StoreUnavailable | None:
        """Read changed subjects. A subject that cannot be read is retried in the next round, without delaying the
        others; returns the error of the first of them. (Kafka's listener logs the error and skips the subject.)

        Raises: ConnectionLost, SessionExpired; unread subjects remain for the next round.
        """
        failure = None
        for subject in list(self._unread):
            try:
                await self._refresh(subject)
            except ConnectionLost:
                raise
            except StoreUnavailable as error:
                failure = failure or error
            else:
                self._unread.pop(subject, None)
        return failure

    async def _purge(self, store: CoordinationStore, names: list[str]) -> None:
        """Delete old notifications, the oldest first. The search ends at the first slice without an old one, or each
        change would cost as much as all changes of the last 15 minutes.
        """
        for start in range(0, len(names), _PURGED_AT_ONCE):
            paths = [f"{self.path}/{name}" for name in names[start : start + _PURGED_AT_ONCE]]
            expired = [
                path
                for path, answer in zip(paths, await store.get_many(paths), strict=True)
                if answer is not None and self._clock.now_ms() - answer[1].ctime_ms > CHANGE_EXPIRATION_MS
            ]
            for path in expired:
                try:
                    await store.delete(path)
                except (NoNode, NotEmpty):
                    continue  # another broker purges too; or it is nothing that a broker has made
            if not expired:
                return

    def _number(self, name: str) -> int:
        """The sequence number at the end of a notification's name; -1 for another name."""
        digits = name.removeprefix(self._prefix)
        return int(digits) if digits.isdecimal() and digits.isascii() else -1
