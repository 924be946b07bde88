"""Consumer groups with aiokafka: joins, rebalances, static members, commits."""

import asyncio
from typing import Any

import pytest
from aiokafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError

FAST = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300}


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts assignments and revocations of one member."""

    def __init__(self) -> None:
        self.assignments: list[set[int]] = []
        self.revocations = 0

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.revocations += 1

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.assignments.append({partition.partition for partition in assigned})


def numbers(consumer: Any) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


def test_members_joining_at_once_share_the_partitions(run: Any, make_topic: Any, group: str) -> None:
    topic = make_topic(partitions=4)

    async def scenario(clients: Any) -> None:
        members = await asyncio.gather(*[clients.consumer(topic, group_id=group, **FAST) for _ in range(2)])
        await clients.until(lambda: [len(numbers(member)) for member in members] == [2, 2])
        producer = await clients.producer()
        for partition in range(4):
            await producer.send_and_wait(topic, b"%d" % partition, partition=partition)
        for member in members:
            records = await clients.take(member, 2)
            assert {int(record.value) for record in records} == numbers(member)
        await members[0].stop()
        await clients.until(lambda: numbers(members[1]) == {0, 1, 2, 3})

    run(scenario)


def test_a_static_member_restarts_without_a_rebalance(run: Any, make_topic: Any, group: str) -> None:
    topic = make_topic(partitions=4)

    async def scenario(clients: Any) -> None:
        settings = {**FAST, "session_timeout_ms": 20_000, "group_id": group}
        listener = Rebalances()
        stayer = await clients.consumer(group_instance_id="stayer", **settings)
        stayer.subscribe([topic], listener=listener)
        await clients.until(lambda: numbers(stayer) == {0, 1, 2, 3})
        leaver = await clients.consumer(topic, group_instance_id="leaver", **settings)
        await clients.until(lambda: [len(assigned) for assigned in listener.assignments] == [4, 2])
        await clients.until(lambda: len(numbers(leaver)) == 2)
        before = (numbers(leaver), list(listener.assignments))
        await leaver.stop()
        returned = await clients.consumer(topic, group_instance_id="leaver", **settings)
        await clients.until(lambda: len(numbers(returned)) == 2)
        assert (numbers(returned), list(listener.assignments)) == before

    run(scenario)


def test_commits_with_metadata_are_resumed_from(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        await clients.produce(topic, [b"%d" % number for number in range(10)])
        partition = TopicPartition(topic, 0)
        first = await clients.consumer(topic, group_id=group, **FAST)
        await clients.take(first, 10)
        await first.commit({partition: OffsetAndMetadata(4, "half way — ½")})
        assert await first.committed(partition) == 4
        await first.stop()
        second = await clients.consumer(topic, group_id=group, **FAST)
        assert [int(record.value) for record in await clients.take(second, 6)] == [4, 5, 6, 7, 8, 9]
        admin = await clients.admin()
        assert await admin.list_consumer_group_offsets(group) == {partition: OffsetAndMetadata(4, "half way — ½")}

    run(scenario)


def test_nothing_committed_is_none(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        consumer = await clients.consumer(topic, group_id=group)
        assert await consumer.committed(TopicPartition(topic, 0)) is None

    run(scenario)


def test_metadata_beyond_4096_bytes_is_refused(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = TopicPartition(topic, 0)
        consumer = await clients.consumer(group_id=group)
        consumer.assign([partition])
        await consumer.commit({partition: OffsetAndMetadata(1, "x" * 4096)})
        with pytest.raises(KafkaError) as raised:
            await consumer.commit({partition: OffsetAndMetadata(2, "x" * 4097)})
        assert raised.value.errno == 12
        assert await consumer.committed(partition) == 1

    run(scenario)


def test_a_commit_of_a_former_member_fails(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = TopicPartition(topic, 0)
        member = await clients.consumer(topic, group_id=group, **FAST)
        await clients.until(lambda: numbers(member) == {0})
        stranger = await clients.consumer(group_id=group)
        stranger.assign([partition])
        with pytest.raises(CommitFailedError):
            await stranger.commit({partition: OffsetAndMetadata(1, "")})

    run(scenario)


def test_auto_commit_keeps_the_position_over_a_restart(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        await clients.produce(topic, [b"%d" % number for number in range(6)])
        first = await clients.consumer(topic, group_id=group, enable_auto_commit=True, **FAST)
        await clients.take(first, 6)
        await first.stop()
        await clients.produce(topic, [b"6"])
        second = await clients.consumer(topic, group_id=group, **FAST)
        assert [record.value for record in await clients.take(second, 1)] == [b"6"]

    run(scenario)


def test_a_pattern_subscription_finds_topics_created_later(run: Any, group: str) -> None:
    async def scenario(clients: Any) -> None:
        consumer = await clients.consumer(group_id=group, metadata_max_age_ms=300, **FAST)
        consumer.subscribe(pattern=f"^{group}-.*")
        await clients.produce(f"{group}-later", [b"found"])
        assert [record.value for record in await clients.take(consumer, 1)] == [b"found"]

    run(scenario)
