"""Consumer groups with librdkafka: joins, rebalances, static members, commits."""

import threading
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.conftest import create_topic
from tools.waiting import PATIENCE_S, wait_until

FAST = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}


class Member:
    """A consumer polled by its own thread; keeps what it was assigned and what it read."""

    def __init__(self, consumer: Consumer, topic: str, *, cooperative: bool = False) -> None:
        self.consumer = consumer
        self.partitions: set[int] = set()
        self.assignments = 0
        self.revocations = 0
        self.values: list[bytes] = []
        self.errors: list[KafkaError] = []
        self._cooperative = cooperative
        self._stopping = threading.Event()
        consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._begin()

    def _begin(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        self.partitions |= {partition.partition for partition in partitions}

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.revocations += 1
        self.partitions -= {partition.partition for partition in partitions}

    def _poll(self) -> None:
        while not self._stopping.is_set():
            message = self.consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(message.error())
            else:
                self.values.append(message.value())

    def commit(self) -> None:
        """Commit what was read, while nobody polls: this client lets one thread in at a time, and one that polls again
        and again keeps all others waiting."""
        self.halt()
        self.consumer.commit(asynchronous=False)
        self._begin()

    def halt(self) -> None:
        """Stop polling without leaving the group."""
        self._stopping.set()
        self._thread.join()

    def leave(self) -> None:
        self.halt()
        self.consumer.close()


@pytest.fixture
def topic4(make_topic: Any) -> str:
    return str(make_topic(partitions=4))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_joining_at_once_share_the_partitions(
    strategy: str, topic4: str, group: str, make_consumer: Any, produce: Any
) -> None:
    members = [
        Member(make_consumer(group, {**FAST, "partition.assignment.strategy": strategy}), topic4) for _ in range(2)
    ]
    wait_until(lambda: [len(member.partitions) for member in members] == [2, 2])
    for partition in range(4):
        produce(topic4, [b"%d" % partition] * 5, partition=partition)
    wait_until(lambda: sum(len(member.values) for member in members) == 20)
    for member in members:
        assert {int(value) for value in member.values} == member.partitions
    members[0].leave()
    wait_until(lambda: members[1].partitions == {0, 1, 2, 3})
    members[1].leave()
    assert members[0].errors == members[1].errors == []


def test_a_cooperative_rebalance_moves_only_what_must_move(topic4: str, group: str, make_consumer: Any) -> None:
    config = {**FAST, "partition.assignment.strategy": "cooperative-sticky"}
    first = Member(make_consumer(group, config), topic4)
    wait_until(lambda: first.partitions == {0, 1, 2, 3})
    second = Member(make_consumer(group, config), topic4)
    wait_until(lambda: len(first.partitions) == 2 and len(second.partitions) == 2)
    assert first.partitions | second.partitions == {0, 1, 2, 3}
    assert first.revocations == 1
    assert second.revocations == 0
    second.leave()
    wait_until(lambda: first.partitions == {0, 1, 2, 3})
    assert first.revocations == 1
    first.leave()


def test_a_static_member_restarts_without_a_rebalance(topic4: str, group: str, make_consumer: Any) -> None:
    static = {**FAST, "session.timeout.ms": 20_000}
    stayer = Member(make_consumer(group, {**static, "group.instance.id": "stayer"}), topic4)
    leaver = Member(make_consumer(group, {**static, "group.instance.id": "leaver"}), topic4)
    wait_until(lambda: len(stayer.partitions) == 2 and len(leaver.partitions) == 2)
    before = (set(stayer.partitions), stayer.assignments, set(leaver.partitions))
    leaver.leave()
    returned = Member(make_consumer(group, {**static, "group.instance.id": "leaver"}), topic4)
    wait_until(lambda: len(returned.partitions) == 2)
    assert (set(stayer.partitions), stayer.assignments, set(returned.partitions)) == before
    returned.leave()
    stayer.leave()


def test_static_members_see_no_rebalance_after_a_brokers_kill(
    start_cluster: Any, topic_name: str, group: str, make_consumer: Any
) -> None:
    """They read on where they were; who comes in the place of one, where that one had committed."""
    own = start_cluster()
    create_topic(own.bootstrap_servers, topic_name, 2, None)
    servers = {"bootstrap.servers": own.bootstrap_servers, "reconnect.backoff.max.ms": 200}
    static = {**servers, **FAST, "session.timeout.ms": 45_000, "log_level": 0}

    def join(instance: str) -> Member:
        return Member(make_consumer(group, {**static, "group.instance.id": instance}), topic_name)

    def seen_by(member: Member) -> tuple[set[int], int, int]:
        return set(member.partitions), member.assignments, member.revocations

    def write(numbers: range) -> None:
        producer = Producer(servers)
        for number in numbers:
            producer.produce(topic_name, b"%d" % number, partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    members = [join("one"), join("two")]
    wait_until(lambda: [len(member.partitions) for member in members] == [1, 1])
    before = [seen_by(member) for member in members]
    write(range(20))
    wait_until(lambda: [len(member.values) for member in members] == [10, 10])
    for member in members:
        member.commit()
    own.kill()
    own.start()
    write(range(20, 40))
    wait_until(lambda: [len(member.values) for member in members] == [20, 20])
    assert [seen_by(member) for member in members] == before
    for member in members:
        assert [int(value) for value in member.values] == list(range(*member.partitions, 40, 2))
        assert {error.code() for error in member.errors} <= {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    members[1].halt()
    own.kill()
    own.start()
    successor = join("two")
    wait_until(lambda: len(successor.values) == 10)
    assert successor.values == members[1].values[10:]
    assert seen_by(members[0]) == before[0]
    successor.leave()
    members[0].leave()


def test_a_second_static_member_of_an_id_fences_the_first(topic4: str, group: str, make_consumer: Any) -> None:
    old = Member(make_consumer(group, {**FAST, "group.instance.id": "one"}), topic4)
    wait_until(lambda: len(old.partitions) == 4)
    new = Member(make_consumer(group, {**FAST, "group.instance.id": "one"}), topic4)
    wait_until(lambda: len(new.partitions) == 4)
    wait_until(lambda: any(error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID) for error in old.errors))
    new.leave()
    old.halt()


def test_a_member_that_dies_is_dropped_after_its_session(topic4: str, group: str, make_consumer: Any) -> None:
    dying = Member(make_consumer(group, {**FAST, "max.poll.interval.ms": 6000}), topic4)
    other = Member(make_consumer(group, FAST), topic4)
    wait_until(lambda: len(dying.partitions) == 2 and len(other.partitions) == 2)
    dying.halt()  # librdkafka notices by itself that nobody polls, and leaves
    wait_until(lambda: len(other.partitions) == 4)
    other.leave()


def test_commits_with_metadata_are_resumed_from(
    topic: str, group: str, make_consumer: Any, produce: Any, consume: Any
) -> None:
    produce(topic, [b"%d" % number for number in range(10)])
    first = make_consumer(group, FAST)
    first.subscribe([topic])
    consume(first, 10)
    first.commit(offsets=[TopicPartition(topic, 0, 4, "half way — ½")], asynchronous=False)
    (committed,) = first.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    assert (committed.offset, committed.metadata) == (4, "half way — ½")
    first.close()
    second = make_consumer(group, FAST)
    second.subscribe([topic])
    assert [int(message.value()) for message in consume(second, 6)] == [4, 5, 6, 7, 8, 9]


def test_nothing_committed_is_no_error(topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group)
    (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    assert committed.error is None
    assert committed.offset == OFFSET_INVALID


def test_metadata_beyond_the_limit_is_refused(topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.commit(offsets=[TopicPartition(topic, 0, 1, "x" * 4000)], asynchronous=False)
    # librdkafka gives an error of one partition either with the partition or as an exception.
    try:
        (result,) = consumer.commit(offsets=[TopicPartition(topic, 0, 2, "x" * 5000)], asynchronous=False)
        error = result.error
    except KafkaException as raised:
        error = raised.args[0]
    assert error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)[0].offset == 1


def test_auto_commit_keeps_the_position_over_a_restart(
    topic: str, group: str, make_consumer: Any, produce: Any, consume: Any
) -> None:
    produce(topic, [b"%d" % number for number in range(6)])
    first = make_consumer(group, {**FAST, "enable.auto.commit": True})
    first.subscribe([topic])
    consume(first, 6)
    first.close()
    produce(topic, [b"6"])
    second = make_consumer(group, FAST)
    second.subscribe([topic])
    assert consume(second, 1)[0].value() == b"6"


def test_commits_go_through_while_a_rebalance_is_preparing(
    topic4: str, group: str, make_consumer: Any, produce: Any
) -> None:
    """An eager member commits in its revocation callback, while the coordinator waits for it to rejoin."""
    outcomes: list[Any] = []
    produce(topic4, [b"x"] * 40)
    first = make_consumer(group, {**FAST, "partition.assignment.strategy": "range"})

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        offsets = [TopicPartition(topic4, partition.partition, 1) for partition in partitions]
        outcomes.append(consumer.commit(offsets=offsets, asynchronous=False))

    first.subscribe([topic4], on_revoke=revoked)
    wait_until(lambda: (first.poll(0.1), len(first.assignment()) == 4)[1])
    second = make_consumer(group, {**FAST, "partition.assignment.strategy": "range"})
    second.subscribe([topic4])

    def both_assigned() -> bool:
        first.poll(0.1)
        second.poll(0.1)
        return len(first.assignment()) == 2 and len(second.assignment()) == 2

    wait_until(both_assigned)
    assert [[partition.error for partition in outcome] for outcome in outcomes] == [[None] * 4]
    assert {
        committed.offset
        for committed in second.committed([TopicPartition(topic4, p) for p in range(4)], timeout=PATIENCE_S)
    } == {1}


def test_new_partitions_reach_a_running_group(
    topic: str, group: str, make_consumer: Any, admin: AdminClient, produce: Any
) -> None:
    from confluent_kafka.admin import NewPartitions

    member = Member(make_consumer(group, {**FAST, "topic.metadata.refresh.interval.ms": 300}), topic)
    wait_until(lambda: member.partitions == {0})
    for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(PATIENCE_S)
    wait_until(lambda: member.partitions == {0, 1, 2})
    produce(topic, [b"new"], partition=2)
    wait_until(lambda: member.values == [b"new"])
    member.leave()


def test_a_pattern_subscription_finds_topics_created_later(
    make_topic: Any, group: str, make_consumer: Any, admin: AdminClient, produce: Any
) -> None:
    from confluent_kafka.admin import NewTopic

    consumer = make_consumer(group, {**FAST, "topic.metadata.refresh.interval.ms": 300})
    consumer.subscribe([f"^{group}-.*"])
    consumer.poll(1.0)
    for future in admin.create_topics([NewTopic(f"{group}-later", num_partitions=2)]).values():
        future.result(PATIENCE_S)
    wait_until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 2)[1])
    for future in admin.delete_topics([f"{group}-later"]).values():
        future.result(PATIENCE_S)
