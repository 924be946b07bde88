"""The parts of a broker that handlers may use: each by its own name and type, and nothing else of the broker."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.broker.cluster.auto_topics import AutoTopicCreation
from barnabas.broker.cluster.controller_commands import ControllerCommands
from barnabas.broker.cluster.features import ClusterFeatures
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.configuration.changes import ConfigChanges
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.configuration.topics import TopicConfigs
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.transactions.local_markers import LocalMarkers
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.network.connections import Connections
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.fetch_sessions import FetchSessions
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.broker_secrets import BrokerSecrets
from barnabas.broker.security.sasl.listeners import Sasl
from barnabas.broker.upkeep.disk_space import DiskSpace
from barnabas.clock import Clock
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller
from barnabas.storage.log_manager import LogManager
from barnabas.timers import Timers

if TYPE_CHECKING:
    from barnabas.broker.security.acls.administration import AclAdministration
    from barnabas.broker.security.delegation_tokens import DelegationTokens

REPLY_BYTES_MAX: Final = 32 * 1024 * 1024
"""The approximate limit of one response's size. Fetches have their own limit."""


@dataclass(frozen=True, slots=True)
class Services:
    """Created once, before the broker registers itself; every request's context has it.

    State that changes while the broker runs belongs to the part that knows it: `config`, `features.finalized`,
    `metadata`.
    """

    node_id: int
    clock: Clock
    network_clock: Clock
    """The clock of waits of brokers, and of sessions."""
    timers: Timers
    unforeseen: UnforeseenErrors
    metrics: RequestMetrics
    connections: Connections

    config: LiveConfig
    configs: ConfigRepository
    topic_configs: TopicConfigs
    config_changes: ConfigChanges

    metadata: MetadataCache
    features: ClusterFeatures
    broker_secrets: BrokerSecrets
    sasl: Sasl
    authorizer: Authorizer | None
    acls: "AclAdministration | None"
    """Lists and changes the ACLs by which `authorizer` decides; None where there is none."""
    tokens: "DelegationTokens | None"
    """Issues and changes delegation tokens; None without `delegation.token.secret.key`."""
    commands: ControllerCommands
    controller: Controller
    auto_topics: AutoTopicCreation
    producer_ids: ProducerIds

    log_manager: LogManager
    disk_space: DiskSpace
    replicas: ReplicaManager
    fetch_sessions: FetchSessions
    replica_fetch_sessions: FetchSessions

    groups: GroupService
    transactions: TransactionService
    transaction_markers: LocalMarkers
    transaction_verification: TransactionVerification

    reply_bytes_max: int = REPLY_BYTES_MAX
    """The limit of `api/reply_room.py`; only tests change it."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id, once this broker has joined it."""
        return self.controller.cluster_id
