"""ACLs in the metadata store: cached, changed by us, changed by others."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.acl_znodes import (
    ACL_PATHS,
    ALLOW,
    DENY,
    LITERAL,
    PREFIXED,
    AclResource,
    StoredAcl,
    can_be_stored,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
)
from barnabas.controller.acls import DENIED_WHERE_BROKEN, AclRepository
from barnabas.controller.coordination.interface import ConnectionLost, CoordinationStore
from barnabas.controller.notifications import CHANGE_EXPIRATION_MS
from barnabas.controller.znodes import DamagedZnode
from tests.support.manual_timers import ManualTimers

Stores = Any
"""A store under test, see conftest.py."""

TOPIC = AclResource("Topic", LITERAL, "t")
PREFIX = AclResource("TransactionalId", PREFIXED, "app-")
READ = StoredAcl("User:alice", ALLOW, "Read", "*")
WRITE = StoredAcl("User:alice", ALLOW, "Write", "*")
DENIED = StoredAcl("User:bob", DENY, "All", "10.0.0.1")


def repository_of(session: CoordinationStore, clock: ManualClock) -> AclRepository:
    return AclRepository(session, clock, ManualTimers())


class Listener:
    """Collects changes; `next()` waits for one."""

    def __init__(self, repository: AclRepository) -> None:
        self.heard: list[AclResource] = []
        self._news: asyncio.Queue[AclResource] = asyncio.Queue()
        repository.subscribe(self._hear)

    def _hear(self, resource: AclResource) -> None:
        self.heard.append(resource)
        self._news.put_nowait(resource)

    async def next(self) -> AclResource:
        return await self._news.get()


async def write_like_kafka(store: CoordinationStore, resource: AclResource, payload: bytes | None) -> None:
    """A change by a broker of Kafka, in two steps; None deletes the znode."""
    if payload is None:
        await store.delete(resource.path)
    elif await store.exists(resource.path):
        await store.set(resource.path, payload)
    else:
        await store.create(resource.path, payload)
    changes = "/kafka-acl-changes" if resource.pattern_type == LITERAL else "/kafka-acl-extended-changes"
    await store.create(f"{changes}/acl_changes_", encode_acl_change(resource), sequence=True)


async def add(repository: AclRepository, resource: AclResource, *acls: StoredAcl) -> None:
    await repository.change(resource, lambda current: current | set(acls))


# --- znodes --------------------------------------------------------------------------------------


def test_the_znodes_are_those_of_kafka() -> None:
    assert (TOPIC.path, PREFIX.path) == ("/kafka-acl/Topic/t", "/kafka-acl-extended/prefixed/TransactionalId/app-")
    assert encode_acls([READ, DENIED]) == (
        b'{"version":1,"acls":['
        b'{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"},'
        b'{"principal":"User:bob","permissionType":"Deny","operation":"All","host":"10.0.0.1"}]}'
    )
    assert encode_acl_change(TOPIC) == b"TOPIC:t"
    assert encode_acl_change(PREFIX) == (
        b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"app-","patternType":"PREFIXED"}'
    )
    assert "/kafka-acl/User" in ACL_PATHS
    assert "/kafka-acl-extended/prefixed/User" in ACL_PATHS


def test_acls_and_notifications_are_decoded() -> None:
    assert decode_acls(TOPIC, encode_acls([READ, DENIED])) == {READ, DENIED}
    assert decode_acls(TOPIC, b"") == frozenset()
    in_capitals = (
        b'{"version":1,"acls":[{"host":"*","permissionType":"ALLOW","operation":"Read","principal":"User:alice"}]}'
    )
    assert decode_acls(TOPIC, in_capitals) == {READ}
    assert decode_acl_change("/kafka-acl-changes/acl_changes_0000000000", b"Topic:t") == TOPIC
    assert decode_acl_change("/kafka-acl-changes/acl_changes_0000000000", b"GROUP:a:b") == ("Group", LITERAL, "a:b")
    assert decode_acl_change("/kafka-acl-extended-changes/x", encode_acl_change(PREFIX)) == PREFIX
    assert decode_acl_change("/kafka-acl-changes/x", b"NOVELTY:t") is None


@pytest.mark.parametrize(
    "payload",
    [
        b"{broken",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        encode_acls([READ._replace(permission_type="Dney")]),
        encode_acls([READ._replace(principal="alice")]),
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"Read"}]}',
        b'{"version":1,"acls":[7]}',
    ],
)
def test_damaged_acls_are_told(payload: bytes) -> None:
    with pytest.raises(DamagedZnode, match="/kafka-acl/Topic/t"):
        decode_acls(TOPIC, payload)


@pytest.mark.parametrize("payload", [b"TOPIC", b"\xff:t", b"TOPIC:..", b"TOPIC:", b"TOPIC:a/b"])
def test_damaged_notifications_are_told(payload: bytes) -> None:
    with pytest.raises(DamagedZnode):
        decode_acl_change("/kafka-acl-changes/acl_changes_0000000000", payload)


@pytest.mark.parametrize(
    ("name", "is_possible"),
    [
        ("t", True),
        ("*", True),
        ("ä-ö", True),
        ("", False),
        (".", False),
        ("a/b", False),
        ("a\0", False),
        ("\x1f", False),
    ],
)
def test_names_of_znodes(name: str, is_possible: bool) -> None:
    assert can_be_stored(AclResource("Group", LITERAL, name)) is is_possible


# --- changes -------------------------------------------------------------------------------------


async def test_a_change_is_written_and_told(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository = repository_of(session, clock)
        listener = Listener(repository)
        await repository.start()
        await add(repository, TOPIC, READ, DENIED)
        assert repository.acls_of(TOPIC) == {READ, DENIED}
        assert (repository.count, listener.heard) == (2, [TOPIC])
        assert await session.get_children("/kafka-acl-changes") == ["acl_changes_0000000000"]
        await add(repository, PREFIX, WRITE)
        assert (await session.get_children("/kafka-acl-extended-changes")) == ["acl_changes_0000000000"]
        await add(repository, TOPIC, READ)
        assert (await session.get(TOPIC.path))[1].version == 0, "nothing has changed"
        await repository.change(TOPIC, lambda current: current - {DENIED})
        assert decode_acls(TOPIC, (await session.get(TOPIC.path))[0]) == {READ}
        await repository.change(TOPIC, lambda _: frozenset())
        assert await session.exists(TOPIC.path) is None
        assert dict(repository.acls) == {PREFIX: {WRITE}}
        assert repository.count == 1
        await repository.change(PREFIX, lambda _: frozenset())
        assert repository.held_bytes == 0
        await repository.stop()


async def test_acls_are_known_after_a_start(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        first = repository_of(await stores.session(), clock)
        await first.start()
        await add(first, TOPIC, READ)
        await add(first, PREFIX, WRITE)
        await (await stores.session()).create("/kafka-acl/Novelty")
        second = repository_of(await stores.session(), clock)
        listener = Listener(second)
        await second.start()
        assert dict(second.acls) == {TOPIC: {READ}, PREFIX: {WRITE}}
        assert sorted(listener.heard) == sorted([TOPIC, PREFIX])
        await first.stop()
        await second.stop()


async def test_changes_of_others_are_followed(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository, other = repository_of(await stores.session(), clock), await stores.session()
        await repository.start()
        listener = Listener(repository)
        for resource in (TOPIC, PREFIX):
            await write_like_kafka(other, resource, encode_acls([READ, DENIED]))
            assert await listener.next() == resource
            assert repository.acls_of(resource) == {READ, DENIED}
            await write_like_kafka(other, resource, encode_acls([DENIED]))
            assert await listener.next() == resource
            assert repository.acls_of(resource) == {DENIED}
            await write_like_kafka(other, resource, None)
            assert await listener.next() == resource
            assert repository.acls_of(resource) == frozenset()
        await repository.stop()


async def test_no_change_undoes_another(stores: Stores, clock: ManualClock) -> None:
    """Changes of two brokers at the same time, and in between the znode goes with its last ACL."""
    async with stores:
        repositories = [repository_of(await stores.session(), clock) for _ in range(2)]
        for repository in repositories:
            await repository.start()
        acls = [READ._replace(principal=f"User:{number}") for number in range(10)]
        await asyncio.gather(*(add(repositories[index % 2], TOPIC, acl) for index, acl in enumerate(acls)))
        await repositories[0].refresh(TOPIC)
        assert repositories[0].acls_of(TOPIC) == set(acls)
        removals = [
            repositories[index % 2].change(TOPIC, lambda current, acl=acl: current - {acl})  # type: ignore[misc]
            for index, acl in enumerate(acls)
        ]
        await asyncio.gather(*removals, add(repositories[0], TOPIC, DENIED))
        for repository in repositories:
            await repository.refresh(TOPIC)
            assert repository.acls_of(TOPIC) == {DENIED}
            await repository.stop()


# --- damage, deletions, lost sessions --------------------------------------------------------------


async def test_damaged_acls_keep_those_that_were_there(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with stores:
        repository, other = repository_of(await stores.session(), clock), await stores.session()
        await repository.start()
        await add(repository, TOPIC, READ)
        listener = Listener(repository)
        await write_like_kafka(other, TOPIC, b"{broken")
        await other.create("/kafka-acl-changes/acl_changes_", b"\xff", sequence=True)
        group = AclResource("Group", LITERAL, "g")
        await write_like_kafka(other, group, encode_acls([READ]))
        assert await listener.next() == group
        assert repository.acls_of(TOPIC) == {READ}
        assert "/kafka-acl/Topic/t" in caplog.text
        await repository.stop()

        restarted = repository_of(await stores.session(), clock)
        await restarted.start()
        assert restarted.acls_of(TOPIC) == DENIED_WHERE_BROKEN
        assert restarted.acls_of(group) == {READ}
        await restarted.change(TOPIC, lambda current: current - DENIED_WHERE_BROKEN)
        assert await other.exists(TOPIC.path) is None, "an administrator has removed the assumed ACL"
        await restarted.stop()


async def test_the_znode_of_no_acls_may_have_children(stores: Stores, clock: ManualClock) -> None:
    """Another program has created them: the znode cannot be deleted."""
    async with stores:
        session = await stores.session()
        repository = repository_of(session, clock)
        await repository.start()
        await add(repository, TOPIC, READ)
        await session.create(f"{TOPIC.path}/stray")
        await repository.change(TOPIC, lambda _: frozenset())
        assert (await session.get(TOPIC.path))[0] == encode_acls([])
        assert dict(repository.acls) == {}
        await add(repository, TOPIC, DENIED)
        assert repository.acls_of(TOPIC) == {DENIED}
        await repository.stop()


async def test_deleted_parents_are_restored(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository, other = repository_of(session, clock), await stores.session()
        await repository.start()
        await add(repository, TOPIC, READ)
        await add(repository, PREFIX, WRITE)
        listener = Listener(repository)
        for path in (TOPIC.path, TOPIC.parent, "/kafka-acl-changes/acl_changes_0000000000", "/kafka-acl-changes"):
            await other.delete(path)
        restored = asyncio.Event()
        while await other.exists(TOPIC.path, lambda _event: restored.set()) is None:
            await restored.wait()
        assert decode_acls(TOPIC, (await other.get(TOPIC.path))[0]) == {READ}
        await write_like_kafka(other, TOPIC, encode_acls([DENIED]))
        assert await listener.next() == TOPIC
        assert repository.acls_of(TOPIC) == {DENIED}
        await other.delete("/kafka-acl/User")
        await add(repository, AclResource("User", LITERAL, "u"), READ)
        assert await other.exists("/kafka-acl/User/u") is not None
        await repository.stop()


async def test_what_changed_between_two_sessions_is_told(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository, other = repository_of(session, clock), await stores.session()
        await repository.start()
        await add(repository, TOPIC, READ)
        await add(repository, PREFIX, WRITE)
        listener = Listener(repository)
        await session.close()
        await write_like_kafka(other, TOPIC, None)
        assert repository.acls_of(TOPIC) == {READ}
        await repository.rejoin(await stores.session())
        assert listener.heard == [TOPIC]
        assert dict(repository.acls) == {PREFIX: {WRITE}}
        await write_like_kafka(other, TOPIC, encode_acls([DENIED]))
        while repository.acls_of(TOPIC) != {DENIED}:
            await listener.next()
        await repository.stop()


async def test_a_lost_connection_loses_no_change(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session, other = await stores.session(), await stores.session()
        repository = repository_of(session, clock)
        await repository.start()
        read, failures = session.get_many, [ConnectionLost(TOPIC.path)]

        async def get_many(paths: Any, watcher: Any = None) -> Any:
            if TOPIC.path in paths and failures:
                raise failures.pop()
            return await read(paths, watcher)

        session.get_many = get_many
        listener = Listener(repository)
        await write_like_kafka(other, TOPIC, encode_acls([READ]))
        assert await listener.next() == TOPIC
        assert not failures
        await repository.stop()


async def test_old_notifications_are_purged(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository, other = repository_of(await stores.session(), clock), await stores.session()
        await repository.start()
        await add(repository, TOPIC, READ)
        first = "/kafka-acl-changes/acl_changes_0000000000"
        _, stat = await other.get(first)
        purged = asyncio.Event()
        await other.exists(first, lambda _event: purged.set())
        clock.advance(stat.ctime_ms + CHANGE_EXPIRATION_MS + 1 - clock.now_ms())
        await write_like_kafka(other, TOPIC, encode_acls([DENIED]))
        await purged.wait()
        assert await other.get_children("/kafka-acl-changes") == ["acl_changes_0000000001"]
        await repository.stop()
