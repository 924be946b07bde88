"""Requests of the controller to this broker, and the checks whether they are current: LeaderAndIsr, UpdateMetadata and
StopReplica.

The requests of this broker's own controller (`local_channel.py`) and those of another broker (the handlers of APIs 4, 5
and 6) are the same, and pass the same checks, one at a time. The controller epoch fences former controllers; the broker
epoch fences requests to an earlier registration of this broker. A controller epoch greater than the known one is
accepted if the metadata store has it, with the sender as the controller: that is read once in each controller's term.
Checks of a single partition (leader epoch, partition epoch, topic id) are made at the partition: `replication/isr.py`.

A request that has begun is carried out to its end, even if the controller's connection breaks: the controller sends it
again, and a half-done request would be incomplete for ever (the topic gone from the metadata, but not the offsets of
its groups).

Source: KafkaApis.handleLeaderAndIsrRequest, isBrokerEpochStale and ReplicaManager of Kafka 3.9 in ZooKeeper mode;
KIP-380.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from barnabas.broker.cluster.metadata import LEADER_DURING_DELETE, MetadataCache, TopicMetadata
from barnabas.broker.network.outcome import CloseConnection
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller_election import Elected
from barnabas.controller.coordination.interface import CoordinationError
from barnabas.controller.requests import FULL
from barnabas.timers import Timers, time_limit
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from barnabas.wire.names import ZERO_TOPIC_ID

logger = logging.getLogger(__name__)

Request = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
Response = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse

R = TypeVar("R", bound=Request)
A = TypeVar("A", LeaderAndIsrResponse, UpdateMetadataResponse, StopReplicaResponse)

_UNKNOWN_EPOCH: Final = -1
_UNKNOWN_ID: Final = -1

STOP_PATIENCE_MS: Final = 3_000
"""The time for which `stop` waits for a request; after that it counts as stuck."""


class HostedReplicas(Protocol):
    """Carries out requests about replicas: to lead, follow, and delete them (`replication/replica_manager.py`)."""

    def has_log(self, topic: str, index: int) -> bool:
        """Whether there is a log of the partition, so that a request to host it would create none."""
        ...

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse: ...

    def stop_replica(self, request: StopReplicaRequest) -> Coroutine[Any, Any, StopReplicaResponse]: ...

    async def let_go(self) -> None:
        """Stop hosting partitions that other brokers have by the metadata."""
        ...


class ControllerCommands:
    """Carries out requests of controllers, one after the other; owned by the event loop.

    Args:
        node_id: this broker's id: its own controller needs no check in the metadata store.
        replicas: hosts the partitions of LeaderAndIsr and StopReplica.
        metadata: updated by UpdateMetadata.
        configs: the overrides of topics, which are read before a log is created and removed with the topic.
        broker_epoch: the epoch of this broker's current registration; -1 as long as there is none.
        on_update: called with the removed topics, after each UpdateMetadata and before its response.
        registered: returns when this broker knows its epoch.
        elected: the controller by the metadata store. Raises CoordinationError.
        timers: those of waits for other brokers.
    """

    def __init__(
        self,
        node_id: int,
        replicas: HostedReplicas,
        metadata: MetadataCache,
        configs: ConfigRepository,
        broker_epoch: Callable[[], int],
        on_update: Callable[[Sequence[TopicMetadata]], Awaitable[None]],
        registered: Callable[[], Awaitable[None]],
        elected: Callable[[], Awaitable[Elected | None]],
        timers: Timers,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._metadata = metadata
        self._configs = configs
        self._broker_epoch = broker_epoch
        self._on_update = on_update
        self._registered = registered
        self._elected = elected
        self._timers = timers
        self._controller_epoch = _UNKNOWN_EPOCH
        self._controller_id = _UNKNOWN_ID
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Task[Any] | None = None
        """The request that has begun, until its response is sent; if no caller waits for the response any more, until
        the next request."""
        self.knows_everything = asyncio.Event()
        """Set by the first UpdateMetadata with all partitions: before it, this broker would tell clients that topics do
        not exist."""

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead and follow partitions. The configs of new logs are read first: there is no notification for the
        overrides of a new topic, not even for a controller in this process that finds a topic created by a former
        controller, or by a write whose response was lost.

        Raises: CoordinationError, when they cannot be read; nothing has changed then.
        """
        return await self._obey(request, self._lead_and_follow, LeaderAndIsrResponse)

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop hosting partitions, and delete their logs if requested."""
        return await self._obey(request, self._replicas.stop_replica, StopReplicaResponse)

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Apply the live brokers and the leaders of partitions. The configs of topics that are new to this broker are
        read first, as for `leader_and_isr`.

        Raises: CoordinationError, when they cannot be read; nothing has changed then.
        """
        return await self._obey(request, self._learn, UpdateMetadataResponse)

    async def stop(self) -> None:
        """Wait some time for a request that is still being carried out, then cancel it: its thread works in directories
        that another process uses next. No further requests arrive: connections are closed, and the controller of this
        broker has stopped."""
        if self._under_way is not None:
            with suppress(TimeoutError):
                async with time_limit(self._timers, STOP_PATIENCE_MS):
                    await asyncio.wait([self._under_way])
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def _obey(self, request: R, carry_out: Callable[[R], Coroutine[Any, Any, A]], answer: type[A]) -> A:
        """Carry out a request, unless it is refused, when those before it are done.

        If the caller is cancelled, because the connection broke, a request that has begun continues; the next one waits
        for it. A request that has not begun is dropped: the controller sends it again, and repeated requests to a stuck
        broker must not pile up here.
        """
        async with self._turn:
            if self._under_way is not None:
                await asyncio.wait([self._under_way])
            error = await self._refusal(request)
            if error is not ErrorCode.NONE:
                return answer(error_code=error)
            self._under_way = begun = asyncio.create_task(carry_out(request), name="command of the controller")
            try:
                return await asyncio.shield(begun)
            except asyncio.CancelledError:
                begun.add_done_callback(_ended_unheard)
                raise
            finally:
                if begun.done():
                    self._under_way = None

    async def _lead_and_follow(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        if names := self._topics_without_log(request):
            await self._configs.refresh("topics", names)
        await self._metadata.note_roles(request)
        return await self._replicas.leader_and_isr(request)

    async def _learn(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        if names := self._topics_of_others(request):
            await self._configs.refresh("topics", names)
        removed = await self._metadata.update(request)
        self._configs.forget("topics", [topic.name for topic in removed if topic.name not in self._metadata])
        await self._on_update(removed)
        if request.type == FULL:
            await self._replicas.let_go()
        if self._metadata.is_complete:
            self.knows_everything.set()
        return UpdateMetadataResponse()

    async def _refusal(self, request: Request) -> ErrorCode:
        """The error with which a request is refused: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, or NONE.

        A broker epoch newer than the known one belongs to a registration whose response is still on its way. Before
        this process has registered for the first time, requests wait: they may be meant for an earlier process that was
        killed.
        """
        if self._broker_epoch() == _UNKNOWN_EPOCH != request.broker_epoch:
            await self._registered()
        if not await self._is_elected(request.controller_id, request.controller_epoch):
            logger.warning(
                "refused a command of controller %d with epoch %d: the controller is broker %d with epoch %d",
                request.controller_id,
                request.controller_epoch,
                self._controller_id,
                self._controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if _UNKNOWN_EPOCH != request.broker_epoch < self._broker_epoch():
            logger.warning(
                "refused a command of controller %d to this broker's registration %d: the present one is %d",
                request.controller_id,
                request.broker_epoch,
                self._broker_epoch(),
            )
            return ErrorCode.STALE_BROKER_EPOCH
        self._controller_epoch, self._controller_id = request.controller_epoch, request.controller_id
        return ErrorCode.NONE

    async def _is_elected(self, controller_id: int, controller_epoch: int) -> bool:
        """Whether the sender is the controller, as far as this broker knows, or else by the metadata store. Raises:
        CloseConnection if the store does not have it yet (a server of ZooKeeper may lag), so that the request is sent
        again."""
        if controller_epoch <= self._controller_epoch:
            return (controller_epoch, controller_id) == (self._controller_epoch, self._controller_id)
        if controller_id == self._node_id:
            return True
        try:
            elected = await self._elected()
        except CoordinationError as error:
            raise CloseConnection(f"the controller cannot be read: {error}") from error
        if elected is None or elected.epoch < controller_epoch:
            raise CloseConnection(f"no controller with epoch {controller_epoch} has been elected, as far as is known")
        return elected.controller_id == controller_id

    def _topics_without_log(self, request: LeaderAndIsrRequest) -> list[str]:
        """The topics of which this broker is to host a partition without a log here; a log that exists although the
        partition is new belongs to an earlier topic."""
        has_log = self._replicas.has_log
        return [
            topic.topic_name
            for topic in request.topic_states
            if not all(
                not state.is_new and has_log(topic.topic_name, state.partition_index)
                for state in topic.partition_states
            )
        ]

    def _topics_of_others(self, request: UpdateMetadataRequest) -> list[str]:
        """The topics that are new to this broker, and of which it has no log: their configs were not read for a log,
        nor at its start unless it has received all metadata since. Without deleted topics, whose configs would never be
        removed."""
        has_log, known_id = self._replicas.has_log, self._metadata.topic_id
        is_complete, was_found = self._metadata.is_complete, self._configs.was_found
        return [
            topic.topic_name
            for topic in request.topic_states
            if (known := known_id(topic.topic_name)) != topic.topic_id
            and (is_complete or known != ZERO_TOPIC_ID or not was_found("topics", topic.topic_name))
            and not any(
                state.leader == LEADER_DURING_DELETE or has_log(topic.topic_name, state.partition_index)
                for state in topic.partition_states
            )
        ]


def _ended_unheard(command: asyncio.Task[Any]) -> None:
    """Log the error of a request for whose response no caller waits any more."""
    error = None if command.cancelled() else command.exception()
    if error is not None:
        trace = None if isinstance(error, CoordinationError) else error
        logger.warning("a command failed after its connection broke, and is sent again: %s", error, exc_info=trace)
