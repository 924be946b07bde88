"""Metadata and DescribeCluster: what is listed, by name and by id, and what creates a topic."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from compat_tests.semantics.client import Connection, topic_metadata
from tools.waiting import wait_until

NO_ID = bytes(16)
MakeTopic = Callable[..., str]


def names(*wanted: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in wanted]


def ask(connection: Connection, topics: Any, version: int, *, create: bool = False) -> Any:
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create if version >= 4 else True)
    return connection.ask(request, version)


@pytest.mark.parametrize("version", range(14))
def test_every_version_describes_a_topic(
    ready_topic: MakeTopic, cluster: Any, connection: Connection, version: int
) -> None:
    topic = ready_topic(partitions=3)
    response = ask(connection, names(topic), version)
    (broker,) = response.brokers
    assert f"{broker.host}:{broker.port}" == cluster.bootstrap_servers
    (description,) = response.topics
    assert (description.error_code, description.name) == (0, topic)
    assert sorted(part.partition_index for part in description.partitions) == [0, 1, 2]
    for part in description.partitions:
        assert (part.error_code, part.leader_id) == (0, broker.node_id)
        assert part.replica_nodes == part.isr_nodes == [broker.node_id]
        assert part.offline_replicas == []
        assert part.leader_epoch == (-1 if version < 7 else 0)
    if version >= 1:
        assert response.controller_id == broker.node_id
        assert not description.is_internal
    if version >= 2:
        assert response.cluster_id
    assert (description.topic_id != NO_ID) == (version >= 10)
    assert response.error_code == 0


def test_null_is_all_and_an_empty_list_is_none(topic: str, connection: Connection) -> None:
    assert topic in {entry.name for entry in ask(connection, [], 0).topics}
    for version in (1, 5, 9, 12, 13):
        assert topic in {entry.name for entry in ask(connection, None, version).topics}
        assert ask(connection, [], version).topics == []


def test_unknown_topics(topic: str, topic_name: str, connection: Connection) -> None:
    for version in (4, 8, 12):
        response = ask(connection, names(topic_name, topic), version)
        found = {entry.name: entry for entry in response.topics}
        assert (found[topic_name].error_code, found[topic_name].partitions) == (3, [])
        assert found[topic].error_code == 0
    assert topic_name not in {entry.name for entry in ask(connection, None, 12).topics}


@pytest.mark.parametrize("name", ["bad/name", "with space", "x" * 250, ".", "..", ""])
@pytest.mark.parametrize("create", [True, False])
def test_invalid_names(topic: str, connection: Connection, name: str, create: bool) -> None:
    response = ask(connection, names(name, topic), 9, create=create)
    found = {entry.name: entry.error_code for entry in response.topics}
    assert found[topic] == 0
    assert found[name] == 17


def test_names_of_249_characters_are_allowed(connection: Connection, topic_name: str, make_topic: MakeTopic) -> None:
    name = make_topic(name=topic_name.ljust(249, "x"))
    wait_until(lambda: topic_metadata(connection, name).error_code == 0)


def test_topics_by_id(topic: str, connection: Connection) -> None:
    topic_id = topic_metadata(connection, topic).topic_id
    for version in (12, 13):
        wanted = [MetadataRequestTopic(topic_id=topic_id, name=None)]
        (found,) = ask(connection, wanted, version).topics
        assert (found.error_code, found.name, found.topic_id) == (0, topic, topic_id)
        (unknown,) = ask(connection, [MetadataRequestTopic(topic_id=b"\x07" * 16, name=None)], version).topics
        assert (unknown.error_code, unknown.name, unknown.topic_id) == (100, None, b"\x07" * 16)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_and_null_names_need_version_12(connection: Connection, version: int, topic: str) -> None:
    topic_id = topic_metadata(connection, topic).topic_id
    response = ask(connection, [MetadataRequestTopic(topic_id=topic_id, name=None)], version)
    assert [entry.error_code for entry in response.topics] == [42]


@pytest.mark.parametrize("version", [1, 4, 9, 12])
def test_asking_for_a_topic_creates_it(topic_name: str, connection: Connection, version: int) -> None:
    (first,) = ask(connection, names(topic_name), version, create=True).topics
    assert (first.name, first.error_code) in [(topic_name, 3), (topic_name, 5), (topic_name, 0)]
    wait_until(lambda: ask(connection, names(topic_name), version, create=True).topics[0].error_code == 0)
    assert len(topic_metadata(connection, topic_name).partitions) == 1


def test_a_topic_created_by_asking_is_created_once(topic_name: str, connect: Callable[[], Connection]) -> None:
    connections = [connect() for _ in range(8)]
    request = MetadataRequest(topics=names(topic_name), allow_auto_topic_creation=True)
    for each in connections:
        each.send(request, 12)
    assert {each.receive().topics[0].error_code for each in connections} <= {0, 3, 5}
    wait_until(lambda: topic_metadata(connections[0], topic_name).error_code == 0)
    assert len({topic_metadata(each, topic_name).topic_id for each in connections}) == 1


def test_internal_topics_are_marked(connection: Connection, group: str) -> None:
    request = FindCoordinatorRequest(coordinator_keys=[group])
    wait_until(lambda: bool(connection.ask(request, 4).coordinators[0].error_code == 0))
    found = topic_metadata(connection, "__consumer_offsets")
    assert (found.error_code, found.is_internal, len(found.partitions)) == (0, True, 50)


def test_a_topic_asked_for_twice_is_told_once(topic: str, connection: Connection) -> None:
    assert [entry.name for entry in ask(connection, names(topic, topic), 12).topics] == [topic]


def test_authorized_operations_are_told_on_request_only(topic: str, connection: Connection) -> None:
    without = connection.ask(MetadataRequest(topics=names(topic)), 9)
    assert without.topics[0].topic_authorized_operations == -(2**31)
    assert without.cluster_authorized_operations == -(2**31)
    request = MetadataRequest(
        topics=names(topic),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    asked = connection.ask(request, 9)
    everything = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))  # read ... alter configs
    assert asked.topics[0].topic_authorized_operations == everything
    assert asked.cluster_authorized_operations > 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster(cluster: Any, connection: Connection, version: int) -> None:
    response = connection.ask(DescribeClusterRequest(), version)
    (broker,) = response.brokers
    assert (response.error_code, f"{broker.host}:{broker.port}") == (0, cluster.bootstrap_servers)
    assert response.controller_id == broker.broker_id
    assert response.cluster_id == ask(connection, [], 9).cluster_id
    assert response.cluster_authorized_operations == -(2**31)


def test_describe_cluster_of_controllers_is_refused(connection: Connection) -> None:
    response = connection.ask(DescribeClusterRequest(endpoint_type=2), 1)
    assert (response.error_code, response.brokers) == (114, [])


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_in_every_version(cluster: Any, connection: Connection, group: str, version: int) -> None:
    def find() -> Any:
        request = FindCoordinatorRequest(key=group) if version < 4 else FindCoordinatorRequest(coordinator_keys=[group])
        response = connection.ask(request, version)
        return response if version < 4 else response.coordinators[0]

    wait_until(lambda: bool(find().error_code == 0))
    found = find()
    assert f"{found.host}:{found.port}" == cluster.bootstrap_servers
    if version >= 4:
        assert found.key == group


def test_find_coordinator_of_many_groups(connection: Connection, group: str) -> None:
    keys = [f"{group}-{number}" for number in range(5)] + [""]
    response = connection.ask(FindCoordinatorRequest(coordinator_keys=keys), 4)
    found = {coordinator.key: coordinator.error_code for coordinator in response.coordinators}
    assert found.keys() == set(keys)
    assert {found[key] for key in keys} <= {0, 15}


def test_find_coordinator_of_an_unknown_kind(connection: Connection, group: str) -> None:
    assert connection.ask(FindCoordinatorRequest(key=group, key_type=9), 3).error_code == 42
    response = connection.ask(FindCoordinatorRequest(coordinator_keys=[group], key_type=9), 4)
    assert [coordinator.error_code for coordinator in response.coordinators] == [42]
