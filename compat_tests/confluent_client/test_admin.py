"""Administration with librdkafka's AdminClient."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tools.waiting import PATIENCE_S, wait_until


def settle(futures: Mapping[Any, "Future[Any]"]) -> dict[Any, Any]:
    """The result of each future, or the KafkaError code it failed with."""
    outcomes: dict[Any, Any] = {}
    for key, future in futures.items():
        try:
            outcomes[key] = future.result(PATIENCE_S)
        except KafkaException as raised:
            outcomes[key] = raised.args[0].code()
    return outcomes


def topic_resource(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name)


def test_create_describe_and_delete(admin: AdminClient, group: str) -> None:
    name = f"{group}-created"
    created = settle(admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "3600000"})]))
    assert created == {name: None}
    description = admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S)
    assert description.name == name
    assert [partition.id for partition in description.partitions] == [0, 1, 2]
    assert all(partition.leader is not None for partition in description.partitions)
    assert description.is_internal is False
    assert str(description.topic_id)
    assert name in admin.list_topics(timeout=PATIENCE_S).topics
    assert settle(admin.delete_topics([name])) == {name: None}
    wait_until(lambda: name not in admin.list_topics(timeout=PATIENCE_S).topics)


def test_one_request_with_good_and_bad_topics(admin: AdminClient, topic: str, group: str) -> None:
    good = f"{group}-good"
    outcomes = settle(
        admin.create_topics(
            [
                NewTopic(good, 1),
                NewTopic(topic, 1),
                NewTopic("bad/name", 1),
                NewTopic(f"{group}-none", 0),
                NewTopic(f"{group}-replicas", 1, 99),
                NewTopic(f"{group}-config", 1, config={"no.such.config": "1"}),
                NewTopic(f"{group}-value", 1, config={"retention.ms": "soon"}),
            ]
        )
    )
    assert outcomes == {
        good: None,
        topic: KafkaError.TOPIC_ALREADY_EXISTS,
        "bad/name": KafkaError.TOPIC_EXCEPTION,
        f"{group}-none": KafkaError.INVALID_PARTITIONS,
        f"{group}-replicas": KafkaError.INVALID_REPLICATION_FACTOR,
        f"{group}-config": KafkaError.INVALID_CONFIG,
        f"{group}-value": KafkaError.INVALID_CONFIG,
    }
    assert settle(admin.delete_topics([good, f"{group}-none"])) == {
        good: None,
        f"{group}-none": KafkaError.UNKNOWN_TOPIC_OR_PART,
    }


def test_validate_only_creates_nothing(admin: AdminClient, group: str) -> None:
    name = f"{group}-validated"
    assert settle(admin.create_topics([NewTopic(name, 2)], validate_only=True)) == {name: None}
    assert name not in admin.list_topics(timeout=PATIENCE_S).topics


def test_explicit_replica_assignment(admin: AdminClient, group: str) -> None:
    name = f"{group}-assigned"
    (broker_id,) = admin.list_topics(timeout=PATIENCE_S).brokers
    assert settle(admin.create_topics([NewTopic(name, 2, replica_assignment=[[broker_id], [broker_id]])])) == {
        name: None
    }
    partitions = admin.list_topics(topic=name, timeout=PATIENCE_S).topics[name].partitions
    assert {
        number: (partition.leader, partition.replicas, partition.isrs) for number, partition in partitions.items()
    } == {number: (broker_id, [broker_id], [broker_id]) for number in (0, 1)}
    settle(admin.delete_topics([name]))


def test_partitions_can_be_added_but_not_taken_away(admin: AdminClient, topic: str) -> None:
    assert settle(admin.create_partitions([NewPartitions(topic, 4)])) == {topic: None}
    wait_until(lambda: len(admin.list_topics(topic=topic, timeout=PATIENCE_S).topics[topic].partitions) == 4)
    assert settle(admin.create_partitions([NewPartitions(topic, 2)])) == {topic: KafkaError.INVALID_PARTITIONS}
    assert settle(admin.create_partitions([NewPartitions(topic, 4)])) == {topic: KafkaError.INVALID_PARTITIONS}
    assert settle(admin.create_partitions([NewPartitions("absent", 4)])) == {"absent": KafkaError.UNKNOWN_TOPIC_OR_PART}


def test_incremental_alteration_touches_only_what_it_names(admin: AdminClient, make_topic: Any) -> None:
    topic = make_topic(configs={"retention.ms": "1000000", "segment.bytes": "1048576"})

    def overrides() -> dict[str, str]:
        (entries,) = settle(admin.describe_configs([topic_resource(topic)])).values()
        return {
            name: entry.value
            for name, entry in entries.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }

    assert overrides() == {"retention.ms": "1000000", "segment.bytes": "1048576"}
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "2000000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("segment.bytes", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    assert list(settle(admin.incremental_alter_configs([change])).values()) == [None]
    wait_until(lambda: overrides() == {"retention.ms": "2000000", "cleanup.policy": "delete,compact"})
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SUBTRACT)
        ],
    )
    assert list(settle(admin.incremental_alter_configs([change])).values()) == [None]
    wait_until(lambda: overrides() == {"retention.ms": "2000000", "cleanup.policy": "delete"})


def test_bad_alterations_are_refused(admin: AdminClient, topic: str) -> None:
    def alter(name: str, key: str, value: str) -> Any:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        (outcome,) = settle(admin.incremental_alter_configs([resource])).values()
        return outcome

    assert alter(topic, "retention.ms", "soon") == KafkaError.INVALID_CONFIG
    assert alter(topic, "no.such.config", "1") == KafkaError.INVALID_CONFIG
    assert alter("absent", "retention.ms", "1") == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_configs_of_topic_and_broker_are_described_with_sources(admin: AdminClient, make_topic: Any) -> None:
    topic = make_topic(configs={"max.message.bytes": "123456"})
    (entries,) = settle(admin.describe_configs([topic_resource(topic)])).values()
    assert entries["max.message.bytes"].value == "123456"
    assert entries["max.message.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["cleanup.policy"].value == "delete"
    assert entries["cleanup.policy"].is_default
    assert entries["cleanup.policy"].source == ConfigSource.DEFAULT_CONFIG.value
    assert entries["compression.type"].value == "producer"
    (broker_id,) = admin.list_topics(timeout=PATIENCE_S).brokers
    (entries,) = settle(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker_id))])).values()
    assert entries["message.max.bytes"].value == "1048588"
    assert entries["log.retention.hours"].value == "168"
    assert entries["log.retention.hours"].is_read_only
    absent = settle(admin.describe_configs([topic_resource("absent")]))
    assert list(absent.values()) == [KafkaError.UNKNOWN_TOPIC_OR_PART]


def test_records_are_deleted_up_to_an_offset(
    admin: AdminClient, topic: str, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    produce(topic, [b"%d" % number for number in range(10)])
    (deleted,) = settle(admin.delete_records([TopicPartition(topic, 0, 4)])).values()
    assert deleted.low_watermark == 4
    consumer = make_consumer(group)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (4, 10)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consume(consumer, 1)[0].offset() == 4
    assert list(settle(admin.delete_records([TopicPartition(topic, 0, 11)])).values()) == [
        KafkaError.OFFSET_OUT_OF_RANGE
    ]
    (deleted,) = settle(admin.delete_records([TopicPartition(topic, 0, -1)])).values()
    assert deleted.low_watermark == 10


def test_list_offsets_of_every_kind(admin: AdminClient, topic: str, make_producer: Any) -> None:
    producer = make_producer()
    for timestamp in (1000, 9000, 5000):
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0
    partition = TopicPartition(topic, 0)

    def ask(spec: OffsetSpec) -> tuple[int, int]:
        (result,) = settle(
            admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        ).values()
        return result.offset, result.timestamp

    assert ask(OffsetSpec.earliest())[0] == 0
    assert ask(OffsetSpec.latest())[0] == 3
    assert ask(OffsetSpec.max_timestamp()) == (1, 9000)
    assert ask(OffsetSpec.for_timestamp(2000)) == (1, 9000)
    assert ask(OffsetSpec.for_timestamp(9001))[0] == -1


def test_the_cluster_is_described(admin: AdminClient) -> None:
    description = admin.describe_cluster().result(PATIENCE_S)
    assert description.cluster_id
    assert len(description.nodes) == 1
    assert description.controller is not None
    assert description.cluster_id == admin.list_topics(timeout=PATIENCE_S).cluster_id


def test_groups_are_listed_described_and_deleted(
    admin: AdminClient, topic: str, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    produce(topic, [b"x"] * 3)
    consumer = make_consumer(group)
    consumer.subscribe([topic])
    consume(consumer, 3)
    consumer.commit(asynchronous=False)
    description = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert description.state == ConsumerGroupState.STABLE
    assert description.partition_assignor == "range"
    (member,) = description.members
    assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [(topic, 0)]
    assert member.host
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert listed.errors == []
    (listing,) = [listing for listing in listed.valid if listing.group_id == group]
    assert listing.state == ConsumerGroupState.STABLE
    assert listing.is_simple_consumer_group is False
    assert settle(admin.delete_consumer_groups([group])) == {group: KafkaError.NON_EMPTY_GROUP}
    consumer.close()
    wait_until(
        lambda: admin.describe_consumer_groups([group])[group].result(PATIENCE_S).state == ConsumerGroupState.EMPTY
    )
    assert settle(admin.delete_consumer_groups([group])) == {group: None}
    assert settle(admin.delete_consumer_groups([group])) == {group: KafkaError.GROUP_ID_NOT_FOUND}
    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(PATIENCE_S)
    assert group not in {listing.group_id for listing in listed.valid}


def test_group_offsets_are_listed_and_altered(
    admin: AdminClient, make_topic: Any, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [b"%d" % number for number in range(5)], partition=0)
    wanted = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(PATIENCE_S)
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    assert sorted((p.topic, p.partition, p.offset) for p in listed.topic_partitions) == [(topic, 0, 3), (topic, 1, 0)]
    consumer = make_consumer(group)
    consumer.subscribe([topic])
    assert [int(message.value()) for message in consume(consumer, 2)] == [3, 4]
    refused = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(
        PATIENCE_S
    )
    assert {partition.error.code() for partition in refused.topic_partitions} == {KafkaError.UNKNOWN_MEMBER_ID}


def test_offsets_of_a_deleted_topic_are_forgotten(admin: AdminClient, make_topic: Any, group: str) -> None:
    topic = make_topic()
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])])[
        group
    ].result(PATIENCE_S)
    assert settle(admin.delete_topics([topic])) == {topic: None}

    def offsets() -> list[int]:
        listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
        return [partition.offset for partition in listed.topic_partitions]

    wait_until(lambda: offsets() == [])
