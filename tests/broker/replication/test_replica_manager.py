"""Requests of the controller, appends and acknowledgements, over a real log directory and without a broker."""

import asyncio
import errno
import gc
from pathlib import Path

import pytest

from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.controller.requests import FULL
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import StorageError
from barnabas.storage.validation import CHEAP_RECORDS_MAX, AppendOrigin, ExpensiveBatch
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.names import TopicId
from tests.broker.replication.conftest import (
    NODE_ID,
    OTHER_ID,
    TOPIC_ID,
    Hosting,
    Storage,
    batch_of,
    no_room,
    told,
)

NONE = ErrorCode.NONE
ANOTHER_TOPIC_ID = TopicId(bytes(range(2, 18)))


def error_of_append(hosting: Hosting, acks: int = -1, index: int = 0) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        hosting.append(b"x", index=index, acks=acks)
    return refused.value.error


async def test_a_partition_that_is_led_takes_appends_and_commits_them(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        assert await hosting.lead(told(is_new=True, leader_epoch=4)) == [NONE]
        assert hosting.elected == ["t-0"]
        partition, info = hosting.append(b"a", b"b")
        assert (info.base_offset, info.last_offset) == (0, 1)
        assert partition.log.high_watermark == 2
        assert partition.log.leader_epochs.epoch_for(1) == 4
        assert hosting.replicas.when_acknowledgeable(partition, info, -1) is None
        assert hosting.replicas.appended_bytes == len(batch_of(b"a", b"b"))


async def test_a_partition_not_hosted_here_is_unknown_or_led_elsewhere(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        assert error_of_append(hosting) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        state = UpdateMetadataPartitionState(partition_index=0, leader=OTHER_ID, replicas=[OTHER_ID], isr=[OTHER_ID])
        topic = UpdateMetadataTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=[state])
        await hosting.metadata.update(UpdateMetadataRequest(topic_states=[topic]))
        assert error_of_append(hosting) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert error_of_append(hosting, index=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_follower_and_a_lone_leader_refuse(storage: Storage) -> None:
    storage.config = LogConfig(min_insync_replicas=2)
    async with storage.hosting() as hosting:
        replicas = [NODE_ID, OTHER_ID]
        await hosting.lead(told(is_new=True, leader=OTHER_ID, replicas=replicas, isr=replicas))
        assert hosting.elected == []
        assert error_of_append(hosting) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await hosting.lead(told(leader_epoch=1, replicas=replicas))
        assert error_of_append(hosting) is ErrorCode.NOT_ENOUGH_REPLICAS
        hosting.append(b"x", acks=1)


async def test_an_earlier_leader_epoch_changes_nothing(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True, leader_epoch=3))
        assert await hosting.lead(told(leader_epoch=2), told(partition_index=1, is_new=True)) == [
            ErrorCode.STALE_CONTROLLER_EPOCH,
            NONE,
        ]
        assert await hosting.stop(0, delete=True, leader_epoch=2) == [ErrorCode.FENCED_LEADER_EPOCH]
        assert hosting.partition().state.leader_epoch == 3
        assert hosting.elected == ["t-0", "t-1"]
        assert hosting.resigned == []


@pytest.mark.parametrize("leader_epoch", [3, 4, -1, -2])
async def test_a_deletion_stops_a_replica_in_any_leader_epoch(storage: Storage, leader_epoch: int) -> None:
    """Other stops need the replica's leader epoch."""
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True, leader_epoch=3))
        assert await hosting.stop(0, delete=True, leader_epoch=leader_epoch) == [NONE]
        assert hosting.replicas.partition("t", 0) is None
        assert hosting.resigned == ["t-0"]


async def test_a_topic_that_was_made_anew_is_another(storage: Storage) -> None:
    """Its id differs. The log of the earlier topic is set aside, and not deleted."""
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        hosting.append(b"a")
        another = told(leader_epoch=7)
        assert await hosting.lead(another, topic_id=ANOTHER_TOPIC_ID) == [ErrorCode.INCONSISTENT_TOPIC_ID]
        assert hosting.partition().log.log_end_offset == 1
        assert await hosting.lead(told(is_new=True), topic_id=ANOTHER_TOPIC_ID) == [NONE]
        assert hosting.partition().log.log_end_offset == 0
        assert hosting.resigned == ["t-0"]
        assert hosting.elected == ["t-0", "t-0"]


async def test_a_partition_is_offline_until_its_log_can_be_created(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        storage.files.open_error = no_room()
        assert await hosting.lead(told(is_new=True)) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert error_of_append(hosting) is ErrorCode.KAFKA_STORAGE_ERROR
        storage.files.open_error = None
        assert await hosting.lead(told(is_new=True)) == [NONE]
        hosting.append(b"x")


async def test_a_file_in_a_logs_place_keeps_its_partition_offline(
    storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the file, and other partitions are created beside it."""
    (tmp_path / "t-0").write_text("somebody's notes")
    async with storage.hosting() as hosting:
        both = told(is_new=True), told(partition_index=1, is_new=True)
        assert await hosting.lead(*both) == [ErrorCode.KAFKA_STORAGE_ERROR, NONE]
        assert f"{tmp_path / 't-0'} is in the way of a new log" in caplog.text
        assert error_of_append(hosting) is ErrorCode.KAFKA_STORAGE_ERROR
        hosting.append(b"x", index=1)
        (tmp_path / "t-0").rename(tmp_path / "notes")
        assert await hosting.lead(told(is_new=True)) == [NONE]
        hosting.append(b"x")


@pytest.mark.parametrize("name", ["../t", "a/b", "..", "", "a\x00b", "t" * 250])
@pytest.mark.parametrize("is_new", [True, False])
async def test_a_name_that_no_topic_can_have_makes_no_file(
    storage: Storage, tmp_path: Path, name: str, *, is_new: bool
) -> None:
    """Names come from other brokers, and from znodes that any program may write. A log's directory has the name of its
    topic."""

    def files() -> set[Path]:
        return set(tmp_path.rglob("*"))

    async with storage.hosting() as hosting:
        before = files()
        assert await hosting.lead(told(is_new=is_new), topic=name) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert files() == before
        assert await hosting.lead(told(is_new=True)) == [NONE]


@pytest.mark.parametrize("delete", [True, False])
async def test_a_stopped_replica_is_no_longer_hosted(storage: Storage, *, delete: bool) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True), told(partition_index=1, is_new=True))
        stopped = hosting.partition()
        assert await hosting.stop(0, delete=delete) == [NONE]
        assert hosting.resigned == ["t-0"]
        assert not stopped.state.is_leader
        assert hosting.replicas.hosted(stopped.log) is None
        assert hosting.replicas.hosted(hosting.partition(1).log) is hosting.partition(1)
        assert (storage.manager.get("t", 0) is None) == delete
        assert error_of_append(hosting) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_new_controllers_states_remove_moved_replicas(storage: Storage, tmp_path: Path) -> None:
    """The controller that moved the replica lost its session, or its connection, before it could send that. The log is
    in the way of no later topic of the name."""
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True), told(partition_index=1, is_new=True))
        await hosting.replicas.let_go()
        assert hosting.resigned == [], "of a topic that nobody knows"
        for topic_id, resigned in ((bytes(16), []), (TOPIC_ID, ["t-0"])):
            states = [
                UpdateMetadataPartitionState(partition_index=index, leader=leader, replicas=[leader], isr=[leader])
                for index, leader in ((0, OTHER_ID), (1, NODE_ID))
            ]
            topic = UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=states)
            await hosting.metadata.update(UpdateMetadataRequest(type=FULL, topic_states=[topic]))
            await hosting.replicas.let_go()
            assert hosting.resigned == resigned
        assert error_of_append(hosting) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert storage.manager.get("t", 0) is None
        assert len(list(tmp_path.glob("t-0.*-stray"))) == 1  # noqa: ASYNC240
        assert hosting.partition(1).state.is_leader
        assert await hosting.lead(told(leader_epoch=9), topic_id=bytes(range(16, 32))) == [NONE], "a later one"


async def test_a_leader_that_follows_now_resigns(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        await hosting.lead(told(leader=OTHER_ID, leader_epoch=1, replicas=[NODE_ID, OTHER_ID], isr=[OTHER_ID]))
        assert (hosting.elected, hosting.resigned) == (["t-0"], ["t-0"])


async def test_a_full_directory_takes_records_of_coordinators_only(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        (directory,) = map(str, storage.manager.directories)
        hosting.replicas.limit_appends({directory: 0})
        with pytest.raises(StorageError, match="full"):
            hosting.append(b"x")
        hosting.replicas.append("t", 0, batch_of(b"x"), -1, 0, AppendOrigin.COORDINATOR)
        hosting.replicas.limit_appends({directory: 1 << 40})
        hosting.append(b"x")


async def test_a_change_of_settings_has_many_records_checked_again(storage: Storage) -> None:
    """They are checked before the append, in a thread."""
    storage.config = LogConfig(validate_records=True)
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        replicas, batch = hosting.replicas, batch_of(*[b"x"] * (CHEAP_RECORDS_MAX + 1))
        with pytest.raises(ExpensiveBatch):
            replicas.append("t", 0, batch, -1, 11)
        validated = await replicas.validate("t", 0, batch, -1, 11)
        storage.config = LogConfig(validate_records=True, segment_bytes=1 << 20)
        replicas.reconfigure("t")
        with pytest.raises(ExpensiveBatch):
            replicas.append("t", 0, batch, -1, 11, validated=validated)
        _, info = replicas.append("t", 0, batch, -1, 11, validated=await replicas.validate("t", 0, batch, -1, 11))
        assert info.last_offset == CHEAP_RECORDS_MAX


async def test_no_records_are_refused(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        with pytest.raises(ApiError) as refused:
            hosting.replicas.append("t", 0, None, -1, 11)
        assert refused.value.error is ErrorCode.INVALID_RECORD


async def test_the_acknowledgement_waits_for_the_topics_flush(storage: Storage) -> None:
    """flush.messages, with any acks."""
    storage.config = LogConfig(flush_messages=1)
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        partition, info = hosting.append(b"a", acks=1)
        acknowledged = hosting.replicas.when_acknowledgeable(partition, info, 1)
        assert acknowledged is not None
        assert partition.log.recovery_point == 0
        await acknowledged
        assert partition.log.recovery_point == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_flush_that_fails_is_told_once(storage: Storage, *, is_given_up: bool) -> None:
    """The flush for flush.messages and the commit wait for the same sync."""
    storage.config = LogConfig(flush_messages=1)
    async with storage.hosting(flush_before_ack=True) as hosting:
        await hosting.lead(told(is_new=True))
        storage.files.sync_error = OSError(errno.EIO, "as asked")
        storage.files.go_on.clear()
        partition, info = hosting.append(b"a")
        acknowledged = hosting.replicas.when_acknowledgeable(partition, info, -1)
        assert acknowledged is not None
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        await storage.files.reached(1)
        if is_given_up:
            acknowledged.cancel()
        storage.files.go_on.set()
        with pytest.raises(asyncio.CancelledError if is_given_up else StorageError):
            await acknowledged
        while under_way := hosting.replicas.flusher.under_way():
            await asyncio.wait(under_way)
        del acknowledged
        gc.collect()
        assert complaints == []


@pytest.mark.parametrize(("acks", "waits"), [(-1, True), (1, True), (0, False)])
async def test_with_flush_before_ack_the_flush_commits(storage: Storage, acks: int, *, waits: bool) -> None:
    async with storage.hosting(flush_before_ack=True) as hosting:
        await hosting.lead(told(is_new=True))
        storage.files.go_on.clear()
        partition, info = hosting.append(b"a", acks=acks)
        assert partition.log.high_watermark == 0
        acknowledged = hosting.replicas.when_acknowledgeable(partition, info, acks)
        assert (acknowledged is not None) == waits
        storage.files.go_on.set()
        if acknowledged is not None:
            await acknowledged
            assert partition.log.high_watermark == 1


async def test_deleted_records_wake_readers_that_wait_there(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        partition, _ = hosting.append(b"a", b"b")
        called: list[int] = []
        partition.add_listener(lambda moved: called.append(moved.log.log_start_offset))
        hosting.replicas.delete_records(partition, 1)
        assert called == [1]


async def test_settings_reach_the_partitions_of_their_topic(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(is_new=True))
        storage.config = LogConfig(segment_bytes=12345)
        hosting.replicas.reconfigure("another")
        assert hosting.partition().log.config.segment_bytes != 12345
        hosting.replicas.reconfigure("t")
        assert hosting.partition().log.config.segment_bytes == 12345
        storage.config = LogConfig(segment_bytes=54321)
        hosting.replicas.reconfigure_all()
        assert hosting.partition().log.config.segment_bytes == 54321


def test_a_manager_is_made_without_an_event_loop(storage: Storage) -> None:
    """The futures and tasks that it keeps belong to the loop that runs when it is used."""
    assert isinstance(Hosting(storage, flush_before_ack=False).replicas, ReplicaManager)
