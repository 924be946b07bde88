"""Promises of the embedded store beyond the contract: durability, crashes, exclusive use, failures."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.clock import ManualClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.interface import (
    CoordinationError,
    Create,
    Delete,
    SessionExpired,
    SetData,
    StoreUnavailable,
)
from barnabas.controller.coordination.owner_thread import OwnerThread
from barnabas.controller.coordination.stored_tree import FORMAT_VERSION
from barnabas.controller.coordination.tree import DataTree


def copy_as_after_a_crash(path: Path, target: Path) -> Path:
    """The files as a killed process leaves them."""
    target.mkdir()
    for file in path.parent.glob(path.name + "*"):
        shutil.copy(file, target / file.name)
    return target / path.name


async def opened(path: Path, clock: ManualClock) -> EmbeddedStore:
    store = EmbeddedStore(str(path), clock)
    await store.open()
    return store


async def test_every_acknowledged_write_survives_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "metadata.sqlite"
    store = await opened(path, clock)
    session = await store.session()
    await session.create("/p", b"x")
    await session.create("/e", ephemeral=True)
    await session.multi([Create("/p/a"), Create("/p/b"), SetData("/p", b"y")])
    survivor = await opened(copy_as_after_a_crash(path, tmp_path / "crashed"), clock)
    found = await survivor.session()
    assert (await found.get("/p"))[0] == b"y"
    assert await found.get_children("/p") == ["a", "b"]
    assert await found.exists("/e") is None
    await survivor.close()
    await store.close()


async def test_leftover_ephemerals_are_deleted_at_the_next_start(tmp_path: Path, clock: ManualClock) -> None:
    """The next start deletes them in the file, too."""
    path = tmp_path / "metadata.sqlite"
    store = await opened(path, clock)
    session = await store.session()
    await session.create("/e", ephemeral=True)
    crashed = copy_as_after_a_crash(path, tmp_path / "crashed")
    await store.close()

    store = await opened(crashed, clock)
    await (await store.session()).create("/x")
    again = copy_as_after_a_crash(crashed, tmp_path / "again")
    await store.close()
    with sqlite3.connect(again) as database:
        assert [row[0] for row in database.execute("SELECT path FROM znode ORDER BY path")] == ["/", "/x"]
    database.close()


async def test_commits_are_synchronous(tmp_path: Path, clock: ManualClock) -> None:
    store = await opened(tmp_path / "metadata.sqlite", clock)
    database = store._stored._database
    assert database is not None
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.close()


async def test_a_second_process_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "metadata.sqlite"
    store = await opened(path, clock)
    await (await store.session()).create("/a")
    script = (
        "import asyncio, sys; from barnabas.clock import SystemClock\n"
        "from barnabas.controller.coordination.embedded import EmbeddedStore\n"
        "asyncio.run(EmbeddedStore(sys.argv[1], SystemClock()).open())"
    )
    other = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert other.returncode != 0
    assert "another process is using it" in other.stderr
    await store.close()


@pytest.mark.parametrize("content", [b"not a database, not at all" * 100, None])
async def test_a_file_that_is_none_is_refused(tmp_path: Path, clock: ManualClock, content: bytes | None) -> None:
    path = tmp_path / "metadata.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"metadata\.sqlite"):
        await opened(path, clock)


async def test_a_newer_format_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "metadata.sqlite"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    database.close()
    with pytest.raises(StoreUnavailable, match="newer"):
        await opened(path, clock)


async def test_a_full_disk_refuses_the_write_and_nothing_else(tmp_path: Path, clock: ManualClock) -> None:
    store = await opened(tmp_path / "metadata.sqlite", clock)
    session = await store.session()
    await session.create("/a", b"before")
    database = store._stored._database
    assert database is not None
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await session.multi([SetData("/a", b"after"), Create("/big", bytes(1_000_000))])
    assert (await session.get("/a"))[0] == b"before"
    database.execute("PRAGMA max_page_count = 1000000")
    await session.create("/b")
    await store.close()


class _BrokenDatabase:
    """A connection whose next COMMIT fails as on a dying disk."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self._database.execute(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


async def test_after_a_failed_commit_nothing_is_answered_any_more(tmp_path: Path, clock: ManualClock) -> None:
    store = await opened(tmp_path / "metadata.sqlite", clock)
    session = await store.session()
    expired: list[bool] = []
    session.on_expired(lambda: expired.append(True))
    await session.create("/a")
    assert store._stored._database is not None
    store._stored._database = _BrokenDatabase(store._stored._database)  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable, match="I/O"):
        await session.create("/b")
    with pytest.raises(StoreUnavailable):
        await session.get("/a")
    assert expired == [True]
    await store.close()


async def test_sessions_on_several_event_loops_share_a_store(tmp_path: Path, clock: ManualClock) -> None:
    store = await opened(tmp_path / "metadata.sqlite", clock)
    here = await store.session()
    await here.create("/here", ephemeral=True)

    async def elsewhere() -> list[str]:
        there = await store.session()
        await there.create("/there", ephemeral=True)
        return await there.get_children("/")

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == ["here", "there"]
    await here.exists("/there", lambda _event: None)
    await store.close()
    with pytest.raises(SessionExpired):
        await here.get("/here")


async def test_a_sequential_znode_may_have_a_number_and_no_other_name(tmp_path: Path, clock: ManualClock) -> None:
    """The tree is ZooKeeper's in this, too."""
    path = tmp_path / "metadata.sqlite"
    store = await opened(path, clock)
    session = await store.session()
    await session.create("/q")
    assert await session.create("/q/", b"x", sequence=True) == "/q/0000000000"
    assert await session.multi([Create("/q/", sequence=True), Create("/", sequence=True)]) == [
        "/q/0000000001",
        "/0000000001",
    ]
    await store.close()
    store = await opened(path, clock)
    session = await store.session()
    assert await session.get_children("/q") == ["0000000000", "0000000001"]
    assert (await session.get("/q/0000000000"))[0] == b"x"
    assert not _structural_faults(store._stored.tree)
    await store.close()


async def test_a_znode_made_and_deleted_in_one_transaction_is_gone(clock: ManualClock) -> None:
    store = await opened(Path(":memory:"), clock)
    session = await store.session()
    await session.multi([Create("/a"), Create("/a/b"), Delete("/a/b"), Delete("/a")])
    assert store._stored.tree._children == {}
    await session.create("/a")
    await session.create("/a/b")
    await session.multi([Delete("/a/b"), Create("/a/b"), Create("/a/c"), Delete("/a/c")])
    assert store._stored.tree._children == {"/": {"a"}, "/a": {"b"}}
    await session.multi([SetData("/a", b""), Delete("/a/b"), Delete("/a")])
    assert store._stored.tree._children == {}
    await store.close()


async def test_closing_twice_is_fine(clock: ManualClock) -> None:
    store = EmbeddedStore(":memory:", clock)
    await store.open()
    session = await store.session()
    await store.close()
    await store.close()
    await session.close()


PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/z"])
OPERATIONS = st.one_of(
    st.builds(Create, PATHS, st.binary(max_size=4), st.booleans(), st.booleans()),
    st.builds(SetData, PATHS, st.binary(max_size=4), st.sampled_from([-1, 0, 1])),
    st.builds(Delete, PATHS, st.sampled_from([-1, 0])),
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(lives=st.lists(st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=8), min_size=1, max_size=3))
def test_after_each_crash_the_file_holds_what_was_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[list[Any]]]
) -> None:
    directory = tmp_path_factory.mktemp("store")

    async def run() -> None:
        clock = ManualClock(now_ms=1_700_000_000_000)
        path = directory / "metadata.sqlite"
        expected: dict[str, tuple[bytes, int]] = {"/": (b"", 0)}
        for life, transactions in enumerate(lives):
            store = await opened(path, clock)
            assert {p: (z.data, z.version) for p, z in store._stored.tree._znodes.items()} == expected
            session = await store.session()
            for operations in transactions:
                try:
                    await session.multi(operations)
                except CoordinationError:
                    continue
            assert not _structural_faults(store._stored.tree)
            persistent = {p: z for p, z in store._stored.tree._znodes.items() if not z.ephemeral_owner}
            expected = {p: (z.data, z.version) for p, z in persistent.items()}
            path = copy_as_after_a_crash(path, directory / str(life))
            await store.close()

    asyncio.run(run())


def _structural_faults(tree: DataTree) -> list[str]:
    znodes = tree._znodes
    faults = [path for path in znodes if path != "/" and (path.rpartition("/")[0] or "/") not in znodes]
    indexed = {f"{parent.rstrip('/')}/{name}" for parent, names in tree._children.items() for name in names}
    faults += sorted(indexed ^ (set(znodes) - {"/"}))
    faults += [path for path, znode in znodes.items() if znode.pzxid < znode.czxid]
    return faults


async def test_abandoned_work_is_done_in_order() -> None:
    worker = OwnerThread("worker")
    done: list[int] = []
    given_up = [worker.submit(lambda number=number: done.append(number)) for number in range(100)]  # type: ignore[misc]
    for future in given_up:
        future.cancel()
    assert await worker.submit(lambda: len(done)) == 100
    assert done == list(range(100))
    worker.stop()
    worker.stop()
