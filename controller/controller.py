"""The controller: its requests, the broker's registration in the cluster, and the task that processes one event at a
time.

The task takes events from one queue, one at a time: an operation decides on the cluster's state (`operations/`, pure
plans), writes its decision, fenced by the controller's epoch, and sends commands to the brokers. So every decision sees
the result of the one before. The brokers' responses are events, too; a client request waits for that of the
controller's own broker. The next take-over completes work that was interrupted between two writes
(`operations/take_over.py`). Changes by others in the store, and the end of a session, are events like requests.

A new operation is a file in `operations/`, with its decision and its execution, and a line in `Controller.__init__` or
a method that imports it; if it reads or watches something from the beginning, a line in `TakeOver.run`.

*Source*: kafka 3.9.1 `KafkaController.scala`; KIP-497, KIP-516.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.clock import Clock
from barnabas.controller.admin_request import AdminRequest, ElectionType, PartitionResults, Results
from barnabas.controller.bootstrap import prepare_store
from barnabas.controller.broker_commands import BrokerCommands
from barnabas.controller.channel import BrokerChannel
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.context import ControllerContext, ControllerSettings
from barnabas.controller.controller_election import ControllerElection, Deposed, Elected
from barnabas.controller.controllership import RECOVERY_RETRY_DELAY_MS, Controllership
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationError,
    CoordinationStore,
    SessionExpired,
)
from barnabas.controller.event_queue import Event, EventQueue
from barnabas.controller.operations.broker_changes import BrokerChanges
from barnabas.controller.operations.creation import CreateTopics
from barnabas.controller.operations.deletion import DeleteTopics
from barnabas.controller.operations.elections import UncleanElections
from barnabas.controller.operations.last_to_leave import LastToLeave
from barnabas.controller.operations.producer_ids import AllocateProducerIds
from barnabas.controller.operations.take_over import TakeOver
from barnabas.controller.operations.topic_changes import TopicChanges
from barnabas.controller.refusals import Refusals
from barnabas.controller.registration import Registration
from barnabas.controller.sessions import StoreSessions
from barnabas.controller.state import BrokerRegistration, ClusterState, Registrations, TopicPartition
from barnabas.controller.topics import NewPartitions
from barnabas.set_aside import SetAside
from barnabas.timers import Timers, time_limit
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.broker_queue import Answer
    from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
    from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
    from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse

__all__ = ["Controller", "ControllerSettings"]

logger = logging.getLogger(__name__)


class Controller:
    """One broker's membership in its cluster, and the role of the controller, which one broker of the cluster has at a
    time (`Controllership`); the others stand by. Owned by the event loop.

    Tasks that serve clients call the requests (`create_topics`, `delete_topics` and `allocate_producer_ids` are objects
    of their operations' files; the files of the others are imported on first use). Tasks that serve other brokers call
    `alter_partition`, `controlled_shutdown` and `grant_producer_ids`, which respond with an error code and raise
    nothing. The broker's start and stop call `start`, `rejoin` and `stop`. The one task that `start` creates does
    everything else.

    `configs` is this broker's repository, started before the controller: it is refreshed before the broker is informed
    of new topics. `on_registrations` is called with the registered brokers, before `start` returns and after each
    change.
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
        """The number of events processed since the start."""
        self.event_ms = 0
        """The total time of that."""
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
                clock,
            ),
            configs,
            timers,
            self._events,
            Refusals(timers, lambda: self._events.submit(self._retry_refused)),
            random_bytes,
        )
        self._broker_changes = BrokerChanges(context, self._registration, on_registrations)
        take_over = TakeOver(context, self._registration, self._broker_changes, TopicChanges(context))
        self._controllership = Controllership(context, self._broker_changes, take_over, clock)
        self.set_aside_answers = SetAside[int](
            "processing the responses of brokers",
            clock,
            first_delay_ms=RECOVERY_RETRY_DELAY_MS,
            name=lambda broker: f"broker {broker}",
        )
        self._unclean_elections = UncleanElections(context)
        LastToLeave(context)
        self.create_topics = CreateTopics(context)
        self.delete_topics = DeleteTopics(context)
        self.allocate_producer_ids = AllocateProducerIds(
            self._sessions, broker_id, self._events, timers, settings.allocation_timeout_ms
        )
        self._task: asyncio.Task[None] | None = None

    # -- public state

    @property
    def controller_id(self) -> int:
        """The id of this broker."""
        return self._registration.broker.broker_id

    @property
    def cluster_id(self) -> str:
        """The cluster's id, once this broker has joined it."""
        return self._context.cluster_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's last registration; -1 before the first."""
        return self._registration.broker.epoch

    @property
    def is_active(self) -> bool:
        """Whether this broker may decide; if not, requests fail with NOT_CONTROLLER."""
        return self._context.is_active

    @property
    def context(self) -> ControllerContext:
        """The shared state of its operations; for tests, which have operations of their own."""
        return self._context

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's last election; 0 before the first."""
        return self._election.epoch

    @property
    def set_aside(self) -> SetAside[str]:
        """Contains the cluster's id while this broker should be its controller and cannot read it."""
        return self._controllership.set_aside

    @property
    def queue_length(self) -> int:
        """The number of pending events."""
        return len(self._events)

    @property
    def left_out_count(self) -> int:
        """The number of topics whose znode cannot be read; 0 unless this broker is the controller."""
        return len(self._context.left_out) if self.is_active else 0

    @property
    def set_asides(self) -> tuple[SetAside[Any], ...]:
        """The members that are set aside, by activity: the cluster, brokers that cannot be informed, subjects that no
        message can carry, and answers."""
        brokers = self._context.brokers
        return (self.set_aside, brokers.set_aside, brokers.unsendable, self.set_aside_answers)

    @property
    def settings(self) -> ControllerSettings:
        """The settings for the next operation."""
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
        """Whether the metadata store records, or recorded, which producer ids were allocated."""
        return self.allocate_producer_ids.knows_what_was_allocated

    def set_unclean_leader_election_enable(self, enabled: bool) -> None:
        """Set whether topics without their own setting may get a leader from outside the ISR; allowing it elects
        missing leaders.
        """
        self._unclean_elections.allow(enabled)

    # -- requests of clients and other brokers

    async def create_partitions(
        self, expansions: Sequence[NewPartitions], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> Results:
        """Add partitions to topics; see `operations/expansion.py`. Raises: ApiError."""
        from barnabas.controller.operations.expansion import CreatePartitions

        create_partitions = CreatePartitions(self._context)
        return await create_partitions(expansions, validate_only=validate_only, timeout_ms=timeout_ms)

    async def alter_partition(self, request: "AlterPartitionRequest") -> "AlterPartitionResponse":
        """Change the ISRs of partitions as their leader requests; responds once that is written."""
        from barnabas.controller.operations.alter_partition import alter_partitions

        return await alter_partitions(self._context, request)

    async def controlled_shutdown(self, request: "ControlledShutdownRequest") -> "ControlledShutdownResponse":
        """Move leadership away from a broker that is about to stop; responds with the partitions that no other broker
        can lead.
        """
        from barnabas.controller.operations.controlled_shutdown import relieve

        return await relieve(self._context, request)

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, election_type: ElectionType, timeout_ms: int
    ) -> PartitionResults:
        """Elect leaders for an admin client; see `operations/elect_leaders.py`. Raises: ApiError."""
        from barnabas.controller.operations.elect_leaders import elect_leaders

        return await elect_leaders(self._context, partitions, election_type, timeout_ms)

    async def alter_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        timeout_ms: int,
        *,
        allow_replication_factor_change: bool = True,
    ) -> PartitionResults:
        """Reassign partitions, or (None) cancel; see `operations/reassignment.py`. Raises: ApiError."""
        from barnabas.controller.operations.reassignment import alter_reassignments

        return await alter_reassignments(
            self._context, wanted, timeout_ms, allow_replication_factor_change=allow_replication_factor_change
        )

    async def grant_producer_ids(self, request: "AllocateProducerIdsRequest") -> "AllocateProducerIdsResponse":
        """Allocate a block of producer ids to another broker, which sends its epoch."""
        from barnabas.controller.operations.producer_id_grants import grant_producer_ids

        return await grant_producer_ids(self._context, self.allocate_producer_ids, request)

    # -- start and stop

    async def registered(self) -> None:
        """Wait until this process has registered its broker for the first time."""
        await self._registration.is_known.wait()

    @property
    def secret_digests(self) -> dict[int, str]:
        """The digests of the registered brokers' secrets, by broker."""
        return self._broker_changes.secret_digests

    async def look_up(self, broker_id: int) -> None:
        """Read the digest of one broker's secret again. Raises: CoordinationError."""
        await self._broker_changes.look_up(broker_id)

    async def elected(self) -> Elected | None:
        """The controller of this cluster and its epoch; None if the metadata store does not contain them.

        Raises: CoordinationError.
        """
        return await self._election.elected()

    def lacks_nothing(self) -> None:
        """Stop reporting in registrations that this broker may lack records: the controller knows it now."""
        self._registration.lacks_nothing()

    async def start(self) -> None:
        """Register the broker. If there is no controller, become it, elect leaders, and inform the broker, which has
        applied everything on return. If another broker is the controller, stand by: that one informs this broker.

        Raises: BrokerIdInUse, ClusterIdMismatch, DamagedZnode, CoordinationError, and errors of the broker.
        """
        await self._enter(self.settings.cluster_id)
        self._task = asyncio.create_task(self._run(), name="controller")
        brokers, term = self._context.brokers, -1
        while term != brokers.term:  # the term changes if the cluster was taken over again meanwhile
            term = brokers.term
            await brokers.own_answered()
            await self._answers_taken()
            await brokers.own_answered()  # partitions whose log failed to open are leaderless now

    async def _answers_taken(self) -> None:
        """Wait until the controller has processed all responses so far; if this broker is not the controller, until the
        events before are done.
        """
        request = AdminRequest[None](self._timers, 0, lambda _: None)

        async def finish() -> None:
            request.finish(None)

        self._events.submit(finish, request)
        with contextlib.suppress(ApiError):
            await request.answer()

    async def rejoin(self, store: CoordinationStore) -> None:
        """Continue in a new session after the last one has expired: register, become the controller and load
        everything, or stand by.

        Raises: as `start` does; after a CoordinationError it may be called again with another session.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def enter() -> None:
            self._sessions.enter(store)
            try:
                await self._enter(self.cluster_id, is_certain=True)
            except Exception as error:  # noqa: BLE001 - passed on to the awaiting code
                self._controllership.resign("it could not join the cluster again")
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)

        self._events.submit(enter, needs_controllership=False)
        await done

    async def _enter(self, cluster_id: str | None, *, is_certain: bool = False) -> None:
        store = self._sessions.store
        self._context.cluster_id = await prepare_store(store, self._random_bytes, cluster_id, is_certain=is_certain)
        await self.allocate_producer_ids.keep()
        store.on_expired(lambda: self._controllership.resign("its session with the metadata store is over"))
        await self._registration.register()
        await self._controllership.begin()

    async def stop(self) -> None:
        """Finish the current event and the own broker's commands, refuse pending events, and end the session, which
        also ends the registration.
        """
        self._context.is_active = False
        self._context.stop_timers()
        finishing = asyncio.create_task(self._finish(), name="the controller's last event")
        with contextlib.suppress(TimeoutError):
            async with time_limit(self._timers, self.settings.stop_patience_ms):
                await asyncio.wait([finishing])
        await self._sessions.store.close()
        await finishing
        self._task = None
        await self._context.brokers.stop()
        self._context.deletions.give_up()
        self._context.refusals.give_up(self._context.cluster)

    async def _finish(self) -> None:
        if self._task is not None:
            self._events.close()
            await asyncio.wait([self._task])
        await self._context.brokers.finish()

    # -- events

    async def _run(self) -> None:
        while (event := await self._events.next()) is not None:
            if event.needs_controllership and not self._context.is_active:
                event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
            else:
                await self._do(event)

    async def _do(self, event: Event) -> None:
        """Process one event. After any error in between everything is loaded again, as a new controller does."""
        began_ms = self._clock.monotonic_ms()
        try:
            await event.work()
        except Deposed as error:
            self._controllership.deposed(error)
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        except SessionExpired:
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        except ConnectionLost:
            logger.warning("the connection to the metadata store broke during a write: reading whether it took effect")
            event.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, "The connection to the metadata store broke."))
            await self._controllership.recover()
        except CoordinationError as error:
            logger.error("the controller could not write to the metadata store: %s", error)
            event.fail(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata store could not be written."))
            await self._controllership.recover()
        except Exception as error:
            logger.exception("the controller failed at a request")
            event.fail(error)
            await self._controllership.recover()
        finally:
            self.event_count += 1
            self.event_ms += self._clock.monotonic_ms() - began_ms

    def _answered(self, answer: "Answer") -> None:
        """Have the controller's task process a broker's response."""
        self._events.submit(lambda: self._take_answer(answer))

    async def _take_answer(self, answer: "Answer") -> None:
        """Process a response. After an unexpected error everything is loaded again, and the broker informed again; if
        its response to that raises again, nothing happens for a while.
        """
        from barnabas.controller.operations.answers import take_answer

        is_due = self.set_aside_answers.is_ready(answer.broker_id)
        try:
            await take_answer(self._context, answer)
        except (Deposed, CoordinationError):
            raise
        except Exception as error:  # noqa: BLE001 - logged once
            if is_due:
                self.set_aside_answers.put(answer.broker_id, error)
                await self._controllership.recover()
        else:
            if is_due:
                self.set_aside_answers.release(answer.broker_id)

    async def _retry_refused(self) -> None:
        """Ask brokers again for replicas that they refused."""
        from barnabas.controller.operations.retries import retry_refused

        await retry_refused(self._context)
