"""The protocol of transactions, request by request: outcomes, errors at their versions, what readers see."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from compat_tests.conftest import plays_broker
from compat_tests.semantics.client import Connection, batch_of, fetch_partition, produce_request
from compat_tests.semantics.test_offsets import commit
from compat_tests.transactions.producer import (
    CLASSIC,
    READ_COMMITTED,
    VERSION_2,
    Identity,
    TransactionalProducer,
    all_values,
    committed_values,
    errors_of_add,
    retried,
)
from tools.waiting import wait_until

NewProducer = Callable[..., TransactionalProducer]

(
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TRANSACTION_TIMEOUT,
    CONCURRENT_TRANSACTIONS,
    TRANSACTION_COORDINATOR_FENCED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNSTABLE_OFFSET_COMMIT,
    PRODUCER_FENCED,
    TRANSACTIONAL_ID_NOT_FOUND,
    TRANSACTION_ABORTABLE,
) = (15, 47, 48, 49, 50, 51, 52, 53, 88, 90, 105, 120)
UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST, OPERATION_NOT_ATTEMPTED = 3, 42, 55
ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, OUT_OF_ORDER_SEQUENCE_NUMBER = 22, 24, 25, 45
FENCED_INSTANCE_ID = 82


def latest_offset(connection: Connection, topic: str, isolation_level: int) -> int:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
    return int(connection.ask(request, 5).topics[0].partitions[0].offset)


def state_of(connection: Connection, transactional_id: str) -> Any:
    (state,) = connection.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
    return state


# What readers see


def test_readers_see_committed_records_only(
    producer: TransactionalProducer, connection: Connection, topic: str
) -> None:
    producer.send(topic, b"a", b"b")
    assert committed_values(connection, topic) == []
    assert all_values(connection, topic) == [b"a", b"b"]
    producer.commit()
    wait_until(lambda: committed_values(connection, topic) == [b"a", b"b"])
    producer.send(topic, b"never")
    producer.abort()
    producer.send(topic, b"c")
    producer.commit()
    wait_until(lambda: committed_values(connection, topic) == [b"a", b"b", b"c"])
    assert all_values(connection, topic) == [b"a", b"b", b"never", b"c"]


def test_the_last_stable_offset_is_the_first_open_transaction(
    new_producer: NewProducer, connection: Connection, topic: str, transactional_id: str, protocol: int
) -> None:
    first = new_producer(transactional_id + "-1", spoken=protocol)
    second = new_producer(transactional_id + "-2", spoken=protocol)
    first.init()
    second.init()
    connection.ask(produce_request(topic, batch_of([b"0"])), 9)
    assert first.send(topic, b"1").base_offset == 1
    assert second.send(topic, b"2").base_offset == 2
    connection.ask(produce_request(topic, batch_of([b"3"])), 9)
    second.commit()
    wait_until(lambda: latest_offset(connection, topic, 0) == 5)  # one marker, one offset
    assert latest_offset(connection, topic, READ_COMMITTED) == 1
    part = fetch_partition(connection, topic, 0, isolation_level=READ_COMMITTED)
    assert (part.last_stable_offset, part.high_watermark) == (1, 5)
    first.abort()
    wait_until(lambda: latest_offset(connection, topic, READ_COMMITTED) == 6)
    part = fetch_partition(connection, topic, 0, isolation_level=READ_COMMITTED)
    assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions] == [
        (first.identity.producer_id, 1)
    ]
    assert committed_values(connection, topic) == [b"0", b"2", b"3"]


def test_a_long_poll_of_committed_data_ends_with_the_commit(
    producer: TransactionalProducer, connect: Callable[[], Connection], topic: str
) -> None:
    from compat_tests.semantics.client import fetch_request

    reader = connect()
    producer.send(topic, b"a")
    reader.send(fetch_request([(topic, 0, 0)], max_wait_ms=20_000, isolation_level=READ_COMMITTED), 12)
    assert not reader.has_answer(0.3)
    producer.commit()
    assert reader.has_answer(10)
    assert len(reader.receive().responses[0].partitions[0].records) > 0


def test_a_transaction_over_several_partitions(
    producer: TransactionalProducer, connection: Connection, ready_topic: Callable[..., str]
) -> None:
    topics = [ready_topic(partitions=3), ready_topic()]
    for topic, partitions in zip(topics, (3, 1), strict=True):
        for partition in range(partitions):
            producer.send(topic, str(partition).encode(), partition=partition)
    state = state_of(producer.connection, producer.transactional_id)
    assert (state.transaction_state, state.error_code) == ("Ongoing", 0)
    assert {(each.topic, tuple(sorted(each.partitions))) for each in state.topics} == {
        (topics[0], (0, 1, 2)),
        (topics[1], (0,)),
    }
    producer.commit()
    for partition in range(3):
        wait_until(lambda p=partition: committed_values(connection, topics[0], p) == [str(p).encode()])  # type: ignore[misc]


# Identities


def test_a_second_producer_fences_the_first(
    new_producer: NewProducer, connection: Connection, topic: str, protocol: int
) -> None:
    first, second = new_producer(spoken=protocol), new_producer(spoken=protocol)
    old = first.init()
    first.send(topic, b"lost")
    new = second.init()
    assert new.producer_id == old.producer_id
    assert new.producer_epoch == old.producer_epoch + 2  # one to abort with, one for the newcomer
    assert committed_values(connection, topic) == []
    assert latest_offset(connection, topic, READ_COMMITTED) == 2
    assert first.produce(topic, [b"late"]).error_code == INVALID_PRODUCER_EPOCH
    assert first.end(commit=True).error_code == PRODUCER_FENCED
    if protocol == CLASSIC:
        assert first.add((topic, 0), version=3) == [PRODUCER_FENCED]
        assert first.add((topic, 0), version=1) == [INVALID_PRODUCER_EPOCH]
        assert first.end(commit=True, version=1).error_code == INVALID_PRODUCER_EPOCH
    second.send(topic, b"kept")
    second.commit()
    wait_until(lambda: committed_values(connection, topic) == [b"kept"])


def test_a_producer_goes_on_under_the_next_epoch(new_producer: NewProducer, topic: str, protocol: int) -> None:
    producer, other = new_producer(spoken=protocol), new_producer(spoken=protocol)
    before = producer.init()
    producer.send(topic, b"a")
    producer.abort()
    kept = producer.identity
    retry = new_producer(spoken=protocol)
    after = producer.init(keep=True)
    assert after == (before.producer_id, kept.producer_epoch + 1)
    retry.become(kept)
    assert retry.init(keep=True) == after, "a retry gets the same answer"
    other.init()
    request = InitProducerIdRequest(
        transactional_id=producer.transactional_id, transaction_timeout_ms=60_000, **after._asdict()
    )
    assert producer.connection.ask(request, 4).error_code == PRODUCER_FENCED
    assert producer.connection.ask(request, 3).error_code == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, INVALID_REQUEST),
        ({"producer_id": 5}, INVALID_REQUEST),
        ({"producer_epoch": 5}, INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_000}, 0),
    ],
    ids=str,
)
def test_checks_of_init_producer_id(new_producer: NewProducer, fields: dict[str, Any], error: int) -> None:
    producer = new_producer(spoken=CLASSIC)
    arguments = {"transactional_id": producer.transactional_id, "transaction_timeout_ms": 60_000, **fields}
    response = retried(lambda: producer.connection.ask(InitProducerIdRequest(**arguments), 4))
    assert response.error_code == error


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_in_every_version(new_producer: NewProducer, version: int) -> None:
    producer = new_producer()
    request = InitProducerIdRequest(transactional_id=producer.transactional_id, transaction_timeout_ms=60_000)
    response = retried(lambda: producer.connection.ask(request, version))
    assert (response.error_code, response.producer_epoch) == (0, 0)


# Classic protocol


@pytest.mark.parametrize("version", range(6))
def test_end_txn_in_every_version(new_producer: NewProducer, connection: Connection, topic: str, version: int) -> None:
    producer = new_producer(spoken=VERSION_2 if version == 5 else CLASSIC)
    producer.init()
    producer.send(topic, b"a")
    before = producer.identity
    response = producer.end(commit=True, version=version)
    assert response.error_code == 0
    assert (response.producer_id, response.producer_epoch) == ((before[0], before[1] + 1) if version == 5 else (-1, -1))
    wait_until(lambda: committed_values(connection, topic) == [b"a"])


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_in_every_version(new_producer: NewProducer, topic: str, version: int) -> None:
    producer = new_producer(spoken=CLASSIC)
    assert producer.add((topic, 0), version=version) == [INVALID_PRODUCER_ID_MAPPING]
    producer.init()
    assert producer.add((topic, 0), version=version) == [0]
    assert producer.add((topic, 0), version=version) == [0]
    refused = producer.add((topic, 0), (topic, 9), ("no-such-topic", 0), version=version)
    assert sorted(refused) == [UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, OPERATION_NOT_ATTEMPTED]
    producer.commit()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_partition_named_twice_is_refused_once(
    new_producer: NewProducer, connection: Connection, topic: str, is_known: bool
) -> None:
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    name = topic if is_known else f"{topic}-unknown"
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.identity.producer_id,
        v3_and_below_producer_epoch=producer.identity.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for each in ([0, 0], [0], [])],
    )
    results = retried(lambda: connection.ask(request, 3), errors_of_add).results_by_topic_v3_and_below
    answered = [[part.partition_index for part in result.results_by_partition] for result in results]
    assert answered == ([[0, 0], [0], []] if is_known else [[0]])
    if is_known:
        producer.abort()


def test_ends_that_make_no_sense(new_producer: NewProducer, topic: str) -> None:
    producer = new_producer(spoken=CLASSIC)
    assert producer.end(commit=True).error_code == INVALID_PRODUCER_ID_MAPPING
    producer.init()
    assert producer.end(commit=True).error_code == INVALID_TXN_STATE
    assert producer.end(commit=False).error_code == INVALID_TXN_STATE
    producer.send(topic, b"a")
    producer.commit()
    assert producer.end(commit=True).error_code == 0
    assert producer.end(commit=False).error_code == INVALID_TXN_STATE
    producer.become(Identity(producer.identity.producer_id + 1_000_000, 0))
    assert producer.end(commit=True).error_code == INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("version", "error"), [(7, INVALID_TXN_STATE), (10, INVALID_TXN_STATE), (11, TRANSACTION_ABORTABLE)]
)
def test_a_partition_must_be_added_before(
    new_producer: NewProducer, connection: Connection, ready_topic: Callable[..., str], version: int, error: int
) -> None:
    topic, other = ready_topic(), ready_topic()
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    assert producer.add((other, 0)) == [0]
    assert producer.produce(topic, [b"x"], version=version).error_code == error
    assert latest_offset(connection, topic, 0) == 0
    assert producer.add((topic, 0)) == [0]
    assert producer.produce(topic, [b"y"], version=version).error_code == 0
    producer.commit()


def test_a_late_batch_does_not_open_a_transaction(
    new_producer: NewProducer, connection: Connection, topic: str
) -> None:
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    producer.send(topic, b"a")
    producer.commit()
    wait_until(lambda: latest_offset(connection, topic, READ_COMMITTED) == 2)
    wait_until(lambda: state_of(producer.connection, producer.transactional_id).transaction_state == "CompleteCommit")
    assert producer.produce(topic, [b"late"]).error_code == TRANSACTION_ABORTABLE
    assert latest_offset(connection, topic, READ_COMMITTED) == 2


def test_batches_of_an_open_transaction_need_no_verification(new_producer: NewProducer, topic: str) -> None:
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    for version in range(3, 12):
        if version == 3:
            producer.send(topic, b"a")
        assert producer.produce(topic, [b"b"], version=version).error_code == 0
    producer.commit()


def test_a_batch_outside_the_open_transaction_is_refused(
    producer: TransactionalProducer, connection: Connection, topic: str
) -> None:
    producer.send(topic, b"a")
    batch = batch_of([b"outside"], base_sequence=1, **producer.identity._asdict())
    response = connection.ask(produce_request(topic, batch), 9)
    assert response.responses[0].partition_responses[0].error_code == INVALID_TXN_STATE
    producer.commit()


def test_transactional_records_need_a_transactional_id(producer: TransactionalProducer, topic: str) -> None:
    batch = batch_of([b"a"], base_sequence=0, transactional=True, **producer.identity._asdict())
    response = producer.connection.ask(produce_request(topic, batch), 9)
    assert response.responses[0].partition_responses[0].error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_one_request_one_producer(
    producer: TransactionalProducer, connection: Connection, ready_topic: Callable[..., str]
) -> None:
    topic = ready_topic(partitions=2)
    requests = [
        produce_request(
            topic, batch_of([b"a"], base_sequence=0, transactional=True, producer_id=each, producer_epoch=0)
        )
        for each in (1, 2)
    ]
    for partition, request in enumerate(requests):
        request.topic_data[0].partition_data[0].index = partition
    both = ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            type(requests[0].topic_data[0])(
                name=topic, partition_data=[request.topic_data[0].partition_data[0] for request in requests]
            )
        ],
    )
    response = connection.ask(both, 9)
    errors = [part.error_code for part in response.responses[0].partition_responses]
    assert errors == [INVALID_PRODUCER_ID_MAPPING] * 2


def test_sequences_hold_within_a_transaction(producer: TransactionalProducer, topic: str) -> None:
    producer.send(topic, b"a", b"b")
    again = producer.produce(topic, [b"c"])
    assert (again.error_code, again.base_offset) == (0, 2)
    producer._sequences[topic, 0] = 7
    assert producer.produce(topic, [b"gap"]).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    producer._sequences[topic, 0] = 0
    duplicate = producer.produce(topic, [b"a", b"b"])
    assert (duplicate.error_code, duplicate.base_offset) == (0, 0)
    producer.abort()


# Version 2


def test_every_end_bumps_the_epoch(new_producer: NewProducer, connection: Connection, topic: str) -> None:
    producer = new_producer(spoken=VERSION_2)
    producer_id, epoch = producer.init()
    for number in range(3):
        producer.send(topic, str(number).encode())
        producer.end(commit=number != 1)
        assert producer.identity == (producer_id, epoch + number + 1)
    wait_until(lambda: committed_values(connection, topic) == [b"0", b"2"])


def test_an_abort_without_a_transaction_bumps_the_epoch(new_producer: NewProducer) -> None:
    producer = new_producer(spoken=VERSION_2)
    producer_id, epoch = producer.init()
    assert producer.end(commit=True).error_code == INVALID_TXN_STATE
    producer.abort()
    assert producer.identity == (producer_id, epoch + 1)
    producer.abort()
    assert producer.identity == (producer_id, epoch + 2)


def test_a_retried_end_gets_the_same_answer(new_producer: NewProducer, topic: str) -> None:
    producer, retry = new_producer(spoken=VERSION_2), new_producer(spoken=VERSION_2)
    before = producer.init()
    producer.send(topic, b"a")
    producer.commit()
    retry.become(before)
    assert retry.end(commit=False).error_code == INVALID_TXN_STATE
    retry.become(before)
    retry.commit()
    assert retry.identity == producer.identity


def test_an_old_epoch_cannot_write(new_producer: NewProducer, connection: Connection, topic: str) -> None:
    producer, late = new_producer(spoken=VERSION_2), new_producer(spoken=VERSION_2)
    before = producer.init()
    producer.send(topic, b"a")
    producer.commit()
    wait_until(lambda: committed_values(connection, topic) == [b"a"])
    late.become(before)
    assert late.produce(topic, [b"late"]).error_code == INVALID_PRODUCER_EPOCH


def test_a_first_batch_must_be_the_first(new_producer: NewProducer, topic: str) -> None:
    producer = new_producer(spoken=VERSION_2)
    producer.init()
    producer._sequences[topic, 0] = 3
    assert producer.produce(topic, [b"x"]).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.abort()


@pytest.mark.parametrize("version", [3, 4])
def test_the_finalised_feature(connection: Connection, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = connection.ask(request, version)
    assert response.finalized_features_epoch >= 0
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features}
    assert levels["transaction.version"] == (2, 2)
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    assert supported.get("transaction.version") == ((0, 2) if version == 4 else None)


# Epochs that are used up

LAST_EPOCH = 32_766
"""The largest that a client gets; the one after it is for fencing whoever has this."""


def use_up_epochs(producer: TransactionalProducer, left: int) -> None:
    """Initialise the producer until its epoch is `left` before the last one; many requests at a time."""
    request = InitProducerIdRequest(transactional_id=producer.transactional_id, transaction_timeout_ms=60_000)
    producer_id, epoch = producer.init()
    while epoch < LAST_EPOCH - left:
        count = min(500, LAST_EPOCH - left - epoch)
        for _ in range(count):
            producer.connection.send(request, 4)
        answers = [producer.connection.receive() for _ in range(count)]
        assert {each.error_code for each in answers} <= {0, CONCURRENT_TRANSACTIONS}
        epoch = max([epoch, *(each.producer_epoch for each in answers)])
    producer.become(Identity(producer_id, epoch))


@pytest.mark.full
def test_used_up_epochs_bring_another_producer_id(
    new_producer: NewProducer, connection: Connection, topic: str
) -> None:
    producer, other = new_producer(spoken=CLASSIC), new_producer(spoken=CLASSIC)
    use_up_epochs(producer, left=1)
    before = producer.identity
    producer.send(topic, b"a")
    producer.commit()
    assert producer.init() == (before.producer_id, LAST_EPOCH)
    producer.send(topic, b"b")
    producer.commit()
    producer.send(topic, b"fenced")
    after = other.init()
    assert after.producer_id != before.producer_id
    assert after.producer_epoch == 1, "the abort brought the new id, and nobody was told of its first epoch"
    assert producer.end(commit=True).error_code == INVALID_PRODUCER_ID_MAPPING
    assert producer.produce(topic, [b"late"]).error_code == INVALID_PRODUCER_EPOCH, "fenced by the marker's epoch"
    other.send(topic, b"c")
    other.commit()
    other.send(topic, b"never")
    other.abort()
    wait_until(lambda: latest_offset(connection, topic, READ_COMMITTED) == latest_offset(connection, topic, 0) == 10)
    assert committed_values(connection, topic) == [b"a", b"b", b"c"]


@pytest.mark.full
def test_used_up_epochs_of_version_2_bring_another_producer_id(
    new_producer: NewProducer, connection: Connection, topic: str
) -> None:
    producer, retry = new_producer(spoken=VERSION_2), new_producer(spoken=VERSION_2)
    use_up_epochs(producer, left=1)
    before = producer.identity
    producer.send(topic, b"a")
    producer.commit()
    last = producer.identity
    assert last == (before.producer_id, LAST_EPOCH)
    producer.send(topic, b"b")
    producer.commit()
    after = producer.identity
    assert after.producer_id != before.producer_id
    assert after.producer_epoch == 0
    retry.become(last)
    retry.commit()
    assert retry.identity == after, "a retry gets the same answer"
    retry.become(last)
    assert retry.produce(topic, [b"late"]).error_code == INVALID_PRODUCER_EPOCH
    producer.send(topic, b"never")
    producer.abort()
    producer.send(topic, b"c")
    producer.commit()
    assert producer.identity == (after.producer_id, 2)
    retry.become(last)
    assert retry.end(commit=True).error_code == INVALID_PRODUCER_ID_MAPPING
    wait_until(lambda: latest_offset(connection, topic, READ_COMMITTED) == latest_offset(connection, topic, 0) == 8)
    assert committed_values(connection, topic) == [b"a", b"b", b"c"]


# Offsets in transactions


def commit_offset(
    producer: TransactionalProducer, group: str, topic: str, offset: int, version: int | None = None, **fields: Any
) -> int:
    """TxnOffsetCommit, asked again while the coordinator is busy; the partition's error."""
    version = version if version is not None else (4 if producer.protocol == CLASSIC else 5)
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        **{**producer.identity._asdict(), **fields},
    )

    def error(response: Any) -> list[int]:
        return [response.topics[0].partitions[0].error_code]

    return error(retried(lambda: producer.connection.ask(request, version), error))[0]


def add_offsets(producer: TransactionalProducer, group: str, version: int = 3) -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id, group_id=group, **producer.identity._asdict()
    )
    return int(retried(lambda: producer.connection.ask(request, version)).error_code)


def stored_offset(connection: Connection, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    """The committed offset and the error."""
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=stable
    )
    found = retried(lambda: connection.ask(request, 8).groups[0])
    partition = found.topics[0].partitions[0]
    return partition.committed_offset, partition.error_code


def find_group_coordinator(connection: Connection, group: str) -> None:
    assert retried(lambda: connection.ask(FindCoordinatorRequest(key_type=0, key=group), 3)).error_code == 0


def test_offsets_count_when_the_transaction_is_committed(
    producer: TransactionalProducer, connection: Connection, topic: str, group: str, protocol: int
) -> None:
    find_group_coordinator(connection, group)
    for offset, is_commit in ((5, True), (7, False), (9, True)):
        if protocol == CLASSIC:
            assert add_offsets(producer, group) == 0
        before = stored_offset(connection, group, topic)
        assert commit_offset(producer, group, topic, offset) == 0
        assert stored_offset(connection, group, topic) == before
        assert stored_offset(connection, group, topic, stable=True) == (-1, UNSTABLE_OFFSET_COMMIT)
        assert producer.end(commit=is_commit).error_code == 0
        expected = (offset, 0) if is_commit else before
        wait_until(lambda wanted=expected: stored_offset(connection, group, topic, stable=True) == wanted)  # type: ignore[misc]


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_staged_first", [True, False])
def test_the_offset_written_last_counts_within_transactions_too(
    new_producer: NewProducer, connection: Connection, topic: str, group: str, is_staged_first: bool, is_commit: bool
) -> None:
    """When the transaction was committed does not matter."""
    find_group_coordinator(connection, group)
    producer = new_producer(spoken=VERSION_2)
    producer.init()
    for is_staged in (is_staged_first, not is_staged_first):
        if is_staged:
            assert commit_offset(producer, group, topic, 5) == 0
        else:
            wait_until(lambda: commit(connection, group, topic, 9) == 0)  # Kafka may be loading the group
    assert stored_offset(connection, group, topic) == (9, 0)
    assert producer.end(commit=is_commit).error_code == 0
    expected = 5 if is_commit and not is_staged_first else 9
    wait_until(lambda: stored_offset(connection, group, topic, stable=True) == (expected, 0))


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit_in_every_version(
    new_producer: NewProducer, connection: Connection, topic: str, group: str, version: int
) -> None:
    find_group_coordinator(connection, group)
    producer = new_producer(spoken=VERSION_2 if version == 5 else CLASSIC)
    producer.init()
    if version < 5:
        refused = TRANSACTION_ABORTABLE if version == 4 else INVALID_TXN_STATE
        assert commit_offset(producer, group, topic, 3, version) == refused
        assert add_offsets(producer, group, min(version, 4)) == 0
    assert commit_offset(producer, group, topic, 3, version) == 0
    assert commit_offset(producer, group, "no-such-topic", 3, version) == UNKNOWN_TOPIC_OR_PARTITION
    producer.commit()
    wait_until(lambda: stored_offset(connection, group, topic) == (3, 0))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation_id": 3, "member_id": "m"}, ILLEGAL_GENERATION),
        ({"producer_epoch": 7}, INVALID_PRODUCER_EPOCH),
        ({"producer_id": 1 << 40}, INVALID_PRODUCER_ID_MAPPING),
        ({"group": ""}, INVALID_GROUP_ID),
    ],
    ids=str,
)
def test_offset_commits_are_checked_by_member_and_epoch(
    new_producer: NewProducer, connection: Connection, topic: str, group: str, fields: dict[str, Any], error: int
) -> None:
    find_group_coordinator(connection, group)
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    assert add_offsets(producer, group) == 0
    assert commit_offset(producer, topic=topic, offset=1, **{"group": group, **fields}) == error
    producer.abort()


def test_a_member_must_be_of_the_current_generation(
    cluster: Any, producer: TransactionalProducer, topic: str, group: str, protocol: int
) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    try:
        wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
        if protocol == CLASSIC:
            assert add_offsets(producer, group) == 0
        assert commit_offset(producer, group, topic, 1) == 0, "producers before KIP-447 do not say who they are"
        assert commit_offset(producer, group, topic, 1, member_id="x", generation_id=1) == UNKNOWN_MEMBER_ID
        member_id = consumer.memberid()
        assert commit_offset(producer, group, topic, 2, member_id=member_id, generation_id=99) == ILLEGAL_GENERATION
        assert commit_offset(producer, group, topic, 2, member_id=member_id, generation_id=1) == 0
        assert (
            commit_offset(producer, group, topic, 2, member_id=member_id, generation_id=1, group_instance_id="i")
            == UNKNOWN_MEMBER_ID
        )
        producer.commit()
    finally:
        consumer.close()


def test_an_instance_is_one_member(cluster: Any, new_producer: NewProducer, topic: str, group: str) -> None:
    from confluent_kafka import Consumer

    static = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "group.instance.id": "i"}
    consumer = Consumer(static)
    consumer.subscribe([topic])
    producer = new_producer(spoken=CLASSIC)
    producer.init()
    try:
        wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
        assert add_offsets(producer, group) == 0
        instance = {"generation_id": 1, "group_instance_id": "i"}
        assert commit_offset(producer, group, topic, 1, member_id="x", **instance) == FENCED_INSTANCE_ID
        assert commit_offset(producer, group, topic, 1, member_id=consumer.memberid(), **instance) == 0
        producer.commit()
    finally:
        consumer.close()


# Between brokers, and for administrators


def of_brokers(producer: TransactionalProducer, topics: dict[str, list[int]], **fields: Any) -> Any:
    """One transaction of the form of AddPartitionsToTxn that brokers send."""
    named = {"transactional_id": producer.transactional_id, **producer.identity._asdict(), **fields}
    return AddPartitionsToTxnTransaction(
        topics=[AddPartitionsToTxnTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        **named,
    )


def answers_to_brokers(connection: Connection, version: int, *transactions: Any) -> dict[str, dict[Any, int]]:
    """By transactional id, the error of every partition."""
    response = connection.ask(AddPartitionsToTxnRequest(transactions=list(transactions)), version)
    assert response.error_code == 0
    assert len(response.results_by_transaction) == len(transactions)
    return {
        result.transactional_id: {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in result.topic_results
            for part in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


@plays_broker
@pytest.mark.parametrize("version", [4, 5])
def test_brokers_verify_partitions(new_producer: NewProducer, ready_topic: Callable[..., str], version: int) -> None:
    topic = ready_topic(partitions=2)
    producer = new_producer(spoken=CLASSIC)
    producer.init()

    def verify(**fields: Any) -> list[int]:
        asked = of_brokers(producer, {topic: [0, 1]}, verify_only=True, **fields)
        (found,) = answers_to_brokers(producer.connection, version, asked).values()
        return [found[topic, 0], found[topic, 1]]

    assert verify() == [TRANSACTION_ABORTABLE] * 2, "nothing is open"
    assert state_of(producer.connection, producer.transactional_id).transaction_state == "Empty", "nor does it open now"
    assert producer.add((topic, 0)) == [0]
    assert verify() == [0, TRANSACTION_ABORTABLE]
    assert verify(producer_epoch=9) == [PRODUCER_FENCED] * 2
    assert verify(producer_id=1 << 40) == [INVALID_PRODUCER_ID_MAPPING] * 2
    assert verify(transactional_id="nobody") == [INVALID_PRODUCER_ID_MAPPING] * 2
    assert verify(transactional_id="") == [INVALID_REQUEST] * 2
    asked = of_brokers(producer, {topic: [0, 7]}, verify_only=True)
    assert answers_to_brokers(producer.connection, version, asked)[producer.transactional_id] == {
        (topic, 0): OPERATION_NOT_ATTEMPTED,
        (topic, 7): UNKNOWN_TOPIC_OR_PARTITION,
    }
    for fields in {}, {"producer_epoch": 9}:
        twice = of_brokers(producer, {topic: [0, 0]}, verify_only=True, **fields)
        response = producer.connection.ask(AddPartitionsToTxnRequest(transactions=[twice]), version)
        (answer,) = response.results_by_transaction[0].topic_results
        assert [part.partition_index for part in answer.results_by_partition] == [0], "a map has each once"
    producer.abort()
    assert verify() in ([TRANSACTION_ABORTABLE] * 2, [CONCURRENT_TRANSACTIONS] * 2), "as long as markers are written"


@plays_broker
@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_partitions_of_several_transactions(
    new_producer: NewProducer, connection: Connection, ready_topic: Callable[..., str], version: int
) -> None:
    topic = ready_topic(partitions=2)
    adding, verifying, fenced = (
        new_producer(f"{topic}-{name}", spoken=VERSION_2) for name in ("adding", "verifying", "fenced")
    )
    for producer in (adding, verifying, fenced):
        producer.init()
    assert verifying.add((topic, 1)) == [0]
    found = answers_to_brokers(
        adding.connection,
        version,
        of_brokers(adding, {topic: [0, 1]}),
        of_brokers(verifying, {topic: [0, 1]}, verify_only=True),
        of_brokers(fenced, {topic: [0]}, producer_epoch=9),
        of_brokers(adding, {topic: [0]}, transactional_id="nobody"),
        of_brokers(fenced, {topic: [0], "no-such-topic": [0]}, transactional_id="somebody"),
    )
    assert found == {
        adding.transactional_id: {(topic, 0): 0, (topic, 1): 0},
        verifying.transactional_id: {(topic, 0): TRANSACTION_ABORTABLE, (topic, 1): 0},
        fenced.transactional_id: {(topic, 0): PRODUCER_FENCED},
        "nobody": {(topic, 0): INVALID_PRODUCER_ID_MAPPING},
        "somebody": {(topic, 0): OPERATION_NOT_ATTEMPTED, ("no-such-topic", 0): UNKNOWN_TOPIC_OR_PARTITION},
    }
    described = state_of(adding.connection, adding.transactional_id)
    assert described.transaction_state == "Ongoing"
    assert sorted(index for each in described.topics for index in each.partitions) == [0, 1]
    assert state_of(fenced.connection, fenced.transactional_id).transaction_state == "Empty"
    assert adding.produce(topic, [b"added"]).error_code == 0
    adding.commit()
    verifying.abort()
    wait_until(lambda: committed_values(connection, topic) == [b"added"])
    assert latest_offset(connection, topic, READ_COMMITTED) == 2, "its marker is the last"


def test_the_form_of_brokers_is_advertised(connection: Connection) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    ranges = {each.api_key: (each.min_version, each.max_version) for each in connection.ask(request, 4).api_keys}
    assert ranges[AddPartitionsToTxnRequest.API_KEY] == (0, 5)


def write_markers(connection: Connection, topic: str, *markers: dict[str, Any], version: int = 1) -> list[int]:
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])], **marker)
            for marker in markers
        ]
    )
    response = connection.ask(request, version)
    return [part.error_code for marker in response.markers for each in marker.topics for part in each.partitions]


def test_markers_end_a_transaction_that_hangs(new_producer: NewProducer, connection: Connection, topic: str) -> None:
    producer = new_producer(spoken=CLASSIC)
    producer_id, epoch = producer.init()
    producer.send(topic, b"hangs")
    marker = {"producer_id": producer_id, "producer_epoch": epoch, "transaction_result": False}
    assert write_markers(connection, topic, {**marker, "coordinator_epoch": 0}) == [0]
    assert latest_offset(connection, topic, READ_COMMITTED) == 2
    assert committed_values(connection, topic) == []
    producer.abort()
    wait_until(lambda: latest_offset(connection, topic, READ_COMMITTED) == 3)


def test_late_markers_are_refused(new_producer: NewProducer, connection: Connection, topic: str) -> None:
    producer = new_producer(spoken=VERSION_2)
    producer_id, epoch = producer.init()
    producer.send(topic, b"a")
    producer.commit()
    producer.send(topic, b"b")
    marker = {"producer_id": producer_id, "producer_epoch": epoch, "transaction_result": False}
    assert write_markers(connection, topic, {**marker, "coordinator_epoch": 0}) == [INVALID_PRODUCER_EPOCH]
    same = {**marker, "producer_epoch": epoch + 1, "coordinator_epoch": 0}
    assert write_markers(connection, topic, {**same, "transaction_version": 2}, version=2) == [INVALID_PRODUCER_EPOCH]
    assert write_markers(connection, topic, {**same, "coordinator_epoch": -1}) == [TRANSACTION_COORDINATOR_FENCED]
    producer.commit()
    wait_until(lambda: committed_values(connection, topic) == [b"a", b"b"])
    assert write_markers(connection, "no-such-topic", {**marker, "coordinator_epoch": 0}) == [
        UNKNOWN_TOPIC_OR_PARTITION
    ]


def test_transactions_are_described_and_listed(
    producer: TransactionalProducer, connection: Connection, topic: str
) -> None:
    transactional_id, identity = producer.transactional_id, producer.identity
    assert state_of(connection, transactional_id + "-unknown").error_code == TRANSACTIONAL_ID_NOT_FOUND
    assert state_of(connection, "").error_code == INVALID_REQUEST
    state = state_of(connection, transactional_id)
    assert (state.transaction_state, state.transaction_start_time_ms, state.transaction_timeout_ms) == (
        "Empty",
        -1,
        60_000,
    )
    assert (state.producer_id, state.producer_epoch) == identity
    producer.send(topic, b"a")

    def listed(version: int = 1, **filters: Any) -> list[tuple[str, str]]:
        response = connection.ask(ListTransactionsRequest(**filters), version)
        assert response.error_code == 0
        return [
            (each.transactional_id, each.transaction_state)
            for each in response.transaction_states
            if each.transactional_id == transactional_id
        ]

    assert listed(0) == listed() == [(transactional_id, "Ongoing")]
    assert listed(state_filters=["Ongoing"], producer_id_filters=[identity.producer_id]) == listed()
    assert listed(state_filters=["Empty"]) == []
    assert listed(producer_id_filters=[1 << 40]) == []
    assert listed(duration_filter=600_000) == []
    assert listed(2, transactional_id_pattern=f"{transactional_id[:-2]}.{{2}}") == listed()
    assert listed(2, transactional_id_pattern=transactional_id[:-2]) == []
    assert connection.ask(ListTransactionsRequest(transactional_id_pattern="("), 2).error_code == 128
    unknown = connection.ask(ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"]), 1)
    assert unknown.unknown_state_filters == ["Nonsense"]
    describe = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])
    (active,) = connection.ask(describe, 0).topics[0].partitions[0].active_producers
    assert (active.producer_id, active.producer_epoch, active.current_txn_start_offset) == (*identity, 0)
    producer.commit()
    wait_until(lambda: listed() == [(transactional_id, "CompleteCommit")])


def test_an_empty_transactional_id_is_refused(connection: Connection, producer: TransactionalProducer) -> None:
    end = EndTxnRequest(transactional_id="", producer_id=1, producer_epoch=0, committed=True)
    assert connection.ask(end, 4).error_code == INVALID_REQUEST


# Timeouts


def test_a_transaction_that_takes_too_long_is_aborted(
    start_cluster: Callable[..., Any],
    new_producer: NewProducer,
    connect: Callable[..., Connection],
    transactional_id: str,
) -> None:
    from compat_tests.conftest import create_topic

    own = start_cluster({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"})
    create_topic(own.bootstrap_servers, "t", 1, None)
    connection = connect(own)
    for spoken in (CLASSIC, VERSION_2):
        producer = new_producer(f"{transactional_id}-{spoken}", spoken=spoken, cluster=own)
        before = producer.init(timeout_ms=2000)
        wait_until(lambda: fetch_partition(connection, "t", 0).error_code == 0)
        producer.send("t", b"late")
        state = producer.transactional_id
        wait_until(lambda each=state: state_of(connection, each).transaction_state == "CompleteAbort")  # type: ignore[misc]
        assert producer.produce("t", [b"more"]).error_code == INVALID_PRODUCER_EPOCH
        assert producer.end(commit=True).error_code == (PRODUCER_FENCED if spoken == CLASSIC else INVALID_TXN_STATE)
        assert producer.init() == (before.producer_id, before.producer_epoch + 2)
    assert committed_values(connection, "t") == []
