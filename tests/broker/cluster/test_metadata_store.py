"""A broker whose session with its metadata store is lost."""

import asyncio
import shutil
import struct
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from barnabas.broker.cluster.former_session import SESSION_FILE, SessionNote
from barnabas.broker.cluster.metadata_store import REJOIN_DELAY_MS, MetadataStore
from barnabas.broker.configuration.config import load
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore
from barnabas.controller.coordination.interface import SessionCredentials, StoreUnavailable
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.topics import NewTopic
from barnabas.storage.files import DirectoryEntry
from barnabas.storage.os_files import OsFiles
from barnabas.threads import OneThread, OsThreads, Threads
from barnabas.wire.errors import ErrorCode
from tests.broker.running import ENVIRONMENT, running
from tests.controller.coordination.proxy import Proxy
from tests.controller.coordination.test_zookeeper_server import ServerUnderTest
from tests.support.manual_timers import ManualTimers
from tools.foreign.zookeeper import ZooKeeperServer
from tools.waiting import PATIENCE_S, until

T = TypeVar("T")

CLOSE_SESSION: Final = -11
"""ZooKeeper's type of the request that ends a session."""


async def no_file() -> Path:
    raise AssertionError("there is no file of one's own")


def file_in(directory: Path) -> Callable[[], Awaitable[Path]]:
    async def find() -> Path:
        return directory / "metadata.sqlite"

    return find


def test_a_lost_file_ends_the_broker(tmp_path: Path) -> None:
    async def lose() -> list[str]:
        reasons: list[str] = []
        config = load(options={"log.dirs": str(tmp_path)})
        store = MetadataStore(
            config,
            ManualClock(),
            ManualTimers(),
            file_in(tmp_path),
            ENVIRONMENT.store_worker,
            reasons.append,
        )
        session = await store.open()
        assert (tmp_path / "metadata.sqlite").exists()
        assert store._embedded is not None
        await store._embedded.expire(session)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await store.close()
        return reasons

    assert asyncio.run(lose()) == ["the metadata store failed"]


def test_a_clean_stop_is_no_failure(tmp_path: Path) -> None:
    async def stop() -> list[str]:
        reasons: list[str] = []
        store = MetadataStore(
            load(options={"log.dirs": str(tmp_path)}),
            ManualClock(),
            ManualTimers(),
            file_in(tmp_path),
            ENVIRONMENT.store_worker,
            reasons.append,
        )
        await store.open()
        await store.close()
        await store.close()
        return reasons

    assert asyncio.run(stop()) == []


def test_a_store_that_is_handed_in_is_shared_and_stays_open(tmp_path: Path) -> None:
    async def share() -> None:
        config = load(options={"log.dirs": str(tmp_path)})
        embedded = EmbeddedStore(":memory:", ManualClock())
        await embedded.open()
        stores = [
            MetadataStore(
                config,
                ManualClock(),
                ManualTimers(),
                no_file,
                ENVIRONMENT.store_worker,
                lambda reason: None,
                shared=embedded,
            )
            for _ in range(2)
        ]
        first, second = [await store.open() for store in stores]
        await first.create("/from-the-first", ephemeral=True)
        assert await second.exists("/from-the-first") is not None
        await stores[0].close()
        assert await second.get_children("/") == [], "its session ended, and nothing else"
        await stores[1].close()
        await (await embedded.session()).create("/still-open")
        await embedded.close()

    asyncio.run(share())
    assert list(tmp_path.iterdir()) == []


class KeptSessions(EmbeddedStore):
    """Tells which sessions brokers have."""

    def __init__(self) -> None:
        super().__init__(":memory:", ManualClock())
        self.sessions: list[EmbeddedSession] = []

    async def session(self) -> EmbeddedSession:
        self.sessions.append(await super().session())
        return self.sessions[-1]


async def registered_after(session: EmbeddedSession, epoch: int) -> int:
    """The epoch of broker 1's next registration."""
    while True:
        news = asyncio.Event()
        stat = await session.exists(znodes.broker_path(1), lambda _, news=news: news.set())  # type: ignore[misc]
        if stat is not None and stat.czxid > epoch:
            return stat.czxid
        await news.wait()


def test_an_expired_session_with_a_shared_store_is_opened_again(tmp_path: Path) -> None:
    """As with ZooKeeper: the broker registers again, in a later epoch, and does not end."""

    async def expire() -> None:
        store = KeptSessions()
        await store.open()
        observer = await EmbeddedStore.session(store)
        async with running(tmp_path, replace(ENVIRONMENT, metadata_store=store), node_id="1"):
            epoch = await registered_after(observer, -1)
            await store.expire(store.sessions[-1])
            assert await registered_after(observer, epoch) > epoch
            assert len(store.sessions) == 2
        await store.close()

    asyncio.run(expire())


def test_a_broker_whose_id_was_taken_says_so_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It stood still for longer than its session, say, and an operator gave its id to another broker: whose mistake
    that is, no stack tells."""

    failures: list[str] = []

    async def take() -> None:
        store = KeptSessions()
        await store.open()
        other = await EmbeddedStore.session(store)
        options = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1"}
        broker = Broker(load(options=options), replace(ENVIRONMENT, metadata_store=store), failures.append)
        await broker.start()
        await asyncio.gather(
            store.expire(store.sessions[-1]), other.create(znodes.broker_path(1), b"{}", ephemeral=True)
        )
        await until(lambda: failures != [])
        await broker.stop()
        await store.close()

    asyncio.run(take())
    (failure,) = failures
    assert failure.startswith("it cannot join its cluster again: a broker with id 1 is registered already")
    assert not [record for record in caplog.records if record.exc_info]


def test_no_zookeeper_is_an_error_with_its_address(tmp_path: Path) -> None:
    options = {
        "log.dirs": str(tmp_path),
        "zookeeper.connect": "127.0.0.1:1/kafka",
        "zookeeper.connection.timeout.ms": "50",
    }

    async def start() -> None:
        store = MetadataStore(
            load(options=options), ManualClock(), ManualTimers(), no_file, ENVIRONMENT.store_worker, lambda reason: None
        )
        try:
            await store.open()
        finally:
            await store.close()

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/kafka within 50 ms"):
        asyncio.run(start())


@pytest.mark.java
def test_a_short_session_timeout_leaves_time_to_connect(tmp_path: Path) -> None:
    with ZooKeeperServer(tick_ms=2000) as zookeeper:
        options = {
            "log.dirs": str(tmp_path),
            "zookeeper.connect": zookeeper.address,
            "zookeeper.session.timeout.ms": "1",
        }

        async def start() -> None:
            store = MetadataStore(
                load(options=options),
                ManualClock(),
                ManualTimers(),
                no_file,
                ENVIRONMENT.store_worker,
                lambda reason: None,
            )
            try:
                await store.open()
            finally:
                await store.close()

        asyncio.run(start())


def test_failed_attempts_to_register_again_have_pauses(tmp_path: Path) -> None:
    """The session before cannot be had again, and each new one is refused by ZooKeeper, whose answer comes at once."""
    reasons: list[str] = []
    attempts = 0

    class Session:
        async def close(self) -> None:
            pass

    class Refused(MetadataStore):
        async def _open_zookeeper(self, connect_string: str, timeout_ms: int | None) -> Any:
            nonlocal attempts
            attempts += 1
            raise StoreUnavailable(connect_string, "as asked")

    async def lose() -> None:
        config = load(options={"log.dirs": str(tmp_path), "zookeeper.connect": "127.0.0.1:1"})
        timers = ManualTimers()
        store = Refused(config, ManualClock(), timers, no_file, ENVIRONMENT.store_worker, reasons.append)
        store._session = Session()  # type: ignore[assignment]
        rejoining = asyncio.create_task(store._rejoin())
        for attempt in range(1, 6):
            await timers.has(REJOIN_DELAY_MS)
            assert attempts == attempt, "no pause"
            timers.fire()
        rejoining.cancel()
        await asyncio.gather(rejoining, return_exceptions=True)
        assert reasons == []

    asyncio.run(lose())


class Logs:
    """A broker's log directories, as far as the note of its session needs them."""

    def __init__(self, *directories: Path) -> None:
        self.files = OsFiles()
        self.threads: Threads = OsThreads()
        self.directories = list(directories)


def life_with(note: SessionNote, address: str) -> MetadataStore:
    """The store of a broker as one life has it, over ZooKeeper at this address."""
    config = load(options={"zookeeper.connect": address})
    return MetadataStore(
        config, ManualClock(), ManualTimers(), no_file, ENVIRONMENT.store_worker, lambda reason: None, note=note
    )


@pytest.mark.java
def test_a_killed_former_life_loses_its_registration_at_once(tmp_path: Path) -> None:
    """Its session would go on for seconds; a life that stopped leaves nothing to end."""
    note_file = tmp_path / "barnabas-zookeeper-session"

    boots = ["first-boot"]
    notes: dict[int, SessionNote] = {}

    async def live(zookeeper: ZooKeeperServer) -> None:
        def life(*directories: Path, address: str = zookeeper.address) -> MetadataStore:
            notes[0] = SessionNote(Logs(*directories), boots[0], lambda: False)
            return life_with(notes[0], address)

        async with Proxy(zookeeper.address) as way:
            killed = life(tmp_path, address=way.address)
            session = await killed.open()
            await notes[0].lacks_nothing()
            await session.create("/registration", ephemeral=True)
            await killed.stay_out()
        (tmp_path / "new").mkdir()
        next_one = life(tmp_path / "new", tmp_path)
        found = await next_one.open()
        assert await found.exists("/registration") is None
        assert not notes[0].may_lack_records, "what that life wrote is in the page cache at least"
        await next_one.close()
        assert not note_file.exists()
        assert list((tmp_path / "new").iterdir()) == []
        await killed.close()

        note_file.write_bytes(b"nonsense")
        third = life(tmp_path)
        await third.open()
        assert note_file.read_bytes() != b"nonsense"
        await asyncio.to_thread(zookeeper.stop)
        await third.close()
        assert note_file.exists(), "nobody heard of the end of that session"
        assert notes[0].may_lack_records, "nobody knows"
        await notes[0].lacks_nothing()
        await asyncio.to_thread(zookeeper.start)
        boots[0] = "second-boot"
        fourth = life(tmp_path)
        await fourth.open()
        assert notes[0].may_lack_records
        await notes[0].lacks_nothing()
        await fourth.close()
        assert not note_file.exists()

    with ZooKeeperServer() as zookeeper:
        asyncio.run(asyncio.wait_for(live(zookeeper), PATIENCE_S))


class UnansweredEnds(Proxy):
    """The way to a server, which breaks when a session is to be ended, some times before or after the server hears."""

    def __init__(self, upstream: str, breaks: Iterable[str]) -> None:
        super().__init__(upstream)
        self.breaks = list(breaks)

    async def forward(
        self, reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        is_first = True  # which is the handshake, and has no type
        while True:
            head = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(head, "big"))
            is_end = not is_first and struct.unpack_from(">i", frame, 4) == (CLOSE_SESSION,)
            how = self.breaks.pop(0) if is_end and self.breaks else ""
            if how != "before":
                up_writer.write(head + frame)
            if how:
                writer.transport.abort()
                return
            is_first = False


@pytest.mark.anyio
@pytest.mark.parametrize("breaks", [["before"], ["after"], ["before", "after"]])
async def test_a_former_session_is_ended_despite_a_broken_connection(tmp_path: Path, breaks: list[str]) -> None:
    """Nobody knows then whether it was ended."""
    async with ServerUnderTest() as server:
        address = f"127.0.0.1:{server.port}"
        note = SessionNote(Logs(tmp_path), "boot", lambda: True)
        async with Proxy(address) as way:
            killed = life_with(note, way.address)
            await (await killed.open()).create("/registration", ephemeral=True)
            await killed.stay_out()
        async with UnansweredEnds(address, breaks) as way:
            next_one = life_with(note, way.address)
            found = await next_one.open()
            assert await found.exists("/registration") is None
            assert way.breaks == []
            await next_one.close()
        assert not (tmp_path / SESSION_FILE).exists()
        await killed.close()


@pytest.mark.anyio
async def test_whose_end_was_not_answered_leaves_its_note(tmp_path: Path) -> None:
    """The session may go on, and the next life has to end it."""
    async with ServerUnderTest() as server, UnansweredEnds(f"127.0.0.1:{server.port}", ["before"]) as way:
        note = SessionNote(Logs(tmp_path), "boot", lambda: True)
        life = life_with(note, way.address)
        await life.open()
        await life.close()
        assert (tmp_path / SESSION_FILE).exists()
        next_one = life_with(note, way.address)
        await next_one.open()
        await next_one.close()
        assert not (tmp_path / SESSION_FILE).exists()


class HeldFiles(OsFiles):
    """A thread that lists a log's directory waits until the test lets it continue."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def list(self, path: str) -> list[DirectoryEntry]:
        assert not path.endswith("/t-0") or self.go_on.wait(PATIENCE_S), "nobody said go on"
        return super().list(path)


@pytest.mark.java
def test_a_brokers_death_is_known_before_its_logs_are_loaded(
    tmp_path: Path,
) -> None:
    """Loading takes long where there are many, and others can lead meanwhile what the former life led."""

    async def live(zookeeper: ZooKeeperServer) -> None:
        configs = {"node_id": "1", "zookeeper_connect": zookeeper.address}
        async with running(tmp_path, **configs) as broker:
            created = await broker.controller.create_topics(
                [NewTopic("t", 1, 1)], validate_only=False, timeout_ms=9_000
            )
            assert [outcome.error for outcome in created] == [ErrorCode.NONE]
        assert not (tmp_path / SESSION_FILE).exists(), "it has ended its session itself"
        async with Proxy(zookeeper.address) as way:
            killed = await ZooKeeperSession.open(way.address)
            await killed.create("/registration", ephemeral=True)
            assert killed.credentials is not None
            await SessionNote(Logs(tmp_path), ENVIRONMENT.boot_id(), lambda: False).write(killed.credentials)
        other = await ZooKeeperSession.open(zookeeper.address)
        gone = asyncio.Event()
        assert await other.exists("/registration", lambda event: gone.set()) is not None

        files = HeldFiles()

        async def let_load() -> None:
            await gone.wait()
            files.go_on.set()

        letting = asyncio.create_task(let_load())
        async with running(tmp_path, replace(ENVIRONMENT, files=files), **configs) as broker:
            assert broker.replicas.partition("t", 0) is not None
        await letting
        await other.close()
        await killed.close()

    with ZooKeeperServer() as zookeeper:
        asyncio.run(asyncio.wait_for(live(zookeeper), PATIENCE_S))


CREDENTIALS = SessionCredentials(77, b"secret")


@pytest.mark.anyio
async def test_a_copy_of_a_log_directory_ends_nobodys_session(tmp_path: Path) -> None:
    """The broker may live that it was copied from."""
    (tmp_path / "original").mkdir()
    note = SessionNote(Logs(tmp_path / "original"), "boot", lambda: False)
    await note.write(CREDENTIALS)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    assert await SessionNote(Logs(tmp_path / "copy"), "boot", lambda: False).read() is None
    assert await SessionNote(Logs(tmp_path / "original"), "another", lambda: False).read() is None
    (tmp_path / "original").rename(tmp_path / "renamed")
    assert await SessionNote(Logs(tmp_path / "renamed"), "boot", lambda: False).read() == CREDENTIALS


class HastyThreads(OneThread):
    """Of what is to be done in threads, the last is done first."""

    def __init__(self) -> None:
        self.jobs = list[Callable[[], None]]()

    def call(self, job: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.jobs.append(lambda: done.set_result(job(*arguments)))
        return done


@pytest.mark.anyio
async def test_the_next_life_finds_the_last_session_note(tmp_path: Path) -> None:
    """A session may expire while a note is written."""
    logs = Logs(tmp_path)
    logs.threads = threads = HastyThreads()
    note = SessionNote(logs, "boot", lambda: False)
    later = CREDENTIALS._replace(session_id=8)
    writes = [asyncio.ensure_future(note.write(credentials)) for credentials in (CREDENTIALS, later)]
    while not all(write.done() for write in writes):
        await asyncio.sleep(0)
        if threads.jobs:
            threads.jobs.pop()()
    assert await SessionNote(Logs(tmp_path), "boot", lambda: False).read() == later


def test_only_the_owner_may_read_a_sessions_password(tmp_path: Path) -> None:
    asyncio.run(SessionNote(Logs(tmp_path), "boot", lambda: False).write(CREDENTIALS))
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


@pytest.mark.anyio
async def test_without_a_boot_id_each_life_may_follow_a_boot(tmp_path: Path) -> None:
    await SessionNote(Logs(tmp_path), "", lambda: False).write(CREDENTIALS)
    note = SessionNote(Logs(tmp_path), "", lambda: False)
    assert await note.read() == CREDENTIALS, "its session is ended all the same"
    assert note.may_lack_records


@pytest.mark.anyio
@pytest.mark.parametrize("is_stopped_cleanly", [False, True])
async def test_a_machines_loss_is_known_until_the_controller_knows_it(tmp_path: Path, is_stopped_cleanly: bool) -> None:
    """Else a broker that is killed, or stopped, before the controller has taken it out of ISRs might lead."""

    async def life(boot_id: str, *, is_on_disk: bool) -> SessionNote:
        note = SessionNote(Logs(tmp_path), boot_id, lambda: is_on_disk)
        await note.read()
        await note.write(CREDENTIALS)
        return note

    first = await life("first", is_on_disk=True)
    assert not first.may_lack_records, "it was stopped cleanly before, or syncs what it acknowledges"
    second = await life("second", is_on_disk=False)
    assert second.may_lack_records
    if is_stopped_cleanly:
        await second.delete()
    third = await life("second", is_on_disk=is_stopped_cleanly)
    assert third.may_lack_records, "nobody was told"
    await third.lacks_nothing()
    fourth = await life("second", is_on_disk=is_stopped_cleanly)
    assert not fourth.may_lack_records
    await fourth.delete()
    assert await SessionNote(Logs(tmp_path), "second", lambda: True).read() is None
    assert (await life("second", is_on_disk=False)).may_lack_records, "the directory may be an empty one now"
