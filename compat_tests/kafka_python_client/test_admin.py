"""Administration with kafka-python's KafkaAdminClient."""

import uuid
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec, OffsetTimestamp
from kafka.errors import (
    GroupIdNotFoundError,
    InvalidPartitionsError,
    NoError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from tools.waiting import PATIENCE_S, wait_until


def test_create_describe_and_delete(admin: Any, topic: str, group: str) -> None:
    wanted = {
        f"{group}-a": {"num_partitions": 3, "configs": {"retention.ms": "3600000"}},
        f"{group}-b": {},
        topic: {"num_partitions": 1},
        "bad/name": {"num_partitions": 1},
        f"{group}-none": {"num_partitions": 0},
        f"{group}-replicas": {"replication_factor": 99},
        f"{group}-config": {"configs": {"retention.ms": "soon"}},
    }
    created = {outcome["name"]: outcome for outcome in admin.create_topics(wanted, raise_errors=False)["topics"]}
    assert {name: outcome["error_code"] for name, outcome in created.items()} == {
        f"{group}-a": 0,
        f"{group}-b": 0,
        topic: 36,
        "bad/name": 17,
        f"{group}-none": 37,
        f"{group}-replicas": 38,
        f"{group}-config": 40,
    }
    assert (created[f"{group}-a"]["num_partitions"], created[f"{group}-a"]["replication_factor"]) == (3, 1)
    assert created[f"{group}-a"]["configs"]["retention.ms"]["value"] == "3600000"
    admin.wait_for_topics([f"{group}-a", f"{group}-b"])
    (description,) = admin.describe_topics([f"{group}-a"])
    assert [partition["partition_index"] for partition in description["partitions"]] == [0, 1, 2]
    assert uuid.UUID(str(description["topic_id"])) == uuid.UUID(str(created[f"{group}-a"]["topic_id"]))
    admin.delete_topics([f"{group}-a", f"{group}-b"])
    wait_until(lambda: not {f"{group}-a", f"{group}-b"} & set(admin.list_topics()))
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([f"{group}-a"])


def test_a_topic_is_described_and_deleted_by_id(admin: Any, make_topic: Any) -> None:
    topic = make_topic()
    (description,) = admin.describe_topics([topic])
    topic_id = uuid.UUID(str(description["topic_id"]))
    (by_id,) = admin.describe_topics([topic_id])
    assert (by_id["name"], by_id["error_code"]) == (topic, 0)
    admin.delete_topics([topic_id])
    wait_until(lambda: topic not in admin.list_topics())
    (unknown,) = admin.describe_topics([topic_id])
    assert unknown["error_code"] == 100


def test_partitions_can_be_added_but_not_taken_away(admin: Any, topic: str) -> None:
    admin.create_partitions({topic: 4})
    wait_until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 4)
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions({topic: 2})


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "replacing"])
def test_configs_are_altered_and_reset(incremental: bool, admin: Any, make_topic: Any) -> None:
    topic = make_topic(configs={"retention.ms": "1000000", "segment.bytes": "1048576"})

    def resource(configs: Any = None) -> ConfigResource:
        return ConfigResource(ConfigResourceType.TOPIC, topic, configs)

    def overrides() -> dict[str, str]:
        modified = admin.describe_configs([resource()], config_filter="modified")["topic"][topic]
        return {name: entry["value"] for name, entry in modified.items()}

    assert overrides() == {"retention.ms": "1000000", "segment.bytes": "1048576"}
    assert admin.alter_configs([resource({"retention.ms": "2000000"})], incremental=incremental) == {
        "topic": {topic: "OK"}
    }
    wait_until(lambda: overrides() == {"retention.ms": "2000000", "segment.bytes": "1048576"})
    admin.reset_configs([resource(["retention.ms"])], incremental=incremental)
    wait_until(lambda: overrides() == {"segment.bytes": "1048576"})


def test_configs_are_appended_to_and_validated(admin: Any, topic: str) -> None:
    def alter(configs: Any, **arguments: Any) -> str:
        return str(
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)], **arguments)["topic"][topic]
        )

    def policy() -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        return str(admin.describe_configs([resource], config_filter="all")["topic"][topic]["cleanup.policy"]["value"])

    assert alter({"cleanup.policy": (AlterConfigOp.APPEND, "compact")}) == "OK"
    wait_until(lambda: policy() == "delete,compact")
    assert "InvalidConfigurationError" in alter({"retention.ms": "soon"})
    assert alter({"cleanup.policy": "delete"}, validate_only=True) == "OK"
    assert policy() == "delete,compact"


def test_every_config_of_the_broker_is_described(admin: Any) -> None:
    (broker,) = admin.describe_cluster()["brokers"]
    name = str(broker["broker_id"])
    configs = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, name)], config_filter="all")["broker"][
        name
    ]
    assert configs["message.max.bytes"]["value"] == "1048588"
    assert configs["log.retention.hours"]["value"] == "168"
    assert configs["group.max.session.timeout.ms"]["value"] == "1800000"


def test_the_cluster_is_described(admin: Any) -> None:
    description = admin.describe_cluster()
    (broker,) = description["brokers"]
    assert description["controller_id"] == broker["broker_id"]
    assert description["cluster_id"]


def test_log_directories_hold_the_topic(admin: Any, topic: str, produce: Any) -> None:
    produce(topic, [b"x" * 1000])
    (answer,) = admin.describe_log_dirs()
    sizes = {
        (entry["name"], partition["partition_index"]): partition["partition_size"]
        for directory in answer["log_dirs"]
        for entry in directory["topics"]
        for partition in entry["partitions"]
    }
    assert sizes[topic, 0] > 1000
    assert {directory["error_code"] for directory in answer["log_dirs"]} == {0}


def test_records_are_deleted_up_to_an_offset(admin: Any, topic: str, produce: Any) -> None:
    partition = TopicPartition(topic, 0)
    produce(topic, [b"%d" % number for number in range(10)])
    assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({partition: 11})
    assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 10


def test_list_offsets_of_every_kind(admin: Any, topic: str, make_producer: Any) -> None:
    partition = TopicPartition(topic, 0)
    producer = make_producer(compression_type="gzip", linger_ms=50)
    for timestamp in (1000, 9000, 5000):
        producer.send(topic, b"x", partition=0, timestamp_ms=timestamp)
    producer.flush(timeout=PATIENCE_S)

    def ask(spec: Any) -> tuple[int, int]:
        found = admin.list_partition_offsets({partition: spec})[partition]
        return found.offset, found.timestamp

    assert ask(OffsetSpec.EARLIEST) == (0, -1)
    assert ask(OffsetSpec.LATEST) == (3, -1)
    assert ask(OffsetSpec.MAX_TIMESTAMP) == (1, 9000)
    assert ask(OffsetTimestamp(2000)) == (1, 9000)
    assert ask(OffsetTimestamp(9001)) == (-1, -1)


def test_groups_are_listed_described_and_deleted(
    admin: Any, topic: str, group: str, produce: Any, make_consumer: Any, take: Any
) -> None:
    produce(topic, [b"x"] * 3)
    consumer = make_consumer(topic, group_id=group)
    take(consumer, 3)
    consumer.commit()
    description = admin.describe_groups([group])[group]
    assert (description["error"], description["group_state"], description["protocol_type"]) == (
        None,
        "Stable",
        "consumer",
    )
    (member,) = description["members"]
    assert member["client_host"].startswith("/")
    assert group in {listing["group_id"] for listing in admin.list_groups(states_filter=["Stable"])}
    assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    assert admin.list_group_offsets(group) == {group: {TopicPartition(topic, 0): OffsetAndMetadata(3, "", 0)}}
    consumer.close(timeout_ms=5000)
    wait_until(lambda: admin.describe_groups([group])[group]["group_state"] == "Empty")
    assert admin.delete_groups([group, f"{group}-absent"]) == {group: "OK", f"{group}-absent": "GroupIdNotFoundError"}


def test_group_offsets_are_altered_reset_and_deleted(admin: Any, make_topic: Any, group: str, produce: Any) -> None:
    topic = make_topic(partitions=2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    produce(topic, [b"x"] * 5)
    altered = admin.alter_group_offsets(
        group, {partition: OffsetAndMetadata(3, "noted", -1) for partition in partitions}
    )
    assert altered == dict.fromkeys(partitions, NoError)
    assert admin.list_group_offsets(group)[group][partitions[1]].metadata == "noted"
    reset = admin.reset_group_offsets(group, {partitions[0]: OffsetSpec.LATEST})
    assert reset[partitions[0]] == {"error": NoError, "offset": 5}
    assert admin.delete_group_offsets(group, [partitions[1]]) == {partitions[1]: NoError}
    assert {partition: found.offset for partition, found in admin.list_group_offsets(group)[group].items()} == {
        partitions[0]: 5
    }
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_group_offsets(f"{group}-absent", [partitions[0]])


def test_offsets_of_a_subscribed_topic_are_not_deleted(
    admin: Any, topic: str, group: str, produce: Any, make_consumer: Any, take: Any
) -> None:
    partition = TopicPartition(topic, 0)
    produce(topic, [b"x"])
    consumer = make_consumer(topic, group_id=group)
    take(consumer, 1)
    consumer.commit()
    ((refused, error),) = admin.delete_group_offsets(group, [partition]).items()
    assert (refused, error.errno) == (partition, 86)


def test_members_are_removed_from_a_group(admin: Any, topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(topic, group_id=group, group_instance_id="static")
    consumer.topics()  # or it joins twice (test_groups.py, Member)
    wait_until(lambda: (consumer.poll(timeout_ms=100), bool(consumer.assignment()))[1])
    removed = admin.remove_group_members(
        group, [MemberToRemove(group_instance_id="static"), MemberToRemove(member_id="nobody")]
    )
    assert sorted(error.errno for error in removed.values()) == [0, 25]
    wait_until(lambda: admin.describe_groups([group])[group]["group_state"] == "Empty")


def test_a_recreated_topic_is_used_by_live_clients(
    admin: Any, topic: str, make_producer: Any, make_consumer: Any, take: Any
) -> None:
    partition = TopicPartition(topic, 0)
    producer = make_producer(metadata_max_age_ms=500)
    producer.send(topic, b"old", partition=0).get(30)
    consumer = make_consumer(metadata_max_age_ms=500)
    consumer.assign([partition])
    assert [record.value for record in take(consumer, 1)] == [b"old"]
    admin.delete_topics([topic])
    wait_until(
        lambda: bool(
            admin.create_topics({topic: {"num_partitions": 1}}, raise_errors=False)["topics"][0]["error_code"] == 0
        )
    )
    assert producer.send(topic, b"new", partition=0).get(60).offset == 0
    consumer.seek_to_beginning(partition)
    assert [record.value for record in take(consumer, 1)] == [b"new"]
