"""The limits on the broker's memory for groups and offsets, and ids that are longer than their fields."""

import asyncio

import pytest

from barnabas.broker.coordinators.groups.events import CommitOffsets, PartitionCommit, SyncGroup
from barnabas.broker.coordinators.groups.offsets import (
    OFFSETS_OF_GROUP_BYTES,
    OFFSETS_OF_TOPIC_BYTES,
    PRODUCER_BYTES,
    pending_offset_bytes,
    stored_bytes,
)
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker
from barnabas.wire.errors import ApiError, ErrorCode
from tests.broker.coordinators.groups.test_service import Bench, error_of, run
from tools.waiting import PATIENCE_S

REFUSED = ErrorCode.COORDINATOR_NOT_AVAILABLE


SCARCE = {"held_bytes_max": 100_000, "held_bytes_with_members_max": 120_000, "held_bytes_of_used_groups_max": 200_000}


def held(bench: Bench) -> int:
    return sum(runner.shard.held_bytes for runner in bench.groups.runtime.runners())


def commit(group_id: str, partitions: int, metadata: str = "", producer_id: int = -1) -> CommitOffsets:
    commits = tuple(PartitionCommit(partition, 1, 0, metadata) for partition in range(partitions))
    return CommitOffsets(
        group_id, 0, "", None, -1, -1, (("t", bytes(16), commits),), ErrorCode.ILLEGAL_GENERATION, producer_id, 0
    )


def test_metadata_has_a_budget_and_members_keep_what_they_have() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.elect()
        await bench.groups.answer(commit("used", 1))
        member_id = await bench.join_stable("live")
        let_in = 0
        while True:
            join = bench.join(f"g{let_in}", member_id_required=False, protocols=(("range", bytes(20_000)),))
            try:
                await join
            except ApiError:
                break
            let_in += 1
        assert let_in == 4
        assert held(bench) < 120_000
        # who adds nothing goes on, one who would grow waits like a newcomer, a group in use has room
        assert (await bench.join("live", member_id)).error is ErrorCode.NONE
        assert await error_of(bench.join("live", member_id, protocols=(("range", bytes(50_000)),))) is REFUSED
        assert await error_of(bench.join("g9", protocols=(("range", bytes(50_000)),))) is REFUSED
        assert (await bench.join("used", protocols=(("range", bytes(50_000)),))).error is ErrorCode.MEMBER_ID_REQUIRED
        bench.pass_time(3_600_000)
        await bench.join("g9", member_id_required=False, protocols=(("range", bytes(50_000)),))

    run(scenario, **SCARCE)


def test_the_metadata_of_one_group_are_bounded() -> None:
    """The bound holds even if there is room: a rebalance sends all metadata to the leader in one response."""

    async def scenario(bench: Bench) -> None:
        await bench.elect()
        large = (("range", bytes(60_000)),)
        joined = await bench.join("g", instance="i", protocols=large)
        assert joined.error is ErrorCode.NONE
        async with asyncio.timeout(PATIENCE_S):  # who is let in waits for the other one
            assert await error_of(bench.join("g", instance="j", protocols=large)) is ErrorCode.GROUP_MAX_SIZE_REACHED
        again = bench.join("g", joined.member_id, instance="i", protocols=large)
        assert (await again).error is ErrorCode.NONE
        assert (await bench.join("h", instance="i", protocols=large)).error is ErrorCode.NONE

    run(scenario, held_bytes_of_group_max=100_000)


def test_assignments_count() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.elect()
        joined = await bench.join("g", instance="i")

        def sync(size: int) -> SyncGroup:
            assignments = ((joined.member_id, bytes(size)),)
            return SyncGroup("g", 0, joined.member_id, "i", joined.generation, None, None, assignments)

        assert await error_of(bench.groups.answer(sync(150_000))) is REFUSED
        assert (await bench.groups.answer(sync(50_000))).error is ErrorCode.NONE
        assert 50_000 < held(bench) < 100_000

    run(scenario, **SCARCE)


@pytest.mark.parametrize("producer_id", [-1, 7], ids=["commits", "commits in transactions"])
def test_offsets_count(producer_id: int) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.elect()
        stored = 0
        while stored < 1_000:
            try:
                await bench.groups.answer(commit(f"g{stored}", 20, producer_id=producer_id))
            except ApiError:
                break
            stored += 1
        assert 5 <= stored < 100_000 // (20 * 200)
        assert held(bench) <= 100_000
        assert await error_of(bench.groups.answer(commit("another", 5, "x" * 4096, producer_id))) is REFUSED
        await bench.groups.answer(commit("g0", 20, producer_id=producer_id))  # the same again
        # a group in use has no more room for what stays for days
        assert await error_of(bench.groups.answer(commit("g0", 20, "x" * 4096, producer_id))) is REFUSED

    run(scenario, **SCARCE)


def test_running_sums_equal_the_held_state() -> None:
    """The running sums, after everything that changes them, and after a restart."""

    async def scenario(bench: Bench) -> None:
        await bench.elect()
        empty = held(bench)
        await bench.groups.answer(commit("g", 3, "\u00e4"))
        await bench.groups.answer(commit("g", 3, "longer"))
        await bench.groups.answer(commit("g", 2, "pending", 7))
        await bench.groups.answer(commit("g", 5, "replaced", 7))
        check(bench)
        partition = bench.groups.runtime.partition_for("g")
        marker = EndTxnMarker(ControlRecordType.COMMIT, 0)
        bench.groups.end_transaction(partition, marker, 7, 0, 0)
        await bench.groups.answer(commit("g", 5, "aborted", 8))
        check(bench)
        bench.groups.end_transaction(partition, EndTxnMarker(ControlRecordType.ABORT, 0), 8, 0, 0)
        await bench.join_stable("h")
        check(bench)
        before = held(bench)
        await bench.restart()
        check(bench)
        assert held(bench) == before
        await bench.groups.on_topics_deleted({"t"})
        bench.pass_time(86_400_000 * 8)
        check(bench)
        assert held(bench) < before
        assert empty == 0

    run(scenario)


def check(bench: Bench) -> None:
    for runner in bench.groups.runtime.runners():
        shard, offsets = runner.shard, runner.shard.offsets
        expected = sum(group.held_bytes for group in shard.groups.values())
        for topics in offsets.by_group.values():
            expected += OFFSETS_OF_GROUP_BYTES + OFFSETS_OF_TOPIC_BYTES * len(topics)
            expected += sum(stored_bytes(stored.committed) for kept in topics.values() for stored in kept.values())
        for pending in offsets.pending.values():
            expected += PRODUCER_BYTES
            expected += sum(pending_offset_bytes(key, stored.committed) for key, stored in pending.items())
        assert shard.held_bytes == expected


@pytest.mark.parametrize("instance", [None, "i" * 32_767], ids=["client id", "instance id"])
def test_a_member_id_fits_every_reply_and_record(instance: str | None) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.elect()
        joined = await bench.join(instance=instance, client_id="c" * 32_767, member_id_required=False)
        assert joined.error is ErrorCode.NONE
        assert len(joined.member_id) < 2_000
        assert joined.member_id.startswith("c" * 1_000 if instance is None else "i" * 1_000)

    run(scenario)


def test_a_page_holds_as_many_groups_as_fit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.elect()
        await bench.groups.answer(commit("n" * 30_000, 50))
        for number in range(10):
            await bench.groups.answer(commit(f"g{number}", 5))
        summaries, left_out = bench.groups.summaries(100_000)
        assert {summary.group_id for summary in summaries} == {f"g{number}" for number in range(10)}
        assert left_out == 1
        assert len(bench.groups.summaries(3_000)[0]) == 2
        assert [len(found) if isinstance(found, list) else found for found in bench.groups.summaries()] == [11, 0]

    run(scenario)


def test_offsets_of_strangers_leave_room_for_members(caplog: pytest.LogCaptureFixture) -> None:
    """A group is in use after one commit, a stranger's too: what it fills keeps no consumer from coming back, over a
    restart neither, and somebody is told."""

    async def scenario(bench: Bench) -> None:
        await bench.elect()
        await bench.groups.answer(commit("honest", 1))
        for stranger in range(10):
            await bench.groups.answer(commit(f"s{stranger}", 1))
        refused = 0
        for partitions in (400, 200, 100, 20, 2):
            for stranger in range(10):
                try:
                    await bench.groups.answer(commit(f"s{stranger}", partitions, "m" * 10))
                except ApiError:
                    refused += 1
        assert 0 < refused == bench.groups.runtime.memory.refused_count
        await bench.join_stable("honest")
        await bench.restart()
        await bench.join_stable("honest")
        await bench.join_stable("new")
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert lines == ["groups: groups and offsets take too much memory; 1 refused for that"]
        bench.pass_time(60_000)
        assert await error_of(bench.groups.answer(commit("s0", 900))) is REFUSED
        assert "refused for that" in caplog.records[-1].getMessage()

    run(scenario, **SCARCE)
