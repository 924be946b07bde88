"""The topics, groups and transactions that requests are about, and the requests that make them."""

import itertools
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from barnabas.wire import messages
from barnabas.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    create_topics,
    fetch,
    find_coordinator,
    init_producer_id,
    join_group,
    list_transactions,
    offset_fetch,
    sync_group,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.attack.hostile import ask, connect, eventually, topic_id

TOPIC: Final = "numbers"
EMPTY_TOPIC: Final = "empty"
NODE_ID: Final = 1


class Member(NamedTuple):
    """The one member of a stable group."""

    group_id: str
    member_id: str
    generation: int


class Producer(NamedTuple):
    """A transactional producer with an open transaction on partition 0 of TOPIC."""

    transactional_id: str
    producer_id: int
    epoch: int


class Peer:
    """A connection to a broker, and a source of unused names."""

    _numbers = itertools.count()

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: socket.socket | None = None
        self.connect()

    def connect(self) -> None:
        """Open a new connection, after a restart of the broker."""
        self.close()
        self._connection = connect(self._address)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def ask(self, request: Message, version: int) -> Any:
        key = request.API_KEY
        assert self._connection is not None
        return ask(self._connection, request, version, messages.api(key).response_class)

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def create(self, name: str, partitions: int = 1, configs: Mapping[str, str] = MappingProxyType({})) -> int:
        """Create a topic. Returns the error code."""
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[create_topics.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        response = self.ask(create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=15_000), 5)
        code: int = response.topics[0].error_code
        return code

    def make_topic(self, name: str, partitions: int = 1) -> str:
        assert self.create(name, partitions) == 0
        return name


class Stage(Peer):
    """Creates the objects of the requests, new ones each time."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._session_id = 0
        self.make_topic(TOPIC, 2)
        self.make_topic(EMPTY_TOPIC)
        self.topic_id = topic_id(address, TOPIC)
        self.empty_topic_id = topic_id(address, EMPTY_TOPIC)
        self.ask(produce(self.batch()), 9)
        assert eventually(lambda: self._is_coordinated(0) and self._is_coordinated(1))

    def batch(self, **fields: Any) -> bytearray:
        return build_batch([Record(0, now_ms(), b"k", b"v")], **fields)

    def _is_coordinated(self, key_type: int) -> bool:
        request = find_coordinator.FindCoordinatorRequest(key_type=key_type, key="a")
        if self.ask(request, 2).error_code:
            return False
        if key_type == 0:
            return not errors(self.ask(offset_fetch.OffsetFetchRequest(group_id="a", topics=[]), 6))
        return not errors(self.ask(list_transactions.ListTransactionsRequest(), 0))

    def member(self) -> Member:
        group_id = self.name("group")
        first = self.ask(joining(group_id, ""), 5)
        joined = self.ask(joining(group_id, first.member_id), 5)
        assert joined.error_code == 0, joined
        member = Member(group_id, first.member_id, joined.generation_id)
        synced = self.ask(syncing(member), 5)
        assert synced.error_code == 0, synced
        return member

    def producer(self) -> Producer:
        transactional_id = self.name("transactional")
        made = self.ask(
            init_producer_id.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 3
        )
        producer = Producer(transactional_id, made.producer_id, made.producer_epoch)
        added = self.ask(adding(producer, 3), 3)
        batch = self.batch(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0, transactional=True
        )
        written = self.ask(produce(batch, transactional_id=transactional_id), 9)
        for answer in (made, added, written):
            assert not errors(answer), answer
        return producer

    def idempotent_producer(self) -> int:
        """A fresh producer id, at epoch 0."""
        made = self.ask(init_producer_id.InitProducerIdRequest(transactional_id=None), 3)
        assert made.error_code == 0, made
        producer_id: int = made.producer_id
        return producer_id

    def with_offsets(self) -> Producer:
        """A producer whose transaction also includes a group."""
        producer = self.producer()
        request = add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id="offsets",
        )
        assert not errors(self.ask(request, 3))
        return producer

    def session(self, version: int) -> int:
        """The id of a new fetch session with partition 0 of TOPIC, with next epoch 1; the previous one is closed."""
        if self._session_id:
            self.ask(fetching(self, session_id=self._session_id), version)
        opened = self.ask(fetching(self, session_epoch=0), version)
        assert opened.session_id > 0, opened
        self._session_id = opened.session_id
        return self._session_id


def now_ms() -> int:
    """The current time, for the timestamps of valid records."""
    return time.time_ns() // 1_000_000


def errors(value: object) -> list[int]:
    """All error codes in a response other than 0."""
    if isinstance(value, list):
        return [code for each in value for code in errors(each)]
    if not isinstance(value, Message):
        return []
    found = []
    for field in value.FIELDS:
        inner = getattr(value, field.name)
        if field.name.endswith("error_code"):
            found += [inner] if inner else []
        else:
            found += errors(inner)
    return found


def produce(
    batch: bytes | bytearray, *, topic: bytes = bytes(16), transactional_id: str | None = None
) -> ProduceRequest:
    data = TopicProduceData(name=TOPIC, topic_id=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data], transactional_id=transactional_id)


def fetching(stage: Stage, *, session_id: int = 0, session_epoch: int = -1) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    forgotten = []
    if session_id:
        forgotten = [fetch.ForgottenTopic(topic=TOPIC, topic_id=stage.topic_id, partitions=[0])]
    return fetch.FetchRequest(
        replica_state=fetch.ReplicaState(),
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[fetch.FetchTopic(topic=TOPIC, topic_id=stage.topic_id, partitions=[partition])],
        forgotten_topics_data=forgotten,
    )


def joining(group_id: str, member_id: str) -> join_group.JoinGroupRequest:
    return join_group.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def syncing(member: Member) -> sync_group.SyncGroupRequest:
    assignment = sync_group.SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"")
    return sync_group.SyncGroupRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        generation_id=member.generation,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[assignment],
    )


def adding(producer: Producer, version: int) -> add_partitions_to_txn.AddPartitionsToTxnRequest:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
    if version < 4:
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
    transaction = add_partitions_to_txn.AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=topics,
    )
    return add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[transaction])
