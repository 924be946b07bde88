"""Coordinators in other brokers: questions are gathered per broker, and every answer is one that producers know."""

import asyncio
import functools
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from barnabas.broker.cluster.metadata import TRANSACTION_STATE_TOPIC, MetadataCache
from barnabas.broker.coordinators.transactions.coordinator_sender import TRANSACTIONS_PER_REQUEST, CoordinatorSender
from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
from barnabas.broker.coordinators.transactions.verification import Operation, TransactionVerification
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.testing.contents.requests import ask
from barnabas.wire.codec import decode, encode
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.broker.running import running

OTHER, THIRD = 2, 3
A, B = ("a", 0), ("a", 1)
OK = PartitionsReply(ErrorCode.NONE)


def run(test):
    @functools.wraps(test)
    def wrapper(*arguments, **keywords):
        asyncio.run(test(*arguments, **keywords))

    return wrapper


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


def verify(transactional_id="0", *partitions):
    return VerifyPartitions(transactional_id, 0, 7, 0, frozenset(partitions or {A}))


def answer(request, errors):
    """A response that has the same errors for each transaction, NONE for partitions that `errors` does not name."""
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index,
                                partition_error_code=errors.get((topic.name, index), ErrorCode.NONE),
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in transaction.topics
                ],
            )
            for transaction in request.transactions
        ]
    )


class Bench:
    """A sender whose transactional ids are numbers of partitions; requests are kept until they are answered."""

    def __init__(self):
        self.metadata = MetadataCache()
        self.sender = CoordinatorSender(self.metadata, int, self.send)
        self.requests = []
        self.waiting = []

    def send(self, broker_id, request, version):
        request = decode(AddPartitionsToTxnRequest, version, encode(request, version))
        self.requests.append((broker_id, [transaction.transactional_id for transaction in request.transactions]))
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        return future

    async def tell(self, *coordinators):
        """Have the controller tell who leads each partition of `__transaction_state`."""
        states = [
            UpdateMetadataPartitionState(partition_index=index, leader=leader)
            for index, leader in enumerate(coordinators)
        ]
        topic = UpdateMetadataTopicState(topic_name=TRANSACTION_STATE_TOPIC, partition_states=states)
        await self.metadata.update(UpdateMetadataRequest(topic_states=[topic]))

    async def up(self, *coordinators):
        await self.tell(*coordinators)
        return self

    async def answer(self, **errors):
        request, future = self.waiting.pop(0)
        future.set_result(answer(request, {(name[0], int(name[1])): error for name, error in errors.items()}))
        await turns()

    async def reply_to(self, event, response):
        """The outcome of an event when the coordinator returns that response, or raises it."""
        reply = self.sender.ask(event)
        await turns()
        _, future = self.waiting.pop(0)
        if isinstance(response, Exception):
            future.set_exception(response)
        else:
            future.set_result(response)
        return await reply


@run
async def test_questions_are_gathered_per_coordinator():
    bench = await Bench().up(OTHER, THIRD, OTHER)
    replies = [bench.sender.ask(verify(partition)) for partition in "012"]
    await turns()
    assert bench.requests == [(OTHER, ["0", "2"]), (THIRD, ["1"])]
    later = bench.sender.ask(verify("2", B))
    await turns()
    await bench.answer(a0=ErrorCode.TRANSACTION_ABORTABLE)
    assert [reply.done() for reply in replies] == [True, False, True]
    assert replies[0].result() == PartitionsReply(ErrorCode.NONE, frozenset({A}))
    assert bench.requests[2:] == [(OTHER, ["2"])]
    assert not later.done()


@run
async def test_a_transactional_id_is_asked_for_once_in_a_request():
    bench = await Bench().up(OTHER, OTHER)
    first, second, other = [bench.sender.ask(event) for event in (verify("0", A), verify("0", B), verify("1", A))]
    await turns()
    assert bench.requests == [(OTHER, ["0", "1"])]
    await bench.answer()
    assert (first.result(), second.done(), other.result()) == (OK, False, OK)
    await bench.answer()
    assert second.result() == OK


@run
async def test_a_request_holds_so_many_transactions():
    bench = await Bench().up(*[OTHER] * (TRANSACTIONS_PER_REQUEST + 1))
    for partition in range(TRANSACTIONS_PER_REQUEST + 1):
        bench.sender.ask(verify(str(partition)))
    await turns()
    await bench.answer()
    assert [len(ids) for _, ids in bench.requests] == [TRANSACTIONS_PER_REQUEST, 1]


@run
async def test_adding_is_no_verification():
    bench = await Bench().up(OTHER)
    bench.sender.ask(AddPartitions("0", 0, 7, 1, frozenset({B, A}), client_version=2))
    await turns()
    [(request, _)] = bench.waiting
    [transaction] = request.transactions
    assert (transaction.producer_id, transaction.producer_epoch, transaction.verify_only) == (7, 1, False)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("a", [0, 1])]


@run
async def test_a_missing_coordinator_is_an_error():
    bench = Bench()
    for coordinators in ((), (-1,)):
        await bench.tell(*coordinators)
        with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
            bench.sender.ask(verify())


@run
async def test_the_coordinators_errors_go_to_all_partitions():
    bench = await Bench().up(OTHER)
    event = verify("0", A, B)
    for errors, told in (
        ({}, ErrorCode.NONE),
        (
            {A: ErrorCode.CONCURRENT_TRANSACTIONS, B: ErrorCode.CONCURRENT_TRANSACTIONS},
            ErrorCode.CONCURRENT_TRANSACTIONS,
        ),
        (
            {A: ErrorCode.OPERATION_NOT_ATTEMPTED, B: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        ({A: ErrorCode.OPERATION_NOT_ATTEMPTED, B: ErrorCode.NONE}, ErrorCode.OPERATION_NOT_ATTEMPTED),
    ):
        reply = bench.sender.ask(event)
        await turns()
        request, future = bench.waiting.pop()
        future.set_result(answer(request, errors))
        assert await reply == PartitionsReply(told)


@run
async def test_answers_that_are_none(caplog):
    bench = await Bench().up(OTHER)
    for response, told in (
        (OSError("gone"), ErrorCode.NETWORK_EXCEPTION),
        (AddPartitionsToTxnResponse(), ErrorCode.NETWORK_EXCEPTION),
        (AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ErrorCode.INVALID_TXN_STATE),
        (AddPartitionsToTxnResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR), ErrorCode.UNKNOWN_SERVER_ERROR),
        (
            AddPartitionsToTxnResponse(results_by_transaction=[AddPartitionsToTxnResult(transactional_id="0")]),
            ErrorCode.NETWORK_EXCEPTION,
        ),
    ):
        assert await bench.reply_to(verify(), response) == PartitionsReply(told)
    assert [record.getMessage() for record in caplog.records] == [
        "Verification of transactions: no response from broker 2, retrying: gone"
    ]


@run
async def test_requests_to_a_former_coordinator_fail():
    bench = await Bench().up(OTHER, OTHER)
    bench.sender.ask(verify("0"))
    await turns()
    moved, stays = bench.sender.ask(verify("0", B)), bench.sender.ask(verify("1"))
    await bench.tell(THIRD, OTHER)
    assert moved.result() == PartitionsReply(ErrorCode.NOT_COORDINATOR)
    assert not stays.done()


@run
async def test_closing_gives_up_what_is_not_answered():
    bench = await Bench().up(OTHER)
    under_way = bench.sender.ask(verify())
    await turns()
    waiting = bench.sender.ask(verify())
    await bench.sender.close()
    assert (under_way.cancelled(), waiting.cancelled()) == (True, True)


class NoCoordinator:
    """This broker coordinates nobody."""

    def ask(self, event):
        raise ApiError(ErrorCode.NOT_COORDINATOR)


@run
async def test_a_coordinator_in_another_broker_verifies_a_batch(tmp_path):
    """One broker leads the partition, the other has the transaction."""
    async with AsyncExitStack() as stack:
        leader, coordinator = [
            await stack.enter_async_context(running(tmp_path / str(number), broker_id=str(number)))
            for number in (1, OTHER)
        ]
        for broker in (leader, coordinator):
            topic = CreatableTopic(name="a", num_partitions=2, replication_factor=1)
            await ask(broker, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        topic = CreatableTopic(name=TRANSACTION_STATE_TOPIC, num_partitions=1, replication_factor=1)
        await ask(coordinator, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        await coordinator.settle()
        producer = await ask(coordinator, InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 4)
        assert producer.error_code == ErrorCode.NONE
        metadata = MetadataCache()
        topic = UpdateMetadataTopicState(
            topic_name=TRANSACTION_STATE_TOPIC,
            partition_states=[UpdateMetadataPartitionState(partition_index=0, leader=OTHER)],
        )
        await metadata.update(UpdateMetadataRequest(topic_states=[topic]))
        brokers = {OTHER: coordinator}
        sender = CoordinatorSender(
            metadata, lambda _: 0, lambda broker_id, request, version: ask(brokers[broker_id], request, version)
        )
        clock = ManualClock()
        config = SimpleNamespace(
            transaction_partition_verification_enable=True,
            add_partitions_to_txn_retry_backoff_ms=20,
            add_partitions_to_txn_retry_backoff_max_ms=100,
            request_timeout_ms=30_000,
        )
        verification = TransactionVerification(
            leader.replicas, NoCoordinator(), config, clock, Timers(clock, asyncio.get_running_loop()), sender
        )

        async def outcome(operation):
            verified = await verification.verify("t", producer.producer_id, producer.producer_epoch, {A: 0}, operation)
            try:
                verified.check_produce(A, leader.replicas)
            except ApiError as error:
                return error.error
            return ErrorCode.NONE

        assert await outcome(Operation.VERIFY_OR_ABORT) is ErrorCode.TRANSACTION_ABORTABLE
        assert await outcome(Operation.ADD) is ErrorCode.NONE
        assert await outcome(Operation.VERIFY) is ErrorCode.NONE
        await sender.close()


@run
async def test_clients_cannot_ask_as_brokers_do(tmp_path):
    """Versions for brokers are taken on the listener of brokers."""
    listeners = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    }
    request = AddPartitionsToTxnRequest(transactions=[])
    for listener, told in (("BROKERS", ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ("CLIENTS", ErrorCode.NONE)):
        async with running(tmp_path / listener, **listeners, inter_broker_listener_name=listener) as broker:
            for version in (4, 5):
                assert (await ask(broker, request, version)).error_code == told
