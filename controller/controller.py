"""The controller: one queue of events, the broker's life in the cluster, and the take-over of what is there.

One task takes events from one queue, one at a time: an operation decides by the cluster's state (`operations/`, pure
plans), writes its decision, fenced by the controller's epoch, and tells the brokers. So every decision sees the outcome
of the one before, and a request is answered when the brokers have applied it.

Whatever is interrupted between two writes is taken up by the next take-over: partitions without a state are elected,
queued deletions continue. Changes that others make in the store, and the end of a session, are events like requests.

A new operation is a file in `operations/`, which holds what it decides and what it does, and a line in
`Controller.__init__`.

*Source*: kafka 3.9.1 `KafkaController.scala`; KIP-497, KIP-516.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from barnabas.clock import Clock
from barnabas.controller import requests, znodes
from barnabas.controller.bootstrap import create_fixed_znodes, prepare_store
from barnabas.controller.channel import BrokerChannel, BrokerCommands
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.context import ControllerContext, ControllerSettings
from barnabas.controller.controller_election import ControllerElection, ControllerElsewhere, Deposed
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationError,
    CoordinationStore,
    SessionExpired,
    WatchedEvent,
)
from barnabas.controller.deletions import Deletions
from barnabas.controller.event_queue import Event, EventQueue
from barnabas.controller.loading import load_cluster
from barnabas.controller.operations.announcement import tell_who_lives
from barnabas.controller.operations.broker_changes import BrokerChanges, Registrations
from barnabas.controller.operations.creation import CreateTopics
from barnabas.controller.operations.deletion import DeleteTopics, delete_queued, drop_unwanted_deletions
from barnabas.controller.operations.elections import UncleanElections, bring_online
from barnabas.controller.operations.expansion import CreatePartitions
from barnabas.controller.operations.producer_ids import AllocateProducerIds
from barnabas.controller.operations.retries import retry_refused
from barnabas.controller.operations.topic_changes import TopicChanges, tell_of_gone
from barnabas.controller.partition_fsm import PartitionStatus
from barnabas.controller.refusals import Refusals
from barnabas.controller.registration import Registration
from barnabas.controller.sessions import StoreSessions
from barnabas.controller.state import NO_LEADER, BrokerRegistration, ClusterState, TopicPartition
from barnabas.set_aside import SetAside
from barnabas.timers import Timers, time_limit
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.broker_queue import Answer
    from barnabas.controller.operations.elect_leaders import ElectionResults, ElectionType
    from barnabas.controller.operations.plan import OperationGroup
    from barnabas.controller.operations.reassignment import ReassignmentResults
    from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
    from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
    from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse

__all__ = ["Controller", "ControllerSettings"]

logger = logging.getLogger(__name__)

RECOVERY_RETRY_DELAY_MS = 1_000
"""When a controller that could not read or tell the cluster's state tries again: a disk may be full for a while."""


class Controller:
    """One broker's membership in its cluster, and the controller's office, which one broker of the cluster has at a
    time; the others stand by. Owned by the event loop.

    The tasks that serve clients call what is a request (`create_topics`, `delete_topics`, `create_partitions`,
    `allocate_producer_ids`: each is an object of its operation's file), those that serve other brokers
    `alter_partition`, `controlled_shutdown` and `grant_producer_ids`, which answer with an error code and raise none;
    whoever runs the broker calls `start`, `rejoin` and `stop`. All else is done by the one task that `start` makes.

    `configs` is this broker's repository, started before the controller: it is refreshed before the broker is told of
    new topics. `on_registrations` learns who is registered, before `start` is done and after each change.
    """

    def __init__(
        self,
        store: CoordinationStore,
        registration: BrokerRegistration,
        channel: BrokerChannel,
        clock: Clock,
        settings: ControllerSettings,
        random_bytes: Callable[[int], bytes],
        *,
        configs: ConfigRepository,
        timers: Timers,
        on_registrations: Callable[[Registrations], None] = lambda _registrations: None,
        network_timers: Timers | None = None,
    ) -> None:
        broker_id = registration.broker_id
        self._random_bytes = random_bytes
        self._timers = timers
        self._clock = clock
        self._events = EventQueue()
        self.event_count = 0
        """How many events were done since the start."""
        self.event_ms = 0
        """How long that took."""
        self._sessions = StoreSessions(store)
        self._registration = Registration(self._sessions, registration, clock, timers)
        self._election = ControllerElection(self._sessions, broker_id, clock, settings.transaction_bytes_max)
        self._context = context = ControllerContext(
            settings,
            self._sessions,
            self._election,
            BrokerCommands(
                channel,
                self._registration,
                self._election,
                settings.inter_broker_listener,
                network_timers or timers,
                self._answered,
            ),
            configs,
            timers,
            self._events,
            Refusals(timers, lambda: self._events.submit(lambda: retry_refused(context))),
            random_bytes,
        )
        self._broker_changes = BrokerChanges(context, self._registration, on_registrations)
        self._topic_changes = TopicChanges(context)
        self._unclean_elections = UncleanElections(context)
        self.create_topics = CreateTopics(context)
        self.create_partitions = CreatePartitions(context)
        self.delete_topics = DeleteTopics(context)
        self.allocate_producer_ids = AllocateProducerIds(
            self._sessions, broker_id, self._events, timers, settings.allocation_timeout_ms
        )
        self._task: asyncio.Task[None] | None = None
        self.set_aside = SetAside[str]("taking over the cluster", clock, first_delay_ms=RECOVERY_RETRY_DELAY_MS)
        self.cluster_id = ""

    # -- what others may know

    @property
    def controller_id(self) -> int:
        """The id of this broker."""
        return self._registration.broker.broker_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's last registration; -1 before the first."""
        return self._registration.broker.epoch

    @property
    def is_active(self) -> bool:
        """Whether this broker may decide; if not, requests are answered with NOT_CONTROLLER."""
        return self._context.is_active

    @property
    def context(self) -> ControllerContext:
        """What its operations share; for tests, which have operations of their own."""
        return self._context

    @property
    def epoch(self) -> int:
        """The controller's, of this broker's last election; 0 before the first."""
        return self._election.epoch

    @property
    def queue_length(self) -> int:
        """How many events wait until they are done."""
        return len(self._events)

    @property
    def settings(self) -> ControllerSettings:
        """The settings that the next operation goes by."""
        return self._context.settings

    @settings.setter
    def settings(self, settings: ControllerSettings) -> None:
        self._context.settings = settings

    @property
    def cluster(self) -> ClusterState:
        """The cluster as of the last decision."""
        return self._context.cluster

    @property
    def knows_producer_ids(self) -> bool:
        """Whether the metadata store tells, or told, which producer ids have been handed out."""
        return self.allocate_producer_ids.knows_what_was_allocated

    def set_unclean_leader_election_enable(self, enabled: bool) -> None:
        """Set whether topics without a setting of their own may get a leader from outside the ISR; allowing it elects
        leaders where they are missing.
        """
        self._unclean_elections.allow(enabled)

    # -- what other brokers ask of the controller

    async def alter_partition(self, request: "AlterPartitionRequest") -> "AlterPartitionResponse":
        """Change the ISRs of partitions as their leader asks for it; answers when that is written."""
        from barnabas.controller.operations.alter_partition import alter_partitions

        return await alter_partitions(self._context, request)

    async def controlled_shutdown(self, request: "ControlledShutdownRequest") -> "ControlledShutdownResponse":
        """Relieve a broker that is about to stop of what it leads; answers with what nobody else can lead."""
        from barnabas.controller.operations.controlled_shutdown import relieve

        return await relieve(self._context, request)

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, election_type: "ElectionType", timeout_ms: int
    ) -> "ElectionResults":
        """Elect leaders as an administrator asks for it; see `operations/elect_leaders.py`. Raises: ApiError."""
        from barnabas.controller.operations.elect_leaders import elect_leaders

        return await elect_leaders(self._context, partitions, election_type, timeout_ms)

    async def alter_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        timeout_ms: int,
        *,
        allow_replication_factor_change: bool = True,
    ) -> "ReassignmentResults":
        """Move partitions to other brokers, or (None) no longer; see `operations/reassignment.py`. Raises: ApiError."""
        from barnabas.controller.operations.reassignment import alter_reassignments

        return await alter_reassignments(
            self._context, wanted, timeout_ms, allow_replication_factor_change=allow_replication_factor_change
        )

    async def grant_producer_ids(self, request: "AllocateProducerIdsRequest") -> "AllocateProducerIdsResponse":
        """Hand out a block of producer ids to another broker, which names its epoch."""
        from barnabas.controller.operations.producer_id_grants import grant_producer_ids

        return await grant_producer_ids(self._context, self.allocate_producer_ids, request)

    # -- life

    async def registered(self) -> None:
        """Wait until this process has registered its broker for the first time."""
        await self._registration.is_known.wait()

    async def is_registered(self, broker_id: int) -> bool:
        """Whether there is such a broker in the cluster. Raises: CoordinationError."""
        return await self._broker_changes.is_registered(broker_id)

    def lacks_nothing(self) -> None:
        """Tell no more, in registrations to come, that this broker may lack records: the controller has heard of it."""
        self._registration.lacks_nothing()

    async def start(self) -> None:
        """Register the broker. Where there is no controller, become it, elect leaders, and tell the broker everything;
        on return it has applied it. Where another broker is the controller, stand by: that one tells this broker.

        Raises: BrokerIdInUse, ClusterIdMismatch, DamagedZnode, CoordinationError.
        """
        await self._enter(self.settings.cluster_id)
        self._task = asyncio.create_task(self._run(), name="controller")

    async def rejoin(self, store: CoordinationStore) -> None:
        """Go on in a new session, after the one before has expired: register, become the controller and read everything
        again, or stand by.

        Raises: as `start` does; after a CoordinationError it may be called again with another session.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def enter() -> None:
            self._sessions.enter(store)
            try:
                await self._enter(self.cluster_id, is_certain=True)
            except Exception as error:  # noqa: BLE001 - carried to whoever awaits
                self._resign("it could not join the cluster again")
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)

        self._events.submit(enter, needs_controllership=False)
        await done

    async def _enter(self, cluster_id: str | None, *, is_certain: bool = False) -> None:
        store = self._sessions.store
        self.cluster_id = await prepare_store(store, self._random_bytes, cluster_id, is_certain=is_certain)
        await self.allocate_producer_ids.keep()
        store.on_expired(lambda: self._resign("its session with the metadata store is over"))
        await self._registration.register()
        while True:
            try:
                await self._election.elect()
            except ControllerElsewhere:
                if await store.exists(znodes.CONTROLLER, self._controller_changed) is None:
                    continue  # it has gone meanwhile
                logger.info("another broker is the controller: broker %d stands by", self.controller_id)
                await self._broker_changes.follow()
                return
            self._context.is_active = True
            await store.exists(znodes.CONTROLLER, self._controller_changed)
            await self._take_over()
            return

    async def stop(self) -> None:
        """Finish the event under way, refuse those that wait, and end the session, which takes the registration with
        it."""
        self._context.is_active = False
        self._context.stop_timers()
        if self._task is not None:
            self._events.close()
            with contextlib.suppress(TimeoutError):
                async with time_limit(self._timers, self.settings.stop_patience_ms):
                    await asyncio.wait([self._task])
        await self._sessions.store.close()
        if self._task is not None:
            await self._task
            self._task = None
        await self._context.brokers.stop()

    def _resign(self, reason: str) -> None:
        if self._context.is_active:
            self._context.is_active = False
            self._context.brokers.part_from(self._context.brokers.others)
            logger.error("broker %d is no longer the controller: %s", self.controller_id, reason)

    # -- events

    async def _run(self) -> None:
        while (event := await self._events.next()) is not None:
            if event.needs_controllership and not self._context.is_active:
                event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
            else:
                await self._do(event)

    async def _do(self, event: Event) -> None:
        """Do one thing. Whatever goes wrong half-way, everything is read again, as a new controller would."""
        began_ms = self._clock.monotonic_ms()
        try:
            await event.work()
        except Deposed as error:
            self._resign(str(error))
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
            self._look_who_is_controller()
        except SessionExpired:
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        except ConnectionLost:
            logger.warning("the connection broke at a decision of the controller: reading what became of it")
            event.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, "The connection to the metadata store broke."))
            await self._recover()
        except CoordinationError as error:
            logger.error("the controller could not write its decision: %s", error)
            event.fail(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata store could not be written."))
            await self._recover()
        except Exception as error:
            logger.exception("the controller failed at a request")
            event.fail(error)
            await self._recover()
        finally:
            self.event_count += 1
            self.event_ms += self._clock.monotonic_ms() - began_ms

    async def _recover(self) -> None:
        """Take over the cluster again. Until that succeeds, this controller does not decide."""
        while self._context.is_active:
            try:
                await self._take_over()
            except ConnectionLost:
                continue  # the next attempt waits for a connection
            except SessionExpired:
                return
            except Deposed as error:
                self._resign(str(error))
                self._look_who_is_controller()
                return
            except Exception as error:  # noqa: BLE001 - told once, and tried again
                if not self.set_aside.members:
                    self._resign("it does not know the state of the cluster")
                self._context.is_active = False
                self.set_aside.put(
                    self.cluster_id, error, reason=str(error) if isinstance(error, CoordinationError) else ""
                )
                break
            else:
                self.set_aside.release(self.cluster_id)
                return
        # Also where an event could not be done that was to make this broker the controller.
        self._timers.call_later(RECOVERY_RETRY_DELAY_MS, self._look_who_is_controller)

    def _answered(self, answer: "Answer") -> None:
        """Another broker has answered."""
        from barnabas.controller.operations.answers import take_answer

        self._events.submit(lambda: take_answer(self._context, answer))

    # -- controllership

    def _controller_changed(self, _event: WatchedEvent) -> None:
        self._look_who_is_controller()

    def _look_who_is_controller(self) -> None:
        self._events.submit(self._check_controllership, needs_controllership=False)

    async def _check_controllership(self) -> None:
        """Somebody has touched the controller's znode: resign, or, if it is gone, be elected anew. If it is still ours
        although this controller had to resign, go on.

        *Source*: `KafkaController.processControllerChange`, `processReelect`.
        """
        store = self._sessions.store
        stat = await store.exists(znodes.CONTROLLER, self._controller_changed)
        if stat is None:
            level = logging.WARNING if self._context.is_active else logging.INFO
            logger.log(level, "the controller's znode is gone: electing a controller")
            await self._restore()
            try:
                await self._election.elect()
            except ControllerElsewhere:
                return self._resign("another broker has been elected")
            self._context.is_active = True
            await self._take_over()
        elif stat.ephemeral_owner != store.session_id:
            self._resign("another broker has taken over")
        elif not self._context.is_active:
            if not self.set_aside.members:
                logger.info("broker %d tries to be the controller again", self.controller_id)
            await self._election.renew()
            self._context.is_active = True
            await self._recover()
        return None

    async def _restore(self) -> None:
        """Create what every cluster has, where somebody has deleted it."""
        created = await self._context.configs.restore()
        created += await create_fixed_znodes(self._sessions.store, self.cluster_id)
        if created:
            logger.error("somebody has deleted %s: it is there again", ", ".join(created))

    async def _take_over(self) -> None:
        """Read everything, elect leaders where they are missing, tell every broker all it should know, and finish
        deletions.

        Partitions whose leader has died since, and lives again, are elected anew: that was its previous life.

        *Source*: `KafkaController.onControllerFailover`.
        """
        context = self._context
        await self._restore()
        await self._broker_changes.follow()
        known = context.cluster.topics
        own = self._registration.broker
        lives = {own.broker_id: self._registration.first_epoch}  # it went on when it was registered anew
        loaded = await load_cluster(context.store, context.new_topic_id, self._topic_changes.watch, known, lives)
        self._topic_changes.watch.loaded(loaded.cluster.topics)
        tell_of_gone([name for name in known if name not in loaded.cluster.topics])
        reached = {
            broker_id: broker
            for broker_id, broker in loaded.cluster.brokers.items()
            if context.brokers.reaches(broker_id)
        }
        live = {**reached, own.broker_id: own}
        context.cluster = loaded.cluster._replace(brokers=live, shutting_down=context.cluster.still_stopping(live))
        context.machine.load(context.cluster, outlived=loaded.outlived)
        context.deletions = Deletions()
        context.left_out = loaded.left_out
        repairs = [*loaded.repairs, *drop_unwanted_deletions(context)]
        everything = [(topic.name, partition) for topic, partition in context.cluster.partitions()]
        others = [broker_id for broker_id in context.cluster.brokers if broker_id != own.broker_id]
        context.brokers.part_from(context.brokers.others)
        if others:
            context.brokers.meet(others)
            from barnabas.controller.operations.preferred_election import keep_balance

            keep_balance(context)
            await tell_who_lives(context, others)
            # What others have created came without a notification; elections go by it.
            ids = {topic.topic_id for topic in known.values()}
            new = [topic.name for topic in loaded.cluster.topics.values() if topic.topic_id not in ids]
            await context.configs.refresh("topics", new)
        repairs += self._end_absences()
        if loaded.unproven:
            repairs += self._doubt(loaded.unproven)
        await bring_online(context, everything, repairs, requests.FULL)
        if context.cluster.deleting:
            await delete_queued(context, sorted(context.cluster.deleting))
        await self._follow_requests()
        assignments = (a for topic in context.cluster.topics.values() for a in topic.assignments.values())
        if any(assignment.adding_replicas or assignment.removing_replicas for assignment in assignments):
            from barnabas.controller.operations.reassignment import advance

            await advance(context)  # all brokers have been told of what is under way

    async def _follow_requests(self) -> None:
        """Do what tools ask for in znodes; the watches tell of the next such request."""
        asked = [await self._sessions.store.exists(path, self._requests_changed) for path in znodes.REQUESTS]
        if any(asked):
            from barnabas.controller.operations.znode_requests import follow_requests

            await follow_requests(self._context)

    def _requests_changed(self, _event: WatchedEvent) -> None:
        self._events.submit(self._follow_requests)

    def _doubt(self, unproven: Mapping[TopicPartition, Collection[int]]) -> "list[OperationGroup]":
        """Take brokers out of ISRs that may lack records which they had acknowledged; returns the writes of that."""
        from barnabas.controller.operations.broker_lives import plan_unproven

        context = self._context
        plan = plan_unproven(context.cluster, unproven, self._election.epoch)
        context.cluster = plan.cluster
        leaderless = [(name, p) for name, p in plan.told if plan.cluster.topics[name].partitions[p].leader == NO_LEADER]
        context.machine.move(leaderless, PartitionStatus.OFFLINE)  # others are as they were: to be elected, or led
        return list(plan.writes)

    def _end_absences(self) -> "list[OperationGroup]":
        """Take those brokers out of ISRs that died while there was no controller; returns the writes of that."""
        context = self._context
        states = (state for topic in context.cluster.topics.values() for state in topic.partitions.values())
        if all(member in context.cluster.brokers for state in states for member in state.isr):
            return []
        from barnabas.controller.operations.broker_lives import plan_absences

        led = context.machine.in_status(PartitionStatus.ONLINE)
        plan = plan_absences(context.cluster, led, self._election.epoch)
        context.adopt(plan)
        return list(plan.writes)
