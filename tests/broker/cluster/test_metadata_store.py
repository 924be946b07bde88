"""What becomes of a broker whose session with its metadata store is lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.metadata_store import REJOIN_DELAY_MS, MetadataStore
from barnabas.broker.configuration.config import load
from barnabas.clock import ManualClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.interface import StoreUnavailable
from tools.manual_timers import ManualTimers
from tools.zookeeper import ZooKeeperServer


def no_file() -> Path:
    raise AssertionError("there is no file of one's own")


def test_a_lost_file_ends_the_broker(tmp_path: Path) -> None:
    async def lose() -> list[str]:
        reasons: list[str] = []
        config = load(options={"log.dirs": str(tmp_path)})
        store = MetadataStore(
            config,
            ManualClock(),
            ManualTimers(),
            lambda: tmp_path / "metadata.sqlite",
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
            lambda: tmp_path / "metadata.sqlite",
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
            MetadataStore(config, ManualClock(), ManualTimers(), no_file, lambda reason: None, shared=embedded)
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


def test_no_zookeeper_is_an_error_with_its_address(tmp_path: Path) -> None:
    options = {
        "log.dirs": str(tmp_path),
        "zookeeper.connect": "127.0.0.1:1/kafka",
        "zookeeper.connection.timeout.ms": "50",
    }

    async def start() -> None:
        store = MetadataStore(load(options=options), ManualClock(), ManualTimers(), no_file, lambda reason: None)
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
                lambda reason: None,
            )
            try:
                await store.open()
            finally:
                await store.close()

        asyncio.run(start())


@pytest.mark.java
def test_another_broker_that_came_meanwhile_ends_one_that_was_out(tmp_path: Path) -> None:
    """Its controller could not tell the other anything; the reason is the same as at a start."""
    from kazoo.client import KazooClient

    with ZooKeeperServer() as zookeeper:
        config = load(options={"log.dirs": str(tmp_path), "zookeeper.connect": zookeeper.address})

        async def lose() -> str:
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            store = MetadataStore(config, ManualClock(), ManualTimers(), no_file, ended.set_result)
            session: Any = await store.open()
            await asyncio.to_thread(register_another_and_end, session._client.client_id)
            reason = await ended
            await store.close()
            return reason

        def register_another_and_end(client_id: tuple[int, bytes]) -> None:
            other.create("/brokers/ids/2", ephemeral=True, makepath=True)
            heir = KazooClient(zookeeper.address, client_id=client_id)
            heir.start()
            heir.stop()
            heir.close()

        other = KazooClient(zookeeper.address)
        other.start()
        try:
            assert "has other brokers (id 2)" in asyncio.run(asyncio.wait_for(lose(), 60))
        finally:
            other.stop()
            other.close()


def test_attempts_to_join_again_that_fail_at_once_are_pauses_apart(tmp_path: Path) -> None:
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
        store = Refused(config, ManualClock(), timers, no_file, reasons.append)
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
