"""A whole broker on a shuffled loop (`tools/simulation/world/loop.py`), with clients that remember every response.

Topics are created, extended, configured, truncated and deleted. Meanwhile producers, transactions with long and short
timeouts, group members and readers use them, and flushes take time. `simulate` returns the violations: a reported
failure, a logged error, acknowledged records that are missing, a transaction that is visible in part or was aborted too
early, a committed offset that moved back, a partition without a leader, a shutdown that was not clean.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.topics import NewPartitions, NewTopic
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.storage.segment_reader import ColdRead
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch, iter_records
from tools.simulation.world.loop import InOrder, LoopClock, LoopThreads, ShuffledLoop, shuffled

TOPICS = 5
TRANSACTION_TIMEOUT_MS = 2_000
SLEEPER = "sleeper"
SLEEPERS = 16
SLEEP_S = 3.5
"""All producers with this name leave their transactions open until the next multiple of this time, so that many time
out at once.
"""

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")

CONFIGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "barnabas.flush.before.ack": "true",
    "barnabas.group.newcomer.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "100",
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
}

FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


@dataclass(eq=False)
class Topic:
    """One topic between its creation and deletion, and its acknowledged records: values by partition and offset."""

    name: str
    partitions: int
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    """The last acknowledged offset of partition 0, by group."""


@dataclass(eq=False)
class Transaction:
    """The records that a producer wrote in a transaction, and its reported end: None until it was reported."""

    is_committed: bool | None = None
    written: list[tuple[Topic, int, int, bytes]] = field(default_factory=list)


class Simulation:
    """One run. `draw` decides the clients' actions."""

    def __init__(self, broker: Broker, draw: random.Random, seconds: float) -> None:
        self.broker = broker
        self.draw = draw
        self.loop = asyncio.get_running_loop()
        self.end_s = self.loop.time() + seconds
        self.topics: dict[str, Topic] = {}
        self.transactions: list[Transaction] = []
        self.wrong: list[str] = []
        self.counts: dict[str, int] = {}
        self._values = 0

    # --- shared by the clients ----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.loop.time() >= self.end_s

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def pause(self, up_to_s: float) -> None:
        await asyncio.sleep(self.draw.random() * up_to_s)

    def any_topic(self) -> Topic | None:
        return self.draw.choice(list(self.topics.values())) if self.topics else None

    def value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    async def ask(self, request: Any, version: int) -> tuple[ErrorCode, Any]:
        """The error code of a response, and the response."""
        answer = await ask(self.broker, request, version)
        if isinstance(request, AddPartitionsToTxnRequest):
            (topic,) = answer.results_by_topic_v3_and_below
            return ErrorCode.of(topic.results_by_partition[0].partition_error_code), answer
        return ErrorCode.of(answer.error_code), answer

    async def until_served(self, request: Callable[[], Awaitable[tuple[ErrorCode, Any]]]) -> tuple[ErrorCode, Any]:
        """Retry as long as the error is a retriable one."""
        while True:
            error, answer = await request()
            if error not in (
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
            ):
                return error, answer
            await self.pause(0.05)

    async def produce(
        self, topic: Topic, partition: int, version: int, transactional_id: str | None = None, **producer: Any
    ) -> tuple[ErrorCode, int, bytes]:
        value = self.value()
        batch = build_batch([Record(0, self.broker.clock.now_ms(), value, value)], **producer)
        data = PartitionProduceData(index=partition, records=bytearray(batch))
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=60_000,
            topic_data=[TopicProduceData(name=topic.name, partition_data=[data])],
        )
        answer = (await ask(self.broker, request, version)).responses[0].partition_responses[0]
        return ErrorCode.of(answer.error_code), answer.base_offset, value

    # --- clients ------------------------------------------------------------------------------------

    async def administrator(self) -> None:
        controller, draw = self.broker.controller, self.draw
        while not self.is_over:
            await self.pause(0.6)
            name = f"t{draw.randrange(TOPICS)}"
            topic = self.topics.get(name)
            if topic is None:
                new = NewTopic(name, draw.randrange(1, 4), configs={"segment.bytes": "200"})
                (outcome,) = await controller.create_topics([new])
                if outcome.error is ErrorCode.NONE:
                    self.topics.setdefault(name, Topic(name, new.partition_count))
                    self.count("created")
                continue
            match draw.randrange(5):
                case 0 | 1:
                    del self.topics[name]
                    await controller.delete_topics([name])
                    self.count("deleted")
                case 2:
                    await controller.create_partitions([NewPartitions(name, topic.partitions + 1)])
                    topic.partitions += 1
                    self.count("expanded")
                case 3:
                    retention = draw.choice(["1000", "3000", "-1"])
                    try:
                        await self.configure(name, retention)
                    except ApiError:
                        self.count("gone before it was configured")
                    self.count("configured")
                case 4:
                    partition = self.broker.replicas.partition(name, 0)
                    if partition is not None:
                        self.broker.replicas.delete_records(partition, partition.log.high_watermark)

    async def configure(self, name: str, retention_ms: str) -> None:
        overrides = {"retention.ms": retention_ms, "segment.bytes": "200"}
        await self.broker.configs.change("topics", name, lambda _: overrides, if_topic_exists=True)

    async def producer(self) -> None:
        while not self.is_over:
            await self.pause(0.2)
            topic = self.any_topic()
            if topic is None:
                continue
            partition = self.draw.randrange(topic.partitions)
            error, offset, value = await self.produce(topic, partition, 11)
            if error is ErrorCode.NONE:
                topic.acknowledged[partition, offset] = value
                self.count("acknowledged")

    async def transactional_producer(self, name: str, version: int) -> None:
        while not self.is_over:
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
            _, reply = await self.until_served(partial(self.ask, request, 4))
            producer = (reply.producer_id, reply.producer_epoch)
            sequences: dict[tuple[str, int], int] = {}
            while not self.is_over:
                after = await self.transaction(name, producer, sequences, version)
                if after is None:
                    break
                if after != producer:
                    producer = after
                    sequences.clear()

    async def transaction(
        self, name: str, producer: tuple[int, int], sequences: dict[tuple[str, int], int], version: int
    ) -> tuple[int, int] | None:
        """Run one transaction. Returns the producer afterwards; None if it has to be initialised again."""
        topic = self.any_topic()
        if topic is None:
            await self.pause(0.5)
            return producer
        transaction = Transaction()
        self.transactions.append(transaction)
        began_s = self.loop.time()
        error = written = await self.write(transaction, topic, name, producer, sequences, version)
        if error not in FENCED:
            if name.startswith(SLEEPER):
                await asyncio.sleep(SLEEP_S - self.loop.time() % SLEEP_S)
            elif self.draw.random() < 0.4:  # just about too late
                await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000)
            await self.pause(self.draw.choice([0.1, 0.5, 1.0]))
            error, after = await self.end(transaction, name, producer, version, is_commit=written is ErrorCode.NONE)
            if error is ErrorCode.NONE:
                if written is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:  # of the topic created again, with markers only
                    return None
                return after if version == 2 else producer
        elapsed_ms = (self.loop.time() - began_s) * 1000
        if error in FENCED and elapsed_ms < TRANSACTION_TIMEOUT_MS:
            self.wrong.append(f"{name} was fenced with {error.name} {elapsed_ms:.0f} ms after its transaction began")
        self.count("fenced")
        return None

    async def write(
        self,
        transaction: Transaction,
        topic: Topic,
        name: str,
        producer: tuple[int, int],
        sequences: dict[tuple[str, int], int],
        version: int,
    ) -> ErrorCode:
        for _ in range(self.draw.randrange(1, 3)):
            partition = self.draw.randrange(topic.partitions)
            if version < 2:
                added = [AddPartitionsToTxnTopic(name=topic.name, partitions=[partition])]
                add = AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=producer[0],
                    v3_and_below_producer_epoch=producer[1],
                    v3_and_below_topics=added,
                )
                error, _ = await self.until_served(partial(self.ask, add, 3))
                if error is not ErrorCode.NONE:
                    return error
            # By name, as a client counts: a batch for one topic may arrive at the next topic of the same name, and a
            # sequence number used again there is a retry, which is acknowledged and not written (TransactionManager,
            # KIP-98).
            sequence = sequences.get((topic.name, partition), 0)
            while True:
                error, offset, value = await self.produce(
                    topic,
                    partition,
                    12 if version == 2 else 11,
                    name,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=sequence,
                    transactional=True,
                )
                if error not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS):
                    break
                await self.pause(0.05)
            if error is not ErrorCode.NONE:
                return error
            sequences[topic.name, partition] = sequence + 1
            transaction.written.append((topic, partition, offset, value))
        return ErrorCode.NONE

    async def end(
        self, transaction: Transaction, name: str, producer: tuple[int, int], version: int, *, is_commit: bool
    ) -> tuple[ErrorCode, tuple[int, int]]:
        request = EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=is_commit
        )
        error, reply = await self.until_served(partial(self.ask, request, 5 if version == 2 else 3))
        if error is ErrorCode.NONE:
            transaction.is_committed = is_commit
            self.count("ended")
        return error, (reply.producer_id, reply.producer_epoch)

    async def member(self, group: str) -> None:
        while not self.is_over:
            member_id = await self.take_part(group)
            if member_id and self.draw.random() < 0.3:
                members = [MemberIdentity(member_id=member_id)]
                await ask(self.broker, LeaveGroupRequest(group_id=group, members=members), 3)
            await self.pause(1)

    async def take_part(self, group: str) -> str:
        member_id, error = "", ErrorCode.MEMBER_ID_REQUIRED
        while error is ErrorCode.MEMBER_ID_REQUIRED:
            joined = await ask(
                self.broker,
                JoinGroupRequest(
                    group_id=group,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=3_000,
                    member_id=member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
                ),
                5,
            )
            member_id, error = joined.member_id, ErrorCode.of(joined.error_code)
        if error is not ErrorCode.NONE:
            return ""
        assignments = [SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"a") for each in joined.members]
        sync = SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=member_id, assignments=assignments
        )
        if (await ask(self.broker, sync, 3)).error_code:
            return member_id
        for _ in range(self.draw.randrange(1, 8)):
            await self.pause(0.5)
            beat = HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=member_id)
            if (await ask(self.broker, beat, 3)).error_code:
                break
            await self.commit(group, joined.generation_id, member_id)
        return member_id

    async def commit(self, group: str, generation: int, member_id: str) -> None:
        topic = self.any_topic()
        if topic is None:
            return
        offset = self._values
        data = OffsetCommitRequestTopic(
            name=topic.name,
            partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
        )
        request = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, topics=[data]
        )
        answer = await ask(self.broker, request, 7)
        if not answer.topics[0].partitions[0].error_code:
            topic.committed[group] = max(offset, topic.committed.get(group, 0))
            self.count("committed")

    async def reader(self) -> None:
        while not self.is_over:
            await self.pause(0.3)
            topic = self.any_topic()
            if topic is None:
                continue
            offset = 0
            for _ in range(10):
                asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                request = FetchRequest(
                    max_wait_ms=self.draw.randrange(1_000),
                    min_bytes=1,
                    isolation_level=self.draw.randrange(2),
                    session_epoch=-1,
                    topics=[FetchTopic(topic=topic.name, partitions=[asked])],
                )
                (answer,) = (await ask(self.broker, request, 11)).responses[0].partitions
                if answer.error_code or self.is_over:
                    break
                for header in iter_headers(answer.records or b""):
                    offset = header.next_offset
                self.count("fetched")

    # --- the end ------------------------------------------------------------------------------------

    async def run(self) -> None:
        for name in INTERNAL_TOPICS:
            self.broker.auto_topics.create([name])
        clients = [
            *(self.administrator() for _ in range(2)),
            *(self.producer() for _ in range(4)),
            *(self.transactional_producer(f"{SLEEPER}{n}", 0) for n in range(SLEEPERS)),
            *(self.transactional_producer(f"p{n}", 2 * (n % 4 == 3)) for n in range(8)),
            *(self.member(f"g{n % 2}") for n in range(4)),
            *(self.reader() for _ in range(3)),
        ]
        await asyncio.gather(*clients)
        # Open transactions are aborted, and running work ends.
        await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000 + 10)
        self.check()

    def check(self) -> None:
        values = {topic: self.read_all(topic) for topic in self.topics.values()}
        for topic, found in values.items():
            self.check_acknowledged(topic, found)
            self.check_commits(topic)
        for transaction in self.transactions:
            self.check_transaction(transaction, values)
        for known in self.broker.metadata.topics():
            for index, state in enumerate(known.partitions):
                hosted = self.broker.replicas.partition(known.name, index)
                if hosted is None or not hosted.state.is_leader:
                    self.wrong.append(f"{known.name}-{index} has no leader here: {state}")

    def read_all(self, topic: Topic) -> dict[tuple[int, int], tuple[bytes, bool]]:
        """Values by partition and offset, and whether their transactions were aborted."""
        found = {}
        for index in range(topic.partitions):
            partition = self.broker.replicas.partition(topic.name, index)
            if partition is None:
                continue
            log, offset = partition.log, partition.log.log_start_offset
            if log.last_stable_offset != log.log_end_offset or log.high_watermark != log.log_end_offset:
                self.wrong.append(f"{partition} has a transaction that never ended, or records not committed")
            while offset < log.log_end_offset:
                try:
                    data = log.read(offset, 1 << 20)
                except ColdRead as cold:
                    data = cold.load()
                for header in iter_headers(data.records):
                    offset = header.next_offset
                    if header.is_control:
                        continue
                    is_aborted = self.is_aborted(log, header)
                    for record in iter_records(data.records, header):
                        found[index, record.offset] = (bytes(record.value or b""), is_aborted)
        return found

    @staticmethod
    def is_aborted(log: Any, header: Any) -> bool:
        """Whether a read_committed reader would skip the batch."""
        if not header.is_transactional:
            return False
        covering = log.aborted_transactions(header.base_offset, header.base_offset + 1)
        return any(producer_id == header.producer_id for producer_id, _ in covering)

    def check_acknowledged(self, topic: Topic, found: dict[tuple[int, int], tuple[bytes, bool]]) -> None:
        for (index, offset), value in topic.acknowledged.items():
            partition = self.broker.replicas.partition(topic.name, index)
            start = partition.log.log_start_offset if partition is not None else 0
            if offset >= start and found.get((index, offset)) != (value, False):
                self.wrong.append(f"{topic.name}-{index} lost {value!r} at {offset}: {found.get((index, offset))}")

    def check_commits(self, topic: Topic) -> None:
        for group, offset in topic.committed.items():
            offsets = self.broker.groups.runtime.runner(group).shard.offsets
            (fetched,) = offsets.fetch(group, {topic.name: [0]}, require_stable=False).topics[topic.name]
            stored = None if fetched.committed is None else fetched.committed.offset
            if stored is None or stored < offset:
                self.wrong.append(f"{group} committed {offset} in {topic.name}, and is told {stored}")

    def check_transaction(
        self, transaction: Transaction, values: dict[Topic, dict[tuple[int, int], tuple[bytes, bool]]]
    ) -> None:
        visible = set()
        for topic, index, offset, value in transaction.written:
            partition = self.broker.replicas.partition(topic.name, index)
            if topic not in values or partition is None or offset < partition.log.log_start_offset:
                continue
            found = values[topic].get((index, offset))
            if found is None or found[0] != value:
                self.wrong.append(f"{topic.name}-{index} lost {value!r} of a transaction at {offset}: {found}")
                continue
            visible.add(not found[1])
        outcome = transaction.is_committed
        if len(visible) > 1 or (outcome is not None and visible - {outcome}):
            self.wrong.append(f"a transaction with outcome {outcome} is visible {visible}: {transaction.written}")


@contextmanager
def _errors_logged(wrong: list[str]) -> Iterator[None]:
    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            wrong.append(f"logged: {self.format(record)}")

    collector = Collector(logging.ERROR)
    names = [logging.getLogger("barnabas"), logging.getLogger("asyncio")]
    for logger in names:
        logger.addHandler(collector)
    try:
        yield
    finally:
        for logger in names:
            logger.removeHandler(collector)


def simulate(
    seed: int, data_dir: Path, *, seconds: float, job_s_max: float | None = None, **configs: str
) -> tuple[list[str], dict[str, int]]:
    """Run once, in `data_dir`, for `seconds` of the loop's time. Returns the violations, and the number of occurrences
    of each event.

    A thread's job takes up to `job_s_max` of these seconds; by default the seed decides. `configs` are keys of the
    broker, with underscores for dots.
    """
    draw = random.Random(seed)
    if job_s_max is None:
        job_s_max = draw.choice([0.0, 0.1, 0.5, 2.0])
    wrong: list[str] = []
    counts: dict[str, int] = {}

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: wrong.append(f"the loop: {context}"))
        given = {name.replace("_", "."): value for name, value in configs.items()}
        options = {**CONFIGS, **given, "log.dirs": str(data_dir)}
        clock = LoopClock(loop)
        store = EmbeddedStore(":memory:", clock, worker=_LoopWorker())
        await store.open()
        ids = random.Random(seed)
        environment = Environment(
            clock=clock,
            work_s=loop.time,
            files=UnsyncedFiles(),
            metadata_store=store,
            threads=LoopThreads(),
            random_bytes=ids.randbytes,
            random_below=ids.randrange,
        )
        broker = Broker(config.load(options=options), environment, wrong.append)
        await broker.start()
        simulation = Simulation(broker, draw, seconds)
        try:
            await simulation.run()
        finally:
            wrong.extend(simulation.wrong)
            counts.update(simulation.counts)
            await broker.stop()
            await store.close()
        if not (data_dir / CLEAN_SHUTDOWN_FILE).exists():
            wrong.append("the stop was not clean")

    with _errors_logged(wrong), shuffled(seed, job_s_max=job_s_max) as runner:
        runner.run(run())
    return wrong, counts


class _LoopWorker:
    """The metadata store's worker: a thread of the shuffled loop, because the order of a real thread could not be
    repeated.
    """

    def __init__(self) -> None:
        self._in_order = InOrder()

    def submit(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShuffledLoop)
        return loop.run_in_executor(self._in_order, work)

    def stop(self) -> None:
        """Do nothing: there is no separate thread."""
