"""Consumer groups with kafka-python: joins, rebalances, static members, commits."""

import threading
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import CommitFailedError, KafkaError
from kafka.structs import OffsetAndMetadata

from tools.waiting import wait_until

# Fresh metadata, because a leader that does not know another member's topic assigns nothing of it until it does.
FAST = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300, "metadata_max_age_ms": 1000}


class Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """A consumer polled by its own thread; keeps what it was assigned and what it read.

    It knows the topic before it joins. Otherwise kafka-python joins, sees the topic's partitions and joins again for
    them; and if a poll's timeout ends within that second join, kafka-python 3.0.12 forgets to look at its result: the
    member never sends a heartbeat, nor is it told its partitions, with whatever broker.
    """

    def __init__(self, consumer: Any, topic: str) -> None:
        self.consumer = consumer
        self.partitions: set[int] = set()
        self.assignments = 0
        self.values: list[bytes] = []
        self._stopping = threading.Event()
        consumer.subscribe([topic], listener=self)
        consumer.topics()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.partitions = set()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assignments += 1
        self.partitions = {partition.partition for partition in assigned}

    def _poll(self) -> None:
        while not self._stopping.is_set():
            for records in self.consumer.poll(timeout_ms=100).values():
                self.values.extend(record.value for record in records)

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.consumer.close(timeout_ms=5000)


def test_members_joining_at_once_share_the_partitions(
    make_topic: Any, group: str, make_consumer: Any, make_producer: Any
) -> None:
    topic = make_topic(partitions=4)
    members = [Member(make_consumer(group_id=group, **FAST), topic) for _ in range(2)]
    wait_until(lambda: [len(member.partitions) for member in members] == [2, 2])
    producer = make_producer()
    for partition in range(4):
        producer.send(topic, b"%d" % partition, partition=partition).get(30)
    wait_until(lambda: sum(len(member.values) for member in members) == 4)
    for member in members:
        assert {int(value) for value in member.values} == member.partitions
    members[0].leave()
    wait_until(lambda: members[1].partitions == {0, 1, 2, 3})
    members[1].leave()


def test_a_static_member_restarts_without_a_rebalance(make_topic: Any, group: str, make_consumer: Any) -> None:
    topic = make_topic(partitions=4)
    settings = {**FAST, "session_timeout_ms": 20_000, "group_id": group}
    stayer = Member(make_consumer(group_instance_id="stayer", **settings), topic)
    leaver = Member(make_consumer(group_instance_id="leaver", **settings), topic)
    wait_until(lambda: len(stayer.partitions) == 2 and len(leaver.partitions) == 2)
    before = (set(stayer.partitions), stayer.assignments, set(leaver.partitions))
    leaver.leave()
    returned = Member(make_consumer(group_instance_id="leaver", **settings), topic)
    wait_until(lambda: len(returned.partitions) == 2)
    assert (set(stayer.partitions), stayer.assignments, set(returned.partitions)) == before
    returned.leave()
    stayer.leave()


def test_commits_with_metadata_are_resumed_from(
    topic: str, group: str, produce: Any, make_consumer: Any, take: Any
) -> None:
    produce(topic, [b"%d" % number for number in range(10)])
    partition = TopicPartition(topic, 0)
    first = make_consumer(topic, group_id=group, **FAST)
    take(first, 10)
    first.commit({partition: OffsetAndMetadata(4, "half way — ½", -1)})
    committed = first.committed(partition, metadata=True)
    assert (committed.offset, committed.metadata) == (4, "half way — ½")
    first.close(timeout_ms=5000)
    second = make_consumer(topic, group_id=group, **FAST)
    assert [int(record.value) for record in take(second, 6)] == [4, 5, 6, 7, 8, 9]


def test_nothing_committed_is_none(topic: str, group: str, make_consumer: Any) -> None:
    assert make_consumer(topic, group_id=group).committed(TopicPartition(topic, 0)) is None


def test_metadata_beyond_4096_bytes_is_refused(topic: str, group: str, make_consumer: Any) -> None:
    partition = TopicPartition(topic, 0)
    consumer = make_consumer(group_id=group)
    consumer.assign([partition])
    consumer.commit({partition: OffsetAndMetadata(1, "x" * 4096, -1)})
    with pytest.raises(KafkaError) as raised:
        consumer.commit({partition: OffsetAndMetadata(2, "x" * 4097, -1)})
    assert raised.value.errno == 12
    assert consumer.committed(partition) == 1


def test_a_commit_from_outside_an_active_group_fails(topic: str, group: str, make_consumer: Any) -> None:
    partition = TopicPartition(topic, 0)
    member = Member(make_consumer(group_id=group, **FAST), topic)
    wait_until(lambda: member.partitions == {0})
    stranger = make_consumer(group_id=group)
    stranger.assign([partition])
    with pytest.raises(CommitFailedError):
        stranger.commit({partition: OffsetAndMetadata(1, "", -1)})
    member.leave()


def test_auto_commit_keeps_the_position_over_a_restart(
    topic: str, group: str, produce: Any, make_consumer: Any, take: Any
) -> None:
    produce(topic, [b"%d" % number for number in range(6)])
    first = make_consumer(topic, group_id=group, enable_auto_commit=True, **FAST)
    take(first, 6)
    first.close()
    produce(topic, [b"6"])
    second = make_consumer(topic, group_id=group, **FAST)
    assert [record.value for record in take(second, 1)] == [b"6"]
