"""The parts of a broker that deal with the other brokers of its cluster, and the connections to them.

Each part is created when it is first needed: a broker that is alone has none of them, and does not import their
modules.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, Final

from barnabas.broker.cluster.alter_partitions import AlterPartitions
from barnabas.broker.cluster.cluster_channel import ClusterChannel
from barnabas.broker.cluster.controller_client import Answer, ControllerClient
from barnabas.broker.cluster.controller_requests import create_topics
from barnabas.broker.cluster.local_channel import LocalChannel
from barnabas.broker.cluster.peers import Peers
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.definitions import ConfigKey
from barnabas.broker.coordinators.transactions.coordinator_sender import CoordinatorSender
from barnabas.broker.coordinators.transactions.marker_sender import MarkerSender
from barnabas.broker.coordinators.transactions.markers import MarkerWriter
from barnabas.broker.foundation import Foundation
from barnabas.broker.network.peer_connection import PeerLogin
from barnabas.broker.replication.fetcher import FetchSettings
from barnabas.broker.replication.fetcher_context import FetcherContext, FlushLog
from barnabas.broker.replication.fetcher_manager import FetcherManager
from barnabas.broker.replication.leadership import Leaderships
from barnabas.broker.replication.throttles import Throttle, listed_in
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.clock import interval_ms
from barnabas.controller.context import ALLOCATION_TIMEOUT_MS
from barnabas.controller.controller import Controller
from barnabas.controller.topics import NewTopic, TopicOutcome
from barnabas.storage.log_manager import LogManager
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.create_topics import CreateTopicsRequest
from barnabas.wire.schema import Message

logger = logging.getLogger(__name__)

ALLOCATE_PRODUCER_IDS_VERSION: Final = 0
ALTER_PARTITION_VERSION: Final = 3
CONTROLLED_SHUTDOWN_VERSION: Final = 3

HAND_OVER_TIMEOUT_MS: Final = 10_000
"""The time for which a broker that stops waits for other replicas to lead its partitions."""


class OtherBrokers:
    """Creates the parts of a broker that deal with others; owned by the event loop.

    `controller` returns this broker's own, once there is one; `overrides` returns those of a topic or broker. Records
    get their times by the clock of the `foundation`; waits for other brokers use its network clock and timers.
    """

    def __init__(
        self,
        foundation: Foundation,
        controller: Callable[[], Controller],
        overrides: Callable[[str, str], Mapping[str, str]],
    ) -> None:
        self._config = config = foundation.config
        self._foundation = foundation
        self._login: PeerLogin | None = None
        self._node_id = config.node_id
        self._metadata = foundation.metadata
        self._clock = foundation.clock
        self._network_clock = foundation.network_clock
        self._timers = foundation.network_timers
        self._controller = controller
        self._overrides = overrides
        self.peers = Peers(
            foundation.environment.network,
            self._metadata,
            config.inter_broker_listener_name,
            self._timers,
            self._node_id,
            config.request_timeout_ms,
            credentials_of_broker(self._node_id, foundation.secret),
            foundation.inter_broker_tls(),
            lambda: self._login,
        )

    def make_login(self, config: BrokerConfig) -> None:
        """Have connections log in as `config` says, if the other brokers' listener asks for SASL. Raises
        MechanismError."""
        name = config.inter_broker_listener_name
        if not any(each.has_sasl for each in config.listeners if each.name == name):
            return
        from barnabas.broker.security.sasl.making_clients import ClientSources, make_client

        environment = self._foundation.environment
        sources = ClientSources(self._network_clock, environment.threads, environment.random_bytes)
        self._login = PeerLogin(make_client(name, config.value_for_listener, sources), environment.threads)

    def close(self) -> None:
        """Close all connections."""
        self.peers.close()

    async def ask(self, purpose: str, broker_id: int, request: Message, version: int) -> Any:
        """The response of another broker. Raises PeerUnavailable."""
        return await self.peers.connection(broker_id, purpose).send(request, version)

    def _broker_epoch(self) -> int:
        return self._controller().broker_epoch

    # --- the controller, and requests to it -------------------------------------------------------

    def channel(self, local: LocalChannel) -> ClusterChannel:
        """The controller's channel to all brokers; `local` is the one to its own."""
        return ClusterChannel(self._node_id, local, lambda: self.peers, self._registered_address)

    def _registered_address(self, broker_id: int) -> tuple[str, int] | None:
        """The address of a broker for other brokers, by its registration: the controller knows it before the metadata
        does."""
        broker = self._controller().cluster.brokers.get(broker_id)
        for endpoint in () if broker is None else broker.endpoints:
            if endpoint.listener == self._config.inter_broker_listener_name:
                return endpoint.host, endpoint.port
        return None

    @cached_property
    def controller_client(self) -> ControllerClient:
        """Sends requests to the controller, whichever broker that is."""
        controller = self._controller()
        answers: dict[int, Answer] = {
            AllocateProducerIdsRequest.API_KEY: controller.grant_producer_ids,
            AlterPartitionRequest.API_KEY: controller.alter_partition,
            ControlledShutdownRequest.API_KEY: controller.controlled_shutdown,
            CreateTopicsRequest.API_KEY: _ask_again,
        }
        return ControllerClient(controller, answers, self._metadata, self.peers, self._network_clock, self._timers)

    async def create_topics(self, topics: list[NewTopic], timeout_ms: int) -> list[TopicOutcome]:
        """Create topics at the controller in another broker."""
        return await create_topics(partial(self.controller_client.send, timeout_ms=timeout_ms), topics, timeout_ms)

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids that the controller allocates: its first and last, both included (KIP-730).

        Errors: ApiError COORDINATOR_LOAD_IN_PROGRESS in case of any error: producers retry (Kafka:
        RPCProducerIdManager).
        """
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        try:
            response = await self.controller_client.send(request, ALLOCATE_PRODUCER_IDS_VERSION, ALLOCATION_TIMEOUT_MS)
        except ApiError as error:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        if response.error_code or response.producer_id_len < 1:
            logger.warning("the controller grants no producer ids: %s", ErrorCode.of(response.error_code).name)
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return response.producer_id_start, response.producer_id_start + response.producer_id_len - 1

    def _has_others(self) -> bool:
        """Whether there are other brokers: a controller knows that a broker has gone before the metadata does."""
        controller = self._controller()
        known = controller.cluster.brokers if controller.is_active else self._metadata.broker_ids()
        return any(broker_id != self._node_id for broker_id in known)

    async def hand_over(self) -> None:
        """Transfer leadership to other replicas, if there are other brokers, before this broker stops (controlled
        shutdown)."""
        if not (self._has_others() and self._config.controlled_shutdown_enable):
            return
        request = ControlledShutdownRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        try:
            response = await self.controller_client.send(request, CONTROLLED_SHUTDOWN_VERSION, HAND_OVER_TIMEOUT_MS)
        except ApiError as error:
            logger.warning("this broker stops without the controller's consent: %s", error)
            return
        if response.error_code or (response.remaining_partitions and self._has_others()):
            logger.warning(
                "this broker stops while it leads %d partition(s) that no other broker can lead (%s)",
                len(response.remaining_partitions),
                ErrorCode.of(response.error_code).name,
            )

    # --- replication ------------------------------------------------------------------------------

    def leaderships(self) -> Leaderships:
        """Create the part that leads partitions with followers."""
        return Leaderships(
            self._network_clock,
            self._config.replica_lag_time_max_ms,
            self._metadata.is_alive,
            AlterPartitions(
                self._node_id, self._broker_epoch, self._alter_partition, self._timers, self._network_clock
            ),
            self._throttle(BrokerConfig.leader_replication_throttled_rate, "leader.replication.throttled.replicas"),
        )

    async def _alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        response: AlterPartitionResponse = await self.controller_client.send(
            request, ALTER_PARTITION_VERSION, self._config.request_timeout_ms
        )
        return response

    def fetchers(self, log_manager: LogManager, flush: FlushLog) -> FetcherManager:
        """Create the part that fetches the partitions that this broker follows."""
        config = self._config
        context = FetcherContext(
            self._node_id,
            self._broker_epoch,
            self.peers.connection,
            log_manager,
            self._clock,
            self._network_clock,
            self._timers,
            FetchSettings(
                # A follower whose leader responds at once, without records, sends its next request at once.
                wait_max_ms=interval_ms(config.replica_fetch_wait_max_ms),
                min_bytes=max(config.replica_fetch_min_bytes, 1),
                max_bytes=config.replica_fetch_max_bytes,
                response_max_bytes=config.replica_fetch_response_max_bytes,
                backoff_ms=config.replica_fetch_backoff_ms,
                socket_timeout_ms=config.replica_socket_timeout_ms,
            ),
            flush=flush if config.barnabas_flush_before_ack else None,
            throttle=self._throttle(
                BrokerConfig.follower_replication_throttled_rate, "follower.replication.throttled.replicas"
            ),
        )
        return FetcherManager(context)

    def _throttle(self, rate: ConfigKey[int], replicas: str) -> Throttle:
        """The throttle for these two keys, of the broker and of its topics."""
        listed = listed_in(self._overrides, replicas)
        throttle = Throttle(self._node_id, getattr(self._config, rate.attribute), listed, self._network_clock)
        self._config.follow(rate, throttle.limit)
        return throttle

    # --- transactions -----------------------------------------------------------------------------

    def marker_sender(self, local: MarkerWriter) -> MarkerSender:
        """Writes transaction markers into partitions with any leader; `local` into those that this broker leads."""
        return MarkerSender(self._node_id, local, self._metadata, partial(self.ask, "markers"))

    def coordinator_sender(self, partition_for: Callable[[str], int]) -> CoordinatorSender:
        """Sends requests to transaction coordinators; `partition_for` returns the partition of a transactional id."""
        return CoordinatorSender(self._metadata, partition_for, partial(self.ask, "transactions"))


async def _ask_again(_request: object) -> None:
    """Raise NOT_CONTROLLER, so that the request is repeated: it was meant for another broker, and this one is the
    controller by now."""
    raise ApiError(ErrorCode.NOT_CONTROLLER)
