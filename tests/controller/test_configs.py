"""Dynamic configuration: cached, changed by us, changed by others."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationError,
    CoordinationStore,
    StoreUnavailable,
)
from barnabas.controller.notifications import CHANGE_EXPIRATION_MS, CHANGE_TIMEOUT_MS, FOLLOWING_RETRY_DELAY_MS
from barnabas.wire.errors import ApiError, ErrorCode
from tests.support.manual_timers import ManualTimers

Stores = Any
"""A store under test, see conftest.py."""


class Listener:
    """Collects changes; `next()` waits for a change by another program."""

    def __init__(self, repository: ConfigRepository) -> None:
        self.heard: list[tuple[str, str]] = []
        self._news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        repository.subscribe(self._hear)

    def _hear(self, entity_type: str, name: str) -> None:
        self.heard.append((entity_type, name))
        self._news.put_nowait((entity_type, name))

    async def next(self) -> tuple[str, str]:
        return await self._news.get()


async def change_like_kafka(store: CoordinationStore, entity_type: str, name: str, payload: bytes) -> None:
    """A change by another broker, in two steps."""
    path = znodes.config_path(entity_type, name)
    if await store.exists(path):
        await store.set(path, payload)
    else:
        await store.create(path, payload)
    notification = znodes.encode_config_change(entity_type, name)
    await store.create("/config/changes/config_change_", notification, sequence=True)


async def test_replace(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository = ConfigRepository(session, clock, ManualTimers())
        await repository.start()
        listener = Listener(repository)
        assert repository.overrides("topics", "t") == {}
        await repository.change("topics", "t", lambda _: {"retention.ms": "1"})
        assert repository.overrides("topics", "t") == {"retention.ms": "1"}
        assert listener.heard == [("topics", "t")]
        await repository.change("topics", "t", lambda _: {"retention.ms": "2"})
        await repository.change("topics", "t", lambda _: {})
        assert repository.overrides("topics", "t") == {}
        assert len(listener.heard) == 3
        payload, stat = await session.get("/config/topics/t")
        assert (znodes.decode_config("topics", "t", payload), stat.version) == ({}, 2)
        changes = await session.get_children("/config/changes")
        assert changes == [f"config_change_{number:010d}" for number in range(3)]
        notified = await session.get(f"/config/changes/{changes[0]}")
        assert znodes.decode_config_change("", notified[0]) == ("topics", "t")
        with pytest.raises(TypeError):
            repository.overrides("topics", "t")["x"] = "y"  # type: ignore[index]
        await repository.stop()


async def test_defaults_of_all_brokers(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository = ConfigRepository(await stores.session(), clock, ManualTimers())
        await repository.start()
        await repository.change("brokers", "<default>", lambda _: {"log.retention.ms": "5"})
        assert repository.overrides("brokers", "<default>") == {"log.retention.ms": "5"}
        assert repository.overrides("brokers", "1") == {}
        await repository.stop()


async def test_everything_is_known_after_a_start(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        first = ConfigRepository(await stores.session(), clock, ManualTimers())
        await first.start()
        await first.change("topics", "t", lambda _: {"a": "1"})
        await first.change("brokers", "7", lambda _: {"b": "2"})
        second = ConfigRepository(await stores.session(), clock, ManualTimers())
        listener = Listener(second)
        await second.start()
        assert second.overrides("topics", "t") == {"a": "1"}
        assert second.overrides("brokers", "7") == {"b": "2"}
        assert listener.heard == []
        await first.stop()
        await second.stop()


async def test_changes_of_others_are_followed(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository, other = ConfigRepository(await stores.session(), clock, ManualTimers()), await stores.session()
        await repository.start()
        listener = Listener(repository)
        await change_like_kafka(other, "topics", "t", znodes.encode_config({"a": "1"}))
        assert await listener.next() == ("topics", "t")
        assert repository.overrides("topics", "t") == {"a": "1"}
        for value in "234":
            await change_like_kafka(other, "topics", "t", znodes.encode_config({"a": value}))
        await change_like_kafka(other, "clients", "somebody", znodes.encode_config({"producer_byte_rate": "1"}))
        await change_like_kafka(other, "brokers", "1", znodes.encode_config({"x": "y"}))
        while await listener.next() != ("brokers", "1"):
            pass
        assert repository.overrides("topics", "t") == {"a": "4"}
        assert repository.overrides("clients", "somebody") == {"producer_byte_rate": "1"}
        await repository.stop()


def cannot_be_read_once(session: Any, error: CoordinationError) -> list[CoordinationError]:
    """Have the next reading of the error's znode fail; what is returned is empty then."""
    read, failures = session.get_many, [error]

    async def get_many(paths: Any, watcher: Any = None) -> Any:
        if error.path in paths and failures:
            raise failures.pop()
        return await read(paths, watcher)

    session.get_many = get_many
    return failures


async def test_a_change_that_could_not_be_read_is_read_again(stores: Stores, clock: ManualClock) -> None:
    """It does not delay other changes."""
    async with stores:
        session, other, timers = await stores.session(), await stores.session(), ManualTimers()
        repository = ConfigRepository(session, clock, timers)
        await repository.start()
        failures = cannot_be_read_once(session, StoreUnavailable("/config/topics/t"))
        listener = Listener(repository)
        await change_like_kafka(other, "topics", "t", znodes.encode_config({"min.insync.replicas": "2"}))
        await timers.has(FOLLOWING_RETRY_DELAY_MS)
        assert not failures
        await change_like_kafka(other, "topics", "u", znodes.encode_config({"retention.ms": "7"}))
        timers.fire(FOLLOWING_RETRY_DELAY_MS)
        assert sorted([await listener.next(), await listener.next()]) == [("topics", "t"), ("topics", "u")]
        assert repository.overrides("topics", "t") == {"min.insync.replicas": "2"}
        await repository.stop()


async def test_changes_are_read_at_once_after_a_lost_connection(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session, other = await stores.session(), await stores.session()
        repository = ConfigRepository(session, clock, ManualTimers())
        await repository.start()
        failures = cannot_be_read_once(session, ConnectionLost("/config/topics/t"))
        listener = Listener(repository)
        await change_like_kafka(other, "topics", "t", znodes.encode_config({"retention.ms": "7"}))
        assert await listener.next() == ("topics", "t")
        assert not failures
        await repository.stop()


async def test_a_change_that_can_never_be_read_keeps_no_others_back(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session, other, timers = await stores.session(), await stores.session(), ManualTimers()
        repository = ConfigRepository(session, clock, timers)
        await repository.start()
        read = session.get_many

        async def get_many(paths: Any, watcher: Any = None) -> Any:
            if "/config/topics/bad" in paths:
                raise StoreUnavailable("/config/topics/bad")
            return await read(paths, watcher)

        session.get_many = get_many
        listener = Listener(repository)
        for name in ("bad", "t"):
            await change_like_kafka(other, "topics", name, znodes.encode_config({"retention.ms": "7"}))
        await timers.has(FOLLOWING_RETRY_DELAY_MS)
        timers.fire(FOLLOWING_RETRY_DELAY_MS)
        assert await listener.next() == ("topics", "t")
        await repository.stop()


async def test_two_repositories_see_each_others_changes(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        one, two = [ConfigRepository(await stores.session(), clock, ManualTimers()) for _ in range(2)]
        await one.start()
        await two.start()
        heard_by_one, heard_by_two = Listener(one), Listener(two)
        await one.change("topics", "t", lambda _: {"a": "1"})
        assert await heard_by_two.next() == ("topics", "t")
        await two.change("topics", "u", lambda _: {"b": "1"})
        assert await heard_by_one.next() == ("topics", "t")
        assert await heard_by_one.next() == ("topics", "u")
        assert two.overrides("topics", "t") == {"a": "1"}
        assert heard_by_one.heard == [("topics", "t"), ("topics", "u")], "one's own change is heard once"
        await one.stop()
        await two.stop()


async def test_no_change_undoes_another(stores: Stores, clock: ManualClock) -> None:
    """Changes of two brokers at the same time, each of a key of its own; some of a topic that has no overrides yet."""
    async with stores:
        repositories = [ConfigRepository(await stores.session(), clock, ManualTimers()) for _ in range(2)]
        for repository in repositories:
            await repository.start()

        async def add(repository: ConfigRepository, key: str) -> None:
            await repository.change("topics", "t", lambda current: {**current, key: "1"})
            assert key in repository.overrides("topics", "t")

        keys = [
            (repository, f"{number}-{index}") for number in range(10) for index, repository in enumerate(repositories)
        ]
        await asyncio.gather(*(add(repository, key) for repository, key in keys))
        payload, stat = await (await stores.session()).get("/config/topics/t")
        assert znodes.decode_config("topics", "t", payload) == {key: "1" for _, key in keys}
        assert stat.version == len(keys) - 1, "each is written once"
        for repository in repositories:
            await repository.refresh("topics", ["t"])
            assert len(repository.overrides("topics", "t")) == len(keys)
            await repository.stop()


async def test_a_change_refused_after_another_is_not_written(stores: Stores, clock: ManualClock) -> None:
    """A change is checked against the configuration that it changes, also if another broker was faster."""
    async with stores:
        repository, other = ConfigRepository(await stores.session(), clock, ManualTimers()), await stores.session()
        await repository.start()
        await other.create("/config/topics/t", znodes.encode_config({"a": "1"}))  # nobody has told of it

        def decide(current: Mapping[str, str]) -> Mapping[str, str]:
            if "a" in current:
                raise ApiError(ErrorCode.INVALID_CONFIG)
            return {"b": "1"}

        with pytest.raises(ApiError, match="INVALID_CONFIG"):
            await repository.change("topics", "t", decide)
        assert (await other.get("/config/topics/t"))[0] == znodes.encode_config({"a": "1"})
        assert repository.overrides("topics", "t") == {"a": "1"}
        await repository.stop()


async def test_damage_keeps_what_was_there(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with stores:
        repository, other = ConfigRepository(await stores.session(), clock, ManualTimers()), await stores.session()
        await repository.start()
        await repository.change("topics", "t", lambda _: {"retention.ms": "-1"})
        listener = Listener(repository)
        await change_like_kafka(other, "topics", "t", b"{broken")
        await other.create("/config/changes/config_change_", b"not json", sequence=True)
        await change_like_kafka(other, "topics", "u", znodes.encode_config({"a": "1"}))
        assert await listener.next() == ("topics", "u")
        assert repository.overrides("topics", "t") == {"retention.ms": "-1"}
        assert "/config/topics/t" in caplog.text
        await repository.stop()

        restarted = ConfigRepository(await stores.session(), clock, ManualTimers())
        await restarted.start()
        assert restarted.overrides("topics", "t")["retention.ms"] == "-1", "whatever it was, nothing is deleted"
        assert restarted.overrides("topics", "u") == {"a": "1"}
        await restarted.stop()


async def test_old_notifications_are_purged(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository, other = ConfigRepository(await stores.session(), clock, ManualTimers()), await stores.session()
        await repository.start()
        listener = Listener(repository)
        await change_like_kafka(other, "topics", "t", znodes.encode_config({"a": "1"}))
        await listener.next()
        _, first = await other.get("/config/changes/config_change_0000000000")
        purged = asyncio.Event()  # by the next change, or by the first one, which is told before the old are looked at
        await other.exists("/config/changes/config_change_0000000000", lambda _event: purged.set())
        clock.advance(first.ctime_ms + CHANGE_EXPIRATION_MS + 1 - clock.now_ms())
        await change_like_kafka(other, "topics", "t", znodes.encode_config({"a": "2"}))
        await purged.wait()
        assert await other.get_children("/config/changes") == ["config_change_0000000001"]
        await repository.stop()


async def test_refresh_and_forget(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository, other = ConfigRepository(await stores.session(), clock, ManualTimers()), await stores.session()
        await repository.start()
        listener = Listener(repository)
        await other.create("/config/topics/t", znodes.encode_config({"a": "1"}))
        assert repository.overrides("topics", "t") == {}
        await repository.refresh("topics", ["t", "unknown"])
        assert repository.overrides("topics", "t") == {"a": "1"}
        await repository.refresh("topics", ["t"])
        assert listener.heard == [("topics", "t")]
        repository.forget("topics", ["t", "unknown"])
        assert repository.overrides("topics", "t") == {}
        assert listener.heard == [("topics", "t")]
        await repository.stop()


@pytest.mark.parametrize("stores", [pytest.param("zookeeper", marks=pytest.mark.java)], indirect=True)
async def test_a_change_while_nothing_answers(stores: Stores, clock: ManualClock) -> None:
    """It is cancelled, and does not take effect later without the knowledge of its author."""
    assert CHANGE_TIMEOUT_MS == 30_000, "as docs/zookeeper.md says"
    async with stores:
        timers = ManualTimers()
        repository = ConfigRepository(await stores.session(), clock, timers)
        await repository.start()
        await asyncio.to_thread(stores.server.stop)
        change = asyncio.create_task(repository.change("topics", "t", lambda _: {"retention.ms": "1"}))
        await timers.has(CHANGE_TIMEOUT_MS)
        timers.fire()
        with pytest.raises(ApiError) as failure:
            await change
        assert failure.value.error is ErrorCode.REQUEST_TIMED_OUT
        assert timers.waiting == []
        await asyncio.to_thread(stores.server.start)
        await repository.change("topics", "u", lambda _: {"retention.ms": "2"})
        assert repository.overrides("topics", "u") == {"retention.ms": "2"}
        assert repository.overrides("topics", "t") == {}
        await repository.stop()


async def test_users_and_their_clients(stores: Stores, clock: ManualClock) -> None:
    """An entity of a client of a user is below the user's znode, which may have no overrides itself."""
    async with stores:
        session = await stores.session()
        repository = ConfigRepository(session, clock, ManualTimers())
        await repository.start()
        listener = Listener(repository)
        await repository.change("users", "alice/clients/app", lambda _: {"producer_byte_rate": "1"})
        await repository.change("users", "<default>", lambda _: {"consumer_byte_rate": "2"})
        await repository.change("ips", "127.0.0.1", lambda _: {"connection_creation_rate": "3"})
        assert (await session.get("/config/users/alice"))[0] == b""
        assert listener.heard == [("users", "alice/clients/app"), ("users", "<default>"), ("ips", "127.0.0.1")]
        await repository.stop()

        other = ConfigRepository(await stores.session(), clock, ManualTimers())
        await other.start()
        assert other.overrides("users", "alice/clients/app") == {"producer_byte_rate": "1"}
        assert other.overrides("users", "<default>") == {"consumer_byte_rate": "2"}
        assert other.overrides("ips", "127.0.0.1") == {"connection_creation_rate": "3"}
        await other.stop()


async def test_a_user_without_quotas_leaves_no_znode(stores: Stores, clock: ManualClock) -> None:
    """The last override of a user, of a user's client or of an address goes with its znode, and is told to others."""
    async with stores:
        session = await stores.session()
        repository = ConfigRepository(session, clock, ManualTimers())
        await repository.start()
        for entity in [("users", "alice/clients/app"), ("users", "bob"), ("users", "bob/clients/app"), ("ips", "::1")]:
            await repository.change(*entity, lambda _: {"a": "1"})
        assert sorted(repository.entities("users")) == [
            ("users", "alice/clients/app"),
            ("users", "bob"),
            ("users", "bob/clients/app"),
        ]
        listener = Listener(repository)
        await repository.change("users", "alice/clients/app", lambda _: {})
        await repository.change("users", "bob", lambda _: {})
        await repository.change("ips", "::1", lambda _: {})
        await repository.change("ips", "::2", lambda _: {})
        assert listener.heard == [("users", "alice/clients/app"), ("users", "bob"), ("ips", "::1")]
        assert await session.get_children("/config/users") == ["bob"]
        assert await session.get_children("/config/ips") == []
        await repository.change("users", "bob/clients/app", lambda _: {})
        assert await session.get_children("/config/users") == []
        await repository.stop()
