"""What a broker has because there are others in its cluster: connections to them, and the parts that use those.

Made when it is first needed, each part by itself: a broker that is alone has none of this, nor the modules.
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
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.cluster.peers import Peers
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.definitions import ConfigKey
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.coordinators.transactions.coordinator_sender import CoordinatorSender
from barnabas.broker.coordinators.transactions.marker_sender import MarkerSender
from barnabas.broker.coordinators.transactions.markers import MarkerWriter
from barnabas.broker.replication.fetcher import FetchSettings
from barnabas.broker.replication.fetcher_manager import FetcherManager, FlushLog
from barnabas.broker.replication.leadership import Leaderships
from barnabas.broker.replication.throttles import Throttle, listed_in
from barnabas.broker.security.sasl_plain import Credentials
from barnabas.clock import Clock, interval_ms
from barnabas.controller.context import ALLOCATION_TIMEOUT_MS
from barnabas.controller.controller import Controller
from barnabas.controller.operations.topics import NewTopic, TopicOutcome
from barnabas.network import Network
from barnabas.storage.log_manager import LogManager
from barnabas.timers import Timers
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
"""How long a broker that stops waits for others to lead what it leads."""


class OtherBrokers:
    """Makes the parts of a broker that deal with others; owned by the event loop.

    `controller` gives this broker's own, once there is one. `credentials` show others who this broker is. Records get
    their times by `clock`; whatever waits for other brokers goes by `network_clock` and `timers`.
    """

    def __init__(
        self,
        node_id: int,
        config: LiveConfig,
        network: Network,
        metadata: MetadataCache,
        clock: Clock,
        network_clock: Clock,
        timers: Timers,
        controller: Callable[[], Controller],
        overrides: Callable[[str, str], Mapping[str, str]],
        credentials: Credentials,
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self._network_clock = network_clock
        self._timers = timers
        self._controller = controller
        self._overrides = overrides
        listener = config.inter_broker_listener_name
        self.peers = Peers(network, metadata, listener, timers, node_id, config.request_timeout_ms, credentials)

    def close(self) -> None:
        """Close all connections."""
        self.peers.close()

    async def ask(self, purpose: str, broker_id: int, request: Message, version: int) -> Any:
        """The response of another broker. Raises PeerUnavailable."""
        return await self.peers.connection(broker_id, purpose).send(request, version)

    def _broker_epoch(self) -> int:
        return self._controller().broker_epoch

    # --- the controller, and what it is asked -----------------------------------------------------

    def channel(self, local: LocalChannel) -> ClusterChannel:
        """The controller's way to all brokers; `local` is that to its own."""
        return ClusterChannel(self._node_id, local, lambda: self.peers, self._registered_address)

    def _registered_address(self, broker_id: int) -> tuple[str, int] | None:
        """Where other brokers reach one, by its registration: the controller knows before the metadata does."""
        broker = self._controller().cluster.brokers.get(broker_id)
        for endpoint in () if broker is None else broker.endpoints:
            if endpoint.listener == self._config.inter_broker_listener_name:
                return endpoint.host, endpoint.port
        return None

    @cached_property
    def controller_client(self) -> ControllerClient:
        """Asks the controller, whichever broker that is."""
        controller = self._controller()
        answers: dict[int, Answer] = {
            AllocateProducerIdsRequest.API_KEY: controller.grant_producer_ids,
            AlterPartitionRequest.API_KEY: controller.alter_partition,
            ControlledShutdownRequest.API_KEY: controller.controlled_shutdown,
            CreateTopicsRequest.API_KEY: _ask_again,
        }
        return ControllerClient(controller, answers, self._metadata, self.peers, self._network_clock, self._timers)

    async def create_topics(self, topics: list[NewTopic], timeout_ms: int) -> list[TopicOutcome]:
        """Have the controller of another broker create topics."""
        return await create_topics(partial(self.controller_client.send, timeout_ms=timeout_ms), topics, timeout_ms)

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """Have the controller hand out a block of producer ids: its first and last, both included (KIP-730).

        Errors: ApiError COORDINATOR_LOAD_IN_PROGRESS, whatever went wrong: producers ask again (Kafka:
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
        """Whether there are other brokers: a controller knows before the metadata does that one has gone."""
        controller = self._controller()
        known = controller.cluster.brokers if controller.is_active else self._metadata.broker_ids()
        return any(broker_id != self._node_id for broker_id in known)

    async def hand_over(self) -> None:
        """Have others lead what this broker leads, where there are others, before it stops (controlled shutdown)."""
        if not (self._has_others() and self._config.controlled_shutdown_enable):
            return
        request = ControlledShutdownRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        try:
            response = await self.controller_client.send(request, CONTROLLED_SHUTDOWN_VERSION, HAND_OVER_TIMEOUT_MS)
        except ApiError as error:
            logger.warning("this broker stops without the controller's leave: %s", error)
            return
        if response.error_code or (response.remaining_partitions and self._has_others()):
            logger.warning(
                "this broker stops while it leads %d partition(s) that nobody else can lead (%s)",
                len(response.remaining_partitions),
                ErrorCode.of(response.error_code).name,
            )

    # --- replication ------------------------------------------------------------------------------

    def leaderships(self) -> Leaderships:
        """What this broker needs to lead partitions that others follow."""
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
        """What fetches for the partitions that this broker follows."""
        config = self._config
        return FetcherManager(
            self._node_id,
            self._broker_epoch,
            self.peers.connection,
            log_manager,
            self._clock,
            self._network_clock,
            self._timers,
            FetchSettings(
                # A follower that its leader answers at once, with nothing, asks again at once.
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

    def _throttle(self, rate: ConfigKey[int], replicas: str) -> Throttle:
        """What goes by these two keys, of the broker and of its topics."""
        listed = listed_in(self._overrides, replicas)
        throttle = Throttle(self._node_id, getattr(self._config, rate.attribute), listed, self._network_clock)
        self._config.follow(rate, throttle.limit)
        return throttle

    # --- transactions -----------------------------------------------------------------------------

    def marker_sender(self, local: MarkerWriter) -> MarkerSender:
        """What writes transaction markers into partitions led anywhere; `local` into those that this broker leads."""
        return MarkerSender(self._node_id, local, self._metadata, partial(self.ask, "markers"))

    def coordinator_sender(self, partition_for: Callable[[str], int]) -> CoordinatorSender:
        """What asks the coordinators of transactions, of which `partition_for` tells the partition."""
        return CoordinatorSender(self._metadata, partition_for, partial(self.ask, "transactions"))


async def _ask_again(_request: object) -> None:
    """Say NOT_CONTROLLER, so that it is asked again: another broker was to be asked, and this one is the controller by
    now."""
    raise ApiError(ErrorCode.NOT_CONTROLLER)
