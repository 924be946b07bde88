"""The broker as a whole: its parts, and the order in which they start and stop.

Start: bind listeners (so that port 0 has become a number), open the log directories, open the metadata store, let the
controller register the broker and assign partitions, then listen. Stop goes the other way, and ends with the
clean-shutdown file.

If there may be other brokers, this broker serves its inter-broker listener before it registers, because a controller
elsewhere then sends it requests; it serves clients when it has received all metadata. Before it stops, it transfers its
leaderships.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.dispatch import Dispatcher
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.auto_topics import AutoTopicCreation
from barnabas.broker.cluster.controller_commands import ControllerCommands
from barnabas.broker.cluster.features import SUPPORTED_FEATURES, ClusterFeatures
from barnabas.broker.cluster.local_channel import LocalChannel
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, MetadataCache
from barnabas.broker.cluster.metadata_store import MetadataStore, find_metadata_file
from barnabas.broker.cluster.producer_ids import ProducerIdBlocks, ProducerIds
from barnabas.broker.configuration.changes import ConfigChanges
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.configuration.settings import settings_of
from barnabas.broker.configuration.topics import DEFAULT_ENTITY, DEFAULTS_OF_TOPICS, TopicConfigs, log_config
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.internal_topics import InternalTopics
from barnabas.broker.coordinators.transactions.local_markers import LocalMarkers
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.environment import Environment
from barnabas.broker.handlers import find_handler, find_handler_in_cluster
from barnabas.broker.network.connection import Interceptor
from barnabas.broker.network.connections import Connections
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.network.socket_server import SocketServer
from barnabas.broker.observability.event_loop_lag import EventLoopLag
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.fetch_sessions import FetchSessions
from barnabas.broker.replication.internal_topic_log import InternalTopicLog
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.broker_secrets import (
    SECRET_BYTES,
    BrokerSecrets,
    RegisteredSecrets,
    SharedSecret,
    credentials_of_broker,
    digest_of,
)
from barnabas.broker.services import Services
from barnabas.broker.timers import Timers
from barnabas.broker.upkeep.compaction import Compaction
from barnabas.broker.upkeep.disk_space import DiskSpace
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.broker.upkeep.log_jobs import LogJobs
from barnabas.broker.upkeep.retention import Retention
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.controller.topics import NewTopic, TopicDefaults, TopicOutcome
from barnabas.set_aside import SetAside
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.recovery.opening import OpeningGivenUp
from barnabas.timers import time_limit
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.cluster.former_session import SessionNote
    from barnabas.broker.coordinators.transactions.coordinator_sender import CoordinatorSender
    from barnabas.broker.coordinators.transactions.markers import MarkerWriter
    from barnabas.broker.http.figures import MetricSources
    from barnabas.broker.http.server import HttpServer
    from barnabas.broker.other_brokers import OtherBrokers
    from barnabas.controller.channel import BrokerChannel

logger = logging.getLogger(__name__)

IDLE_CHECK_INTERVAL_MS = 2_000

TOLD_NOTHING_MS = 10_000
"""The time for which a starting broker waits for the controller before it logs a warning."""

WELCOME_MS_MAX = 1_500
"""The time for which an early client waits before it is refused: less than the 2 s in which kafka-python 2 expects the
brokers' versions (`api_version_auto_timeout_ms`)."""

_SHARED_LISTENER = (
    "brokers show each other their secrets unencrypted on listener %s, and brokers of Apache Kafka have none: let only"
    " brokers reach it (inter.broker.listener.name), over a network that you trust. WriteTxnMarkers, which"
    " administrators send, too, is taken from everybody, on every listener"
)

_TOLD_NOTHING = "this broker has not been told of its cluster yet"

REPLICA_FETCH_SESSIONS_MAX = 1_000
"""The limit of fetch sessions of other brokers, which have a few each; it is separate from that of consumers."""


class Broker:
    """One broker; create it inside a running event loop, which then owns it.

    `on_failure` is called once, with a reason, when the broker cannot go on (a disk failed): the caller should end the
    process. `environment` is the broker's environment; by default the machine's own.
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
        self._threads = self.environment.threads
        self._socket_clock = self.environment.socket_clock or self.clock
        self.node_id = config.node_id
        self.cluster_id = ""
        self.is_ready = False
        self._on_failure = on_failure or (lambda reason: None)
        self._loop = asyncio.get_running_loop()
        self._http: HttpServer | None = None
        self._stops = contextlib.AsyncExitStack()
        """The functions that stop the started parts, called in reverse order."""
        self._members = contextlib.AsyncExitStack()
        """Like `_stops`, for the parts that survive the loss of a metadata session. Closed after
        `MetadataStore.stay_out`, though some of them start later: a part that is stopping must not receive a new
        session.
        """
        self._is_crash = False
        self._opening: asyncio.Task[Any] | None = None
        """The wait of the start that can be cancelled: for the end of a former session, the first metadata session, or
        the controller's first metadata."""
        self._may_have_others = config.zookeeper_connect is not None or self.environment.metadata_store is not None
        """Whether other brokers can share the metadata store."""
        self._secret = self.environment.broker_secret or self._new_secret()
        """The secret by which this broker authenticates to others."""
        self._serves_clients = asyncio.Event()
        self._broker_epoch: Callable[[], int] = lambda: -1
        """The epoch of the last registration; -1 as long as there is none."""

        work_s = self.environment.work_s
        self.timers = Timers(self.clock, self._loop, work_s)
        is_one_time = self._socket_clock is self.clock
        self._network_timers = self.timers if is_one_time else Timers(self._socket_clock, self._loop, work_s)
        """For responses of other brokers: a test that lets no time pass still waits for them in real time."""
        self.housekeeping = Housekeeping(self.timers, self.clock)
        self._network_housekeeping = (
            self.housekeeping if is_one_time else Housekeeping(self._network_timers, self._socket_clock)
        )
        self.metadata = MetadataCache(config.node_id, self.clock)
        self.metrics = RequestMetrics()
        self.unforeseen = UnforeseenErrors(self.clock)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, self._new_session_id)
        self.replica_fetch_sessions = FetchSessions(REPLICA_FETCH_SESSIONS_MAX, self._new_session_id)
        self.connections = Connections(
            self.config,
            self._threads,
            self._socket_clock,
            work_s,
            is_reserved_descriptor=self.environment.is_reserved_descriptor,
        )
        self.socket_server = SocketServer(self.config, self.environment.network, self.connections, self.timers)
        self.dispatcher: Dispatcher | None = None
        """Created with the services, while the broker starts."""
        self._interceptor: Interceptor | None = None
        self._others: OtherBrokers | None = None
        self.handlers_instead: dict[int, Handler[Any, Any]] = {}
        """For tests: handlers that replace those of some APIs, by key. Set before the start."""
        self._goes_on_after_stop = False
        """Whether the metadata store is known to be no older than the logs were at their last clean stop."""

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and listen. Raises OSError (address or directory in use), ConfigError, StorageError."""
        self._threads.begin()
        try:
            self._stops.callback(self.socket_server.close)
            self.socket_server.bind()
            await self._open_logs()
            await self._open_coordination()
            await self._join_cluster()
            self.cluster_id = self.controller.cluster_id
            self._goes_on_after_stop = 0 <= self.log_manager.previous_broker_epoch < self._broker_epoch()
            self.log_manager.set_cluster_id(self.cluster_id)
            if self._may_have_others:
                await self._be_told()
            self.replicas.configure_unclaimed()
            await self._start_coordinators()
            self._start_housekeeping()
            if self.config.barnabas_http_address is not None:
                await self._start_http(self.config.barnabas_http_address)
            self._stops.push_async_callback(self._end_connections)
            self._serves_clients.set()
            await self._listen()
            if self._may_have_others:
                self._stop_later(self._hand_over)
        except BaseException:
            await self.stop()
            raise
        self.is_ready = True
        if self._http is not None:
            self._http.joining.look()

    async def _open_logs(self) -> None:
        """Lock the log directories and load the logs; after a crash this recovers the logs' tails. If the former
        process was killed, its metadata session is ended before, so that other replicas can take over its partitions.
        """
        self.log_manager = LogManager(
            LogEnvironment(
                self.environment.files,
                self.clock,
                self._threads,
                self.environment.random_id,
                random_below=self.environment.random_below,
                on_failure=self._fail,
            ),
            LogManagerSettings(
                self.config.log_dirs,
                lambda topic: log_config(self.config, {}, {}),  # until the controller has sent the topics
                node_id=self.node_id,
                cluster_id=self.config.cluster_id,
                producer_id_expiration_ms=self.config.producer_id_expiration_ms,
                threads_per_directory=self.config.num_recovery_threads_per_data_dir,
            ),
        )
        self._stops.push_async_callback(self._end_logs)
        self._stop_later(self.timers.close)
        self._stop_later(self._network_timers.close)
        self.config.follow(BrokerConfig.num_recovery_threads_per_data_dir, self.log_manager.set_threads_per_directory)
        self.config.follow(BrokerConfig.producer_id_expiration_ms, self.log_manager.set_producer_id_expiration_ms)
        await self._threads.call(self.log_manager.lock)
        self._make_store()
        self._opening = self._store.end_former_session()
        if self._opening is not None:
            await asyncio.wait([self._opening])  # `open` raises its exception
            self._opening = None
        try:
            await self._threads.call(self.log_manager.load)
        except OpeningGivenUp:
            raise asyncio.CancelledError from None
        if self.log_manager.previous_broker_epoch >= 0:
            logger.info("the last stop was clean, at broker epoch %d", self.log_manager.previous_broker_epoch)

    def _make_store(self) -> None:
        logs = self.log_manager
        self._note = self._session_note()
        self._store = MetadataStore(
            self.config,
            self.clock,
            self.timers,
            lambda: self._threads.call(
                find_metadata_file, logs.directories, logs.found_cluster_id, logs.missing_directories
            ),
            self.environment.store_worker,
            self._fail,
            known_cluster=lambda: logs.found_cluster_id,
            is_durable=self.environment.files.is_durable,
            shared=self.environment.metadata_store,
            open_session=self.environment.open_session,
            note=self._note,
        )
        self._stop_later(self._store.close)

    async def _open_coordination(self) -> None:
        self._opening = asyncio.create_task(self._store.open(), name="metadata store")
        self._session = await self._opening
        self._opening = None
        self.configs = ConfigRepository(self._session, self.clock, self.timers)
        self.topic_configs = TopicConfigs(self.config, self.configs)
        self.configs.subscribe(self._config_changed)

    def _session_note(self) -> "SessionNote | None":
        """The note of the ZooKeeper session for the next process."""
        if self.config.zookeeper_connect is None:
            return None
        from barnabas.broker.cluster.former_session import SessionNote

        return SessionNote(
            self.log_manager,
            self.environment.boot_id(),
            lambda: self.log_manager.was_closed or self.config.barnabas_flush_before_ack,
        )

    async def _join_cluster(self) -> None:
        """Register, and accept the partitions that the controller assigns."""
        self._stop_later(self._close_peers)
        self._stops.push_async_callback(self._members.aclose)
        self._make_parts()
        # While these parts stop, no new session may be opened and passed to them.
        self._stop_later(self._store.stay_out)
        self._stop_later(self.replicas.close, self._members)
        self._stop_later(self.configs.stop, self._members)
        await self.configs.start()
        self.config.change(self.topic_configs.dynamic_broker_configs())
        self._make_services()
        self._stop_later(self.commands.stop, self._members)
        self._stop_later(self.controller.stop, self._members)
        if self._may_have_others:
            self._stops.push_async_callback(self._end_connections)
            await self._listen_to_brokers()
        await self.controller.start()

    async def _be_told(self) -> None:
        """Wait until the controller, in any broker, has sent all topics: otherwise clients would take unknown topics
        for missing ones."""
        self._opening = asyncio.create_task(self.commands.knows_everything.wait(), name="first metadata")
        silence = self.timers.call_later(TOLD_NOTHING_MS, self._warn_of_silence)
        try:
            await self._opening
        finally:
            silence.cancel()
        self._opening = None
        if self._note is not None:
            await self._note.lacks_nothing()
        self.controller.lacks_nothing()

    def _warn_of_silence(self) -> None:
        name = self.config.inter_broker_listener_name
        addresses = [f"{each.host}:{each.port}" for each in self._endpoints() if each.listener == name]
        logger.warning(
            "the controller has not told this broker anything for %d s, and it serves nobody before: other brokers have"
            " to reach it at %s (advertised.listeners)",
            TOLD_NOTHING_MS // 1000,
            ", ".join(addresses),
        )

    async def _start_coordinators(self) -> None:
        self._stop_later(self.groups.stop, self._members)
        await self.groups.start()
        self._stop_later(self.transactions.stop, self._members)
        await self.transactions.start()
        self._stop_later(self.auto_topics.close, self._members)

    def _make_parts(self) -> None:
        """Create the parts that make this broker a member of its cluster, each from those before it."""
        self.internal_topics = InternalTopics(
            self.config, self.topic_configs, self.metadata, is_alone=not self._may_have_others
        )
        self._make_replicas()
        self._make_coordinators()
        self.features = ClusterFeatures(self._set_transaction_version)
        self._make_controller()

    def _make_replicas(self) -> None:
        self.replicas = ReplicaManager(
            self.node_id,
            self.log_manager,
            self.metadata,
            self.clock,
            self.topic_configs.log_config,
            on_elected=self.internal_topics.elected,
            on_resigned=self.internal_topics.resigned,
            make_leaderships=lambda: self.others.leaderships(),
            make_fetchers=lambda: self.others.fetchers(self.log_manager, self.replicas.flusher.flush),
            flush_before_ack=self.config.barnabas_flush_before_ack,
        )
        self.config.follow_any(DEFAULTS_OF_TOPICS, self.replicas.reconfigure_all)
        self.retention = Retention(self.replicas, self.log_manager, self.clock)
        self.compaction = Compaction(
            self.replicas,
            self.clock,
            self.log_manager,
            self.config,
            self.environment.work_s,
            self.environment.interpreter,
        )
        self.disk_space = DiskSpace(self.log_manager, self.config.barnabas_disk_reserve_bytes, self.replicas)
        self.log_jobs = LogJobs(
            self.log_manager, self.replicas, self.retention, self.compaction, self.disk_space, self.clock
        )

    def _make_coordinators(self) -> None:
        self.groups = GroupService(
            InternalTopicLog(self.replicas, GROUP_METADATA_TOPIC),
            self.timers,
            self.clock,
            settings_of(GroupSettings, self.config),
            self.config.offsets_topic_num_partitions,
            new_id=self.environment.random_id,
        )
        self.transaction_markers = LocalMarkers(self.replicas, self.groups, self.clock)
        self.transactions = TransactionService(
            InternalTopicLog(self.replicas, TRANSACTION_STATE_TOPIC),
            self._markers(),
            self.timers,
            self.clock,
            settings_of(TransactionSettings, self.config),
            self.config.transaction_state_log_num_partitions,
            next_producer_id=lambda: self.producer_ids.next(),
        )
        self.transaction_verification = TransactionVerification(
            self.replicas,
            self.transactions,
            self.config,
            self.clock,
            self.timers,
            self._coordinator_sender(),
        )
        self.internal_topics.attach(self.groups, self.transactions)

    def _make_controller(self) -> None:
        self.commands = ControllerCommands(
            self.node_id,
            self.replicas,
            self.metadata,
            self.configs,
            lambda: self._broker_epoch(),  # of the controller that is created next
            self.internal_topics.metadata_updated,
            lambda: self.controller.registered(),  # of the controller that is created next
            lambda: self.controller.elected(),  # likewise
            self._network_timers,
        )
        self.controller = Controller(
            self._session,
            BrokerRegistration(
                self.node_id,
                self._endpoints(),
                self.config.broker_rack,
                features=SUPPORTED_FEATURES,
                may_lack_records=self._may_lack_records(),
                damaged=self.log_manager.damaged(),
                min_insync_replicas=self.config.min_insync_replicas,  # from the file: dynamic ones are in the store
                secret_digest=self._registered_digest(),
            ),
            self._channel(),
            self.clock,
            ControllerSettings(
                TopicDefaults(self.config.num_partitions, self.config.default_replication_factor),
                delete_topic_enable=self.config.delete_topic_enable,
                unclean_leader_election_enable=self.config.unclean_leader_election_enable,
                auto_leader_rebalance_enable=self.config.auto_leader_rebalance_enable,
                leader_imbalance_check_interval_ms=self.config.leader_imbalance_check_interval_seconds * 1000,
                inter_broker_listener=self.config.inter_broker_listener_name,
                cluster_id=self.config.cluster_id,
            ),
            random_bytes=self.environment.random_bytes,
            configs=self.configs,
            timers=self.timers,
            network_timers=self._network_timers,
            on_registrations=self.features.finalize,
        )
        self._broker_epoch = lambda: self.controller.broker_epoch
        self.config.follow(
            BrokerConfig.unclean_leader_election_enable, self.controller.set_unclean_leader_election_enable
        )
        self._store.follow(self.configs, self.controller)
        self.producer_ids = ProducerIds(
            ProducerIdBlocks(
                self._allocate_producer_ids,
                self._used_producer_ids,
                lambda: self._goes_on_after_stop and self.controller.knows_producer_ids,
            ).next
        )
        self.auto_topics = AutoTopicCreation(
            self._create_topics,
            self.internal_topics.new_topic,
            self.internal_topics.waits_for_brokers,
            self.clock,
        )

    def _may_lack_records(self) -> bool:
        before_a_crash = self._note is not None and self._note.may_lack_records
        return before_a_crash or (self._may_have_others and self.log_manager.lost.may_be_any)

    async def _create_topics(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        timeout_ms = self.config.request_timeout_ms
        if self.controller.is_active or not self._may_have_others:
            return await self.controller.create_topics(topics, validate_only=False, timeout_ms=timeout_ms)
        return await self.others.create_topics(topics, timeout_ms)

    async def _allocate_producer_ids(self, above: int) -> tuple[int, int]:
        """A block of producer ids greater than `above`, allocated by the controller. If the controller's block is
        lower, the store is older than the logs here, and this broker corrects it."""
        if self._may_have_others and not self.controller.is_active:
            first, last = await self.others.allocate_producer_ids()
            if first > above:
                return first, last
        return await self.controller.allocate_producer_ids(above)

    async def _used_producer_ids(self) -> set[int]:
        return self.transactions.producer_ids() | await self._threads.call(self.log_manager.producer_ids)

    def _make_services(self) -> None:
        """Create the services for handlers, now that the broker is known to its cluster."""
        self.services = Services(
            node_id=self.node_id,
            clock=self.clock,
            network_clock=self._socket_clock,
            timers=self.timers,
            unforeseen=self.unforeseen,
            metrics=self.metrics,
            connections=self.connections,
            config=self.config,
            configs=self.configs,
            topic_configs=self.topic_configs,
            config_changes=ConfigChanges(self.node_id, self.topic_configs, self.configs, self.metadata),
            metadata=self.metadata,
            features=self.features,
            broker_secrets=self._broker_secrets(),
            commands=self.commands,
            controller=self.controller,
            auto_topics=self.auto_topics,
            producer_ids=self.producer_ids,
            log_manager=self.log_manager,
            disk_space=self.disk_space,
            replicas=self.replicas,
            fetch_sessions=self.fetch_sessions,
            replica_fetch_sessions=self.replica_fetch_sessions,
            groups=self.groups,
            transactions=self.transactions,
            transaction_markers=self.transaction_markers,
            transaction_verification=self.transaction_verification,
        )
        # If there can be no other broker, requests between brokers are not served.
        handlers = self._find_handler_in_cluster if self._may_have_others else find_handler
        found = self._with_handlers_instead(handlers) if self.handlers_instead else handlers
        self.dispatcher = Dispatcher(self.services, found, self._socket_clock, self.metrics)
        self.dispatcher.intercept(self._interceptor)

    def _with_handlers_instead(
        self, handlers: Callable[[int], Handler[Any, Any] | None]
    ) -> Callable[[int], Handler[Any, Any] | None]:
        def handler_of(key: int) -> Handler[Any, Any] | None:
            handler = handlers(key)
            return self.handlers_instead.get(key, handler)

        return handler_of

    async def _listen(self) -> None:
        """Serve on all listeners."""
        assert self.dispatcher is not None, "services come first"
        await self.socket_server.listen(self.dispatcher)

    async def _listen_to_brokers(self) -> None:
        """Serve on the inter-broker listener, which is for brokers alone if a parent has given them a secret."""
        assert self.dispatcher is not None, "services come first"
        name = self.config.inter_broker_listener_name
        if self.environment.broker_secret is not None:
            from barnabas.broker.api.authentication import AuthenticatedRequests

            self.connections.brokers_show_secret = True
            await self.socket_server.listen(AuthenticatedRequests(self.dispatcher), [name])
            return
        await self.socket_server.listen(self.dispatcher, [name])
        if not all(each.is_loopback for each in self.config.listeners if each.name == name):
            logger.warning(_SHARED_LISTENER, name)

    def _new_secret(self) -> str:
        return self.environment.random_bytes(SECRET_BYTES).hex() if self._may_have_others else ""

    def _registered_digest(self) -> str:
        """The digest of this broker's secret for its registration, unless all brokers share one."""
        return digest_of(self._secret) if self._secret and self.environment.broker_secret is None else ""

    def _broker_secrets(self) -> BrokerSecrets:
        """Authenticates other brokers."""
        if self.environment.broker_secret is not None:
            return SharedSecret(self.environment.broker_secret)
        return RegisteredSecrets(self.node_id, lambda: self.controller.secret_digests, self.controller.look_up)

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Pass requests through `interceptor` from now on, or with None directly to their handlers: for tests. May be
        called before the start."""
        self._interceptor = interceptor
        if self.dispatcher is not None:
            self.dispatcher.intercept(interceptor)

    def _find_handler_in_cluster(self, key: int) -> Handler[Any, Any] | None:
        """Like `find_handler_in_cluster`; before this broker has received all metadata, it serves only controllers."""
        handler = find_handler_in_cluster(key)
        if handler is None or handler.is_inter_broker or self._serves_clients.is_set():
            return handler
        if key == ApiVersionsRequest.API_KEY:
            return replace(handler, handle=partial(self._welcome, handler.handle))
        raise CloseConnection(_TOLD_NOTHING)

    def _welcome(self, answer: Callable[..., Any], request: Message, context: RequestContext) -> Any:
        """Delay the first request of a client until this broker has received all metadata, which takes a moment: a
        client that is refused looks for its partitions elsewhere, before other leaders have been elected, and not again
        for a second."""
        if self._serves_clients.is_set():
            return answer(request, context)
        return self._welcome_later(answer, request, context)

    async def _welcome_later(self, answer: Callable[..., Any], request: Message, context: RequestContext) -> Any:
        try:
            async with time_limit(self.timers, WELCOME_MS_MAX):
                await self._serves_clients.wait()
        except TimeoutError:
            raise CloseConnection(_TOLD_NOTHING) from None
        return answer(request, context)

    def _endpoints(self) -> tuple[EndPoint, ...]:
        return tuple(
            EndPoint(listener.name, listener.advertised.host, listener.advertised.port)
            for listener in self.socket_server.advertised
        )

    async def _start_http(self, address: str) -> None:
        from barnabas.broker.http.server import HttpServer

        self._http = HttpServer(
            self.metric_sources(),
            address,
            self.environment.network,
            self._threads,
            is_reserved_descriptor=self.environment.is_reserved_descriptor,
        )
        self._stop_later(self._http.stop)
        await self._http.start()

    # --- other brokers ----------------------------------------------------------------------------

    @property
    def others(self) -> "OtherBrokers":
        """The parts that deal with other brokers; created when first needed."""
        if self._others is None:
            from barnabas.broker.other_brokers import OtherBrokers

            self._others = OtherBrokers(
                self.node_id,
                self.config,
                self.environment.network,
                self.metadata,
                self.clock,
                self._socket_clock,
                self._network_timers,
                lambda: self.controller,
                self.configs.overrides,
                credentials_of_broker(self.node_id, self._secret),
            )
        return self._others

    def _close_peers(self) -> None:
        if self._others is not None:
            self._others.close()

    def _channel(self) -> "BrokerChannel":
        """Create the controller's channel to brokers."""
        local = LocalChannel(self.node_id, self.commands)
        return self.others.channel(local) if self._may_have_others else local

    def _markers(self) -> "MarkerWriter":
        """Writes transaction markers: here, and in partitions that others lead."""
        if not self._may_have_others:
            return self.transaction_markers
        sender = self.others.marker_sender(self.transaction_markers)
        self._stop_later(sender.close, self._members)
        return sender

    def _coordinator_sender(self) -> "CoordinatorSender | None":
        """Sends requests to coordinators in other brokers; None without other brokers."""
        if not self._may_have_others:
            return None
        sender = self.others.coordinator_sender(self.transactions.runtime.partition_for)
        self._stop_later(sender.close, self._members)
        return sender

    async def _hand_over(self) -> None:
        if not self._is_crash:
            await self.others.hand_over()

    # --- stopping ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly: no more requests, everything flushed, the clean-shutdown file written. All started parts are
        stopped, in reverse order, even if some of them raise."""
        self.is_ready = False
        await self._stops.aclose()

    def give_up_start(self) -> None:
        """Cancel a start that is still recovering logs after a crash, or waiting for ZooKeeper: `start` raises
        CancelledError, with everything released. Any other start is soon done and continues, unless ZooKeeper becomes
        unavailable while the broker joins its cluster: then it waits for that."""
        self.log_manager.give_up_opening()
        if self._opening is not None and self.config.zookeeper_connect is not None:
            self._opening.cancel()

    async def crash(self) -> None:
        """End as after a kill, for tests: connections are cut, and files are left as they are, without the
        clean-shutdown file, so that the next start has to recover. Only the locks are released, as the kernel would."""
        self._is_crash = True
        await self.stop()

    def _stop_later(self, stop: Callable[[], object], parts: contextlib.AsyncExitStack | None = None) -> None:
        """Call `stop` at the end, before the parts that were started earlier stop; its exceptions are logged."""

        async def attempt() -> None:
            try:
                pending = stop()
                if inspect.isawaitable(pending):
                    await pending
            except Exception:
                logger.exception("a part of the broker failed to stop (%s)", getattr(stop, "__qualname__", stop))

        (self._stops if parts is None else parts).push_async_callback(attempt)

    async def _end_connections(self) -> None:
        await self.socket_server.stop(cuts=self._is_crash)

    async def _end_logs(self) -> None:
        if self._is_crash:
            await self._threads.call(self.log_manager.abandon)
        else:
            await self._threads.call(self.log_manager.close, self._broker_epoch())

    async def settle(self) -> None:
        """Run every timer that is due by the clock, and return when the work that they started is done: for tests that
        move the clock."""
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

    # --- configuration ----------------------------------------------------------------------------

    def _config_changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics":
            self.replicas.reconfigure(name)
        elif entity_type == "brokers" and name in (DEFAULT_ENTITY, str(self.node_id)):
            self.config.change(self.topic_configs.dynamic_broker_configs())

    def _set_transaction_version(self, level: int) -> None:
        self.transactions.settings = replace(self.transactions.settings, transaction_version=level)

    # --- housekeeping -----------------------------------------------------------------------------

    def _new_session_id(self) -> int:
        return self.environment.random_below(2**31 - 1) + 1

    def metric_sources(self) -> "MetricSources":
        """The parts whose figures are in /metrics."""
        from barnabas.broker.http.figures import MetricSources

        return MetricSources(
            self.services,
            self.metrics,
            self.compaction,
            self._activities,
            is_ready=lambda: self.is_ready,
            peers=lambda: None if self._others is None else self._others.peers,
        )

    def _activities(self) -> "list[SetAside[Any]]":
        """Upkeep that may have set logs, groups or the like aside."""
        fetchers, leaderships = self.replicas.fetchers, self.replicas.leaderships
        of_network = self._network_housekeeping
        return [
            *(() if of_network is self.housekeeping else (of_network.set_aside,)),
            *(() if leaderships is None else (leaderships.alter_partitions.set_aside,)),
            *(() if fetchers is None else (fetchers.set_aside,)),
            self.compaction.set_aside,
            self.retention.set_aside,
            self.replicas.flusher.set_aside,
            self.replicas.set_aside_settings,
            self.replicas.set_aside_isrs,
            self.log_jobs.set_aside,
            self.log_jobs.set_aside_bounds,
            self.metadata.set_aside,
            self.auto_topics.set_aside,
            self.connections.set_aside,
            self.groups.set_aside,
            self.groups.set_aside_offsets,
            self.groups.runtime.set_aside,
            self.transactions.runtime.set_aside,
            self.transactions.set_aside_aborting,
            self.transactions.set_aside_ending,
            self.transactions.set_aside_expiring,
            self.configs.set_aside,
            self.controller.set_aside,
            self.controller.set_aside_brokers,
            self.controller.set_aside_unsendable,
            self.controller.set_aside_answers,
            self.housekeeping.set_aside,
        ]

    def _start_housekeeping(self) -> None:
        lag = EventLoopLag(self._loop, self.metrics)
        lag.start()
        self._stop_later(lag.stop)
        self._stop_later(self.housekeeping.close)
        self._stop_later(self._network_housekeeping.close)
        self._schedule_jobs()
        # Long runs are cancelled first, so that no job has to be waited for.
        for stop in (self.replicas.flusher.stop, self.retention.stop, self.compaction.stop):
            self._stop_later(stop)

    def _schedule_jobs(self) -> None:
        config, every = self.config, self.housekeeping.every
        every("closing idle connections", IDLE_CHECK_INTERVAL_MS, self._close_idle_connections)
        self.log_jobs.schedule(self.housekeeping, self._network_housekeeping, config)
        every("expiring offsets", config.offsets_retention_check_interval_ms, self.groups.expire_offsets)
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
