"""The parts of a broker that handlers may use: each by its own name and type, and nothing else of the broker."""

from dataclasses import dataclass

from barnabas.broker.cluster.auto_topics import AutoTopicCreation
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
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.fetch_sessions import FetchSessions
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.clock import Clock
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller
from barnabas.storage.log_manager import LogManager


@dataclass(frozen=True, slots=True)
class Services:
    """Made once, when the broker has registered itself; every request's context has it.

    What changes while the broker runs is asked of the part that knows it: `config`, `features.finalized`,
    `metadata`.
    """

    node_id: int
    cluster_id: str
    clock: Clock
    unforeseen: UnforeseenErrors
    connections: Connections

    config: LiveConfig
    configs: ConfigRepository
    topic_configs: TopicConfigs
    config_changes: ConfigChanges

    metadata: MetadataCache
    features: ClusterFeatures
    controller: Controller
    auto_topics: AutoTopicCreation
    producer_ids: ProducerIds

    log_manager: LogManager
    replicas: ReplicaManager
    fetch_sessions: FetchSessions

    groups: GroupService
    transactions: TransactionService
    transaction_markers: LocalMarkers
    transaction_verification: TransactionVerification
