"""A transactional producer, request by request, and what a reader sees of its transactions."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from barnabas.wire.control_records import ControlRecordType, parse_end_txn_marker
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import iter_records
from compat_tests.semantics.client import Connection, batch_of, fetch_partition
from tools.waiting import wait_until

READ_COMMITTED = 1
TRANSIENT = {14, 15, 16, 51}
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS."""

WHILE_STARTING = TRANSIENT | {3, 6, 19}
"""UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS as well: a broker that just started."""

CLASSIC, VERSION_2 = 1, 2


class Identity(NamedTuple):
    """Producer id and epoch."""

    producer_id: int
    producer_epoch: int


class TransactionalProducer:
    """A transactional producer without any cleverness: each step is one request.

    `protocol` is CLASSIC (partitions are added beforehand) or VERSION_2 (Produce adds them, ends bump the epoch).
    """

    def __init__(self, connection: Connection, transactional_id: str, protocol: int) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.identity = Identity(-1, -1)
        self.transient = TRANSIENT
        self._sequences: dict[tuple[str, int], int] = {}

    @property
    def _named(self) -> dict[str, Any]:
        return {"transactional_id": self.transactional_id, **self.identity._asdict()}

    def init(self, timeout_ms: int = 60_000, *, keep: bool = False) -> Identity:
        """Get an identity, asking again while the coordinator is busy; `keep` tells it the present one (KIP-360)."""
        expected = self.identity._asdict() if keep else {}
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **expected
        )
        response = retried(lambda: self.connection.ask(request, 4 if self.protocol == CLASSIC else 5))
        assert response.error_code == 0, response
        self.become(Identity(response.producer_id, response.producer_epoch))
        return self.identity

    def become(self, identity: Identity) -> None:
        """Use another identity; sequences start at 0 again."""
        self.identity = identity
        self._sequences.clear()

    def add(self, *partitions: tuple[str, int], version: int = 3) -> list[int]:
        """AddPartitionsToTxn; the error of every partition."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        response = retried(lambda: self.connection.ask(request, version), errors_of_add, self.transient)
        return errors_of_add(response)

    def produce(self, topic: str, values: list[bytes], partition: int = 0, version: int | None = None) -> Any:
        """Produce a transactional batch, asking again while the coordinator is busy; the partition's answer."""
        version = version or (11 if self.protocol == CLASSIC else 12)
        sequence = self._sequences.get((topic, partition), 0)

        def request() -> Any:
            batch = batch_of(values, base_sequence=sequence, transactional=True, **self.identity._asdict())
            data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
            return ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])

        def answer(response: Any) -> Any:
            return response.responses[0].partition_responses[0]

        done = answer(
            retried(
                lambda: self.connection.ask(request(), version),
                lambda response: [answer(response).error_code],
                self.transient,
            )
        )
        if done.error_code == 0:
            self._sequences[topic, partition] = sequence + len(values)
        return done

    def send(self, topic: str, *values: bytes, partition: int = 0) -> Any:
        """Send the requests with which the protocol writes to a partition of the transaction."""
        if self.protocol == CLASSIC:
            assert self.add((topic, partition)) == [0]
        done = self.produce(topic, list(values), partition)
        assert done.error_code == 0, done
        return done

    def end(self, *, commit: bool, version: int | None = None) -> Any:
        """EndTxn, asking again while the coordinator is busy; with version 2 the identity is the new one then."""
        version = version if version is not None else (4 if self.protocol == CLASSIC else 5)
        request = EndTxnRequest(committed=commit, **self._named)
        response = retried(lambda: self.connection.ask(request, version))
        if response.error_code == 0 and version >= 5:
            self.become(Identity(response.producer_id, response.producer_epoch))
        return response

    def commit(self) -> None:
        response = self.end(commit=True)
        assert response.error_code == 0, response

    def abort(self) -> None:
        response = self.end(commit=False)
        assert response.error_code == 0, response


def errors_of_add(response: Any) -> list[int]:
    return [
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]


def retried(
    ask: Callable[[], Any],
    errors: Callable[[Any], list[int]] = lambda response: [response.error_code],
    transient: Collection[int] = TRANSIENT,
) -> Any:
    """Ask again while the coordinator is busy, as clients do; the last answer."""
    answers: list[Any] = []

    def settled() -> bool:
        answers.append(ask())
        return not any(error in transient for error in errors(answers[-1]))

    wait_until(settled)
    return answers[-1]


def committed_values(connection: Connection, topic: str, partition: int = 0) -> list[bytes]:
    """The values that a reader of committed data sees, filtered as clients do it."""
    return _read(connection, topic, partition, READ_COMMITTED)


def all_values(connection: Connection, topic: str, partition: int = 0) -> list[bytes]:
    """The values that a reader of everything sees, without control records."""
    return _read(connection, topic, partition, 0)


def _read(connection: Connection, topic: str, partition: int, isolation_level: int) -> list[bytes]:
    values: list[bytes] = []
    offset = 0
    while True:
        part = fetch_partition(connection, topic, offset, partition=partition, isolation_level=isolation_level)
        assert part.error_code == 0
        if not part.records:
            return values
        found, offset = filter_aborted(part)
        values += found


def filter_aborted(part: Any) -> tuple[list[bytes], int]:
    """Values of one fetched partition without control records and aborted transactions, and the next offset."""
    buffer = bytes(part.records)
    waiting = sorted(part.aborted_transactions or [], key=lambda each: each.first_offset)
    aborted: set[int] = set()
    values: list[bytes] = []
    next_offset = 0
    for header in iter_headers(buffer):
        next_offset = header.next_offset
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            for record in iter_records(buffer, header):
                marker = parse_end_txn_marker(record)
                if marker is not None and marker.control_type is ControlRecordType.ABORT:
                    aborted.discard(header.producer_id)
            continue
        if not (header.is_transactional and header.producer_id in aborted):
            values += [bytes(record.value or b"") for record in iter_records(buffer, header)]
    return values, next_offset
