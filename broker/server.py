"""The broker as a whole: its parts, the order in which they start and stop, and the process around it.

Start: bind listeners (so that port 0 has become a number), open the log directories, open the coordination store, let
the controller register the broker and hand out partitions, then listen. Stop goes the other way, and ends with the
clean-shutdown marker.
"""

import asyncio
import contextlib
import gc
import inspect
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from barnabas.broker.api.dispatch import Dispatcher
from barnabas.broker.cluster.auto_topics import AutoTopicCreation
from barnabas.broker.cluster.features import SUPPORTED_FEATURES, ClusterFeatures
from barnabas.broker.cluster.local_channel import LocalChannel
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, MetadataCache
from barnabas.broker.cluster.metadata_store import MetadataStore, find_metadata_file
from barnabas.broker.cluster.producer_ids import ProducerIds, highest_handed_out
from barnabas.broker.configuration.changes import ConfigChanges
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.configuration.topics import DEFAULT_ENTITY, DEFAULTS_OF_TOPICS, TopicConfigs, log_config
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.internal_topics import InternalTopics
from barnabas.broker.coordinators.transactions.local_markers import LocalMarkers
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.environment import Environment
from barnabas.broker.handlers import find_handler
from barnabas.broker.network.connection import Connection
from barnabas.broker.network.connections import Connections
from barnabas.broker.network.inflight_budget import InflightBudget
from barnabas.broker.network.listeners import BoundListener, socket_options
from barnabas.broker.observability.metrics import RequestMetrics
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.fetch_sessions import FetchSessions
from barnabas.broker.replication.internal_topic_log import InternalTopicLog
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.services import Services
from barnabas.broker.timers import Timers
from barnabas.broker.upkeep.compaction import Compaction
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.broker.upkeep.log_jobs import LogJobs
from barnabas.broker.upkeep.retention import Retention
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.operations.topics import TopicDefaults
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.set_aside import SetAside
from barnabas.storage.log_manager import LogManager
from barnabas.threads import THREADS_AT_START, ThreadPool
from barnabas.wire.framing import ReceiveBuffer

if TYPE_CHECKING:
    from barnabas.broker.http.metrics_page import MetricSources
    from barnabas.broker.http.server import HttpServer

logger = logging.getLogger(__name__)

DEFAULT_INFLIGHT_BYTES_MAX = 128 * 1024 * 1024
"""Bound on unfinished requests where `queued.max.request.bytes` is Kafka's default (-1, no bound at all)."""

IDLE_CHECK_INTERVAL_MS = 2_000
LAG_CHECK_INTERVAL_S = 1.0


class Broker:
    """One broker; create it inside a running event loop, which then owns it.

    `on_failure` is called once, with a reason, when the broker cannot go on (a disk failed): whoever runs it should end
    the process. `environment` is what it takes from outside of itself; by default the machine's own.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self.config = LiveConfig(config)
        self.environment = environment or Environment()
        self.clock = self.environment.clock
        self._socket_clock = self.environment.socket_clock or self.clock
        self.node_id = config.node_id
        self.cluster_id = ""
        self.is_ready = False
        self._on_failure = on_failure or (lambda reason: None)
        self._loop = asyncio.get_running_loop()
        self._connection_count = 0
        self._http: HttpServer | None = None
        self._stops = contextlib.AsyncExitStack()
        """How to stop what was started, in the opposite order."""
        self._members = contextlib.AsyncExitStack()
        """As `_stops`: the parts that go on in the next session when one with the metadata store is lost."""
        self._is_crash = False
        self._broker_epoch: Callable[[], int] = lambda: -1
        """That of the last registration; -1 as long as there is none."""

        self.timers = Timers(self.clock, self._loop)
        self.housekeeping = Housekeeping(self.timers, self.clock)
        self.metadata = MetadataCache()
        self.metrics = RequestMetrics()
        self.unforeseen = UnforeseenErrors(self.clock)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            new_id=lambda: self.environment.random_below(2**31 - 1) + 1,
        )
        self.connections = Connections(self.config)
        self._budget = InflightBudget(
            config.queued_max_request_bytes if config.queued_max_request_bytes > 0 else DEFAULT_INFLIGHT_BYTES_MAX
        )
        self._receive_buffer = ReceiveBuffer()
        self._listeners: list[BoundListener] = []
        self._servers: list[asyncio.Server] = []
        self._goes_on_after_stop = False
        """Whether the metadata store is known to be no older than the logs were at their last clean stop."""
        self._highest_producer_id: int | None = None

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and listen. Raises OSError (address or directory in use), ConfigError, StorageError."""
        asyncio.get_running_loop().set_default_executor(ThreadPool("broker", THREADS_AT_START))
        try:
            self._bind()
            await self._open_logs()
            await self._open_coordination()
            await self._join_cluster()
            self.cluster_id = self.controller.cluster_id
            self._goes_on_after_stop = 0 <= self.log_manager.previous_broker_epoch < self._broker_epoch()
            self.log_manager.set_cluster_id(self.cluster_id)
            self._make_services()
            await self._start_coordinators()
            self._start_housekeeping()
            if self.config.barnabas_http_address is not None:
                await self._start_http(self.config.barnabas_http_address)
            self._stops.push_async_callback(self._end_connections)
            for listener in self._listeners:
                await self._listen(listener)
        except BaseException:
            await self.stop()
            raise
        self.is_ready = True

    def _bind(self) -> None:
        for listener in self.config.listeners:
            bound = BoundListener(listener, socket_options(self.config))
            self._stops.callback(bound.socket.close)
            self._listeners.append(bound)

    async def _open_logs(self) -> None:
        """Lock the log directories and load what is in them; after a crash this reads the logs' tails."""
        self.log_manager = LogManager(
            self.environment.files,
            self.config.log_dirs,
            lambda topic: log_config(self.config, {}, {}),  # until the controller has told us about each topic
            self.clock,
            node_id=self.node_id,
            cluster_id=self.config.cluster_id,
            on_failure=self._fail,
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
            random_below=self.environment.random_below,
            new_id=self.environment.random_id,
            threads_per_directory=self.config.num_recovery_threads_per_data_dir,
        )
        self._stops.push_async_callback(self._end_logs)
        self._stop_later(self.timers.close)
        self.config.follow(BrokerConfig.num_recovery_threads_per_data_dir, self.log_manager.set_threads_per_directory)
        self.config.follow(BrokerConfig.producer_id_expiration_ms, self.log_manager.set_producer_id_expiration_ms)
        await asyncio.to_thread(self.log_manager.open)
        if self.log_manager.previous_broker_epoch >= 0:
            logger.info("the last stop was clean, at broker epoch %d", self.log_manager.previous_broker_epoch)

    async def _open_coordination(self) -> None:
        logs = self.log_manager
        self._store = MetadataStore(
            self.config,
            self.clock,
            self.timers,
            lambda: find_metadata_file(logs.directories, logs.found_cluster_id, logs.missing_directories),
            self._fail,
            known_cluster=lambda: logs.found_cluster_id,
            is_durable=self.environment.is_durable,
            shared=self.environment.metadata_store,
        )
        self._stop_later(self._store.close)
        self._session = await self._store.open()
        self.configs = ConfigRepository(self._session, self.clock, self.timers)
        self.topic_configs = TopicConfigs(self.config, self.configs)
        self.configs.subscribe(self._config_changed)

    async def _join_cluster(self) -> None:
        """Register, and take over the partitions that the controller hands out."""
        self._stops.push_async_callback(self._members.aclose)
        self._make_parts()
        # No new session may be opened, and told to these parts, while they are stopped.
        self._stop_later(self._store.stay_out)
        self._stop_later(self.replicas.close, self._members)
        self._stop_later(self.configs.stop, self._members)
        await self.configs.start()
        self.config.change(self.topic_configs.dynamic_broker_configs())
        self._stop_later(self.controller.stop, self._members)
        await self.controller.start()

    async def _start_coordinators(self) -> None:
        self._stop_later(self.groups.stop, self._members)
        await self.groups.start()
        self._stop_later(self.transactions.stop, self._members)
        await self.transactions.start()
        self._stop_later(self.auto_topics.close, self._members)

    def _make_parts(self) -> None:
        self.internal_topics = InternalTopics(self.config, self.topic_configs, self.metadata)
        self.replicas = ReplicaManager(
            self.node_id,
            self.log_manager,
            self.metadata,
            self.clock,
            self.topic_configs.log_config,
            on_elected=self.internal_topics.elected,
            on_resigned=self.internal_topics.resigned,
            flush_before_ack=self.config.barnabas_flush_before_ack,
        )
        self.retention = Retention(self.replicas, self.log_manager, self.clock)
        self.config.follow_any(DEFAULTS_OF_TOPICS, self.replicas.reconfigure_all)
        self.compaction = Compaction(self.replicas, self.clock, self.log_manager, self.config)
        self.log_jobs = LogJobs(self.log_manager, self.replicas, self.retention, self.compaction, self.clock)
        self.groups = GroupService(
            InternalTopicLog(self.replicas, GROUP_METADATA_TOPIC),
            self.timers,
            self.clock,
            _group_settings(self.config),
            self.config.offsets_topic_num_partitions,
            new_id=self.environment.random_id,
        )
        self.transaction_markers = LocalMarkers(self.replicas, self.groups, self.clock)
        self.transactions = TransactionService(
            InternalTopicLog(self.replicas, TRANSACTION_STATE_TOPIC),
            self.transaction_markers,
            self.timers,
            self.clock,
            _transaction_settings(self.config),
            self.config.transaction_state_log_num_partitions,
            next_producer_id=lambda: self.producer_ids.next(),
        )
        self.transaction_verification = TransactionVerification(
            self.replicas, self.transactions, self.config, self.clock, self.timers
        )
        self.internal_topics.attach(self.groups, self.transactions)
        self.features = ClusterFeatures(self._set_transaction_version)
        self.controller = Controller(
            self._session,
            BrokerRegistration(self.node_id, self._endpoints(), self.config.broker_rack, features=SUPPORTED_FEATURES),
            LocalChannel(self.node_id, self.replicas, self.metadata, self.internal_topics.metadata_updated),
            self.clock,
            ControllerSettings(
                TopicDefaults(self.config.num_partitions, self.config.default_replication_factor),
                delete_topic_enable=self.config.delete_topic_enable,
                unclean_leader_election_enable=self.config.unclean_leader_election_enable,
                inter_broker_listener=self.config.inter_broker_listener_name,
                cluster_id=self.config.cluster_id,
            ),
            random_bytes=self.environment.random_bytes,
            configs=self.configs,
            timers=self.timers,
            on_registrations=self.features.finalize,
        )
        self._broker_epoch = lambda: self.controller.broker_epoch
        self.config.follow(
            BrokerConfig.unclean_leader_election_enable, self.controller.set_unclean_leader_election_enable
        )
        self._store.follow(self.configs, self.controller)
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.auto_topics = AutoTopicCreation(
            lambda topics: self.controller.create_topics(
                topics, validate_only=False, timeout_ms=self.config.request_timeout_ms
            ),
            self.internal_topics.new_topic,
        )

    def _make_services(self) -> None:
        """What handlers get, now that the broker is known to its cluster."""
        self.services = Services(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            clock=self.clock,
            unforeseen=self.unforeseen,
            connections=self.connections,
            config=self.config,
            configs=self.configs,
            topic_configs=self.topic_configs,
            config_changes=ConfigChanges(self.node_id, self.topic_configs, self.configs, self.metadata),
            metadata=self.metadata,
            features=self.features,
            controller=self.controller,
            auto_topics=self.auto_topics,
            producer_ids=self.producer_ids,
            log_manager=self.log_manager,
            replicas=self.replicas,
            fetch_sessions=self.fetch_sessions,
            groups=self.groups,
            transactions=self.transactions,
            transaction_markers=self.transaction_markers,
            transaction_verification=self.transaction_verification,
        )
        self._dispatcher = Dispatcher(self.services, find_handler, self._socket_clock, self.metrics)

    def _endpoints(self) -> tuple[EndPoint, ...]:
        return tuple(
            EndPoint(bound.name, bound.advertised.host, bound.advertised.port)
            for bound in self._listeners
            if bound.listener.advertised
        )

    async def _listen(self, listener: BoundListener) -> None:
        if not listener.listener.is_loopback:
            logger.warning(
                "listener %s accepts connections from other machines, unencrypted and unauthenticated (PLAINTEXT)",
                listener.name,
            )

        def connection() -> Connection:
            self._connection_count += 1
            return Connection(
                self._dispatcher,
                self.connections,
                self._receive_buffer,
                self._budget,
                listener.name,
                self._connection_count,
                self.config.socket_request_max_bytes,
            )

        server = await self._loop.create_server(
            connection, sock=listener.socket, backlog=self.config.socket_listen_backlog_size
        )
        self._servers.append(server)

    async def _start_http(self, address: str) -> None:
        from barnabas.broker.http.server import HttpServer

        self._http = HttpServer(self.metric_sources(), address)
        self._stop_later(self._http.stop)
        await self._http.start()

    def ready_line(self) -> str:
        """What a process prints when clients may connect."""
        addresses = ",".join(str(listener) for listener in self._listeners if listener.listener.advertised)
        return f"ready: {addresses} node.id={self.node_id} cluster.id={self.cluster_id}"

    def bootstrap_servers(self) -> str:
        """HOST:PORT of the first listener."""
        endpoint = self._listeners[0].advertised
        return f"{endpoint.host}:{endpoint.port}"

    def ports(self) -> dict[str, int]:
        """The port that each listener is bound to, by its name."""
        return {listener.name: listener.bound.port for listener in self._listeners}

    # --- stopping ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly: no more requests, everything on disk, the clean-shutdown marker written. What was started is
        stopped, last things first, whatever others raise meanwhile."""
        self.is_ready = False
        await self._stops.aclose()

    async def crash(self) -> None:
        """End as after a kill, for tests: connections are cut, and files are left as they are, without the marker, so
        that the next start has to recover. Only the locks are given back, as the kernel would."""
        self._is_crash = True
        await self.stop()

    def _stop_later(self, stop: Callable[[], object], parts: contextlib.AsyncExitStack | None = None) -> None:
        """Have `stop` called at the end, before whatever was started earlier; what it raises is logged."""

        async def attempt() -> None:
            try:
                pending = stop()
                if inspect.isawaitable(pending):
                    await pending
            except Exception:
                logger.exception("a part of the broker failed to stop (%s)", getattr(stop, "__qualname__", stop))

        (self._stops if parts is None else parts).push_async_callback(attempt)

    async def _end_connections(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self.connections:
            if self._is_crash:
                connection.abort()
            else:
                connection.close()
        await asyncio.sleep(0)  # lets transports flush and protocols hear of it
        await asyncio.gather(*self.connections.sending, return_exceptions=True)
        for listener in self._listeners:
            listener.socket.close()

    async def _end_logs(self) -> None:
        if self._is_crash:
            await asyncio.to_thread(self.log_manager.abandon)
        else:
            await asyncio.to_thread(self.log_manager.close, self._broker_epoch())

    async def settle(self) -> None:
        """Run every timer that is due by the clock, and return when the work that they started is done: for who moves
        the clock."""
        while True:
            self.timers.fire_due()
            work = [
                *self.housekeeping.running(),
                *self.replicas.flusher.under_way(),
                *self.groups.runtime.running(),
                *self.transactions.runtime.running(),
            ]
            if not work:
                return
            await asyncio.wait(work)

    def _fail(self, reason: str) -> None:
        logger.critical("the broker cannot go on: %s", reason)
        self._loop.call_soon_threadsafe(self._on_failure, reason)

    # --- producer ids -----------------------------------------------------------------------------

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        """The next block. Where the metadata store may have forgotten, or be that of an earlier day, the logs are asked
        first which ids are used: a producer that gets one of another has its records taken for retries.

        Errors: ApiError COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self._highest_producer_id is None and not (self._goes_on_after_stop and self.controller.knows_producer_ids):
            used = self.transactions.producer_ids() | await asyncio.to_thread(self.log_manager.producer_ids)
            self._highest_producer_id = highest_handed_out(used)
        above = -1 if self._highest_producer_id is None else self._highest_producer_id
        return await self.controller.allocate_producer_ids(above)

    # --- configuration ----------------------------------------------------------------------------

    def _config_changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics":
            self.replicas.reconfigure(name)
        elif entity_type == "brokers" and name in (DEFAULT_ENTITY, str(self.node_id)):
            self.config.change(self.topic_configs.dynamic_broker_configs())

    def _set_transaction_version(self, level: int) -> None:
        self.transactions.settings = replace(self.transactions.settings, transaction_version=level)

    # --- housekeeping -----------------------------------------------------------------------------

    def metric_sources(self) -> "MetricSources":
        """What /metrics tells of."""
        from barnabas.broker.http.metrics_page import MetricSources

        return MetricSources(
            self.services, self.metrics, self.compaction, self._activities(), is_ready=lambda: self.is_ready
        )

    def _activities(self) -> "list[SetAside[Any]]":
        """Upkeep that may have set somebody aside."""
        return [
            self.compaction.set_aside,
            self.retention.set_aside,
            self.replicas.flusher.set_aside,
            self.replicas.set_aside_settings,
            self.log_jobs.set_aside,
            self.groups.set_aside,
            self.groups.set_aside_offsets,
            self.groups.runtime.set_aside,
            self.transactions.runtime.set_aside,
            self.transactions.set_aside_aborting,
            self.transactions.set_aside_ending,
            self.transactions.set_aside_expiring,
            self.configs.set_aside,
            self.controller.set_aside,
            self.housekeeping.set_aside,
        ]

    def _start_housekeeping(self) -> None:
        self._watch_lag(self._loop.time())
        self._stop_later(lambda: self._lag_timer.cancel())
        self._stop_later(self.housekeeping.close)
        self._schedule_jobs()
        # Whatever takes long is given up first, so that no job has to be waited for.
        for stop in (self.replicas.flusher.stop, self.retention.stop, self.compaction.stop):
            self._stop_later(stop)

    def _schedule_jobs(self) -> None:
        config, every = self.config, self.housekeeping.every
        every("closing idle connections", IDLE_CHECK_INTERVAL_MS, self._close_idle_connections)
        self.log_jobs.schedule(self.housekeeping, config)
        every(
            "aborting transactions that timed out",
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.transactions.abort_timed_out,
        )
        every(
            "removing expired transactional ids",
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.transactions.remove_expired,
        )

    def _close_idle_connections(self) -> None:
        self.connections.close_idle(self._socket_clock.monotonic_ms())

    def _watch_lag(self, expected: float) -> None:
        """How late the loop runs a timer that is due: what every request waits at least."""
        now = self._loop.time()
        self.metrics.event_loop_lag_seconds = max(0.0, now - expected)
        self._lag_timer = self._loop.call_later(LAG_CHECK_INTERVAL_S, self._watch_lag, now + LAG_CHECK_INTERVAL_S)


def _group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(**{field.name: getattr(config, field.name) for field in fields(GroupSettings)})


def _transaction_settings(config: BrokerConfig) -> TransactionSettings:
    given = (field.name for field in fields(TransactionSettings) if "key" in field.metadata)
    return TransactionSettings(**{name: getattr(config, name) for name in given})


async def run(config: BrokerConfig) -> int:
    """Run a broker until SIGTERM or SIGINT; returns the process's exit status (1 after a failure that ended it)."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    status = 0

    def fail(reason: str) -> None:
        nonlocal status
        status = 1
        stopping.set()

    def stop(_number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # after a start that was refused the loop is closed
            loop.call_soon_threadsafe(stopping.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not the loop's handlers: those go when it closes, and a signal that comes then would end the process.
        signal.signal(number, stop)
    started = time.perf_counter()
    broker = Broker(config, on_failure=fail)
    loop.call_later(60, gc.enable)  # a start may have to wait for long, for ZooKeeper, say
    await broker.start()
    # What a broker is made of stays: Python need not look for garbage in it, neither while it comes to be (`main` in
    # __main__.py) nor ever after. Each time it did, the event loop stood still (docs/performance.md).
    gc.freeze()
    gc.enable()
    sys.stdout.write(broker.ready_line() + "\n")
    sys.stdout.flush()
    logger.info("started in %.0f ms", (time.perf_counter() - started) * 1000)
    await stopping.wait()
    await broker.stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # what is left is to exit with the status of this stop
    return status
