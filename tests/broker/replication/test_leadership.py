"""A partition with followers, over a real log: the commits by their fetches, the requests to the controller, and the
changes by its responses."""

import asyncio

import pytest

from barnabas.broker.cluster.alter_partitions import RETRY_BACKOFF_MS
from barnabas.broker.replication.followers import REST_MS
from barnabas.broker.replication.leadership import Leadership
from barnabas.storage.config import LogConfig
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import AlterPartitionResponse, ResponsePartitionData, ResponseTopicData
from tests.broker.replication.conftest import (
    BROKER_EPOCH,
    LAG_MS_MAX,
    NODE_ID,
    OTHER_ID,
    TOPIC_ID,
    Hosting,
    Storage,
    told,
)
from tests.support.bugs import Bug
from tools.waiting import PATIENCE_S

THIRD_ID = 3
REPLICAS = [NODE_ID, OTHER_ID, THIRD_ID]


async def lead(hosting: Hosting, isr: list[int] | None = None, **given: object) -> None:
    await hosting.live(*REPLICAS)
    state = told(replicas=REPLICAS, isr=isr or REPLICAS, is_new=True, **given)
    assert await hosting.lead(state) == [ErrorCode.NONE]


def high_watermark(hosting: Hosting) -> int:
    return hosting.partition().log.high_watermark


def error_of(future: "asyncio.Future[None] | None") -> ErrorCode:
    assert future is not None
    error = future.exception()
    assert isinstance(error, ApiError)
    return error.error


async def test_a_commit_waits_for_all_replicas_in_sync(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting)
        partition, info = hosting.append(b"a", b"b")
        committed = hosting.replicas.when_acknowledgeable(partition, info, -1)
        assert committed is not None
        hosting.fetch(OTHER_ID, 2)
        hosting.fetch(THIRD_ID, 1)
        assert not committed.done()
        assert high_watermark(hosting) == 1
        hosting.fetch(THIRD_ID, 2)
        assert committed.done()
        assert high_watermark(hosting) == 2
        assert hosting.replicas.when_acknowledgeable(partition, info, 1) is None
        assert await hosting.controller.is_asked_nothing()


async def test_readers_wake_only_if_a_follower_makes_records_readable(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting)
        hosting.append(b"a")
        calls: list[object] = []
        hosting.partition().add_listener(calls.append)
        hosting.fetch(OTHER_ID, 1)
        assert calls == []
        hosting.fetch(THIRD_ID, 1)
        assert calls == [hosting.partition()]
        hosting.fetch(THIRD_ID, 1)
        assert len(calls) == 1


async def test_a_caught_up_follower_joins_when_the_state_is_stored(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID], partition_epoch=7)
        hosting.append(b"a")
        hosting.fetch(OTHER_ID, 1, broker_epoch=80)
        hosting.fetch(THIRD_ID, 1, broker_epoch=81)
        request = await hosting.controller.next_request()
        assert (request.broker_id, request.broker_epoch) == (NODE_ID, BROKER_EPOCH)
        [topic] = request.topics
        assert topic.topic_id == TOPIC_ID
        [asked] = topic.partitions
        assert (asked.partition_index, asked.leader_epoch, asked.partition_epoch) == (0, 0, 7)
        epochs = {member.broker_id: member.broker_epoch for member in asked.new_isr_with_epochs}
        assert epochs == {NODE_ID: -1, OTHER_ID: 80, THIRD_ID: 81}
        hosting.append(b"b")
        hosting.fetch(OTHER_ID, 2)
        assert high_watermark(hosting) == 1, "the controller may have stored it by now"
        assert hosting.partition().state.isr == (NODE_ID, OTHER_ID)
        await hosting.controller.store(REPLICAS, partition_epoch=8)
        assert hosting.partition().state.isr == tuple(REPLICAS)
        assert hosting.partition().state.partition_epoch == 8
        assert high_watermark(hosting) == 1
        hosting.fetch(THIRD_ID, 2, broker_epoch=81)
        assert high_watermark(hosting) == 2
        assert hosting.replicas.leaderships is not None
        assert (hosting.replicas.leaderships.isr_expands, hosting.replicas.leaderships.isr_shrinks) == (1, 0)


async def test_a_dead_replica_does_not_join(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID])
        await hosting.live(NODE_ID, OTHER_ID)
        hosting.append(b"a")
        hosting.fetch(THIRD_ID, 1)
        assert await hosting.controller.is_asked_nothing()
        assert high_watermark(hosting) == 1


async def test_a_lagging_follower_leaves_when_the_state_is_stored(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting)
        hosting.append(b"a")
        hosting.fetch(OTHER_ID, 1)
        hosting.fetch(THIRD_ID, 0)
        storage.clock.advance(LAG_MS_MAX)
        await hosting.replicas.look_at_isrs()
        assert await hosting.controller.is_asked_nothing()
        storage.clock.advance(1)
        await hosting.replicas.look_at_isrs()
        await hosting.replicas.look_at_isrs()
        request = await hosting.controller.next_request()
        [asked] = request.topics[0].partitions
        assert [member.broker_id for member in asked.new_isr_with_epochs] == [NODE_ID, OTHER_ID]
        assert high_watermark(hosting) == 0, "it counts until it has left"
        await hosting.controller.store([NODE_ID, OTHER_ID], partition_epoch=1)
        assert high_watermark(hosting) == 1
        assert await hosting.controller.is_asked_nothing()
        assert hosting.replicas.leaderships is not None
        assert hosting.replicas.leaderships.isr_shrinks == 1


async def test_too_small_an_isr_fails_producers_and_commits_nothing(storage: Storage) -> None:
    storage.config = LogConfig(min_insync_replicas=2)
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID])
        partition, info = hosting.append(b"a")
        producer = hosting.replicas.when_acknowledgeable(partition, info, -1)
        coordinator = partition.committed(1, outlasts_setbacks=True)
        assert coordinator is not None
        storage.clock.advance(LAG_MS_MAX + 1)
        await hosting.replicas.look_at_isrs()
        await hosting.controller.next_request()
        await hosting.controller.store([NODE_ID], partition_epoch=1)
        assert error_of(producer) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert high_watermark(hosting) == 0
        assert partition.has_too_few_in_sync
        with pytest.raises(ApiError) as refused:
            hosting.append(b"b")
        assert refused.value.error is ErrorCode.NOT_ENOUGH_REPLICAS
        hosting.append(b"b", acks=1)
        hosting.fetch(OTHER_ID, 2)
        assert not coordinator.done()
        await hosting.controller.next_request()
        await hosting.controller.store([NODE_ID, OTHER_ID], partition_epoch=2)
        assert coordinator.done()
        assert high_watermark(hosting) == 2


async def test_producers_fail_when_a_dead_follower_leaves_the_isr(storage: Storage) -> None:
    """With a new leader epoch, in which the same broker leads."""
    storage.config = LogConfig(min_insync_replicas=2)
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID])
        partition, info = hosting.append(b"a")
        producer = hosting.replicas.when_acknowledgeable(partition, info, -1)
        coordinator = partition.committed(1, outlasts_setbacks=True)
        assert coordinator is not None
        await hosting.lead(told(replicas=REPLICAS, isr=[NODE_ID], leader_epoch=1, partition_epoch=1))
        assert error_of(producer) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert not coordinator.done()


async def test_another_min_insync_replicas_counts_at_once(storage: Storage) -> None:
    storage.config = LogConfig(min_insync_replicas=1)
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID])
        partition, info = hosting.append(b"a")
        producer = hosting.replicas.when_acknowledgeable(partition, info, -1)
        storage.config = LogConfig(min_insync_replicas=3)
        hosting.replicas.reconfigure("t")
        assert error_of(producer) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        hosting.fetch(OTHER_ID, 1)
        assert high_watermark(hosting) == 0
        storage.config = LogConfig(min_insync_replicas=2)
        hosting.replicas.reconfigure("t")
        assert high_watermark(hosting) == 1


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
async def test_a_proposal_that_was_not_stored_is_dropped_and_repeated(storage: Storage, error: ErrorCode) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID])
        hosting.append(b"a")
        hosting.fetch(OTHER_ID, 1)
        await hosting.controller.next_request()
        await hosting.controller.refuse(error)
        assert await hosting.controller.is_asked_nothing()
        hosting.fetch(OTHER_ID, 1)
        assert await hosting.controller.is_asked_nothing()
        storage.clock.advance(REST_MS)
        hosting.fetch(OTHER_ID, 1)
        await hosting.controller.next_request()
        assert hosting.replicas.leaderships is not None
        assert hosting.replicas.leaderships.failed_isr_updates == 1


async def test_a_proposal_that_may_be_stored_counts_for_now(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID])
        hosting.append(b"a")
        hosting.fetch(OTHER_ID, 1)
        await hosting.controller.next_request()
        await hosting.controller.refuse(ErrorCode.INVALID_UPDATE_VERSION)
        storage.clock.advance(LAG_MS_MAX + 1)
        hosting.fetch(OTHER_ID, 1)
        hosting.append(b"b")
        assert await hosting.controller.is_asked_nothing()
        assert high_watermark(hosting) == 1
        state = told(replicas=REPLICAS, isr=[NODE_ID], leader_epoch=1, partition_epoch=3)
        assert await hosting.lead(state) == [ErrorCode.NONE]
        assert high_watermark(hosting) == 2


async def test_a_proposal_refused_for_an_unknown_topic_is_repeated(storage: Storage) -> None:
    """The znode of the topic was damaged for a while. Then the controller sends the state that the leader had
    before."""
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID])
        hosting.append(b"a")
        storage.clock.advance(LAG_MS_MAX + 1)
        await hosting.replicas.look_at_isrs()
        await hosting.controller.next_request()
        await hosting.controller.refuse(ErrorCode.UNKNOWN_TOPIC_ID)
        await hosting.replicas.look_at_isrs()
        assert await hosting.controller.is_asked_nothing()
        assert await hosting.lead(told(replicas=REPLICAS, isr=[NODE_ID, OTHER_ID])) == [ErrorCode.NONE]
        await hosting.replicas.look_at_isrs()
        await hosting.controller.next_request()
        await hosting.controller.store([NODE_ID], partition_epoch=1)
        assert high_watermark(hosting) == 1


@pytest.mark.parametrize(
    "failure",
    [
        OSError("the connection broke"),
        AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER),
        AlterPartitionResponse(),  # without the partition
    ],
)
async def test_the_controller_is_asked_again_until_it_answers(
    storage: Storage, failure: AlterPartitionResponse | OSError
) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID])
        hosting.fetch(OTHER_ID, 0)
        first = await hosting.controller.next_request()
        await hosting.controller.answer(failure)
        assert await hosting.controller.is_asked_nothing()
        storage.clock.advance(RETRY_BACKOFF_MS)
        hosting.timers.fire_due()
        second = await hosting.controller.next_request()
        assert second.topics[0].partitions[0] is first.topics[0].partitions[0]
        await hosting.controller.store([NODE_ID, OTHER_ID], partition_epoch=1)
        assert hosting.partition().state.isr == (NODE_ID, OTHER_ID)


async def test_an_answer_for_an_earlier_leader_epoch_changes_nothing(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID])
        hosting.fetch(OTHER_ID, 0)
        await hosting.controller.next_request()
        await hosting.lead(told(replicas=REPLICAS, isr=[NODE_ID], leader_epoch=1, partition_epoch=5))
        hosting.fetch(THIRD_ID, 0)  # proposed while the other request is under way: it waits
        await hosting.controller.store([NODE_ID, OTHER_ID], partition_epoch=1)
        assert hosting.partition().state.isr == (NODE_ID,)
        [asked] = (await hosting.controller.next_request()).topics[0].partitions
        assert (asked.leader_epoch, asked.partition_epoch) == (1, 5)
        assert [member.broker_id for member in asked.new_isr_with_epochs] == [NODE_ID, THIRD_ID]


async def test_a_state_sent_before_the_response_does_not_undo_it(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID])
        hosting.fetch(OTHER_ID, 0)
        await hosting.controller.next_request()
        await hosting.controller.store([NODE_ID, OTHER_ID], partition_epoch=1)
        assert await hosting.lead(told(replicas=REPLICAS, isr=[NODE_ID], partition_epoch=0)) == [ErrorCode.NONE]
        assert hosting.partition().state.isr == (NODE_ID, OTHER_ID)
        hosting.append(b"a")
        assert high_watermark(hosting) == 0


async def test_in_a_new_leader_epoch_nothing_is_known_of_followers(storage: Storage) -> None:
    """Their logs may have been truncated, if another broker led in between."""
    async with storage.hosting() as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID])
        hosting.append(b"a")
        hosting.fetch(OTHER_ID, 1)
        await hosting.lead(told(replicas=REPLICAS, leader=OTHER_ID, leader_epoch=1, partition_epoch=1))
        assert hosting.partition().leadership is None
        await hosting.lead(told(replicas=REPLICAS, isr=[NODE_ID, OTHER_ID], leader_epoch=2, partition_epoch=2))
        hosting.append(b"b")
        assert high_watermark(hosting) == 1
        hosting.fetch(OTHER_ID, 2)
        assert high_watermark(hosting) == 2


async def test_fetches_that_tell_nothing(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting)
        for replica_id, broker_epoch, error in (
            (99, 80, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (OTHER_ID, 79, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            hosting.fetch(OTHER_ID, 0, broker_epoch=80)
            with pytest.raises(ApiError) as refused:
                hosting.fetch(replica_id, 0, broker_epoch=broker_epoch)
            assert refused.value.error is error


async def test_flush_before_ack_counts_flushed_records_only(storage: Storage) -> None:
    async with storage.hosting(flush_before_ack=True) as hosting:
        await lead(hosting, [NODE_ID, OTHER_ID])
        storage.files.go_on.clear()
        hosting.append(b"a")
        hosting.fetch(OTHER_ID, 1)
        assert high_watermark(hosting) == 0
        storage.files.go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(hosting.replicas.flusher.under_way())
        assert high_watermark(hosting) == 1


async def test_records_are_deleted_when_no_live_replica_has_them(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting)
        hosting.append(b"a", b"b", b"c")
        for replica_id in (OTHER_ID, THIRD_ID):
            hosting.fetch(replica_id, 3)
        partition = hosting.partition()
        hosting.replicas.delete_records(partition, 2)
        leadership = partition.leadership
        assert leadership is not None
        deleted = leadership.deleted(2)
        assert deleted is not None
        hosting.fetch(OTHER_ID, 3, log_start_offset=2)
        assert leadership.low_watermark() == 0
        hosting.fetch(THIRD_ID, 3, log_start_offset=1)
        assert (leadership.low_watermark(), deleted.done()) == (1, False)
        await hosting.live(NODE_ID, OTHER_ID)
        await hosting.replicas.look_at_isrs()
        assert (leadership.low_watermark(), deleted.done()) == (2, True)
        assert leadership.deleted(2) is None
        hosting.replicas.delete_records(partition, 3)
        waiting = leadership.deleted(3)
        await hosting.stop(0, delete=False)
        assert error_of(waiting) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_that_has_gone_holds_nothing_back(storage: Storage) -> None:
    """It was in sync until it stopped. Otherwise the leader would wait for it as for a replica that is about to
    join."""
    async with storage.hosting() as hosting:
        await lead(hosting, isr=[NODE_ID, OTHER_ID, THIRD_ID])
        hosting.fetch(OTHER_ID, 0)
        await lead(hosting, isr=[NODE_ID, OTHER_ID], partition_epoch=1)
        partition, info = hosting.append(b"a")
        committed = hosting.replicas.when_acknowledgeable(partition, info, -1)
        assert committed is not None
        hosting.fetch(OTHER_ID, 1)
        await hosting.live(*REPLICAS)
        assert not committed.done()
        await hosting.live(NODE_ID, OTHER_ID)
        assert committed.done()
        assert high_watermark(hosting) == 1


async def test_commits_wait_for_a_dead_joiner_until_the_refusal(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await lead(hosting, isr=[NODE_ID, OTHER_ID])
        hosting.fetch(THIRD_ID, 0)
        await hosting.controller.next_request()
        partition, info = hosting.append(b"a")
        committed = hosting.replicas.when_acknowledgeable(partition, info, -1)
        assert committed is not None
        hosting.fetch(OTHER_ID, 1)
        await hosting.live(NODE_ID, OTHER_ID)
        assert not committed.done()  # it may have been stored that it is in sync
        await hosting.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
        assert committed.done()


@pytest.mark.parametrize("when", ["time passes", "a broker goes"])
async def test_a_partition_that_raises_does_not_stop_other_isr_shrinks(
    storage: Storage, when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_bad(leadership: Leadership) -> bool:
        return leadership._partition.index == 0

    async with storage.hosting() as hosting:
        await hosting.live(*REPLICAS)
        roles = [told(partition_index=index, replicas=REPLICAS, isr=REPLICAS, is_new=True) for index in (0, 1)]
        assert await hosting.lead(*roles) == [ErrorCode.NONE] * 2
        bug = Bug(monkeypatch, Leadership, "look_at_isr", is_bad)
        for index in (0, 1):
            hosting.append(b"a", index=index)
        storage.clock.advance(LAG_MS_MAX + 1)
        for _ in range(2):
            if when == "time passes":
                await hosting.replicas.look_at_isrs()
            else:
                await hosting.live(*REPLICAS)
                await hosting.live(NODE_ID, OTHER_ID)
        request = await hosting.controller.next_request()
        assert [asked.partition_index for asked in request.topics[0].partitions] == [1]
        aside = hosting.replicas.set_aside_isrs
        assert aside.members == [hosting.partition(0)]
        assert caplog.text.count("Traceback") == 1
        bug.is_there = False
        storage.clock.advance(3_600_000)
        await hosting.replicas.look_at_isrs()
        assert aside.members == []


async def test_a_partition_that_raises_does_not_stop_others_answers(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with storage.hosting() as hosting:
        await hosting.live(*REPLICAS)
        roles = [told(partition_index=index, replicas=REPLICAS, isr=REPLICAS, is_new=True) for index in range(3)]
        assert await hosting.lead(*roles) == [ErrorCode.NONE] * 3
        bug = Bug(monkeypatch, Leadership, "_answered", lambda leadership, *_: leadership._partition.index == 0)
        for index in range(3):
            hosting.append(b"a", index=index)
        storage.clock.advance(LAG_MS_MAX + 1)
        await hosting.replicas.look_at_isrs()

        async def store() -> list[int]:
            (topic,) = (await hosting.controller.next_request()).topics
            asked = [each.partition_index for each in topic.partitions]
            states = [
                ResponsePartitionData(partition_index=index, leader_id=NODE_ID, isr=[NODE_ID], partition_epoch=1)
                for index in asked
            ]
            await hosting.controller.answer(
                AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=states)])
            )
            return asked

        assert await store() == [0, 1, 2]
        assert [hosting.partition(index).state.isr for index in (1, 2)] == [(NODE_ID,)] * 2
        assert hosting.replicas.leaderships is not None
        aside = hosting.replicas.leaderships.alter_partitions.set_aside
        assert aside.members == [(TOPIC_ID, 0)]
        storage.clock.advance(RETRY_BACKOFF_MS)
        hosting.timers.fire_due()
        assert await hosting.controller.is_asked_nothing()
        bug.is_there = False
        storage.clock.advance(1_000)
        hosting.timers.fire_due()
        assert await store() == [0]
        assert hosting.partition(0).state.isr == (NODE_ID,)
        assert aside.members == []
        assert caplog.text.count("Traceback") == 1
