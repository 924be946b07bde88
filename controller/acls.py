"""The ACLs of a cluster with an authorizer: cached, changed and followed.

Every broker has one repository. A change is two writes in one transaction: the znode of the resource pattern, if it has
the version that was read, and a sequential notification, which all brokers follow (`notifications.py`). The znode goes
with its last ACL.

*Source*: kafka 3.9.1 `AclAuthorizer.scala` (updateResourceAcls, loadAllAcls), `KafkaZkClient.scala`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from barnabas.clock import Clock
from barnabas.controller.acl_znodes import (
    ACL_CHANGE_PREFIX,
    ACL_CHANGES,
    ACL_PATHS,
    ACLS,
    DENY,
    RESOURCE_TYPES,
    AclResource,
    StoredAcl,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
)
from barnabas.controller.bootstrap import create_missing
from barnabas.controller.coordination.interface import (
    BadVersion,
    CoordinationStore,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Stat,
)
from barnabas.controller.notifications import CHANGE_TIMEOUT_MS, ChangeNotifications, answered_in_time
from barnabas.controller.znodes import DamagedZnode
from barnabas.set_aside import SetAside
from barnabas.timers import Timers

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 100
"""The number of resource patterns that are read together."""

_RESTORED_BYTES = 512 * 1024
"""The size of the payloads that are written in one transaction: ZooKeeper accepts a megabyte."""

DENIED_WHERE_BROKEN = frozenset({StoredAcl("User:*", DENY, "All", "*")})
"""The assumed ACLs of a resource pattern while its own cannot be read and are not cached: everything is denied."""

_ACL_BYTES = 800
"""The memory of an ACL, besides its texts, here and in the index of the authorizer."""

_NONE: frozenset[StoredAcl] = frozenset()

AclListener = Callable[[AclResource], None]

Decide = Callable[[frozenset[StoredAcl]], frozenset[StoredAcl]]
"""Computes the new ACLs of a resource pattern from its current ones."""


def stored_bytes(resource: AclResource, acls: Iterable[StoredAcl]) -> int:
    """An estimate of the memory that the ACLs of a resource pattern take."""
    return sum(_ACL_BYTES + len(resource.name) + len(acl.principal) + len(acl.host) for acl in acls)


class AclRepository:
    """A cache of all ACLs, owned by the event loop; call `start` first. `count` is the number of ACLs, `held_bytes` an
    estimate of their memory. A change waits up to `change_timeout_ms` for the store.

    Two tasks, from `start` to `stop`, follow changes by others; handlers call the other methods.
    """

    def __init__(
        self, store: CoordinationStore, clock: Clock, timers: Timers, *, change_timeout_ms: int = CHANGE_TIMEOUT_MS
    ) -> None:
        self._store = store
        self._timers = timers
        self._change_timeout_ms = change_timeout_ms
        self.count = 0
        self.held_bytes = 0
        self._acls: dict[AclResource, frozenset[StoredAcl]] = {}
        self._listeners: list[AclListener] = []
        self._restoring = asyncio.Lock()
        self.set_aside = SetAside[str]("following changes of ACLs", clock, first_delay_ms=0)
        self._notifications = [
            ChangeNotifications[AclResource](
                path,
                ACL_CHANGE_PREFIX,
                decode_acl_change,
                self.refresh,
                self.restore,
                clock=clock,
                timers=timers,
                set_aside=self.set_aside,
            )
            for path in ACL_CHANGES.values()
        ]

    async def start(self) -> None:
        """Load everything, call the listeners, and follow changes from then on. Damaged ACLs are logged and do not
        count as missing: see `DENIED_WHERE_BROKEN`.

        Raises: CoordinationError.
        """
        self._tell(await self._load())
        for each in self._notifications:
            each.follow()

    async def rejoin(self, store: CoordinationStore) -> None:
        """Continue in a new session after the last one has expired; listeners are called for changes in between.

        Damaged ACLs are logged, and the cached ones stay.

        Raises: CoordinationError; then it may be called again with another session.
        """
        await self.stop()
        self._store = store
        await self.start()

    async def stop(self) -> None:
        """Stop following changes; the cache stays."""
        for each in self._notifications:
            await each.stop()

    async def restore(self) -> list[str]:
        """Create the fixed znodes that do not exist, and below them the cached ACLs; returns the paths of the created
        znodes.

        Raises: CoordinationError.
        """
        async with self._restoring:
            created = await create_missing(self._store, dict.fromkeys(ACL_PATHS, b""))
            for each in self._notifications:
                if each.path in created:
                    each.were_deleted()
            parents = set(created)
            lost = {each.path: encode_acls(acls) for each, acls in self._acls.items() if each.parent in parents}
            payloads: dict[str, bytes] = {}
            for path, payload in lost.items():
                if payloads and sum(map(len, payloads.values())) + len(payload) > _RESTORED_BYTES:
                    created += await create_missing(self._store, payloads)
                    payloads = {}
                payloads[path] = payload
            return created + await create_missing(self._store, payloads)

    async def _load(self) -> list[AclResource]:
        """Read everything; returns the resource patterns that have changed."""
        await self.restore()
        for each in self._notifications:
            await each.watch(self._store)
        found = {
            AclResource(resource_type, pattern_type, name)
            for pattern_type, parent in ACLS.items()
            for resource_type in await self._children(parent)
            if _is_known(resource_type, parent)
            for name in await self._children(f"{parent}/{resource_type}")
        }
        resources = sorted(found.union(self._acls))
        changed = []
        for start in range(0, len(resources), _READ_AT_ONCE):
            changed += await self._read(resources[start : start + _READ_AT_ONCE])
        return changed

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.get_children(path)
        except NoNode:
            return []

    @property
    def acls(self) -> Mapping[AclResource, frozenset[StoredAcl]]:
        """All ACLs, by resource pattern, read-only; none is empty."""
        return MappingProxyType(self._acls)

    def acls_of(self, resource: AclResource) -> frozenset[StoredAcl]:
        """The ACLs of a resource pattern."""
        return self._acls.get(resource, _NONE)

    def subscribe(self, listener: AclListener) -> None:
        """Call `listener(resource)` after each change of a resource pattern's ACLs by any broker, and at the start for
        each one that has ACLs. It must not raise.
        """
        self._listeners.append(listener)

    async def change(self, resource: AclResource, decide: Decide) -> None:
        """Replace the ACLs of a resource pattern by the result of `decide` and notify all brokers.

        If another broker changes them at the same time, `decide` is called again with the new ACLs: no change is lost.
        On return the cache is updated and the listeners were called.

        Raises: the errors of `decide`; ApiError(REQUEST_TIMED_OUT) if the store is unreachable: the change may take
        effect later; ApiError(KAFKA_STORAGE_ERROR) if it could not be written (a full disk): nothing has changed.
        """
        async with answered_in_time(self._timers, self._change_timeout_ms, f"a change of the ACLs in {resource.path}"):
            while not await self._try_to_change(resource, decide):
                pass
            await self.refresh(resource)

    async def _try_to_change(self, resource: AclResource, decide: Decide) -> bool:
        """Write the ACLs that `decide` returns; returns whether no other broker was faster."""
        [found] = await self._store.get_many([resource.path])
        current, damage = self._decoded(resource, found)
        acls = decide(current)
        if acls == current and damage is None:
            return True
        write = _write(resource, acls, found)
        if write is None:
            return True
        notification = Create(
            f"{ACL_CHANGES[resource.pattern_type]}/{ACL_CHANGE_PREFIX}", encode_acl_change(resource), sequence=True
        )
        try:
            await self._store.multi([write, notification])
        except (NodeExists, BadVersion):
            return False
        except NoNode:
            await self.restore()  # if it was the parent of one of them
            return False
        return True

    async def refresh(self, resource: AclResource) -> None:
        """Read the ACLs of a resource pattern again, and call the listeners if they have changed."""
        self._tell(await self._read([resource]))

    def _tell(self, changed: Iterable[AclResource]) -> None:
        for resource in changed:
            for listener in self._listeners:
                with self.set_aside.attempt(resource.path):
                    listener(resource)

    async def _read(self, resources: list[AclResource]) -> list[AclResource]:
        found = await self._store.get_many([resource.path for resource in resources])
        changed = []
        for resource, answer in zip(resources, found, strict=True):
            acls, damage = self._decoded(resource, answer)
            if damage is not None:
                what = "everything is denied" if acls is DENIED_WHERE_BROKEN else "the former ACLs stay"
                logger.error("ACLs cannot be read, %s: %s", what, damage)
            before = self.acls_of(resource)
            if acls == before:
                continue
            changed.append(resource)
            self.count += len(acls) - len(before)
            self.held_bytes += stored_bytes(resource, acls) - stored_bytes(resource, before)
            if acls:
                self._acls[resource] = acls
            else:
                del self._acls[resource]
        return changed

    def _decoded(
        self, resource: AclResource, answer: tuple[bytes, Stat] | None
    ) -> tuple[frozenset[StoredAcl], DamagedZnode | None]:
        """The ACLs in a znode, or the assumed ones if it is damaged."""
        try:
            return decode_acls(resource, answer[0]) if answer is not None else _NONE, None
        except DamagedZnode as error:
            return self._acls.get(resource, DENIED_WHERE_BROKEN), error


def _write(resource: AclResource, acls: frozenset[StoredAcl], found: tuple[bytes, Stat] | None) -> Operation | None:
    """The write that gives a resource pattern its ACLs; None if there is nothing to write."""
    if found is None:
        return Create(resource.path, encode_acls(acls)) if acls else None
    stat = found[1]
    if acls or stat.num_children:  # which another program has created
        return SetData(resource.path, encode_acls(acls), stat.version)
    return Delete(resource.path, stat.version)


def _is_known(resource_type: str, parent: str) -> bool:
    if resource_type not in RESOURCE_TYPES:
        logger.warning("ACLs of an unknown resource type are ignored: %s/%s", parent, resource_type)
        return False
    return True
