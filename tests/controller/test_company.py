"""Three brokers in one store: one is the controller and governs the others, whatever becomes of any of them."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.coordination.interface import ConnectionLost
from barnabas.controller.operations.elect_leaders import ElectionType
from barnabas.controller.operations.topics import NewPartitions, NewTopic
from barnabas.controller.state import NO_LEADER, ReplicaAssignment
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.controller.company import Company

pytestmark = pytest.mark.parametrize(
    "stores",
    ["memory", pytest.param("zookeeper", marks=[pytest.mark.java, pytest.mark.slow])],
    indirect=True,
)

T = ("t", 0)


@pytest.fixture
def company(stores: Any, clock: ManualClock) -> Company:
    """`async with company:` opens the store; `await company.start(1, 2, 3)` makes 1 the controller."""
    return Company(stores, clock)


async def create(company: Company, *replicas: int, name: str = "t") -> None:
    """A topic with one partition on these brokers, served by all of them."""
    topic = NewTopic(name, assignments=[(0, replicas)])
    (outcome,) = await company.controller.create_topics([topic])
    assert outcome.error is ErrorCode.NONE
    live = [broker_id for broker_id in replicas if broker_id in company.controller.cluster.brokers]
    await company.until(lambda: all((name, 0) in company.broker(broker_id).roles for broker_id in live))


async def alter(company: Company, *isr: int) -> None:
    """Have the leader of t-0 ask for this ISR."""
    response = await company.controller.alter_partition(alteration(company, *isr))
    assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)


def alteration(company: Company, *isr: int) -> AlterPartitionRequest:
    state, brokers = company.state(), company.controller.cluster.brokers
    wanted = RequestPartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=brokers[each].epoch) for each in isr],
    )
    topic = RequestTopicData(topic_id=company.controller.cluster.topics["t"].topic_id, partitions=[wanted])
    return AlterPartitionRequest(broker_id=state.leader, broker_epoch=brokers[state.leader].epoch, topics=[topic])


async def test_one_is_the_controller_and_the_others_stand_by(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        assert [company.members[n].controller.is_active for n in (1, 2, 3)] == [True, False, False]
        for n in (2, 3):
            with pytest.raises(ApiError, match="NOT_CONTROLLER"):
                await company.members[n].controller.create_topics([NewTopic("t")])
        await company.until(lambda: all(company.broker(n).live == {1, 2, 3} for n in (1, 2, 3)))
        (outcome,) = await company.controller.create_topics([NewTopic("t", 6, 3)])
        assert outcome.error is ErrorCode.NONE
        await company.until(lambda: all(len(company.broker(n).leaders) == 6 for n in (1, 2, 3)))
        led = [company.broker(n).leaders["t", p] for n in (1,) for p in range(6)]
        assert sorted(led) == [1, 1, 2, 2, 3, 3]
        for n in (2, 3):
            assert all(company.broker(n).roles["t", p].is_new for p in range(6))
        added = await company.controller.create_partitions([NewPartitions("t", 7)])
        assert added == {"t": None}
        await company.until(lambda: all(("t", 6) in company.broker(n).roles for n in (1, 2, 3)))


async def test_a_new_broker_is_told_everything_before_its_roles(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 1, 2)
        await company.start(3)
        await company.until(lambda: len(company.broker(3).log) >= 2)
        metadata, roles = company.broker(3).log[:2]
        assert isinstance(metadata, UpdateMetadataRequest)
        assert isinstance(roles, LeaderAndIsrRequest)
        assert (metadata.type, roles.type) == (2, 2)
        assert company.broker(3).live == {1, 2, 3}
        assert company.broker(3).leaders == {T: 1}
        await company.until(lambda: company.broker(2).live == {1, 2, 3})


async def test_the_dead_leave_isrs_and_others_lead(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3, 1)
        await create(company, 3, 2, name="u")
        await company.stop(2)
        await company.until(lambda: company.broker(3).leaders.get(T) == 3 and company.broker(3).live == {1, 3})
        state = company.state()
        assert (state.leader, state.isr, state.leader_epoch) == (3, (3, 1), 1)
        assert company.state("u").isr == (3,)
        role = company.broker(3).roles[T]
        assert (role.leader, role.isr, role.partition_epoch) == (3, [3, 1], state.partition_epoch)
        payload, stat = await company.members[1].session.get(znodes.partition_state_path(*T))
        assert znodes.decode_partition_state(*T, payload, stat.version) == state
        await company.start(2)
        await company.until(lambda: T in company.broker(2).roles)
        assert company.broker(2).roles[T].leader == 3
        assert company.state().isr == (3, 1), "who is back follows, until the leader takes it in"


async def test_a_partition_waits_for_its_isr_and_any_of_it_will_do(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        company.members[2].is_dead = company.members[3].is_dead = True
        await asyncio.gather(company._end(company.members[2]), company._end(company.members[3]))
        await company.until(lambda: company.broker(1).live == {1})
        assert company.state().leader == NO_LEADER
        last = company.state().isr
        await company.start(*last)
        await company.until(lambda: company.state().leader == last[0])
        await company.until(lambda: T in company.broker(last[0]).roles)


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("is_in_office", [False, True])
async def test_who_may_lack_what_it_acknowledged_does_not_lead_before_others_are_back(
    company: Company, is_in_office: bool, is_damaged: bool
) -> None:
    """The last records of a machine that went down may not have reached its disk, or a log of it is damaged: another
    member of the ISR has them."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        await create(company, 2, name="only")
        held = company.hold(1)
        company.members[2].is_dead = company.members[3].is_dead = True
        await asyncio.gather(company._end(company.members[2]), company._end(company.members[3]))
        if is_in_office:
            held.set()
            await company.until(lambda: company.broker(1).live == {1} and company.state().leader == NO_LEADER)
            assert company.state().isr == (2, 3)
        else:
            company.members[1].is_dead = True
            held.set()
            await company._end(company.members[1])
        if is_damaged:
            company.damaged[2] = frozenset({T, ("only", 0)})
        else:
            company.lacking = {2}
        await company.start(2)
        await company.until(lambda: ("only", 0) in company.broker(2).roles)
        assert company.state("only").leader == 2, "nobody has more than it has"
        assert (company.state().leader, company.state().isr) == (NO_LEADER, (3,))
        await company.start(3)
        await company.until(lambda: company.state().leader == 3)
        await company.until(lambda: company.broker(2).roles[T].leader == 3)


async def test_another_takes_over_when_the_controller_dies(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 1, 2, 3)
        await company.stop(1)
        await company.until(lambda: any(company.members[n].controller.is_active for n in (2, 3)))
        await company.until(lambda: all(company.broker(n).leaders.get(T) == 2 for n in (2, 3)))
        assert company.controller.epoch == 2
        assert (company.state().isr, company.state().controller_epoch) == ((2, 3), 2)
        (outcome,) = await company.controller.create_topics([NewTopic("u", 1, 2)])
        assert outcome.error is ErrorCode.NONE
        await company.start(1)
        await company.until(lambda: T in company.broker(1).roles)
        assert not company.members[1].controller.is_active


async def test_topics_that_strangers_made_up_do_not_keep_a_controller_from_its_office(company: Company) -> None:
    """One that is reassigned to nobody, and one whose leader is not in sync: its ISR would be empty when 3 has gone."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        stranger = await company.stores.session()
        nobodys = {0: ReplicaAssignment((2, 3), (), (2, 3))}
        await stranger.create(znodes.topic_path("u"), znodes.encode_topic(b"u" * 16, nobodys))
        led = znodes.encode_partition_state(company.state()._replace(leader=2, isr=(3,)))
        await stranger.set(znodes.partition_state_path("t", 0), led)
        await company.stop(1)
        await company.until(lambda: company.state().leader == 3)
        await company.stop(3)
        await company.until(lambda: 3 not in company.controller.cluster.brokers)
        assert (company.state().leader, company.state().isr) == (NO_LEADER, (3,))
        (outcome,) = await company.controller.create_topics([NewTopic("v", 1, 1)])
        assert outcome.error is ErrorCode.NONE
        await stranger.close()


async def test_who_left_the_isr_last_and_has_lost_its_disk_is_not_elected_before_others(company: Company) -> None:
    async with company:
        await company.start(4, 1, 2, 3)
        await create(company, 1, 2, 3)
        for broker_id in (2, 3):
            await company.stop(broker_id)
            await company.until(lambda gone=broker_id: gone not in company.state().isr)
        assert company.state().left_isr == (2, 3)
        company.lacking.add(3)
        await company.start(3, 2)
        await company.stop(1)
        await company.until(lambda: company.state().leader == NO_LEADER)
        await company.controller.elect_leaders([T], ElectionType.UNCLEAN, 30_000)
        assert (company.state().leader, company.state().left_isr) == (2, ())


async def test_a_leader_whose_registration_cannot_be_read_keeps_nobody_from_office(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        stranger = await company.stores.session()
        await stranger.create(znodes.broker_path(3), b"{}", ephemeral=True)
        await company.until(lambda: 3 in company.controller.cluster.brokers)
        (outcome,) = await company.controller.create_topics([NewTopic("t", assignments=[(0, (3, 1, 2))])])
        assert outcome.error is ErrorCode.NONE
        assert company.state().leader == 3
        await company.stop(1)
        await company.until(lambda: company.broker(2).leaders.get(T) == 3)
        await stranger.close()
        await company.until(lambda: company.state().leader == 2)


async def test_a_follower_that_dies_with_the_controller_leaves_the_isrs(company: Company) -> None:
    """Nobody was in office when it went."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 1, 3)
        company.members[1].is_dead = company.members[3].is_dead = True
        await asyncio.gather(company._end(company.members[3]), company._end(company.members[1]))
        await company.until(lambda: company.members[2].controller.is_active and company.broker(2).live == {2})
        assert company.state().isr == (2,)
        assert company.broker(2).roles[T].isr == [2]


@pytest.mark.parametrize("successor", [2, 3])
async def test_a_leader_that_bounced_while_nobody_looked_is_elected_anew(company: Company, successor: int) -> None:
    """Its followers must not take for theirs what it has lost: it leads in another leader epoch. Whoever is elected
    finds that out by zxids, also about itself."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, 3, 2)
        holds = {n: company.hold(n) for n in (1, 2)}
        await company.stop(3)
        await company.start(3)
        holds[3] = company.hold(3)
        await company.expire(1)
        company.members[1].is_dead = True
        holds.pop(successor).set()
        await company.until(lambda: company.members[successor].controller.is_active)
        await company.until(lambda: T in company.broker(3).roles)
        assert (company.state().leader, company.state().leader_epoch) == (3, 1)
        for released in holds.values():
            released.set()
        await company._end(company.members[1])


@pytest.mark.parametrize("successor", [2, 3])
async def test_what_was_decided_about_a_life_that_has_ended_is_not_meant_for_the_next(
    company: Company, successor: int
) -> None:
    """A controller that was paused obeys a leader of which it does not know that it was started again, and dies. What
    it wrote is newer than the new life."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, 3, 2)
        paused, request = company.hold(1), alteration(company, 3)
        response = asyncio.create_task(company.members[1].controller.alter_partition(request))
        await asyncio.sleep(0)  # it is in the queue, before the news
        holds = {n: company.hold(n) for n in (1, 2)}
        await company.stop(3)
        await company.start(3)
        holds[3] = company.hold(3)
        paused.set()
        assert (await response).error_code == ErrorCode.NONE
        company.members[1].is_dead = True
        await company.expire(1)
        holds.pop(successor).set()
        await company.until(lambda: company.members[successor].controller.is_active)
        await company.until(lambda: T in company.broker(3).roles)
        assert (company.state().leader, company.state().leader_epoch, company.state().isr) == (3, 1, (3,))
        for released in holds.values():
            released.set()
        await company._end(company.members[1])


async def test_only_who_was_registered_since_is_doubted(company: Company) -> None:
    """Two machines went down, one after the other. The first has got its records again since, and stays in the ISR,
    whichever of the two a new controller looks at first."""
    async with company:
        await company.start(1, 2, 3, 4)
        await create(company, 3, 2)
        company.lacking = {2}
        await company.stop(2)
        await company.start(2)
        await alter(company, 2, 3)
        company.lacking = {3}
        holds = {n: company.hold(n) for n in (1, 2, 4)}
        await company.stop(3)
        await company.start(3)
        holds[3] = company.hold(3)
        company.members[1].is_dead = True
        await company.expire(1)
        holds.pop(4).set()
        await company.until(lambda: company.members[4].controller.is_active and company.state().leader_epoch > 1)
        assert (company.state().leader, company.state().isr) == (2, (2,))
        for released in holds.values():
            released.set()
        await company._end(company.members[1])


async def test_a_broker_that_bounced_is_lost_and_comes(company: Company) -> None:
    """Both at once: it was registered anew before the controller heard that it had died."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        before = company.controller.cluster.brokers[2].epoch
        await company.expire(2)
        await company.rejoin(2)
        await company.until(lambda: company.controller.cluster.brokers[2].epoch > before)
        await company.until(lambda: company.broker(2).roles[T].leader == 3)
        assert company.state().isr == (3,)
        roles = [command for command in company.broker(2).log if isinstance(command, LeaderAndIsrRequest)]
        assert roles[-1].type == 2
        assert company.state().leader_epoch == 1


async def test_who_takes_over_knows_the_settings_of_topics(company: Company) -> None:
    """Of those, too, that were created since it started: it elects by them."""
    async with company:
        await company.start(1, 2, 3)
        settings = {"unclean.leader.election.enable": "true"}
        await company.controller.create_topics([NewTopic("t", assignments=[(0, (1,))], configs=settings)])
        await company.stop(1)
        await company.until(lambda: company.state().leader == NO_LEADER)
        (successor,) = [m for m in company.members.values() if m.controller is company.controller]
        assert successor.configs.overrides("topics", "t") == settings


async def test_a_silent_broker_delays_nobody(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 1, 2, 3)
        company.broker(3).is_silent = True
        for name in ("a", "b"):
            topic = NewTopic(name, assignments=[(0, (3, 2, 1))])
            (outcome,) = await company.controller.create_topics([topic])
            assert outcome.error is ErrorCode.NONE
            await company.until(lambda name=name: (name, 0) in company.broker(2).roles)
        assert ("a", 0) not in company.broker(3).roles
        company.broker(3).speak_again()
        await company.until(lambda: ("b", 0) in company.broker(3).leaders)
        told = [
            topic.topic_name
            for command in company.broker(3).log
            if isinstance(command, LeaderAndIsrRequest)
            for topic in command.topic_states
        ]
        assert told == ["t", "a", "b"]


async def test_a_broker_that_cannot_be_reached_is_told_when_it_can(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 1, 2)
        company.members[2].is_cut_off = True
        await company.controller.create_topics([NewTopic("a", assignments=[(0, (2, 1))])])
        await company.members[1].timers.has(100)
        company.members[2].is_cut_off = False
        await company.until(lambda: ("a", 0) in company.broker(2).leaders)


async def test_what_waited_for_a_broker_goes_with_that_life_of_it(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        company.members[2].is_cut_off = True
        await company.controller.create_topics([NewTopic("a", assignments=[(0, (2, 1))])])
        await company.members[1].timers.has(100)
        await company.stop(2)
        await company.until(lambda: company.broker(1).live == {1})
        await company.start(2)
        await company.until(lambda: ("a", 0) in company.broker(2).roles)
        epochs = {command.broker_epoch for command in company.broker(2).log}
        assert epochs == {company.members[2].controller.broker_epoch}


async def test_a_log_that_does_not_open_is_led_by_others_until_it_does(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        company.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        (outcome,) = await company.controller.create_topics([NewTopic("t", assignments=[(0, (2, 3))])])
        assert outcome.error is ErrorCode.NONE
        await company.until(lambda: company.broker(3).leaders.get(T) == 3 and company.broker(3).roles[T].leader == 3)
        assert company.state().isr == (3,)
        assert company.controller.cluster.offline_replicas == {2: frozenset({T})}
        company.broker(2).errors.clear()
        await company.until(
            lambda: T in company.broker(2).roles and not any(company.controller.cluster.offline_replicas.values())
        )
        told = [
            topic.partition_states[0].is_new
            for command in company.broker(2).log
            if isinstance(command, LeaderAndIsrRequest)
            for topic in command.topic_states
        ]
        assert told.count(True) >= 2, "asked again as for a new one: it was never served there"


async def test_the_controllers_own_log_does_not_open(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        company.broker(1).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        (outcome,) = await company.controller.create_topics([NewTopic("t", assignments=[(0, (1, 2))])])
        assert outcome.error is ErrorCode.NONE, "another broker leads it"
        await company.until(lambda: company.broker(2).leaders.get(T) == 2)
        assert company.broker(2).roles[T].leader == 2


async def test_who_is_in_sync_again_leads_again_what_prefers_it(company: Company) -> None:
    async with company:
        company.settings = company.settings._replace(leader_imbalance_check_interval_ms=60_000)
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        await company.stop(2)
        await company.until(lambda: company.state().leader == 3)
        await company.start(2)
        await company.until(lambda: T in company.broker(2).roles)
        timers = company.members[1].timers
        timers.fire(60_000)
        await timers.has(60_000)
        assert company.state().leader == 3, "it is not in sync yet"
        await alter(company, 3, 2)
        timers.fire(60_000)
        await company.until(lambda: company.broker(3).leaders.get(T) == 2 and company.broker(2).leaders.get(T) == 2)
        assert company.broker(2).roles[T].leader == 2
        await timers.has(60_000)


# -- deletion


async def test_a_topic_is_gone_when_all_have_deleted_it(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 1, 2, 3)
        company.broker(3).is_silent = True
        deletion = asyncio.ensure_future(company.controller.delete_topics(["t"]))
        await company.until(lambda: "t" in company.broker(2).deleted)
        assert not deletion.done()
        assert T not in company.broker(2).leaders
        company.broker(3).speak_again()
        assert await deletion == {"t": None}
        assert "t" in company.broker(3).deleted
        assert await company.members[1].session.exists("/brokers/topics/t") is None
        await create(company, 3, 1)


async def test_a_deletion_goes_on_when_an_absent_broker_is_back(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 1, 2, 3)
        await company.stop(3)
        await company.until(lambda: company.broker(1).live == {1, 2})
        results = await company.controller.delete_topics(["t"])
        assert results["t"].error is ErrorCode.REQUEST_TIMED_OUT
        await company.until(lambda: "t" in company.broker(2).deleted)
        assert await company.members[1].session.exists("/admin/delete_topics/t") is not None
        await company.start(3)
        await company.until(lambda: "t" not in company.controller.cluster.topics)
        kinds = [type(command) for command in company.broker(3).log]
        assert kinds.index(StopReplicaRequest) < kinds.index(LeaderAndIsrRequest), "before its logs are nobody's"
        assert await company.members[1].session.exists("/admin/delete_topics/t") is None


async def test_whoever_waits_for_a_deletion_hears_that_a_broker_died(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 1, 2)
        company.members[2].is_cut_off = True
        deletion = asyncio.ensure_future(company.controller.delete_topics(["t"]))
        await company.until(lambda: "t" in company.broker(1).deleted)
        await company.stop(2)
        results = await deletion
        assert results["t"].error is ErrorCode.REQUEST_TIMED_OUT
        await company.start(2)
        await company.until(lambda: "t" not in company.controller.cluster.topics)


async def test_another_controller_goes_on_with_a_deletion(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        company.broker(3).is_silent = True
        deletion = asyncio.ensure_future(company.controller.delete_topics(["t"]))
        await company.until(lambda: "t" in company.broker(2).deleted)
        await company.stop(1)
        company.broker(3).speak_again()
        await company.until(lambda: any(company.members[n].controller.is_active for n in (2, 3)))
        await company.until(lambda: "t" not in company.controller.cluster.topics)
        deletion.cancel()


async def test_a_deletion_that_another_broker_refuses_is_made_later(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 1, 2)
        company.broker(2).errors[T] = ErrorCode.KAFKA_STORAGE_ERROR
        results = await company.controller.delete_topics(["t"])
        assert results["t"].error is ErrorCode.KAFKA_STORAGE_ERROR
        company.broker(2).errors.clear()
        await company.until(lambda: "t" not in company.controller.cluster.topics)


# -- what other brokers ask


async def test_a_leader_changes_its_isr(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3, 1)
        await alter(company, 2, 1)
        assert company.state().isr == (2, 1)
        payload, stat = await company.members[1].session.get(znodes.partition_state_path(*T))
        assert znodes.decode_partition_state(*T, payload, stat.version) == company.state()
        request = alteration(company, 2)
        await company.stop(2)
        await company.until(lambda: company.broker(1).live == {1, 3})
        assert company.state().leader == 1, "3 was not in sync"
        response = await company.controller.alter_partition(request)
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
        standing_by = company.members[3].controller
        assert (await standing_by.alter_partition(request)).error_code == ErrorCode.NOT_CONTROLLER


async def test_a_broker_that_stops_is_relieved_first(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3, 1)
        await create(company, 3, 2, name="u")
        await create(company, 2, name="only")
        epoch = company.members[2].controller.broker_epoch
        stale = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch - 1)
        assert (await company.controller.controlled_shutdown(stale)).error_code == ErrorCode.STALE_BROKER_EPOCH
        unknown = ControlledShutdownRequest(broker_id=9, broker_epoch=epoch)
        assert (await company.controller.controlled_shutdown(unknown)).error_code == ErrorCode.BROKER_NOT_AVAILABLE
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch)
        assert (await company.members[3].controller.controlled_shutdown(request)).error_code == ErrorCode.NOT_CONTROLLER
        response = await company.controller.controlled_shutdown(request)
        assert (response.error_code, response.remaining_partitions) == (0, [])
        assert (company.state().leader, company.state().isr) == (3, (3, 1))
        assert company.state("u").isr == (3,)
        assert company.state("only").leader == 2
        # It follows nothing more, or the new leader would ask for it to be in sync again.
        await company.until(lambda: list(company.broker(2).roles) == [("only", 0)])
        await company.until(lambda: company.broker(3).leaders.get(T) == 3)
        refused = await company.controller.alter_partition(alteration(company, 3, 1, 2))
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
        await company.stop(2)
        await company.until(lambda: company.broker(3).live == {1, 3})
        await company.start(2)
        await company.until(lambda: T in company.broker(2).roles)
        assert company.controller.cluster.shutting_down == frozenset()


async def test_a_controller_that_reads_everything_anew_knows_who_stops(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=company.members[2].controller.broker_epoch)
        assert (await company.controller.controlled_shutdown(request)).remaining_partitions == []

        async def break_off() -> None:
            raise ConnectionLost

        company.controller._events.submit(break_off)
        await create(company, 2, 3, name="u")
        assert company.state("u").leader == 3
        await company.stop(2)
        await company.start(2)
        assert company.controller.cluster.shutting_down == frozenset()


@pytest.mark.parametrize("stopping", [1, 2])
async def test_a_broker_stops_when_others_know_who_leads_now(company: Company, stopping: int) -> None:
    """Its clients ask them; but one that is silent keeps nobody for long. The controller may be the one that stops."""
    async with company:
        await company.start(1, 2, 3)
        await create(company, stopping, 3)
        company.broker(3).is_silent = True
        epoch = company.members[stopping].controller.broker_epoch
        request = ControlledShutdownRequest(broker_id=stopping, broker_epoch=epoch)
        relief = asyncio.ensure_future(company.controller.controlled_shutdown(request))
        while company.broker(1).leaders[T] != 3:
            await company.news.wait()
            company.news.clear()
        assert not relief.done()
        company.broker(3).speak_again()
        assert (await relief).error_code == 0
        assert company.broker(3).leaders[T] == 3
        company.broker(3).is_silent = True
        company.members[1].timers.fire(500)
        relief = asyncio.ensure_future(company.controller.controlled_shutdown(request))
        await company.members[1].timers.has(500)
        company.members[1].timers.fire(500)
        assert (await relief).error_code == 0


async def test_the_last_of_an_isr_is_told_what_it_leads_still(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 2, 1)
        await alter(company, 2)
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=company.members[2].controller.broker_epoch)
        response = await company.controller.controlled_shutdown(request)
        assert [(left.topic_name, left.partition_index) for left in response.remaining_partitions] == [T]
        assert company.state().leader == 2


async def test_producer_ids_for_other_brokers(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        epoch = company.members[2].controller.broker_epoch
        request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
        await company.until(lambda: 2 in company.controller.cluster.brokers)
        response = await company.controller.grant_producer_ids(request)
        assert (response.error_code, response.producer_id_start, response.producer_id_len) == (0, 0, 1000)
        assert await company.controller.allocate_producer_ids() == (1000, 1999)
        payload, _ = await company.members[1].session.get(znodes.PRODUCER_ID_BLOCK)
        assert znodes.decode_producer_id_block(payload) == znodes.ProducerIdBlock(1, 1000, 1999)
        for broker_id, broker_epoch, error in [
            (9, epoch, ErrorCode.BROKER_ID_NOT_REGISTERED),
            (2, epoch + 1, ErrorCode.STALE_BROKER_EPOCH),
        ]:
            other = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
            assert (await company.controller.grant_producer_ids(other)).error_code == error
        standing_by = company.members[2].controller
        assert (await standing_by.grant_producer_ids(request)).error_code == ErrorCode.NOT_CONTROLLER


# -- controllers that do not know yet that they were replaced


async def test_a_controller_that_hears_of_a_newer_one_resigns(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 1, 2)
        company.broker(2).controller_epoch = 7
        await company.controller.create_topics([NewTopic("u", assignments=[(0, (2, 1))])])
        controller = company.members[1].controller
        # Its znode is there: it raises its epoch, until nobody knows a newer one, and goes on.
        await company.until(lambda: controller.epoch >= 7 and controller.is_active)


async def test_a_controller_whose_session_is_over_comes_back_as_another_broker(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 1, 2, 3)
        await company.expire(1)
        await company.until(lambda: not company.members[1].controller.is_active)  # it may hear of it last
        await company.until(lambda: any(company.members[n].controller.is_active for n in (2, 3)))
        await company.until(lambda: company.state().leader == 2)
        await company.rejoin(1)
        await company.until(lambda: company.broker(1).roles[T].leader == 2)
        assert not company.members[1].controller.is_active
        assert company.broker(1).controller_epoch == 2


# -- elections that are asked for


async def elect(company: Company, election_type: ElectionType, *partitions: tuple[str, int]) -> Any:
    """The errors by partition, of these or of all."""
    results = await company.controller.elect_leaders(partitions or None, election_type, 30_000)
    return {partition: error and error.error for partition, error in results.items()}


async def test_leaders_are_elected_where_that_is_asked_for(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        await create(company, 1, name="u")
        await company.stop(2)
        await company.until(lambda: company.state().leader == 3)
        assert await elect(company, ElectionType.PREFERRED) == {T: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        await company.start(2)
        await alter(company, 3, 2)
        with pytest.raises(ApiError, match="NOT_CONTROLLER"):
            await company.members[3].controller.elect_leaders(None, ElectionType.PREFERRED, 30_000)
        asked = (T, ("u", 0), ("u", 1), ("nobody", 0))
        assert await elect(company, ElectionType.PREFERRED, *asked) == {
            T: None,
            ("u", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("u", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nobody", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert company.broker(1).leaders[T] == 2, "answered when the controller's own broker knows"
        await company.until(lambda: company.broker(2).roles[T].leader == company.broker(3).roles[T].leader == 2)
        payload, stat = await company.members[1].session.get(znodes.partition_state_path(*T))
        assert znodes.decode_partition_state(*T, payload, stat.version) == company.state()
        assert await elect(company, ElectionType.PREFERRED) == {}, "those that need none are left out"


async def test_whoever_is_left_leads_if_an_administrator_wants_it(company: Company) -> None:
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        await company.stop(3)
        await company.until(lambda: company.state().isr == (2,))
        await company.stop(2)
        await company.until(lambda: company.state().leader == NO_LEADER)
        assert await elect(company, ElectionType.UNCLEAN, T) == {T: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        await company.start(3)
        assert company.state().leader == NO_LEADER
        assert await elect(company, ElectionType.UNCLEAN) == {T: None}
        assert (company.state().leader, company.state().isr) == (3, (3,))
        await company.until(lambda: company.broker(3).roles[T].leader_recovery_state == 1)
        assert await elect(company, ElectionType.UNCLEAN, T) == {T: ErrorCode.ELECTION_NOT_NEEDED}


async def test_a_request_that_has_no_time_is_answered_when_it_is_decided(company: Company) -> None:
    async with company:
        await company.start(1, 2)
        await create(company, 2, 1)
        await company.controller.controlled_shutdown(
            ControlledShutdownRequest(broker_id=2, broker_epoch=company.controller.cluster.brokers[2].epoch)
        )
        assert company.state().leader == 1
        await company.stop(2)
        await company.start(2)
        await alter(company, 1, 2)
        results = await company.controller.elect_leaders([T, ("u", 0)], ElectionType.PREFERRED, 0)
        assert [error and error.error for error in results.values()] == [
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        await company.until(lambda: company.state().leader == 2)


@pytest.mark.parametrize("is_in_office", [True, False])
async def test_elections_that_old_tools_ask_for(
    company: Company, is_in_office: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`kafka-preferred-replica-election.sh --zookeeper`, as it was until Kafka 2.8."""
    path = znodes.PREFERRED_REPLICA_ELECTION
    payload = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"gone","partition":3}]}'
    async with company:
        await company.start(1, 2, 3)
        await create(company, 2, 3)
        await company.stop(2)
        await company.until(lambda: company.state().leader == 3)
        await company.start(2)
        await alter(company, 3, 2)
        other = await company.stores.session()
        if is_in_office:
            await other.create(path, payload)
        else:
            released = company.hold(1)
            await other.create(path, payload)
            await company.expire(1)
            released.set()
        await company.until(lambda: company.state().leader == 2)
        await gone(company, other, path)
        if is_in_office:
            for damaged in (b"{", b'{"version":1,"partitions":[{"topic":"t"}]}'):
                await other.create(path, damaged)
                await gone(company, other, path)
                assert "no leaders are elected: znode /admin/preferred_replica_election holds" in caplog.text
                caplog.clear()
        await other.close()


async def gone(company: Company, session: Any, path: str) -> None:
    """Return when the controller has deleted a znode."""
    is_there = True
    while is_there:
        is_there = await session.exists(path, lambda _event: company.news.set()) is not None
        if is_there:
            await company.news.wait()
            company.news.clear()
