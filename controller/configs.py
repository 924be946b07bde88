"""Dynamic configuration of topics, brokers, users, clients and addresses: the overrides under /config, cached, changed
and followed.

Every broker has one repository. A change is two writes in one transaction: the entity's znode, if it has the version
that was read, and a sequential notification under /config/changes, which all brokers watch. Notifications older than 15
minutes are deleted. The overrides of a new topic are written with the topic and without a notification: `refresh` has
to be called before the topic's log is created, as Kafka reads the znode then.

*Source*: kafka 3.9.1 `ZkConfigManager.scala`, `ZkNodeChangeNotificationListener.scala`,
`AdminZkClient.changeEntityConfig`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.bootstrap import create_missing
from barnabas.controller.coordination.interface import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    CoordinationStore,
    Create,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SetData,
    Stat,
    StoreUnavailable,
    WatchedEvent,
)
from barnabas.set_aside import SetAside
from barnabas.timers import Timers, pause, time_limit
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

ENTITY_TYPES = ("topics", "brokers", "users", "clients", "ips")
"""The types of entities whose overrides are kept here: settings of topics and brokers, SCRAM credentials of users, and
quotas of users, clients and addresses. The entity of a client of a user has the type "users", and the name
"USER/clients/CLIENT"."""

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

_RESTORED_AT_ONCE = 100
"""The number of entities whose overrides are written in one transaction: ZooKeeper accepts a megabyte."""

KEPT_WHERE_BROKEN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "topics": MappingProxyType({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}),
        "brokers": MappingProxyType({"log.retention.ms": "-1", "log.retention.bytes": "-1"}),
        "users": MappingProxyType({}),
        "clients": MappingProxyType({}),
        "ips": MappingProxyType({}),
    }
)
"""The assumed overrides, by entity type, while the entity's own cannot be read and are not cached: they prevent any
deletion of data. Users without readable credentials cannot log in, and without readable quotas are not throttled.
"""

OVERRIDE_BYTES = 150
"""The memory of an override besides its name and value."""

_NOTHING: Mapping[str, str] = MappingProxyType({})

ConfigListener = Callable[[str, str], None]

Decide = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Computes an entity's new overrides from its current ones."""


def stored_bytes(overrides: Mapping[str, str | None]) -> int:
    """An estimate of the memory that an entity's overrides take."""
    return sum(OVERRIDE_BYTES + len(name) + len(text or "") for name, text in overrides.items())


class ConfigRepository:
    """A cache of all overrides, owned by the event loop; call `start` first. `held_bytes` is an estimate of its memory.
    A change waits up to `change_timeout_ms` for the store.

    One task, from `start` to `stop`, follows changes by others; handlers and the controller call the other methods.
    """

    def __init__(
        self, store: CoordinationStore, clock: Clock, timers: Timers, *, change_timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._change_timeout_ms = change_timeout_ms
        self.held_bytes = 0
        self._overrides: dict[tuple[str, str], Mapping[str, str]] = {}
        self._listeners: list[ConfigListener] = []
        self._unseen_listeners: list[ConfigListener] = []
        self._versions: dict[tuple[str, str], int] = {}
        """The versions of znodes that were changed since their creation, as of the last read."""
        self._found: set[tuple[str, str]] = set()
        """Entities that existed at the last full load, with or without overrides."""
        self._unseen: list[tuple[str, str]] = []
        """Entities that had another value between two reads; listeners have not been called for them yet."""
        self._last_change = -1
        self._unread: dict[tuple[str, str], None] = {}
        """Entities with a notification that has not been processed yet, in the order of notifications."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._restoring = asyncio.Lock()
        self.set_aside = SetAside[str]("following changes of configs", clock, first_delay_ms=0)

    async def start(self) -> None:
        """Load everything, and follow changes from then on. Damaged overrides are logged and do not count as missing (a
        lost retention.ms would delete data): see `KEPT_WHERE_BROKEN`.

        Raises: CoordinationError.
        """
        await self._load()
        self._follow_from_now_on()

    async def rejoin(self, store: CoordinationStore) -> None:
        """Continue in a new session after the last one has expired; listeners are called for changes in between.

        Damaged overrides are logged, and the cached ones stay.

        Raises: CoordinationError; then it may be called again with another session.
        """
        await self.stop()
        self._store = store
        self._tell(await self._load())
        self._follow_from_now_on()

    async def restore(self) -> list[str]:
        """Create the fixed znodes that were deleted, and below them the cached overrides; returns the paths of the
        created znodes.

        Raises: CoordinationError.
        """
        async with self._restoring:
            created = await create_missing(self._store, dict.fromkeys(znodes.PERSISTENT_PATHS, b""))
            if znodes.CONFIG_CHANGES in created:
                self._last_change = -1  # their numbers restart
            lost = [entity for entity in self._overrides if f"{znodes.CONFIG}/{entity[0]}" in created]
            for start in range(0, len(lost), _RESTORED_AT_ONCE):
                entities = lost[start : start + _RESTORED_AT_ONCE]
                payloads = {znodes.config_path(*e): znodes.encode_config(self._overrides[e]) for e in entities}
                created += await create_missing(self._store, payloads)
            return created

    async def _load(self) -> list[tuple[str, str]]:
        """Read everything; returns the entities that have changed."""
        await self.restore()
        await self._watch_changes()
        self._unread.clear()  # the full load covers them
        found = {
            (entity_type, name)
            for entity_type in ENTITY_TYPES
            for name in await self._store.get_children(f"{znodes.CONFIG}/{entity_type}")
        }
        found |= {entity for user in found if user[0] == "users" for entity in await self._clients_of(user[1])}
        changed = await self._read(list(dict.fromkeys([*self._overrides, *sorted(found)])))
        self._found = found
        self._unseen.clear()
        return changed

    async def _clients_of(self, user: str) -> list[tuple[str, str]]:
        """The entities of the clients of a user."""
        try:
            clients = await self._store.get_children(znodes.config_path("users", f"{user}/clients"))
        except NoNode:
            return []
        return [("users", f"{user}/clients/{client}") for client in clients]

    async def _watch_changes(self) -> None:
        changes = await self._store.get_children(znodes.CONFIG_CHANGES, self._on_change)
        self._last_change = max(map(_change_number, changes), default=-1)

    def _follow_from_now_on(self) -> None:
        self._changed.set()  # the first round only deletes old notifications
        self._task = asyncio.create_task(self._follow(), name="config-changes")

    async def stop(self) -> None:
        """Stop following changes; the cache stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def overrides(self, entity_type: str, name: str) -> Mapping[str, str]:
        """The entity's overrides, read-only; empty if it has none. `name` may be "<default>"."""
        return self._overrides.get((entity_type, name), _NOTHING)

    def names(self, entity_type: str) -> list[str]:
        """The names of the entities of a type that have overrides."""
        return [name for found, name in self._overrides if found == entity_type]

    def was_found(self, entity_type: str, name: str) -> bool:
        """Whether the entity existed at the last full load: later changes of it come with a notification. The overrides
        of a topic that was created since came without one.
        """
        return (entity_type, name) in self._found

    def subscribe(self, listener: ConfigListener) -> None:
        """Call `listener(entity_type, name)` after each change of overrides by any broker. It must not raise."""
        self._listeners.append(listener)

    def subscribe_unseen(self, listener: ConfigListener) -> None:
        """Call `listener(entity_type, name)` if an entity was changed more than once between two reads, perhaps back to
        its former value: other brokers may have applied the value in between. It must not raise.

        Not for changes before `start`, or between two sessions: zxids reveal those.
        """
        self._unseen_listeners.append(listener)

    async def change(self, entity_type: str, name: str, decide: Decide, *, if_topic_exists: bool = False) -> None:
        """Replace the entity's overrides by the result of `decide` and notify all brokers; with `if_topic_exists` the
        store refuses the change if the topic of that name was deleted meanwhile.

        If another broker changes them at the same time, `decide` is called again with the new overrides: no change is
        lost. On return the cache is updated and the listeners were called.

        Raises: the errors of `decide`; ApiError(UNKNOWN_TOPIC_OR_PARTITION) for a deleted topic;
        ApiError(REQUEST_TIMED_OUT) if the store is unreachable: the change may take effect later;
        ApiError(KAFKA_STORAGE_ERROR) if it could not be written (a full disk): nothing has changed.
        """
        held_by = [Check(znodes.topic_path(name), ANY_VERSION)] if if_topic_exists else []
        try:
            async with time_limit(self._timers, self._change_timeout_ms):
                while True:
                    current = self.overrides(entity_type, name)
                    configs = decide(current)
                    is_written = await self._write((entity_type, name), current, configs, held_by)
                    await self.refresh(entity_type, [name])
                    if is_written:
                        return
        except (ConnectionLost, SessionExpired, TimeoutError) as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "The metadata store is out of reach.") from error
        except StoreUnavailable as error:
            logger.error("a change of configuration could not be written: %s", error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata store could not be written.") from error

    async def _write(
        self, entity: tuple[str, str], current: Mapping[str, str], configs: Mapping[str, str], held_by: list[Check]
    ) -> bool:
        """Write an entity's overrides if `current` is still up to date; returns whether it was."""
        path = znodes.config_path(*entity)
        [found] = await self._store.get_many([path])
        if self._decoded(entity, found)[0] != current:
            return False
        payload = znodes.encode_config(configs)
        if found is None and "/" in entity[1]:  # the client of a user, who may have no znode yet
            await create_missing(self._store, {path.rpartition("/")[0]: b""})
        write = Create(path, payload) if found is None else SetData(path, payload, found[1].version)
        notification = Create(
            f"{znodes.CONFIG_CHANGES}/{znodes.CONFIG_CHANGE_PREFIX}",
            znodes.encode_config_change(*entity),
            sequence=True,
        )
        try:
            await self._store.multi([*held_by, write, notification])
        except (NoNode, NodeExists, BadVersion) as error:
            if held_by and error.operation_index == 0:
                message = f"The topic '{entity[1]}' does not exist."
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message) from error
            if error.operation_index != len(held_by):
                raise
            return False
        return True

    async def refresh(self, entity_type: str, names: Iterable[str]) -> None:
        """Read entities again and call the listeners for changed ones."""
        self._tell(await self._read([(entity_type, name) for name in names]))

    def _tell(self, changed: Iterable[tuple[str, str]]) -> None:
        for entity in changed:
            for listener in self._listeners:
                with self.set_aside.attempt("/".join(entity)):
                    listener(*entity)
        unseen, self._unseen = self._unseen, []
        for entity in unseen:
            for listener in self._unseen_listeners:
                with self.set_aside.attempt("/".join(entity)):
                    listener(*entity)

    def forget(self, entity_type: str, names: Iterable[str]) -> None:
        """Remove deleted entities from the cache, without calling listeners."""
        for name in names:
            self.held_bytes -= stored_bytes(self._overrides.pop((entity_type, name), _NOTHING))
            self._versions.pop((entity_type, name), None)
            self._found.discard((entity_type, name))

    async def _read(self, entities: list[tuple[str, str]]) -> list[tuple[str, str]]:
        found = await self._store.get_many([znodes.config_path(*entity) for entity in entities])
        changed = []
        for entity, answer in zip(entities, found, strict=True):
            self._note_version(entity, 0 if answer is None else answer[1].version)
            configs, damage = self._decoded(entity, answer)
            if damage is not None:
                kept = "its settings" if entity[0] == "users" or not configs else dict(configs)  # users have secrets
                logger.error("%s %s keeps %s: %s", *entity, kept, damage)
            if configs == self.overrides(*entity):
                continue
            changed.append(entity)
            self.held_bytes += stored_bytes(configs) - stored_bytes(self.overrides(*entity))
            if configs:
                self._overrides[entity] = MappingProxyType(configs)
            else:
                del self._overrides[entity]
        return changed

    def _note_version(self, entity: tuple[str, str], version: int) -> None:
        """Record the version of a znode that was read, 0 if it does not exist."""
        known = self._versions.pop(entity, 0)
        if version not in (0, known, known + 1):
            self._unseen.append(entity)
        if version > 0:
            self._versions[entity] = version

    def _decoded(
        self, entity: tuple[str, str], answer: tuple[bytes, Stat] | None
    ) -> tuple[Mapping[str, str], znodes.DamagedZnode | None]:
        """The overrides in an entity's znode, or the assumed ones if it is damaged."""
        try:
            return znodes.decode_config(*entity, answer[0]) if answer is not None else _NOTHING, None
        except znodes.DamagedZnode as error:
            return self._overrides.get(entity, KEPT_WHERE_BROKEN[entity[0]]), error

    def _on_change(self, _event: WatchedEvent) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._process_changes()
            except ConnectionLost:
                self._changed.set()  # the next round waits for a connection
            except SessionExpired:
                return  # until there is another session
            except Exception as error:  # noqa: BLE001 - an error must not end the following of changes
                self.set_aside.put(znodes.CONFIG_CHANGES, error, reason=str(error) or repr(error))
                await pause(self._timers, FOLLOWING_RETRY_DELAY_MS)
                self._changed.set()
            else:
                self.set_aside.release(znodes.CONFIG_CHANGES)

    async def _process_changes(self) -> None:
        # The watch is set again by the very read whose result is processed: no change falls between the two.
        try:
            children = await self._store.get_children(znodes.CONFIG_CHANGES, self._on_change)
        except NoNode:
            logger.error("another program has deleted %s", ", ".join(await self.restore()) or znodes.CONFIG_CHANGES)
            children = await self._store.get_children(znodes.CONFIG_CHANGES, self._on_change)
        names = sorted(children, key=_change_number)
        new = [name for name in names if _change_number(name) > self._last_change]
        paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in new]
        for name, path, answer in zip(new, paths, await self._store.get_many(paths), strict=True):
            if answer is None:
                continue
            self._note_change(path, answer[0])
            self._last_change = _change_number(name)
        failure = await self._read_changed()
        await self._purge(names)
        if failure is not None:
            raise failure

    async def _purge(self, names: list[str]) -> None:
        """Delete old notifications, the oldest first. The search ends at the first slice without an old one, or each
        change would cost as much as all changes of the last 15 minutes.
        """
        for start in range(0, len(names), _PURGED_AT_ONCE):
            paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in names[start : start + _PURGED_AT_ONCE]]
            expired = [
                path
                for path, answer in zip(paths, await self._store.get_many(paths), strict=True)
                if answer is not None and self._clock.now_ms() - answer[1].ctime_ms > CHANGE_EXPIRATION_MS
            ]
            for path in expired:
                try:
                    await self._store.delete(path)
                except (NoNode, NotEmpty):
                    continue  # another broker purges too; or it is nothing that a broker has made
            if not expired:
                return

    def _note_change(self, path: str, payload: bytes) -> None:
        try:
            entity = znodes.decode_config_change(path, payload)
        except znodes.DamagedZnode as error:
            logger.error("a configuration change is ignored: %s", error)
        else:
            if entity[0] in ENTITY_TYPES:
                self._unread[entity] = None

    async def _read_changed(self) -> StoreUnavailable | None:
        """Read changed entities. An entity that cannot be read is retried in the next round, without delaying the
        others; returns the error of the first of them. (Kafka's listener logs the error and skips the entity.)

        Raises: ConnectionLost, SessionExpired; unread entities remain for the next round.
        """
        failure = None
        for entity_type, name in list(self._unread):
            try:
                await self.refresh(entity_type, [name])
            except ConnectionLost:
                raise
            except StoreUnavailable as error:
                failure = failure or error
            else:
                self._unread.pop((entity_type, name), None)
        return failure


def _change_number(name: str) -> int:
    """The sequence number at the end of a notification's name; -1 for another name."""
    digits = name.removeprefix(znodes.CONFIG_CHANGE_PREFIX)
    return int(digits) if digits.isdecimal() and digits.isascii() else -1
