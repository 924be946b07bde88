"""A follower whose leader is a real broker: its fetches over real sockets, and the contents of its logs."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.replication.fetcher import Fetcher, Stage
from barnabas.broker.replication.fetcher_lane import BYTES_PER_TURN, parts_of
from barnabas.broker.replication.follower_truncations import FollowerTruncations
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.throttles import LONGEST_WAIT_MS, Throttle
from barnabas.clock import ManualClock
from barnabas.storage.checkpoints import RECOVERY_POINT_FILE
from barnabas.storage.errors import LogBusy, LogDeleted, StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.wire.records import Record, build_batch
from tests.broker.replication.leader_and_follower import (
    FOLLOWER,
    TOPIC_ID,
    HeldThreads,
    NoThread,
    assert_equal,
    content,
    pair,
    turn_bit,
)
from tests.storage.blocking import flush
from tests.support.bugs import REASON, Bug
from tests.support.files import RefusingFiles


async def test_a_follower_has_its_leaders_bytes(tmp_path: Path) -> None:
    """From before and after it began to follow, over segments. Its leader commits what it has."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead(count=3)
        for index in range(3):
            leader.append(150, index, records=3)
        logs = [follower.follow(index) for index in range(3)]
        for index, log in enumerate(logs):
            committed = leader.partition(index).committed(450)
            if committed is not None:
                await committed
            leader.append(2, index)
            await follower.until(lambda log=log: log.high_watermark == 452)  # type: ignore[misc]
            assert len(log.segments) > 1
            assert_equal(leader.partition(index), log)
        assert follower.manager.appended_bytes == sum(log.size_in_bytes for log in logs)


async def test_many_records_are_appended_in_turns(tmp_path: Path) -> None:
    """Other tasks run between the parts. If the partition is no longer followed then, no other part is appended."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        leader.append(2_000, size=300)
        log = follower.follow()
        seen = set[int]()
        while log.log_end_offset < 2_000:
            seen.add(log.log_end_offset)
            await asyncio.sleep(0)
        assert len(seen) > 2, "it was seen in between"
        await follower.until(lambda: log.high_watermark == 2_000)
        assert_equal(leader.partition(), log)
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        leader.append(2_000, size=300)
        follower.follow()
        while log.log_end_offset == 2_000:  # noqa: ASYNC110 - looked at in each turn
            await asyncio.sleep(0)
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        end_offset = log.log_end_offset
        assert 2_000 < end_offset < 4_000
        for _ in range(50):
            await asyncio.sleep(0)
        assert log.log_end_offset == end_offset
        assert content(log, end_offset) == content(leader.partition().log, end_offset)


def test_parts_are_whole_batches_and_the_last_has_what_is_left() -> None:
    value = b"v" * (BYTES_PER_TURN * 2 // 5)
    batches = [
        bytes(build_batch([Record(offset, 1, None, value)], base_offset=offset, partition_leader_epoch=epoch))
        for offset, epoch in enumerate((5, 5, 5, 5, 6, 6, 6, 6))
    ]
    size, records = len(batches[0]), b"".join(batches)
    two = 2 * size
    assert [bytes(part) for part in parts_of(records, 6)] == [records[at : at + two] for at in range(0, 8 * size, two)]
    assert [bytes(part) for part in parts_of(records, 5)] == [records[:two], records[two:]]
    assert [bytes(part) for part in parts_of(records, 4)] == [records]
    assert [bytes(part) for part in parts_of(records[:-1], 6)][-1] == records[3 * two : -1]
    torn = records[: 3 * size] + bytes(100) + records[3 * size :]
    assert [bytes(part) for part in parts_of(torn, 6)] == [torn[:two], torn[two:]]


async def test_caught_up_partitions_are_fetched_beside_lagging_ones(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead(count=2)
        follower.follow(0)
        steady = follower.manager._leaders[leader.broker.node_id]._steady
        await follower.until(lambda: len(steady.fetcher) == 1)
        leader.append(1)
        await follower.until(lambda: follower.log().high_watermark == 1)
        follower.follow(1)
        await follower.until(lambda: len(steady.fetcher) == 2)
        assert {purpose for _, purpose in follower.connections} == {"fetcher-0", "fetcher-1"}


async def test_throttled_partitions_are_fetched_when_bytes_may_pass(tmp_path: Path) -> None:
    """Not at first, when the lag of the replica is unknown, nor at each check of the throttle."""
    clock = ManualClock()
    throttle = Throttle(FOLLOWER, 0, lambda _topic: f"0:{FOLLOWER}", clock)
    async with pair(tmp_path, throttle=throttle, network_clock=clock) as (leader, follower):
        await leader.lead(count=2)
        for index in range(2):
            leader.append(1, index)
        other = follower.follow(1)  # whose fetches tell when to look
        await follower.until(lambda: other.log_end_offset == 1)
        log = follower.follow(0, is_in_sync=False)
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None

        def is_held_up() -> bool:
            return following.delayed_until_ms == clock.monotonic_ms() + LONGEST_WAIT_MS

        for _ in range(3):
            await follower.until(lambda: is_held_up() or log.log_end_offset > 0)
            assert log.log_end_offset == 0
            clock.advance(LONGEST_WAIT_MS)
            follower.timers.fire_due()
        throttle.limit(1)
        clock.advance(LONGEST_WAIT_MS)
        follower.timers.fire_due()
        await follower.until(lambda: log.log_end_offset == 1)


async def test_the_most_delayed_partition_waits_no_longer_than_others(tmp_path: Path) -> None:
    """Otherwise a partition that is checked just when bytes may pass would take all turns until the others' delays
    end."""
    clock = ManualClock()
    throttle = Throttle(FOLLOWER, 0, lambda _topic: f"0:{FOLLOWER},2:{FOLLOWER}", clock)
    async with pair(tmp_path, throttle=throttle, network_clock=clock) as (leader, follower):
        await leader.lead(count=3)
        for index in range(3):
            leader.append(1, index)
        other = follower.follow(1)  # whose fetches tell when to look
        await follower.until(lambda: other.log_end_offset == 1)
        logs = []
        for index in (0, 2):
            logs.append(follower.follow(index, is_in_sync=False))
            following = follower.manager.following(TOPIC_ID, index)
            assert following is not None
            await follower.until(lambda held=following: held.delayed_until_ms > clock.monotonic_ms())
            clock.advance(LONGEST_WAIT_MS // 2)
        throttle.limit(1_000_000)
        clock.advance(1)
        assert following.delayed_until_ms > clock.monotonic_ms()
        follower.timers.fire_due()
        await follower.until(lambda: [log.log_end_offset for log in logs] == [1, 1])


async def test_a_log_that_parted_is_cut_and_gets_the_leaders_records(tmp_path: Path) -> None:
    """The follower was a leader before, in an epoch that no other replica knows."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        leader.append(3)
        log = follower.follow()
        await follower.until(lambda: log.log_end_offset == 3)
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        for _ in range(4):
            log.append_as_leader(
                build_batch([Record(0, 1_700_000_000_000, None, b"lost")]), leader_epoch=6, now_ms=1_700_000_000_000
            )
        await leader.lead(epoch=7)
        leader.append(2)
        follower.follow(epoch=7)
        await follower.until(lambda: log.high_watermark == 5)
        assert_equal(leader.partition(), log)
        assert log.leader_epochs.entries == [(5, 0), (7, 3)]


async def test_a_truncation_that_was_never_begun_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug between the decision and the truncation. Otherwise the partition would wait for the truncation for ever."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        log = follower.log()
        log.append_as_leader(build_batch([Record(0, 0, None, b"lost")]), leader_epoch=6, now_ms=0)
        await leader.lead(epoch=7)
        leader.append(2)
        bug = Bug(monkeypatch, FollowerTruncations, "begin")
        follower.follow(epoch=7)
        await follower.until(lambda: bug.tries > 1)
        bug.is_there = False
        await follower.until(lambda: log.high_watermark == 2)
        assert_equal(leader.partition(), log)


async def test_without_a_thread_a_log_is_cut_all_the_same(tmp_path: Path) -> None:
    async with pair(tmp_path, threads=NoThread()) as (leader, follower):
        await leader.lead()
        leader.append(2)
        log = follower.log()
        log.append_as_leader(build_batch([Record(0, 1, None, b"lost")]), leader_epoch=4, now_ms=1)
        follower.follow()
        await follower.until(lambda: log.high_watermark == 2)
        assert_equal(leader.partition(), log)


async def test_a_log_is_truncated_once_the_disk_has_room(tmp_path: Path) -> None:
    """The log was not truncated: it is not offline, and the follower fetches again."""
    files = RefusingFiles()
    async with pair(tmp_path, files=files) as (leader, follower):
        await leader.lead()
        leader.append(2)
        log = follower.log()
        log.append_as_leader(build_batch([Record(0, 1, None, b"lost")]), leader_epoch=4, now_ms=1)
        files.watch(lambda call: call.name == "open" and RECOVERY_POINT_FILE in call.path, refuse=0, error=errno.ENOSPC)
        follower.follow()
        await follower.until(lambda: log.high_watermark == 2)
        assert files.refused_call is not None
        assert_equal(leader.partition(), log)


async def test_a_leaders_log_that_begins_inside_a_batch(tmp_path: Path) -> None:
    """After DeleteRecords. The follower appends the whole batch, and does not serve its deleted records."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        partition = leader.partition()
        leader.append(2, records=5)
        former = follower.follow()
        await follower.until(lambda: former.high_watermark == 10)
        leader.broker.replicas.delete_records(partition, 7)
        await follower.until(lambda: former.log_start_offset == 7)
        assert_equal(partition, former)
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        follower.logs.delete("t", 0)
        log = follower.follow()
        await follower.until(lambda: log.high_watermark == 10 and log.log_start_offset == 7)
        assert log.segments[0].base_offset == 5
        assert_equal(partition, log)


async def test_a_follower_below_the_leaders_log_start_begins_anew(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        leader.append(3)
        log = follower.follow()
        await follower.until(lambda: log.high_watermark == 3)
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        partition = leader.partition()
        leader.append(4)
        partition.log.update_high_watermark(7)
        partition.log.increment_log_start_offset(5)
        follower.follow()
        await follower.until(lambda: log.high_watermark == 7)
        assert log.log_start_offset == 5
        assert_equal(partition, log)


async def test_a_connection_that_breaks_is_made_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        log = follower.follow()
        await follower.until(lambda: bool(follower.connections))
        leader.append(1)
        await follower.until(lambda: log.log_end_offset == 1)
        for found in follower.connections.values():
            found.is_cut = True
        for connection in list(leader.broker.connections):
            connection.close("the test cuts it")
        leader.append(1)
        for found in follower.connections.values():
            found.is_cut = False
        await follower.until(lambda: log.high_watermark == 2)
        assert_equal(leader.partition(), log)


async def test_a_mistake_of_ours_does_not_end_the_fetching(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        log = follower.follow()
        await follower.until(lambda: len(follower.connections) == 2)
        for found in follower.connections.values():
            found.is_broken = True
        leader.append(1)
        await follower.until(lambda: log.high_watermark == 1)
        assert "ZeroDivisionError" in caplog.text


async def test_unflushed_records_of_a_follower_do_not_count(tmp_path: Path) -> None:
    """With barnabas.flush.before.ack the leader counts a follower up to its fetch offset."""
    may_flush = asyncio.Event()
    flushed = []

    async def flush_later(log: PartitionLog) -> None:
        await may_flush.wait()
        flush(log)
        flushed.append(log.recovery_point)

    async with pair(tmp_path, flush=flush_later) as (leader, follower):
        await leader.lead()
        leader.append(3)
        log = follower.follow()
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None
        await follower.until(lambda: log.log_end_offset == 3 and following.stage is Stage.BUSY)
        assert leader.partition().log.high_watermark == 0
        committed = leader.partition().committed(3)
        assert committed is not None
        may_flush.set()
        await committed
        assert flushed == [3]


async def test_a_fenced_partition_waits_for_the_controllers_state(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead(epoch=6)
        leader.append(1)
        log = follower.follow(epoch=5)
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None
        await follower.until(lambda: following.stage is Stage.WAITING)
        follower.follow(epoch=6)
        await follower.until(lambda: log.log_end_offset == 1)


async def test_a_follower_that_fetches_too_early_asks_again(tmp_path: Path) -> None:
    """The leader does not know yet that it leads."""
    async with pair(tmp_path) as (leader, follower):
        log = follower.follow()
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None
        await follower.until(lambda: following.stage is Stage.DELAYED)
        await leader.lead()
        leader.append(1)
        await follower.until(lambda: log.log_end_offset == 1)


async def test_a_partition_is_not_followed_any_more(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead(count=2)
        first, second = follower.follow(0), follower.follow(1)
        leader.append(1, 0)
        await follower.until(lambda: first.log_end_offset == 1)
        await follower.manager.unfollow([(TOPIC_ID, 0), (TOPIC_ID, 9)])
        leader.append(1, 0)
        leader.append(1, 1)
        await follower.until(lambda: second.log_end_offset == 1)
        assert first.log_end_offset == 1
        assert follower.manager.following(TOPIC_ID, 0) is None
        await follower.manager.unfollow([(TOPIC_ID, 1)])
        assert not follower.manager._leaders


async def test_consumers_keep_reading_a_follower_under_another_leader(tmp_path: Path) -> None:
    """A waiting consumer learns of the high watermark of the new leader, too."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        log = follower.follow()
        partition = Partition("t", 0, TOPIC_ID, log, FOLLOWER)
        heard: list[Partition] = []
        partition.add_listener(heard.append)
        follower.manager.reads.add(partition)
        follower.manager.follow("t", TOPIC_ID, 0, 99, 5, log)  # the same broker, as far as the connection goes
        leader.append(1)
        await follower.until(lambda: log.log_end_offset == 1)
        assert heard
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        assert not follower.manager.reads.partitions


async def test_unfollowing_waits_for_a_truncation(tmp_path: Path) -> None:
    """A decision of the follower must not truncate the log of a leader. In a new epoch the follower fetches as soon as
    the truncation ends."""
    threads = HeldThreads()
    async with pair(tmp_path, threads=threads) as (leader, follower):
        await leader.lead(count=2)
        for index in range(2):
            for _ in range(3):
                follower.log(index).append_as_leader(
                    build_batch([Record(0, 1, None, b"lost")]), leader_epoch=4, now_ms=1
                )
            follower.follow(index)
        await threads.begun.wait()
        first, second = follower.log(0), follower.log(1)
        assert isinstance(first.failure, LogBusy)
        unfollowing = asyncio.create_task(follower.manager.unfollow([(TOPIC_ID, 0)]))
        await leader.lead(count=2, epoch=6)
        leader.append(2, 1)
        follower.follow(1, epoch=6)
        assert not unfollowing.done()
        threads.may_go_on.set()
        await unfollowing
        assert (first.failure, first.log_end_offset) == (None, 0)
        await follower.until(lambda: second.high_watermark == 2)
        assert_equal(leader.partition(1), second)


async def test_a_failed_truncation_does_not_hold_the_next_fetch(tmp_path: Path) -> None:
    """Also if the replica follows in a newer epoch by then. The next fetch shows whether its log accepts records."""
    threads = HeldThreads()
    async with pair(tmp_path, threads=threads) as (leader, follower):
        await leader.lead()
        follower.log().append_as_leader(build_batch([Record(0, 1, None, b"lost")]), leader_epoch=4, now_ms=1)
        log = follower.follow()
        await threads.begun.wait()
        await leader.lead(epoch=6)
        leader.append(1)
        follower.follow(epoch=6)
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None
        assert following.stage is Stage.BUSY
        log.local.health.fail(StorageError("the disk"))
        threads.may_go_on.set()
        await follower.until(lambda: following.stage is Stage.WAITING)


@pytest.mark.parametrize("damage", [20, -1])
async def test_a_damaged_batch_is_not_taken(tmp_path: Path, damage: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each checksum is compared. The follower fetches the partition repeatedly, logs the error once, and fetches the
    others."""
    async with pair(tmp_path) as (leader, follower):
        await leader.lead(count=2)
        leader.append(1, 0)
        leader.append(1, 1)
        path = leader.partition(0).log.segments[0].file.path
        turn_bit(path, damage)
        first, second = follower.follow(0), follower.follow(1)
        await follower.until(lambda: second.log_end_offset == 1)
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None
        assert first.log_end_offset == 0
        for _ in range(3):
            await follower.until(lambda: following.stage is Stage.FETCHING)
            await follower.until(lambda: following.stage is Stage.DELAYED)
        assert len([line for line in caplog.messages if "t-0" in line and "refused" in line]) == 1
        turn_bit(path, damage)
        await follower.until(lambda: first.log_end_offset == 1)


async def test_a_log_may_be_deleted_while_it_is_flushed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    may_flush, was_refused = asyncio.Event(), asyncio.Event()

    async def flush(log: PartitionLog) -> None:
        await may_flush.wait()
        was_refused.set()
        log.check()

    async with pair(tmp_path, flush=flush) as (leader, follower):
        await leader.lead()
        leader.append(3)
        log = follower.follow()
        following = follower.manager.following(TOPIC_ID, 0)
        assert following is not None
        await follower.until(lambda: following.stage is Stage.BUSY)
        await follower.manager.unfollow([(TOPIC_ID, 0)])
        follower.logs.delete("t", 0)
        may_flush.set()
        await was_refused.wait()
        await asyncio.sleep(0)  # the flush has failed by then
        with pytest.raises(LogDeleted):
            log.check()
    assert not caplog.records


async def test_a_log_may_be_cut_while_it_is_flushed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The leader of a newer epoch has it truncated before the last leader's records are flushed."""
    flushed = 0

    async def flush(log: PartitionLog) -> None:
        nonlocal flushed
        flushed += 1
        if flushed == 1:
            raise LogBusy(f"{log.directory} is being truncated")

    async with pair(tmp_path, flush=flush) as (leader, follower):
        await leader.lead()
        leader.append(3)
        log = follower.follow()
        await follower.until(lambda: flushed == 1)
        leader.append(1)
        await follower.until(lambda: log.log_end_offset == 4)
    assert not caplog.records


async def test_a_mistake_that_is_made_again_and_again_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (leader, follower):
        await leader.lead()
        leader.append(1)
        bug = Bug(monkeypatch, Fetcher, "answered")
        log, aside = follower.follow(), follower.manager.set_aside
        await follower.until(lambda: bug.tries > 4)
        assert aside.members == [f"fetcher 1 of broker {leader.broker.node_id}"]
        assert aside.failures >= 4
        assert caplog.text.count("Traceback") == 1
        bug.is_there = False
        await follower.until(lambda: log.high_watermark == 1)
        await follower.until(lambda: not aside.members)
        assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("what", ["an answer", "a truncation", "an offset"])
async def test_a_partition_that_raises_is_retried(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are fetched."""

    def is_bad(_self: object, subject: Any, *_: object) -> bool:
        return bool(subject.index == 0 if what != "a truncation" else subject[0].log.partition == 0)

    owner, name = {
        "an answer": (Fetcher, "_decide"),
        "a truncation": (LogManager, "truncations"),
        "an offset": (Fetcher, "offsets_told"),
    }[what]
    async with pair(tmp_path) as (leader, follower):
        await leader.lead(count=2)
        for index in range(2):
            leader.append(3, index)
        bug = Bug(monkeypatch, owner, name, is_bad)
        bad, good = follower.log(0), follower.log(1)
        if what == "a truncation":
            bad.append_as_leader(build_batch([Record(0, 1, None, b"lost")]), leader_epoch=4, now_ms=1)
        elif what == "an offset":
            leader.partition().log.update_high_watermark(3)
            leader.partition().log.increment_log_start_offset(2)
        follower.follow(0)
        follower.follow(1)
        await follower.until(lambda: bug.tries > 2)
        await follower.until(lambda: good.high_watermark == 3)
        assert bad.high_watermark == 0
        assert follower.manager.set_aside.failures == 0
        assert [line.levelname for line in caplog.records if REASON in caplog.handler.format(line)] == [
            "WARNING" if what == "an offset" else "ERROR"
        ]
        bug.is_there = False
        await follower.until(lambda: bad.high_watermark == 3)
