"""The state that a controller loads: at a restart, from a store that Kafka has used, from a damaged one."""

import pytest

from barnabas.controller import znodes
from barnabas.controller.state import ReplicaAssignment
from barnabas.controller.topics import NewPartitions, NewTopic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.controller.conftest import Node, told


async def test_a_damaged_topic_is_left_out_of_the_start(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("good", partition_count=1, replication_factor=1)])
        await node.session.create("/brokers/topics/t", b"{}")
    async with node:
        assert list(node.controller.cluster.topics) == ["good"]
    assert "topic t is left out: znode /brokers/topics/t holds '{}'" in caplog.text


LEFT_OUT = {
    "a b": b'{"version":3,"partitions":{"0":[1]}}',
    "x" * 255: b'{"version":3,"partitions":{"0":[1]}}',
    "nowhere": b'{"version":3,"partitions":{"0":[]}}',
}


@pytest.mark.parametrize("name", LEFT_OUT)
async def test_invalid_topics_are_left_out_and_counted(node: Node, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """By this controller and by the next one. A request that would add partitions to such a topic fails for that topic
    alone."""

    def count_told() -> int:
        return caplog.text.count(f"topic {name} is left out")

    async with node:
        await node.controller.create_topics([NewTopic("t", partition_count=1, replication_factor=1)])
        await node.session.create(f"/brokers/topics/{name}", LEFT_OUT[name])
        for count in (2, 3):
            wanted = [NewPartitions(name, count), NewPartitions("t", count)]
            assert {
                name: "NONE" if error is None else error.error.name
                for name, error in (await node.controller.create_partitions(wanted)).items()
            } == {
                name: "UNKNOWN_TOPIC_OR_PARTITION",
                "t": "NONE",
            }
            assert list(node.controller.cluster.topics) == ["t"]
        assert (node.controller.left_out_count, count_told()) == (1, 1)
    async with node:
        await node.controller.create_partitions([NewPartitions("t", 4)])
        assert list(node.controller.cluster.topics) == ["t"]
        assert (node.controller.left_out_count, count_told()) == (1, 2)
        await node.session.delete(f"/brokers/topics/{name}")
        await node.controller.create_partitions([NewPartitions("t", 5)])
        assert node.controller.left_out_count == 0


async def test_brokers_are_told_the_names_of_topics_that_are_left_out(node: Node) -> None:
    """Brokers must not take these topics for deleted; a znode whose name no topic can have is no such topic."""
    async with node:
        await node.controller.create_topics([NewTopic("t")])
        for name, damaged in LEFT_OUT.items():
            await node.session.create(f"/brokers/topics/{name}", damaged)
        node.channel.clear()
        await node.restart()
        told = node.channel.take(UpdateMetadataRequest)[-1]
        partitions = {topic.topic_name: len(topic.partition_states) for topic in told.topic_states}
        assert (told.type, partitions) == (2, {"t": 1, "nowhere": 0})
        node.channel.clear()
        await node.controller.create_topics([NewTopic("u")])
        told = node.channel.take(UpdateMetadataRequest)[-1]
        assert [topic.topic_name for topic in told.topic_states] == ["u"], "told of what has changed, not of all"


async def test_a_restart_elects_anew_and_tells_everything_at_once(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t", 2), NewTopic("u")])
        await node.restart()
        node.channel.clear()
        await node.restart()
        leader_and_isr, metadata = node.channel.sent
        assert leader_and_isr.type == metadata.type == 2
        for request in (leader_and_isr, metadata):
            states = told([request])
            assert set(states) == {("t", 0), ("t", 1), ("u", 0)}
            assert {(s.leader, s.leader_epoch, tuple(s.isr), s.controller_epoch) for s in states.values()} == {
                (1, 2, (1,), 3)
            }
        assert {state.partition_epoch for state in told([leader_and_isr]).values()} == {2}
        assert {state.zk_version for state in told([metadata]).values()} == {2}
        assert {state.is_new for state in told([leader_and_isr]).values()} == {False}
        _, stat = await node.session.get(znodes.partition_state_path("t", 0))
        assert stat.version == 2, "the partition epoch is the znode's version"


async def test_a_topic_that_kafka_left_without_states_is_elected(node: Node) -> None:
    async with node:
        topic_id = bytes(15) + b"\7"
        assignments = {0: ReplicaAssignment((1,)), 1: ReplicaAssignment((9,))}
        await node.restart(
            {
                "/brokers/topics/t": znodes.encode_topic(topic_id, assignments),
                "/brokers/topics/t/partitions": b"",
                "/brokers/topics/t/partitions/0": b"",
                "/brokers/topics/old": b'{"version":1,"partitions":{"0":[1]}}',
            }
        )
        states = told(node.channel.take(LeaderAndIsrRequest))
        assert states["t", 0].is_new
        assert ("t", 1) not in states, "none of its replicas is alive"
        assert ("old", 0) in states
        stored = znodes.decode_topic("old", (await node.session.get("/brokers/topics/old"))[0])
        assert stored.topic_id == node.controller.cluster.topics["old"].topic_id


async def test_a_queue_entry_without_a_topic_is_dropped(node: Node) -> None:
    async with node:
        await node.restart({"/admin/delete_topics/gone": b""})
        assert await node.tree("/admin/delete_topics") == {}


async def test_a_replica_that_did_not_open_may_lead_after_a_restart(node: Node) -> None:
    async with node:
        await node.controller.create_topics([NewTopic("t", 2)])
        node.channel.errors["t", 1] = ErrorCode.KAFKA_STORAGE_ERROR
        await node.restart()
        assert node.controller.cluster.topics["t"].partitions[1].leader == -1
        node.channel.errors.clear()
        await node.restart()
        assert told(node.channel.take(LeaderAndIsrRequest))["t", 1].leader == 1, "the next life may lead it again"
