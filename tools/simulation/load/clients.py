"""Clients of a simulated cluster. Each uses Kafka's protocol over the simulated network, and records all responses for
`tools/soak/checker.py`.

They act like the clients of `tools/soak/workload.py`, which use librdkafka: idempotent producers, transactions, readers
of assigned partitions, groups' commits.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final

from barnabas.broker.client.client import (
    TRANSACTION_COORDINATOR,
    BrokerUnavailable,
    ClientError,
    KafkaClient,
    ResponseError,
)
from barnabas.broker.client.consumer import EARLIEST, Fetcher, Positions
from barnabas.clock import Clock
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tools.simulation.world.processes import current_process
from tools.soak.history import History, Key, Operation, Poll, Send, Status, Value

ABORT_PROBABILITY: Final = 0.1
DIE_PROBABILITY: Final = 0.03
TRANSACTION_TIMEOUT_MS: Final = 5_000
REQUEST_TIMEOUT_S: Final = 4.0
DELIVERY_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 0.1
RIVAL_PAUSE_S: Final = 2.0
"""The average time for which a fenced producer leaves the others alone."""

FOUND_LESS_MAX: Final = 200
"""The number of times in a row that a group's committed offset may be reported below the acknowledged one."""

VALUES_PER_PROCESS: Final = 1_000_000_000

_WRITTEN: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

Place = tuple[str, int]
"""A group and a partition."""


class Recorder:
    """The responses of all clients; `tell` writes a line to the simulation's log."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.history = History()
        self.committed: dict[Place, int] = {}
        """The largest offset with an acknowledged commit."""
        self.wrong: list[str] = []
        self.acknowledged = 0
        self.counts: dict[str, int] = {}
        """The number of occurrences of the events that a run is meant to test."""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def add(self, name: str, operation: Operation) -> None:
        self.history.events.append(operation)
        sends, polls = list(operation.sends()), list(operation.polls())
        if operation.status is Status.OK:
            self.acknowledged += len(sends)
        if sends:
            told = ", ".join(f"{send.key}@{send.offset}={send.value}" for send in sends)
            self.tell(f"{name}: {operation.status.value} {told}")
        for poll in polls:
            for key, records in sorted(poll.records.items(), key=str):
                if records:
                    self.tell(f"{name}: read {key}@{records[0][0]}..{records[-1][0]}, {len(records)} records")


class Worker(ABC):
    """One process of the history; `run_once` does one operation. `done` counts the operations that were confirmed as
    successful.
    """

    def __init__(
        self,
        process: int,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        recorder: Recorder,
        draw: random.Random,
        clock: Clock,
    ) -> None:
        self.process = process
        self.name = f"{type(self).__name__} {process}"
        self.topic = topic
        self.partitions = partitions
        self.recorder = recorder
        self.draw = draw
        self.clock = clock
        self.done = 0
        self.is_stopping = False
        self.client = KafkaClient(bootstrap_servers, client_id=self.name, request_timeout_s=REQUEST_TIMEOUT_S)
        self._bootstrap_servers = bootstrap_servers
        self.positions = Positions(self.client, timeout_s=DELIVERY_TIMEOUT_S)
        self._next_value = process * VALUES_PER_PROCESS
        self._invoked = 0.0

    async def run(self) -> None:
        """Work until it is stopped, and finish the current operation."""
        while not self.is_stopping:
            self._invoked = asyncio.get_running_loop().time()
            try:
                await self.run_once()
            except ClientError as error:
                self.recorder.tell(f"{self.name}: {error}")
                await self.pause(RETRY_S)
        await self.stop()
        await self.client.close()

    async def stop(self) -> None:  # noqa: B027 - most have nothing to send
        """Leave the cluster."""

    @abstractmethod
    async def run_once(self) -> None: ...

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.draw.random() * 2 * mean_s)

    def die(self) -> None:
        """Act like a killed process, replaced by a new one: connections end without further requests."""
        process = current_process()
        assert process is not None
        assert process.host is not None
        process.host.end_process()
        self.client = KafkaClient(self._bootstrap_servers, client_id=self.name, request_timeout_s=REQUEST_TIMEOUT_S)
        self.positions = Positions(self.client, timeout_s=DELIVERY_TIMEOUT_S)

    def value(self) -> int:
        self._next_value += 1
        return self._next_value

    def record(self, status: Status, parts: Sequence[Send | Poll], **more: Any) -> None:
        """Record the result of this round."""
        completed = asyncio.get_running_loop().time() if status is Status.OK else inf
        operation = Operation(self.process, status, list(parts), invoked=self._invoked, completed=completed, **more)
        self.recorder.add(self.name, operation)
        self.done += status is Status.OK and not operation.is_empty

    async def leader(self, partition: int, *, is_retry: bool) -> int:
        """The leader of a partition, by metadata that is refreshed for a retry. Errors: ClientError."""
        if is_retry or not self.positions.partitions():
            await self.positions.refresh([self.topic])
        for node_id in self.positions.by_leader([(self.topic, partition)]):
            return node_id
        raise BrokerUnavailable(f"{self.topic}-{partition} has no leader")

    @contextmanager
    def retried(self, attempt: Attempts) -> Iterator[None]:
        """An attempt that may fail with retriable errors."""
        try:
            yield
        except ClientError as error:
            attempt.failed(str(error))


class Attempts:
    """Retries an operation until its result is known or it takes too long: `async for is_retry in Attempts(...)`."""

    def __init__(self, worker: Worker, timeout_s: float = DELIVERY_TIMEOUT_S) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + timeout_s
        self._is_retry = False
        self._is_failed = True
        self._why = ""

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> bool:
        """Return whether this is a retry. Raises BrokerUnavailable when it has taken too long."""
        if self._is_retry:
            if self._loop.time() > self._until_s:
                raise BrokerUnavailable(f"given up: {self._why}")
            await self._worker.pause(RETRY_S)
        is_retry, self._is_retry = self._is_retry, True
        return is_retry

    def failed(self, why: str) -> None:
        self._why = why


class PlainProducer(Worker):
    """Idempotent, acks=all: a few records to one partition at a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    async def run_once(self) -> None:
        await self.pause(0.2)
        if self._producer is None:
            self._producer = await new_producer(self)
            self._sequences.clear()
        partition = self.draw.randrange(self.partitions)
        values = [self.value() for _ in range(self.draw.randint(1, 5))]
        sequence = self._sequences.get(partition, 0)
        try:
            error, base_offset = await write(self, partition, values, self._producer, sequence)
        except ClientError as unknown:
            self.recorder.tell(f"{self.name}: {unknown}")
            error, base_offset = ErrorCode.UNKNOWN_SERVER_ERROR, None
        if error in _WRITTEN:
            self._sequences[partition] = sequence + len(values)
            offsets = [None if base_offset is None else base_offset + each for each in range(len(values))]
            self.record(Status.OK, [Send(partition, v, offset) for v, offset in zip(values, offsets, strict=True)])
        else:
            self._producer = None
            self.recorder.tell(f"{self.name}: {error.name}")
            self.record(Status.INFO, [Send(partition, value) for value in values])


def was_written(error: ErrorCode) -> bool:
    return error in _WRITTEN


async def new_producer(worker: Worker, transactional_id: str | None = None) -> tuple[int, int]:
    """Initialise a producer. Returns its id and epoch; an open transaction of a former producer with the same
    transactional id is aborted. Errors: ClientError.
    """
    timeout_ms = TRANSACTION_TIMEOUT_MS if transactional_id else 0
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    async for _ in (attempts := Attempts(worker)):
        with worker.retried(attempts):
            node_id = None
            if transactional_id is not None:
                node_id = await worker.client.coordinator(transactional_id, TRANSACTION_COORDINATOR)
            else:
                await worker.client.metadata([])
            reply = await worker.client.send(request, node_id, max_version=4)
            if not reply.error_code:
                return reply.producer_id, reply.producer_epoch
            attempts.failed(ErrorCode.of(reply.error_code).name)
    raise AssertionError("attempts end by themselves")


async def write(
    worker: Worker,
    partition: int,
    values: Sequence[int],
    producer: tuple[int, int],
    sequence: int,
    transactional_id: str | None = None,
    max_version: int | None = None,
    key: bytes | None = None,
) -> tuple[ErrorCode, int | None]:
    """Write values, with as many attempts as necessary. Returns the final error code and the first offset.

    Errors: ClientError, if it is unknown whether they were written.
    """
    timestamp_ms = worker.clock.now_ms()
    batch = build_batch(
        [Record(number, timestamp_ms, key, b"%d" % value) for number, value in enumerate(values)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=transactional_id is not None,
    )
    async for is_retry in (attempts := Attempts(worker)):
        with worker.retried(attempts):
            leader = await worker.leader(partition, is_retry=is_retry)
            data = PartitionProduceData(index=partition, records=bytearray(batch))
            topic_id = worker.positions.topic_id(worker.topic)
            request = ProduceRequest(
                transactional_id=transactional_id,
                acks=-1,
                timeout_ms=round(REQUEST_TIMEOUT_S * 1000),
                topic_data=[TopicProduceData(name=worker.topic, topic_id=topic_id, partition_data=[data])],
            )
            response = await worker.client.send(request, leader, max_version=max_version)
            answer = response.responses[0].partition_responses[0]
            error = ErrorCode.of(answer.error_code)
            if error is ErrorCode.NONE and answer.log_append_time_ms < 0:
                worker.recorder.wrong.append(f"{worker.name}: {worker.topic}-{partition} has the time of its producer")
            if error in _WRITTEN:
                return error, answer.base_offset if answer.base_offset >= 0 else None
            if not error.retriable:
                return error, None
            attempts.failed(error.name)
    raise AssertionError("attempts end by themselves")


class TransactionalProducer(Worker):
    """Transactions of a few records; one in ten is aborted on purpose, and in some the producer dies. Half of these
    producers add the partitions before they write to them, like clients before KIP-890; for the others the brokers add
    them.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._id = f"transactional-{self.process}"
        self._names_partitions = self.process % 2 == 0
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    async def run_once(self) -> None:
        await self.pause(0.3)
        if self._producer is None:
            self._producer = await new_producer(self, self._id)
            self._sequences.clear()
        aborts = self.draw.random() < ABORT_PROBABILITY
        sends, is_complete = await self._write_some()
        if self.draw.random() < DIE_PROBABILITY:
            await self._die_within(sends, commits=is_complete and not aborts and self.draw.random() < 0.5)
            return
        # Until a commit is requested, the transaction can only be aborted, by any request.
        status = Status.FAIL
        if sends:
            commits = is_complete and not aborts
            try:
                status = await self._end(commits=commits)
            except ClientError as error:
                self.recorder.tell(f"{self.name}: {error}")
                self._producer = None
                status = Status.INFO if commits else Status.FAIL
            self.record(status, sends, is_transaction=True)
        if not is_complete:
            self._producer = None

    async def _die_within(self, sends: list[Send], *, commits: bool) -> None:
        """Die before the end of the transaction is requested, or before its result is known."""
        if commits:
            asking = asyncio.create_task(self._end(commits=True))
            await self.pause(0.005)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self.recorder.tell(f"{self.name}: dies")
        self.recorder.count("producers died")
        if sends:
            self.record(Status.INFO if commits else Status.FAIL, sends, is_transaction=True)
        self.die()
        self._producer = None
        if self.draw.random() < 0.3:  # so late that the coordinator aborts the transaction itself
            await self.pause(2 * TRANSACTION_TIMEOUT_MS / 1000)

    async def _write_some(self) -> tuple[list[Send], bool]:
        """The records that were or may have been written, and whether all of them certainly were."""
        assert self._producer is not None
        draw, sends = self.draw, []
        if draw.random() < 0.5:
            value = self.value()
            wanted = [(partition, value) for partition in draw.sample(range(self.partitions), 2)]
        else:
            wanted = [(draw.randrange(self.partitions), self.value()) for _ in range(draw.randint(1, 4))]
        for partition, value in wanted:
            try:
                error = await self._name(partition) if self._names_partitions else ErrorCode.NONE
                offset = None
                if error is ErrorCode.NONE:
                    sends.append(Send(partition, value))
                    sequence = self._sequences.get(partition, 0)
                    version = 11 if self._names_partitions else None
                    error, offset = await write(
                        self, partition, [value], self._producer, sequence, self._id, max_version=version
                    )
            except ClientError as unknown:
                self.recorder.tell(f"{self.name}: {unknown}")
                return sends, False
            if error not in _WRITTEN:
                self.recorder.tell(f"{self.name}: {error.name}")
                return sends, False
            sends[-1] = Send(partition, value, offset)
            self._sequences[partition] = sequence + 1
        return sends, True

    async def _name(self, partition: int) -> ErrorCode:
        assert self._producer is not None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[partition])],
        )
        async for _ in (attempts := Attempts(self)):
            with self.retried(attempts):
                node_id = await self.client.coordinator(self._id, TRANSACTION_COORDINATOR)
                reply = await self.client.send(request, node_id, max_version=3)
                [topic] = reply.results_by_topic_v3_and_below
                error = ErrorCode.of(topic.results_by_partition[0].partition_error_code)
                if not error.retriable:
                    return error
                attempts.failed(error.name)
        raise AssertionError("attempts end by themselves")

    async def _end(self, *, commits: bool) -> Status:
        assert self._producer is not None
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commits,
        )
        async for is_retry in (attempts := Attempts(self)):
            with self.retried(attempts):
                node_id = await self.client.coordinator(self._id, TRANSACTION_COORDINATOR)
                reply = await self.client.send(request, node_id, max_version=3 if self._names_partitions else None)
                error = ErrorCode.of(reply.error_code)
                if error is ErrorCode.NONE:
                    if not self._names_partitions and (reply.producer_id, reply.producer_epoch) != self._producer:
                        self._producer = (reply.producer_id, reply.producer_epoch)
                        self._sequences.clear()
                    return Status.OK if commits else Status.FAIL
                if not error.retriable:
                    self.recorder.tell(f"{self.name}: {error.name} for the end of a transaction")
                    self._producer = None
                    return Status.INFO if commits and is_retry else Status.FAIL
                attempts.failed(error.name)
        raise AssertionError("attempts end by themselves")


class RivalProducer(TransactionalProducer):
    """One of several producers with the same transactional id: each new one fences the others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._id = "rivals"

    async def run_once(self) -> None:
        if self._producer is None:
            await self.pause(RIVAL_PAUSE_S)
        await super().run_once()


class Reader(Worker):
    """Follows all partitions from the beginning with read_committed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        start = {(self.topic, partition): 0 for partition in range(self.partitions)}
        self._fetcher = Fetcher(self.positions, start)
        self._knows_leaders = False

    async def run_once(self) -> None:
        if not self._knows_leaders:
            await self.positions.refresh([self.topic])
            self._knows_leaders = True
        await self.pause(0.1)
        self._invoked = asyncio.get_running_loop().time()
        records: dict[Key, list[tuple[int, Value]]] = {partition: [] for partition in range(self.partitions)}
        try:
            async for batch in self._fetcher.fetch(max_wait_ms=self.draw.randrange(500)):
                records[batch.partition] += [(record.offset, int(record.value or b"")) for record in batch.records]
        except ResponseError as error:
            self.recorder.wrong.append(f"{self.name}: {error}")
        finally:
            self.record(Status.OK, [Poll(records)])


class Committer(Worker):
    """Commits increasing offsets of a group without members, and checks before each that they did not move back."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = f"group-{self.process}"
        self._found_less = 0
        self._late: set[int] = set()
        """The offsets of requests without an answer. Any of them may arrive after later ones, which nothing fences."""

    async def run_once(self) -> None:
        await self.pause(0.3)
        before = self.recorder.committed.get((self._group, 0), 0)
        node_id = await self.client.coordinator(self._group)
        found = await fetch_committed(self.client, node_id, self._group, self.topic)
        if found is not None and max(found, 0) < before and found not in self._late:
            # A broker may still act as the coordinator for a while after another one was elected.
            self._found_less += 1
            if self._found_less > FOUND_LESS_MAX:
                self.recorder.wrong.append(f"{self._group} committed offset {before}, found {found}")
            return
        self._found_less = 0
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=before + 1)
        topic = OffsetCommitRequestTopic(name=self.topic, partitions=[partition])
        request = OffsetCommitRequest(group_id=self._group, topics=[topic])
        try:
            reply = await self.client.send(request, node_id, max_version=7)
        except ClientError:
            self._late.add(before + 1)
            raise
        error = ErrorCode.of(reply.topics[0].partitions[0].error_code)
        self.recorder.tell(f"{self.name}: {before + 1} {error.name}")
        if error is ErrorCode.NONE:
            self.recorder.committed[self._group, 0] = before + 1
            self.done += 1


async def fetch_committed(client: KafkaClient, node_id: int, group: str, topic: str) -> int | None:
    """The committed offset of a group for partition 0; None if the broker returns an error. Errors: ClientError."""
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    reply = await client.send(request, node_id, max_version=9)
    [answer] = reply.groups
    if answer.error_code or answer.topics[0].partitions[0].error_code:
        return None
    return int(answer.topics[0].partitions[0].committed_offset)


async def read_everything(client: KafkaClient, topic: str, partitions: int) -> dict[Key, list[tuple[int, Value]]]:
    """All committed records of every partition, from the start to the last stable offset. Errors: ClientError."""
    positions = Positions(client)
    await positions.refresh([topic])
    names = [(topic, partition) for partition in range(partitions)]
    ends = await positions.offsets(names, -1)
    fetcher = Fetcher(positions, await positions.offsets(names, EARLIEST))
    found: dict[Key, list[tuple[int, Value]]] = {partition: [] for partition in range(partitions)}
    while any(fetcher.positions[name] < ends[name] for name in names):
        async for batch in fetcher.fetch(max_wait_ms=100):
            found[batch.partition] += [(record.offset, int(record.value or b"")) for record in batch.records]
    return found
