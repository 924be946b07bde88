"""The controller itself: it registers its broker, takes office, and turns requests into znodes and commands to brokers.

One task takes events from one queue, one at a time: event -> pure plan -> write, fenced by the controller's epoch ->
tell the brokers. So every decision sees the outcome of the one before, and a request is answered when the brokers have
applied it.

Whatever is interrupted between two writes is taken up by the next `start`: partitions without a state are elected,
queued deletions continue. Changes that others make in the store (`following`) and the end of a session are events like
requests.

*Source*: kafka 3.9.1 `KafkaController.scala`, `TopicDeletionManager.scala`; KIP-497, KIP-516.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from barnabas.clock import Clock
from barnabas.controller import requests, znodes
from barnabas.controller.admin_request import AdminRequest, CancellableTimer, Timers
from barnabas.controller.bootstrap import create_fixed_znodes, prepare_store
from barnabas.controller.channel import BrokerChannel, BrokerCommands
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller_election import ControllerElsewhere, Deposed, Office
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationError,
    CoordinationStore,
    Delete,
    NoNode,
    SessionExpired,
    StoreUnavailable,
    WatchedEvent,
)
from barnabas.controller.following import ClusterWatch
from barnabas.controller.loading import load_cluster
from barnabas.controller.operations.plan import (
    OperationGroup,
    Plan,
    parent_paths,
    plan_creations,
    plan_deletion_queue,
    plan_elections,
    plan_expansions,
    plan_offline_replicas,
    plan_removal,
)
from barnabas.controller.operations.producer_ids import allocate_block, keep_block
from barnabas.controller.operations.topics import (
    Creation,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    check_creations,
    check_expansion,
    duplicates,
)
from barnabas.controller.partition_fsm import PartitionStateMachine, PartitionStatus
from barnabas.controller.registrations import Registrations, RegistrationWatch
from barnabas.controller.state import BrokerRegistration, ClusterState, ReplicaAssignment, TopicPartition
from barnabas.set_aside import SetAside
from barnabas.turns import ENTRIES_PER_TURN, Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import random_topic_id

logger = logging.getLogger(__name__)

Results = dict[str, ApiError | None]

Answer = TypeVar("Answer")

ALLOCATION_TIMEOUT_S = 5.0
"""How long a producer waits for its id when the store is out of reach."""

RECOVERY_RETRY_DELAY_MS = 1_000
"""When a controller that could not read or tell the cluster's state tries again: a disk may be full for a while."""

REFUSAL_RETRY_DELAY_MS = 1_000
REFUSAL_RETRY_DELAY_MS_MAX = 60_000
"""When what a broker could not do is asked of it again (it lacks descriptors or room, which may pass); each time after
twice as long, up to the latter."""

STOP_PATIENCE_S = 3.0
"""How long a stop waits for the event under way; it may be waiting for a store that is out of reach."""


class Event(NamedTuple):
    """One thing to do: for a `request`, or because something happened. Without `needs_office` it is done by a broker
    that is not the controller, too."""

    work: Callable[[], Awaitable[None]]
    request: AdminRequest[Any] | None = None
    needs_office: bool = True

    def fail(self, error: Exception) -> None:
        if self.request is not None:
            self.request.fail(error)


class Awaited(NamedTuple):
    """A request that is answered when the brokers serve these partitions, too."""

    partitions: frozenset[TopicPartition]
    finish: Callable[[], None]


class ControllerSettings(NamedTuple):
    """What the controller takes from the broker's configuration; `cluster_id` is for a new cluster, or to be
    compared."""

    topic_defaults: TopicDefaults = TopicDefaults()
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    inter_broker_listener: str | None = None
    cluster_id: str | None = None


class Controller:
    """The controller of a cluster, in its broker's process; owned by the event loop.

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
    ) -> None:
        self._store = store
        self._office = Office(store, registration, clock, timers)
        self._brokers = BrokerCommands(channel, self._office, settings.inter_broker_listener)
        self.settings = settings
        self._random_bytes = random_bytes
        self._configs = configs
        configs.subscribe(self._config_changed)
        self._timers = timers
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._watch = ClusterWatch(lambda: self._events.put_nowait(Event(self._follow)))
        self._registrations = RegistrationWatch(
            lambda: self._events.put_nowait(Event(self._follow_registrations, needs_office=False))
        )
        self._on_registrations = on_registrations
        self._task: asyncio.Task[None] | None = None
        self._cluster = ClusterState()
        self._machine = PartitionStateMachine()
        self._is_active = False
        self._retry: CancellableTimer | None = None
        self._retry_delay_ms = REFUSAL_RETRY_DELAY_MS
        self._awaited: list[Awaited] = []
        self._refused_new: frozenset[TopicPartition] = frozenset()
        """Partitions that no broker has served yet."""
        self._strangers: tuple[int, ...] = ()
        self._last_producer_id = -1
        self.set_aside = SetAside[str]("taking over the cluster", clock, first_delay_ms=RECOVERY_RETRY_DELAY_MS)
        self.cluster_id = ""

    # -- life

    @property
    def controller_id(self) -> int:
        return self._office.registration.broker_id

    @property
    def is_active(self) -> bool:
        """Whether this broker may decide; if not, requests are answered with NOT_CONTROLLER."""
        return self._is_active

    @property
    def epoch(self) -> int:
        return self._office.epoch

    @property
    def broker_epoch(self) -> int:
        return self._office.registration.epoch

    @property
    def cluster(self) -> ClusterState:
        """The cluster as of the last decision."""
        return self._cluster

    async def start(self) -> None:
        """Register the broker, take office, elect leaders, and tell the broker everything; on return it has applied it.

        Raises: BrokerIdInUse, ControllerElsewhere, ClusterIdMismatch, DamagedZnode, CoordinationError.
        """
        await self._enter(self.settings.cluster_id, restarted=[self.controller_id])
        self._task = asyncio.create_task(self._run(), name="controller")

    async def rejoin(self, store: CoordinationStore) -> None:
        """Go on in a new session, after the one before has expired: register, take office, read everything again.

        Raises: as `start` does; after a CoordinationError it may be called again with another session.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def enter() -> None:
            self._store = store
            self._office.enter(store)
            try:
                await self._enter(self.cluster_id, is_certain=True)
            except Exception as error:  # noqa: BLE001 - carried to whoever awaits
                self._resign("it could not join the cluster again")
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)

        self._events.put_nowait(Event(enter, needs_office=False))
        await done

    async def _enter(
        self, cluster_id: str | None, *, is_certain: bool = False, restarted: Collection[int] = ()
    ) -> None:
        self.cluster_id = await prepare_store(self._store, self._random_bytes, cluster_id, is_certain=is_certain)
        await self._keep_producer_ids()
        self._store.on_expired(lambda: self._resign("its session with the metadata store is over"))
        await self._office.register()
        await self._office.take()
        self._is_active = True
        await self._store.exists(znodes.CONTROLLER, self._controller_changed)
        await self._take_over(restarted=restarted)

    async def stop(self) -> None:
        """Finish the event under way, refuse those that wait, and end the session, which takes the registration with
        it."""
        self._is_active = False
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._events.put_nowait(None)
            await asyncio.wait([self._task], timeout=STOP_PATIENCE_S)
        await self._store.close()
        if self._task is not None:
            await self._task
            self._task = None

    def _resign(self, reason: str) -> None:
        if self._is_active:
            self._is_active = False
            logger.error("broker %d is no longer the controller: %s", self.controller_id, reason)

    # -- requests

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[TopicOutcome]:
        """Create topics, each for itself; answers when the brokers serve them.

        If that takes longer than `timeout_ms`, topics that are on their way are answered REQUEST_TIMED_OUT and come
        into being later; with zero or less nobody waits, as old admin clients ask for. A name given twice has one
        outcome.

        Raises: ApiError(NOT_CONTROLLER), ApiError(KAFKA_STORAGE_ERROR) if the decision could not be written.
        """

        def timed_out(decided: list[TopicOutcome] | None) -> list[TopicOutcome]:
            outcomes = decided if decided is not None else [TopicOutcome(topic.name) for topic in topics]
            return [
                TopicOutcome.failed(outcome.name, ErrorCode.REQUEST_TIMED_OUT)
                if outcome.error is ErrorCode.NONE
                else outcome
                for outcome in outcomes
            ]

        request = AdminRequest(self._timers, timeout_ms, timed_out)
        return await self._ask(lambda: self._create(topics, validate_only, request), request)

    async def delete_topics(
        self, names: Sequence[str], timeout_ms: int = 30_000, *, topic_ids: Mapping[str, bytes] | None = None
    ) -> Results:
        """Delete topics, each for itself; answers when their replicas are gone. Where `topic_ids` has a name, only the
        topic of that id is meant.

        Raises: ApiError(NOT_CONTROLLER), ApiError(KAFKA_STORAGE_ERROR) if the decision could not be written.
        """
        request = AdminRequest(self._timers, timeout_ms, lambda decided: _timed_out(names, decided))
        return await self._ask(lambda: self._delete(names, topic_ids or {}, request), request)

    async def create_partitions(
        self, expansions: Sequence[NewPartitions], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> Results:
        """Add partitions to topics, each for itself; answers when the brokers serve them.

        Raises: ApiError(NOT_CONTROLLER), ApiError(KAFKA_STORAGE_ERROR) if the decision could not be written.
        """
        names = [expansion.name for expansion in expansions]
        request = AdminRequest(self._timers, timeout_ms, lambda decided: _timed_out(names, decided))
        return await self._ask(lambda: self._expand(expansions, validate_only, request), request)

    @property
    def knows_producer_ids(self) -> bool:
        """Whether the metadata store tells, or told, which producer ids have been handed out."""
        return self._last_producer_id >= 0

    async def allocate_producer_ids(self, above: int = -1) -> tuple[int, int]:
        """A block of producer ids that nobody else gets, all of them greater than `above`: its first and last, both
        included.

        Raises: ApiError(COORDINATOR_LOAD_IN_PROGRESS) if the store is out of reach, its disk full, or nobody knows
        which ids have been handed out: the producer asks again.

        *Source*: `ZkProducerIdManager.getNewProducerIdBlock`; the error is `RPCProducerIdManager`'s.
        """
        try:
            async with asyncio.timeout(ALLOCATION_TIMEOUT_S):
                first, last = await allocate_block(self._store, self.controller_id, above)
        except (StoreUnavailable, SessionExpired, TimeoutError, znodes.DamagedZnode, NoNode) as error:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        self._last_producer_id = max(last, self._last_producer_id)
        return first, last

    async def _keep_producer_ids(self) -> None:
        """Remember the last producer id that anybody got, and whenever the znode that says so changes."""

        def changed(_event: WatchedEvent) -> None:
            self._events.put_nowait(Event(self._keep_producer_ids, needs_office=False))

        last = await keep_block(self._store, self.controller_id, lambda: self._last_producer_id, changed)
        self._last_producer_id = max(self._last_producer_id, last)

    async def _ask(self, work: Callable[[], Awaitable[None]], request: AdminRequest[Answer]) -> Answer:
        if not self._is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        self._events.put_nowait(Event(work, request))
        return await request.answer()

    # -- events

    async def _run(self) -> None:
        while (event := await self._events.get()) is not None:
            if event.needs_office and not self._is_active:
                event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
                continue
            try:
                await event.work()
            except Deposed as error:
                self._resign(str(error))
                event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
                self._look_at_office()
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

    async def _recover(self) -> None:
        """After a half-done event: read everything again, as a new controller would. Until that succeeds, this one does
        not decide.
        """
        while self._is_active:
            try:
                await self._take_over()
            except ConnectionLost:
                continue  # the next attempt waits for a connection
            except SessionExpired:
                return
            except Exception as error:  # noqa: BLE001 - told once, and tried again
                if not self.set_aside.members:
                    self._resign("it does not know the state of the cluster")
                self._is_active = False
                self.set_aside.put(
                    self.cluster_id, error, reason=str(error) if isinstance(error, CoordinationError) else ""
                )
                break
            else:
                self.set_aside.release(self.cluster_id)
                return
        # Also where an event could not be done that was to take the office.
        self._timers.call_later(RECOVERY_RETRY_DELAY_MS, self._look_at_office)

    def _controller_changed(self, _event: WatchedEvent) -> None:
        self._look_at_office()

    def _look_at_office(self) -> None:
        self._events.put_nowait(Event(self._check_office, needs_office=False))

    async def _check_office(self) -> None:
        """Somebody has touched the controller's znode: resign, or, if it is gone, take office anew. If it is still ours
        although this controller had to resign, go on.

        *Source*: `KafkaController.processControllerChange`, `processReelect`.
        """
        stat = await self._store.exists(znodes.CONTROLLER, self._controller_changed)
        if stat is None:
            logger.warning("the controller's znode is gone: electing a controller")
            await self._restore()
            try:
                await self._office.take()
            except ControllerElsewhere:
                return self._resign("another broker has been elected")
            self._is_active = True
            await self._take_over()
        elif stat.ephemeral_owner != self._store.session_id:
            self._resign("another broker has taken over")
        elif not self._is_active:
            if not self.set_aside.members:
                logger.info("broker %d tries to be the controller again", self.controller_id)
            await self._office.renew()
            self._is_active = True
            await self._recover()
        return None

    async def _create(
        self, topics: Sequence[NewTopic], validate_only: bool, request: AdminRequest[list[TopicOutcome]]
    ) -> None:
        outcomes, creations = check_creations(
            self._cluster,
            topics,
            self.settings.topic_defaults,
            self._random_index,
            self._new_topic_id,
        )
        if validate_only or not creations:
            return request.finish(outcomes)
        names = [creation.topic.name for creation in creations]
        existing = await self._office.existing(znodes.config_path("topics", name) for name in names)
        plan = await self._plan_creations(creations, existing)
        await self._office.write(plan.writes)
        self._machine.move([(c.topic.name, p) for c in creations for p in c.topic.assignments], PartitionStatus.NEW)
        self._adopt(plan)
        request.decide(outcomes)
        for creation in creations:
            logger.info("created topic %s with %d partition(s)", creation.topic.name, len(creation.topic.assignments))
        await self._configs.refresh("topics", names)
        await self._tell(plan)
        return self._finish_when_served(plan, lambda: request.finish(outcomes))

    async def _plan_creations(self, creations: Sequence[Creation], existing: Collection[str]) -> Plan:
        """One plan for all, made in slices: nothing changes the cluster but the task that does this."""
        writes: list[OperationGroup] = []
        told: list[TopicPartition] = []
        cluster = self._cluster
        for start in range(0, len(creations), ENTRIES_PER_TURN):
            part = plan_creations(cluster, creations[start : start + ENTRIES_PER_TURN], existing, self._office.epoch)
            writes += part.writes
            told += part.told
            cluster = part.cluster
            await asyncio.sleep(0)
        return Plan(tuple(writes), cluster, tuple(told), frozenset(told))

    async def _expand(
        self, expansions: Sequence[NewPartitions], validate_only: bool, request: AdminRequest[Results]
    ) -> None:
        results: Results = {name: _named_twice() for name in duplicates(e.name for e in expansions)}
        added: dict[str, dict[int, ReplicaAssignment]] = {}
        turns = Turns()  # nothing changes the cluster but the task that does this
        for expansion in expansions:
            await turns.after_one()
            if expansion.name in results:
                continue
            try:
                added[expansion.name] = check_expansion(self._cluster, expansion, self._random_index)
            except ApiError as error:
                results[expansion.name] = error
        results |= dict.fromkeys(added)
        if validate_only or not added:
            return request.finish(results)
        new = [(name, partition) for name, assignments in added.items() for partition in assignments]
        plan = plan_expansions(self._cluster, added, await self._office.existing(parent_paths(new)), self._office.epoch)
        await self._office.write(plan.writes)
        self._machine.move(new, PartitionStatus.NEW)
        self._adopt(plan)
        request.decide(results)
        logger.info("added %d partition(s) to %s", len(new), ", ".join(added))
        await self._tell(plan)
        return self._finish_when_served(plan, lambda: request.finish(results))

    async def _delete(
        self, names: Sequence[str], topic_ids: Mapping[str, bytes], request: AdminRequest[Results]
    ) -> None:
        results: Results = {}
        turns = Turns()  # nothing changes the cluster but the task that does this
        for name in names:
            results[name] = self._obstacle_to_deletion(name, topic_ids.get(name))
            await turns.after_one()
        accepted = [name for name, obstacle in results.items() if obstacle is None]
        if not accepted:
            return request.finish(results)
        plan = plan_deletion_queue(self._cluster, accepted)
        await self._office.write(plan.writes)
        self._cluster = plan.cluster
        request.decide(dict(results))
        results |= await self._delete_queued(accepted)
        return request.finish(results)

    def _obstacle_to_deletion(self, name: str, topic_id: bytes | None) -> ApiError | None:
        if not self.settings.delete_topic_enable:
            return ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
        topic = self._cluster.topics.get(name)
        if topic_id is not None and (topic is None or topic.topic_id != topic_id):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if topic is None:
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        return None

    async def _delete_queued(self, names: Collection[str]) -> dict[str, ApiError]:
        """Delete topics that are in the queue: first from everybody's metadata, then their replicas, at last their
        znodes.

        A topic with a replica that cannot be deleted now stays in the queue; it is tried again after a while, when it
        is asked for, and at the next start.
        """
        partitions = [(name, partition) for name in names for partition in self._cluster.topics[name].assignments]
        known = [
            partition for partition in partitions if self._machine.status(partition) is not PartitionStatus.NON_EXISTENT
        ]
        self._machine.move(known, PartitionStatus.OFFLINE)
        self._machine.move(known, PartitionStatus.NON_EXISTENT)
        await self._brokers.update_metadata(self._cluster, partitions)
        obstacles = await self._brokers.delete_replicas(self._cluster, names)
        removed = [name for name in names if name not in obstacles]
        cluster = self._cluster
        writes: list[OperationGroup] = []
        for name in removed:
            plan = plan_removal(cluster, name, await self._znodes_of(name))
            cluster = plan.cluster
            writes += plan.writes
        await self._office.write(writes)
        self._cluster = cluster
        self._configs.forget("topics", removed)
        for name in removed:
            logger.info("deleted topic %s", name)
        if any(obstacle.error is ErrorCode.KAFKA_STORAGE_ERROR for obstacle in obstacles.values()):
            self._retry_later()
        return obstacles

    async def _znodes_of(self, name: str) -> list[str]:
        """A topic's znodes that exist, children first; its entry in the deletion queue last."""
        parent = znodes.partitions_path(name)
        partitions = await self._store.get_children(parent) if await self._store.exists(parent) else []
        states = [path for p in partitions for path in (f"{parent}/{p}/state", f"{parent}/{p}")]
        rest = [parent, znodes.topic_path(name), znodes.config_path("topics", name), znodes.delete_topic_path(name)]
        existing = await self._office.existing([*states, *rest])
        return [path for path in (*states, *rest) if path in existing]

    async def _follow_registrations(self) -> None:
        """Learn who is registered. This broker is: what somebody else has made of its znode is put right."""
        registrations = await self._registrations.read(self._store)
        own = self._office.registration
        found = next((broker for broker in registrations.brokers if broker.broker_id == own.broker_id), None)
        if found is None or (own.endpoints and not found.endpoints):
            path = znodes.broker_path(own.broker_id)
            logger.error("this broker's registration is %s: writing it anew", "gone" if found is None else "damaged")
            if found is not None:
                await self._store.delete(path)
            await self._office.register()
            registrations = await self._registrations.read(self._store)
        self._tell_of_strangers([broker.broker_id for broker in registrations.brokers])
        self._on_registrations(registrations)

    def _tell_of_strangers(self, broker_ids: Iterable[int]) -> None:
        strangers = tuple(broker_id for broker_id in broker_ids if not self._brokers.reaches(broker_id))
        if strangers == self._strangers:
            return
        if strangers:
            logger.error(
                "the cluster has other brokers (id %s): this version runs clusters of one broker,"
                " they get no partitions and are told nothing",
                ", ".join(map(str, strangers)),
            )
        else:
            logger.info("the other brokers have gone (id %s)", ", ".join(map(str, self._strangers)))
        self._strangers = strangers

    async def _restore(self) -> None:
        """Create what every cluster has, where somebody has deleted it."""
        created = await self._configs.restore()
        created += await create_fixed_znodes(self._store, self.cluster_id)
        if created:
            logger.error("somebody has deleted %s: it is there again", ", ".join(created))

    # -- taking over

    async def _take_over(self, *, restarted: Collection[int] = ()) -> None:
        """Read everything, elect leaders where they are missing, tell every broker all it should know, and finish
        deletions.

        Partitions led by one of the `restarted` brokers are elected anew: their leader was the broker's previous life.

        *Source*: `KafkaController.onControllerFailover`.
        """
        await self._restore()
        await self._follow_registrations()
        known = self._cluster.topics
        loaded = await load_cluster(self._store, self._new_topic_id, self._watch, known)
        self._watch.loaded(loaded.cluster.topics)
        self._tell_of_gone([name for name in known if name not in loaded.cluster.topics])
        own = self._office.registration
        reached = {
            broker_id: broker
            for broker_id, broker in loaded.cluster.brokers.items()
            if self._brokers.reaches(broker_id)
        }
        self._cluster = loaded.cluster._replace(brokers={**reached, own.broker_id: own})
        self._machine.load(self._cluster, restarted=restarted)
        repairs = [*loaded.repairs, *self._unwanted_deletions()]
        everything = [(topic.name, partition) for topic, partition in self._cluster.partitions()]
        await self._bring_online(everything, repairs, requests.FULL)
        if self._cluster.deleting:
            await self._delete_queued(sorted(self._cluster.deleting))

    async def _bring_online(
        self, partitions: Sequence[TopicPartition], repairs: Sequence[OperationGroup], request_type: int
    ) -> None:
        """Elect leaders where these partitions lack one, and tell every broker about all of them."""
        new = [p for p in partitions if self._machine.status(p) is PartitionStatus.NEW]
        offline = [p for p in partitions if self._machine.status(p) is PartitionStatus.OFFLINE]
        existing = await self._office.existing(parent_paths(new))
        plan = plan_elections(
            self._cluster, new, offline, existing, self._office.epoch, self._unclean_election_is_allowed
        )
        await self._office.write([*repairs, *plan.writes])
        self._adopt(plan)
        await self._tell(plan._replace(told=tuple(partitions)), request_type)

    async def _follow(self) -> None:
        """Take up what others have changed: new topics, more partitions, deletions asked for."""
        changes = await self._watch.read(self._store, self._cluster, self._new_topic_id)
        self._cluster = changes.cluster
        if changes.gone:
            self._tell_of_gone(changes.gone)
            self._machine.forget(changes.gone)
        if changes.added:
            logger.info("somebody else has added %d partition(s)", len(changes.added))
            self._machine.add(self._cluster, changes.added)
            await self._configs.refresh("topics", changes.new_topics)
            await self._bring_online(changes.added, changes.repairs, requests.INCREMENTAL)
        elif changes.repairs:
            await self._office.write(changes.repairs)
        if changes.queued:
            await self._follow_deletions(changes.queued)

    @staticmethod
    def _tell_of_gone(names: Collection[str]) -> None:
        if names:
            logger.warning("somebody else has deleted the znodes of %s: their logs stay", ", ".join(names))

    async def _follow_deletions(self, queued: Collection[str]) -> None:
        unknown = [name for name in queued if name not in self._cluster.topics]
        known = [name for name in queued if name in self._cluster.topics]
        self._cluster = self._cluster.with_deleting(known)
        dropped = [(Delete(znodes.delete_topic_path(name)),) for name in unknown]
        await self._office.write([*dropped, *self._unwanted_deletions()])
        if self._cluster.deleting:
            await self._delete_queued([name for name in known if name in self._cluster.deleting])

    def _new_topic_id(self) -> bytes:
        return random_topic_id(self._random_bytes)

    def _unwanted_deletions(self) -> list[OperationGroup]:
        """With delete.topic.enable=false the queue is emptied, and its topics stay."""
        if self.settings.delete_topic_enable or not self._cluster.deleting:
            return []
        logger.warning("topic deletion is disabled: %s stay", ", ".join(sorted(self._cluster.deleting)))
        dropped = [(Delete(znodes.delete_topic_path(name)),) for name in sorted(self._cluster.deleting)]
        self._cluster = self._cluster._replace(deleting=frozenset())
        return list(dropped)

    # -- unclean elections

    def set_unclean_leader_election_enable(self, enabled: bool) -> None:
        """What holds for topics that do not say themselves; allowing it elects leaders where they are missing.

        *Source*: `KafkaController.enableDefaultUncleanLeaderElection`.
        """
        if enabled != self.settings.unclean_leader_election_enable:
            self.settings = self.settings._replace(unclean_leader_election_enable=enabled)
            self._events.put_nowait(Event(self._elect_uncleanly))

    def _config_changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics" and name in self._cluster.topics and self._unclean_election_is_allowed(name):
            self._events.put_nowait(Event(self._elect_uncleanly))

    async def _elect_uncleanly(self) -> None:
        offline = self._machine.in_status(PartitionStatus.OFFLINE)
        allowed = [partition for partition in offline if self._unclean_election_is_allowed(partition[0])]
        if allowed:
            await self._bring_online(allowed, [], requests.INCREMENTAL)

    def _unclean_election_is_allowed(self, topic: str) -> bool:
        value = self._configs.overrides("topics", topic).get("unclean.leader.election.enable")
        return self.settings.unclean_leader_election_enable if value is None else value.strip().lower() == "true"

    # -- writing and telling

    def _random_index(self, bound: int) -> int:
        return int.from_bytes(self._random_bytes(8), "big") % bound

    def _adopt(self, plan: Plan) -> None:
        """Make a written plan the state decided upon."""
        self._cluster = plan.cluster
        led: list[TopicPartition] = []
        leaderless: list[TopicPartition] = []
        for name, partition in plan.told:
            state = plan.cluster.topics[name].partitions[partition]
            (leaderless if state.leader < 0 else led).append((name, partition))
        self._machine.move(led, PartitionStatus.ONLINE)
        self._machine.move(leaderless, PartitionStatus.OFFLINE)

    async def _tell(self, plan: Plan, request_type: int = requests.INCREMENTAL) -> None:
        """Have every broker take its roles in the partitions told, then let all know.

        Replicas whose log does not open go offline, until it does.
        """
        for broker_id in list(self._cluster.brokers):
            failed = await self._brokers.assign_roles(self._cluster, broker_id, plan.told, plan.new, request_type)
            if failed:
                self._retry_later()
                self._refused_new |= plan.new.intersection(failed)
                offline = plan_offline_replicas(self._cluster, broker_id, failed, self._office.epoch)
                await self._office.write(offline.writes)
                self._adopt(offline)
        await self._brokers.update_metadata(self._cluster, plan.told, request_type)

    # -- what brokers refused

    def _finish_when_served(self, plan: Plan, finish: Callable[[], None]) -> None:
        self._awaited.append(Awaited(frozenset(plan.told), finish))
        self._finish_awaited()

    def _finish_awaited(self) -> None:
        """Answer who waits for nothing any more; whoever waits for too long is answered by his own timer."""
        refused = {partition for partitions in self._cluster.offline_replicas.values() for partition in partitions}
        for awaited in self._awaited:
            if not awaited.partitions & refused:
                awaited.finish()
        self._awaited = [awaited for awaited in self._awaited if awaited.partitions & refused]

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = self._timers.call_later(
                self._retry_delay_ms, lambda: self._events.put_nowait(Event(self._retry_refused))
            )

    async def _retry_refused(self) -> None:
        """Ask again for what brokers refused. Of a partition they are told its state of now, in which they do not lead
        it; where that works they are elected.

        *Source*: as `KafkaController.onBrokerLogDirFailure` finds out which replicas are offline.
        """
        self._retry = None
        self._retry_delay_ms = min(2 * self._retry_delay_ms, REFUSAL_RETRY_DELAY_MS_MAX)
        for broker_id, refused in self._cluster.offline_replicas.items():
            partitions = sorted(partition for partition in refused if partition[0] not in self._cluster.deleting)
            if not partitions or broker_id not in self._cluster.brokers:
                continue
            failed = await self._brokers.assign_roles(
                self._cluster, broker_id, partitions, self._refused_new, requests.INCREMENTAL
            )
            opened = [partition for partition in partitions if partition not in failed]
            if failed:
                self._retry_later()
            self._refused_new = self._refused_new.difference(opened)
            if opened:
                self._cluster = self._cluster.without_offline_replicas(broker_id, opened)
                await self._bring_online(opened, [], requests.INCREMENTAL)
        if self._cluster.deleting:
            await self._delete_queued(sorted(self._cluster.deleting))
        if self._retry is None:
            self._retry_delay_ms = REFUSAL_RETRY_DELAY_MS
        self._finish_awaited()


def _named_twice() -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")


def _timed_out(names: Iterable[str], decided: Results | None) -> Results:
    results: Results = decided if decided is not None else dict.fromkeys(names)
    return {name: error or ApiError(ErrorCode.REQUEST_TIMED_OUT) for name, error in results.items()}
