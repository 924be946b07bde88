"""Requests of administration with valid and invalid entries side by side."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.wire.messages import alter_configs, incremental_alter_configs
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from compat_tests.semantics.client import (
    Connection,
    batch_of,
    fetch_partition,
    new_producer_id,
    produce_batch,
    topic_metadata,
)
from tools.waiting import wait_until

MakeTopic = Callable[..., str]
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def node_id(connection: Connection, topic: str) -> int:
    return int(topic_metadata(connection, topic).partitions[0].leader_id)


def create(
    connection: Connection, topics: list[CreatableTopic], version: int = 7, *, validate_only: bool = False
) -> Any:
    request = CreateTopicsRequest(topics=topics, timeout_ms=20_000, validate_only=validate_only)
    return {entry.name: entry for entry in connection.ask(request, version).topics}


def replicas(number: int, *broker_ids: int) -> CreatableReplicaAssignment:
    return CreatableReplicaAssignment(partition_index=number, broker_ids=list(broker_ids))


def test_create_topics_of_every_kind(connection: Connection, topic: str, topic_name: str) -> None:
    broker = node_id(connection, topic)
    wanted = {
        f"{topic_name}-plain": (CreatableTopic(num_partitions=2, replication_factor=1), 0),
        f"{topic_name}-defaults": (CreatableTopic(num_partitions=-1, replication_factor=-1), 0),
        f"{topic_name}-assigned": (
            CreatableTopic(
                num_partitions=-1, replication_factor=-1, assignments=[replicas(0, broker), replicas(1, broker)]
            ),
            0,
        ),
        topic: (CreatableTopic(num_partitions=1, replication_factor=1), 36),
        "bad/name": (CreatableTopic(num_partitions=1, replication_factor=1), 17),
        "": (CreatableTopic(num_partitions=1, replication_factor=1), 17),
        "..": (CreatableTopic(num_partitions=1, replication_factor=1), 17),
        "x" * 250: (CreatableTopic(num_partitions=1, replication_factor=1), 17),
        f"{topic_name}-0": (CreatableTopic(num_partitions=0, replication_factor=1), 37),
        f"{topic_name}-minus": (CreatableTopic(num_partitions=-2, replication_factor=1), 37),
        f"{topic_name}-none": (CreatableTopic(num_partitions=1, replication_factor=0), 38),
        f"{topic_name}-many": (CreatableTopic(num_partitions=1, replication_factor=2), 38),
        f"{topic_name}-both": (
            CreatableTopic(num_partitions=1, replication_factor=1, assignments=[replicas(0, broker)]),
            42,
        ),
        f"{topic_name}-stranger": (
            CreatableTopic(num_partitions=-1, replication_factor=-1, assignments=[replicas(0, 999)]),
            39,
        ),
        f"{topic_name}-gap": (
            CreatableTopic(num_partitions=-1, replication_factor=-1, assignments=[replicas(1, broker)]),
            39,
        ),
        f"{topic_name}-twice": (
            CreatableTopic(num_partitions=-1, replication_factor=-1, assignments=[replicas(0, broker, broker)]),
            39,
        ),
        f"{topic_name}-unknown": (
            CreatableTopic(
                num_partitions=1, replication_factor=1, configs=[CreatableTopicConfig(name="no.such", value="1")]
            ),
            40,
        ),
        f"{topic_name}-value": (
            CreatableTopic(
                num_partitions=1, replication_factor=1, configs=[CreatableTopicConfig(name="retention.ms", value="x")]
            ),
            40,
        ),
        f"{topic_name}-null": (
            CreatableTopic(
                num_partitions=1, replication_factor=1, configs=[CreatableTopicConfig(name="retention.ms", value=None)]
            ),
            40,
        ),
    }
    for name, (request, _) in wanted.items():
        request.name = name
    answers = create(connection, [request for request, _ in wanted.values()])
    assert {name: entry.error_code for name, entry in answers.items()} == {
        name: code for name, (_, code) in wanted.items()
    }
    for entry in answers.values():
        assert (entry.error_message is None) == (entry.error_code == 0)
        assert (entry.topic_id != bytes(16)) == (entry.error_code == 0)
    assigned = answers[f"{topic_name}-assigned"]
    assert (assigned.num_partitions, assigned.replication_factor) == (2, 1)
    defaults = answers[f"{topic_name}-defaults"]
    assert (defaults.num_partitions, defaults.replication_factor) == (1, 1)
    wait_until(lambda: len(topic_metadata(connection, f"{topic_name}-assigned").partitions) == 2)
    assert topic_metadata(connection, f"{topic_name}-plain").topic_id == answers[f"{topic_name}-plain"].topic_id


def test_a_name_given_twice_in_one_request(connection: Connection, topic_name: str) -> None:
    request = CreatableTopic(name=topic_name, num_partitions=1, replication_factor=1)
    assert {name: entry.error_code for name, entry in create(connection, [request, request]).items()} == {
        topic_name: 42
    }
    assert topic_metadata(connection, topic_name).error_code == 3


def test_names_that_collide_in_metrics(connection: Connection, topic_name: str) -> None:
    with_dot, with_underscore = f"{topic_name}.a", f"{topic_name}_a"
    first = create(connection, [CreatableTopic(name=with_dot, num_partitions=1, replication_factor=1)])
    assert first[with_dot].error_code == 0
    second = create(connection, [CreatableTopic(name=with_underscore, num_partitions=1, replication_factor=1)])
    assert second[with_underscore].error_code == 17


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_in_every_version(connection: Connection, topic_name: str, version: int) -> None:
    config = CreatableTopicConfig(name="retention.ms", value="12345")
    wanted = CreatableTopic(name=topic_name, num_partitions=2, replication_factor=1, configs=[config])
    (validated,) = create(connection, [wanted], version, validate_only=True).values()
    assert validated.error_code == 0
    assert topic_metadata(connection, topic_name).error_code == 3
    (created,) = create(connection, [wanted], version).values()
    assert created.error_code == 0
    assert (created.topic_id != bytes(16)) == (version >= 7)
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (2, 1)
        configs = {entry.name: (entry.value, entry.config_source) for entry in created.configs}
        assert configs["retention.ms"] == ("12345", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
        assert len(configs) > 25


def test_delete_topics_by_name_and_id(ready_topic: MakeTopic, connection: Connection, topic_name: str) -> None:
    by_name, by_id, kept = ready_topic(), ready_topic(), ready_topic()
    ids = {name: topic_metadata(connection, name).topic_id for name in (by_name, by_id, kept)}
    wanted = [
        DeleteTopicState(name=by_name),
        DeleteTopicState(name=None, topic_id=ids[by_id]),
        DeleteTopicState(name=topic_name),
        DeleteTopicState(name=None, topic_id=b"\x09" * 16),
    ]
    answers = connection.ask(DeleteTopicsRequest(topics=wanted, timeout_ms=20_000), 6).responses
    assert {(entry.name, entry.topic_id): entry.error_code for entry in answers} == {
        (by_name, ids[by_name]): 0,
        (by_id, ids[by_id]): 0,
        (topic_name, bytes(16)): 3,
        (None, b"\x09" * 16): 100,
    }
    wait_until(lambda: topic_metadata(connection, by_name).error_code == 3)
    wait_until(lambda: topic_metadata(connection, by_id).error_code == 3)
    assert topic_metadata(connection, kept).error_code == 0


def test_delete_topics_with_name_and_id_at_once(topic: str, connection: Connection) -> None:
    topic_id = topic_metadata(connection, topic).topic_id
    wanted = [DeleteTopicState(name=topic, topic_id=topic_id)]
    answers = connection.ask(DeleteTopicsRequest(topics=wanted, timeout_ms=20_000), 6).responses
    assert [entry.error_code for entry in answers] == [42]
    assert topic_metadata(connection, topic).error_code == 0


@pytest.mark.parametrize("version", range(1, 6))
def test_delete_topics_in_older_versions(topic: str, topic_name: str, connection: Connection, version: int) -> None:
    request = DeleteTopicsRequest(topic_names=[topic, topic_name], timeout_ms=20_000)
    answers = connection.ask(request, version).responses
    assert {entry.name: entry.error_code for entry in answers} == {topic: 0, topic_name: 3}


def test_a_topic_created_again_is_another_topic(ready_topic: MakeTopic, connection: Connection) -> None:
    name = ready_topic()
    old_id = topic_metadata(connection, name).topic_id
    produce_batch(connection, name, batch_of([b"old"]))
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000)
    assert connection.ask(request, 5).responses[0].error_code == 0

    def created() -> bool:
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        return bool(create(connection, [wanted])[name].error_code == 0)

    wait_until(created)
    wait_until(lambda: topic_metadata(connection, name).error_code == 0)
    new_id = topic_metadata(connection, name).topic_id
    assert new_id != old_id
    wait_until(lambda: bool(fetch_partition(connection, name, 0).error_code == 0))
    assert fetch_partition(connection, name, 0).high_watermark == 0
    assert fetch_partition(connection, old_id, 0, version=13).error_code == 100
    assert produce_batch(connection, old_id, batch_of([b"x"]), version=13).error_code == 100
    assert produce_batch(connection, new_id, batch_of([b"x"]), version=13).base_offset == 0


def test_create_partitions_of_every_kind(
    ready_topic: MakeTopic, connection: Connection, topic: str, topic_name: str
) -> None:
    broker = node_id(connection, topic)
    grown, assigned, shrunk, same, stranger, short = (ready_topic(partitions=2) for _ in range(6))
    wanted = [
        CreatePartitionsTopic(name=grown, count=4, assignments=None),
        CreatePartitionsTopic(name=assigned, count=3, assignments=[CreatePartitionsAssignment(broker_ids=[broker])]),
        CreatePartitionsTopic(name=shrunk, count=1, assignments=None),
        CreatePartitionsTopic(name=same, count=2, assignments=None),
        CreatePartitionsTopic(name=stranger, count=3, assignments=[CreatePartitionsAssignment(broker_ids=[999])]),
        CreatePartitionsTopic(name=short, count=4, assignments=[CreatePartitionsAssignment(broker_ids=[broker])]),
        CreatePartitionsTopic(name=topic_name, count=4, assignments=None),
    ]
    answers = connection.ask(CreatePartitionsRequest(topics=wanted, timeout_ms=20_000, validate_only=True), 3).results
    assert {entry.name: entry.error_code for entry in answers}[grown] == 0
    assert len(topic_metadata(connection, grown).partitions) == 2
    answers = connection.ask(CreatePartitionsRequest(topics=wanted, timeout_ms=20_000), 3).results
    assert {entry.name: entry.error_code for entry in answers} == {
        grown: 0,
        assigned: 0,
        shrunk: 37,
        same: 37,
        stranger: 39,
        short: 39,
        topic_name: 3,
    }
    wait_until(lambda: len(topic_metadata(connection, grown).partitions) == 4)
    wait_until(lambda: len(topic_metadata(connection, assigned).partitions) == 3)
    wait_until(lambda: bool(produce_batch(connection, grown, batch_of([b"x"]), partition=3).error_code == 0))


def overrides(connection: Connection, topic: str) -> dict[str, str]:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=None)]
    )
    (result,) = connection.ask(request, 4).results
    assert result.error_code == 0
    return {entry.name: entry.value for entry in result.configs if entry.config_source == 1}


def test_alter_configs_replaces_and_mixes(ready_topic: MakeTopic, connection: Connection, topic_name: str) -> None:
    good = ready_topic(configs={"retention.ms": "1000", "max.message.bytes": "5000"})
    bad_value, bad_name = ready_topic(configs={"retention.ms": "1000"}), ready_topic()

    def change(name: str, key: str, value: str | None) -> alter_configs.AlterConfigsResource:
        return alter_configs.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=name,
            configs=[alter_configs.AlterableConfig(name=key, value=value)],
        )

    wanted = [
        change(good, "retention.ms", "2000"),
        change(bad_value, "retention.ms", "soon"),
        change(bad_name, "no.such", "1"),
        change(topic_name, "retention.ms", "1"),
    ]
    request = alter_configs.AlterConfigsRequest(resources=wanted, validate_only=True)
    codes = {entry.resource_name: entry.error_code for entry in connection.ask(request, 2).responses}
    expected = {good: 0, bad_value: 40, bad_name: 40, topic_name: 3}
    assert codes == expected
    assert overrides(connection, good) == {"retention.ms": "1000", "max.message.bytes": "5000"}
    request = alter_configs.AlterConfigsRequest(resources=wanted)
    codes = {entry.resource_name: entry.error_code for entry in connection.ask(request, 2).responses}
    assert codes == expected
    wait_until(lambda: overrides(connection, good) == {"retention.ms": "2000"})
    assert overrides(connection, bad_value) == {"retention.ms": "1000"}


def test_incremental_alter_configs(ready_topic: MakeTopic, connection: Connection, topic_name: str) -> None:
    topic = ready_topic(configs={"retention.ms": "1000", "cleanup.policy": "compact"})

    def ask(name: str, *changes: tuple[str, int, str | None], resource_type: int = TOPIC) -> int:
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        (answer,) = connection.ask(request, 1).responses
        assert (answer.resource_type, answer.resource_name) == (resource_type, name)
        assert (answer.error_message is None) == (answer.error_code == 0)
        return int(answer.error_code)

    assert ask(topic, ("retention.ms", DELETE, None), ("cleanup.policy", APPEND, "delete")) == 0
    wait_until(lambda: overrides(connection, topic) == {"cleanup.policy": "compact,delete"})
    assert ask(topic, ("cleanup.policy", APPEND, "delete")) == 0
    assert ask(topic, ("cleanup.policy", SUBTRACT, "compact"), ("segment.ms", SET, "7000")) == 0
    wait_until(lambda: overrides(connection, topic) == {"cleanup.policy": "delete", "segment.ms": "7000"})
    assert ask(topic, ("max.message.bytes", DELETE, None)) == 0
    assert ask(topic, ("retention.ms", SET, "x")) == 40
    assert ask(topic, ("retention.ms", SET, None)) == 42
    assert ask(topic, ("retention.ms", APPEND, "1")) == 40
    assert ask(topic, ("no.such", SET, "1")) == 40
    assert ask(topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")) == 42
    assert ask(topic_name, ("retention.ms", SET, "1")) == 3
    assert ask("", ("retention.ms", SET, "1")) in (17, 42)
    assert ask("not-a-number", ("log.retention.ms", SET, "1"), resource_type=BROKER) == 42
    assert ask(topic, ("x", SET, "1"), resource_type=77) == 42
    assert overrides(connection, topic) == {"cleanup.policy": "delete", "segment.ms": "7000"}


def test_delete_records_of_every_kind(ready_topic: MakeTopic, connection: Connection, topic_name: str) -> None:
    topic = ready_topic(partitions=4)
    for partition in range(4):
        produce_batch(connection, topic, batch_of([b"x"] * 5), partition=partition)
    wanted = {0: 3, 1: -1, 2: 6, 3: -2, 9: 1}
    request = DeleteRecordsRequest(
        timeout_ms=20_000,
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=partition, offset=offset)
                    for partition, offset in wanted.items()
                ],
            ),
            DeleteRecordsTopic(name=topic_name, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)]),
        ],
    )
    for _ in range(2):
        answers = {
            (entry.name, part.partition_index): (part.error_code, part.low_watermark)
            for entry in connection.ask(request, 2).topics
            for part in entry.partitions
        }
        assert answers == {
            (topic, 0): (0, 3),
            (topic, 1): (0, 5),
            (topic, 2): (1, -1),
            (topic, 3): (1, -1),
            (topic, 9): (3, -1),
            (topic_name, 0): (3, -1),
        }
    assert fetch_partition(connection, topic, 2).error_code == 1
    assert fetch_partition(connection, topic, 3).log_start_offset == 3
    assert produce_batch(connection, topic, batch_of([b"x"]), partition=1).log_start_offset == 5


def test_describe_configs_of_what_does_not_exist(connection: Connection, topic: str, topic_name: str) -> None:
    def ask(resource_type: int, name: str, keys: list[str] | None = None) -> Any:
        resource = DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys)
        (result,) = connection.ask(DescribeConfigsRequest(resources=[resource]), 4).results
        return result

    assert ask(TOPIC, topic_name).error_code == 3
    assert ask(TOPIC, "bad/name").error_code == 17
    assert ask(BROKER, "999").error_code == 42
    assert ask(BROKER, "one").error_code == 42
    assert ask(77, "x").error_code == 42
    assert [entry.name for entry in ask(TOPIC, topic, ["retention.ms", "no.such"]).configs] == ["retention.ms"]
    assert ask(TOPIC, topic, []).configs != []


def test_describe_log_dirs(ready_topic: MakeTopic, connection: Connection, topic_name: str) -> None:
    topic = ready_topic(partitions=2)
    produce_batch(connection, topic, batch_of([b"x" * 1000]), partition=1)
    wanted = [
        DescribableLogDirTopic(topic=topic, partitions=[0, 1, 7]),
        DescribableLogDirTopic(topic=topic_name, partitions=[0]),
    ]
    for version in range(1, 5):
        response = connection.ask(DescribeLogDirsRequest(topics=wanted), version)
        (directory,) = response.results
        (found,) = directory.topics
        sizes = {part.partition_index: part.partition_size for part in found.partitions}
        assert (directory.error_code, found.name, sizes.keys()) == (0, topic, {0, 1})
        assert sizes[0] == 0
        assert sizes[1] > 1000
        assert {(part.offset_lag, part.is_future_key) for part in found.partitions} == {(0, False)}
        if version >= 4:
            assert directory.total_bytes > directory.usable_bytes > 0


def test_describe_producers(topic: str, topic_name: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)
    for sequence in (0, 2):
        batch = batch_of([b"x"] * 2, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        assert produce_batch(connection, topic, batch).error_code == 0
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=topic, partition_indexes=[0, 5]),
            TopicRequest(name=topic_name, partition_indexes=[0]),
        ]
    )
    answers = {
        (entry.name, part.partition_index): part
        for entry in connection.ask(request, 0).topics
        for part in entry.partitions
    }
    (state,) = answers[topic, 0].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer_id, 0, 3)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, -1)
    assert state.last_timestamp > 0
    assert answers[topic, 5].error_code == 3
    assert answers[topic_name, 0].error_code == 3


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_in_every_version(connection: Connection, version: int) -> None:
    response = connection.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1), version)
    assert (response.error_code, response.producer_epoch) == (0, 0)
    assert response.producer_id >= 0
