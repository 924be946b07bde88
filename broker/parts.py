"""The parts that make a broker a member of its cluster, each made from those before it.

Two pairs of parts need each other, so one part of each pair gets a function that it calls later. The controller sends
commands to its own broker, and `ControllerCommands` asks the controller for the broker's epoch. Transactions take
producer ids, and the controller allocates ids beyond those that transactions use.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.cluster.auto_topics import AutoTopicCreation
from barnabas.broker.cluster.controller_commands import ControllerCommands
from barnabas.broker.cluster.features import SUPPORTED_FEATURES, ClusterFeatures
from barnabas.broker.cluster.local_channel import LocalChannel
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.cluster.metadata_store import MetadataStore
from barnabas.broker.cluster.producer_ids import ProducerIdBlocks, ProducerIds
from barnabas.broker.configuration.changes import ConfigChanges
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.settings import settings_of
from barnabas.broker.configuration.stored_passwords import StoredPasswords
from barnabas.broker.configuration.topics import DEFAULT_ENTITY, DEFAULTS_OF_TOPICS, TopicConfigs
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.internal_topics import Coordinator, InternalTopics
from barnabas.broker.coordinators.transactions.local_markers import LocalMarkers
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.foundation import Foundation
from barnabas.broker.network import listener_sasl
from barnabas.broker.replication.fetch_sessions import FetchSessions
from barnabas.broker.replication.internal_topic_log import InternalTopicLog
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.broker_secrets import (
    BrokerSecretMechanism,
    BrokerSecrets,
    RegisteredSecrets,
    SharedSecret,
    digest_of,
)
from barnabas.broker.security.sasl.listeners import Sasl
from barnabas.broker.services import Services
from barnabas.broker.stops import Stops
from barnabas.broker.upkeep.compaction import Compaction
from barnabas.broker.upkeep.disk_space import DiskSpace
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.broker.upkeep.log_jobs import LogJobs
from barnabas.broker.upkeep.retention import Retention
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.coordination.interface import CoordinationStore
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.controller.topics import NewTopic, TopicDefaults, TopicOutcome
from barnabas.set_aside import SetAside
from barnabas.storage.log_manager import LogManager

if TYPE_CHECKING:
    from barnabas.broker.cluster.peers import Peers
    from barnabas.broker.coordinators.transactions.coordinator_sender import CoordinatorSender
    from barnabas.broker.coordinators.transactions.markers import MarkerWriter
    from barnabas.broker.other_brokers import OtherBrokers
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.security.acls.administration import AclAdministration
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.broker.security.sasl.making import Sources
    from barnabas.controller.acls import AclRepository
    from barnabas.controller.tokens import TokenRepository

REPLICA_FETCH_SESSIONS_MAX: Final = 1_000
"""The limit of the fetch sessions of other brokers, each of which has a few. Consumers' sessions have a separate
limit."""

ENTITIES_WITH_QUOTAS: Final = ("users", "clients", "ips")
"""The types of entities that may have quotas."""

CREDENTIALS: Final = frozenset(("SCRAM-SHA-256", "SCRAM-SHA-512"))
"""The configs of users that are no quotas."""


class Parts:
    """Made when the logs are loaded, the metadata session is open and the ports are bound; owned by the event loop.

    Args:
        foundation: what the broker has before it starts.
        log_manager: the logs.
        store: the metadata store, which has opened `session`, and passes later sessions to the parts.
        session: the metadata session.
        endpoints: this broker's addresses, for its registration.
        may_lack_records: whether records that this broker acknowledged may be lost, for its registration.
    """

    def __init__(
        self,
        foundation: Foundation,
        log_manager: LogManager,
        store: MetadataStore,
        session: CoordinationStore,
        endpoints: tuple[EndPoint, ...],
        *,
        may_lack_records: bool,
    ) -> None:
        self._foundation = foundation
        self._log_manager = log_manager
        self._others: OtherBrokers | None = None
        self._is_store_newer = False
        self.quotas: ClientQuotas | None = None
        """The quotas of clients; None as long as none was configured."""
        self.on_quotas: Callable[[ClientQuotas], None] = lambda quotas: None
        """Called with the quotas when the first of them is configured."""
        self.stops = Stops()
        """The functions that stop those parts that survive the loss of a metadata session. A stop calls them after
        `MetadataStore.stay_out`, although some of these parts start later: a part that is stopping must not receive a
        new session."""
        config, clock, metadata = foundation.config, foundation.clock, foundation.metadata
        self.configs = ConfigRepository(session, clock, foundation.timers)
        self.topic_configs = TopicConfigs(config, self.configs)
        self._passwords = StoredPasswords(config, foundation.environment.random_bytes)
        self.configs.subscribe(self._config_changed)
        self.acls = self._make_acls(session)
        self.tokens = self._make_tokens(session)
        self.internal_topics = InternalTopics(
            config, self.topic_configs, metadata, is_alone=not foundation.may_have_others
        )
        self.replicas = self._make_replicas()
        self.retention = Retention(self.replicas, log_manager, clock)
        self.compaction = self._make_compaction()
        self.disk_space = DiskSpace(log_manager, config.barnabas_disk_reserve_bytes, self.replicas)
        self.log_jobs = LogJobs(log_manager, self.replicas, self.retention, self.compaction, self.disk_space, clock)
        self.groups = self._make_groups()
        self.transaction_markers = LocalMarkers(self.replicas, self.groups, clock)
        self.transactions = self._make_transactions()
        self.transaction_verification = self._make_verification()
        self.internal_topics.attach(
            [
                Coordinator(GROUP_METADATA_TOPIC, self.groups.runtime, self.groups.on_topics_deleted),
                Coordinator(TRANSACTION_STATE_TOPIC, self.transactions.runtime),
            ]
        )
        self.features = ClusterFeatures(self._set_transaction_version)
        self.commands = self._make_commands()
        registration = self._make_registration(endpoints, may_lack_records=may_lack_records)
        self.controller = self._make_controller(session, registration)
        self.producer_ids = self._make_producer_ids()
        self.auto_topics = AutoTopicCreation(
            self._create_topics, self.internal_topics.new_topic, self.internal_topics.waits_for_brokers, clock
        )
        self.services = self._make_services()
        config.follow_any(DEFAULTS_OF_TOPICS, self.replicas.reconfigure_all)
        config.follow(BrokerConfig.unclean_leader_election_enable, self.controller.set_unclean_leader_election_enable)
        store.follow(self.configs, *self.security_repositories, self.controller)

    # --- partitions and their logs ----------------------------------------------------------------

    def _make_replicas(self) -> ReplicaManager:
        foundation, log_manager = self._foundation, self._log_manager
        return ReplicaManager(
            foundation.config.node_id,
            log_manager,
            foundation.metadata,
            foundation.clock,
            self.topic_configs.log_config,
            on_elected=self.internal_topics.elected,
            on_resigned=self.internal_topics.resigned,
            make_leaderships=lambda: self.others.leaderships(),
            make_fetchers=lambda: self.others.fetchers(log_manager, self.replicas.flusher.flush),
            flush_before_ack=foundation.config.barnabas_flush_before_ack,
        )

    def _make_compaction(self) -> Compaction:
        environment = self._foundation.environment
        return Compaction(
            self.replicas,
            self._foundation.clock,
            self._log_manager,
            self._foundation.config,
            environment.work_s,
            environment.interpreter,
        )

    # --- coordinators -----------------------------------------------------------------------------

    def _make_groups(self) -> GroupService:
        foundation = self._foundation
        return GroupService(
            InternalTopicLog(self.replicas, GROUP_METADATA_TOPIC),
            foundation.timers,
            foundation.clock,
            settings_of(GroupSettings, foundation.config),
            foundation.config.offsets_topic_num_partitions,
            new_id=foundation.environment.random_id,
        )

    def _make_transactions(self) -> TransactionService:
        foundation = self._foundation
        return TransactionService(
            InternalTopicLog(self.replicas, TRANSACTION_STATE_TOPIC),
            self._make_marker_writer(),
            foundation.timers,
            foundation.clock,
            settings_of(TransactionSettings, foundation.config),
            foundation.config.transaction_state_log_num_partitions,
            next_producer_id=lambda: self.producer_ids.next(),
        )

    def _make_marker_writer(self) -> "MarkerWriter":
        """The writer of transaction markers, in partitions that this broker leads and in those that other brokers
        lead."""
        if not self._foundation.may_have_others:
            return self.transaction_markers
        sender = self.others.marker_sender(self.transaction_markers)
        self.stops.later(sender.close)
        return sender

    def _make_verification(self) -> TransactionVerification:
        foundation = self._foundation
        return TransactionVerification(
            self.replicas,
            self.transactions,
            foundation.config,
            foundation.clock,
            foundation.timers,
            self._make_coordinator_sender(),
        )

    def _make_coordinator_sender(self) -> "CoordinatorSender | None":
        """Sends requests to coordinators in other brokers; None without other brokers."""
        if not self._foundation.may_have_others:
            return None
        sender = self.others.coordinator_sender(self.transactions.runtime.partition_for)
        self.stops.later(sender.close)
        return sender

    def _set_transaction_version(self, level: int) -> None:
        self.transactions.settings = replace(self.transactions.settings, transaction_version=level)

    # --- the controller, and requests to the active one ---------------------------------------

    def _make_commands(self) -> ControllerCommands:
        foundation = self._foundation
        return ControllerCommands(
            foundation.config.node_id,
            self.replicas,
            foundation.metadata,
            self.configs,
            broker_epoch=lambda: self.controller.broker_epoch,
            on_update=self.internal_topics.metadata_updated,
            registered=lambda: self.controller.registered(),
            elected=lambda: self.controller.elected(),
            timers=foundation.network_timers,
        )

    def _make_registration(self, endpoints: tuple[EndPoint, ...], *, may_lack_records: bool) -> BrokerRegistration:
        foundation, config = self._foundation, self._foundation.config
        has_own_secret = foundation.secret and foundation.environment.broker_secret is None
        return BrokerRegistration(
            config.node_id,
            endpoints,
            config.broker_rack,
            features=SUPPORTED_FEATURES,
            may_lack_records=may_lack_records,
            damaged=self._log_manager.damaged(),
            min_insync_replicas=config.min_insync_replicas,  # from the file: dynamic ones are in the store
            secret_digest=digest_of(foundation.secret) if has_own_secret else "",
        )

    def _make_controller(self, session: CoordinationStore, registration: BrokerRegistration) -> Controller:
        foundation, config = self._foundation, self._foundation.config
        local = LocalChannel(config.node_id, self.commands)
        return Controller(
            session,
            registration,
            self.others.channel(local) if foundation.may_have_others else local,
            foundation.clock,
            ControllerSettings(
                TopicDefaults(config.num_partitions, config.default_replication_factor),
                delete_topic_enable=config.delete_topic_enable,
                unclean_leader_election_enable=config.unclean_leader_election_enable,
                auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
                leader_imbalance_check_interval_ms=config.leader_imbalance_check_interval_seconds * 1000,
                inter_broker_listener=config.inter_broker_listener_name,
                cluster_id=config.cluster_id,
            ),
            random_bytes=foundation.environment.random_bytes,
            configs=self.configs,
            timers=foundation.timers,
            network_timers=foundation.network_timers,
            on_registrations=self.features.finalize,
        )

    async def _create_topics(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        timeout_ms = self._foundation.config.request_timeout_ms
        if self.controller.is_active or not self._foundation.may_have_others:
            return await self.controller.create_topics(topics, validate_only=False, timeout_ms=timeout_ms)
        return await self.others.create_topics(topics, timeout_ms)

    def _make_producer_ids(self) -> ProducerIds:
        blocks = ProducerIdBlocks(
            self._allocate_producer_ids,
            self._used_producer_ids,
            lambda: self._is_store_newer and self.controller.knows_producer_ids,
        )
        return ProducerIds(blocks.next)

    def note_registered(self) -> None:
        """The broker has registered: if its epoch has grown since the last clean stop, then the metadata store is no
        older than the logs."""
        self._is_store_newer = 0 <= self._log_manager.previous_broker_epoch < self.controller.broker_epoch

    async def _allocate_producer_ids(self, above: int) -> tuple[int, int]:
        """A block of producer ids greater than `above`, allocated by the controller. If the controller of another
        broker allocates a lower block, the metadata store is older than the logs of this broker, and this broker
        corrects the store."""
        if self._foundation.may_have_others and not self.controller.is_active:
            first, last = await self.others.allocate_producer_ids()
            if first > above:
                return first, last
        return await self.controller.allocate_producer_ids(above)

    async def _used_producer_ids(self) -> set[int]:
        log_manager = self._log_manager
        return self.transactions.producer_ids() | await log_manager.threads.call(log_manager.producer_ids)

    # --- other brokers ----------------------------------------------------------------------------

    @property
    def others(self) -> "OtherBrokers":
        """The parts that deal with other brokers; made when first needed."""
        if self._others is None:
            from barnabas.broker.other_brokers import OtherBrokers

            self._others = OtherBrokers(self._foundation, lambda: self.controller, self.configs.overrides)
        return self._others

    @property
    def peers(self) -> "Peers | None":
        """The connections to other brokers; None as long as no part needs any."""
        return None if self._others is None else self._others.peers

    def close_peers(self) -> None:
        """Close the connections to other brokers."""
        if self._others is not None:
            self._others.close()

    async def load_sasl(self) -> None:
        """Make the SASL of the listeners, and of the connections to other brokers. Raises ConfigError."""
        foundation = self._foundation
        of_brokers = BrokerSecretMechanism(self._broker_secrets) if foundation.may_have_others else None
        await listener_sasl.load(
            self.services.sasl,
            foundation.config,
            foundation.environment.threads,
            self._sasl_sources,
            of_brokers,
            lambda config: self.others.make_login(config),
        )

    def _sasl_sources(self) -> "Sources":
        """The sources of the mechanisms, of which only listeners with SASL need any."""
        from barnabas.broker.security.sasl.making import Sources

        environment = self._foundation.environment
        return Sources(
            self._foundation.clock,
            environment.threads,
            environment.random_bytes,
            self._scram_text,
            None if self.tokens is None else self.tokens.find,
        )

    def _scram_text(self, mechanism: str, user: str) -> str | None:
        """The credential of a user in the metadata store."""
        from barnabas.controller.sanitizer import sanitize

        return self.configs.overrides("users", sanitize(user)).get(mechanism)

    @cached_property
    def _broker_secrets(self) -> BrokerSecrets:
        """The authentication of other brokers: by the parent's secret, or by the secrets that brokers have
        registered."""
        shared = self._foundation.environment.broker_secret
        if shared is not None:
            return SharedSecret(shared)
        return RegisteredSecrets(
            self._foundation.config.node_id, lambda: self.controller.secret_digests, self.controller.look_up
        )

    # --- what clients may do ----------------------------------------------------------------------

    def _make_acls(self, session: CoordinationStore) -> "AclAdministration | None":
        """The ACLs and the authorizer; None if none is configured."""
        foundation, config = self._foundation, self._foundation.config
        if not config.value("authorizer.class.name"):
            return None
        from barnabas.broker.security.acls.administration import AclAdministration
        from barnabas.broker.security.acls.authorizer import AclAuthorizer, super_users_in
        from barnabas.controller.acls import AclRepository

        authorizer = AclAuthorizer(
            super_users_in(str(config.value("super.users"))),
            allows_everyone=config.value("allow.everyone.if.no.acl.found") is True,
        )
        return AclAdministration(AclRepository(session, foundation.clock, foundation.timers), authorizer)

    def _make_tokens(self, session: CoordinationStore) -> "DelegationTokens | None":
        """The delegation tokens; None without `delegation.token.secret.key`."""
        foundation, config = self._foundation, self._foundation.config
        secret_key = config.value("delegation.token.secret.key") or config.value("delegation.token.master.key")
        if not secret_key:
            return None
        from barnabas.broker.security.delegation_tokens import DelegationTokens, Lifetimes
        from barnabas.controller.tokens import TokenRepository

        return DelegationTokens(
            TokenRepository(session, foundation.clock, foundation.timers),
            str(secret_key),
            Lifetimes(
                config.number("delegation.token.max.lifetime.ms"), config.number("delegation.token.expiry.time.ms")
            ),
            foundation.clock,
            foundation.environment.threads,
            foundation.environment.random_bytes,
        )

    async def _remove_expired_tokens(self) -> None:
        """Remove expired delegation tokens, on the controller."""
        if self.tokens is not None and self.controller.is_active:
            await self.tokens.remove_expired()

    @property
    def security_repositories(self) -> "list[AclRepository | TokenRepository]":
        """The repositories of ACLs and delegation tokens, as far as there are any."""
        parts = (self.acls, self.tokens)
        return [part.repository for part in parts if part is not None]

    # --- changes of the configuration -------------------------------------------------------------

    def _config_changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics":
            self.replicas.reconfigure(name)
        elif entity_type == "brokers" and name in (DEFAULT_ENTITY, str(self._foundation.config.node_id)):
            self.apply_dynamic_configs()
        elif entity_type in ENTITIES_WITH_QUOTAS:
            self._apply_quotas(entity_type, name)

    def apply_dynamic_configs(self) -> None:
        """Apply the dynamic configuration of this broker."""
        dynamic = self.topic_configs.dynamic_broker_configs()
        self._foundation.config.change(self._passwords.decoded(dynamic))

    def apply_quotas(self) -> None:
        """Apply the quotas that are configured when the broker starts."""
        for entity in self.configs.entities(*ENTITIES_WITH_QUOTAS):
            self._apply_quotas(*entity)

    def _apply_quotas(self, entity_type: str, name: str) -> None:
        """Obey the quotas of an entity, whose other configs are credentials."""
        overrides = self.configs.overrides(entity_type, name)
        if self.quotas is None:
            if overrides.keys() <= CREDENTIALS:
                return
            self.quotas = self._make_quotas()
            self.on_quotas(self.quotas)
        self.quotas.change(entity_type, name, overrides)

    def _make_quotas(self) -> "ClientQuotas":
        from barnabas.broker.quotas.client_quotas import ClientQuotas
        from barnabas.broker.quotas.rates import QuotaWindow

        foundation, config = self._foundation, self._foundation.config
        return ClientQuotas(
            QuotaWindow(config.quota_window_num, config.quota_window_size_seconds * 1000),
            QuotaWindow(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000),
            foundation.clock,
            foundation.network_clock,
        )

    # --- all of them ------------------------------------------------------------------------------

    def _make_services(self) -> Services:
        foundation, config = self._foundation, self._foundation.config
        new_session_id = self._new_session_id
        return Services(
            node_id=config.node_id,
            clock=foundation.clock,
            network_clock=foundation.network_clock,
            timers=foundation.timers,
            unforeseen=foundation.unforeseen,
            metrics=foundation.metrics,
            connections=foundation.connections,
            config=config,
            configs=self.configs,
            topic_configs=self.topic_configs,
            config_changes=self._make_config_changes(),
            metadata=foundation.metadata,
            features=self.features,
            broker_secrets=self._broker_secrets,
            sasl=Sasl({}, foundation.clock, foundation.network_timers),
            authorizer=None if self.acls is None else self.acls.authorizer,
            acls=self.acls,
            tokens=self.tokens,
            commands=self.commands,
            controller=self.controller,
            auto_topics=self.auto_topics,
            producer_ids=self.producer_ids,
            log_manager=self._log_manager,
            disk_space=self.disk_space,
            replicas=self.replicas,
            fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots, new_session_id),
            replica_fetch_sessions=FetchSessions(REPLICA_FETCH_SESSIONS_MAX, new_session_id),
            groups=self.groups,
            transactions=self.transactions,
            transaction_markers=self.transaction_markers,
            transaction_verification=self.transaction_verification,
        )

    def _make_config_changes(self) -> ConfigChanges:
        foundation = self._foundation
        return ConfigChanges(
            foundation.config.node_id,
            self.topic_configs,
            self.configs,
            foundation.metadata,
            self._passwords,
            None if foundation.tls is None else foundation.tls.check,
            foundation.environment.threads,
        )

    def _new_session_id(self) -> int:
        return self._foundation.environment.random_below(2**31 - 1) + 1

    def schedule_expirations(self, housekeeping: Housekeeping) -> None:
        """Schedule the periodic work of the coordinators."""
        config, every = self._foundation.config, housekeeping.every
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
        if self.tokens is not None:
            every(
                "removing expired delegation tokens",
                config.number("delegation.token.expiry.check.interval.ms"),
                self._remove_expired_tokens,
            )

    @property
    def set_asides(self) -> list[SetAside[Any]]:
        """The entries that the parts have set aside after errors: one `SetAside` for each activity."""
        return [
            *self.replicas.set_asides,
            *self.log_jobs.set_asides,
            *self.groups.set_asides,
            *self.transactions.set_asides,
            *self.controller.set_asides,
            self.configs.set_aside,
            *(repository.set_aside for repository in self.security_repositories),
            self.auto_topics.set_aside,
            self._foundation.metadata.set_aside,
            self._foundation.connections.set_aside,
        ]
