"""Markers for partitions that other brokers lead: gathered per broker, answered one by one, leaders looked up anew."""

import asyncio
import functools
import logging
from contextlib import AsyncExitStack

import pytest

from barnabas.broker.cluster.metadata import LEADER_DURING_DELETE, MetadataCache
from barnabas.broker.coordinators.transactions import marker_sender
from barnabas.broker.coordinators.transactions.events import AddPartitions, EndTransaction, InitProducerId
from barnabas.broker.coordinators.transactions.marker_sender import MarkerSender
from barnabas.broker.coordinators.transactions.markers import TransactionMarker
from barnabas.broker.coordinators.transactions.requests import write_txn_markers
from barnabas.broker.coordinators.transactions.retries import RETRY_DELAY_MS
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.controller.requests import FULL, INCREMENTAL
from barnabas.testing.contents.requests import ask
from barnabas.wire.codec import decode, encode
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.broker.coordinators.memory_log import MemoryLog
from tests.broker.running import running

HERE, OTHER, THIRD = 1, 2, 3
MARKER = TransactionMarker(7, 0, 4, is_commit=True, transaction_version=0)


class Local:
    """The partitions that this broker leads; `error` is raised instead of writing."""

    def __init__(self):
        self.written = []
        self.error = None

    def write(self, topic, partition, marker):
        if self.error is not None:
            raise ApiError(self.error)
        self.written.append((topic, partition, marker))


class Wire:
    """Other brokers: requests are kept until `answer` or `break_off` says what becomes of the oldest."""

    def __init__(self):
        self.requests = []
        self._answers = []

    def send(self, broker_id, request, version):
        request = decode(WriteTxnMarkersRequest, version, encode(request, version))  # what can be sent at all
        self.requests.append((broker_id, request))
        future = asyncio.get_running_loop().create_future()
        self._answers.append((request, future))
        return future

    def markers(self):
        """The partitions of each request so far."""
        return [
            (broker_id, [(t.name, i) for m in request.markers for t in m.topics for i in t.partition_indexes])
            for broker_id, request in self.requests
        ]

    async def answer(self, **errors):
        """Answer the oldest request: the errors of topics, NONE for all others."""
        request, future = self._answers.pop(0)
        future.set_result(
            WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=[
                            WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=[
                                    WritableTxnMarkerPartitionResult(
                                        partition_index=index, error_code=errors.get(topic.name, ErrorCode.NONE)
                                    )
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in marker.topics
                        ],
                    )
                    for marker in request.markers
                ]
            )
        )
        await turns()

    async def break_off(self, error):
        self._answers.pop(0)[1].set_exception(error)
        await turns()


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def tell(metadata, topics, request_type=INCREMENTAL):
    """Have the controller tell who leads the partitions of topics."""
    states = [
        UpdateMetadataTopicState(
            topic_name=name,
            topic_id=name.encode().rjust(16),
            partition_states=[
                UpdateMetadataPartitionState(partition_index=index, leader=leader, leader_epoch=1)
                for index, leader in enumerate(leaders)
                if leader is not None
            ],
        )
        for name, leaders in topics.items()
    ]
    await metadata.update(UpdateMetadataRequest(controller_id=HERE, type=request_type, topic_states=states))


class Bench:
    """A sender whose cluster has topics, by name the leader of each partition."""

    def __init__(self):
        self.metadata = MetadataCache()
        self.local = Local()
        self.wire = Wire()
        self.sender = MarkerSender(HERE, self.local, self.metadata, self.wire.send)

    async def up(self, **topics):
        await tell(self.metadata, topics, FULL)
        return self

    def write(self, topic, partition=0, marker=MARKER):
        return self.sender.write(topic, partition, marker)

    def refusal(self, topic, partition=0):
        with pytest.raises(ApiError) as refused:
            self.write(topic, partition)
        return refused.value.error


def error_of(written):
    assert written.done()
    return written.exception().error


def run(test):
    @functools.wraps(test)
    def wrapper(*arguments, **keywords):
        asyncio.run(test(*arguments, **keywords))

    return wrapper


@run
async def test_markers_go_to_each_leader_in_one_request():
    bench = await Bench().up(a=[HERE, OTHER, THIRD, OTHER], b=[OTHER])
    assert bench.write("a", 0) is None
    assert bench.local.written == [("a", 0, MARKER)]
    written = [bench.write("a", 1), bench.write("a", 2), bench.write("a", 3), bench.write("b", 0)]
    assert not bench.wire.requests, "nothing leaves before all of a turn are there"
    await turns()
    assert bench.wire.markers() == [(OTHER, [("a", 1), ("a", 3), ("b", 0)]), (THIRD, [("a", 2)])]
    assert bench.wire.requests[0][1] == write_txn_markers([(MARKER, ("a", 1)), (MARKER, ("a", 3)), (MARKER, ("b", 0))])
    assert not any(future.done() for future in written)
    await bench.wire.answer()
    assert [future.done() for future in written] == [True, False, True, True]
    assert written[0].result() is None


@run
async def test_one_request_at_a_time_is_under_way_to_a_broker():
    bench = await Bench().up(a=[OTHER] * 4, b=[THIRD])
    bench.write("a", 0)
    await turns()
    bench.write("a", 1)
    bench.write("a", 2)
    bench.write("b", 0)
    await turns()
    assert bench.wire.markers() == [(OTHER, [("a", 0)]), (THIRD, [("b", 0)])]
    await bench.wire.answer()
    assert bench.wire.markers()[2:] == [(OTHER, [("a", 1), ("a", 2)])]


@run
async def test_a_request_holds_so_many_markers_and_none_twice():
    bench = await Bench().up(a=[OTHER] * (marker_sender.MARKERS_PER_REQUEST + 1))
    for partition in range(marker_sender.MARKERS_PER_REQUEST + 1):
        bench.write("a", partition)
    await turns()
    assert len(bench.wire.markers()[0][1]) == marker_sender.MARKERS_PER_REQUEST
    first, newer = bench.write("a", 5), bench.write("a", 5, MARKER._replace(coordinator_epoch=5))
    await bench.wire.answer()
    assert bench.wire.markers()[1] == (OTHER, [("a", marker_sender.MARKERS_PER_REQUEST), ("a", 5)])
    await bench.wire.answer()
    assert (first.done(), newer.done()) == (True, False)
    assert bench.wire.requests[2][1].markers[0].coordinator_epoch == 5
    await bench.wire.answer()
    assert newer.done()


@run
async def test_only_metadata_tells_that_a_topic_is_gone():
    bench = Bench()
    await tell(bench.metadata, {"a": [OTHER]})
    assert bench.refusal("b") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "not all topics were told"
    await bench.up(a=[OTHER, None, OTHER, -1])
    assert bench.refusal("b") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.refusal("a", 4) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "made anew, with fewer partitions"
    assert bench.refusal("a", 1) is ErrorCode.LEADER_NOT_AVAILABLE, "exists, though nobody could tell of it"
    assert bench.refusal("a", 3) is ErrorCode.LEADER_NOT_AVAILABLE
    written = bench.write("a", 2)
    await turns()
    await bench.wire.answer(a=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert error_of(written) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "the word of a broker that does not host it"


@run
async def test_a_topic_that_the_controller_cannot_read_is_not_gone():
    """Its transactions would stay open for ever, were their markers taken for written."""
    bench = await Bench().up(a=[OTHER])
    unread = UpdateMetadataTopicState(topic_name="unread")
    await bench.metadata.update(UpdateMetadataRequest(type=FULL, topic_states=[unread]))
    assert bench.refusal("unread") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.refusal("b") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await tell(bench.metadata, {"unread": [OTHER]})
    assert not bench.write("unread", 0).done()


@run
async def test_markers_wait_for_topics_of_the_former_controller():
    """It gives roles first: a coordinator that gets one may have to end transactions in topics it never heard of."""
    bench = await Bench().up(a=[OTHER])
    assert bench.refusal("b") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await bench.metadata.note_roles(LeaderAndIsrRequest(controller_epoch=1))
    assert bench.refusal("b") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.refusal("a", 1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.write("a") is not None, "what is known need not wait"
    await bench.metadata.update(UpdateMetadataRequest(controller_epoch=1, type=FULL))
    assert bench.refusal("b") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await bench.sender.close()


@run
async def test_a_refusal_is_told_once(caplog):
    bench = await Bench().up(a=[OTHER])
    with caplog.at_level(logging.INFO):
        for error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE):
            written = bench.write("a")
            await turns()
            await bench.wire.answer(a=error)
            assert written.done()
            assert (written.exception() is None) == (error is ErrorCode.NONE)
    assert [record.getMessage() for record in caplog.records] == [
        "Broker 2 takes no transaction marker for a-0: NOT_ENOUGH_REPLICAS"
    ]


@run
async def test_a_deleted_topics_refusals_are_forgotten(caplog):
    """A refusal by one of the same name is told anew."""
    caplog.set_level(logging.INFO)
    bench = await Bench().up(t=[OTHER], u=[OTHER])
    for name in ("t", "u", "t", "u"):
        written = bench.write(name)
        await turns()
        await bench.wire.answer(**{name: ErrorCode.KAFKA_STORAGE_ERROR})
        assert error_of(written) is ErrorCode.KAFKA_STORAGE_ERROR
        await tell(bench.metadata, {"t": [LEADER_DURING_DELETE]})
        await tell(bench.metadata, {"t": [OTHER]})
    told = [record.getMessage() for record in caplog.records]
    assert [sum(f"{name}-0" in line for line in told) for name in ("t", "u")] == [2, 1]


@run
async def test_errors_are_those_of_each_partition():
    bench = await Bench().up(a=[OTHER], b=[OTHER], c=[OTHER])
    first, second, third = bench.write("a"), bench.write("b"), bench.write("c")
    await turns()
    await bench.wire.answer(a=ErrorCode.TRANSACTION_COORDINATOR_FENCED, b=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert error_of(first) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert error_of(second) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert third.result() is None


@run
async def test_a_broker_that_cannot_be_reached_is_told_once(caplog):
    bench = await Bench().up(a=[OTHER, OTHER])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            written = bench.write("a")
            await turns()
            await bench.wire.break_off(ConnectionRefusedError("refused"))
            assert error_of(written) is ErrorCode.NETWORK_EXCEPTION
        assert [record.getMessage() for record in caplog.records] == [
            "Transaction markers: no response from broker 2, retrying: refused"
        ]
        written = bench.write("a")
        await turns()
        await bench.wire.answer()
        assert written.result() is None


@run
async def test_an_answer_that_leaves_a_marker_out_is_none():
    bench = await Bench().up(a=[OTHER])
    written = bench.write("a")
    await turns()
    bench.wire._answers.pop()[1].set_result(WriteTxnMarkersResponse())
    await turns()
    assert error_of(written) is ErrorCode.UNKNOWN_SERVER_ERROR


@run
async def test_markers_behind_a_silent_broker_go_to_the_new_leader():
    bench = await Bench().up(a=[OTHER, OTHER, OTHER])
    under_way = bench.write("a", 0)
    await turns()
    moved, stays = bench.write("a", 1), bench.write("a", 2)
    await tell(bench.metadata, {"a": [OTHER, THIRD, OTHER]})
    assert error_of(moved) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not under_way.done()
    bench.write("a", 1)
    await turns()
    assert bench.wire.markers()[-1] == (THIRD, [("a", 1)])
    await bench.wire.answer()
    assert bench.wire.markers()[-1] == (OTHER, [("a", 2)])
    assert not stays.done()


@run
async def test_closing_gives_up_what_is_not_answered():
    bench = await Bench().up(a=[OTHER, OTHER])
    under_way = bench.write("a", 0)
    await turns()
    waiting = bench.write("a", 1)
    await bench.sender.close()
    assert (under_way.cancelled(), waiting.cancelled()) == (True, True)
    await tell(bench.metadata, {"a": [THIRD, THIRD]})


class Coordinator:
    """A coordinator of transactions whose partitions are those of other brokers, which run."""

    def __init__(self, brokers):
        self.brokers = brokers
        self.metadata = MetadataCache()
        self.clock = ManualClock(now_ms=1_000_000)
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.sender = MarkerSender(HERE, Local(), self.metadata, self.send)
        self.service = TransactionService(
            MemoryLog(), self.sender, self.timers, self.clock, TransactionSettings(), 1, self.next_id
        )

    async def send(self, broker_id, request, version):
        return await ask(self.brokers[broker_id], request, version)

    async def next_id(self):
        return 4000

    async def up(self):
        self.service.runtime.on_elected(0, 3)
        await self.service.start()
        await self.settled()

    async def settled(self):
        while work := [*self.service.runtime.running(), *self.sender._batches._tasks.values()]:
            await asyncio.wait(work)

    async def commit(self, partitions):
        """Run a transaction on partitions up to its prepared end."""
        producer = (await self.service.producer(InitProducerId("t", 0, 60_000)))[1:]
        await self.service.partitions(AddPartitions("t", 0, *producer, frozenset(partitions), 0))
        assert (await self.service.producer(EndTransaction("t", 0, *producer, True, 0))).error is ErrorCode.NONE
        await self.settled()

    async def retry(self):
        self.clock.advance(RETRY_DELAY_MS)
        self.timers.fire_due()
        await self.settled()

    @property
    def state(self):
        return self.service.describe("t").state


def end_offset(broker, topic):
    return broker.replicas.partition_or_error(topic, 0).log.log_end_offset


@run
async def test_a_transaction_ends_at_all_leaders_of_its_partitions(tmp_path):
    """Also where the word of a new leader comes late: a broker that does not host the partition yet, and says so as if
    there were no such topic, is asked again.
    """
    async with AsyncExitStack() as stack:
        brokers = {
            number: await stack.enter_async_context(running(tmp_path / str(number), broker_id=str(number)))
            for number in (OTHER, THIRD)
        }
        for broker, name in ((brokers[OTHER], "a"), (brokers[THIRD], "b")):
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            await ask(broker, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        coordinator = Coordinator(brokers)
        await tell(coordinator.metadata, {"a": [OTHER], "b": [OTHER]}, FULL)  # of b that is not so
        await coordinator.up()
        await coordinator.commit([("a", 0), ("b", 0)])
        assert coordinator.service.describe("t").partitions == {("b", 0)}
        assert coordinator.state is TransactionState.PREPARE_COMMIT
        await coordinator.retry()
        assert coordinator.state is TransactionState.PREPARE_COMMIT
        await tell(coordinator.metadata, {"b": [THIRD]})
        await coordinator.retry()
        assert coordinator.state is TransactionState.COMPLETE_COMMIT
        assert (end_offset(brokers[OTHER], "a"), end_offset(brokers[THIRD], "b")) == (1, 1)
        await coordinator.service.stop()
        await coordinator.sender.close()
