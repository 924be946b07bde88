"""A broker's knowledge of its cluster, which the controller sends bit by bit, or all at once."""

import asyncio

import pytest

from barnabas.broker.cluster.metadata import LEADER_DURING_DELETE, MetadataCache
from barnabas.controller.requests import FULL, INCREMENTAL
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.names import TopicId


def tell(
    metadata: MetadataCache, topics: dict[str, int], request_type: int = INCREMENTAL, *, generation: int = 0
) -> list[str]:
    """Tell of topics, by name the leader of the only partition; returns which are said to be gone."""
    states = [
        UpdateMetadataTopicState(
            topic_name=name,
            topic_id=f"{name}{generation}".encode().rjust(16),
            partition_states=[UpdateMetadataPartitionState(partition_index=0, leader=leader, replicas=[leader])],
        )
        for name, leader in topics.items()
    ]
    request = UpdateMetadataRequest(type=request_type, topic_states=states)
    return [topic.name for topic in asyncio.run(metadata.update(request))]


def names(metadata: MetadataCache) -> set[str]:
    return {topic.name for topic in metadata.topics()}


def test_metadata_are_complete_after_the_controllers_full_update() -> None:
    metadata = MetadataCache()
    tell(metadata, {"a": 1})
    assert not metadata.is_complete
    tell(metadata, {"a": 1, "b": 1}, FULL)
    tell(metadata, {"c": 1})
    assert metadata.is_complete
    assert names(metadata) == {"a", "b", "c"}


def test_a_topic_that_the_controller_cannot_read_is_not_gone() -> None:
    """It is named without partitions, by whom all topics are told, until it has been read."""
    metadata = MetadataCache()
    unread = UpdateMetadataTopicState(topic_name="unread")

    def tell_all() -> list[str]:
        request = UpdateMetadataRequest(type=FULL, topic_states=[unread])
        return [topic.name for topic in asyncio.run(metadata.update(request))]

    assert not metadata.is_gone("b")
    assert tell_all() == []
    assert (metadata.is_complete, metadata.is_gone("unread"), metadata.is_gone("b")) == (True, False, True)
    assert names(metadata) == set()
    tell(metadata, {"unread": 1})
    assert tell(metadata, {"unread": LEADER_DURING_DELETE}) == ["unread"]
    assert metadata.is_gone("unread"), "it has been read, and deleted"
    tell(metadata, {"unread": 1})
    assert tell_all() == [], "nothing that belongs to it is to be forgotten"
    assert not metadata.is_gone("unread")
    tell(metadata, {}, FULL)
    assert metadata.is_gone("unread")


def test_metadata_are_incomplete_before_a_new_controllers_update() -> None:
    """The one before may have made topics of which this broker never heard; the next gives roles first."""
    metadata = MetadataCache()
    request = UpdateMetadataRequest(type=FULL, controller_epoch=3)
    asyncio.run(metadata.update(request))
    asyncio.run(metadata.note_roles(LeaderAndIsrRequest(controller_epoch=3)))
    assert metadata.is_complete
    asyncio.run(metadata.note_roles(LeaderAndIsrRequest(controller_epoch=4)))
    assert not metadata.is_complete
    asyncio.run(metadata.update(UpdateMetadataRequest(type=INCREMENTAL, controller_epoch=4)))
    assert not metadata.is_complete
    asyncio.run(metadata.update(UpdateMetadataRequest(type=FULL, controller_epoch=4)))
    assert metadata.is_complete
    asyncio.run(metadata.update(UpdateMetadataRequest(type=INCREMENTAL, controller_epoch=5)))
    assert not metadata.is_complete


def test_changes_of_brokers_are_counted() -> None:
    """The code that sends consumers to a broker near them relies on the count."""
    metadata = MetadataCache()

    def told_again(*racks: str, topic: str = "a") -> bool:
        before = metadata.brokers_changes
        brokers = [
            UpdateMetadataBroker(
                id=index, rack=rack, endpoints=[UpdateMetadataEndpoint(host="h", port=index, listener="PLAINTEXT")]
            )
            for index, rack in enumerate(racks)
        ]
        states = [UpdateMetadataTopicState(topic_name=topic, topic_id=topic.encode().rjust(16))]
        asyncio.run(metadata.update(UpdateMetadataRequest(live_brokers=brokers, topic_states=states)))
        return metadata.brokers_changes == before

    assert not told_again("r1", "r2")
    assert told_again("r1", "r2", topic="b")
    assert not told_again("r1", "r3")
    assert metadata.rack(1, "PLAINTEXT") == "r3"
    assert not told_again("r1")
    assert metadata.reachable("PLAINTEXT") == {0}


def test_topics_deleted_while_the_broker_was_away_are_gone() -> None:
    """Transactions in them would wait for ever for markers that nobody takes. What this broker hosts was not deleted:
    that would have waited for it.
    """
    metadata = MetadataCache(node_id=5)
    tell(metadata, {"a": 1, "b": 1, "c": 1, "hosted": 5}, FULL)
    gone = metadata.topic_id("b")
    assert tell(metadata, {"a": 2, "c": LEADER_DURING_DELETE, "d": 1}, FULL) == ["c"]
    assert names(metadata) == {"a", "d", "hosted"}
    assert metadata.topic_name(gone) is None


def test_a_topic_created_again_has_nothing_of_the_old_one() -> None:
    metadata = MetadataCache()
    tell(metadata, {"a": 1}, FULL)
    old = metadata.topic_id("a")
    assert tell(metadata, {"a": 1}, FULL, generation=1) == ["a"]
    assert metadata.topic_name(old) is None
    assert metadata.topic_name(metadata.topic_id("a")) == "a"


def test_reachable_brokers_follow_the_live_ones() -> None:
    metadata = MetadataCache()
    for brokers in ({1, 2}, {2, 3}, set[int]()):
        live = [
            UpdateMetadataBroker(id=broker, endpoints=[UpdateMetadataEndpoint(host="h", port=1, listener="L")])
            for broker in brokers
        ]
        asyncio.run(metadata.update(UpdateMetadataRequest(live_brokers=live)))
        assert (metadata.reachable("L"), metadata.reachable("M")) == (brokers, set())


def test_a_new_leader_is_known_before_all_metadata_arrive() -> None:
    """Only what is newer, and only of the same topic."""
    metadata = MetadataCache()
    tell(metadata, {"a": 1, "b": 1})

    def role(topic_id: TopicId, leader: int, partition_epoch: int) -> None:
        told = LeaderAndIsrPartitionState(
            partition_index=0, leader=leader, leader_epoch=4, isr=[leader], partition_epoch=partition_epoch
        )
        topic = LeaderAndIsrTopicState(topic_name="a", topic_id=topic_id, partition_states=[told])
        asyncio.run(metadata.note_roles(LeaderAndIsrRequest(topic_states=[topic])))

    role(metadata.topic_id("a"), leader=2, partition_epoch=3)
    role(metadata.topic_id("a"), leader=3, partition_epoch=3)
    role(metadata.topic_id("b"), leader=3, partition_epoch=5)
    found = metadata.partition("a", 0)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr, found.replicas, found.partition_epoch) == (2, 4, [2], [1], 3)


def test_a_listener_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    metadata, heard = MetadataCache(), list[str]()

    def bad() -> None:
        heard.append("bad")
        raise ValueError("nobody foresaw this")

    metadata.listeners = {bad: None, lambda: heard.append("good"): None}
    for _ in range(3):
        tell(metadata, {"a": 1})
    assert heard == ["bad", "good"] * 3
    assert names(metadata) == {"a"}
    assert metadata.set_aside.members == [bad]
    assert caplog.text.count("Traceback") == 1
    del metadata.listeners[bad]
    tell(metadata, {"a": 1})
    assert metadata.set_aside.members == []
