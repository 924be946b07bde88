"""The controller and events in the store: changes by others, lost sessions, other brokers. On both stores."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.bootstrap import prepare_store
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.context import STOP_PATIENCE_MS
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.controllership import RECOVERY_RETRY_DELAY_MS
from barnabas.controller.coordination.interface import CoordinationStore, Create, Delete, StoreUnavailable
from barnabas.controller.operations.broker_changes import RegistrationWatch
from barnabas.controller.registration import BrokerIdInUse
from barnabas.controller.requests import UNKNOWN_BROKER_EPOCH
from barnabas.controller.state import BrokerRegistration, EndPoint, Registrations, ReplicaAssignment, SupportedFeature
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.support.manual_timers import ManualTimers

Stores = Any
"""A store under test, see conftest.py."""

zookeeper_only = pytest.mark.parametrize("stores", [pytest.param("zookeeper", marks=pytest.mark.java)], indirect=True)
"""The embedded stores end with their process: nothing of the dead stays, and they always answer."""

TOPIC_ID = bytes(15) + b"\7"
ENDPOINTS = (EndPoint("PLAINTEXT", "localhost", 9092),)
FEATURE = SupportedFeature("a.feature", 1, 3)


class ListeningBroker:
    """A broker that applies each request at once; tests wait for requests."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._news = asyncio.Event()

    def reaches(self, broker_id: int) -> bool:
        return True

    async def send(self, broker_id: int, request: Any) -> Any:
        from barnabas.wire.messages.leader_and_isr import LeaderAndIsrResponse
        from barnabas.wire.messages.stop_replica import StopReplicaResponse
        from barnabas.wire.messages.update_metadata import UpdateMetadataResponse

        self.sent.append(request)
        self._news.set()
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse()
        return StopReplicaResponse() if isinstance(request, StopReplicaRequest) else UpdateMetadataResponse()

    async def hears(self, kind: type, topic: str | None = None) -> Any:
        """The first request of a kind, about a topic, from here on or before."""
        while True:
            for request in self.sent:
                if isinstance(request, kind) and (
                    topic is None or topic in [state.topic_name for state in request.topic_states]
                ):
                    self.sent.remove(request)
                    return request
            self._news.clear()
            await self._news.wait()


class RegistrationLog:
    """The registrations that a broker learns of; `now` is the latest."""

    def __init__(self) -> None:
        self.zxids: list[int] = []
        self._news = asyncio.Event()

    def note(self, registrations: Registrations) -> None:
        self.now = registrations
        self.zxids.append(registrations.zxid)
        self._news.set()

    async def shows(self, **features: tuple[SupportedFeature, ...]) -> None:
        """Wait until these brokers, by `b` and their id, are registered with these features."""
        while {f"b{broker.broker_id}": broker.features for broker in self.now.brokers} != features:
            self._news.clear()
            await self._news.wait()


class Member:
    """One broker's controller in a session of its own."""

    def __init__(self, session: CoordinationStore, clock: ManualClock, broker_id: int = 1) -> None:
        self.session = session
        self.channel = ListeningBroker()
        self.timers = ManualTimers()
        self.configs = ConfigRepository(session, clock, self.timers)
        self.registration = BrokerRegistration(broker_id, ENDPOINTS, features=(FEATURE,))
        self.registrations = RegistrationLog()
        self.controller = Controller(
            session,
            self.registration,
            self.channel,
            clock,
            ControllerSettings(),
            lambda size: bytes([broker_id]) * size,
            configs=self.configs,
            timers=self.timers,
            on_registrations=self.registrations.note,
        )

    async def start(self) -> "Member":
        await self.configs.start()
        await self.controller.start()
        await self.channel.hears(UpdateMetadataRequest)
        self.channel.sent.clear()
        return self

    async def rejoin(self, session: CoordinationStore) -> None:
        await self.configs.rejoin(session)
        await self.controller.rejoin(session)

    async def stop(self) -> None:
        await self.configs.stop()
        await self.controller.stop()


async def create_like_kafka(other: CoordinationStore, name: str, partitions: int, configs: dict[str, str]) -> None:
    """As `AdminZkClient.createTopicWithAssignment`: config, then assignment, nothing else."""
    await other.create(f"/config/topics/{name}", znodes.encode_config(configs))
    await other.create(f"/brokers/topics/{name}", assignment(partitions))


def assignment(partitions: int) -> bytes:
    return znodes.encode_topic(TOPIC_ID, {number: ReplicaAssignment((1,)) for number in range(partitions)})


async def gone(session: CoordinationStore, path: str) -> None:
    """Return when a znode has been deleted."""
    news = asyncio.Event()
    while await session.exists(path, lambda _event: news.set()) is not None:
        await news.wait()
        news.clear()


# -- changes of others


async def test_a_topic_created_by_others(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await create_like_kafka(other, "t", 2, {"retention.ms": "5"})
        told = await member.channel.hears(LeaderAndIsrRequest, "t")
        (topic,) = told.topic_states
        assert topic.topic_id == TOPIC_ID
        assert [(s.partition_index, s.leader, s.is_new) for s in topic.partition_states] == [(0, 1, True), (1, 1, True)]
        assert member.configs.overrides("topics", "t") == {"retention.ms": "5"}, "known before its logs are made"
        await member.channel.hears(UpdateMetadataRequest, "t")
        payload, stat = await other.get("/brokers/topics/t/partitions/1/state")
        state = znodes.decode_partition_state("t", 1, payload, stat.version)
        assert (state.leader, state.leader_epoch, state.isr, state.controller_epoch) == (1, 0, (1,), 1)
        (outcome,) = await member.controller.create_topics([NewTopic("t")])
        assert outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS
        await member.stop()


async def test_a_topic_without_an_id_gets_one(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await other.create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[1]}}')
        told = await member.channel.hears(LeaderAndIsrRequest, "old")
        stored = znodes.decode_topic("old", (await other.get("/brokers/topics/old"))[0])
        assert stored.topic_id == told.topic_states[0].topic_id
        await member.stop()


async def test_partitions_added_by_others(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await member.controller.create_topics([NewTopic("own")])
        await create_like_kafka(other, "t", 1, {})
        await member.channel.hears(UpdateMetadataRequest, "t")
        member.channel.sent.clear()
        await other.set("/brokers/topics/t", assignment(3))
        told = await member.channel.hears(LeaderAndIsrRequest, "t")
        assert [s.partition_index for s in told.topic_states[0].partition_states] == [1, 2]
        await member.channel.hears(UpdateMetadataRequest, "t")
        topic = znodes.decode_topic("own", (await other.get("/brokers/topics/own"))[0])
        more = {**topic.partitions, 1: topic.partitions[0]}
        await other.set("/brokers/topics/own", znodes.encode_topic(topic.topic_id, more))
        await member.channel.hears(LeaderAndIsrRequest, "own")
        assert len(member.controller.cluster.topics["t"].assignments) == 3
        await member.stop()


async def test_deletions_asked_for_by_others(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await member.controller.create_topics([NewTopic("t")])
        await other.create("/admin/delete_topics/unknown")
        await gone(other, "/admin/delete_topics/unknown")
        await other.create("/admin/delete_topics/t")
        await member.channel.hears(StopReplicaRequest, "t")
        await gone(other, "/admin/delete_topics/t")
        assert await other.exists("/brokers/topics/t") is None
        assert await other.exists("/config/topics/t") is None
        await member.stop()


async def test_deletions_of_others_where_deletion_is_disabled(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = Member(await stores.session(), clock), await stores.session()
        member.controller.settings = ControllerSettings(delete_topic_enable=False)
        await member.start()
        await member.controller.create_topics([NewTopic("t")])
        await other.create("/admin/delete_topics/t")
        await gone(other, "/admin/delete_topics/t")
        assert await other.exists("/brokers/topics/t") is not None
        await member.stop()


async def test_damage_by_others_concerns_one_topic(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await other.create("/brokers/topics/broken", b"{}")
        await create_like_kafka(other, "t", 1, {})
        await member.channel.hears(UpdateMetadataRequest, "t")
        assert "/brokers/topics/broken" in caplog.text
        assert member.controller.is_active
        await other.set("/brokers/topics/broken", b'{"version":1,"partitions":{"0":[1]}}')
        await member.channel.hears(UpdateMetadataRequest, "broken")
        await member.stop()


async def test_znodes_deleted_by_others(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await member.controller.create_topics([NewTopic("t")])
        for path in ("/partitions/0/state", "/partitions/0", "/partitions", ""):
            await other.delete(f"/brokers/topics/t{path}")
        await create_like_kafka(other, "next", 1, {})
        await member.channel.hears(UpdateMetadataRequest, "next")
        assert set(member.controller.cluster.topics) == {"next"}
        assert not [request for request in member.channel.sent if isinstance(request, StopReplicaRequest)]
        await member.stop()


# -- controllership


async def test_a_deleted_controller_znode_means_an_election(stores: Stores, clock: ManualClock) -> None:
    """How Kafka's administrators force one."""
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await member.controller.create_topics([NewTopic("t")])
        member.channel.sent.clear()
        await other.delete("/controller")
        told = await member.channel.hears(UpdateMetadataRequest, "t")
        assert told.controller_epoch == 2
        assert member.controller.is_active
        assert (await other.get("/controller_epoch"))[0] == b"2"
        await member.stop()


async def test_another_controller_is_respected(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        payload = znodes.encode_controller(7, 0)
        await other.multi([Delete("/controller"), Create("/controller", payload, ephemeral=True)])
        with suppress(ApiError):
            while True:
                await member.controller.create_topics([NewTopic("t")], validate_only=True)
        assert not member.controller.is_active
        await other.close()
        await member.channel.hears(LeaderAndIsrRequest)
        assert member.controller.is_active, "elected again when the other has gone"
        await member.stop()


async def test_others_are_followed_after_a_second_election(stores: Stores, clock: ManualClock) -> None:
    """A change while another broker is the controller does not matter to this one; changes after its election do."""
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        seventh = await stores.session()
        payload = znodes.encode_controller(7, 0)
        await seventh.multi([Delete("/controller"), Create("/controller", payload, ephemeral=True)])
        while member.controller.is_active:
            with suppress(ApiError):
                await member.controller.create_topics([NewTopic("t")], validate_only=True)
        await create_like_kafka(other, "meanwhile", 1, {})
        await seventh.close()
        await member.channel.hears(UpdateMetadataRequest, "meanwhile")
        await create_like_kafka(other, "later", 1, {})
        await member.channel.hears(UpdateMetadataRequest, "later")
        await member.stop()


@pytest.mark.parametrize("reading", ["everything", "what has changed"])
async def test_znodes_changed_after_the_read_are_read_again(stores: Stores, clock: ManualClock, reading: str) -> None:
    """Its watch, which is triggered once, was triggered while other znodes were still being read."""
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await create_like_kafka(other, "t", 1, {})
        await member.channel.hears(UpdateMetadataRequest, "t")
        path, read, to_come = "/brokers/topics/t", member.session.get_many, [3]

        async def get_many(paths: Any, watcher: Any = None) -> Any:
            found = await read(paths, watcher)
            if path in paths and watcher is not None and to_come:
                news = asyncio.Event()
                await member.session.exists(path, lambda _event: news.set())
                await other.set(path, assignment(to_come.pop()))
                await news.wait()
            return found

        member.session.get_many = get_many  # type: ignore[method-assign]
        if reading == "everything":
            await other.delete("/controller")
        else:
            await other.set(path, assignment(2))
        while len(member.controller.cluster.topics["t"].assignments) < 3:
            await member.channel.hears(UpdateMetadataRequest, "t")
        await member.stop()


# -- registration and sessions


async def test_registrations_are_followed(stores: Stores, clock: ManualClock) -> None:
    """Each broker that registers, changes or goes is reported, each time with a later zxid."""
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        heard = member.registrations
        await heard.shows(b1=(FEATURE,))
        without = znodes.encode_broker(BrokerRegistration(2, ENDPOINTS), 0)
        await other.create("/brokers/ids/2", without, ephemeral=True)
        await heard.shows(b1=(FEATURE,), b2=())
        await other.set(
            "/brokers/ids/2", znodes.encode_broker(BrokerRegistration(2, ENDPOINTS, features=(FEATURE,)), 0)
        )
        await heard.shows(b1=(FEATURE,), b2=(FEATURE,))
        await other.set("/brokers/ids/2", b"{}")
        await heard.shows(b1=(FEATURE,), b2=())
        await other.create("/brokers/ids/seeds", b"no broker")
        await other.close()
        await heard.shows(b1=(FEATURE,))
        assert heard.zxids == sorted(heard.zxids)
        before = heard.zxids[-1]
        session = await stores.session()
        await session.create("/brokers/ids/3", without, ephemeral=True)
        await heard.shows(b1=(FEATURE,), b3=())
        assert heard.zxids[-1] > before
        await stores.expire(member.session)
        await gone(session, "/brokers/ids/1")
        await member.rejoin(await stores.session())
        await heard.shows(b1=(FEATURE,), b3=())
        await session.close()
        await heard.shows(b1=(FEATURE,))
        assert heard.zxids == sorted(heard.zxids)
        await member.stop()


async def test_registrations_that_could_not_be_read_are_read_again(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        look, failures = member.session.exists, [StoreUnavailable("/brokers/ids")]

        async def exists(path: str, watcher: Any = None) -> Any:
            if path == "/brokers/ids" and failures:
                raise failures.pop()
            return await look(path, watcher)

        member.session.exists = exists  # type: ignore[method-assign]
        payload = znodes.encode_broker(BrokerRegistration(2, ENDPOINTS), 0)
        await other.create("/brokers/ids/2", payload, ephemeral=True)
        await member.registrations.shows(b1=(FEATURE,), b2=())
        assert not failures
        await other.close()
        await member.registrations.shows(b1=(FEATURE,))
        await member.stop()


@pytest.mark.parametrize("method", ["exists", "get_children", "get_many"])
async def test_a_standby_repeats_its_failed_reads(stores: Stores, clock: ManualClock, method: str) -> None:
    async with stores:
        member = await Member(await stores.session(), clock).start()
        standby, other = Member(await stores.session(), clock, broker_id=2), await stores.session()
        await standby.configs.start()
        await standby.controller.start()
        assert not standby.controller.is_active
        read, failures = getattr(standby.session, method), [StoreUnavailable("/brokers/ids")]

        async def fails_once(asked: Any, watcher: Any = None) -> Any:
            paths = [asked] if isinstance(asked, str) else asked
            if failures and any(path.startswith("/brokers/ids") for path in paths):
                raise failures.pop()
            return await read(asked, watcher)

        setattr(standby.session, method, fails_once)
        payload = znodes.encode_broker(BrokerRegistration(3, ENDPOINTS), 0)
        await other.create("/brokers/ids/3", payload, ephemeral=True)
        await standby.timers.has(RECOVERY_RETRY_DELAY_MS)
        assert not failures
        standby.timers.fire(RECOVERY_RETRY_DELAY_MS)
        await standby.registrations.shows(b1=(FEATURE,), b2=(FEATURE,), b3=())
        await other.close()
        await standby.registrations.shows(b1=(FEATURE,), b2=(FEATURE,))
        await standby.stop()
        await member.stop()


async def test_a_zxid_belongs_to_the_registrations_it_is_told_with(stores: Stores, clock: ManualClock) -> None:
    """If a broker registers while others are read, all are read again."""
    async with stores:
        session, other = await stores.session(), await stores.session()
        await prepare_store(session, lambda size: bytes(size), None)
        read = session.get_many
        arrivals = [2, 3]

        async def get_many(paths: Any, watcher: Any = None) -> Any:
            found = await read(paths, watcher)
            if arrivals:
                await other.create(znodes.broker_path(arrivals.pop()), b"{}", ephemeral=True)
            return found

        session.get_many = get_many  # type: ignore[method-assign]
        registrations = await RegistrationWatch(lambda: None).read(session)
        assert [broker.broker_id for broker in registrations.brokers] == [2, 3]
        stat = await session.exists("/brokers/ids")
        assert stat is not None
        assert registrations.zxid == stat.pzxid
        await session.close()
        await other.close()


async def test_a_lost_session_is_followed_by_another(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await member.controller.create_topics([NewTopic("t")])
        first_epoch = member.controller.broker_epoch
        changed: list[tuple[str, str]] = []
        member.configs.subscribe(lambda *entity: changed.append(entity))
        await stores.expire(member.session)
        await gone(other, "/brokers/ids/1")
        assert not member.controller.is_active
        with pytest.raises(ApiError) as refusal:
            await member.controller.create_topics([NewTopic("u")])
        assert refusal.value.error is ErrorCode.NOT_CONTROLLER
        await other.set("/config/topics/t", znodes.encode_config({"retention.ms": "7"}))
        await create_like_kafka(other, "meanwhile", 1, {})
        member.channel.sent.clear()
        await member.rejoin(await stores.session())
        assert changed == [("topics", "t")]
        assert member.controller.broker_epoch > first_epoch
        assert (member.controller.is_active, member.controller.epoch) == (True, 2)
        told = await member.channel.hears(LeaderAndIsrRequest, "t")
        assert {state.topic_name for state in told.topic_states} == {"t", "meanwhile"}
        assert told.broker_epoch == UNKNOWN_BROKER_EPOCH
        epochs = {s.topic_name: s.partition_states[0].leader_epoch for s in told.topic_states}
        assert epochs == {"t": 0, "meanwhile": 0}, "the broker never stopped leading"
        (outcome,) = await member.controller.create_topics([NewTopic("u")])
        assert outcome.error is ErrorCode.NONE
        await create_like_kafka(other, "later", 1, {})
        await member.channel.hears(UpdateMetadataRequest, "later")
        await member.stop()


@pytest.mark.parametrize(
    "path",
    [
        "/cluster/id",
        "/feature",
        "/controller",
        "/controller_epoch",
        "/latest_producer_id_block",
        "/brokers/topics/t",
        "/brokers/topics/t/partitions/0/state",
        "/config/topics/t",
    ],
)
@pytest.mark.parametrize("garbage", [b"", b"no JSON", b'{"version":99,"id":7}'])
@pytest.mark.slow
async def test_a_lost_session_is_replaced_in_spite_of_garbled_znodes(
    stores: Stores, clock: ManualClock, path: str, garbage: bytes
) -> None:
    async with stores:
        member, other = await Member(await stores.session(), clock).start(), await stores.session()
        await member.controller.create_topics([NewTopic("t")])
        cluster_id = member.controller.cluster_id
        await other.set(path, garbage)
        await stores.expire(member.session)
        await gone(other, "/brokers/ids/1")
        await member.rejoin(await stores.session())
        assert member.controller.cluster_id == cluster_id
        assert znodes.decode_cluster_id((await other.get("/cluster/id"))[0]) == cluster_id
        (outcome,) = await member.controller.create_topics([NewTopic("u")])
        assert outcome.error is ErrorCode.NONE
        await member.stop()


async def test_znodes_of_ones_own_earlier_session_are_replaced(stores: Stores, clock: ManualClock) -> None:
    """KAFKA-7165: a session may be over before its znodes are gone."""
    async with stores:
        member = await Member(await stores.session(), clock).start()
        session = await stores.session()
        await member.rejoin(session)
        for path in ("/brokers/ids/1", "/controller"):
            stat = await session.exists(path)
            assert stat is not None
            assert stat.ephemeral_owner == session.session_id
        assert member.controller.epoch == 2
        await member.session.close()
        assert await session.exists("/brokers/ids/1") is not None
        await member.stop()


async def starting(member: Member, stores: Stores) -> "asyncio.Task[Member]":
    """Start a broker whose id is in use; returns when it waits. It never waits on a store that leaves no znodes of dead
    brokers."""
    start = asyncio.create_task(member.start())
    waiting = asyncio.create_task(member.timers.has(member.session.session_timeout_ms * 3 // 2))
    await asyncio.wait([start, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert start.done() == (member.session.session_timeout_ms == 0)
    return start


async def test_a_taken_broker_id_is_refused(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member = await Member(await stores.session(), clock).start()
        second = Member(await stores.session(), clock)
        start = await starting(second, stores)
        second.timers.fire()
        with pytest.raises(BrokerIdInUse, match=r"a broker with id 1 .* \(PLAINTEXT://localhost:9092\)"):
            await start
        await second.stop()
        await member.stop()


@zookeeper_only
async def test_a_dead_brokers_id_is_waited_for(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        dead = await Member(await stores.session(), clock).start()
        second = Member(await stores.session(), clock)
        start = await starting(second, stores)
        await stores.expire(dead.session)
        await start
        assert second.controller.broker_epoch > dead.controller.broker_epoch
        await second.stop()
        await dead.stop()


@zookeeper_only
async def test_stopping_while_nothing_answers(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        member = await Member(await stores.session(), clock).start()
        await asyncio.to_thread(stores.server.stop)
        creation = asyncio.create_task(member.controller.create_topics([NewTopic("t")]))
        await asyncio.sleep(0)
        stop = asyncio.create_task(member.stop())
        await member.timers.has(STOP_PATIENCE_MS)
        assert not stop.done(), "it waits for the event under way"
        member.timers.fire(STOP_PATIENCE_MS)
        await stop
        with pytest.raises(ApiError):
            await creation
        await asyncio.to_thread(stores.server.start)
