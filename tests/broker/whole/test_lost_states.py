"""The state of a partition is deleted or garbled in the metadata store, and the next controller never knew it."""

from pathlib import Path

import pytest

from barnabas.broker.cluster.metadata import PartitionMetadata
from barnabas.controller import znodes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.broker.whole.cluster import Cluster, cluster
from tools.waiting import until

pytestmark = pytest.mark.anyio

PATH = znodes.partition_state_path("t", 0)


async def lose_state(brokers: Cluster, harm: str) -> None:
    """Harm the state of t-0, of which the controller hears nothing."""
    session = await brokers.session()
    if harm == "deleted":
        await session.delete(PATH)
    elif harm == "deleted with its parents":
        for path in (PATH, znodes.partition_path("t", 0), znodes.partitions_path("t")):
            await session.delete(path)
    else:
        await session.set(PATH, b"nothing")
    await session.close()


def known(brokers: Cluster, node_id: int) -> PartitionMetadata:
    """A broker's metadata of t-0, as clients get it."""
    found = brokers.brokers[node_id].metadata.partition("t", 0)
    assert found is not None
    return found


async def led_anew(brokers: Cluster, epoch: int) -> int:
    """The leader of t-0 in an epoch after this one, by the metadata of all brokers."""

    def is_led(node_id: int) -> bool:
        found = known(brokers, node_id)
        return found.leader >= 0 and found.leader_epoch > epoch

    await until(lambda: all(map(is_led, brokers.brokers)))
    await brokers.settle()
    (leader,) = {known(brokers, each).leader for each in brokers.brokers}
    return leader


async def write(brokers: Cluster, leader: int, count: int) -> None:
    for _ in range(count):
        assert await brokers.produce(leader, "t", 0, acks=-1) is ErrorCode.NONE


@pytest.mark.parametrize("harm", ["deleted", "deleted with its parents", "garbled"])
async def test_all_replicas_live(tmp_path: Path, harm: str) -> None:
    """They are asked what they have, and one that has everything leads in an epoch that none has heard of."""
    async with cluster(tmp_path, 4) as brokers:
        await brokers.create("t", 1, 3)
        await write(brokers, await brokers.leader("t"), 2)
        epoch = known(brokers, 1).leader_epoch
        await lose_state(brokers, harm)
        await brokers.expire_session(1)
        leader = await led_anew(brokers, epoch)
        await write(brokers, leader, 1)
        assert brokers.log(leader, "t").high_watermark == 3


@pytest.mark.parametrize("harm", ["deleted", "garbled"])
@pytest.mark.parametrize("end", ["it comes back", "an administrator elects"])
async def test_a_replica_that_is_away_may_have_led_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str, harm: str
) -> None:
    """Nobody is elected until it is there again, or an administrator gives up what it alone had, as the log says."""
    async with cluster(tmp_path, 3) as brokers:
        await brokers.create("t", 1, 2)
        first = await brokers.leader("t")
        (second,) = set(known(brokers, 1).replicas) - {first}
        await write(brokers, first, 1)
        await brokers.stop(second)
        await write(brokers, first, 2)
        await brokers.stop(first)
        await brokers.start(second)
        (only,) = set(brokers.brokers) - {second}
        epoch = known(brokers, only).leader_epoch
        await lose_state(brokers, harm)
        await brokers.expire_session(brokers.controller_ids[0])
        named = f"the logs of broker(s) {first} are not known"
        await until(lambda: any(named in line for line in caplog.messages))
        assert known(brokers, only).leader == -1
        assert any("t-0 has no leader" in line and "topics elect t:0 --unclean" in line for line in caplog.messages)
        if end == "it comes back":
            await brokers.start(first)
            assert await led_anew(brokers, epoch) == first
            await until(lambda: len(brokers.in_sync("t")) == 2)
        else:
            (controller_id,) = brokers.controller_ids
            asked = [TopicPartitions(topic="t", partitions=[0])]
            await brokers.ask(controller_id, ElectLeadersRequest(election_type=1, topic_partitions=asked), 2)
            assert await led_anew(brokers, epoch) == second
        leader = await brokers.leader("t")
        await write(brokers, leader, 1)
        assert brokers.log(leader, "t").log_end_offset == (4 if end == "it comes back" else 2)


async def test_the_replica_with_most_records_is_elected(tmp_path: Path) -> None:
    """It left the ISR last, and is not the first of the assignment."""
    unclean = {"unclean_leader_election_enable": "true"}
    async with cluster(tmp_path, 3, **unclean) as brokers:
        await brokers.create("t", 1, 3)
        first, second, third = known(brokers, 1).replicas
        await write(brokers, first, 1)
        await brokers.stop(first)
        await write(brokers, await brokers.leader("t", but_not=first), 1)
        await brokers.stop(second)
        await write(brokers, await brokers.leader("t", but_not=second), 1)
        epoch = known(brokers, third).leader_epoch
        await lose_state(brokers, "garbled")
        await brokers.stop(third, heard=False)
        await brokers.start(third, **unclean)
        leader = await led_anew(brokers, epoch)
        await brokers.start(second)
        await brokers.start(first)
        await until(lambda: len(brokers.in_sync("t")) == 3)
        assert leader == third
        assert brokers.log(await brokers.leader("t"), "t").log_end_offset == 3


async def test_an_only_broker_starts_again(tmp_path: Path) -> None:
    """It is told by its own controller while it starts, and serves what it has."""
    async with cluster(tmp_path, 1) as brokers:
        await brokers.create("t", 1, 1)
        await write(brokers, 1, 2)
        epoch = known(brokers, 1).leader_epoch
        await brokers.stop(1, heard=False)
        await lose_state(brokers, "deleted")
        await brokers.start(1, heard=False)
        assert (known(brokers, 1).leader, known(brokers, 1).leader_epoch > epoch) == (1, True)
        await write(brokers, 1, 1)
        assert brokers.log(1, "t").log_end_offset == 3
