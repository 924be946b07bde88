"""Several brokers' controllers on one store, and brokers that apply requests: for tests of a cluster.

The brokers have what a controller sees of them: they process requests one after the other, with a broker's fences, and
record them. A test can make a broker silent, refuse requests, or be unreachable.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.coordination.interface import CoordinationStore
from barnabas.controller.refusals import Refusals
from barnabas.controller.requests import FULL, UNKNOWN_BROKER_EPOCH
from barnabas.controller.state import BrokerRegistration, EndPoint, PartitionState
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tests.support.manual_timers import ManualTimer, ManualTimers

TopicPartition = tuple[str, int]

IN_BOTH_STORES = pytest.mark.parametrize(
    "stores",
    ["memory", pytest.param("zookeeper", marks=[pytest.mark.java, pytest.mark.slow])],
    indirect=True,
)


class AppliedCommands:
    """One life of a broker, as its controllers see it: `log` has the requests that it accepted, in order."""

    def __init__(self, cluster: "Cluster", broker_id: int) -> None:
        self._cluster = cluster
        self.broker_id = broker_id
        self.log: list[Any] = []
        self.controller_epoch = 0
        self.live: set[int] = set()
        self.leaders: dict[TopicPartition, int] = {}
        """The leaders as clients would see them."""
        self.roles: dict[TopicPartition, Any] = {}
        self.deleted: set[str] = set()
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.log_ends: dict[TopicPartition, tuple[int, int]] = {}
        """The last leader epochs in logs, and where they end; others are empty."""
        self.is_silent = False
        self.hangs = False
        self._speaks = asyncio.Event()

    def speak_again(self) -> None:
        self.is_silent = self.hangs = False
        self._speaks.set()

    async def take(self, command: Any, *, is_own: bool) -> Any:
        """A command of this broker's own controller comes through no network: silence does not concern it, except for
        that of a broker that hangs.

        The others' may know of its registration before it does itself, and wait until it knows.
        """
        if not is_own:
            await self._cluster.members[self.broker_id].controller.registered()
        while self.hangs or (self.is_silent and not is_own):
            self._speaks.clear()
            await self._speaks.wait()
        response = self._apply(command)
        if not response.error_code:
            self.log.append(command)
        self._cluster.news.set()
        return response

    def _apply(self, command: Any) -> Any:
        error = ErrorCode.NONE
        epoch = self._cluster.members[self.broker_id].controller.broker_epoch
        if command.controller_epoch < self.controller_epoch:
            error = ErrorCode.STALE_CONTROLLER_EPOCH
        elif UNKNOWN_BROKER_EPOCH != command.broker_epoch < epoch:
            # A newer one is of the registration whose epoch this broker is just about to hear.
            error = ErrorCode.STALE_BROKER_EPOCH
        self.controller_epoch = max(self.controller_epoch, command.controller_epoch)
        if isinstance(command, LeaderAndIsrRequest):
            return LeaderAndIsrResponse(error_code=error) if error else self._take_roles(command)
        if isinstance(command, StopReplicaRequest):
            return StopReplicaResponse(error_code=error) if error else self._stop(command)
        if not error:
            self._learn(command)
        return UpdateMetadataResponse(error_code=error)

    def _learn(self, command: UpdateMetadataRequest) -> None:
        self.live = {broker.id for broker in command.live_brokers}
        if command.type == FULL:
            self.leaders.clear()
        for topic in command.topic_states:
            for state in topic.partition_states:
                if state.leader == -2:
                    self.leaders.pop((topic.topic_name, state.partition_index), None)
                else:
                    self.leaders[topic.topic_name, state.partition_index] = state.leader

    def _take_roles(self, command: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        response = LeaderAndIsrResponse()
        for topic in command.topic_states:
            answers = []
            for state in topic.partition_states:
                partition = (topic.topic_name, state.partition_index)
                assert state.leader in {-1, self.broker_id, *self.live}, "who lives is told before roles"
                answers.append(self._take_role(partition, state))
            response.topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=answers))
        return response

    def _take_role(self, partition: TopicPartition, told: Any) -> LeaderAndIsrPartitionError:
        answer = LeaderAndIsrPartitionError(
            partition_index=partition[1], error_code=self.errors.get(partition, ErrorCode.NONE)
        )
        known = self.roles.get(partition)
        if answer.error_code:
            return answer
        if not told.isr:  # the state is lost
            if known is not None and known.isr and known.leader_epoch >= told.leader_epoch:
                answer.error_code = ErrorCode.STALE_CONTROLLER_EPOCH
                answer.known_leader_epoch = known.leader_epoch
                return answer
            answer.known_leader_epoch, answer.knew_isr = told.leader_epoch, known is not None
            answer.last_epoch, answer.log_end_offset = self.log_ends.get(partition, (-1, 0))
        epochs = (told.leader_epoch, told.partition_epoch)
        assert known is None or epochs >= (known.leader_epoch, known.partition_epoch), "in the order of decisions"
        self.roles[partition] = told
        return answer

    def _stop(self, command: StopReplicaRequest) -> StopReplicaResponse:
        response = StopReplicaResponse()
        for topic in command.topic_states:
            for state in topic.partition_states:
                partition = (topic.topic_name, state.partition_index)
                error = self.errors.get(partition, ErrorCode.NONE)
                if error is ErrorCode.NONE:
                    self.roles.pop(partition, None)
                    if state.delete_partition:
                        self.deleted.add(topic.topic_name)
                response.partition_errors.append(
                    StopReplicaPartitionError(topic_name=partition[0], partition_index=partition[1], error_code=error)
                )
        return response


class ClusterChannel:
    """The connections of one controller to all brokers."""

    def __init__(self, cluster: "Cluster", own_id: int) -> None:
        self._cluster = cluster
        self._own_id = own_id

    def reaches(self, broker_id: int) -> bool:
        return True

    async def send(self, broker_id: int, command: Any) -> Any:
        member = self._cluster.members.get(broker_id)
        is_own = broker_id == self._own_id
        if not is_own and (member is None or member.is_dead or member.is_cut_off):
            raise ConnectionRefusedError(f"broker {broker_id} does not listen")
        assert member is not None
        return await member.broker.take(command, is_own=is_own)


class TellingTimers(ManualTimers):
    """Timers that notify the cluster when a task waits."""

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__()
        self._cluster = cluster

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> ManualTimer:
        self._cluster.news.set()
        return super().call_later(delay_ms, callback)


class ClusterMember:
    """One broker: its controller with its own session, and the requests that it received."""

    def __init__(self, cluster: "Cluster", broker_id: int, session: CoordinationStore) -> None:
        self.session = session
        self.is_dead = False
        self.is_cut_off = False
        self.broker = AppliedCommands(cluster, broker_id)
        self.timers = TellingTimers(cluster)
        self.configs = ConfigRepository(session, cluster.clock, self.timers)
        self.controller = Controller(
            session,
            BrokerRegistration(
                broker_id,
                (EndPoint("PLAINTEXT", "localhost", 9090 + broker_id),),
                may_lack_records=broker_id in cluster.lacking,
                damaged=cluster.damaged.get(broker_id, frozenset()),
                min_insync_replicas=cluster.min_insync_replicas.get(broker_id, 1),
            ),
            ClusterChannel(cluster, broker_id),
            cluster.clock,
            cluster.settings,
            cluster.random_bytes,
            configs=self.configs,
            timers=self.timers,
        )


class Cluster:
    """A cluster; `members` are the brokers that live or have lived, by id. `news` is set when any broker receives a
    request."""

    def __init__(self, stores: Any, clock: ManualClock) -> None:
        self.stores = stores
        self.clock = clock
        self.settings = ControllerSettings()
        self.members: dict[int, ClusterMember] = {}
        self.min_insync_replicas: dict[int, int] = {}
        """The values in the brokers' files when they start, by id; others have the default."""
        self.news = asyncio.Event()
        self.lacking: set[int] = set()
        """Those whose machines go down before they start again."""
        self.damaged: dict[int, frozenset[TopicPartition]] = {}
        """Whose logs of which partitions are damaged when they start again."""
        self._holds: set[asyncio.Event] = set()
        self._random = 0

    def random_bytes(self, size: int) -> bytes:
        self._random += 1
        return self._random.to_bytes(size, "little")

    async def __aenter__(self) -> "Cluster":
        await self.stores.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for member in self.members.values():
            if not member.is_dead:
                await self._end(member)
        await self.stores.__aexit__(*error)

    async def start(self, *broker_ids: int) -> None:
        """Start brokers, one after the other; those that lived before begin another life. Returns when the controller
        knows of them, unless it is held."""
        for broker_id in broker_ids:
            member = self.members[broker_id] = ClusterMember(self, broker_id, await self.stores.session())
            await member.configs.start()
            await member.controller.start()
        if not self._holds:
            epochs = {broker_id: self.members[broker_id].controller.broker_epoch for broker_id in broker_ids}
            await self.until(
                lambda: all(self.controller.cluster.brokers[each].epoch == epochs[each] for each in epochs)
            )

    async def stop(self, broker_id: int) -> None:
        """End a broker: its session with it."""
        member = self.members[broker_id]
        member.is_dead = True
        await self._end(member)

    async def _end(self, member: ClusterMember) -> None:
        await member.configs.stop()
        await member.controller.stop()

    async def expire(self, broker_id: int) -> None:
        """End a broker's session without its knowledge."""
        await self.stores.expire(self.members[broker_id].session)

    async def rejoin(self, broker_id: int) -> None:
        """Have a broker continue with another session."""
        member = self.members[broker_id]
        member.session = await self.stores.session()
        await member.configs.rejoin(member.session)
        await member.controller.rejoin(member.session)

    def hold(self, broker_id: int) -> asyncio.Event:
        """Keep a broker's controller, active or not, from doing anything until the event is set."""
        released = asyncio.Event()
        self._holds.add(released)

        async def wait() -> None:
            await released.wait()
            self._holds.discard(released)

        self.members[broker_id].controller._events.submit(wait, needs_controllership=False)
        return released

    @property
    def controller(self) -> Controller:
        """The active controller."""
        (controller,) = [
            member.controller for member in self.members.values() if not member.is_dead and member.controller.is_active
        ]
        return controller

    def broker(self, broker_id: int) -> AppliedCommands:
        return self.members[broker_id].broker

    def state(self, topic: str = "t", partition: int = 0) -> PartitionState:
        """The state of a partition as the controller has it."""
        return self.controller.cluster.topics[topic].partitions[partition]

    async def alter_isr(self, *isr: int) -> None:
        """Have the leader of t-0 send AlterPartition with this ISR, and succeed."""
        response = await self.controller.alter_partition(self.alteration(*isr))
        assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)

    def alteration(self, *isr: int) -> AlterPartitionRequest:
        """The AlterPartition request of the leader of t-0 for this ISR."""
        state, known = self.state(), self.controller.cluster
        wanted = RequestPartitionData(
            partition_index=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=known.brokers[each].epoch) for each in isr],
        )
        topic = RequestTopicData(topic_id=known.topics["t"].topic_id, partitions=[wanted])
        epoch = known.brokers[state.leader].epoch
        return AlterPartitionRequest(broker_id=state.leader, broker_epoch=epoch, topics=[topic])

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true. Tasks that wait to retry do so at once."""
        while not self._is_so(condition):
            self.fire_retries()
            await self.settled()
            if self._is_so(condition):
                return
            with suppress(TimeoutError):  # that a session is over is no news, and comes when ZooKeeper says so
                async with asyncio.timeout(0.1):  # Real time: until the next look
                    await self.news.wait()
            self.news.clear()

    @staticmethod
    def _is_so(condition: Callable[[], Any]) -> bool:
        """False while there is no controller, or two, or one that has not read the whole cluster yet."""
        with suppress(KeyError, ValueError):
            return bool(condition())
        return False

    async def settled(self) -> None:
        """Return when the controller, if there is one, has processed all earlier events."""
        for member in self.members.values():
            if member.controller.is_active and not member.is_dead:
                with suppress(ApiError):
                    await member.controller.delete_topics(["nobody"])

    def fire_retries(self) -> None:
        for member in self.members.values():
            for timer in list(member.timers.waiting):
                # Who refuses again and again is asked ever later; other timers that are as late are time-outs.
                is_retry = timer.delay_ms <= 8_000 or isinstance(getattr(timer.callback, "__self__", None), Refusals)
                if is_retry and not member.is_dead:
                    timer.cancel()
                    timer.callback()
