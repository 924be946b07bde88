"""One hosted partition over a real log: the decisions of its state are executed, and waiters are notified."""

import asyncio

import pytest

from barnabas.broker.replication.isr import RoleChange
from barnabas.broker.replication.partition import Partition
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ApiError, ErrorCode
from tests.broker.replication.conftest import OTHER_ID, Storage, append, no_room, tell, told
from tests.storage.blocking import flush


class Listener:
    """Counts how often it was notified."""

    def __init__(self, partition: Partition) -> None:
        self.calls = 0
        partition.add_listener(self)

    def __call__(self, partition: Partition) -> None:
        self.calls += 1


async def test_a_leader_alone_commits_what_it_appends(storage: Storage) -> None:
    partition = storage.partition()
    assert tell(partition, told(leader_epoch=3)) is RoleChange.ELECTED
    listener = Listener(partition)
    info = append(partition, b"a", b"b")
    assert partition.log.high_watermark == 0
    partition.advance()
    assert partition.log.high_watermark == 2
    assert listener.calls == 1
    assert partition.committed(info.last_offset + 1) is None
    assert partition.log.leader_epochs.epoch_for(0) == 3


async def test_an_election_commits_the_records_before_it(storage: Storage) -> None:
    partition = storage.partition()
    append(partition, b"of an earlier life")
    tell(partition, told())
    assert partition.log.high_watermark == 1
    assert partition.state.leader_epoch_start_offset == 1


@pytest.mark.parametrize("stopped", [True, False])
async def test_waiters_learn_of_a_lost_leadership(storage: Storage, *, stopped: bool) -> None:
    partition = storage.partition(flush_before_ack=True)
    tell(partition, told())
    append(partition, b"a")
    waiting = [partition.committed(1), partition.committed(1, outlasts_setbacks=True)]
    listener = Listener(partition)
    if stopped:
        assert partition.stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) is RoleChange.RESIGNED
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        another = told(leader=OTHER_ID, leader_epoch=1, isr=[OTHER_ID])
        assert tell(partition, another) is RoleChange.RESIGNED
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    for future in waiting:
        assert future is not None
        error = future.exception()
        assert isinstance(error, ApiError)
        assert error.error is expected
    assert listener.calls == 1


async def test_with_flush_before_ack_only_what_is_flushed_is_committed(storage: Storage) -> None:
    partition = storage.partition(flush_before_ack=True)
    tell(partition, told())
    append(partition, b"a")
    partition.advance()
    committed = partition.committed(1)
    assert committed is not None
    assert not committed.done()
    flush(partition.log)
    partition.advance()
    assert committed.done()
    assert partition.log.high_watermark == 1


async def test_a_failed_flush_fails_producers_only(storage: Storage) -> None:
    """A failed log fails every waiter."""
    partition = storage.partition(flush_before_ack=True)
    tell(partition, told())
    append(partition, b"a")
    producer = partition.committed(1)
    coordinator = partition.committed(1, outlasts_setbacks=True)
    assert producer is not None
    assert coordinator is not None
    error = StorageError("no descriptor to be had", passes=True)
    partition.flush_failed(error)
    assert producer.exception() is error
    assert not coordinator.done()
    storage.files.sync_error = OSError(5, "broken disk")
    with pytest.raises(StorageError) as failed:
        flush(partition.log)
    partition.flush_failed(failed.value)
    assert coordinator.exception() is failed.value
    storage.files.sync_error = None


async def test_an_election_that_the_disk_refuses_changes_nothing(storage: Storage) -> None:
    append(storage.partition(), b"a")
    storage.restart()
    partition = storage.partition()
    tell(partition, told(leader=OTHER_ID, leader_epoch=1, isr=[OTHER_ID]))
    storage.files.open_error = no_room()
    with pytest.raises(StorageError):
        tell(partition, told(leader_epoch=2))
    storage.files.open_error = None
    assert (partition.state.leader, partition.state.leader_epoch) == (OTHER_ID, 1)


async def test_a_listener_that_went_is_not_called(storage: Storage) -> None:
    partition = storage.partition()
    listener = Listener(partition)
    assert partition.is_waited_for
    partition.remove_listener(listener)
    partition.notify()
    assert not partition.is_waited_for
    assert listener.calls == 0


async def test_a_commit_is_reported_once(storage: Storage) -> None:
    partition = storage.partition(flush_before_ack=True)
    tell(partition, told())
    append(partition, b"a")
    committed = partition.committed(1)
    assert committed is not None
    committed.cancel()
    flush(partition.log)
    partition.advance()
    partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await asyncio.sleep(0)
    assert committed.cancelled()
