"""The coordination store of a cluster: a session with ZooKeeper, through kazoo.

kazoo runs the protocol in its own thread. The event loop passes requests to it without waiting; responses, watch events
and connection changes come back by `call_soon_threadsafe` from that one thread, hence in the order in which the server
sent them: a watch event arrives before newer data.

While the connection is lost, operations wait for it, and reads that were under way are repeated. A write that was under
way raises `ConnectionLost`: it is unknown whether it took effect. Watches do not survive a connection: after a
reconnection every watcher is called, as if its znode had changed.

The session lives only while the event loop makes progress. kazoo's thread would keep it alive for a loop that hangs,
and with it the registration of a broker that serves no request; so the thread stops sending to ZooKeeper when the loop
has been stalled for half the session timeout, and resumes when it moves again: with the same session, if ZooKeeper has
not expired it meanwhile.

The server grants the session timeout (2 to 20 of its ticks, unless configured otherwise), which may differ from the
requested one; `loop_handler` bounds the time of a connection attempt.

This is an edge of the program: sockets, kazoo's thread and the time until a first connection are real, whatever clock
the broker uses.

*Source*: kafka 3.9.1 `ZooKeeperClient.scala`; ZooKeeper 3.9 Programmer's Guide.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, TransactionRequest
from kazoo.hosts import collect_hosts
from kazoo.protocol import states
from kazoo.protocol.serialization import GetData
from kazoo.security import ACL, Id

from barnabas.clock import DELAY_MAX_MS, Clock, SystemClock, wait_s
from barnabas.controller.coordination.interface import (
    ANY_VERSION,
    Check,
    ConnectionLost,
    CoordinationError,
    Create,
    Delete,
    EventType,
    NodeExists,
    NoNode,
    Operation,
    OperationResult,
    SessionCredentials,
    SessionExpired,
    SetData,
    Stat,
    StoreUnavailable,
    WatchedEvent,
    Watcher,
)
from barnabas.controller.coordination.loop_handler import Answer, LoopConnection, LoopHandler
from barnabas.controller.coordination.multi_read import READS_MAX, MultiRead
from barnabas.controller.coordination.owner_thread import post
from barnabas.controller.coordination.session_security import UNPROTECTED, SessionSecurity
from barnabas.controller.coordination.tree import validate_path
from barnabas.controller.coordination.zookeeper_errors import (
    ConnectionTimedOut,
    LoginRefused,
    NotPermitted,
    NotSupported,
    culprit_of,
    error_of,
)

logger = logging.getLogger(__name__)

DEFAULT_SESSION_TIMEOUT_MS = 18_000
DEFAULT_IN_FLIGHT_MAX = 10
"""Kafka's defaults of `zookeeper.session.timeout.ms` and `zookeeper.max.in.flight.requests`."""

REQUEST_BYTES_MAX = 1024 * 1024 - 1
"""ZooKeeper's default `jute.maxbuffer`: it closes a connection that sends a longer request."""

_OVERHEAD_BYTES = 64

_MACHINE_CLOCK = SystemClock()

_RECONNECTION = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}

_EVENT_TYPES = {
    states.EventType.CREATED: EventType.CREATED,
    states.EventType.DELETED: EventType.DELETED,
    states.EventType.CHANGED: EventType.DATA_CHANGED,
    states.EventType.CHILD: EventType.CHILDREN_CHANGED,
}


class ZooKeeperSession:
    """One session: a `CoordinationStore`, returned by `ZooKeeperSession.open`.

    All paths are below the connect string's chroot.
    """

    def __init__(
        self,
        connect_string: str,
        session_timeout_ms: int,
        in_flight_max: int,
        clock: Clock,
        former: SessionCredentials | None = None,
        security: SessionSecurity = UNPROTECTED,
    ) -> None:
        self.connect_string = connect_string
        hosts, slash, chroot = connect_string.partition("/")
        self._root = (slash + chroot).rstrip("/")
        self._loop = asyncio.get_running_loop()
        self._security = security
        self._handler = LoopHandler(self._loop, session_timeout_ms, len(collect_hosts(hosts)[0]), clock, security)
        kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
        kazoo_logger.setLevel(logging.ERROR)  # this module logs kazoo's warnings, once
        self._client = KazooClient(
            hosts,
            session_timeout_ms / 1000,
            client_id=former,
            handler=self._handler,
            connection_retry=_RECONNECTION,
            logger=kazoo_logger,
            auth_data=[] if security.digest is None else [("digest", security.digest)],
        )
        self._client._connection = LoopConnection(
            self._client, self._client._connection.retry_sleeper, logger=kazoo_logger
        )
        self._client.add_listener(self._state_changed)
        self._in_flight = asyncio.Semaphore(in_flight_max)
        self._connected = asyncio.Event()
        self._session_id = 0
        self._is_closed = False
        self._has_multi_read = True
        """True until a server refuses multiRead: those before 3.6 do."""
        self._expiry_callbacks: list[Callable[[], None]] = []
        self._data_watches: dict[str, dict[Watcher, None]] = {}
        self._child_watches: dict[str, dict[Watcher, None]] = {}

    @classmethod
    async def open(
        cls,
        connect_string: str,
        *,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        connection_timeout_ms: int | None = None,
        in_flight_max: int = DEFAULT_IN_FLIGHT_MAX,
        clock: Clock = _MACHINE_CLOCK,
        former: SessionCredentials | None = None,
        security: SessionSecurity = UNPROTECTED,
    ) -> "ZooKeeperSession":
        """Start a session with `HOST:PORT,HOST:PORT/chroot`, and create the chroot if it is missing.

        The server may grant another timeout than `session_timeout_ms`. `clock` measures whether the loop is stalled: it
        has to be ZooKeeper's, which is the machine's, whatever clock the broker uses. Resumes the `former` session, if
        one is given and has not expired. `security` protects its connections and znodes.

        Raises: ConnectionTimedOut after `connection_timeout_ms` (None: never), LoginRefused, StoreUnavailable if no
        thread can be started, CoordinationError.
        """
        session = cls(connect_string, session_timeout_ms, in_flight_max, clock, former, security)
        longest_ms = DELAY_MAX_MS if connection_timeout_ms is None else connection_timeout_ms
        logger.info("connecting to ZooKeeper at %s", connect_string)
        lookup = asyncio.create_task(_warn_of_unknown_hosts(connect_string), name="zookeeper-hosts")
        try:
            try:
                session._client.start_async()
            except RuntimeError as error:  # no thread could be started: that passes
                raise StoreUnavailable(detail=f"no connection to ZooKeeper at {connect_string}: {error}") from error
            try:
                await asyncio.wait_for(session._connected.wait(), wait_s(longest_ms))
            except TimeoutError:
                failure = session._handler.last_failure
                raise ConnectionTimedOut(
                    detail=f"no connection to ZooKeeper at {connect_string} within {connection_timeout_ms} ms"
                    f" (zookeeper.connection.timeout.ms){': ' * bool(failure)}{failure}"
                ) from None
            if security.has_login:
                with suppress(NotPermitted):  # an answer, too: it comes after the login
                    await session.exists("/")
            await session.create_root()
        except BaseException:
            await session.close()
            raise
        finally:
            lookup.cancel()
        return session

    async def create_root(self) -> None:
        """Create the missing znodes of the chroot's path."""
        root, self._root = self._root, ""
        try:
            for end in [index for index, character in enumerate(root + "/") if character == "/" and index]:
                if await self.exists(root[:end]) is None:
                    try:
                        await self.create(root[:end])
                    except NodeExists:
                        continue  # another broker was faster
        finally:
            self._root = root

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        """The timeout that the server has granted."""
        return self._handler.session_timeout_ms

    @property
    def credentials(self) -> SessionCredentials | None:
        """The id and password of this session; None before the server has granted one."""
        client_id = self._client.client_id
        return None if client_id is None else SessionCredentials(*client_id)

    @property
    def was_ended(self) -> bool:
        """Whether ZooKeeper has confirmed that the session is closed."""
        return self._handler.was_closed

    # -- reading

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        validate_path(path)
        data, stat = await self._read(self._client.get_async, path, self._data_watches, watcher)
        return data, _stat(stat)

    async def get_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        if watcher is not None or len(paths) == 1:
            return list(await asyncio.gather(*(self._get_or_none(path, watcher) for path in paths)))
        several = [paths[begin : begin + READS_MAX] for begin in range(0, len(paths), READS_MAX)]
        # The first one alone: a server that does not support such requests closes the connection, with all requests
        # under way, and may lose a response that the client has not read.
        found = [await self._get_several(each) for each in several[:1]]
        found += await asyncio.gather(*map(self._get_several, several[1:]))
        return [answer for answers in found for answer in answers]

    async def _get_several(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """`get_many` with one request, unless the server does not support it."""
        for path in paths:
            validate_path(path)
        request = MultiRead([GetData(self._absolute(path), None) for path in paths])
        try:
            answers = await self._repeated(lambda: self._call(request), paths[0])
        except NotSupported:
            self._has_multi_read = False
            return list(await asyncio.gather(*(self._get_or_none(path, None) for path in paths)))
        return [_data_or_none(*answer) for answer in zip(answers, paths, strict=True)]

    def _call(self, request: MultiRead) -> "Answer":
        """Raises: NotSupported, if it is known that the server does not support such requests."""
        if not self._has_multi_read:
            raise NotSupported
        answer = self._handler.async_result()
        self._client._call(request, answer)
        return answer

    async def _get_or_none(self, path: str, watcher: Watcher | None) -> tuple[bytes, Stat] | None:
        try:
            return await self.get(path, watcher)
        except NoNode:
            return None

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        validate_path(path)
        stat = await self._read(self._client.exists_async, path, self._data_watches, watcher)
        return None if stat is None else _stat(stat)

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        validate_path(path)
        names: list[str] = await self._read(self._client.get_children_async, path, self._child_watches, watcher)
        return sorted(names)

    async def _read(
        self,
        request: Callable[..., Any],
        path: str,
        watches: dict[str, dict[Watcher, None]],
        watcher: Watcher | None,
    ) -> Any:
        """Repeat a read until there is a response.

        The callback that delivers the response registers the watcher, on the loop: before any event that ZooKeeper sent
        after the response, which the watcher has to receive.
        """

        def note() -> None:
            if watcher is not None:
                watches.setdefault(path, {})[watcher] = None

        full_path = self._absolute(path)
        return await self._repeated(lambda: request(full_path, None if watcher is None else self._changed), path, note)

    async def _repeated(
        self, request: Callable[[], "Answer"], path: str, on_success: Callable[[], None] | None = None
    ) -> Any:
        """Repeat a request until there is a response."""
        while True:
            try:
                return await self._ask(request, path, on_success)
            except ConnectionLost:
                continue  # the next attempt waits for a connection

    # -- writing

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        (created,) = await self.multi([Create(path, data, ephemeral=ephemeral, sequence=sequence)])
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        (stat,) = await self.multi([SetData(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        if not operations:
            return []
        request = TransactionRequest(self._client)
        size = _OVERHEAD_BYTES
        for operation in operations:
            validate_path(operation.path)
            self._add(request, operation)
            size += len(operation.path) + len(self._root) + _OVERHEAD_BYTES
            size += len(operation.data) if isinstance(operation, Create | SetData) else 0
        if size > REQUEST_BYTES_MAX:
            raise ValueError(f"{operations[0].path}: {size} bytes are more than a znode may hold, or a transaction")
        answers = await self._ask(request.commit_async, operations[0].path)
        for index, (operation, answer) in enumerate(zip(operations, answers, strict=True)):
            if isinstance(answer, exceptions.RolledBackError | exceptions.RuntimeInconsistency):
                continue
            if isinstance(answer, Exception):
                failure = error_of(answer, culprit_of(operation, answer))
                failure.operation_index = index
                raise failure
        return [self._result(answer) for answer in answers]

    def _add(self, request: TransactionRequest, operation: Operation) -> None:
        path = self._absolute(operation.path)
        if isinstance(operation, Create):
            acls_of = self._security.acls_of
            acls = None if acls_of is None else [ACL(each[0], Id(*each[1:])) for each in acls_of(operation.path)]
            request.create(path, operation.data, acls, ephemeral=operation.ephemeral, sequence=operation.sequence)
        elif isinstance(operation, SetData):
            request.set_data(path, operation.data, operation.version)
        elif isinstance(operation, Delete):
            request.delete(path, operation.version)
        else:
            assert isinstance(operation, Check)
            request.check(path, operation.version)

    def _result(self, answer: Any) -> OperationResult:
        if isinstance(answer, str):
            return self._relative(answer)
        return _stat(answer) if isinstance(answer, states.ZnodeStat) else None

    # -- the session's life

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._expiry_callbacks.append(callback)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._forget()
        self._handler.stop_heartbeats()
        await asyncio.to_thread(self._stop_client)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except exceptions.KazooException as error:  # kazoo's thread is stuck, and ends with the process
            logger.warning("the connection to ZooKeeper did not close: %s", error)

    def _forget(self) -> None:
        self._data_watches.clear()
        self._child_watches.clear()

    def _state_changed(self, state: str) -> None:
        """kazoo's thread: the connection was established or lost, or the session ended."""
        if state == states.KazooState.LOST:
            self._handler.has_ended = True  # at once: kazoo would begin another session
            post(self._loop, self._end)
        elif state == states.KazooState.CONNECTED:
            client_id = self._client.client_id
            post(self._loop, self._connect, 0 if client_id is None else client_id[0])
        else:
            post(self._loop, self._disconnect)

    def _connect(self, session_id: int) -> None:
        is_again = self._session_id == session_id
        self._session_id = session_id
        self._connected.set()
        if is_again:
            logger.info("connected to ZooKeeper again")
            for path in list(self._data_watches):
                self._fire(WatchedEvent(EventType.DATA_CHANGED, path), self._data_watches)
            for path in list(self._child_watches):
                self._fire(WatchedEvent(EventType.CHILDREN_CHANGED, path), self._child_watches)

    def _disconnect(self) -> None:
        self._connected.clear()
        if not self._is_closed:
            logger.warning("the connection to ZooKeeper at %s is lost; trying to connect again", self.connect_string)

    def _end(self) -> None:
        self._connected.clear()
        self._forget()
        self._handler.stop_heartbeats()
        if not self._is_closed:
            logger.error("%s", self._handler.refusal or f"the session with {self.connect_string} has expired")
            for callback in self._expiry_callbacks:
                callback()

    # -- between the loop and kazoo

    async def _ask(self, request: Callable[[], Any], path: str, on_success: Callable[[], None] | None = None) -> Any:
        async with self._in_flight:
            if self._handler.has_ended or self._is_closed:
                raise self._end_error()
            answer: Answer = request()
            answer.on_success = on_success
            try:
                return await answer.future
            except exceptions.KazooException as error:
                if self._handler.refusal:
                    raise self._end_error() from error
                raise error_of(error, path) from error

    def _end_error(self) -> CoordinationError:
        """The error of what is asked of a session that has ended."""
        refusal = self._handler.refusal
        return LoginRefused(detail=refusal) if refusal else SessionExpired(detail="the session has ended")

    def _changed(self, event: states.WatchedEvent) -> None:
        """kazoo's thread: a watch event; events of type NONE report a lost connection."""
        if event.type in _EVENT_TYPES and event.path is not None:
            post(self._loop, self._deliver, WatchedEvent(_EVENT_TYPES[event.type], self._relative(event.path)))

    def _deliver(self, event: WatchedEvent) -> None:
        if event.type is not EventType.CHILDREN_CHANGED:
            self._fire(event, self._data_watches, *([self._child_watches] * (event.type is EventType.DELETED)))
        else:
            self._fire(event, self._child_watches)

    def _fire(self, event: WatchedEvent, *watches: dict[str, dict[Watcher, None]]) -> None:
        watchers: dict[Watcher, None] = {}
        for each in watches:
            watchers.update(each.pop(event.path, {}))
        for watcher in watchers:
            watcher(event)

    def _absolute(self, path: str) -> str:
        return (self._root + path.rstrip("/") if path == "/" else self._root + path) or "/"

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._root) or "/"


async def _warn_of_unknown_hosts(connect_string: str) -> None:
    """Log the hosts of a connect string that have no address: kazoo skips them silently."""
    hosts, _ = collect_hosts(connect_string)
    for host, port in hosts:
        try:
            await asyncio.get_running_loop().getaddrinfo(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            logger.warning("ZooKeeper's host %s cannot be resolved: %s", host, error)


def _stat(stat: states.ZnodeStat) -> Stat:
    return Stat(
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        pzxid=stat.pzxid,
        version=stat.version,
        cversion=stat.cversion,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        ephemeral_owner=stat.ephemeralOwner,
        data_length=stat.dataLength,
        num_children=stat.numChildren,
    )


def _data_or_none(answer: Any, path: str) -> tuple[bytes, Stat] | None:
    """One of several results. Raises: CoordinationError."""
    if isinstance(answer, exceptions.NoNodeError):
        return None
    if isinstance(answer, Exception):
        raise error_of(answer, path)
    data, stat = answer
    return data, _stat(stat)
