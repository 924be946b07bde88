"""Commands of the controller to the live brokers, and their responses.

Each broker has a queue, whose commands are sent while the controller continues; the responses are delivered as events.
So a broker that does not respond, or whose disk hangs, delays no other broker, and each broker receives all commands in
order. The same holds for the controller's own broker, which receives them without a socket
(`broker/cluster/local_channel.py`); client requests wait for its response (`ControllerContext.when_own_told`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable

from barnabas.clock import Clock
from barnabas.controller import requests
from barnabas.controller.broker_queue import Answer, BrokerQueue
from barnabas.controller.channel import BrokerChannel, Command
from barnabas.controller.controller_election import ControllerElection
from barnabas.controller.registration import Registration
from barnabas.controller.state import ClusterState, TopicPartition
from barnabas.set_aside import SetAside
from barnabas.timers import Timers
from barnabas.turns import all_in_turns


class BrokerCommands:
    """Queues the controller's commands, with its id and epoch, for the known brokers (`meet`). Building a long command
    yields to other tasks in between. `answered` is called with each response. Used by the controller's task alone.
    """

    def __init__(
        self,
        channel: BrokerChannel,
        registration: Registration,
        election: ControllerElection,
        inter_broker_listener: str | None,
        timers: Timers,
        answered: Callable[[Answer], None],
        clock: Clock,
    ) -> None:
        self._channel = channel
        self._registration = registration
        self._election = election
        self._inter_broker_listener = inter_broker_listener
        self.timers = timers
        """The timers for requests that wait for broker responses."""
        self._answered = answered
        self.set_aside = SetAside[int](
            "telling brokers", clock, first_delay_ms=0, name=lambda broker: f"broker {broker}"
        )
        """Brokers that cannot be informed because of an unexpected error; they are retried like unreachable ones."""
        self.unsendable = SetAside[tuple[int, str]](
            "telling", clock, first_delay_ms=0, name=lambda found: f"broker {found[0]} of {found[1]}"
        )
        """Subjects that no message can carry, so that brokers are not informed of them; the next command retries."""
        self.term = 0
        """Incremented when the own broker's queue is replaced: what it was told before no longer counts."""
        self._queues: dict[int, BrokerQueue] = {}
        self._closing: dict[BrokerQueue, None] = {}

    def reaches(self, broker_id: int) -> bool:
        """Whether this controller can send anything to a broker."""
        return self._channel.reaches(broker_id)

    @property
    def own_id(self) -> int:
        """The id of the controller's own broker."""
        return self._registration.broker.broker_id

    @property
    def met(self) -> list[int]:
        """The ids of the known brokers; the own one last, because its work takes this process's time."""
        return sorted(self._queues, key=lambda broker_id: broker_id == self.own_id)

    @property
    def others(self) -> list[int]:
        """The ids of the known brokers except the own one."""
        return [broker_id for broker_id in self._queues if broker_id != self.own_id]

    @property
    def _sender(self) -> requests.Sender:
        return requests.Sender(self.own_id, self._election.epoch, self._inter_broker_listener)

    # -- known brokers

    def meet(self, broker_ids: Iterable[int]) -> None:
        """Start a queue for each broker; a known broker gets a new one, for a new registration."""
        for broker_id in broker_ids:
            self.part_from([broker_id])
            self._queues[broker_id] = BrokerQueue(
                broker_id, self._channel, self.timers, self._answered, self.set_aside, self.unsendable
            )

    def part_from(self, broker_ids: Iterable[int]) -> None:
        """Send nothing more to these brokers, including pending commands."""
        for broker_id in broker_ids:
            queue = self._queues.pop(broker_id, None)
            if queue is not None:
                self.term += broker_id == self.own_id
                self._closing[queue] = None
                queue.close()
                self.set_aside.forget(broker_id)
                for found in self.unsendable.members:
                    if found[0] == broker_id:
                        self.unsendable.forget(found)
        self._closing = {queue: None for queue in self._closing if not queue.is_closed}

    async def own_answered(self) -> None:
        """Wait until the own broker has responded to all commands so far; returns at once if it receives none.

        Raises: as `BrokerQueue.answered`.
        """
        if self.own_id in self._queues:
            await self._queues[self.own_id].answered()

    async def finish(self) -> None:
        """Let the own broker process its pending commands, if possible; to be called after the last command."""
        if self.own_id in self._queues:
            await self._queues[self.own_id].finish()

    async def stop(self) -> None:
        """Close all queues, and wait until nothing runs any more."""
        self.part_from(self.met)
        await asyncio.gather(*(queue.closed() for queue in self._closing))

    # -- commands

    async def assign_roles(
        self,
        cluster: ClusterState,
        broker_id: int,
        partitions: Iterable[TopicPartition],
        new: Collection[TopicPartition] = (),
        request_type: int = requests.INCREMENTAL,
    ) -> None:
        """Send a broker its leader and follower roles in the partitions (LeaderAndIsr)."""
        work = requests.leader_and_isr(self._sender, cluster, broker_id, partitions, new, request_type)
        self._post(broker_id, await all_in_turns(work))

    async def update_metadata(
        self,
        cluster: ClusterState,
        broker_id: int,
        partitions: Iterable[TopicPartition],
        request_type: int = requests.INCREMENTAL,
        left_out: Iterable[str] = (),
    ) -> None:
        """Send a broker the live brokers and partition states (UpdateMetadata), and, with a full update, the topics
        that are left out.
        """
        work = requests.update_metadata(self._sender, cluster, broker_id, partitions, request_type, left_out)
        self._post(broker_id, await all_in_turns(work))

    def delete_topics(self, cluster: ClusterState, broker_id: int, names: Collection[str]) -> None:
        """Send a broker the deletion of its replicas of topics."""
        self._post(broker_id, requests.stop_replicas_for_deletion(self._sender, cluster, broker_id, names))

    def stop_replicas(
        self, cluster: ClusterState, broker_id: int, partitions: Iterable[TopicPartition], *, delete: bool = False
    ) -> None:
        """Make a broker stop hosting partitions; it keeps their logs, or has to `delete` them. Nothing is sent to an
        unknown broker.
        """
        if broker_id in self._queues:
            self._post(broker_id, requests.stop_replicas(self._sender, cluster, broker_id, partitions, delete=delete))

    def when_answered(self, broker_ids: Collection[int], call: Callable[[], None]) -> None:
        """Call when these brokers have responded to all commands so far; brokers whose queue is closed do not count."""
        queues = [self._queues[broker_id] for broker_id in broker_ids if broker_id in self._queues]
        left = len(queues)

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                call()

        for queue in queues:
            queue.when_answered(count)
        if not queues:
            call()

    def _post(self, broker_id: int, command: Command | None) -> None:
        queue = self._queues.get(broker_id)
        if command is not None and queue is not None:
            queue.post(command)
