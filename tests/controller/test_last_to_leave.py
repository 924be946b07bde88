"""A leader is alone in an ISR, commits alone, and loses its log: no other replica leads in its place, as none has all
records. `min.insync.replicas` is the value for that leader while it was alone, wherever it is set, and not the value
when the log is lost."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.state import NO_LEADER, NOBODY
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from tests.controller.cluster import IN_BOTH_STORES, Cluster

pytestmark = IN_BOTH_STORES

T = ("t", 0)
MIN = "min.insync.replicas"
DEFAULT = "<default>"


@pytest.fixture
def cluster(stores: Any, clock: ManualClock) -> Cluster:
    """Brokers 2 and 3 have the topic t, 1 is the controller; two replicas must be in sync by the files of all."""
    cluster = Cluster(stores, clock)
    cluster.min_insync_replicas = {1: 2, 2: 2, 3: 2}
    return cluster


async def leave_alone(cluster: Cluster, configs: Mapping[str, str] = MappingProxyType({})) -> None:
    """Have 2 lead t, and be alone in its ISR."""
    (outcome,) = await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))], configs=configs)])
    assert outcome.error is ErrorCode.NONE
    await cluster.until(lambda: all(T in cluster.broker(each).roles for each in (2, 3)))
    await cluster.stop(3)
    await cluster.until(lambda: cluster.state().isr == (2,))


async def change(cluster: Cluster, entity: tuple[str, str], **configs: str) -> None:
    wanted = {name.replace("_", "."): value for name, value in configs.items()}
    await cluster.members[2].configs.change(*entity, lambda _: wanted)


async def lose_log_of_leader(cluster: Cluster) -> None:
    """Have 2 start again with a damaged log, and 3 with what it has."""
    if not cluster.members[2].is_dead:
        await cluster.stop(2)
    cluster.damaged[2] = frozenset({T})
    await cluster.start(3, 2)
    await cluster.until(lambda: T in cluster.broker(2).roles)
    await cluster.settled()


def is_led_by_nobody_else(cluster: Cluster) -> bool:
    """The test makes 2 the leader; a broker with a damaged log refuses that."""
    return cluster.state().leader == 2 and cluster.state().isr == (2,)


async def test_the_other_replica_has_records_that_took_two(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await leave_alone(cluster)
        assert cluster.state().left_isr == (3,)
        await lose_log_of_leader(cluster)
        assert (cluster.state().leader, cluster.state().isr) == (3, (3,))


@pytest.mark.parametrize("all_stop", [False, True])
async def test_a_default_that_was_raised_while_brokers_were_stopped(cluster: Cluster, all_stop: bool) -> None:
    async with cluster:
        cluster.min_insync_replicas = {}
        await cluster.start(1, 2, 3)
        await leave_alone(cluster)
        assert cluster.state().left_isr == (3, NOBODY)
        await cluster.stop(2)
        cluster.min_insync_replicas = {1: 2, 2: 2, 3: 2}
        if all_stop:
            await cluster.stop(1)
            await cluster.start(1)
        await lose_log_of_leader(cluster)
        assert is_led_by_nobody_else(cluster)


async def test_a_default_that_was_lowered_for_one_life(cluster: Cluster) -> None:
    """It led alone with two, with one, and with two."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await leave_alone(cluster)
        for minimum, left in ((1, (3, NOBODY)), (2, (3, NOBODY))):
            await cluster.stop(2)
            cluster.min_insync_replicas[2] = minimum
            await cluster.start(2)
            await cluster.until(lambda: cluster.state().leader == 2)
            assert cluster.state().left_isr == left
        await lose_log_of_leader(cluster)
        assert is_led_by_nobody_else(cluster)


@pytest.mark.parametrize("entity", [None, ("brokers", "2"), ("brokers", DEFAULT), ("topics", "t")])
async def test_one_replica_is_enough_for_the_leader_alone(cluster: Cluster, entity: tuple[str, str] | None) -> None:
    """By its file, its own dynamic setting, that of all brokers, or that of the topic: each one takes precedence over
    the ones before it."""
    async with cluster:
        if entity is None:
            cluster.min_insync_replicas = {1: 2, 2: 1, 3: 2}
        await cluster.start(1, 2, 3)
        if entity is not None and entity[0] == "brokers":
            await change(cluster, entity, min_insync_replicas="1")
            await cluster.until(lambda: cluster.members[1].configs.overrides(*entity))
        await leave_alone(cluster, {MIN: "1"} if entity == ("topics", "t") else {})
        assert cluster.state().left_isr == (3, NOBODY)
        await lose_log_of_leader(cluster)
        assert is_led_by_nobody_else(cluster)


@pytest.mark.parametrize("entity", [("brokers", "2"), ("brokers", DEFAULT), ("topics", "t")])
async def test_a_minimum_lowered_to_one_marks_the_state(cluster: Cluster, entity: tuple[str, str]) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await leave_alone(cluster)
        for other in (("brokers", "1"), ("brokers", "3")):
            await change(cluster, other, min_insync_replicas="1")
        await change(cluster, ("brokers", "2"), log_retention_ms="1000")
        await change(cluster, ("brokers", DEFAULT), log_retention_ms="1000")
        await cluster.until(lambda: cluster.members[1].configs.overrides("brokers", DEFAULT))
        await cluster.settled()
        assert cluster.state().left_isr == (3,), "the leader commits nothing alone"
        await change(cluster, entity, min_insync_replicas="1")
        await cluster.until(lambda: cluster.state().left_isr == (3, NOBODY))
        await change(cluster, entity, min_insync_replicas="2")
        await lose_log_of_leader(cluster)
        assert is_led_by_nobody_else(cluster)


@pytest.mark.parametrize("entity", [("brokers", "2"), ("brokers", DEFAULT), ("topics", "t")])
async def test_one_replica_was_enough_for_a_moment(cluster: Cluster, entity: tuple[str, str]) -> None:
    """When the controller reads the setting, it requires two replicas again. The leader may have read it in between."""
    async with cluster:
        await cluster.start(1, 2, 3)
        if entity[0] == "brokers":
            await change(cluster, entity, min_insync_replicas="2")
            await cluster.until(lambda: bool(cluster.members[1].configs.overrides(*entity)))
        await leave_alone(cluster, {MIN: "2"} if entity[0] == "topics" else {})
        await cluster.settled()
        assert cluster.state().left_isr == (3,)
        path = znodes.config_path(*entity)
        await cluster.members[2].session.set(path, znodes.encode_config({MIN: "1"}))
        await change(cluster, entity, min_insync_replicas="2")
        await cluster.until(lambda: cluster.state().left_isr == (3, NOBODY))
        await lose_log_of_leader(cluster)
        assert is_led_by_nobody_else(cluster)


async def test_settings_of_topics_take_precedence_over_brokers(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await leave_alone(cluster, {MIN: "2"})
        for entity in (("brokers", "2"), ("brokers", DEFAULT)):
            await change(cluster, entity, min_insync_replicas="1")
            await cluster.until(lambda each=entity: cluster.members[1].configs.overrides(*each))
        await cluster.settled()
        assert cluster.state().left_isr == (3,)
        await lose_log_of_leader(cluster)
        assert cluster.state().leader == 3


async def test_a_leader_that_is_gone_may_have_heard_of_a_setting_first(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await leave_alone(cluster)
        await cluster.stop(2)
        await cluster.until(lambda: cluster.state().leader == NO_LEADER)
        for value in ("1", "2"):
            await cluster.members[1].configs.change("brokers", "2", lambda _, value=value: {MIN: value})
        await cluster.until(lambda: cluster.state().left_isr == (3, NOBODY))


@pytest.mark.parametrize(
    ("entity", "left"),
    [
        (("topics", "t"), (3, NOBODY)),
        (("brokers", "2"), (3, NOBODY)),
        (("brokers", DEFAULT), (3, NOBODY)),
        (("brokers", "1"), (3,)),
        (None, (3,)),
    ],
)
async def test_settings_made_without_a_controller_are_doubted(
    cluster: Cluster, entity: tuple[str, str] | None, left: tuple[int, ...]
) -> None:
    """One replica was enough in the meantime, and is no longer."""
    async with cluster:
        await cluster.start(1, 2, 3, 4)
        await leave_alone(cluster)
        await cluster.members[1].configs.stop()  # it does nothing any more, and its session goes on for a while
        for value in ("1", "2") if entity is not None else ():
            assert entity is not None
            await change(cluster, entity, min_insync_replicas=value)
            await cluster.until(lambda each=entity, value=value: _has_heard(cluster, 4, each, value))
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state().leader == 2)
        await cluster.settled()
        assert cluster.state().left_isr == left
        await cluster.until(lambda: cluster.broker(2).roles[T].partition_epoch == cluster.state().partition_epoch)
        await lose_log_of_leader(cluster)
        assert is_led_by_nobody_else(cluster) == (NOBODY in left)


def _has_heard(cluster: Cluster, broker_id: int, entity: tuple[str, str], value: str) -> bool:
    return cluster.members[broker_id].configs.overrides(*entity).get(MIN) == value


async def test_the_next_controller_marks_an_unmarked_state(
    cluster: Cluster,
) -> None:
    """The setting was changed shortly before the state was written, and the controller did not know of that."""
    async with cluster:
        await cluster.start(1, 2, 3, 4)
        await cluster.members[1].configs.stop()
        await change(cluster, ("brokers", "2"), min_insync_replicas="1")
        await leave_alone(cluster)
        assert cluster.state().left_isr == (3,)
        await cluster.until(lambda: _has_heard(cluster, 4, ("brokers", "2"), "1"))
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state().left_isr == (3, NOBODY))


@pytest.mark.parametrize(
    ("entity", "left"),
    [
        (("topics", "t"), (3, NOBODY)),
        (("brokers", "2"), (3, NOBODY)),
        (("brokers", DEFAULT), (3, NOBODY)),
        (("brokers", "3"), (3,)),
    ],
)
async def test_a_setting_that_was_reverted_before_it_was_read(
    cluster: Cluster, entity: tuple[str, str], left: tuple[int, ...]
) -> None:
    """The controller finds the setting that it knows. The leader may have read both."""
    async with cluster:
        await cluster.start(1, 2, 3)
        if entity[0] == "brokers":
            await change(cluster, entity, min_insync_replicas="2")
            await cluster.until(lambda: _has_heard(cluster, 1, entity, "2"))
        await leave_alone(cluster, {MIN: "2"} if entity[0] == "topics" else {})
        assert cluster.state().left_isr == (3,)
        reading = cluster.members[1].configs
        await reading.stop()
        for value in ("1", "2"):
            await change(cluster, entity, min_insync_replicas=value)
        reading.notifications.follow()
        await change(cluster, ("topics", "u"), retention_ms="1")  # read after what was changed before
        await cluster.until(lambda: reading.overrides("topics", "u"))
        await cluster.settled()
        assert cluster.state().left_isr == left
