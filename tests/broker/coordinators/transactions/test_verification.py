"""Asking the coordinator before the first append: waiting, retrying, and which error a client is told."""

import asyncio
from types import SimpleNamespace

import pytest

from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
from barnabas.broker.coordinators.transactions.verification import (
    BACKOFF_MIN_MS,
    Operation,
    TransactionVerification,
    Verified,
)
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.storage.producer_state import ProducerState
from barnabas.wire.errors import ApiError, ErrorCode

A, B = ("a", 0), ("b", 0)


class Replicas:
    """Two partitions that this broker leads, and one that it does not."""

    def __init__(self):
        self.states = {A: ProducerState(), B: ProducerState()}

    def partition_or_error(self, topic, index):
        if (topic, index) not in self.states:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        log = SimpleNamespace(producer_state=self.states[topic, index])
        return SimpleNamespace(log=log, state=SimpleNamespace(check_leader=lambda: None))


class Bench:
    """A verification whose coordinator gives the prepared answers, the last one for ever."""

    def __init__(self, *answers, enabled=True):
        self.answers = list(answers)
        self.asked = []
        self.clock = ManualClock(now_ms=1000)
        self.replicas = Replicas()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.config = config = SimpleNamespace(
            transaction_partition_verification_enable=enabled,
            add_partitions_to_txn_retry_backoff_ms=20,
            add_partitions_to_txn_retry_backoff_max_ms=100,
            request_timeout_ms=30_000,
        )
        self.verification = TransactionVerification(self.replicas, self, config, self.clock, self.timers)

    def ask(self, event):
        self.asked.append(event)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ErrorCode):
            raise ApiError(answer)
        return answer

    def verify(self, operation=Operation.VERIFY, *partitions):
        return self.verification.verify("t", 7, 0, dict.fromkeys(partitions or (A,), 0), operation)

    def error(self, verified, partition=A):
        with pytest.raises(ApiError) as refused:
            verified.check_produce(partition, self.replicas)
        return refused.value.error


def reply(error=ErrorCode.NONE, *unverified):
    return PartitionsReply(error, frozenset(unverified))


def run(test):
    def wrapper():
        asyncio.run(test())

    wrapper.__name__ = test.__name__
    return wrapper


@pytest.mark.parametrize(
    ("version", "produce", "commit"),
    [
        (3, Operation.VERIFY, Operation.VERIFY),
        (4, Operation.VERIFY, Operation.VERIFY_OR_ABORT),
        (5, Operation.VERIFY, Operation.ADD),
        (10, Operation.VERIFY, Operation.ADD),
        (11, Operation.VERIFY_OR_ABORT, Operation.ADD),
        (12, Operation.ADD, Operation.ADD),
        (13, Operation.ADD, Operation.ADD),
    ],
)
def test_each_transaction_version_has_its_verification(version, produce, commit):
    assert Operation.of_produce(version) is produce
    assert Operation.of_offset_commit(version) is commit


@run
async def test_partitions_are_verified_or_added_at_once():
    bench = Bench(reply())
    verified = bench.verify(Operation.VERIFY, A, B)
    assert isinstance(verified, Verified)
    assert bench.asked == [VerifyPartitions("t", 0, 7, 0, frozenset({A, B}))]
    verified.check_produce(A, bench.replicas)
    assert isinstance(bench.verify(Operation.ADD), Verified)
    assert bench.asked[-1] == AddPartitions("t", 0, 7, 0, frozenset({A}), 2)


@run
async def test_verification_can_be_switched_off_but_not_adding():
    bench = Bench(reply(), enabled=False)
    bench.verify(Operation.VERIFY).check_produce(A, bench.replicas)
    assert not bench.asked
    bench.verify(Operation.ADD)
    assert len(bench.asked) == 1


@pytest.mark.parametrize(
    ("operation", "answer", "told"),
    [
        (Operation.VERIFY, reply(ErrorCode.NONE, A), ErrorCode.INVALID_TXN_STATE),
        (Operation.VERIFY_OR_ABORT, reply(ErrorCode.NONE, A), ErrorCode.TRANSACTION_ABORTABLE),
        (Operation.VERIFY, reply(ErrorCode.PRODUCER_FENCED), ErrorCode.INVALID_PRODUCER_EPOCH),
        (Operation.ADD, reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Operation.VERIFY, reply(ErrorCode.CONCURRENT_TRANSACTIONS), ErrorCode.NOT_ENOUGH_REPLICAS),
        (Operation.VERIFY, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Operation.ADD, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Operation.ADD, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_errors_as_producers_know_them(operation, answer, told):
    async def test():
        bench = Bench(answer)
        assert bench.error(bench.verify(operation)) is told

    asyncio.run(test())


@run
async def test_each_partition_has_its_own_answer():
    bench = Bench(reply(ErrorCode.NONE, B))
    verified = bench.verify(Operation.VERIFY, A, B, ("gone", 0))
    verified.check_produce(A, bench.replicas)
    assert bench.error(verified, B) is ErrorCode.INVALID_TXN_STATE
    assert bench.error(verified, ("gone", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    verified.check_produce(("not asked about", 0), bench.replicas)


@run
async def test_a_marker_before_the_append_voids_the_verification():
    bench = Bench(reply())
    verified = bench.verify()
    bench.replicas.states[A].verifications.clear()
    assert bench.error(verified) is ErrorCode.INVALID_TXN_STATE


@run
async def test_waits_for_a_coordinator_that_replicates():
    answer = asyncio.get_running_loop().create_future()
    bench = Bench(answer)
    waiting = asyncio.ensure_future(bench.verify(Operation.VERIFY))
    await asyncio.sleep(0)
    assert not waiting.done()
    answer.set_result(reply())
    (await waiting).check_produce(A, bench.replicas)


@run
async def test_a_coordinator_that_is_lost_meanwhile():
    answer = asyncio.get_running_loop().create_future()
    bench = Bench(answer)
    waiting = asyncio.ensure_future(bench.verify(Operation.ADD))
    answer.set_exception(ApiError(ErrorCode.NOT_COORDINATOR))
    assert bench.error(await waiting) is ErrorCode.NOT_ENOUGH_REPLICAS


async def _pass_time(bench, waiting):
    while not waiting.done():
        await asyncio.sleep(0)
        bench.clock.advance(10)
        bench.timers.fire_due()


@run
async def test_adding_is_tried_again_while_the_transaction_before_ends():
    concurrent = reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    bench = Bench(concurrent, concurrent, reply())
    waiting = asyncio.ensure_future(bench.verify(Operation.ADD))
    await _pass_time(bench, waiting)
    (await waiting).check_produce(A, bench.replicas)
    assert len(bench.asked) == 3


@run
async def test_adding_is_not_tried_for_ever():
    bench = Bench(reply(ErrorCode.CONCURRENT_TRANSACTIONS))
    waiting = asyncio.ensure_future(bench.verify(Operation.ADD))
    started_ms = bench.clock.monotonic_ms()
    await _pass_time(bench, waiting)
    assert bench.error(await waiting) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert 100 <= bench.clock.monotonic_ms() - started_ms <= 130


@run
async def test_an_old_epoch_is_refused_without_asking():
    bench = Bench(reply())
    bench.replicas.states[A].producers[7] = SimpleNamespace(producer_id=7, epoch=3, transaction_first_offset=-1)
    assert bench.error(bench.verify()) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert not bench.asked


@run
async def test_an_open_transaction_needs_no_coordinator():
    bench = Bench(reply())
    bench.replicas.states[A].producers[7] = SimpleNamespace(producer_id=7, epoch=0, transaction_first_offset=5)
    bench.verify().check_produce(A, bench.replicas)
    assert not bench.asked


@run
async def test_tries_have_a_pause_between_them_whatever_the_setting():
    bench = Bench(reply(ErrorCode.CONCURRENT_TRANSACTIONS))
    bench.config.add_partitions_to_txn_retry_backoff_ms = 1
    bench.config.add_partitions_to_txn_retry_backoff_max_ms = 2**31 - 1
    waiting = asyncio.ensure_future(bench.verify(Operation.ADD))
    for _ in range(100):
        await asyncio.sleep(0)
        bench.clock.advance(1)
        bench.timers.fire_due()
    assert len(bench.asked) <= 100 // BACKOFF_MIN_MS + 1
    waiting.cancel()
