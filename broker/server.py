"""The broker as a whole: the order in which its parts start and stop.

Start: bind listeners (which turns port 0 into a number), open the log directories, open the metadata store, let the
controller register the broker and assign partitions, then listen. Stop goes the other way, and ends with the
clean-shutdown file.

If there may be other brokers, this broker serves its inter-broker listener before it registers, because a controller in
another broker sends it requests as soon as it is registered. It serves clients once it has received all metadata.
Before it stops, it transfers its leaderships.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.broker.api.dispatch import Dispatcher
from barnabas.broker.api.large_replies import LargeReplies
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata_store import MetadataStore, find_metadata_file
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.listeners import HTTP
from barnabas.broker.configuration.topics import log_config
from barnabas.broker.environment import Environment
from barnabas.broker.foundation import Foundation
from barnabas.broker.handlers import find_handler
from barnabas.broker.network.connection import Interceptor
from barnabas.broker.network.listener import PrincipalSource
from barnabas.broker.network.socket_server import SocketServer
from barnabas.broker.observability.event_loop_lag import EventLoopLag
from barnabas.broker.parts import Parts
from barnabas.broker.stops import Stops
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.broker.welcome import Welcome
from barnabas.controller.state import EndPoint, SecurityProtocol
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.recovery.opening import OpeningGivenUp

if TYPE_CHECKING:
    from barnabas.broker.cluster.former_session import SessionNote
    from barnabas.broker.http.figures import MetricSources
    from barnabas.broker.http.joining import Joining
    from barnabas.broker.http.routes import Route
    from barnabas.broker.http.server import HttpServer
    from barnabas.broker.other_brokers import OtherBrokers
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.controller.coordination.interface import CoordinationStore, OpenSession

logger = logging.getLogger(__name__)

IDLE_CHECK_INTERVAL_MS = 2_000

TLS_FILES_INTERVAL_MS = 5_000
"""The interval at which the files of key stores and trust stores are looked at."""

SILENCE_WARNING_MS = 10_000
"""The time for which a starting broker waits for the controller before it logs a warning."""

_SHARED_LISTENER = (
    "brokers show each other their secrets %s on listener %s, and brokers of Apache Kafka have none: let only"
    " brokers reach it (inter.broker.listener.name), over a network that you trust%s"
)
_WITHOUT_AUTHORIZER = (
    ". Without an authorizer (authorizer.class.name) every client, on every listener, can end open transactions by"
    " WriteTxnMarkers, which administrators send, too"
)


class Broker:
    """One broker; create it inside a running event loop, which then owns it.

    `on_failure` is called once, with a reason, when the broker cannot go on (a disk failed): the caller should end the
    process. `environment` is the broker's environment; by default the machine's own. `start` makes the other parts
    (`parts.py`), which are no attributes before.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._foundation = foundation = Foundation(config, environment or Environment())
        self.node_id = config.node_id
        self.cluster_id = ""
        self.is_ready = False
        self.config = foundation.config
        self.environment = foundation.environment
        self.clock, self.timers = foundation.clock, foundation.timers
        self.metadata = foundation.metadata
        self.metrics = foundation.metrics
        self.unforeseen = foundation.unforeseen
        self.connections, self.tls = foundation.connections, foundation.tls
        self._secret = foundation.secret
        self._threads = self.environment.threads
        self._on_failure = on_failure or (lambda reason: None)
        self._loop = asyncio.get_running_loop()
        self.socket_server = SocketServer(
            self.config, self.environment.network, self.connections, self.timers, foundation.tls
        )
        self.housekeeping = Housekeeping(self.timers, self.clock)
        self._network_housekeeping = (
            self.housekeeping
            if foundation.network_timers is self.timers
            else Housekeeping(foundation.network_timers, foundation.network_clock)
        )
        self.welcome = Welcome(self.timers)
        self.handlers_instead: dict[int, Handler[Any, Any]] = {}
        """For tests: handlers that replace those of some APIs, by key. Set before the start."""
        self.before_clients: Callable[[], Awaitable[None]] | None = None
        """Awaited before clients can connect; what it raises ends the start. Set before the start."""
        self.more_routes: Callable[[], Sequence[Route]] = tuple
        """Further routes of the HTTP port. Set before the start."""
        self.dispatcher: Dispatcher | None = None
        """Made with the parts, while the broker starts."""
        self._interceptor: Interceptor | None = None
        self._parts: Parts | None = None
        self._http: HttpServer | None = None
        self._joining: Joining | None = None
        self._stops = Stops()
        self._is_crash = False
        self._opening: asyncio.Task[Any] | None = None
        """The task that `start` waits for and `give_up_start` may cancel: it waits for the end of a former session, for
        the first metadata session, or for the controller's first metadata."""

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and listen. Raises OSError (address or directory in use), ConfigError, StorageError."""
        self._threads.begin()
        try:
            self._stops.callback(self.socket_server.close)
            self.socket_server.bind()
            await self._open_logs()
            parts = self._make_parts(await self._open_session())
            await self._join_cluster(parts)
            if self._foundation.may_have_others:
                await self._await_first_metadata()
            self.replicas.configure_unclaimed()
            await self._start_coordinators(parts)
            self._start_housekeeping(parts)
            if self.before_clients is not None:
                self.welcome.serves_clients.set()  # its requests are those of a client
                await self.before_clients()
            if self.config.barnabas_http_address is not None:
                await self._start_http(self.config.barnabas_http_address)
            self._stops.push_async_callback(self._end_connections)
            self.welcome.serves_clients.set()
            await self._listen([each.name for each in self.config.listeners])
            if self._foundation.may_have_others:
                self._stops.later(self._hand_over)
        except BaseException:
            await self.stop()
            raise
        self.is_ready = True
        if self._joining is not None:
            self._joining.look()

    async def _open_logs(self) -> None:
        """Lock the log directories and load the logs; after a crash this recovers the logs' tails. If the former
        process was killed, its metadata session is ended before the logs are loaded, so that other replicas can take
        over its partitions.
        """
        self.log_manager = self._make_log_manager()
        self._stops.push_async_callback(self._end_logs)
        self._stops.later(self.timers.close)
        self._stops.later(self._foundation.network_timers.close)
        await self._threads.call(self.log_manager.lock)
        self._note = self._session_note()
        self._store = self._make_store(self._note)
        self._stops.later(self._store.close)
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

    def _make_log_manager(self) -> LogManager:
        config, environment = self.config, self.environment
        logs = LogManager(
            LogEnvironment(
                environment.files,
                self.clock,
                self._threads,
                environment.random_id,
                random_below=environment.random_below,
                on_failure=self._fail,
            ),
            LogManagerSettings(
                config.log_dirs,
                lambda topic: log_config(config, {}, {}),  # until the controller has sent the topics
                node_id=self.node_id,
                cluster_id=config.cluster_id,
                producer_id_expiration_ms=config.producer_id_expiration_ms,
                threads_per_directory=config.num_recovery_threads_per_data_dir,
            ),
        )
        config.follow(BrokerConfig.num_recovery_threads_per_data_dir, logs.set_threads_per_directory)
        config.follow(BrokerConfig.producer_id_expiration_ms, logs.set_producer_id_expiration_ms)
        return logs

    def _make_store(self, note: "SessionNote | None") -> MetadataStore:
        logs, environment = self.log_manager, self.environment
        return MetadataStore(
            self.config,
            self.clock,
            self.timers,
            lambda: self._threads.call(
                find_metadata_file, logs.directories, logs.found_cluster_id, logs.missing_directories
            ),
            environment.store_worker,
            self._fail,
            known_cluster=lambda: logs.found_cluster_id,
            is_durable=environment.files.is_durable,
            shared=environment.metadata_store,
            open_session=environment.open_session or self._protected_sessions(),
            note=note,
        )

    def _protected_sessions(self) -> "OpenSession | None":
        """What begins sessions with ZooKeeper, if they are more than plain connections."""
        if not self.config.has_protected_zookeeper:
            return None
        from barnabas.broker.cluster.zookeeper_security import ProtectedSessions

        return ProtectedSessions(self.config, self._threads, self.environment.random_bytes)

    def _session_note(self) -> "SessionNote | None":
        """The note by which the next process finds the ZooKeeper session of this one; None without ZooKeeper."""
        if self.config.zookeeper_connect is None:
            return None
        from barnabas.broker.cluster.former_session import SessionNote

        return SessionNote(
            self.log_manager,
            self.environment.boot_id(),
            lambda: self.log_manager.was_closed or self.config.barnabas_flush_before_ack,
        )

    async def _open_session(self) -> "CoordinationStore":
        self._opening = opening = asyncio.create_task(self._store.open(), name="metadata store")
        self._session = await opening
        self._opening = None
        return self._session

    def _make_parts(self, session: "CoordinationStore") -> Parts:
        """Make the parts of a member of the cluster; those that tests and the toolkit use become attributes."""
        foundation = self._foundation
        self._parts = parts = Parts(
            foundation,
            self.log_manager,
            self._store,
            session,
            self._endpoints(),
            may_lack_records=self._may_lack_records(),
        )
        self.configs, self.topic_configs = parts.configs, parts.topic_configs
        self.internal_topics, self.auto_topics = parts.internal_topics, parts.auto_topics
        self.replicas, self.disk_space = parts.replicas, parts.disk_space
        self.retention, self.compaction = parts.retention, parts.compaction
        self.groups, self.transactions = parts.groups, parts.transactions
        self.commands, self.controller = parts.commands, parts.controller
        self.features, self.producer_ids = parts.features, parts.producer_ids
        self.services = parts.services
        large_replies = LargeReplies(foundation.network_timers, foundation.network_clock)
        self.dispatcher = Dispatcher(
            parts.services, self._find_handler, foundation.network_clock, self.metrics, large_replies
        )
        self.dispatcher.intercept(self._interceptor)
        parts.on_quotas = self._enforce
        return parts

    def _enforce(self, quotas: "ClientQuotas") -> None:
        """Hold clients to their quotas from now on."""
        from barnabas.broker.api.metering import Metering

        assert self.dispatcher is not None
        self.dispatcher.meter(Metering(quotas, self.environment.work_s))
        self.connections.quotas = quotas.connections

    def _may_lack_records(self) -> bool:
        """Whether records that this broker acknowledged may be lost."""
        before_a_crash = self._note is not None and self._note.may_lack_records
        return before_a_crash or (self._foundation.may_have_others and self.log_manager.lost.may_be_any)

    def _find_handler(self, key: int) -> Handler[Any, Any] | None:
        """The handler of an API. If there can be no other broker, requests between brokers are not served."""
        found = self.welcome.find_handler(key) if self._foundation.may_have_others else find_handler(key)
        return self.handlers_instead.get(key, found)

    async def _join_cluster(self, parts: Parts) -> None:
        """Register, and accept the partitions that the controller assigns."""
        self._stops.later(parts.close_peers)
        self._stops.push_async_callback(parts.stops.aclose)
        self._stops.later(self._store.stay_out)
        parts.stops.later(self.replicas.close)
        parts.stops.later(self.configs.stop)
        await self.configs.start()
        parts.apply_dynamic_configs()
        for repository in parts.security_repositories:
            parts.stops.later(repository.stop)
            await repository.start()
        parts.apply_quotas()
        await self._load_tls()
        await parts.load_sasl()
        parts.stops.later(self.commands.stop)
        parts.stops.later(self.controller.stop)
        if self._foundation.may_have_others:
            self._stops.push_async_callback(self._end_connections)
            await self._listen_to_brokers()
        await self.controller.start()
        parts.note_registered()
        self.cluster_id = self.controller.cluster_id
        self.log_manager.set_cluster_id(self.cluster_id)

    async def _load_tls(self) -> None:
        """Read the keys of the listeners, which the dynamic configuration may have replaced, and follow its changes.
        Raises ConfigError."""
        tls = self._foundation.tls
        if tls is None:
            return
        await tls.load()
        self._stops.later(tls.close)
        self.config.follow_listeners(tls.follow_config)

    async def _listen_to_brokers(self) -> None:
        """Serve on the inter-broker listener, which is for brokers alone if a parent has given them a secret."""
        name = self.config.inter_broker_listener_name
        if self.environment.broker_secret is not None:
            await self._listen([name], PrincipalSource.SASL)
            return
        await self._listen([name])
        for listener in self.config.listeners:
            if listener.name == name and not (listener.is_loopback or listener.has_sasl):
                encrypted = "encrypted" if listener.has_tls else "unencrypted"
                markers = "" if self.config.value("authorizer.class.name") else _WITHOUT_AUTHORIZER
                logger.warning(_SHARED_LISTENER, encrypted, name, markers)

    async def _listen(self, names: Sequence[str], principal_source: PrincipalSource | None = None) -> None:
        """Listen on the listeners of these names that do not listen yet. Where clients authenticate by SASL, nothing
        else is served before."""
        assert self.dispatcher is not None
        with_sasl = {each.name for each in self.config.listeners if each.has_sasl}
        if principal_source is PrincipalSource.SASL:
            with_sasl.update(names)
        await self.socket_server.listen(self.dispatcher, [name for name in names if name not in with_sasl])
        if authenticating := [name for name in names if name in with_sasl]:
            from barnabas.broker.api.authentication import AuthenticatedRequests

            requests = AuthenticatedRequests(self.dispatcher, self.services.sasl)
            await self.socket_server.listen(requests, authenticating, principal_source)

    async def _await_first_metadata(self) -> None:
        """Wait until the controller, in this or another broker, has sent all topics. Until then, clients would take
        topics that this broker does not know yet for missing ones."""
        self._opening = asyncio.create_task(self.commands.knows_everything.wait(), name="first metadata")
        silence = self.timers.call_later(SILENCE_WARNING_MS, self._warn_of_silence)
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
            "the controller has sent this broker nothing for %d s, and the broker serves no clients before: other"
            " brokers must be able to reach it at %s (advertised.listeners)",
            SILENCE_WARNING_MS // 1000,
            ", ".join(addresses),
        )

    def _endpoints(self) -> tuple[EndPoint, ...]:
        return tuple(
            EndPoint(
                listener.name,
                listener.advertised.host,
                listener.advertised.port,
                SecurityProtocol[listener.listener.security_protocol],
            )
            for listener in self.socket_server.advertised
        )

    async def _start_coordinators(self, parts: Parts) -> None:
        parts.stops.later(self.groups.stop)
        await self.groups.start()
        parts.stops.later(self.transactions.stop)
        await self.transactions.start()
        parts.stops.later(self.auto_topics.close)

    def _start_housekeeping(self, parts: Parts) -> None:
        lag = EventLoopLag(self._loop, self.metrics)
        lag.start()
        self._stops.later(lag.stop)
        self._stops.later(self.housekeeping.close)
        self._stops.later(self._network_housekeeping.close)
        self.housekeeping.every("closing idle connections", IDLE_CHECK_INTERVAL_MS, self._close_idle_connections)
        if (tls := self._foundation.tls) is not None:
            self.housekeeping.every("reading changed key stores", TLS_FILES_INTERVAL_MS, tls.reload_changed_files)
        parts.log_jobs.schedule(self.housekeeping, self._network_housekeeping, self.config)
        parts.schedule_expirations(self.housekeeping)
        # A stop calls these before `housekeeping.close`, which waits for running jobs: they cancel the long ones.
        for stop in (self.replicas.flusher.stop, self.retention.stop, self.compaction.stop):
            self._stops.later(stop)

    def _close_idle_connections(self) -> None:
        self.connections.close_idle(self._foundation.network_clock.monotonic_ms())

    async def _start_http(self, address: str) -> None:
        from barnabas.broker.http.pages import Pages
        from barnabas.broker.http.server import HttpServer

        pages = Pages(self.metric_sources(), self._threads)
        self._http = HttpServer(
            [*pages.routes(), *self.more_routes()],
            address,
            self.environment.network,
            is_reserved_descriptor=self.environment.is_reserved_descriptor,
            tls=self._foundation.tls[HTTP] if self._foundation.tls is not None and self.config.has_http_tls else None,
            timers=self._foundation.network_timers,
        )
        self._stops.later(self._http.stop)
        await self._http.start()
        self._joining = pages.joining
        self._stops.later(self._joining.stop)
        self._joining.start()

    @property
    def http_port(self) -> int | None:
        """The port of HTTP; None without one."""
        return None if self._http is None else self._http.port

    # --- stopping ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly: serve no more requests, flush everything, write the clean-shutdown file. All started parts are
        stopped, in reverse order, even if some of them raise."""
        self.is_ready = False
        await self._stops.aclose()

    def give_up_start(self) -> None:
        """Cancel a start that is still recovering logs after a crash, or waiting for ZooKeeper: `start` raises
        CancelledError, with everything released. Any other start continues, and is soon done. Exception: if ZooKeeper
        becomes unavailable while the broker joins its cluster, the start waits until ZooKeeper is available."""
        self.log_manager.give_up_opening()
        if self._opening is not None and self.config.zookeeper_connect is not None:
            self._opening.cancel()

    async def crash(self) -> None:
        """End as after a kill, for tests: connections are cut, and files are left as they are, without the
        clean-shutdown file, so that the next start has to recover. Only the locks are released, as the kernel would."""
        self._is_crash = True
        await self.stop()

    async def _hand_over(self) -> None:
        if not self._is_crash:
            await self.others.hand_over()

    async def _end_connections(self) -> None:
        await self.socket_server.stop(cuts=self._is_crash)

    async def _end_logs(self) -> None:
        if self._is_crash:
            await self._threads.call(self.log_manager.abandon)
        else:
            broker_epoch = -1 if self._parts is None else self._parts.controller.broker_epoch
            await self._threads.call(self.log_manager.close, broker_epoch)

    def _fail(self, reason: str) -> None:
        logger.critical("the broker cannot go on: %s", reason)
        self._loop.call_soon_threadsafe(self._on_failure, reason)

    # --- for tests and metrics --------------------------------------------------------------------

    @property
    def others(self) -> "OtherBrokers":
        """The parts that deal with other brokers; made when first needed."""
        assert self._parts is not None, "the broker has not joined its cluster"
        return self._parts.others

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Pass requests through `interceptor` from now on, or with None directly to their handlers: for tests. May be
        called before the start."""
        self._interceptor = interceptor
        if self.dispatcher is not None:
            self.dispatcher.intercept(interceptor)

    async def settle(self) -> None:
        """Run every timer that is due by the clock, and return when the work that these timers started is done: for
        tests that move the clock."""
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

    @property
    def quotas(self) -> "ClientQuotas | None":
        """The quotas of clients; None as long as none was configured."""
        return None if self._parts is None else self._parts.quotas

    def metric_sources(self) -> "MetricSources":
        """The parts whose figures are in /metrics."""
        from barnabas.broker.http.figures import MetricSources

        parts, housekeepings = self._parts, (self.housekeeping, self._network_housekeeping)
        assert parts is not None, "the broker has not joined its cluster"
        return MetricSources(
            self.services,
            self.metrics,
            self.compaction,
            lambda: [*parts.set_asides, *dict.fromkeys(each.set_aside for each in housekeepings)],
            is_ready=lambda: self.is_ready,
            peers=lambda: parts.peers,
            quotas=lambda: parts.quotas,
        )
