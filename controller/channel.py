"""Commands of the controller to the live brokers, and what their answers mean.

The controller's own broker is told at once, and what it makes of it is known when the call returns: what requests of
clients wait for. Other brokers have a queue each, out of which their commands are sent while the controller goes on;
their answers come back as events. So a silent broker delays nobody, and each hears everything in order.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.clock import Clock
from barnabas.controller import requests
from barnabas.controller.controller_election import ControllerElection, Deposed
from barnabas.controller.registration import Registration
from barnabas.controller.state import ClusterState, TopicPartition
from barnabas.set_aside import SetAside
from barnabas.timers import Timers
from barnabas.turns import all_in_turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from barnabas.controller.broker_queue import Answer, BrokerQueue

logger = logging.getLogger(__name__)

Command = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
"""What a controller can tell a broker."""


class BrokerChannel(Protocol):
    """How the controller reaches a broker; requests to one broker arrive in the order in which they are sent."""

    def reaches(self, broker_id: int) -> bool:
        """Whether requests can be sent to a broker. One that is not reached gets no partitions and is told nothing."""
        ...

    async def send(self, broker_id: int, request: Command, /) -> Any:
        """Deliver and return the response message of the same API, after the broker has applied the request.

        Raises: OSError where another broker cannot be reached, or does not answer in time.
        """
        ...


class BrokerCommands:
    """Sends the controller's commands, with its id and epoch, to its own broker and to all that it has met (`meet`).

    Called by the controller's task alone. What tells the own broker returns when that has applied it, and raises
    `Deposed` if it knows a newer controller, and whatever the channel raises; what is told to others is queued, once it
    is built, with turns for others where it is long.
    `answered` is called with each answer of another broker.
    """

    def __init__(
        self,
        channel: BrokerChannel,
        registration: Registration,
        election: ControllerElection,
        inter_broker_listener: str | None,
        timers: Timers,
        answered: Callable[["Answer"], None],
        clock: Clock,
    ) -> None:
        self._channel = channel
        self._registration = registration
        self._election = election
        self._inter_broker_listener = inter_broker_listener
        self.timers = timers
        """The timers of what waits for answers of other brokers."""
        self._answered = answered
        self.set_aside = SetAside[int](
            "telling brokers", clock, first_delay_ms=0, name=lambda broker: f"broker {broker}"
        )
        """Who cannot be told for a reason that nobody foresaw; it is tried as often as if it were out of reach."""
        self.unsendable = SetAside[tuple[int, str]](
            "telling", clock, first_delay_ms=0, name=lambda found: f"broker {found[0]} of {found[1]}"
        )
        """What brokers are not told of, as no message can carry it; the next command about it is tried as well."""
        self._queues: dict[int, BrokerQueue] = {}
        self._closing: dict[BrokerQueue, None] = {}

    def reaches(self, broker_id: int) -> bool:
        """Whether this controller can say anything to a broker."""
        return self._channel.reaches(broker_id)

    @property
    def own_id(self) -> int:
        """The id of the controller's own broker."""
        return self._registration.broker.broker_id

    @property
    def others(self) -> list[int]:
        """The ids of the other brokers that it has met and not parted from."""
        return list(self._queues)

    @property
    def _sender(self) -> requests.Sender:
        return requests.Sender(self.own_id, self._election.epoch, self._inter_broker_listener)

    # -- whom it talks to

    def meet(self, broker_ids: Iterable[int]) -> None:
        """Begin to talk to other brokers: to a new life of those that it has met before."""
        for broker_id in broker_ids:
            if broker_id == self.own_id:
                continue
            from barnabas.controller.broker_queue import BrokerQueue

            self.part_from([broker_id])
            self._queues[broker_id] = BrokerQueue(
                broker_id, self._channel, self.timers, self._answered, self.set_aside, self.unsendable
            )

    def part_from(self, broker_ids: Iterable[int]) -> None:
        """Say nothing more to these brokers, also of what waits."""
        for broker_id in broker_ids:
            queue = self._queues.pop(broker_id, None)
            if queue is not None:
                queue.close()
                self._closing[queue] = None
                self.set_aside.forget(broker_id)
                for found in self.unsendable.members:
                    if found[0] == broker_id:
                        self.unsendable.forget(found)
        self._closing = {queue: None for queue in self._closing if not queue.is_closed}

    async def stop(self) -> None:
        """Part from all, and wait until nothing runs any more."""
        self.part_from(self.others)
        await asyncio.gather(*(queue.closed() for queue in self._closing))

    # -- what it says

    async def assign_roles(
        self,
        cluster: ClusterState,
        partitions: Iterable[TopicPartition],
        new: Collection[TopicPartition] = (),
        request_type: int = requests.INCREMENTAL,
    ) -> list[TopicPartition]:
        """Have the own broker lead and follow its share of the partitions; returns those whose log it could not open,
        for now or for good.
        """
        command = await all_in_turns(
            requests.leader_and_isr(self._sender, cluster, self.own_id, partitions, new, request_type)
        )
        if command is None:
            return []
        response = await self._channel.send(self.own_id, command)
        return self.refused_roles(cluster, self.own_id, command, response)

    async def post_roles(
        self,
        cluster: ClusterState,
        broker_id: int,
        partitions: Iterable[TopicPartition],
        new: Collection[TopicPartition] = (),
        request_type: int = requests.INCREMENTAL,
    ) -> None:
        """Have another broker lead and follow its share of the partitions."""
        work = requests.leader_and_isr(self._sender, cluster, broker_id, partitions, new, request_type)
        self._post(broker_id, await all_in_turns(work))

    def refused_roles(
        self, cluster: ClusterState, broker_id: int, command: LeaderAndIsrRequest, response: LeaderAndIsrResponse
    ) -> list[TopicPartition]:
        """The partitions whose log a broker could not open.

        Raises: Deposed.
        """
        if self._check(broker_id, response.error_code) is not ErrorCode.NONE:
            return [(t.topic_name, state.partition_index) for t in command.topic_states for state in t.partition_states]
        names = {topic.topic_id: topic.topic_name for topic in command.topic_states}
        failed = []
        for topic_id, refusal in [(t.topic_id, error) for t in response.topics for error in t.partition_errors]:
            error = ErrorCode.of(refusal.error_code)
            if error is ErrorCode.NONE:
                continue
            name = names.get(topic_id)
            partition = (name or "?", refusal.partition_index)
            if cluster.is_online(broker_id, partition):  # else this was told before
                logger.error("broker %d refused its role in %s-%d: %s", broker_id, *partition, error.name)
            if error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INCONSISTENT_TOPIC_ID) and name is not None:
                failed.append(partition)
        return failed

    async def update_metadata(
        self,
        cluster: ClusterState,
        partitions: Iterable[TopicPartition],
        request_type: int = requests.INCREMENTAL,
        left_out: Iterable[str] = (),
    ) -> None:
        """Let the own broker know who is alive and how the partitions stand, and, where it is told of all, which topics
        are left out."""
        command = await all_in_turns(
            requests.update_metadata(self._sender, cluster, self.own_id, partitions, request_type, left_out)
        )
        response: UpdateMetadataResponse = await self._channel.send(self.own_id, command)
        self._check(self.own_id, response.error_code)

    async def post_metadata(
        self,
        cluster: ClusterState,
        broker_id: int,
        partitions: Iterable[TopicPartition],
        request_type: int = requests.INCREMENTAL,
        left_out: Iterable[str] = (),
    ) -> None:
        """Let another broker know what `update_metadata` says to the own one."""
        work = requests.update_metadata(self._sender, cluster, broker_id, partitions, request_type, left_out)
        self._post(broker_id, await all_in_turns(work))

    async def delete_replicas(self, cluster: ClusterState, names: Collection[str]) -> dict[str, ErrorCode]:
        """Have the own broker delete its replicas of topics; returns the error of those that stay, by name."""
        command = requests.stop_replicas_for_deletion(self._sender, cluster, self.own_id, names)
        if command is None:
            return {}
        return self.refused_deletions(self.own_id, command, await self._channel.send(self.own_id, command))

    def post_deletion(self, cluster: ClusterState, broker_id: int, names: Collection[str]) -> None:
        """Have another broker delete its replicas of topics."""
        self._post(broker_id, requests.stop_replicas_for_deletion(self._sender, cluster, broker_id, names))

    async def stop_replicas(self, cluster: ClusterState, partitions: Iterable[TopicPartition]) -> None:
        """Have the own broker stop to follow partitions; it keeps their logs."""
        command = requests.stop_replicas(self._sender, cluster, self.own_id, partitions)
        if command is not None:
            self.refused_deletions(self.own_id, command, await self._channel.send(self.own_id, command))

    def post_stop(self, cluster: ClusterState, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have another broker stop to follow partitions; it keeps their logs."""
        self._post(broker_id, requests.stop_replicas(self._sender, cluster, broker_id, partitions))

    async def remove_replicas(
        self, cluster: ClusterState, broker_id: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """Have a broker delete its replicas of partitions that others have from now on; the own one has, on return."""
        if broker_id == self.own_id:
            command = requests.stop_replicas(self._sender, cluster, broker_id, partitions, delete=True)
            if command is not None:
                self.refused_deletions(broker_id, command, await self._channel.send(broker_id, command))
        elif broker_id in self._queues:
            self._post(broker_id, requests.stop_replicas(self._sender, cluster, broker_id, partitions, delete=True))

    def refused_deletions(
        self, broker_id: int, command: StopReplicaRequest, response: StopReplicaResponse
    ) -> dict[str, ErrorCode]:
        """The error of those topics that a broker could not delete its replicas of, by name.

        Raises: Deposed.
        """
        error = self._check(broker_id, response.error_code)
        failed: dict[str, ErrorCode] = {}
        if error is not ErrorCode.NONE:
            failed = dict.fromkeys((topic.topic_name for topic in command.topic_states), error)
        failed |= {e.topic_name: ErrorCode.of(e.error_code) for e in response.partition_errors if e.error_code}
        for name, code in failed.items():
            logger.error("broker %d could not delete its replicas of topic %s: %s", broker_id, name, code.name)
        return failed

    def check_metadata(self, broker_id: int, response: UpdateMetadataResponse) -> None:
        """Log what a broker did not accept. Raises: Deposed."""
        self._check(broker_id, response.error_code)

    def when_told(self, call: Callable[[], None]) -> None:
        """Call when the other brokers have answered to everything said so far; never where one of them does not."""
        left = len(self._queues)

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                call()

        for queue in self._queues.values():
            queue.when_answered(count)
        if left == 0:
            call()

    def _post(self, broker_id: int, command: Command | None) -> None:
        queue = self._queues.get(broker_id)
        if command is not None and queue is not None:
            queue.post(command)

    def _check(self, broker_id: int, error_code: int) -> ErrorCode:
        """The error of a command as a whole."""
        error = ErrorCode.of(error_code)
        if error is ErrorCode.STALE_CONTROLLER_EPOCH:
            raise Deposed(f"broker {broker_id} knows a newer controller")
        if error is not ErrorCode.NONE:
            logger.error("broker %d refused a command of the controller: %s", broker_id, error.name)
        return error
