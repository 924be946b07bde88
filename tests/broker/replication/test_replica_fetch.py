"""Fetches of followers: the responses, what they report to the leader, and which brokers are refused. The other brokers
exist for the controller only; their requests come through the real handler."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.configuration.changes import TOPIC
from barnabas.broker.replication.followers import REST_MS
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.throttles import Throttle
from barnabas.broker.server import Broker
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from barnabas.wire.messages.update_metadata import UpdateMetadataBroker, UpdateMetadataRequest
from barnabas.wire.names import TopicId
from barnabas.wire.records import Record, build_batch
from tests.broker.running import running
from tools.waiting import PATIENCE_S

LEADER, FIRST, SECOND = 1, 2, 3
REPLICAS = [LEADER, FIRST, SECOND]
FETCH_VERSION = 17
FAR_MS = 60_000
"""Longer than any test: what waits so long ends for another reason."""

LEADER_EPOCH = 5


class Cluster:
    """A broker that leads partition 0 of a topic with three replicas."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic_id = TopicId(bytes(16))

    async def lead(self, isr: list[int], leader_epoch: int = LEADER_EPOCH, partition_epoch: int = 7) -> None:
        await self.live(*REPLICAS)
        await self.broker.replicas.leader_and_isr(self.told(isr, leader_epoch, partition_epoch))

    def told(
        self, isr: list[int], leader_epoch: int = LEADER_EPOCH, partition_epoch: int = 7, *, index: int = 0
    ) -> LeaderAndIsrRequest:
        state = LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=LEADER,
            leader_epoch=leader_epoch,
            isr=isr,
            replicas=REPLICAS,
            partition_epoch=partition_epoch,
        )
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=self.topic_id, partition_states=[state])
        return LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic])

    async def live(self, *broker_ids: int) -> None:
        digests = self.broker.controller.secret_digests
        digests.clear()
        digests |= dict.fromkeys(broker_ids, "")  # none of them has a secret that it would have to show
        brokers = [UpdateMetadataBroker(id=broker_id) for broker_id in broker_ids]
        await self.broker.metadata.update(UpdateMetadataRequest(controller_id=LEADER, live_brokers=brokers))

    @property
    def partition(self) -> Partition:
        return self.broker.replicas.partition_or_error("t", 0)

    def produce(self, *values: bytes, acks: int = -1) -> "asyncio.Task[Any]":
        batch = build_batch([Record(offset, 1, None, value, [], 0) for offset, value in enumerate(values)])
        data = PartitionProduceData(index=0, records=bytearray(batch))
        topic = TopicProduceData(name="t", partition_data=[data])
        return begin(ask(self.broker, ProduceRequest(acks=acks, timeout_ms=FAR_MS, topic_data=[topic]), 12))

    def fetch(self, replica_id: int, offset: int, **given: Any) -> "asyncio.Task[PartitionData]":
        return begin(self._fetch(replica_id, offset, **given))

    async def _fetch(
        self,
        replica_id: int,
        offset: int,
        *,
        wait_ms: int = 0,
        min_bytes: int = 1,
        last_fetched_epoch: int = LEADER_EPOCH,
        leader_epoch: int = LEADER_EPOCH,
        log_start_offset: int = 0,
        session: tuple[int, int] = (0, -1),
    ) -> PartitionData:
        partition = FetchPartition(
            partition=0,
            fetch_offset=offset,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=log_start_offset,
            partition_max_bytes=1 << 20,
        )
        response = await ask(
            self.broker,
            FetchRequest(
                replica_state=ReplicaState(replica_id=replica_id, replica_epoch=80),
                max_wait_ms=wait_ms,
                min_bytes=min_bytes,
                max_bytes=1 << 20,
                session_id=session[0],
                session_epoch=session[1],
                topics=[FetchTopic(topic_id=self.topic_id, partitions=[partition])],
            ),
            FETCH_VERSION,
        )
        assert response.error_code == 0
        self.session_id = response.session_id
        data: PartitionData = response.responses[0].partitions[0]
        return data


def begin(work: Awaitable[Any]) -> "asyncio.Task[Any]":
    return asyncio.ensure_future(work)


async def settled() -> None:
    """Let the work that has begun run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def leading(tmp_path: Path, isr: list[int], **configs: str) -> AsyncIterator[Cluster]:
    async with running(tmp_path, node_id=str(LEADER), **configs) as broker:
        cluster = Cluster(broker)
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        created = await ask(broker, CreateTopicsRequest(topics=[topic], timeout_ms=FAR_MS), 7)
        assert created.topics[0].error_code == 0
        cluster.topic_id = TopicId(bytes(created.topics[0].topic_id))
        await cluster.lead(isr)
        yield cluster


async def test_a_record_is_acknowledged_when_the_isr_fetches_behind_it(tmp_path: Path) -> None:
    async with leading(tmp_path, REPLICAS) as cluster:
        waiting = [cluster.fetch(replica, 0, wait_ms=FAR_MS, last_fetched_epoch=-1) for replica in (FIRST, SECOND)]
        await settled()
        produced = cluster.produce(b"a")
        for fetch in waiting:
            data = await fetch
            assert len(data.records) > 0
            assert data.high_watermark == 0, "not committed, and given to a replica all the same"
        assert not produced.done()
        first = cluster.fetch(FIRST, 1, wait_ms=FAR_MS)
        await settled()
        assert not produced.done()
        data = await cluster.fetch(SECOND, 1)
        assert data.high_watermark == 1, "its own fetch made it so"
        assert (await produced).responses[0].partition_responses[0].error_code == 0
        assert not first.done(), "that it is committed ends no wait"
        await cluster.produce(b"b", acks=1)
        assert (await first).high_watermark == 1
        assert cluster.partition.bytes_out == 0, "what replicas are given is not what consumers read"


async def test_a_consumer_is_given_what_is_committed_as_soon_as_it_is(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        await cluster.produce(b"a", acks=1)
        consumer = begin(
            ask(
                cluster.broker,
                FetchRequest(
                    max_wait_ms=FAR_MS,
                    min_bytes=1,
                    max_bytes=1 << 20,
                    session_epoch=-1,
                    topics=[
                        FetchTopic(topic_id=cluster.topic_id, partitions=[FetchPartition(partition_max_bytes=1 << 20)])
                    ],
                ),
                FETCH_VERSION,
            )
        )
        await settled()
        assert not consumer.done()
        await cluster.fetch(FIRST, 1)
        data = (await consumer).responses[0].partitions[0]
        assert len(data.records) > 0


@pytest.mark.parametrize(
    ("offset", "last_fetched_epoch", "error"),
    [
        (2, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (2, LEADER_EPOCH, ErrorCode.NONE),  # more than this leader wrote: the logs diverge
        (1, 9, ErrorCode.OFFSET_OUT_OF_RANGE),  # an epoch that nobody knows
        (1, 3, ErrorCode.NONE),  # of a leader that is not known here: they diverge, too
    ],
)
async def test_a_fetch_from_another_history_tells_nothing(
    tmp_path: Path, offset: int, last_fetched_epoch: int, error: ErrorCode
) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        produced = cluster.produce(b"a")
        await settled()
        data = await cluster.fetch(FIRST, offset, wait_ms=FAR_MS, last_fetched_epoch=last_fetched_epoch)
        assert data.error_code == error
        assert (data.diverging_epoch.epoch >= 0) is (error is ErrorCode.NONE)
        assert cluster.partition.log.high_watermark == 0
        produced.cancel()


@pytest.mark.parametrize("epoch", [LEADER_EPOCH - 1, LEADER_EPOCH + 1])
async def test_a_fetch_of_another_leader_epoch_tells_nothing(tmp_path: Path, epoch: int) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        await cluster.produce(b"a", acks=1)
        data = await cluster.fetch(FIRST, 1, leader_epoch=epoch)
        expected = ErrorCode.FENCED_LEADER_EPOCH if epoch < LEADER_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
        assert data.error_code == expected
        assert cluster.partition.log.high_watermark == 0


async def test_a_fetcher_without_replica_or_registration_is_unknown(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        await cluster.live(LEADER, FIRST, 4)
        cluster.broker.controller.secret_digests[SECOND] = ""  # of whose registration the metadata have not heard
        for replica in (SECOND, 4, LEADER):
            data = await cluster.fetch(replica, 0)
            assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_replica_on_a_listener_for_clients_is_refused(tmp_path: Path) -> None:
    async with leading(
        tmp_path,
        [LEADER, FIRST],
        listeners="CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        inter_broker_listener_name="BROKERS",
    ) as cluster:
        await cluster.produce(b"a", acks=1)
        data = await cluster.fetch(FIRST, 1, wait_ms=FAR_MS, session=(0, 0))
        assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert cluster.session_id == 0
        assert cluster.partition.log.high_watermark == 0


async def test_the_leader_proposes_a_joining_replica_to_the_controller(tmp_path: Path) -> None:
    """This controller knows no other broker, and so refuses."""
    async with leading(tmp_path, [LEADER]) as cluster:
        leaderships = cluster.broker.replicas.leaderships
        assert leaderships is not None
        # As if the state that the controller has stored were of these replicas.
        await cluster.broker.replicas.stop_replica(
            StopReplicaRequest(
                controller_epoch=1,
                topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[StopReplicaPartitionState()])],
            )
        )
        await cluster.lead([LEADER], leader_epoch=0, partition_epoch=0)
        await cluster.fetch(FIRST, 0, leader_epoch=0, last_fetched_epoch=-1)
        async with asyncio.timeout(PATIENCE_S):
            await leaderships.alter_partitions.answered()
        assert leaderships.failed_isr_updates == 1


async def test_sessions_of_replicas_are_their_own(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER, FIRST], max_incremental_fetch_session_cache_slots="0") as cluster:
        await cluster.fetch(FIRST, 0, last_fetched_epoch=-1, session=(0, 0))
        assert cluster.session_id != 0
        services = cluster.broker.services
        assert (len(services.fetch_sessions), len(services.replica_fetch_sessions)) == (0, 1)
        await cluster.produce(b"a", acks=1)
        data = await cluster.fetch(FIRST, 1, session=(cluster.session_id, 1))
        assert data.high_watermark == 1


class Session:
    """A follower's session of partition 0 and of empty partitions; it requests each offset once."""

    def __init__(self, cluster: Cluster, replica_id: int, *others: int) -> None:
        self._cluster = cluster
        self._replica_id = replica_id
        self._others = others
        self._id = self._epoch = 0
        self.broker_epoch = 80

    def fetch(self, offset: int | None = None, *, wait_ms: int = 0, forgets: bool = False) -> "asyncio.Task[Any]":
        """The data of the partition; None if the response omits it."""
        return begin(self._fetch(offset, wait_ms, forgets=forgets))

    async def _fetch(self, offset: int | None, wait_ms: int, *, forgets: bool) -> PartitionData | None:
        others = () if self._epoch else self._others
        offsets = dict.fromkeys(others, 0) if offset is None else {0: offset, **dict.fromkeys(others, 0)}
        partitions = [
            FetchPartition(
                partition=index,
                fetch_offset=from_offset,
                current_leader_epoch=LEADER_EPOCH,
                last_fetched_epoch=LEADER_EPOCH if from_offset else -1,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            for index, from_offset in offsets.items()
        ]
        topic_id = self._cluster.topic_id
        response = await ask(
            self._cluster.broker,
            FetchRequest(
                replica_state=ReplicaState(replica_id=self._replica_id, replica_epoch=self.broker_epoch),
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=self._id,
                session_epoch=self._epoch,
                topics=[FetchTopic(topic_id=topic_id, partitions=partitions)] if partitions else [],
                forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=[0])] if forgets else [],
            ),
            FETCH_VERSION,
        )
        assert response.error_code == 0
        self._id, self._epoch = response.session_id, self._epoch + 1
        told = [data for topic in response.responses for data in topic.partitions if data.partition_index == 0]
        return told[0] if told else None


async def rest(cluster: Cluster, *replicas: int) -> list[Session]:
    """Sessions of followers that lack no records, whose second fetch had an empty response."""
    sessions = [Session(cluster, replica) for replica in replicas]
    for session in sessions:
        assert await session.fetch(cluster.partition.log.log_end_offset) is not None
    for session in sessions:
        await session.fetch()
        assert await session.fetch() is None
    return sessions


async def test_a_waiting_fetch_gets_records_of_unnamed_partitions(tmp_path: Path) -> None:
    async with leading(tmp_path, REPLICAS) as cluster:
        first, second = await rest(cluster, FIRST, SECOND)
        waiting = first.fetch(wait_ms=FAR_MS)
        await settled()
        assert not waiting.done(), "there is nothing to look at"
        await cluster.produce(b"a", acks=1)
        assert len((await waiting).records) > 0
        for session in (first, second):
            await session.fetch(1)
        assert cluster.partition.log.high_watermark == 1
        assert (await first.fetch()).high_watermark == 1, "the other's fetch made it so"
        assert await first.fetch() is None


async def test_a_resting_follower_keeps_up_by_fetching(tmp_path: Path) -> None:
    async with leading(tmp_path, REPLICAS) as cluster:
        first, second = await rest(cluster, FIRST, SECOND)
        clock: Any = cluster.broker.clock
        for _ in range(3):
            clock.advance(20_000)  # of the 30 s that a follower may take
            for session in (first, second):
                assert await session.fetch() is None
        await cluster.produce(b"a", acks=1)
        clock.advance(29_999)
        assert await proposed(cluster) is None
        await second.fetch(1)
        clock.advance(2)
        assert await proposed(cluster) == (LEADER, SECOND), "it had everything 30 s ago, at its last fetch"


async def test_a_resting_follower_is_known_by_its_present_registration(tmp_path: Path) -> None:
    """It has registered again, and the controller refuses an ISR with its former broker epoch, whichever broker
    joins."""
    async with leading(tmp_path, REPLICAS) as cluster:
        first, second = await rest(cluster, FIRST, SECOND)
        leadership = cluster.partition.leadership
        assert leadership is not None
        first.broker_epoch = 90
        assert await first.fetch() is None, "it has nothing to tell of the partition"
        assert leadership.followers.broker_epochs([FIRST, SECOND]) == {FIRST: 90, SECOND: 80}
        assert leadership.followers.is_outdated(FIRST, 80)
        await first.fetch(forgets=True)
        assert leadership.followers.broker_epochs([FIRST]) == {FIRST: 90}
        await second.fetch(0)
        assert leadership.followers.broker_epochs([SECOND]) == {SECOND: 80}


async def test_fetches_of_others_do_not_keep_a_partition_in_sync(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        await cluster.broker.replicas.leader_and_isr(cluster.told([LEADER, FIRST], index=1))
        first = Session(cluster, FIRST, 1)
        await first.fetch(0)
        assert await first.fetch() is None
        await first.fetch(forgets=True)
        clock: Any = cluster.broker.clock
        await cluster.produce(b"a", acks=1)
        clock.advance(30_001)
        await first.fetch()
        assert await proposed(cluster) == (LEADER,)


async def test_a_follower_is_checked_until_it_may_join(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER]) as cluster:
        leadership = cluster.partition.leadership
        assert leadership is not None
        session = Session(cluster, FIRST)
        await session.fetch(0)
        proposal = leadership.followers.proposal
        assert proposal is not None
        leadership.followers.refused(proposal, ErrorCode.INELIGIBLE_REPLICA, cluster.broker.clock.monotonic_ms())
        await session.fetch()
        assert leadership.followers.proposal is None
        cluster.broker.clock.advance(REST_MS)  # type: ignore[attr-defined]
        await session.fetch()
        assert leadership.followers.proposal is not None


async def test_a_fetch_of_many_partitions_reads_only_changed_ones(tmp_path: Path) -> None:
    async with leading(tmp_path, REPLICAS) as cluster:
        [first] = await rest(cluster, FIRST)
        session = next(iter(cluster.broker.services.replica_fetch_sessions._sessions.values()))
        assert len(session.attention) == 0
        await cluster.produce(b"a", acks=1)
        assert len((await first.fetch()).records) > 0
        assert [asked.key for asked in session.attention.awake()] == [(cluster.topic_id, 0)]
        await first.fetch(1)
        assert len(session.attention) == 1, "what was just asked for is likely to be asked for again"
        await first.fetch()
        assert len(session.attention) == 0


async def test_records_read_twice_pass_a_throttle_once(tmp_path: Path) -> None:
    """A fetch that waits for more records reads the present ones when it begins, and when its wait ends."""
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        throttle = await throttled(cluster)
        await cluster.produce(b"a", acks=1)
        data = await cluster.fetch(FIRST, 0, last_fetched_epoch=-1, min_bytes=1 << 20, wait_ms=1)
        assert len(data.records) > 0, "it is in sync"
        assert throttle._left == -len(data.records)  # to which nothing is added at this rate


async def test_a_replica_needed_for_acknowledgements_is_not_throttled(tmp_path: Path) -> None:
    """The replica caught up with the log as of its last fetch, but another record has come since: acknowledgements wait
    for the replica, and it joins the ISR once it has the record."""
    async with leading(tmp_path, [LEADER]) as cluster:
        await cluster.produce(b"a", acks=1)
        assert (await cluster.fetch(FIRST, 0, last_fetched_epoch=-1)).records
        await cluster.produce(b"b", acks=1)
        throttle = await throttled(cluster)
        assert not (await cluster.fetch(SECOND, 0, last_fetched_epoch=-1)).records
        assert (await cluster.fetch(FIRST, 1)).records
        assert throttle._left < 0, "its bytes count"
        assert await proposed(cluster) is None
        await cluster.produce(b"c", acks=1)
        assert cluster.partition.log.high_watermark == 2
        assert (await cluster.fetch(FIRST, 2)).records
        assert await proposed(cluster) == (LEADER, FIRST)


async def throttled(cluster: Cluster) -> Throttle:
    """The throttle of the topic's followers, at a rate of 0."""
    listed = AlterableConfig(name="leader.replication.throttled.replicas", value="*")
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[listed])
    answer = await ask(cluster.broker, IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert [each.error_code for each in answer.responses] == [0]
    leaderships = cluster.broker.replicas.leaderships
    assert leaderships is not None
    assert leaderships.throttle is not None
    leaderships.throttle.limit(0)
    assert leaderships.throttle.applies_to("t", 0)
    return leaderships.throttle


async def proposed(cluster: Cluster) -> tuple[int, ...] | None:
    """The ISR that the leader wants now, after a check of the lag of replicas."""
    await cluster.broker.replicas.look_at_isrs()
    leadership = cluster.partition.leadership
    assert leadership is not None
    proposal = leadership.followers.proposal
    return None if proposal is None else proposal.isr


async def test_records_are_deleted_once_the_live_replicas_have_heard(tmp_path: Path) -> None:
    async with leading(tmp_path, REPLICAS) as cluster:
        await cluster.produce(b"a", b"b", acks=1)
        for replica in (FIRST, SECOND):
            await cluster.fetch(replica, 2, session=(0, 0))
            session = (cluster.session_id, 1)
        waiting = cluster.fetch(SECOND, 2, wait_ms=FAR_MS, session=session)
        await settled()
        deletion = DeleteRecordsPartition(partition_index=0, offset=1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[deletion])], timeout_ms=FAR_MS)
        deleting = begin(ask(cluster.broker, request, 2))
        assert (await waiting).log_start_offset == 1, "the follower hears of it at once"
        await cluster.fetch(SECOND, 2, log_start_offset=1)
        assert not deleting.done()
        await cluster.fetch(FIRST, 2, log_start_offset=1)
        [result] = (await deleting).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (0, 1)


async def test_a_deletion_times_out_if_a_replica_does_not_learn_of_it(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        await cluster.produce(b"a", b"b", acks=1)
        for replica in (FIRST, SECOND):
            await cluster.fetch(replica, 2)
        deletion = DeleteRecordsPartition(partition_index=0, offset=-1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[deletion])], timeout_ms=1_000)
        deleting = begin(ask(cluster.broker, request, 2))
        await settled()
        cluster.broker.clock.advance(1_000)  # type: ignore[attr-defined]
        cluster.broker.timers.fire_due()
        [result] = (await deleting).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        assert cluster.partition.log.log_start_offset == 2


async def test_replicas_are_told_where_the_log_and_its_epochs_end(tmp_path: Path) -> None:
    async with leading(tmp_path, [LEADER, FIRST]) as cluster:
        await cluster.produce(b"a", b"b", acks=1)
        latest = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=LEADER_EPOCH)
        request = ListOffsetsRequest(replica_id=FIRST, topics=[ListOffsetsTopic(name="t", partitions=[latest])])
        [told] = (await ask(cluster.broker, request, 9)).topics[0].partitions
        assert (told.error_code, told.offset) == (0, 2)
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=LEADER_EPOCH, leader_epoch=LEADER_EPOCH)
        epochs = OffsetForLeaderEpochRequest(
            replica_id=FIRST, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
        )
        [end] = (await ask(cluster.broker, epochs, 4)).topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, LEADER_EPOCH, 2)
