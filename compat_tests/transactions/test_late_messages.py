"""Requests of a transaction that arrive when it is over: delayed in the network, or sent once more by it.

In version 2 (KIP-890) the epoch tells them from those of the next transaction. In the classic protocol that has the
same epoch, and verification refuses what is not part of it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from compat_tests.conftest import BARNABAS_ZOOKEEPER, TARGET
from compat_tests.semantics.client import Connection, batch_of
from compat_tests.transactions.producer import (
    CLASSIC,
    READ_COMMITTED,
    VERSION_2,
    TransactionalProducer,
    committed_values,
)
from tools.waiting import wait_until

NewProducer = Callable[..., TransactionalProducer]

CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED, TRANSACTION_ABORTABLE = 47, 48, 90, 120

REPLAYS = 1_000
ENDS = ("commit", "abort", "epoch bump")


class Late:
    """The requests of one transaction, to be sent when it is over: `sent` those that took part in it, the others as if
    the network had held them back.
    """

    def __init__(self, producer: TransactionalProducer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._named = {"transactional_id": producer.transactional_id, **producer.identity._asdict()}
        self.produces = [self._produce(sequence) for sequence in range(3)]

    def begin(self) -> None:
        """Two batches take part, the third is held back."""
        if self._producer.protocol == CLASSIC:
            assert self._producer.add((self._topic, 0)) == [0]
        for request in self.produces[:2]:
            answer = self._producer.connection.ask(request, self._produce_version)
            assert answer.responses[0].partition_responses[0].error_code == 0

    @property
    def _produce_version(self) -> int:
        return 11 if self._producer.protocol == CLASSIC else 12

    def _produce(self, sequence: int) -> ProduceRequest:
        batch = batch_of(
            [f"{self._producer.identity.producer_epoch}-{sequence}".encode()],
            base_sequence=sequence,
            transactional=True,
            **self._producer.identity._asdict(),
        )
        data = TopicProduceData(name=self._topic, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
        transactional_id = self._producer.transactional_id
        return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])

    def batches_answered(self) -> list[int]:
        """Every batch once more."""
        found = []
        for request in self.produces:
            response = self._producer.connection.ask(request, self._produce_version)
            found.append(response.responses[0].partition_responses[0].error_code)
        return found

    def adds_answered(self) -> list[int]:
        """AddPartitionsToTxn in the clients' and, where strangers are believed, in the brokers' form."""
        topics = [AddPartitionsToTxnTopic(name=self._topic, partitions=[0])]
        client = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._named["transactional_id"],
            v3_and_below_producer_id=self._named["producer_id"],
            v3_and_below_producer_epoch=self._named["producer_epoch"],
            v3_and_below_topics=topics,
        )
        answer = self._producer.connection.ask(client, 3)
        results = [*answer.results_by_topic_v3_and_below, *self._added_by_broker(topics)]
        return [each.results_by_partition[0].partition_error_code for each in results]

    def _added_by_broker(self, topics: list[AddPartitionsToTxnTopic]) -> list[Any]:
        """The results for each topic."""
        asked = AddPartitionsToTxnTransaction(topics=topics, **self._named)
        answer = self._producer.connection.ask(AddPartitionsToTxnRequest(transactions=[asked]), 5)
        if TARGET == BARNABAS_ZOOKEEPER:
            assert answer.error_code == CLUSTER_AUTHORIZATION_FAILED
            return []
        (result,) = answer.results_by_transaction
        return list(result.topic_results)

    def end_answered(self, *, commit: bool) -> int:
        request = EndTxnRequest(committed=commit, **self._named)
        return int(self._producer.connection.ask(request, 4 if self._producer.protocol == CLASSIC else 5).error_code)


def end(producer: TransactionalProducer, how: str) -> None:
    """End the transaction, and wait until all is written that this takes."""
    if how == "epoch bump":
        producer.init()
    else:
        producer.end(commit=how == "commit")
    wait_until(lambda: state_of(producer) in ("CompleteCommit", "CompleteAbort", "Empty"))


def state_of(producer: TransactionalProducer) -> str:
    request = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
    return str(producer.connection.ask(request, 0).transaction_states[0].transaction_state)


def ends_of(connection: Connection, topic: str) -> tuple[int, int]:
    """Last stable offset and high watermark."""

    def end_offset(isolation_level: int) -> int:
        wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[wanted])
        return int(connection.ask(request, 5).topics[0].partitions[0].offset)

    return end_offset(READ_COMMITTED), end_offset(0)


def test_version_2_refuses_whatever_is_late(new_producer: NewProducer, connection: Connection, topic: str) -> None:
    producer = new_producer(spoken=VERSION_2)
    producer.init()
    answers: Counter[int] = Counter()
    kept: list[bytes] = []
    number = 0
    while answers.total() < REPLAYS:
        how = ENDS[number % len(ENDS)]
        number += 1
        late = Late(producer, topic)
        late.begin()
        epoch = producer.identity.producer_epoch
        if how == "commit":
            kept += [f"{epoch}-0".encode(), f"{epoch}-1".encode()]
        end(producer, how)
        end_offsets = ends_of(connection, topic)
        assert end_offsets[0] == end_offsets[1]
        answers.update([*late.batches_answered(), *late.adds_answered()])
        answers[late.end_answered(commit=how != "commit")] += (
            1  # the same outcome again is a retry, and changes nothing
        )
        assert ends_of(connection, topic) == end_offsets
        producer.send(topic, b"next")
        answers.update([*late.batches_answered(), *late.adds_answered()])
        answers.update(late.end_answered(commit=commit) for commit in (True, False))
        assert ends_of(connection, topic) == (end_offsets[0], end_offsets[1] + 1)
        end(producer, "abort")
    assert set(answers) <= {INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_TXN_STATE}, answers
    stable, high_watermark = ends_of(connection, topic)
    assert stable == high_watermark
    assert committed_values(connection, topic) == kept


def test_the_classic_protocol_refuses_batches_outside_of_one(
    new_producer: NewProducer, connection: Connection, ready_topic: Callable[..., str]
) -> None:
    topic = ready_topic(partitions=2)
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    answers: Counter[int] = Counter()
    kept: list[bytes] = []
    number = 0
    while answers.total() < REPLAYS:
        how = ENDS[number % len(ENDS)]
        number += 1
        late = Late(producer, topic)
        late.begin()
        if how == "commit":
            kept += [f"{producer.identity.producer_epoch}-{sequence}".encode() for sequence in range(2)]
        end(producer, how)
        end_offsets = ends_of(connection, topic)
        assert end_offsets[0] == end_offsets[1]
        answers.update(late.batches_answered())
        producer.send(topic, b"elsewhere", partition=1)
        answers.update(late.batches_answered())
        if how == "epoch bump":
            answers.update(late.adds_answered())
            answers.update(late.end_answered(commit=commit) for commit in (True, False))
        assert ends_of(connection, topic) == end_offsets
        end(producer, "abort")
        producer.init()  # sequences start again at 0
    assert set(answers) == {TRANSACTION_ABORTABLE, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED}, answers
    assert committed_values(connection, topic) == kept


@pytest.mark.parametrize(
    ("spoken", "told", "seen"),
    [(CLASSIC, 0, [b"next", b"0-2"]), (VERSION_2, INVALID_PRODUCER_EPOCH, [b"next"])],
    ids=["classic", "version 2"],
)
def test_only_version_2_refuses_an_earlier_transactions_batch(
    new_producer: NewProducer, connection: Connection, topic: str, spoken: int, told: int, seen: list[bytes]
) -> None:
    """Only version 2 prevents this: in the classic protocol the batch becomes part of the next transaction."""
    producer = new_producer(spoken=spoken)
    producer.init()
    late = Late(producer, topic)
    late.begin()
    if spoken == CLASSIC:
        producer._sequences[topic, 0] = 2
    end(producer, "abort")
    if spoken == CLASSIC:
        assert producer.add((topic, 0)) == [0]
    else:
        producer.send(topic, b"next")
    response = producer.connection.ask(late.produces[2], late._produce_version)
    assert response.responses[0].partition_responses[0].error_code == told
    if spoken == CLASSIC:
        producer._sequences[topic, 0] = 3
        producer.send(topic, b"next")
    end(producer, "commit")
    assert sorted(committed_values(connection, topic)) == sorted(seen)
    stable, high_watermark = ends_of(connection, topic)
    assert stable == high_watermark
