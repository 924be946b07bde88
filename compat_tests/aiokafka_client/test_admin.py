"""Administration with aiokafka's AIOKafkaAdminClient."""

from typing import Any

import pytest
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError, OffsetOutOfRangeError


def test_create_list_describe_and_delete(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        admin = await clients.admin()
        created = await admin.create_topics(
            [NewTopic(f"{group}-a", 3, 1), NewTopic(topic, 1, 1), NewTopic("bad/name", 1, 1)]
        )
        assert {name: code for name, code, _ in created.topic_errors} == {f"{group}-a": 0, topic: 36, "bad/name": 17}

        async def listed() -> bool:
            return f"{group}-a" in await admin.list_topics()

        await clients.until(listed)
        (description,) = await admin.describe_topics([f"{group}-a"])
        assert [
            partition["partition"] for partition in sorted(description["partitions"], key=lambda p: p["partition"])
        ] == [0, 1, 2]
        deleted = await admin.delete_topics([f"{group}-a", f"{group}-absent"])
        assert dict(deleted.topic_error_codes) == {f"{group}-a": 0, f"{group}-absent": 3}

        async def gone() -> bool:
            return f"{group}-a" not in await admin.list_topics()

        await clients.until(gone)

    run(scenario)


def test_the_cluster_is_described(run: Any) -> None:
    async def scenario(clients: Any) -> None:
        description = await (await clients.admin()).describe_cluster()
        assert len(description["brokers"]) == 1
        assert description["controller_id"] == description["brokers"][0]["node_id"]
        assert description["cluster_id"]

    run(scenario)


def test_partitions_can_be_added_but_not_taken_away(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        admin = await clients.admin()
        await admin.create_partitions({topic: NewPartitions(4)})

        async def four() -> bool:
            return len((await admin.describe_topics([topic]))[0]["partitions"]) == 4

        await clients.until(four)
        with pytest.raises(InvalidPartitionsError):
            await admin.create_partitions({topic: NewPartitions(2)})

    run(scenario)


def test_configs_are_described_and_replaced(run: Any, make_topic: Any) -> None:
    topic = make_topic(configs={"retention.ms": "1000000"})

    async def scenario(clients: Any) -> None:
        admin = await clients.admin()

        async def overrides() -> dict[str, str]:
            (response,) = await admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, topic)], include_synonyms=True
            )
            ((code, _, _, name, entries),) = response.resources
            assert (code, name) == (0, topic)
            return {entry[0]: entry[1] for entry in entries if entry[3] == 1}

        assert await overrides() == {"retention.ms": "1000000"}
        (altered, *_) = await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "5000"})]
        )
        assert [resource[0] for resource in altered.resources] == [0]

        async def replaced() -> bool:
            return await overrides() == {"max.message.bytes": "5000"}

        await clients.until(replaced)

    run(scenario)


def test_groups_are_listed_and_described(run: Any, topic: str, group: str) -> None:
    async def scenario(clients: Any) -> None:
        await clients.produce(topic, [b"x"])
        consumer = await clients.consumer(topic, group_id=group)
        await clients.take(consumer, 1)
        await consumer.commit()
        admin = await clients.admin()
        assert (group, "consumer") in [tuple(entry[:2]) for entry in await admin.list_consumer_groups()]
        (response,) = await admin.describe_consumer_groups([group])
        ((code, name, state, protocol_type, protocol, members, *_),) = response.groups
        assert (code, name, state, protocol_type, protocol, len(members)) == (
            0,
            group,
            "Stable",
            "consumer",
            "roundrobin",
            1,
        )
        assert await admin.list_consumer_group_offsets(group) == {TopicPartition(topic, 0): OffsetAndMetadata(1, "")}

    run(scenario)


def test_records_are_deleted_up_to_an_offset(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = TopicPartition(topic, 0)
        await clients.produce(topic, [b"%d" % number for number in range(10)])
        admin = await clients.admin()
        assert await admin.delete_records({partition: RecordsToDelete(4)}) == {partition: 4}
        reader = await clients.reader(partition)
        assert await reader.beginning_offsets([partition]) == {partition: 4}
        assert [record.offset for record in await clients.take(reader, 1)] == [4]
        with pytest.raises(OffsetOutOfRangeError):
            await admin.delete_records({partition: RecordsToDelete(11)})

    run(scenario)


def test_a_recreated_topic_is_used_by_live_clients(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = TopicPartition(topic, 0)
        admin = await clients.admin()
        producer = await clients.producer(metadata_max_age_ms=500)
        await producer.send_and_wait(topic, b"old", partition=0)
        reader = await clients.reader(partition, metadata_max_age_ms=500)
        assert [record.value for record in await clients.take(reader, 1)] == [b"old"]
        assert dict((await admin.delete_topics([topic])).topic_error_codes) == {topic: 0}

        async def created() -> bool:
            return bool((await admin.create_topics([NewTopic(topic, 1, 1)])).topic_errors[0][1] == 0)

        await clients.until(created)
        assert (await producer.send_and_wait(topic, b"new", partition=0)).offset == 0
        await reader.seek_to_beginning(partition)
        assert [record.value for record in await clients.take(reader, 1)] == [b"new"]

    run(scenario)
