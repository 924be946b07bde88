"""The coordinator's shell over a log in memory: loading, committing, losing the log, timers."""

import asyncio
import struct
import tracemalloc
from contextlib import asynccontextmanager

import pytest

from barnabas.broker.coordinators.groups.classic.state import GroupState
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    LeaveGroup,
    Leaver,
    OffsetsReply,
    PartitionCommit,
    SyncGroup,
)
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.runtime import abs_java_hash
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import TopicId
from barnabas.wire.record_batch import parse_header
from barnabas.wire.records import iter_records
from tests.broker.coordinators.memory_log import MemoryLog

PARTITIONS = 4
DAY_MS = 86_400_000


class Bench:
    """A service with its clock and log."""

    def __init__(self, **settings):
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        self.log = MemoryLog()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.ids = iter(range(1, 10_000))
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        settings.setdefault("barnabas_group_newcomer_delay_ms", 0)
        self.settings = GroupSettings(**settings)
        self.groups = self.make()

    def make(self):
        return GroupService(self.log, self.timers, self.clock, self.settings, PARTITIONS, lambda: str(next(self.ids)))

    async def elect(self, *partitions):
        for partition in partitions or range(PARTITIONS):
            self.groups.runtime.on_elected(partition, 0)
        await self.loaded()

    async def loaded(self):
        while work := self.groups.runtime.running():
            await asyncio.wait(work)

    async def restart(self):
        await self.groups.stop()
        self.groups = self.make()
        await self.groups.start()
        await self.elect()

    def pass_time(self, duration_ms):
        self.clock.advance(duration_ms)
        self.timers.fire_due()

    def join(self, group_id="g", member_id="", instance=None, **fields):
        values = {
            "client_id": "c", "client_host": "/h", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer", "protocols": (("range", b""),), "reason": "",
            "fresh_id": "" if member_id else self.groups.new_id(), "member_id_required": True,
            "can_skip_assignment": True,
        }  # fmt: skip
        event = JoinGroup(
            group_id=group_id, token=0, member_id=member_id, group_instance_id=instance, **{**values, **fields}
        )
        return self.groups.answer(event)

    async def join_stable(self, group_id="g", instance="i"):
        joined = await self.join(group_id, instance=instance)
        await self.groups.answer(
            SyncGroup(
                group_id, 0, joined.member_id, instance, joined.generation, None, None, ((joined.member_id, b"work"),)
            )
        )
        return joined.member_id

    def commit(self, group_id="g", offset=1, member_id="", generation=-1, topics=("t",)):
        commits = tuple((topic, bytes(16), (PartitionCommit(0, offset, 0, ""),)) for topic in topics)
        return CommitOffsets(group_id, 0, member_id, None, generation, -1, commits, ErrorCode.ILLEGAL_GENERATION)

    async def fetch(self, group_id="g"):
        fetched = await self.groups.fetch_offsets(group_id, None, require_stable=True)
        return {topic: offsets[0].committed.offset for topic, offsets in fetched.items()}


@asynccontextmanager
async def bench(**settings):
    made = Bench(**settings)
    await made.groups.start()
    try:
        yield made
    finally:
        made.log.gate.set()
        await made.groups.stop()
        made.timers.close()


def run(scenario, **settings):
    async def main():
        async with bench(**settings) as made:
            await scenario(made)

    asyncio.run(main())


async def error_of(awaitable):
    with pytest.raises(ApiError) as caught:
        await awaitable
    return caught.value.error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("g", 103),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", 0),
        ("äöü\U0001f600", 219906445),
    ],
)
def test_partitions_follow_java(text, value):
    # Values of Java's Math.abs(s.hashCode()); "polygenelubricants" hashes to Integer.MIN_VALUE.
    assert abs_java_hash(text) == value


@pytest.mark.parametrize("length", [257, 1_024, 1_025, 5_000])
def test_partitions_of_long_ids_follow_java(length):
    text = "".join(chr(97 + index % 26) for index in range(length)) + "\U0001f600"
    value = 0
    for unit in struct.unpack(f">{length + 2}H", text.encode("utf-16-be")):
        value = (value * 31 + unit) % 2**32
    assert abs_java_hash(text) == abs(value - 2**32 if value >= 2**31 else value)


def test_long_ids_are_not_kept():
    def ask_for(count):
        for number in range(count):
            abs_java_hash(f"\U0001f600{number}" + "x" * 32_000)

    ask_for(1)
    tracemalloc.start()
    try:
        ask_for(10)  # each of them is larger than that
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_requests_find_their_shard_or_learn_where_they_stand():
    async def scenario(bench):
        assert await error_of(bench.join()) is ErrorCode.NOT_COORDINATOR
        bench.log.gate.clear()
        bench.groups.runtime.on_elected(bench.groups.runtime.partition_for("g"), 0)
        assert await error_of(bench.join()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(ApiError) as caught:
            bench.groups.list_groups()
        assert caught.value.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        bench.log.gate.set()
        await bench.loaded()
        assert (await bench.join()).error is ErrorCode.MEMBER_ID_REQUIRED
        await bench.groups.stop()
        assert await error_of(bench.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario)


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_session_timeouts_have_bounds(session_timeout_ms):
    async def scenario(bench):
        await bench.elect()
        answer = bench.join(session_timeout_ms=session_timeout_ms)
        assert await error_of(answer) is ErrorCode.INVALID_SESSION_TIMEOUT

    run(scenario)


def test_newcomers_wait_while_there_are_too_many_members():
    async def scenario(made):
        await made.elect()
        ids = [(await made.join(f"g{number}")).member_id for number in range(4)]
        assert await error_of(made.join("another")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await made.join("g0", ids[0])).error is ErrorCode.NONE
        made.pass_time(3_600_000)
        assert (await made.join("another")).error is ErrorCode.MEMBER_ID_REQUIRED

    run(scenario, timers_max=4)


def test_newcomers_of_groups_in_use_wait_later():
    async def scenario(made):
        await made.elect()
        await made.groups.answer(made.commit("used"))
        for number in range(2):
            await made.join(f"g{number}")
        assert await error_of(made.join("another")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        for _ in range(2):
            assert (await made.join("used")).error is ErrorCode.MEMBER_ID_REQUIRED
        assert await error_of(made.join("used")) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario, timers_max=2, timers_of_used_groups_max=4)


def test_members_need_a_group_id_and_offsets_do_not():
    async def scenario(bench):
        await bench.elect()
        assert await error_of(bench.join("")) is ErrorCode.INVALID_GROUP_ID
        for event in (Heartbeat("", 0, "m", None, 1), LeaveGroup("", 0, ()), DeleteOffsets("", 0, ())):
            with pytest.raises(ApiError) as caught:
                bench.groups.ask(event)
            assert caught.value.error is ErrorCode.INVALID_GROUP_ID
        await bench.groups.answer(bench.commit(""))
        assert await bench.fetch("") == {"t": 1}

    run(scenario)


def test_groups_and_offsets_survive_a_restart():
    async def scenario(bench):
        await bench.elect()
        member_id = await bench.join_stable()
        await bench.groups.answer(bench.commit(offset=42, member_id=member_id, generation=1))
        await bench.groups.answer(bench.commit("simple", 7))
        before = bench.groups.describe("g")
        await bench.restart()
        assert bench.groups.describe("g") == before
        assert await bench.fetch() == {"t": 42}
        assert await bench.fetch("simple") == {"t": 7}
        assert sorted(group.group_id for group in bench.groups.list_groups()) == ["g", "simple"]
        assert [group.group_id for group in bench.groups.list_groups(["  stable"], ["Classic"])] == ["g"]
        assert bench.groups.list_groups([], ["consumer"]) == []
        # The member has a session after the restart too, and a heartbeat keeps it.
        bench.pass_time(9_999)
        assert bench.groups.ask(Heartbeat("g", 0, member_id, "i", 1)) == HeartbeatReply(ErrorCode.NONE)
        bench.pass_time(9_999)
        assert bench.groups.describe("g").state == "Stable"
        bench.pass_time(1)
        assert bench.groups.describe("g").state == "Empty"

    run(scenario)


def test_a_decision_is_one_batch():
    async def scenario(bench):
        await bench.elect()
        await bench.groups.answer(bench.commit(topics=("t", "u", "v")))
        assert bench.log.record_counts(bench.groups.runtime.partition_for("g")) == [3]

    run(scenario)


def test_replies_wait_until_their_records_are_replicated():
    async def scenario(bench):
        await bench.elect()
        bench.log.replicated = False
        commit = bench.groups.ask(bench.commit())
        fetch = asyncio.ensure_future(bench.fetch())
        await asyncio.sleep(0)
        assert not commit.done()
        assert not fetch.done()
        bench.log.replicate()
        assert (await commit).error is ErrorCode.NONE
        assert await fetch == {"t": 1}
        # Nothing is outstanding any more: the next answer comes at once.
        assert isinstance(bench.groups.ask(bench.commit()), OffsetsReply)

    run(scenario)


def test_an_assignment_is_told_only_when_it_is_replicated():
    async def scenario(bench):
        await bench.elect()
        joined = await bench.join(instance="i")
        bench.log.replicated = False
        sync = bench.groups.ask(SyncGroup("g", 0, joined.member_id, "i", 1, None, None, ((joined.member_id, b"w"),)))
        again = bench.groups.ask(SyncGroup("g", 0, joined.member_id, "i", 1, None, None, ()))
        assert not sync.done()
        assert not again.done(), "the assignment is in the state but not committed"
        assert bench.groups.ask(Heartbeat("g", 0, joined.member_id, "i", 1)) == HeartbeatReply(ErrorCode.NONE)
        bench.log.replicate()
        assert (await sync).assignment == (await again).assignment == b"w"

    run(scenario)


def test_a_slow_replication_is_an_error_that_clients_retry():
    async def scenario(bench):
        await bench.elect()
        bench.log.replicated = False
        commit = bench.groups.ask(bench.commit())
        fetch = asyncio.ensure_future(bench.fetch())
        await asyncio.sleep(0)
        bench.pass_time(4_999)
        assert not commit.done()
        bench.pass_time(1)
        assert await error_of(commit) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await error_of(fetch) is ErrorCode.NOT_COORDINATOR
        bench.log.replicate()

    run(scenario)


def test_leadership_lost_before_replication_fails_the_reply():
    async def scenario(bench):
        await bench.elect()
        bench.log.replicated = False
        commit = bench.groups.ask(bench.commit())
        bench.log.waiting.pop().set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert await error_of(commit) is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_waiting_members_learn_of_the_resignation():
    async def scenario(bench):
        await bench.elect()
        member_id = await bench.join_stable()
        waiting = asyncio.ensure_future(bench.join(instance="j"))
        await asyncio.sleep(0)
        assert bench.groups.describe("g").state == "PreparingRebalance"
        bench.groups.runtime.on_resigned(bench.groups.runtime.partition_for("g"))
        assert await error_of(waiting) is ErrorCode.NOT_COORDINATOR
        bench.pass_time(DAY_MS)
        await bench.elect()
        # The rebalance was never stored: the group is what it was.
        assert bench.groups.describe("g").state == "Stable"
        assert bench.groups.describe("g").members[0].member_id == member_id

    run(scenario)


def test_a_shard_that_is_lost_while_it_loads_stays_away():
    async def scenario(bench):
        bench.log.gate.clear()
        bench.groups.runtime.on_elected(0, 0)
        bench.groups.runtime.on_resigned(0)
        bench.log.gate.set()
        await bench.loaded()
        assert bench.groups.list_groups() == []

    run(scenario)


def test_an_election_of_the_leader_that_is_keeps_the_shard():
    async def scenario(bench):
        await bench.elect()
        waiting = [asyncio.ensure_future(bench.join(instance=instance)) for instance in "ab"]
        await waiting[0]
        bench.groups.runtime.on_elected(bench.groups.runtime.partition_for("g"), 1)
        await bench.loaded()
        assert len(bench.groups.describe("g").members) == 2
        waiting[1].cancel()

    run(scenario)


def test_a_load_that_fails_after_the_resignation_is_not_retried():
    async def scenario(bench):
        bench.log.read_error = OSError("disk")
        await bench.elect(0)
        bench.groups.runtime.on_resigned(0)
        bench.groups.runtime.on_resigned(0)
        bench.log.read_error = None
        bench.pass_time(10_000)
        await bench.loaded()
        assert bench.groups.list_groups() == []

    run(scenario)


def test_a_client_that_stopped_waiting_does_no_harm():
    async def scenario(bench):
        await bench.elect()
        member_id = await bench.join_stable()
        waiting = asyncio.ensure_future(bench.join(instance="j"))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await bench.join(member_id=member_id, instance="i")).generation == 2
        assert len(bench.groups.describe("g").members) == 2

    run(scenario)


def test_a_log_that_cannot_be_read_is_tried_again():
    async def scenario(bench):
        bench.log.read_error = OSError("disk")
        await bench.elect()
        assert await error_of(bench.join()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        bench.log.read_error = None
        bench.pass_time(1_000)
        await bench.loaded()
        assert (await bench.join()).error is ErrorCode.MEMBER_ID_REQUIRED

    run(scenario)


def test_a_refused_commit_changes_nothing():
    async def scenario(bench):
        await bench.elect()
        await bench.groups.answer(bench.commit(offset=1))
        bench.log.refusal = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert await error_of(bench.groups.answer(bench.commit(offset=2))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await bench.fetch() == {"t": 1}
        bench.log.refusal = ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        assert await error_of(bench.groups.answer(bench.commit(offset=2))) is ErrorCode.UNKNOWN_SERVER_ERROR
        bench.log.refusal = None
        assert (await bench.groups.answer(bench.commit(offset=2))).error is ErrorCode.NONE

    run(scenario)


def test_a_refused_assignment_ends_the_wait_of_all():
    async def scenario(bench):
        await bench.elect()
        leader = await bench.join(instance="a")
        joining = asyncio.ensure_future(bench.join(instance="b"))
        await asyncio.sleep(0)
        await bench.join(member_id=leader.member_id, instance="a")
        follower = await joining
        waiting = bench.groups.ask(SyncGroup("g", 0, follower.member_id, "b", 2, None, None, ()))
        bench.log.refusal = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        sync = SyncGroup("g", 0, leader.member_id, "a", 2, None, None, ())
        assert await error_of(bench.groups.answer(sync)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await waiting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bench.groups.describe("g").state == "PreparingRebalance"

    run(scenario)


def test_a_member_whose_end_cannot_be_stored_is_ended_later():
    async def scenario(bench):
        await bench.elect()
        await bench.join_stable()
        bench.log.refusal = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        bench.pass_time(10_000)
        assert bench.groups.describe("g").state == "Stable"
        bench.log.refusal = None
        bench.pass_time(1_000)
        assert bench.groups.describe("g").state == "Empty"

    run(scenario)


def test_a_log_in_doubt_is_read_again():
    async def scenario(bench):
        await bench.elect()
        await bench.groups.answer(bench.commit(offset=1))
        bench.log.refusal = ApiError(ErrorCode.NOT_COORDINATOR)
        assert await error_of(bench.groups.answer(bench.commit(offset=2))) is ErrorCode.NOT_COORDINATOR
        bench.log.refusal = None
        assert await error_of(bench.fetch()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        bench.pass_time(1_000)
        await bench.loaded()
        assert await bench.fetch() == {"t": 1}

    run(scenario)


def test_offsets_and_groups_expire():
    async def scenario(bench):
        await bench.elect()
        await bench.groups.answer(bench.commit())
        member_id = await bench.join_stable("active")
        await bench.groups.answer(bench.commit("active", 5, member_id, 1))
        for _ in range(8 * 24):
            bench.pass_time(DAY_MS // 24)
            await bench.groups.expire_offsets()
        assert bench.groups.list_groups() == []
        assert await bench.fetch() == {}
        await bench.restart()
        assert bench.groups.list_groups() == []

    run(scenario)


def test_loading_forgets_offsets_of_deleted_topics():
    async def scenario(bench):
        await bench.elect()
        await bench.groups.answer(bench.commit(topics=("t", "u")))
        await bench.groups.on_topics_deleted(["t"])
        assert await bench.fetch() == {"u": 1}
        bench.log.gate.clear()
        partition = bench.groups.runtime.partition_for("g")
        bench.groups.runtime.on_resigned(partition)
        bench.groups.runtime.on_elected(partition, 1)
        await bench.groups.on_topics_deleted(["u"])
        bench.log.gate.set()
        await bench.loaded()
        assert await bench.fetch() == {}

    run(scenario)


def test_many_tombstones_are_several_batches():
    async def scenario(bench):
        await bench.elect()
        topics = tuple(f"{number:05}-{'x' * 200}" for number in range(3_000))
        await bench.groups.answer(bench.commit(topics=topics))
        assert (await bench.groups.answer(DeleteGroup("g", 0))).error is ErrorCode.NONE
        counts = bench.log.record_counts(bench.groups.runtime.partition_for("g"))
        assert counts[0] == 3_000
        assert len(counts) == 3
        assert sum(counts[1:]) == 3_001
        await bench.restart()
        assert bench.groups.list_groups() == []

    run(scenario)


def test_figures_for_metrics():
    async def scenario(bench):
        await bench.elect()
        await bench.join_stable()
        await bench.groups.answer(bench.commit("simple", 3))
        figures = {summary.group_id: summary for summary in bench.groups.summaries()[0]}
        assert figures["g"].state is GroupState.STABLE
        assert figures["g"].member_count == 1
        assert figures["simple"].offsets == (("t", 0, 3),)

    run(scenario)


def test_two_hundred_members_join_one_group():
    async def scenario(bench):
        await bench.elect()
        joining = [asyncio.ensure_future(bench.join(instance=f"i{number:03}")) for number in range(200)]
        first = await joining[0]
        again = asyncio.ensure_future(bench.join(member_id=first.member_id, instance="i000"))
        replies = [await again, *(await asyncio.gather(*joining[1:]))]
        assert {reply.generation for reply in replies} == {2}
        assert {reply.leader_id for reply in replies} == {first.member_id}
        assert [len(reply.members) for reply in replies] == [200] + [0] * 199
        work = tuple((reply.member_id, b"w") for reply in replies)
        syncs = [
            bench.groups.answer(SyncGroup("g", 0, reply.member_id, None, 2, None, None, work if reply.members else ()))
            for reply in reversed(replies)
        ]
        assert {reply.assignment for reply in await asyncio.gather(*syncs)} == {b"w"}
        assert len(bench.groups.describe("g").members) == 200
        leavers = tuple(Leaver(reply.member_id, None, "") for reply in replies)
        left = await bench.groups.answer(LeaveGroup("g", 0, leavers))
        assert {member.error for member in left.members} == {ErrorCode.NONE}
        assert bench.groups.describe("g").state == "Empty"

    run(scenario)


def test_heartbeats_leave_no_trail_of_timers():
    async def scenario(bench):
        await bench.elect()
        member_id = await bench.join_stable()
        before = len(bench.timers._heap)
        for _ in range(100):
            bench.pass_time(1_000)
            assert bench.groups.ask(Heartbeat("g", 0, member_id, "i", 1)) == HeartbeatReply(ErrorCode.NONE)
        assert len(bench.timers._heap) <= before

    run(scenario)


def test_records_carry_the_time_of_the_commit():
    async def scenario(bench):
        await bench.elect()
        await bench.groups.answer(bench.commit())
        (batch,) = bench.log.batches[bench.groups.runtime.partition_for("g")]
        (record,) = iter_records(batch, parse_header(batch))
        assert record.timestamp == bench.clock.now_ms()

    run(scenario)


def places(bench, keys):
    return [bench.groups.runtime.partition_for(key) for key in keys]


def test_keys_keep_their_partition_when_the_topic_grows(caplog):
    """Until the next start; a topic that was made anew counts from the first."""
    keys = [f"group-{number}" for number in range(30)]
    of_three = [abs_java_hash(key) % 3 for key in keys]
    first, second = TopicId(b"1" * 16), TopicId(b"2" * 16)

    async def scenario(bench):
        bench.groups.runtime.on_topic(first, 3)
        assert places(bench, keys) == of_three
        for _ in range(2):
            bench.groups.runtime.on_topic(first, 4)
            assert places(bench, keys) == of_three
        assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
            "The topic with the groups has 4 partitions now instead of 3: from the next start on most groups will be "
            "looked for in other partitions than they are stored in"
        ]
        bench.groups.runtime.on_topic(second, 4)
        assert places(bench, keys) == [abs_java_hash(key) % 4 for key in keys]

    run(scenario)


def test_before_the_start_the_last_word_on_the_topic_counts():
    topic = TopicId(b"1" * 16)

    async def scenario(bench):
        await bench.groups.stop()
        bench.groups = bench.make()
        for count in (2, 3):
            bench.groups.runtime.on_topic(topic, count)
        await bench.groups.start()
        bench.groups.runtime.on_topic(topic, 4)
        assert set(places(bench, map(str, range(100)))) == {0, 1, 2}

    run(scenario)
