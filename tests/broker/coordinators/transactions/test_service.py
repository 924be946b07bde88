"""The coordinator's shell over a log in memory: loading, replication, markers that fail, crashes at every step."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from barnabas.broker.coordinators.runner import STARTS_PER_TURN
from barnabas.broker.coordinators.transactions.events import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    PartitionsReply,
    ProducerIdAndEpoch,
    ProducerReply,
    TimeOut,
    VerifyPartitions,
)
from barnabas.broker.coordinators.transactions.retries import MARKERS_PER_TURN, RETRY_DELAY_MS, Retries
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.wire.errors import ApiError, ErrorCode
from tests.broker.coordinators.memory_log import Crash, MemoryLog

PARTITIONS = 4
TARGETS = frozenset({("a", 0), ("a", 1), ("__consumer_offsets", 7)})


class Markers:
    """The markers that were written into partitions; `errors` are raised once per entry, `crash_after` so many
    markers."""

    def __init__(self):
        self.written = []
        self.errors = {}
        self.futures = None
        self.crash_after = None
        self.tried = []
        self.refuses_all = False

    def write(self, topic, partition, marker):
        self.tried.append((topic, partition))
        if self.refuses_all:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.crash_after is not None and len(self.written) >= self.crash_after:
            raise Crash
        waiting = self.errors.get((topic, partition))
        if waiting:
            raise ApiError(waiting.pop(0))
        self.written.append((topic, partition, marker))
        if self.futures is None:
            return None
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return future

    def targets(self):
        return [(topic, partition) for topic, partition, _ in self.written]


class Bench:
    """A coordinator with its clock, log and partitions; `crash` makes a new one from what the log holds."""

    def __init__(self, log=None, first_id=1000, **settings):
        self.clock = ManualClock(now_ms=1_000_000)
        self.log = log or MemoryLog()
        self.markers = Markers()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.settings = TransactionSettings(**settings)
        self.ids = iter(range(first_id, first_id + 1000))
        self.service = TransactionService(
            self.log, self.markers, self.timers, self.clock, self.settings, PARTITIONS, self.next_id
        )

    async def next_id(self):
        await asyncio.sleep(0)
        return next(self.ids)

    async def up(self, epoch=1):
        for partition in range(PARTITIONS):
            self.service.runtime.on_elected(partition, epoch)
        await self.loaded()
        await self.service.start()
        await self.loaded()
        return self

    async def loaded(self):
        while work := self.service.runtime.running():
            await asyncio.wait(work)

    async def crash(self, epoch=2):
        self.timers.close()
        return await Bench(MemoryLog(self.log.batches), first_id=5000).up(epoch)

    def advance(self, ms):
        self.clock.advance(ms)
        self.timers.fire_due()

    async def init(self, expected=None):
        return await self.service.producer(InitProducerId("t", 0, 60_000, expected))

    async def add(self, producer, partitions=TARGETS, version=0):
        return await self.service.partitions(AddPartitions("t", 0, *producer, partitions, version))

    async def end(self, producer, is_commit=True, version=0):
        return await self.service.producer(EndTransaction("t", 0, *producer, is_commit, version))

    async def begin(self, version=0):
        producer = (await self.init())[1:]
        assert await self.add(producer, version=version) == PartitionsReply(ErrorCode.NONE)
        return producer

    @property
    def state(self):
        return self.service.describe("t").state


def run(test):
    """Runs a coroutine function as a test."""

    def wrapper():
        asyncio.run(test())

    wrapper.__name__ = test.__name__
    wrapper.__doc__ = test.__doc__
    return wrapper


@run
async def test_commits_with_markers_everywhere():
    bench = await Bench().up(epoch=3)
    producer = await bench.begin()
    assert await bench.end(producer) == ProducerReply(ErrorCode.NONE)
    assert sorted(bench.markers.targets()) == sorted(TARGETS)
    assert {marker for _, _, marker in bench.markers.written} == {(*producer, 3, True, 0)}
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert bench.service.describe("t").partitions == frozenset()


@run
async def test_version_2_writes_markers_under_the_next_epoch():
    bench = await Bench().up()
    producer_id, epoch = producer = await bench.begin(version=2)
    assert await bench.end(producer, is_commit=False, version=2) == (ErrorCode.NONE, producer_id, epoch + 1)
    assert {marker for _, _, marker in bench.markers.written} == {(producer_id, epoch + 1, 1, False, 2)}


@run
async def test_nothing_leaves_before_it_is_replicated():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.log.replicated = False
    ending = asyncio.ensure_future(bench.end(producer))
    await asyncio.sleep(0)
    assert not ending.done()
    assert not bench.markers.written
    assert (await bench.add(producer)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await bench.service.partitions(VerifyPartitions("t", 0, *producer, TARGETS))).error is (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    bench.log.replicate()
    assert (await ending).error is ErrorCode.NONE
    assert bench.state is TransactionState.COMPLETE_COMMIT


@run
async def test_an_unreplicated_loaded_end_writes_no_marker():
    """The next coordinator may not have the record, and would abort what is committed here."""
    bench = await Bench().up()
    producer = await bench.begin()
    bench.log.replicated = False
    ending = asyncio.ensure_future(bench.end(producer))
    await asyncio.sleep(0)
    assert not ending.done()
    log = MemoryLog(bench.log.batches)
    log.replicated = False
    successor = await Bench(log, first_id=5000).up(epoch=2)
    assert successor.state is TransactionState.PREPARE_COMMIT
    assert not successor.markers.written
    log.replicate()
    await asyncio.sleep(0)
    assert sorted(successor.markers.targets()) == sorted(TARGETS)
    assert successor.state is TransactionState.COMPLETE_COMMIT


@run
async def test_loaded_state_is_not_told_before_it_is_replicated():
    """The next coordinator may not have the record, and would not end the transaction where records were written."""
    bench = await Bench().up()
    producer = await bench.begin()
    log = MemoryLog(bench.log.batches)
    log.replicated = False
    successor = await Bench(log, first_id=5000).up(epoch=2)
    assert successor.state is TransactionState.ONGOING
    verification = VerifyPartitions("t", 0, *producer, TARGETS)
    assert (await successor.add(producer)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await successor.service.partitions(verification)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await successor.end(producer)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    log.replicate()
    await asyncio.sleep(0)
    assert (await successor.add(producer)).error is ErrorCode.NONE
    assert (await successor.service.partitions(verification)).error is ErrorCode.NONE


@run
async def test_a_former_coordinator_does_not_tell_loaded_state():
    bench = await Bench().up()
    producer = await bench.begin()
    log = MemoryLog(bench.log.batches)
    log.replicated = False
    successor = await Bench(log, first_id=5000).up(epoch=2)
    log.replicate(ApiError(ErrorCode.NOT_COORDINATOR))
    await asyncio.sleep(0)
    assert (await successor.add(producer)).error is ErrorCode.CONCURRENT_TRANSACTIONS


@run
async def test_replication_that_takes_too_long_is_told_but_goes_on():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.log.replicated = False
    ending = asyncio.ensure_future(bench.end(producer))
    await asyncio.sleep(0)
    bench.advance(60_000)
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        await ending
    assert (await bench.end(producer)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.log.replicate()
    await asyncio.sleep(0)
    assert bench.state is TransactionState.COMPLETE_COMMIT


@run
async def test_a_lost_leadership_fails_waiting_requests():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.log.replicated = False
    ending = asyncio.ensure_future(bench.end(producer))
    await asyncio.sleep(0)
    for partition in range(PARTITIONS):
        bench.service.runtime.on_resigned(partition)
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        await ending
    bench.log.replicate(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    await asyncio.sleep(0)
    assert not bench.markers.written
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        await bench.init()


@run
async def test_a_log_that_refuses_changes_nothing():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.log.refusals = [ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE), ApiError(ErrorCode.MESSAGE_TOO_LARGE)]
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        await bench.end(producer)
    with pytest.raises(ApiError, match="UNKNOWN_SERVER_ERROR"):
        await bench.end(producer)
    assert bench.state is TransactionState.ONGOING
    assert (await bench.end(producer)).error is ErrorCode.NONE


@run
async def test_a_log_in_an_unknown_state_is_loaded_again():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.log.refusals = [ApiError(ErrorCode.NOT_COORDINATOR)]
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        await bench.end(producer)
    with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await bench.end(producer)
    bench.advance(1000)
    await bench.loaded()
    assert (await bench.end(producer)).error is ErrorCode.NONE
    assert bench.state is TransactionState.COMPLETE_COMMIT


@run
async def test_markers_are_tried_until_they_are_written():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.errors = {
        ("a", 0): [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS],
        ("__consumer_offsets", 7): [ErrorCode.KAFKA_STORAGE_ERROR],
    }
    await bench.end(producer)
    assert bench.markers.targets() == [("a", 1)]
    assert bench.service.describe("t").partitions == TARGETS - {("a", 1)}
    bench.advance(RETRY_DELAY_MS)
    assert bench.service.describe("t").partitions == {("a", 0)}
    assert (await bench.init()).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.advance(RETRY_DELAY_MS)
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert len(bench.markers.written) == len(TARGETS)


@run
async def test_a_deleted_partition_needs_no_marker():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.errors = {("a", 0): [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    await bench.end(producer)
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert ("a", 0) not in bench.markers.targets()


@run
async def test_a_superseded_coordinator_stops():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.errors = {("a", 0): [ErrorCode.TRANSACTION_COORDINATOR_FENCED]}
    await bench.end(producer)
    bench.advance(10 * RETRY_DELAY_MS)
    assert bench.state is TransactionState.PREPARE_COMMIT


@run
async def test_markers_that_replicate_later():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.futures = []
    await bench.end(producer)
    first, second, third = bench.markers.futures
    first.set_result(None)
    second.set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    third.set_result(None)
    await asyncio.sleep(0)
    assert bench.state is TransactionState.PREPARE_COMMIT
    bench.advance(RETRY_DELAY_MS)
    bench.markers.futures[3].set_result(None)
    await asyncio.sleep(0)
    assert bench.state is TransactionState.COMPLETE_COMMIT


@run
async def test_the_record_of_completion_is_tried_again():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.futures = []
    await bench.end(producer)
    bench.log.refusals = [ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    for future in bench.markers.futures:
        future.set_result(None)
    await asyncio.sleep(0)
    assert bench.state is TransactionState.PREPARE_COMMIT
    bench.advance(RETRY_DELAY_MS)
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert len(bench.markers.written) == len(TARGETS), "no marker is written twice for that"


@run
async def test_a_fenced_coordinator_goes_on_after_its_election():
    """Another broker led for a moment, wrote a marker, and died before this one heard of it."""
    bench = await Bench().up(epoch=5)
    producer = await bench.begin()
    bench.markers.errors[("a", 0)] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    await bench.end(producer)
    bench.advance(RETRY_DELAY_MS)
    assert bench.state is TransactionState.PREPARE_COMMIT, "somebody newer ends it"
    for partition in range(PARTITIONS):
        bench.service.runtime.on_elected(partition, 7)
    await bench.loaded()
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert {marker.coordinator_epoch for *_, marker in bench.markers.written[-len(TARGETS) :]} == {7}


@run
async def test_markers_in_flight_at_an_election_get_the_new_epoch():
    bench = await Bench().up(epoch=5)
    producer = await bench.begin()
    bench.markers.futures = []
    await bench.end(producer)
    for partition in range(PARTITIONS):
        bench.service.runtime.on_elected(partition, 7)
    await bench.loaded()
    refused, *others = bench.markers.futures
    refused.set_exception(ApiError(ErrorCode.TRANSACTION_COORDINATOR_FENCED))
    for future in others:
        future.set_result(None)
    await asyncio.sleep(0)
    assert bench.state is TransactionState.PREPARE_COMMIT
    bench.markers.futures = None
    bench.advance(RETRY_DELAY_MS)
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert [marker.coordinator_epoch for *_, marker in bench.markers.written] == [5] * len(TARGETS) + [7]


@run
async def test_many_markers_that_are_refused_wait_between_tries():
    """A full disk refuses them all: a few are tried at a time, each gets its turn, and when there is room all go."""
    bench = await Bench().up()
    targets = frozenset(("many", partition) for partition in range(3 * MARKERS_PER_TURN))
    producer = (await bench.init())[1:]
    await bench.add(producer, targets)
    bench.markers.refuses_all = True
    await bench.end(producer)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(bench.markers.tried) == MARKERS_PER_TURN
    for turn in range(2, 12):
        for duration_ms, tried in ((RETRY_DELAY_MS - 1, turn - 1), (1, turn)):
            bench.advance(duration_ms)
            for _ in range(100):
                await asyncio.sleep(0)
                bench.timers.fire_due()
            assert len(bench.markers.tried) == tried * MARKERS_PER_TURN
    assert set(bench.markers.tried) == targets
    bench.markers.refuses_all = False
    bench.advance(RETRY_DELAY_MS)
    await bench.loaded()
    assert sorted(bench.markers.targets()) == sorted(targets)
    assert bench.state is TransactionState.COMPLETE_COMMIT


@run
async def test_many_markers_that_do_not_replicate_wait_between_tries():
    bench = await Bench().up()
    targets = frozenset(("many", partition) for partition in range(3 * MARKERS_PER_TURN))
    producer = (await bench.init())[1:]
    await bench.add(producer, targets)
    bench.markers.futures = []
    ending = asyncio.ensure_future(bench.end(producer))

    async def fail_what_was_written():
        for _ in range(200):
            await asyncio.sleep(0)
            for future in bench.markers.futures:
                if not future.done():
                    future.set_exception(ApiError(ErrorCode.NOT_ENOUGH_REPLICAS))

    await fail_what_was_written()
    await ending
    for turn in range(1, 12):
        assert len(bench.markers.tried) <= turn * len(targets)
        bench.advance(RETRY_DELAY_MS)
        await fail_what_was_written()
    bench.markers.futures = None
    for _ in targets:
        bench.advance(RETRY_DELAY_MS)
        await bench.loaded()
    assert bench.state is TransactionState.COMPLETE_COMMIT


@run
async def test_transactions_with_refused_markers_wait_between_tries():
    """However many there are: together they try no more than one with many markers."""
    bench = await Bench().up()
    ids = [f"t{number}" for number in range(5 * MARKERS_PER_TURN)]
    bench.markers.refuses_all = True
    for transactional_id in ids:
        reply = await bench.service.producer(InitProducerId(transactional_id, 0, 60_000, None))
        producer = (reply.producer_id, reply.producer_epoch)
        await bench.service.partitions(AddPartitions(transactional_id, 0, *producer, frozenset({("a", 0)}), 0))
        await bench.service.producer(EndTransaction(transactional_id, 0, *producer, True, 0))
    assert len(bench.markers.tried) == len(ids), "each was tried once, at once"
    bench.markers.tried.clear()
    for turn in range(1, 6):
        bench.advance(RETRY_DELAY_MS)
        bench.timers.fire_due()
        assert len(bench.markers.tried) == turn * MARKERS_PER_TURN
    bench.markers.refuses_all = False
    bench.advance(RETRY_DELAY_MS)
    for _ in range(5):
        bench.advance(1)
    assert len(bench.markers.written) == len(ids)
    states = {bench.service.describe(transactional_id).state for transactional_id in ids}
    assert states == {TransactionState.COMPLETE_COMMIT}


@run
async def test_many_loaded_transactions_leave_the_loop_turns():
    before = await Bench().up()
    ids = [f"t{number}" for number in range(40 * STARTS_PER_TURN)]
    before.markers.refuses_all = True
    for transactional_id in ids:
        reply = await before.service.producer(InitProducerId(transactional_id, 0, 60_000, None))
        producer = (reply.producer_id, reply.producer_epoch)
        await before.service.partitions(AddPartitions(transactional_id, 0, *producer, frozenset({("a", 0)}), 0))
        await before.service.producer(EndTransaction(transactional_id, 0, *producer, True, 0))
    before.timers.close()
    after = Bench(MemoryLog(before.log.batches), first_id=5000)
    for partition in range(PARTITIONS):
        after.service.runtime.on_elected(partition, 2)
    await after.loaded()
    await after.service.start()
    turns = [0, len(after.markers.tried)]
    while after.service.runtime.running():
        await asyncio.sleep(0)
        turns.append(len(after.markers.tried))
    assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= PARTITIONS * STARTS_PER_TURN
    assert len(after.markers.written) == len(ids)
    states = {after.service.describe(transactional_id).state for transactional_id in ids}
    assert states == {TransactionState.COMPLETE_COMMIT}


@run
async def test_a_retry_that_raises_does_not_stop_the_others():
    bench = await Bench().up()
    retries, tried = Retries(bench.timers), []

    def fail(_):
        raise ZeroDivisionError

    retries.add(fail)
    retries.add(lambda at_most: tried.append(at_most) or 1)
    bench.advance(RETRY_DELAY_MS)
    bench.advance(1)
    assert tried == [MARKERS_PER_TURN]


@run
async def test_many_markers_give_way_to_others():
    bench = await Bench().up()
    producer = (await bench.init())[1:]
    await bench.add(producer, frozenset(("t", index) for index in range(2 * MARKERS_PER_TURN + 1)))
    await bench.end(producer)
    assert len(bench.markers.written) == MARKERS_PER_TURN
    for turn in range(2):
        await asyncio.sleep(0)
        assert len(bench.markers.written) == min((turn + 2) * MARKERS_PER_TURN, 2 * MARKERS_PER_TURN + 1)
    assert bench.state is TransactionState.COMPLETE_COMMIT
    assert len(bench.markers.written) == 2 * MARKERS_PER_TURN + 1


@run
async def test_timed_out_transactions_are_aborted_and_fenced():
    bench = await Bench().up()
    producer = await bench.begin()
    await bench.service.abort_timed_out()
    assert bench.state is TransactionState.ONGOING
    bench.clock.advance(60_001)
    await bench.service.abort_timed_out()
    assert bench.state is TransactionState.COMPLETE_ABORT
    assert (await bench.end(producer)).error is ErrorCode.PRODUCER_FENCED
    assert (await bench.init())[1:] == (producer[0], producer[1] + 2)


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_begun_after_the_clock_check_goes_on(version):
    """The first abort waits for its record to be replicated; by then the next transaction's producer, which keeps its
    epoch under version 0, has ended the timed-out transaction and begun another."""

    async def check():
        bench = await Bench().up()
        ask, runtime = bench.service, bench.service.runtime
        first, second = [name for name in map(str, range(50)) if runtime.partition_for(name) == 0][:2]
        producers = {}
        for name in (first, second):
            producers[name] = (await ask.producer(InitProducerId(name, 0, 60_000)))[1:]
            await ask.partitions(AddPartitions(name, 0, *producers[name], TARGETS, version))
        bench.clock.advance(60_001)
        bench.log.replicated = False
        aborting = asyncio.ensure_future(ask.abort_timed_out())
        await asyncio.sleep(0)
        assert len(bench.log.waiting) == 1
        bench.log.replicated = True
        ended = await ask.producer(EndTransaction(second, 0, *producers[second], True, version))
        assert ended.error is ErrorCode.NONE
        producer = ended[1:] if version == 2 else producers[second]
        began = await ask.partitions(AddPartitions(second, 0, *producer, TARGETS, version))
        assert began == PartitionsReply(ErrorCode.NONE)
        bench.clock.advance(1_270)
        bench.log.replicate()
        await aborting
        assert ask.describe(first).state is TransactionState.COMPLETE_ABORT
        assert ask.describe(second).state is TransactionState.ONGOING
        assert (await ask.producer(EndTransaction(second, 0, *producer, True, version))).error is ErrorCode.NONE

    asyncio.run(check())


@pytest.mark.parametrize("change", ["epoch", "time"])
def test_a_time_out_is_decided_by_what_is_true_then(change):
    """Both are looked at: the list that asks for it, or a fresh producer id that it had to wait for, may be old."""

    async def check():
        bench = await Bench().up()
        producer = await bench.begin()
        stale = TimeOut("t", 0, producer[0], producer[1] - (change == "epoch"))
        bench.clock.advance(60_001 if change == "epoch" else 60_000)
        assert (await bench.service.producer(stale)).error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert bench.state is TransactionState.ONGOING
        bench.clock.advance(1)
        timely = TimeOut("t", 0, *producer)
        assert (await bench.service.producer(timely)).error is ErrorCode.NONE
        assert bench.state is TransactionState.COMPLETE_ABORT

    asyncio.run(check())


@run
async def test_unused_ids_expire():
    bench = await Bench().up()
    await bench.init()
    bench.clock.advance(bench.settings.transactional_id_expiration_ms - 1)
    await bench.service.remove_expired()
    bench.service.describe("t")
    bench.clock.advance(1)
    await bench.service.remove_expired()
    bench = await bench.crash()
    with pytest.raises(ApiError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        bench.service.describe("t")


@run
async def test_refuses_bad_requests():
    bench = Bench()
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        await bench.init()
    await bench.up()
    for timeout_ms in (0, -1, 900_001):
        with pytest.raises(ApiError, match="INVALID_TRANSACTION_TIMEOUT"):
            await bench.service.producer(InitProducerId("t", 0, timeout_ms))
    for event in (InitProducerId("", 0, 1), EndTransaction("", 0, 1, 0, True, 0)):
        with pytest.raises(ApiError, match="INVALID_REQUEST"):
            await bench.service.producer(event)


@run
async def test_lists_by_state_producer_and_duration():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.clock.advance(5_000)
    listed = bench.service.list_transactions
    assert [found.transactional_id for found in listed([], [], -1).transactions] == ["t"]
    assert listed([producer[0]], ["Ongoing", "Nonsense"], 4_999) == ([bench.service.describe("t")], ["Nonsense"])
    assert listed([], [], 5_000).transactions == []
    assert listed([7], [], -1).transactions == []
    assert listed([], ["Empty"], -1).transactions == []


async def _until_crash(bench, version, is_commit):
    """One transaction; what its client was told before the broker died."""
    told = []
    try:
        producer = await bench.init()
        told.append(producer)
        told.append(await bench.add(producer[1:], version=version))
        told.append(await bench.end(producer[1:], is_commit, version))
    except Crash:
        return told
    return told


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("appends", range(4))
def test_a_crash_at_any_append_loses_no_decision(appends, is_commit, version):
    async def test():
        bench = await Bench().up()
        bench.log.appends_left = appends
        told = await _until_crash(bench, version, is_commit)
        after = await bench.crash()
        if appends == 0:
            with pytest.raises(ApiError, match="TRANSACTIONAL_ID_NOT_FOUND"):
                after.service.describe("t")
            return
        producer = told[0][1:]
        if appends == 1:
            assert after.state is TransactionState.EMPTY
        elif appends == 2:
            assert after.state is TransactionState.ONGOING
            after.clock.advance(60_001)
            await after.service.abort_timed_out()
            assert {marker.is_commit for _, _, marker in after.markers.written} == {False}
            assert after.state is TransactionState.COMPLETE_ABORT
        else:
            # The decision was logged, whatever the client knows of it: it stands.
            assert after.state.is_commit is is_commit
            assert not after.state.is_prepared
            assert sorted(after.markers.targets()) == sorted(TARGETS)
            epoch = producer[1] + (1 if version == 2 else 0)
            assert {marker for _, _, marker in after.markers.written} == {(producer[0], epoch, 2, is_commit, version)}
            reply = await after.end(producer, is_commit, version)
            assert reply.error is ErrorCode.NONE

    asyncio.run(test())


@pytest.mark.parametrize("markers", range(len(TARGETS) + 1))
def test_a_crash_between_markers_writes_them_again(markers):
    async def test():
        bench = await Bench().up()
        bench.markers.crash_after = markers
        await _until_crash(bench, 2, True)
        after = await bench.crash()
        assert after.state is TransactionState.COMPLETE_COMMIT
        if markers < len(TARGETS):
            assert sorted(after.markers.targets()) == sorted(TARGETS)

    asyncio.run(test())


@run
async def test_prepared_transactions_wait_for_the_brokers_metadata():
    bench = await Bench().up()
    bench.markers.crash_after = 0
    await _until_crash(bench, 0, True)
    after = Bench(MemoryLog(bench.log.batches))
    for partition in range(PARTITIONS):
        after.service.runtime.on_elected(partition, 2)
    await after.loaded()
    assert not after.markers.written
    await after.service.start()
    await after.loaded()
    assert sorted(after.markers.targets()) == sorted(TARGETS)


@run
async def test_used_up_epochs_take_a_fresh_producer_id():
    bench = await Bench().up()
    runner = bench.service.runtime.runner("t")
    producer = await bench.begin(version=2)
    known = bench.service.describe("t")
    runner.shard.transactions["t"] = known._replace(producer_epoch=32_766)
    reply = await bench.end((producer[0], 32_766), version=2)
    assert reply == (ErrorCode.NONE, 1001, 0)
    assert {marker.producer_epoch for _, _, marker in bench.markers.written} == {32_767}
    assert await bench.end((producer[0], 32_766), version=2) == reply
    assert (await bench.init(ProducerIdAndEpoch(1001, 0))).producer_epoch == 1


@pytest.mark.parametrize("version", [0, 2])
def test_the_finalised_level_may_move_at_any_time(version):
    """It decides how records are written and how the coordinator itself aborts; what clients may ask stays the same."""

    async def check():
        bench = await Bench().up()

        async def commits():
            producer = await bench.begin(version)
            assert (await bench.end(producer, version=version)).error is ErrorCode.NONE

        async def times_out():
            """How far the markers are from the producer's epoch, and their version."""
            producer = await bench.begin(version)
            bench.markers.written.clear()
            bench.advance(60_001)
            await bench.service.abort_timed_out()
            assert bench.state is TransactionState.COMPLETE_ABORT
            ((epoch, marker_version),) = {(each.producer_epoch, each[-1]) for *_, each in bench.markers.written}
            return epoch - producer[1], marker_version

        for level, value_version in ((2, 1), (0, 0), (1, 1), (2, 1)):
            bench.service.settings = replace(bench.service.settings, transaction_version=level)
            await commits()
            assert await times_out() == (1, 2 if level == 2 else 0)
            assert {value[1] for value in bench.log.values()} == {value_version}
            bench.log.batches.clear()

    asyncio.run(check())


@run
async def test_no_producer_id_to_be_had():
    bench = await Bench().up()

    async def none():
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    bench.service._next_producer_id = none
    with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await bench.init()


@run
async def test_a_log_that_cannot_be_read_is_tried_again():
    bench = Bench()
    failures = [OSError("disk")]
    read_all = bench.log.read_all

    async def read(partition, take):
        if failures:
            raise failures.pop()
        await read_all(partition, take)

    bench.log.read_all = read
    bench.service.runtime.on_elected(0, 1)
    await bench.loaded()
    await bench.service.start()
    with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        bench.service.list_transactions([], [], -1)
    bench.advance(1000)
    await bench.loaded()
    assert bench.service.list_transactions([], [], -1).transactions == []
    await bench.service.stop()


@run
async def test_markers_carry_the_epoch_of_the_latest_election():
    bench = Bench()
    partition = bench.service.runtime.partition_for("t")
    await bench.up(epoch=1)
    await bench.end(await bench.begin())
    bench.service.runtime.on_elected(partition, 5)
    await bench.end(await bench.begin())
    epochs = [marker.coordinator_epoch for _, _, marker in bench.markers.written]
    assert epochs == [1] * len(TARGETS) + [5] * len(TARGETS)


@run
async def test_an_election_while_a_shard_loads_counts():
    bench = Bench()
    partition = bench.service.runtime.partition_for("t")
    bench.service.runtime.on_elected(partition, 1)
    bench.service.runtime.on_elected(partition, 2)
    await bench.loaded()
    await bench.service.start()
    await bench.end(await bench.begin())
    assert {marker.coordinator_epoch for _, _, marker in bench.markers.written} == {2}


@run
async def test_shards_come_and_go_while_they_load():
    bench = Bench()
    runtime = bench.service.runtime
    for partition in range(PARTITIONS):
        runtime.on_elected(partition, 1)
    runtime.on_elected(0, 2)  # once more, under a newer epoch
    runtime.on_resigned(1)
    runtime.on_resigned(1)
    await bench.loaded()
    assert runtime.runner_at(0) is None, "requests are not served yet"
    await bench.service.start()
    assert [runtime.runner_at(partition) is not None for partition in range(PARTITIONS)] == [True, False, True, True]
    await bench.service.stop()
    assert not runtime.runners()
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        bench.service.describe("t")
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        bench.service.list_transactions([], [], -1)


@run
async def test_background_work_survives_a_log_that_refuses():
    bench = await Bench().up()
    await bench.begin()
    bench.clock.advance(60_001)
    bench.log.refusals = [ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    await bench.service.abort_timed_out()
    assert bench.state is TransactionState.ONGOING
    await bench.service.abort_timed_out()
    assert bench.state is TransactionState.COMPLETE_ABORT
    bench.clock.advance(bench.settings.transactional_id_expiration_ms)
    bench.log.refusals = [ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    await bench.service.remove_expired()
    bench.service.describe("t")
    await bench.service.remove_expired()
    with pytest.raises(ApiError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        bench.service.describe("t")


@run
async def test_a_superseded_marker_that_replicates_later():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.futures = []
    await bench.end(producer)
    bench.markers.futures[0].set_exception(ApiError(ErrorCode.INVALID_PRODUCER_EPOCH))
    for future in bench.markers.futures[1:]:
        future.set_result(None)
    await asyncio.sleep(0)
    bench.advance(10 * RETRY_DELAY_MS)
    assert bench.state is TransactionState.PREPARE_COMMIT


@run
async def test_stopping_while_markers_are_under_way():
    bench = await Bench().up()
    producer = await bench.begin()
    bench.markers.errors = {("a", 0): [ErrorCode.NOT_LEADER_OR_FOLLOWER]}
    bench.markers.futures = []
    await bench.end(producer)
    await bench.service.stop()
    for future in bench.markers.futures:
        future.set_result(None)
    await asyncio.sleep(0)
    bench.advance(RETRY_DELAY_MS)
    assert len(bench.markers.written) == 2
    after = await bench.crash()
    assert after.state is TransactionState.COMPLETE_COMMIT
