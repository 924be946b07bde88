"""Three brokers in one store: one is the controller and governs the others, whichever of them fail."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.admin_request import ElectionType
from barnabas.controller.broker_queue import Answer
from barnabas.controller.controllership import RECOVERY_RETRY_DELAY_MS
from barnabas.controller.coordination.interface import ConnectionLost
from barnabas.controller.operations import answers
from barnabas.controller.state import NO_LEADER, NOBODY, BrokerRegistration, EndPoint, ReplicaAssignment
from barnabas.controller.topics import NewPartitions, NewTopic
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.controller.cluster import IN_BOTH_STORES, Cluster
from tests.support.bugs import Bug
from tests.support.parameters import gate_takes_each

pytestmark = IN_BOTH_STORES

T = ("t", 0)


@pytest.fixture
def cluster(stores: Any, clock: ManualClock) -> Cluster:
    """`async with cluster:` opens the store; `await cluster.start(1, 2, 3)` makes 1 the controller."""
    return Cluster(stores, clock)


async def create(
    cluster: Cluster, *replicas: int, name: str = "t", configs: Mapping[str, str] = MappingProxyType({})
) -> None:
    """A topic with one partition on these brokers, served by all of them."""
    topic = NewTopic(name, assignments=[(0, replicas)], configs=configs)
    (outcome,) = await cluster.controller.create_topics([topic])
    assert outcome.error is ErrorCode.NONE
    live = [broker_id for broker_id in replicas if broker_id in cluster.controller.cluster.brokers]
    await cluster.until(lambda: all((name, 0) in cluster.broker(broker_id).roles for broker_id in live))


async def test_one_broker_is_the_controller_and_the_others_stand_by(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        assert [cluster.members[n].controller.is_active for n in (1, 2, 3)] == [True, False, False]
        for n in (2, 3):
            with pytest.raises(ApiError, match="NOT_CONTROLLER"):
                await cluster.members[n].controller.create_topics([NewTopic("t")])
        await cluster.until(lambda: all(cluster.broker(n).live == {1, 2, 3} for n in (1, 2, 3)))
        (outcome,) = await cluster.controller.create_topics([NewTopic("t", 6, 3)])
        assert outcome.error is ErrorCode.NONE
        await cluster.until(lambda: all(len(cluster.broker(n).leaders) == 6 for n in (1, 2, 3)))
        led = [cluster.broker(n).leaders["t", p] for n in (1,) for p in range(6)]
        assert sorted(led) == [1, 1, 2, 2, 3, 3]
        for n in (2, 3):
            assert all(cluster.broker(n).roles["t", p].is_new for p in range(6))
        added = await cluster.controller.create_partitions([NewPartitions("t", 7)])
        assert added == {"t": None}
        await cluster.until(lambda: all(("t", 6) in cluster.broker(n).roles for n in (1, 2, 3)))


async def test_a_new_broker_is_told_everything_before_its_roles(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 1, 2)
        await cluster.start(3)
        await cluster.until(lambda: len(cluster.broker(3).log) >= 2)
        metadata, roles = cluster.broker(3).log[:2]
        assert isinstance(metadata, UpdateMetadataRequest)
        assert isinstance(roles, LeaderAndIsrRequest)
        assert (metadata.type, roles.type) == (2, 2)
        assert cluster.broker(3).live == {1, 2, 3}
        assert cluster.broker(3).leaders == {T: 1}
        await cluster.until(lambda: cluster.broker(2).live == {1, 2, 3})


async def test_the_dead_leave_isrs_and_others_lead(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3, 1)
        await create(cluster, 3, 2, name="u")
        await cluster.stop(2)
        await cluster.until(lambda: cluster.broker(3).leaders.get(T) == 3 and cluster.broker(3).live == {1, 3})
        state = cluster.state()
        assert (state.leader, state.isr, state.leader_epoch) == (3, (3, 1), 1)
        assert cluster.state("u").isr == (3,)
        role = cluster.broker(3).roles[T]
        assert (role.leader, role.isr, role.partition_epoch) == (3, [3, 1], state.partition_epoch)
        payload, stat = await cluster.members[1].session.get(znodes.partition_state_path(*T))
        assert znodes.decode_partition_state(*T, payload, stat.version) == state
        await cluster.start(2)
        await cluster.until(lambda: T in cluster.broker(2).roles)
        assert cluster.broker(2).roles[T].leader == 3
        assert cluster.state().isr == (3, 1), "who is back follows, until the leader takes it in"


async def test_a_partition_waits_for_its_isr_and_any_of_it_will_do(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        cluster.members[2].is_dead = cluster.members[3].is_dead = True
        await asyncio.gather(cluster._end(cluster.members[2]), cluster._end(cluster.members[3]))
        await cluster.until(lambda: cluster.broker(1).live == {1})
        assert cluster.state().leader == NO_LEADER
        last = cluster.state().isr
        await cluster.start(*last)
        await cluster.until(lambda: cluster.state().leader == last[0])
        await cluster.until(lambda: T in cluster.broker(last[0]).roles)


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("is_active", [False, True])
async def test_a_replica_that_may_lack_records_waits_for_others(
    cluster: Cluster, is_active: bool, is_damaged: bool
) -> None:
    """The machine of the replica went down, so that its last records may not be on its disk, or its log is damaged.
    Another member of the ISR has the records and leads once it is back."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await create(cluster, 2, name="only")
        held = cluster.hold(1)
        cluster.members[2].is_dead = cluster.members[3].is_dead = True
        await asyncio.gather(cluster._end(cluster.members[2]), cluster._end(cluster.members[3]))
        if is_active:
            held.set()
            await cluster.until(lambda: cluster.broker(1).live == {1} and cluster.state().leader == NO_LEADER)
            assert cluster.state().isr == (2, 3)
        else:
            cluster.members[1].is_dead = True
            held.set()
            await cluster._end(cluster.members[1])
        if is_damaged:
            cluster.damaged[2] = frozenset({T, ("only", 0)})
        else:
            cluster.lacking = {2}
        await cluster.start(2)
        await cluster.until(lambda: ("only", 0) in cluster.broker(2).roles)
        assert cluster.state("only").leader == 2, "nobody has more than it has"
        assert (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (3,))
        await cluster.start(3)
        await cluster.until(lambda: cluster.state().leader == 3)
        await cluster.until(lambda: cluster.broker(2).roles[T].leader == 3)


@pytest.mark.parametrize("is_active", [False, True])
async def test_a_leader_that_may_lack_records_waits_for_the_other(cluster: Cluster, is_active: bool) -> None:
    """The leader was alone in the ISR when its machine went down: no record was committed after the other replica
    left."""
    async with cluster:
        cluster.min_insync_replicas = {2: 2, 3: 2}
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await create(cluster, 2, 3, name="by-one", configs={"min.insync.replicas": "1"})
        await cluster.stop(3)
        await cluster.until(lambda: cluster.state().isr == cluster.state("by-one").isr == (2,))
        if is_active:
            await cluster.stop(2)
            await cluster.until(lambda: cluster.state("by-one").leader == NO_LEADER)
        else:
            held = cluster.hold(1)
            for broker_id in (2, 1):
                cluster.members[broker_id].is_dead = True
            await cluster._end(cluster.members[2])
            held.set()
            await cluster._end(cluster.members[1])
        cluster.lacking = {2}
        await cluster.start(2)
        await cluster.until(lambda: ("by-one", 0) in cluster.broker(2).roles)
        assert cluster.state("by-one").leader == 2, "what it has committed alone nobody else has"
        assert (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (3,))
        await cluster.start(3)
        await cluster.until(lambda: cluster.broker(2).roles[T].leader == 3)


async def test_a_return_in_whose_middle_the_store_fails(cluster: Cluster) -> None:
    """A leader that was alone in the ISR may lack records, and is back before the controller has missed it. The store
    fails after the write of its loss, so that everything is loaded anew: the other replica leads."""
    async with cluster:
        cluster.min_insync_replicas = {2: 2, 3: 2}
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await cluster.stop(3)
        await cluster.until(lambda: cluster.state().isr == (2,))
        held = cluster.hold(1)
        await cluster.stop(2)
        cluster.lacking = {2}
        await cluster.start(2)
        store, written = cluster.members[1].session, []
        multi = store.multi

        async def fails_once(operations: Any) -> Any:
            written.append(operations)
            if len(written) == 2:
                raise ConnectionLost("/controller_epoch")
            return await multi(operations)

        store.multi = fails_once  # type: ignore[method-assign]
        held.set()
        await cluster.until(lambda: len(written) >= 2)
        await cluster.until(lambda: (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (3,)))
        await cluster.start(3)
        await cluster.until(lambda: cluster.broker(2).roles[T].leader == 3)


async def test_another_takes_over_when_the_controller_dies(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 1, 2, 3)
        await cluster.stop(1)
        await cluster.until(lambda: any(cluster.members[n].controller.is_active for n in (2, 3)))
        await cluster.until(lambda: all(cluster.broker(n).leaders.get(T) == 2 for n in (2, 3)))
        assert cluster.controller.epoch == 2
        assert (cluster.state().isr, cluster.state().controller_epoch) == ((2, 3), 2)
        (outcome,) = await cluster.controller.create_topics([NewTopic("u", 1, 2)])
        assert outcome.error is ErrorCode.NONE
        await cluster.start(1)
        await cluster.until(lambda: T in cluster.broker(1).roles)
        assert not cluster.members[1].controller.is_active


async def test_invalid_topics_of_other_programs_stop_no_controller(cluster: Cluster) -> None:
    """One is reassigned to no replicas. The leader of the other is not in sync: its ISR would be empty after the loss
    of 3."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        stranger = await cluster.stores.session()
        nobodys = {0: ReplicaAssignment((2, 3), (), (2, 3))}
        await stranger.create(znodes.topic_path("u"), znodes.encode_topic(b"u" * 16, nobodys))
        led = znodes.encode_partition_state(cluster.state()._replace(leader=2, isr=(3,)))
        await stranger.set(znodes.partition_state_path("t", 0), led)
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state().leader == 3)
        await cluster.stop(3)
        await cluster.until(lambda: (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (3,)))
        (outcome,) = await cluster.controller.create_topics([NewTopic("v", 1, 1)])
        assert outcome.error is ErrorCode.NONE
        await stranger.close()


async def test_a_last_replica_without_its_disk_is_not_elected_first(cluster: Cluster) -> None:
    """It was the last to leave the ISR. The others are elected before it."""
    async with cluster:
        await cluster.start(4, 1, 2, 3)
        await create(cluster, 1, 2, 3)
        for broker_id in (2, 3):
            await cluster.stop(broker_id)
            await cluster.until(lambda gone=broker_id: gone not in cluster.state().isr)
        assert cluster.state().left_isr == (2, 3, NOBODY), "1 commits alone: it has more than 3"
        cluster.lacking.add(3)
        await cluster.start(3, 2)
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state().leader == NO_LEADER)
        await cluster.controller.elect_leaders([T], ElectionType.UNCLEAN, 30_000)
        assert (cluster.state().leader, cluster.state().left_isr) == (2, ())


async def test_a_damaged_registration_of_a_leader_stops_no_controller(
    cluster: Cluster,
) -> None:
    async with cluster:
        await cluster.start(1, 2)
        stranger = await cluster.stores.session()
        await stranger.create(znodes.broker_path(3), b"{}", ephemeral=True)
        await cluster.until(lambda: 3 in cluster.controller.cluster.brokers)
        (outcome,) = await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (3, 1, 2))])])
        assert outcome.error is ErrorCode.NONE
        assert cluster.state().leader == 3
        await cluster.stop(1)
        await cluster.until(lambda: cluster.broker(2).leaders.get(T) == 3)
        await stranger.close()
        await cluster.until(lambda: cluster.state().leader == 2)


REGISTRATION = json.loads(znodes.encode_broker(BrokerRegistration(2, (EndPoint("PLAINTEXT", "h", 1),)), 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    gate_takes_each(
        2,
        [
            b"",
            b"{}",
            b"\xff",
            {"rack": "r" * 32_768},
            {"rack": "\ud800"},
            {"endpoints": []},
            {"endpoints": ["PLAINTEXT://h:99999999999"]},
            {"endpoints": ["PLAINTEXT://" + "h" * 32_768 + ":9092"]},
            {"endpoints": ["PLAINTEXT://h:1"] * 3},
            {"features": {"transaction.version": {"min_version": -(2**31), "max_version": 2**31 - 1}}},
            {"features": {"f" * 32_768: {"min_version": 0, "max_version": 1}}},
            {"damaged": [["t", 2**31 - 1], ["no topic", -1], ["t", 0]]},
            {"may_lack_records": True},
        ],
    ),
    ids=lambda changed: repr(changed)[:40],
)
@pytest.mark.parametrize("whose", [1, 2])
async def test_a_registration_that_is_changed_later_stops_nothing(cluster: Cluster, whose: int, changed: Any) -> None:
    """It is the controller's own one or another broker's, and counts as damaged from the beginning."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 1, 3)
        stranger = await cluster.stores.session()
        payload = changed if isinstance(changed, bytes) else json.dumps({**REGISTRATION, **changed}).encode()
        await stranger.set(znodes.broker_path(whose), payload)
        for name, replicas in (("u", (1, 2, 3)), ("v", (2, 3, 1))):
            await create(cluster, *replicas, name=name)
        await cluster.until(lambda: all(cluster.broker(each).leaders.get(("v", 0), -1) > 0 for each in (1, 2, 3)))
        await cluster.until(lambda: cluster.state().leader > 0)
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state("u").leader in (2, 3))
        await create(cluster, 3, 2, name="w")
        await stranger.close()


STATE = {"version": 1, "leader": 2, "leader_epoch": 0, "controller_epoch": 1, "isr": [2, 1, 3]}
TOPIC = {"version": 3, "partitions": {"0": [2, 1, 3]}, "adding_replicas": {}, "removing_replicas": {}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "changed"),
    gate_takes_each(
        2,
        [
            *[
                (znodes.partition_state_path("t", 0), found)
                for found in (
                    b"",
                    b"{}",
                    STATE | {"leader_epoch": 2**31 - 1},
                    STATE | {"leader_epoch": znodes.LEADER_EPOCH_MAX},
                    STATE | {"leader_epoch": -1},
                    STATE | {"controller_epoch": 2**31 - 1},
                    STATE | {"controller_epoch": -(2**31)},
                    STATE | {"isr": []},
                    STATE | {"isr": [7]},
                    STATE | {"isr": [2, 2, 2]},
                    STATE | {"leader": 3, "isr": [1]},
                    STATE | {"leader": 7, "isr": [7, 1, 2, 3]},
                    STATE | {"leader_recovery_state": 9},
                    STATE | {"left_isr": [-5, 2**31 - 1]},
                    STATE | {"registrations_zxid": 2**63 - 1},
                )
            ],
            *[
                (znodes.topic_path("t"), found)
                for found in (
                    b"",
                    b"{}",
                    TOPIC | {"partitions": {"0": []}},
                    TOPIC | {"partitions": {"0": [2, 2]}},
                    TOPIC | {"partitions": {"0": [-1]}},
                    TOPIC | {"partitions": {"0": [2, 1, 3], "5": [1]}},
                    TOPIC | {"partitions": {"0": [2, 1, 3], "1": [2**31 - 1]}},
                    TOPIC | {"adding_replicas": {"0": [2, 1, 3]}},
                    TOPIC | {"removing_replicas": {"0": [2, 1, 3]}},
                    TOPIC | {"topic_id": "x" * 22},
                )
            ],
            *[(znodes.CONTROLLER_EPOCH, found) for found in (b"", b"-1", b"%d" % (2**31 - 1), b"9" * 5_000)],
            *[(znodes.CONTROLLER, found) for found in (b"", b"{}", b'{"brokerid":-2147483648}', b'{"brokerid":7}')],
            *[(znodes.config_path("topics", "t"), found) for found in (b"{}", b"[", b'{"version":1,"config":{"k":7}}')],
        ],
    ),
    ids=lambda found: repr(found)[-40:],
)
async def test_znodes_that_are_changed_later_stop_no_controller(cluster: Cluster, path: str, changed: Any) -> None:
    """Another broker dies, the controller, or the next controller."""

    async def created(*replicas: int, name: str) -> None:
        while True:
            with suppress(ApiError):  # a controller whose epoch was changed has to take another one
                await create(cluster, *replicas, name=name)
                return
            await cluster.until(lambda: cluster.controller)

    async with cluster:
        await cluster.start(1, 2, 3, 4)
        await create(cluster, 2, 1, 3)
        stranger = await cluster.stores.session()
        payload = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        if await stranger.exists(path) is None:
            await stranger.create(path, payload)
        else:
            await stranger.set(path, payload)
        await created(4, 1, 3, name="u")
        await cluster.stop(2)
        await cluster.until(lambda: 2 not in cluster.controller.cluster.brokers)
        await created(3, 1, 4, name="v")
        await cluster.stop(1)
        await cluster.until(lambda: 1 not in cluster.controller.cluster.brokers)
        await created(4, 3, name="w")
        await cluster.start(1, 2)
        await created(1, 2, 3, 4, name="x")
        await stranger.close()


async def test_a_follower_that_dies_with_the_controller_leaves_isrs(cluster: Cluster) -> None:
    """There is no controller when the follower dies."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 1, 3)
        cluster.members[1].is_dead = cluster.members[3].is_dead = True
        await asyncio.gather(cluster._end(cluster.members[3]), cluster._end(cluster.members[1]))
        await cluster.until(lambda: cluster.members[2].controller.is_active and cluster.broker(2).live == {2})
        assert cluster.state().isr == (2,)
        assert cluster.broker(2).roles[T].isr == [2]


@pytest.mark.parametrize("successor", [2, 3])
async def test_a_leader_that_bounced_unseen_is_elected_again(cluster: Cluster, successor: int) -> None:
    """The leader gets another leader epoch, because its followers must not copy the loss of its records. Each new
    controller notices a bounce by zxids, also its own."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 3, 2)
        holds = {n: cluster.hold(n) for n in (1, 2)}
        await cluster.stop(3)
        await cluster.start(3)
        holds[3] = cluster.hold(3)
        await cluster.expire(1)
        cluster.members[1].is_dead = True
        holds.pop(successor).set()
        await cluster.until(lambda: cluster.members[successor].controller.is_active)
        await cluster.until(lambda: T in cluster.broker(3).roles)
        assert (cluster.state().leader, cluster.state().leader_epoch) == (3, 1)
        for released in holds.values():
            released.set()
        await cluster._end(cluster.members[1])


@pytest.mark.parametrize("successor", [2, 3])
async def test_a_decision_about_an_ended_life_spares_the_next_life(cluster: Cluster, successor: int) -> None:
    """A paused controller executes the request of a leader, does not know that the leader has restarted, and dies. Its
    write is newer than the new life."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 3, 2)
        paused, request = cluster.hold(1), cluster.alteration(3)
        response = asyncio.create_task(cluster.members[1].controller.alter_partition(request))
        await asyncio.sleep(0)  # it is in the queue, before the news
        holds = {n: cluster.hold(n) for n in (1, 2)}
        await cluster.stop(3)
        await cluster.start(3)
        holds[3] = cluster.hold(3)
        paused.set()
        assert (await response).error_code == ErrorCode.NONE
        cluster.members[1].is_dead = True
        await cluster.expire(1)
        holds.pop(successor).set()
        await cluster.until(lambda: cluster.members[successor].controller.is_active)
        await cluster.until(lambda: T in cluster.broker(3).roles)
        assert (cluster.state().leader, cluster.state().leader_epoch, cluster.state().isr) == (3, 1, (3,))
        for released in holds.values():
            released.set()
        await cluster._end(cluster.members[1])


async def test_only_brokers_registered_since_are_doubted(cluster: Cluster) -> None:
    """Two machines went down, one after the other. The first one has its records again since, and stays in the ISR,
    whichever of the two a new controller loads first."""
    async with cluster:
        await cluster.start(1, 2, 3, 4)
        await create(cluster, 3, 2)
        cluster.lacking = {2}
        await cluster.stop(2)
        await cluster.start(2)
        await cluster.alter_isr(2, 3)
        cluster.lacking = {3}
        holds = {n: cluster.hold(n) for n in (1, 2, 4)}
        await cluster.stop(3)
        await cluster.start(3)
        holds[3] = cluster.hold(3)
        cluster.members[1].is_dead = True
        await cluster.expire(1)
        holds.pop(4).set()
        await cluster.until(lambda: cluster.members[4].controller.is_active and cluster.state().leader_epoch > 1)
        assert (cluster.state().leader, cluster.state().isr) == (2, (2,))
        for released in holds.values():
            released.set()
        await cluster._end(cluster.members[1])


async def test_a_broker_that_bounced_is_lost_and_comes(cluster: Cluster) -> None:
    """Both at once: it registered again before the controller learned of its death."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        before = cluster.controller.cluster.brokers[2].epoch
        await cluster.expire(2)
        await cluster.rejoin(2)
        await cluster.until(lambda: cluster.controller.cluster.brokers[2].epoch > before)
        await cluster.until(lambda: cluster.broker(2).roles[T].leader == 3)
        assert cluster.state().isr == (3,)
        roles = [command for command in cluster.broker(2).log if isinstance(command, LeaderAndIsrRequest)]
        assert roles[-1].type == 2
        assert cluster.state().leader_epoch == 1


async def test_a_new_controller_knows_the_settings_of_topics(cluster: Cluster) -> None:
    """It elects by the settings of topics, including topics that were created after it started."""
    async with cluster:
        await cluster.start(1, 2, 3)
        settings = {"unclean.leader.election.enable": "true"}
        await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (1,))], configs=settings)])
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state().leader == NO_LEADER)
        (successor,) = [m for m in cluster.members.values() if m.controller is cluster.controller]
        assert successor.configs.overrides("topics", "t") == settings


async def test_a_silent_broker_delays_no_other(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 1, 2, 3)
        cluster.broker(3).is_silent = True
        for name in ("a", "b"):
            topic = NewTopic(name, assignments=[(0, (3, 2, 1))])
            (outcome,) = await cluster.controller.create_topics([topic])
            assert outcome.error is ErrorCode.NONE
            await cluster.until(lambda name=name: (name, 0) in cluster.broker(2).roles)
        assert ("a", 0) not in cluster.broker(3).roles
        cluster.broker(3).speak_again()
        await cluster.until(lambda: ("b", 0) in cluster.broker(3).leaders)
        told = [
            topic.topic_name
            for command in cluster.broker(3).log
            if isinstance(command, LeaderAndIsrRequest)
            for topic in command.topic_states
        ]
        assert told == ["t", "a", "b"]


async def test_a_broker_that_cannot_be_reached_is_told_when_it_can(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 1, 2)
        cluster.members[2].is_cut_off = True
        await cluster.controller.create_topics([NewTopic("a", assignments=[(0, (2, 1))])])
        await cluster.members[1].timers.has(100)
        cluster.members[2].is_cut_off = False
        await cluster.until(lambda: ("a", 0) in cluster.broker(2).leaders)


async def test_requests_for_a_broker_end_with_its_registration(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        cluster.members[2].is_cut_off = True
        await cluster.controller.create_topics([NewTopic("a", assignments=[(0, (2, 1))])])
        await cluster.members[1].timers.has(100)
        await cluster.stop(2)
        await cluster.until(lambda: cluster.broker(1).live == {1})
        await cluster.start(2)
        await cluster.until(lambda: ("a", 0) in cluster.broker(2).roles)
        epochs = {command.broker_epoch for command in cluster.broker(2).log}
        assert epochs == {cluster.members[2].controller.broker_epoch}


async def test_a_log_that_does_not_open_is_led_by_others_until_it_does(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        cluster.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        (outcome,) = await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])])
        assert outcome.error is ErrorCode.NONE
        await cluster.until(lambda: cluster.broker(3).leaders.get(T) == 3 and cluster.broker(3).roles[T].leader == 3)
        assert cluster.state().isr == (3,)
        assert cluster.controller.cluster.offline_replicas == {2: frozenset({T})}
        cluster.broker(2).errors.clear()
        await cluster.until(
            lambda: T in cluster.broker(2).roles and not any(cluster.controller.cluster.offline_replicas.values())
        )
        told = [
            topic.partition_states[0].is_new
            for command in cluster.broker(2).log
            if isinstance(command, LeaderAndIsrRequest)
            for topic in command.topic_states
        ]
        assert told.count(True) >= 2, "asked again as for a new one: it was never served there"


async def test_the_controllers_own_log_does_not_open(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        cluster.broker(1).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        (outcome,) = await cluster.controller.create_topics([NewTopic("t", assignments=[(0, (1, 2))])])
        assert outcome.error is ErrorCode.NONE, "another broker leads it"
        await cluster.until(lambda: cluster.broker(2).leaders.get(T) == 2)
        assert cluster.broker(2).roles[T].leader == 2


async def test_a_creation_waits_for_the_next_leader_after_a_refusal(cluster: Cluster) -> None:
    """Otherwise the order of the refusals would decide about success."""
    async with cluster:
        await cluster.start(1, 2)
        cluster.broker(1).errors[T] = cluster.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        cluster.broker(2).is_silent = True
        creating = asyncio.ensure_future(
            cluster.controller.create_topics([NewTopic("t", assignments=[(0, (1, 2))])], timeout_ms=60_000)
        )
        await cluster.until(lambda: cluster.state().leader == 2)
        await cluster.settled()
        assert not creating.done(), "the next leader has not answered"
        cluster.broker(2).speak_again()
        await cluster.until(lambda: cluster.state().leader == -1)
        await cluster.settled()
        assert not creating.done(), "nobody leads it"
        cluster.broker(2).errors.clear()
        await cluster.until(creating.done)
        assert (await creating)[0].error is ErrorCode.NONE
        assert cluster.broker(2).roles[T].leader == 2


async def test_a_refusal_of_a_new_log_is_forgotten_with_its_topic(cluster: Cluster) -> None:
    """A log of the next topic of that name that does not open is not treated as new: it would begin empty."""
    async with cluster:
        await cluster.start(1, 2)
        broker = cluster.broker(2)
        broker.errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        topic = NewTopic("t", assignments=[(0, (2,))])
        await cluster.controller.create_topics([topic], timeout_ms=0)
        await cluster.until(lambda: cluster.state().leader == -1)
        broker.errors.clear()
        assert await cluster.controller.delete_topics(["t"]) == {"t": None}
        await create(cluster, 2)
        broker.errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        assert await cluster.controller.alter_reassignments({T: (2, 1)}, 30_000) == {T: None}
        await cluster.until(lambda: cluster.state().leader == -1)
        told = len(broker.log)
        broker.errors.clear()
        await cluster.until(lambda: cluster.state().leader == 2)
        assert [
            state.is_new
            for command in broker.log[told:]
            if isinstance(command, LeaderAndIsrRequest)
            for each in command.topic_states
            for state in each.partition_states
            if state.is_new
        ] == []


async def test_the_controllers_own_disk_hangs(cluster: Cluster) -> None:
    """Partitions of other brokers get leaders meanwhile, and a deletion times out."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 1, 2, 3)
        await cluster.controller.create_topics([NewTopic("u", assignments=[(0, (2, 3))])])
        own = cluster.broker(1)
        own.hangs = True
        deletion = asyncio.ensure_future(cluster.controller.delete_topics(["t"]))
        await cluster.until(lambda: all("t" in cluster.broker(n).deleted for n in (2, 3)))
        await cluster.stop(2)
        await cluster.until(lambda: cluster.broker(3).roles["u", 0].leader == 3)
        assert not deletion.done()
        assert own.leaders["u", 0] == 2, "it hears of that when it has deleted its replica"
        own.speak_again()
        assert (await deletion)["t"] is None
        await cluster.until(lambda: own.leaders["u", 0] == 3)
        assert T not in own.roles


async def test_a_preferred_replica_leads_when_it_is_in_sync_again(cluster: Cluster) -> None:
    async with cluster:
        cluster.settings = cluster.settings._replace(leader_imbalance_check_interval_ms=60_000)
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await cluster.stop(2)
        await cluster.until(lambda: cluster.state().leader == 3)
        await cluster.start(2)
        await cluster.until(lambda: T in cluster.broker(2).roles)
        timers = cluster.members[1].timers
        timers.fire(60_000)
        await timers.has(60_000)
        assert cluster.state().leader == 3, "it is not in sync yet"
        await cluster.alter_isr(3, 2)
        timers.fire(60_000)
        await cluster.until(lambda: cluster.broker(3).leaders.get(T) == 2 and cluster.broker(2).leaders.get(T) == 2)
        assert cluster.broker(2).roles[T].leader == 2
        await timers.has(60_000)


# -- deletion


async def test_a_topic_is_gone_when_all_have_deleted_it(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 1, 2, 3)
        cluster.broker(3).is_silent = True
        deletion = asyncio.ensure_future(cluster.controller.delete_topics(["t"]))
        await cluster.until(lambda: "t" in cluster.broker(2).deleted)
        assert not deletion.done()
        assert T not in cluster.broker(2).leaders
        cluster.broker(3).speak_again()
        assert await deletion == {"t": None}
        assert "t" in cluster.broker(3).deleted
        assert await cluster.members[1].session.exists("/brokers/topics/t") is None
        await create(cluster, 3, 1)


async def test_a_deletion_goes_on_when_an_absent_broker_is_back(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 1, 2, 3)
        await cluster.stop(3)
        await cluster.until(lambda: cluster.broker(1).live == {1, 2})
        assert await cluster.controller.delete_topics(["t"]) == {"t": None}
        assert all("t" in cluster.broker(each).deleted for each in (1, 2)), "those that live are waited for"
        assert await cluster.members[1].session.exists("/admin/delete_topics/t") is not None
        (outcome,) = await cluster.controller.create_topics([NewTopic("t")])
        assert outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS, "it is still being deleted"
        assert await cluster.controller.delete_topics(["t"]) == {"t": None}
        await cluster.start(3)
        await cluster.until(lambda: "t" not in cluster.controller.cluster.topics)
        kinds = [type(command) for command in cluster.broker(3).log]
        assert kinds.index(StopReplicaRequest) < kinds.index(LeaderAndIsrRequest), "before its logs are nobody's"
        assert await cluster.members[1].session.exists("/admin/delete_topics/t") is None


async def test_a_deletion_waits_no_more_for_a_broker_that_died(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 1, 2)
        cluster.members[2].is_cut_off = True
        deletion = asyncio.ensure_future(cluster.controller.delete_topics(["t"]))
        await cluster.until(lambda: "t" in cluster.broker(1).deleted)
        await cluster.stop(2)
        assert await deletion == {"t": None}
        await cluster.start(2)
        await cluster.until(lambda: "t" not in cluster.controller.cluster.topics)


async def test_another_controller_goes_on_with_a_deletion(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        cluster.broker(3).is_silent = True
        deletion = asyncio.ensure_future(cluster.controller.delete_topics(["t"]))
        await cluster.until(lambda: "t" in cluster.broker(2).deleted)
        await cluster.stop(1)
        cluster.broker(3).speak_again()
        await cluster.until(lambda: any(cluster.members[n].controller.is_active for n in (2, 3)))
        await cluster.until(lambda: "t" not in cluster.controller.cluster.topics)
        deletion.cancel()


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_a_deletion_that_another_broker_refuses_is_made_later(cluster: Cluster, error: ErrorCode) -> None:
    """Also for an unexpected reason."""
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 1, 2)
        cluster.broker(2).errors[T] = error
        results = await cluster.controller.delete_topics(["t"])
        assert results["t"].error is error
        cluster.broker(2).errors.clear()
        await cluster.until(lambda: "t" not in cluster.controller.cluster.topics)


# -- what other brokers ask


async def test_a_leader_changes_its_isr(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3, 1)
        await cluster.alter_isr(2, 1)
        assert cluster.state().isr == (2, 1)
        payload, stat = await cluster.members[1].session.get(znodes.partition_state_path(*T))
        assert znodes.decode_partition_state(*T, payload, stat.version) == cluster.state()
        request = cluster.alteration(2)
        await cluster.stop(2)
        await cluster.until(lambda: cluster.broker(1).live == {1, 3})
        assert cluster.state().leader == 1, "3 was not in sync"
        response = await cluster.controller.alter_partition(request)
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
        standing_by = cluster.members[3].controller
        assert (await standing_by.alter_partition(request)).error_code == ErrorCode.NOT_CONTROLLER


async def test_a_broker_that_stops_is_relieved_first(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3, 1)
        await create(cluster, 3, 2, name="u")
        await create(cluster, 2, name="only")
        epoch = cluster.members[2].controller.broker_epoch
        stale = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch - 1)
        assert (await cluster.controller.controlled_shutdown(stale)).error_code == ErrorCode.STALE_BROKER_EPOCH
        unknown = ControlledShutdownRequest(broker_id=9, broker_epoch=epoch)
        assert (await cluster.controller.controlled_shutdown(unknown)).error_code == ErrorCode.BROKER_NOT_AVAILABLE
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch)
        assert (await cluster.members[3].controller.controlled_shutdown(request)).error_code == ErrorCode.NOT_CONTROLLER
        response = await cluster.controller.controlled_shutdown(request)
        assert (response.error_code, response.remaining_partitions) == (0, [])
        assert (cluster.state().leader, cluster.state().isr) == (3, (3, 1))
        assert cluster.state("u").isr == (3,)
        assert cluster.state("only").leader == 2
        # It follows nothing more, or the new leader would ask for it to be in sync again.
        await cluster.until(lambda: list(cluster.broker(2).roles) == [("only", 0)])
        await cluster.until(lambda: cluster.broker(3).leaders.get(T) == 3)
        refused = await cluster.controller.alter_partition(cluster.alteration(3, 1, 2))
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
        await cluster.stop(2)
        await cluster.until(lambda: cluster.broker(3).live == {1, 3})
        await cluster.start(2)
        await cluster.until(lambda: T in cluster.broker(2).roles)
        assert cluster.controller.cluster.shutting_down == frozenset()


@pytest.mark.parametrize("stopping", [1, 2])
async def test_a_stopping_broker_hands_over_before_it_leaves_isrs(cluster: Cluster, stopping: int) -> None:
    """Clients wait for the new leaders, and not for other writes. The stopping broker begins to follow no partition,
    since its fetches would add it to ISRs."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 3, stopping, name="followed")
        await create(cluster, stopping, 3, name="led")
        await cluster.until(lambda: len(cluster.broker(3).roles) == 2)
        before = {broker_id: len(cluster.broker(broker_id).log) for broker_id in (stopping, 3)}
        epoch = cluster.members[stopping].controller.broker_epoch
        request = ControlledShutdownRequest(broker_id=stopping, broker_epoch=epoch)
        assert (await cluster.controller.controlled_shutdown(request)).error_code == 0

        def told(broker_id: int, kind: type) -> list[set[str]]:
            since = cluster.broker(broker_id).log[before[broker_id] :]
            return [{topic.topic_name for topic in each.topic_states} for each in since if isinstance(each, kind)]

        assert told(3, LeaderAndIsrRequest) == [{"led"}, {"followed"}]
        assert told(stopping, LeaderAndIsrRequest) == []
        assert told(stopping, StopReplicaRequest) == [{"led"}, {"followed"}]


async def test_a_controller_that_reloads_knows_the_stopping_brokers(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.members[2].controller.broker_epoch)
        assert (await cluster.controller.controlled_shutdown(request)).remaining_partitions == []

        async def break_off() -> None:
            raise ConnectionLost

        cluster.controller._events.submit(break_off)
        await create(cluster, 2, 3, name="u")
        assert cluster.state("u").leader == 3
        await cluster.stop(2)
        await cluster.start(2)
        assert cluster.controller.cluster.shutting_down == frozenset()


@pytest.mark.parametrize("stopping", [1, 2])
async def test_a_broker_stops_when_others_know_the_new_leaders(cluster: Cluster, stopping: int) -> None:
    """Its clients need their metadata. A silent broker delays the stop for a short time only. The controller may be the
    broker that stops."""
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, stopping, 3)
        cluster.broker(3).is_silent = True
        epoch = cluster.members[stopping].controller.broker_epoch
        request = ControlledShutdownRequest(broker_id=stopping, broker_epoch=epoch)
        relief = asyncio.ensure_future(cluster.controller.controlled_shutdown(request))
        while cluster.broker(1).leaders[T] != 3:
            await cluster.news.wait()
            cluster.news.clear()
        assert not relief.done()
        cluster.broker(3).speak_again()
        assert (await relief).error_code == 0
        assert cluster.broker(3).leaders[T] == 3
        cluster.broker(3).is_silent = True
        cluster.members[1].timers.fire(500)
        relief = asyncio.ensure_future(cluster.controller.controlled_shutdown(request))
        await cluster.members[1].timers.has(500)
        cluster.members[1].timers.fire(500)
        assert (await relief).error_code == 0


async def test_the_last_of_an_isr_is_told_what_it_leads_still(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 2, 1)
        await cluster.alter_isr(2)
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.members[2].controller.broker_epoch)
        response = await cluster.controller.controlled_shutdown(request)
        assert [(left.topic_name, left.partition_index) for left in response.remaining_partitions] == [T]
        assert cluster.state().leader == 2


async def test_producer_ids_for_other_brokers(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        epoch = cluster.members[2].controller.broker_epoch
        request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
        await cluster.until(lambda: 2 in cluster.controller.cluster.brokers)
        response = await cluster.controller.grant_producer_ids(request)
        assert (response.error_code, response.producer_id_start, response.producer_id_len) == (0, 0, 1000)
        assert await cluster.controller.allocate_producer_ids() == (1000, 1999)
        payload, _ = await cluster.members[1].session.get(znodes.PRODUCER_ID_BLOCK)
        assert znodes.decode_producer_id_block(payload) == znodes.ProducerIdBlock(1, 1000, 1999)
        for broker_id, broker_epoch, error in [
            (9, epoch, ErrorCode.BROKER_ID_NOT_REGISTERED),
            (2, epoch + 1, ErrorCode.STALE_BROKER_EPOCH),
        ]:
            other = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
            assert (await cluster.controller.grant_producer_ids(other)).error_code == error
        standing_by = cluster.members[2].controller
        assert (await standing_by.grant_producer_ids(request)).error_code == ErrorCode.NOT_CONTROLLER


# -- controllers that do not know yet that they were replaced


async def test_a_controller_that_hears_of_a_newer_one_resigns(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 1, 2)
        cluster.broker(2).controller_epoch = 7
        controller = cluster.members[1].controller
        with suppress(ApiError):  # it may hear so before its own broker has answered
            await controller.create_topics([NewTopic("u", assignments=[(0, (2, 1))])])
        # Its znode is there: it raises its epoch, until nobody knows a newer one, and goes on.
        await cluster.until(lambda: controller.epoch >= 7 and controller.is_active)


async def test_a_controller_with_an_ended_session_registers_again(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 1, 2, 3)
        await cluster.expire(1)
        await cluster.until(lambda: not cluster.members[1].controller.is_active)  # it may hear of it last
        await cluster.until(lambda: any(cluster.members[n].controller.is_active for n in (2, 3)))
        await cluster.until(lambda: cluster.state().leader == 2)
        await cluster.rejoin(1)
        await cluster.until(lambda: cluster.broker(1).roles[T].leader == 2)
        assert not cluster.members[1].controller.is_active
        assert cluster.broker(1).controller_epoch == 2


# -- elections that are asked for


async def elect(cluster: Cluster, election_type: ElectionType, *partitions: tuple[str, int]) -> Any:
    """The errors by partition, of these partitions or of all."""
    results = await cluster.controller.elect_leaders(partitions or None, election_type, 30_000)
    return {partition: error and error.error for partition, error in results.items()}


async def test_leaders_are_elected_where_that_is_asked_for(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await create(cluster, 1, name="u")
        await cluster.stop(2)
        await cluster.until(lambda: cluster.state().leader == 3)
        assert await elect(cluster, ElectionType.PREFERRED) == {T: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        await cluster.start(2)
        await cluster.alter_isr(3, 2)
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await cluster.members[3].controller.elect_leaders(None, ElectionType.PREFERRED, 30_000)
        asked = (T, ("u", 0), ("u", 1), ("nobody", 0))
        assert await elect(cluster, ElectionType.PREFERRED, *asked) == {
            T: None,
            ("u", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("u", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nobody", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert cluster.broker(1).leaders[T] == 2, "answered when the controller's own broker knows"
        await cluster.until(lambda: cluster.broker(2).roles[T].leader == cluster.broker(3).roles[T].leader == 2)
        payload, stat = await cluster.members[1].session.get(znodes.partition_state_path(*T))
        assert znodes.decode_partition_state(*T, payload, stat.version) == cluster.state()
        assert await elect(cluster, ElectionType.PREFERRED) == {}, "those that need none are left out"


async def test_an_administrator_can_elect_any_remaining_replica(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await cluster.stop(3)
        await cluster.until(lambda: cluster.state().isr == (2,))
        await cluster.stop(2)
        await cluster.until(lambda: cluster.state().leader == NO_LEADER)
        assert await elect(cluster, ElectionType.UNCLEAN, T) == {T: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        await cluster.start(3)
        assert cluster.state().leader == NO_LEADER
        assert await elect(cluster, ElectionType.UNCLEAN) == {T: None}
        assert (cluster.state().leader, cluster.state().isr) == (3, (3,))
        await cluster.until(lambda: cluster.broker(3).roles[T].leader_recovery_state == 1)
        assert await elect(cluster, ElectionType.UNCLEAN, T) == {T: ErrorCode.ELECTION_NOT_NEEDED}


@pytest.mark.parametrize("partitions", [None, [T]])
async def test_an_election_that_the_controller_does_not_get_to_in_time(
    cluster: Cluster, partitions: list[tuple[str, int]] | None
) -> None:
    """A request for all partitions fails as a whole, since its partitions are not known."""
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 2, 1)
        member = cluster.members[1]
        released = cluster.hold(1)
        election = asyncio.create_task(
            member.controller.elect_leaders(partitions, ElectionType.PREFERRED, timeout_ms=30_000)
        )
        await member.timers.has(30_000)
        for timer in list(member.timers.waiting):
            if timer.delay_ms == 30_000:
                timer.callback()
        if partitions is None:
            with pytest.raises(ApiError, match="REQUEST_TIMED_OUT"):
                await election
        else:
            error = (await election)[T]
            assert error is not None
            assert error.error is ErrorCode.REQUEST_TIMED_OUT
        released.set()


async def test_a_request_with_timeout_0_has_a_response_once_decided(cluster: Cluster) -> None:
    async with cluster:
        await cluster.start(1, 2)
        await create(cluster, 2, 1)
        await cluster.controller.controlled_shutdown(
            ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.controller.cluster.brokers[2].epoch)
        )
        assert cluster.state().leader == 1
        await cluster.stop(2)
        await cluster.start(2)
        await cluster.alter_isr(1, 2)
        results = await cluster.controller.elect_leaders([T, ("u", 0)], ElectionType.PREFERRED, 0)
        assert [error and error.error for error in results.values()] == [
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        await cluster.until(lambda: cluster.state().leader == 2)


@pytest.mark.parametrize("is_active", [True, False])
async def test_elections_that_old_tools_ask_for(
    cluster: Cluster, is_active: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`kafka-preferred-replica-election.sh --zookeeper`, as it was until Kafka 2.8."""
    path = znodes.PREFERRED_REPLICA_ELECTION
    payload = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"gone","partition":3}]}'
    async with cluster:
        await cluster.start(1, 2, 3)
        await create(cluster, 2, 3)
        await cluster.stop(2)
        await cluster.until(lambda: cluster.state().leader == 3)
        await cluster.start(2)
        await cluster.alter_isr(3, 2)
        other = await cluster.stores.session()
        if is_active:
            await other.create(path, payload)
        else:
            released = cluster.hold(1)
            await other.create(path, payload)
            await cluster.expire(1)
            released.set()
        await cluster.until(lambda: cluster.state().leader == 2)
        await gone(cluster, other, path)
        if is_active:
            for damaged in (b"{", b'{"version":1,"partitions":[{"topic":"t"}]}'):
                await other.create(path, damaged)
                await gone(cluster, other, path)
                assert "no leaders are elected: znode /admin/preferred_replica_election holds" in caplog.text
                caplog.clear()
        await other.close()


async def gone(cluster: Cluster, session: Any, path: str) -> None:
    """Return when the controller has deleted a znode."""
    is_there = True
    while is_there:
        is_there = await session.exists(path, lambda _event: cluster.news.set()) is not None
        if is_there:
            await cluster.news.wait()
            cluster.news.clear()


async def test_answers_of_one_broker_that_raise_stop_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one makes the controller read the cluster and send the broker all states again, which it accepts."""

    def is_bad(_context: object, answer: Answer) -> bool:
        return answer.broker_id == 2 and isinstance(answer.command, LeaderAndIsrRequest)

    async with cluster:
        await cluster.start(1, 2, 3)
        bug = Bug(monkeypatch, answers, "take_answer", is_bad)
        await create(cluster, 1, 2, 3)
        await cluster.until(lambda: bug.tries >= 2)
        controller = cluster.controller
        for name in ("u", "v"):
            await create(cluster, 1, 2, 3, name=name)
        await cluster.until(lambda: bug.tries >= 4)
        assert controller.is_active
        assert controller.set_aside_answers.members == [2]
        assert caplog.text.count("Traceback") == 1
        bug.is_there = False
        cluster.clock.advance(RECOVERY_RETRY_DELAY_MS)
        await create(cluster, 1, 2, name="w")
        await cluster.until(lambda: not controller.set_aside_answers.members)
        assert bug.tries < 20
