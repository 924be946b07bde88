"""Dynamic configuration of topics, brokers, users, clients and addresses: the overrides under /config, cached, changed
and followed.

Every broker has one repository. A change is two writes in one transaction: the entity's znode, if it has the version
that was read, and a sequential notification under /config/changes, which all brokers follow (`notifications.py`). The
overrides of a new topic are written with the topic and without a notification: `refresh` has to be called before the
topic's log is created, as Kafka reads the znode then.

*Source*: kafka 3.9.1 `ZkConfigManager.scala`, `AdminZkClient.changeEntityConfig`.
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
    CoordinationStore,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    Stat,
)
from barnabas.controller.notifications import CHANGE_TIMEOUT_MS, ChangeNotifications, answered_in_time
from barnabas.set_aside import SetAside
from barnabas.timers import Timers
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

ENTITY_TYPES = ("topics", "brokers", "users", "clients", "ips")
"""The types of entities whose overrides are kept here: settings of topics and brokers, SCRAM credentials of users, and
quotas of users, clients and addresses. The entity of a client of a user has the type "users", and the name
"USER/clients/CLIENT"."""

_DELETED_IF_EMPTY = ("users", "clients", "ips")
"""The types of entities whose znodes are deleted with their last override, as there is no end of names."""

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
        self._restoring = asyncio.Lock()
        self.set_aside = SetAside[str]("following changes of configs", clock, first_delay_ms=0)
        self.notifications = ChangeNotifications[tuple[str, str]](
            znodes.CONFIG_CHANGES,
            znodes.CONFIG_CHANGE_PREFIX,
            _changed_entity,
            lambda entity: self.refresh(entity[0], [entity[1]]),
            self.restore,
            clock=clock,
            timers=timers,
            set_aside=self.set_aside,
        )

    async def start(self) -> None:
        """Load everything, and follow changes from then on. Damaged overrides are logged and do not count as missing (a
        lost retention.ms would delete data): see `KEPT_WHERE_BROKEN`.

        Raises: CoordinationError.
        """
        await self._load()
        self.notifications.follow()

    async def rejoin(self, store: CoordinationStore) -> None:
        """Continue in a new session after the last one has expired; listeners are called for changes in between.

        Damaged overrides are logged, and the cached ones stay.

        Raises: CoordinationError; then it may be called again with another session.
        """
        await self.stop()
        self._store = store
        self._tell(await self._load())
        self.notifications.follow()

    async def restore(self) -> list[str]:
        """Create the fixed znodes that were deleted, and below them the cached overrides; returns the paths of the
        created znodes.

        Raises: CoordinationError.
        """
        async with self._restoring:
            created = await create_missing(self._store, dict.fromkeys(znodes.PERSISTENT_PATHS, b""))
            if znodes.CONFIG_CHANGES in created:
                self.notifications.were_deleted()
            lost = [entity for entity in self._overrides if f"{znodes.CONFIG}/{entity[0]}" in created]
            for start in range(0, len(lost), _RESTORED_AT_ONCE):
                entities = lost[start : start + _RESTORED_AT_ONCE]
                payloads = {znodes.config_path(*e): znodes.encode_config(self._overrides[e]) for e in entities}
                created += await create_missing(self._store, payloads)
            return created

    async def _load(self) -> list[tuple[str, str]]:
        """Read everything; returns the entities that have changed."""
        await self.restore()
        await self.notifications.watch(self._store)
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

    async def stop(self) -> None:
        """Stop following changes; the cache stays."""
        await self.notifications.stop()

    def overrides(self, entity_type: str, name: str) -> Mapping[str, str]:
        """The entity's overrides, read-only; empty if it has none. `name` may be "<default>"."""
        return self._overrides.get((entity_type, name), _NOTHING)

    def entities(self, *entity_types: str) -> list[tuple[str, str]]:
        """The entities of some types that have overrides, as (type, name)."""
        return [entity for entity in self._overrides if entity[0] in entity_types]

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
        async with answered_in_time(self._timers, self._change_timeout_ms, "a change of configuration"):
            while True:
                current = self.overrides(entity_type, name)
                configs = decide(current)
                is_written = await self._write((entity_type, name), current, configs, held_by)
                await self.refresh(entity_type, [name])
                if is_written:
                    return

    async def _write(
        self, entity: tuple[str, str], current: Mapping[str, str], configs: Mapping[str, str], held_by: list[Check]
    ) -> bool:
        """Write an entity's overrides if `current` is still up to date; returns whether it was."""
        path = znodes.config_path(*entity)
        [found] = await self._store.get_many([path])
        if self._decoded(entity, found)[0] != current:
            return False
        if not configs and entity[0] in _DELETED_IF_EMPTY:
            if found is None:
                return True
            if not found[1].num_children:
                return await self._delete(entity, found[1].version)
        payload = znodes.encode_config(configs)
        if found is None and "/" in entity[1]:  # the client of a user, who may have no znode yet
            await create_missing(self._store, {path.rpartition("/")[0]: b""})
        write = Create(path, payload) if found is None else SetData(path, payload, found[1].version)
        try:
            await self._store.multi([*held_by, write, _notification(entity)])
        except (NoNode, NodeExists, BadVersion) as error:
            if held_by and error.operation_index == 0:
                message = f"The topic '{entity[1]}' does not exist."
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message) from error
            if error.operation_index != len(held_by):
                raise
            return False
        return True

    async def _delete(self, entity: tuple[str, str], version: int) -> bool:
        """Delete an entity's znode, if it has that version and no children; returns whether it had. Source: kafka 3.9.1
        AdminZkClient.tryCleanQuotaNodes."""
        try:
            await self._store.multi([Delete(znodes.config_path(*entity), version), _notification(entity)])
        except (NoNode, BadVersion, NotEmpty) as error:
            if error.operation_index != 0:
                raise
            return False
        user, separator, _ = entity[1].partition("/clients/")
        if separator:
            await self._delete_empty_user(user)
        return True

    async def _delete_empty_user(self, user: str) -> None:
        """Delete the znodes of a user without clients, and without overrides."""
        path = znodes.config_path("users", user)
        try:
            await self._store.delete(f"{path}/clients")
            payload, stat = await self._store.get(path)
            if self._decoded(("users", user), (payload, stat)) == ({}, None):
                await self._store.delete(path, stat.version)
        except (NoNode, BadVersion, NotEmpty):
            return  # another broker changes the same user

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


def _notification(entity: tuple[str, str]) -> Create:
    """The write that notifies all brokers of an entity's change."""
    return Create(
        f"{znodes.CONFIG_CHANGES}/{znodes.CONFIG_CHANGE_PREFIX}",
        znodes.encode_config_change(*entity),
        sequence=True,
    )


def _changed_entity(path: str, payload: bytes) -> tuple[str, str] | None:
    """Entity type and name in a notification; None for a type whose overrides are not kept here."""
    entity = znodes.decode_config_change(path, payload)
    return entity if entity[0] in ENTITY_TYPES else None
