"""The broker's session with its metadata store: opened at start, and again whenever it has expired.

Without `zookeeper.connect` the store is a file in one of the log directories, and its loss (a failed disk) ends the
broker. With ZooKeeper, or a store that several brokers of one process share, the loss of a session means that the
cluster took the broker for dead: it goes on serving its partitions, registers again with a new epoch, and its
controller reads everything again, as in Kafka.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.clock import Clock
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationError,
    CoordinationStore,
    OpenSession,
    OpenStore,
    ProcessSession,
    SessionCredentials,
    StoreUnavailable,
)
from barnabas.controller.registration import BrokerIdInUse
from barnabas.controller.znodes import CLUSTER_ID, DamagedZnode
from barnabas.storage.errors import DirectoryMismatch
from barnabas.timers import Timers, pause

if TYPE_CHECKING:
    from barnabas.broker.cluster.former_session import SessionNote
    from barnabas.controller.coordination.embedded import EmbeddedStore
    from barnabas.controller.coordination.owner_thread import Worker

logger = logging.getLogger(__name__)

METADATA_FILE = "metadata.sqlite"

CONNECTION_TIMEOUT_MS_MIN = 4_000
"""The minimum time that a start waits for ZooKeeper, even with a shorter session timeout: servers usually grant no
shorter one."""

ENDINGS_MAX = 3
"""The number of attempts to end the session of a former process, if the connection breaks before ZooKeeper responds."""

REJOIN_DELAY_MS = 1_000
"""The delay between attempts to rejoin the cluster: a failing attempt may fail at once."""


def find_metadata_file(directories: Sequence[Path], cluster_id: str | None, missing: Collection[str]) -> Path:
    """The store's file, in any of the log directories; for a new broker in the first one. `cluster_id` is the cluster
    id in the directories, None in new ones; `missing` are directories that could not be read. Blocking.

    Raises: DirectoryMismatch, if there are two files, or none although there must have been one.
    """
    found = [path for path in (directory / METADATA_FILE for directory in directories) if path.exists()]
    if len(found) > 1:
        raise DirectoryMismatch(
            f"there are {len(found)} metadata stores, {', '.join(map(str, found))}: only one of them can be this"
            " broker's, so move the others away"
        )
    if not found and cluster_id is not None:
        where = f": mount or add again what is missing ({', '.join(missing)})" if missing else ""
        raise DirectoryMismatch(
            f"the metadata store, {METADATA_FILE}, of cluster {cluster_id} is in none of the log directories"
            f" {', '.join(map(str, directories))}{where or ': add the one that has it to log.dirs again'}"
            " (a cluster in ZooKeeper needs zookeeper.connect)"
        )
    return found[0] if found else directories[0] / METADATA_FILE


class UsesSession(Protocol):
    """A part that reads and writes the metadata store."""

    async def rejoin(self, store: CoordinationStore, /) -> None:
        """Continue in a new session after the last one has expired. Raises: CoordinationError; DamagedZnode;
        BrokerIdInUse."""
        ...


class MetadataStore:
    """Opens sessions, and passes a new one to the parts that use it (see `follow`).

    `find_file` returns the path of the file, existing or new, and `worker` creates the worker that reads and writes it;
    `known_cluster` returns the cluster id in the log directories, if any. `on_failure` is called when the broker cannot
    go on; with `is_durable` False a file does not survive a power cut. A `shared` store is used instead of a file, for
    example by several brokers of one process: its owner opens and closes it. `open_session` begins sessions with
    ZooKeeper; by default with kazoo. Each of those is noted in `note`, so that the next process of a killed broker can
    end it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
        find_file: Callable[[], Awaitable[Path]],
        worker: "Callable[[], Worker]",
        on_failure: Callable[[str], None],
        *,
        known_cluster: Callable[[], str | None] = lambda: None,
        is_durable: bool = True,
        shared: OpenStore | None = None,
        open_session: OpenSession | None = None,
        note: "SessionNote | None" = None,
    ) -> None:
        self._config = config
        self._find_file = find_file
        self._worker = worker
        self._known_cluster = known_cluster
        self._clock = clock
        self._timers = timers
        self._on_failure = on_failure
        self._is_durable = is_durable
        self._shared = shared
        self._open_with = open_session
        self._note = note
        self._embedded: EmbeddedStore | None = None
        self._session: CoordinationStore | None = None
        self._zookeeper: ProcessSession | None = None
        """The present session, if it is one with ZooKeeper."""
        self._users: tuple[UsesSession, ...] = ()
        self._ending: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._is_lost = False
        self._stays_out = False

    def end_former_session(self) -> asyncio.Task[None] | None:
        """End the session of this broker's former process, if that was killed. Call this as soon as the log directories
        are locked: then other replicas may take over its partitions long before all logs are loaded. None if the store
        has no such sessions; `open` raises its exceptions, too."""
        if self._note is not None and self._ending is None:
            self._ending = asyncio.create_task(self._end_former_session(self._note), name="former session")
        return self._ending

    async def open(self) -> CoordinationStore:
        """Open the first session with the store.

        Raises: CoordinationError (a file that cannot be used, no ZooKeeper in time), DirectoryMismatch (no file, or
        two; a store without a cluster where the log directories name one).
        """
        if self._shared is not None:
            session = await self._open_session(self._shared)
        elif self._config.zookeeper_connect is None:
            session = await self._open_file()
        else:
            self.end_former_session()
            if self._ending is not None:
                await self._ending
            session = await self._open_zookeeper(self._config.zookeeper_connect, self._connection_timeout_ms)
        known = self._known_cluster()
        if known is not None and await session.exists(CLUSTER_ID) is None:
            raise DirectoryMismatch(
                f"the metadata store has no cluster id, though the log directories belong to cluster {known}: it is"
                " empty, damaged or another one; put back the right one. Nothing was written to it"
            )
        return session

    def follow(self, *users: UsesSession) -> None:
        """Pass each session after the first one to these, in this order."""
        self._users = users

    async def stay_out(self) -> None:
        """Open no more sessions: the broker is about to stop."""
        self._stays_out = True
        if self._rejoining is not None:
            self._rejoining.cancel()
            await asyncio.gather(self._rejoining, return_exceptions=True)

    async def close(self) -> None:
        await self.stay_out()
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)
        if self._session is not None:
            await self._session.close()  # the controller has closed it before, if there is one
            if self._note is not None and self._zookeeper is not None and self._zookeeper.was_ended:
                await self._note.delete()
        if self._embedded is not None:
            await self._embedded.close()

    async def _open_file(self) -> CoordinationStore:
        from barnabas.controller.coordination.embedded import EmbeddedStore

        path = await self._find_file()
        self._embedded = EmbeddedStore(str(path), self._clock, is_durable=self._is_durable, worker=self._worker())
        await self._embedded.open()
        return await self._open_session(self._embedded)

    async def _open_session(self, store: OpenStore) -> CoordinationStore:
        self._session = await store.session()
        # The session of a file is lost only when the file fails.
        self._session.on_expired(self._expired if store is self._shared else self._fail)
        return self._session

    def _fail(self) -> None:
        self._on_failure("the metadata store failed")

    async def _open_zookeeper(self, connect_string: str, timeout_ms: int | None) -> CoordinationStore:
        self._session = self._zookeeper = session = await self._zookeeper_session(connect_string, timeout_ms)
        session.on_expired(self._expired)
        if self._note is not None and session.credentials is not None:
            await self._note.write(session.credentials)
        return session

    async def _zookeeper_session(
        self, connect_string: str, timeout_ms: int | None, former: SessionCredentials | None = None
    ) -> ProcessSession:
        open_session = self._open_with
        if open_session is None:
            from barnabas.controller.coordination.zookeeper import ZooKeeperSession

            open_session = ZooKeeperSession.open
        return await open_session(
            connect_string,
            session_timeout_ms=self._config.zookeeper_session_timeout_ms,
            connection_timeout_ms=timeout_ms,
            in_flight_max=self._config.zookeeper_max_in_flight_requests,
            former=former,
        )

    @property
    def _connection_timeout_ms(self) -> int:
        asked_ms = self._config.zookeeper_session_timeout_ms
        return self._config.zookeeper_connection_timeout_ms or max(asked_ms, CONNECTION_TIMEOUT_MS_MIN)

    async def _end_former_session(self, note: "SessionNote") -> None:
        """End the session of this broker's former process, if that was killed: its registration goes with it."""
        former = await note.read()
        connect_string = self._config.zookeeper_connect
        if former is None or connect_string is None:
            return
        for _ in range(ENDINGS_MAX):
            if await self._has_ended(connect_string, former):
                return
        logger.warning("the session of this broker's last run cannot be ended: it ends when it times out")

    async def _has_ended(self, connect_string: str, former: SessionCredentials) -> bool:
        """Try once to end a former session; False if the connection broke before ZooKeeper responded."""
        session = await self._zookeeper_session(connect_string, self._connection_timeout_ms, former)
        is_over = session.session_id != former.session_id
        await session.close()
        if not is_over and session.was_ended:
            logger.info("ended the session that this broker's last run left open")
        return is_over or session.was_ended

    def _expired(self) -> None:
        self._is_lost = True
        if self._stays_out or (self._rejoining is not None and not self._rejoining.done()):
            return  # the task that is rejoining retries by itself
        self._rejoining = asyncio.create_task(self._rejoin(), name="rejoin")

    async def _rejoin(self) -> None:
        try:
            while True:
                if await self._try_to_rejoin():
                    return
                await pause(self._timers, REJOIN_DELAY_MS)
        except BrokerIdInUse as error:
            self._on_failure(f"it cannot join its cluster again: {error}")
        except Exception as error:
            logger.exception("the broker cannot join its cluster again")
            self._on_failure(str(error))

    async def _open_again(self) -> CoordinationStore:
        if self._shared is not None:
            return await self._open_session(self._shared)
        assert self._config.zookeeper_connect is not None, "a file of one's own is not opened again"
        return await self._open_zookeeper(self._config.zookeeper_connect, None)

    async def _try_to_rejoin(self) -> bool:
        """Try once to rejoin, for as long as ZooKeeper is unavailable; False if the new session was lost, too."""
        assert self._session is not None, "there was a session"
        await self._session.close()
        self._is_lost = False
        try:
            session = await self._open_again()
            for user in self._users:
                await user.rejoin(session)
        except (CoordinationError, DamagedZnode) as error:
            is_broken = isinstance(error, StoreUnavailable) and not isinstance(error, ConnectionLost)
            if self._shared is not None and is_broken:
                self._fail()
                return True
            logger.warning("joining the cluster failed, trying again: %s", error)
            return False
        if self._is_lost:
            return False
        logger.info("the broker has joined its cluster again")
        return True
