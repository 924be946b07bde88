"""Flushes that are shared, spread over a directory's logs, repeated and ended, over real logs and without a broker."""

import asyncio

import pytest

from barnabas.broker.replication.flusher import FLUSHES_PER_DIRECTORY
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import LogBusy, LogDeleted, StorageError
from barnabas.storage.truncation import LogTruncation
from tests.broker.replication.conftest import Hosting, Storage, no_room, told


async def lead(hosting: Hosting, storage: Storage, partitions: int = 1) -> None:
    """Lead new partitions, which need no flush."""
    await hosting.lead(*[told(partition_index=index, is_new=True) for index in range(partitions)])
    for index in range(partitions):
        await hosting.replicas.flusher.flush(hosting.partition(index).log)
    storage.files.syncs = 0


async def test_one_flush_serves_all_waiters_before_it(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, storage)
        storage.files.go_on.clear()
        flusher, log = hosting.replicas.flusher, hosting.partition().log
        hosting.append(b"a")
        first = [asyncio.ensure_future(flusher.flush(log)) for _ in range(3)]
        await storage.files.reached(1)
        hosting.append(b"b")
        flushed_up_to = []
        for waiting in first:
            waiting.add_done_callback(lambda _: flushed_up_to.append(log.recovery_point))
        late = asyncio.ensure_future(flusher.flush(log))
        storage.files.go_on.set()
        await asyncio.gather(*first)
        await late
        assert flushed_up_to == [1, 1, 1]
        assert log.recovery_point == 2


async def test_appends_before_an_acknowledgement_share_a_flush(storage: Storage) -> None:
    async with storage.hosting(flush_before_ack=True) as hosting:
        await lead(hosting, storage)
        partition, info = hosting.append(b"alone")
        alone = hosting.replicas.when_acknowledgeable(partition, info, -1)
        assert alone is not None
        await alone
        syncs_of_one, storage.files.syncs = storage.files.syncs, 0
        waiting = []
        for _ in range(20):
            partition, info = hosting.append(b"a")
            waiting.append(hosting.replicas.when_acknowledgeable(partition, info, -1))
        await asyncio.gather(*[each for each in waiting if each is not None])
        assert len(waiting) == 20
        assert storage.files.syncs <= 2 * syncs_of_one
        assert partition.log.high_watermark == 21


async def test_a_directory_has_few_flushes_at_once(storage: Storage) -> None:
    """A stop begins no more."""
    storage.config = LogConfig(flush_ms=1000)
    async with storage.hosting() as hosting:
        await lead(hosting, storage, 2 * FLUSHES_PER_DIRECTORY)
        for index in range(2 * FLUSHES_PER_DIRECTORY):
            hosting.append(b"a", index=index)
        storage.files.go_on.clear()
        storage.clock.advance(1001)
        flusher = hosting.replicas.flusher
        flusher.flush_due()
        flusher.flush_due()
        await storage.files.reached(FLUSHES_PER_DIRECTORY)
        flusher.stop()
        storage.files.go_on.set()
        await asyncio.wait(flusher.under_way())
        flushed = [partition for partition in hosting.replicas.partitions() if partition.log.recovery_point == 1]
        assert len(flushed) == FLUSHES_PER_DIRECTORY


async def test_a_flush_is_retried_after_a_passing_error(storage: Storage) -> None:
    storage.config = LogConfig(flush_ms=1000)
    async with storage.hosting(flush_before_ack=True) as hosting:
        await lead(hosting, storage)
        flusher = hosting.replicas.flusher
        await hosting.lead(told(leader_epoch=1))  # a flush has to write that, too
        storage.files.open_error = no_room()
        partition, info = hosting.append(b"a")
        producer = hosting.replicas.when_acknowledgeable(partition, info, -1)
        coordinator = partition.committed(1, outlasts_setbacks=True)
        assert producer is not None
        assert coordinator is not None
        with pytest.raises(StorageError):
            await producer
        storage.files.open_error = None
        assert not coordinator.done()
        for _ in range(3):
            storage.clock.advance(60_000)
            flusher.flush_due()
            if under_way := flusher.under_way():
                await asyncio.wait(under_way)
        assert coordinator.done()
        assert partition.log.failure is None


async def test_flush_waiters_learn_of_the_end_of_their_log(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, storage)
        log = hosting.partition().log
        hosting.append(b"a")
        storage.files.go_on.clear()
        waiting = asyncio.ensure_future(hosting.replicas.flusher.flush(log))
        await storage.files.reached(1)
        stopping = asyncio.ensure_future(hosting.stop(0, delete=True))
        await asyncio.sleep(0)
        assert storage.manager.get("t", 0) is None
        storage.files.go_on.set()
        with pytest.raises(LogDeleted):
            await waiting
        await stopping


async def test_a_truncation_ends_waits_for_a_flush_without_a_failure(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, storage)
        log = hosting.partition().log
        hosting.append(b"a")
        truncation = LogTruncation.begin(log, 0)
        assert truncation is not None
        with pytest.raises(LogBusy):
            await hosting.replicas.flusher.flush(log)
        assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []
        truncation.run()
        truncation.complete()
        await hosting.replicas.flusher.flush(log)


async def test_a_close_waits_for_what_is_under_way(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, storage)
        hosting.append(b"a")
        storage.files.go_on.clear()
        waiting = asyncio.ensure_future(hosting.replicas.flusher.flush(hosting.partition().log))
        await storage.files.reached(1)
        closing = asyncio.ensure_future(hosting.replicas.flusher.close())
        await asyncio.sleep(0)
        assert not closing.done()
        storage.files.go_on.set()
        await closing
        assert waiting.done()
