"""The contract of a coordination store; every store must pass all of it."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.coordination.interface import (
    BadVersion,
    Check,
    CoordinationStore,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SetData,
    Stat,
    WatchedEvent,
)

Stores = Any
"""A store under test, see conftest.py."""


async def stat_of(session: CoordinationStore, path: str) -> Stat:
    stat = await session.exists(path)
    assert stat is not None
    return stat


async def test_create_and_get(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        assert await session.create("/a", b"one") == "/a"
        data, stat = await session.get("/a")
        assert data == b"one"
        assert stat.version == 0
        assert stat.czxid == stat.mzxid == stat.pzxid > 0
        assert stat.ctime_ms == stat.mtime_ms
        assert stat.ctime_ms == clock.now_ms() or not stores.is_ours
        assert (stat.data_length, stat.num_children, stat.cversion, stat.ephemeral_owner) == (3, 0, 0, 0)


async def test_create_fails_where_zookeeper_fails(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        with pytest.raises(NodeExists) as exists:
            await session.create("/a")
        assert exists.value.path == "/a"
        with pytest.raises(NodeExists):
            await session.create("/")
        with pytest.raises(NoNode) as missing:
            await session.create("/b/c")
        assert missing.value.path == "/b"
        await session.create("/e", ephemeral=True)
        with pytest.raises(NoChildrenForEphemerals):
            await session.create("/e/child")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/.", "/..", "/a\0", "/\ud800"])
async def test_malformed_paths_are_a_bug(stores: Stores, path: str) -> None:
    async with stores:
        session = await stores.session()
        with pytest.raises(ValueError, match="znode path"):
            await session.create(path)
        with pytest.raises(ValueError, match="znode path"):
            await session.get(path)
        with pytest.raises(ValueError, match="znode path"):
            await session.get_children(path)


async def test_set_counts_versions(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a", b"one")
        clock.advance(5)
        first = await session.set("/a", b"two", 0)
        second = await session.set("/a", b"three")
        assert (first.version, second.version) == (1, 2)
        assert first.mzxid < second.mzxid
        assert second.mtime_ms == second.ctime_ms + 5 or not stores.is_ours
        with pytest.raises(BadVersion):
            await session.set("/a", b"four", 1)
        with pytest.raises(NoNode):
            await session.set("/b", b"")
        assert (await session.get("/a"))[0] == b"three"


async def test_delete(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        await session.create("/a/b")
        with pytest.raises(NotEmpty):
            await session.delete("/a")
        with pytest.raises(BadVersion):
            await session.delete("/a/b", 7)
        await session.delete("/a/b", 0)
        await session.delete("/a")
        with pytest.raises(NoNode):
            await session.delete("/a")
        with pytest.raises(NoNode):
            await session.get("/a")
        assert await session.exists("/a") is None


async def test_a_recreated_znode_starts_over(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        old = await session.set("/a", b"x")
        await session.delete("/a")
        await session.create("/a")
        new = await stat_of(session, "/a")
        assert new.version == 0
        assert new.czxid > old.mzxid


async def test_children_are_sorted_and_counted(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        for name in ("c", "b", "d"):
            await session.create(f"/a/{name}")
        await session.create("/a/b/deeper")
        assert await session.get_children("/a") == ["b", "c", "d"]
        stat = await stat_of(session, "/a")
        assert (stat.num_children, stat.cversion) == (3, 3)
        assert stat.pzxid > stat.mzxid
        await session.delete("/a/c")
        stat = await stat_of(session, "/a")
        assert (stat.num_children, stat.cversion, stat.version) == (2, 4, 0)
        with pytest.raises(NoNode):
            await session.get_children("/b")


async def test_get_many(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a", b"1")
        await session.create("/c", b"3")
        found = await session.get_many(["/a", "/b", "/c"])
        assert [answer and answer[0] for answer in found] == [b"1", None, b"3"]


async def test_get_many_of_many(stores: Stores) -> None:
    """More znodes than one request may contain: in their order, including missing ones."""
    async with stores:
        session = await stores.session()
        there = [f"/n{number}" for number in range(0, 250, 2)]
        await session.multi([Create(path, path.encode()) for path in there])
        found = await session.get_many([f"/n{number}" for number in range(250)])
        assert found[1::2] == [None] * 125
        assert found[::2] == [await session.get(path) for path in there]
        assert await session.get_many([]) == []


async def test_get_many_watches_what_exists(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a", b"1")
        events: list[WatchedEvent] = []
        await session.get_many(["/a", "/b"], events.append)
        await session.create("/b")
        await session.set("/a", b"2")
        await session.set("/a", b"3")
        assert events == [WatchedEvent(EventType.DATA_CHANGED, "/a")]


async def test_sequence_numbers_count_creations(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/q")
        assert await session.create("/q/n_", sequence=True) == "/q/n_0000000000"
        assert await session.create("/q/n_", sequence=True) == "/q/n_0000000001"
        await session.delete("/q/n_0000000001")
        await session.create("/q/plain")
        assert await session.create("/q/n_", b"x", sequence=True) == "/q/n_0000000003", "deletions free no number"


async def test_multi_is_one_transaction(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a", b"old")
        results = await session.multi(
            [
                Check("/a", 0),
                Create("/b", b"b"),
                Create("/b/c_", sequence=True),
                SetData("/a", b"new", 0),
                Create("/gone"),
                Delete("/gone"),
            ]
        )
        assert results[0] is None
        assert results[1:3] == ["/b", "/b/c_0000000000"]
        changed = results[3]
        assert isinstance(changed, Stat)
        assert changed.version == 1
        assert results[4:] == ["/gone", None]
        created = await stat_of(session, "/b")
        below = await stat_of(session, "/b/c_0000000000")
        assert created.czxid == created.pzxid == below.czxid == changed.mzxid
        assert await session.exists("/gone") is None


async def test_a_failed_multi_changes_nothing(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a", b"old")
        events: list[WatchedEvent] = []
        await session.get("/a", events.append)
        before = await session.get("/a")
        with pytest.raises(BadVersion) as failure:
            await session.multi([Create("/b"), SetData("/a", b"new"), Check("/a", 0), Delete("/a")])
        assert failure.value.operation_index == 2, "the second operation made it version 1"
        assert await session.get("/a") == before
        assert await session.exists("/b") is None
        assert events == []
        await session.create("/b")
        created = await stat_of(session, "/b")
        assert created.czxid == before[1].czxid + 1 or not stores.is_ours, "a failure takes no zxid"


async def test_check_of_a_missing_znode(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        with pytest.raises(NoNode):
            await session.multi([Check("/a", 0)])
        with pytest.raises(NoNode):
            await session.multi([Check("/a", -1)])


async def test_a_write_after_create_in_a_multi_tells_the_czxid(stores: Stores) -> None:
    """How a broker learns its epoch."""
    async with stores:
        session = await stores.session()
        await session.create("/ids")
        results = await session.multi([Create("/ids/1", b"x", ephemeral=True), SetData("/ids/1", b"x")])
        stat = results[1]
        assert isinstance(stat, Stat)
        assert stat.czxid == (await stat_of(session, "/ids/1")).czxid
        assert stat.ephemeral_owner == session.session_id


async def test_ephemerals_go_with_their_session(stores: Stores) -> None:
    async with stores:
        one, other = await stores.session(), await stores.session()
        assert one.session_id != other.session_id
        await one.create("/e1", ephemeral=True)
        await one.create("/e2", ephemeral=True)
        await other.create("/o", ephemeral=True)
        await one.create("/p")
        before = await stat_of(other, "/")
        events: list[WatchedEvent] = []
        await other.get_children("/", events.append)
        await other.exists("/e2", events.append)
        await one.close()
        await one.close()
        assert await other.get_children("/") == ["o", "p"]
        after = await stat_of(other, "/")
        assert after.pzxid > before.pzxid
        assert after.cversion == before.cversion + 2
        expected = [WatchedEvent(EventType.CHILDREN_CHANGED, "/"), WatchedEvent(EventType.DELETED, "/e2")]
        assert events == expected or (not stores.is_ours and events == expected[::-1])
        with pytest.raises(SessionExpired):
            await one.get("/p")
        with pytest.raises(SessionExpired):
            await one.create("/q")


async def test_an_expired_session_is_told(stores: Stores) -> None:
    async with stores:
        one, other = await stores.session(), await stores.session()
        await one.create("/e", ephemeral=True)
        told: list[str] = []
        one.on_expired(lambda: told.append("one"))
        other.on_expired(lambda: told.append("other"))
        await stores.expire(one)
        assert await other.exists("/e") is None
        assert told == ["one"]
        with pytest.raises(SessionExpired):
            await one.exists("/e")


async def test_data_watches(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        events: list[WatchedEvent] = []
        assert await session.exists("/a", events.append) is None
        await session.create("/a")
        assert events == [WatchedEvent(EventType.CREATED, "/a")]
        await session.set("/a", b"unwatched")
        await session.get("/a", events.append)
        await session.create("/a/child")
        await session.set("/a", b"watched")
        await session.set("/a", b"again")
        assert events[1:] == [WatchedEvent(EventType.DATA_CHANGED, "/a")], "one-shot, and children are no data"
        await session.delete("/a/child")
        await session.get("/a", events.append)
        await session.delete("/a")
        assert events[2:] == [WatchedEvent(EventType.DELETED, "/a")]


async def test_a_failed_read_sets_no_watch(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        events: list[WatchedEvent] = []
        with pytest.raises(NoNode):
            await session.get("/a", events.append)
        with pytest.raises(NoNode):
            await session.get_children("/a", events.append)
        await session.create("/a")
        await session.create("/a/b")
        assert events == []


async def test_child_watches(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        events: list[WatchedEvent] = []
        await session.get_children("/a", events.append)
        await session.set("/a", b"x")
        await session.create("/a/b")
        await session.create("/a/c")
        assert events == [WatchedEvent(EventType.CHILDREN_CHANGED, "/a")]
        await session.get_children("/a", events.append)
        await session.delete("/a/b")
        assert events[1:] == [WatchedEvent(EventType.CHILDREN_CHANGED, "/a")]
        await session.delete("/a/c")
        await session.get_children("/a", events.append)
        await session.delete("/a")
        assert events[2:] == [WatchedEvent(EventType.DELETED, "/a")]


async def test_one_watcher_is_called_once_per_event(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        events: list[WatchedEvent] = []
        watcher = events.append
        await session.get("/a", watcher)
        await session.exists("/a", watcher)
        await session.get_children("/a", watcher)
        await session.delete("/a")
        assert events == [WatchedEvent(EventType.DELETED, "/a")]


async def test_watches_fire_in_the_order_of_changes(stores: Stores) -> None:
    async with stores:
        watching, writing = await stores.session(), await stores.session()
        for name in ("a", "b", "c"):
            await writing.create(f"/{name}")
        events: list[WatchedEvent] = []
        for name in ("b", "a", "c"):
            await watching.get(f"/{name}", events.append)
        await writing.set("/c", b"")
        await writing.multi([SetData("/a", b""), SetData("/b", b"")])
        await watching.get("/a")
        assert [event.path for event in events] == ["/c", "/a", "/b"]


async def test_a_watch_arrives_before_newer_data_is_seen(stores: Stores) -> None:
    async with stores:
        watching, writing = await stores.session(), await stores.session()
        await writing.create("/a", b"0")
        seen: list[object] = []
        await watching.get("/a", seen.append)

        async def read() -> None:
            for _ in range(50):
                data, _ = await watching.get("/a")
                seen.append(data)

        await asyncio.gather(read(), writing.set("/a", b"1"))
        event = WatchedEvent(EventType.DATA_CHANGED, "/a")
        assert b"1" in seen
        assert seen.index(event) < seen.index(b"1")
        assert b"0" not in seen[seen.index(b"1") :]


async def test_a_watch_arrives_before_the_response_to_its_write(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a")
        events: list[WatchedEvent] = []
        await session.get("/a", events.append)
        await session.set("/a", b"x")
        assert len(events) == 1


async def test_no_watch_of_a_closed_session_fires(stores: Stores) -> None:
    async with stores:
        watching, writing = await stores.session(), await stores.session()
        await writing.create("/a")
        events: list[WatchedEvent] = []
        await watching.get("/a", events.append)
        await watching.close()
        await writing.set("/a", b"x")
        assert events == []


async def test_concurrent_compare_and_set_loses_no_update(stores: Stores) -> None:
    async with stores:
        sessions = [await stores.session() for _ in range(4)]
        await sessions[0].create("/counter", b"0")

        async def increment(session: CoordinationStore) -> None:
            for _ in range(10):
                while True:
                    data, stat = await session.get("/counter")
                    try:
                        await session.set("/counter", b"%d" % (int(data) + 1), stat.version)
                        break
                    except BadVersion:
                        continue

        await asyncio.gather(*map(increment, sessions))
        data, stat = await sessions[0].get("/counter")
        assert data == b"40"
        assert stat.version == 40


async def test_a_znode_has_a_largest_size(stores: Stores) -> None:
    async with stores:
        session = await stores.session()
        await session.create("/a", bytes(stores.znode_bytes_max))
        with pytest.raises(ValueError, match="more than a znode may hold"):
            await session.set("/a", bytes(1024 * 1024 + 1))


async def test_everything_but_ephemerals_survives_a_restart(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        if not stores.survives_restart:
            return
        session = await stores.session()
        await session.create("/a", b"\x00\xffdata")
        await session.create("/a/s_", sequence=True)
        await session.delete("/a/s_0000000000")
        await session.create("/e", ephemeral=True)
        await session.set("/a", b"changed")
        before = await session.get("/a")
        ephemeral = await stat_of(session, "/e")
        clock.advance(1000)
        await stores.restart()
        session = await stores.session()
        assert await session.get("/a") == before
        assert await session.get_children("/") == ["a"]
        assert await session.create("/a/s_", sequence=True) == "/a/s_0000000001"
        assert (await stat_of(session, "/a/s_0000000001")).czxid > ephemeral.czxid, "zxids never start over"
