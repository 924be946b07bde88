"""Commands of the controller to the live brokers, and what their answers mean.

Each broker has a queue, out of which its commands are sent while the controller goes on; the answers come back as
events. So a broker that is silent, or whose disk hangs, delays nobody, and each hears everything in order. That holds
for the controller's own broker, too, which is told without a socket (`broker/cluster/local_channel.py`); what requests
of clients wait for is its answer (`ControllerContext.when_own_told`).
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
    """Queues the controller's commands, with its id and epoch, for the brokers that it has met (`meet`), once they are
    built, with turns for others where that is long. `answered` is called with each answer. Called by the controller's
    task alone.
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
        """The timers of what waits for answers of brokers."""
        self._answered = answered
        self.set_aside = SetAside[int](
            "telling brokers", clock, first_delay_ms=0, name=lambda broker: f"broker {broker}"
        )
        """Who cannot be told for a reason that nobody foresaw; it is tried as often as if it were out of reach."""
        self.unsendable = SetAside[tuple[int, str]](
            "telling", clock, first_delay_ms=0, name=lambda found: f"broker {found[0]} of {found[1]}"
        )
        """What brokers are not told of, as no message can carry it; the next command about it is tried as well."""
        self.term = 0
        """Another one each time that it begins anew with the own broker: what that was told before does not count."""
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
    def met(self) -> list[int]:
        """The ids of the brokers that it has met and not parted from; the own one last, whose work takes this process's
        time."""
        return sorted(self._queues, key=lambda broker_id: broker_id == self.own_id)

    @property
    def others(self) -> list[int]:
        """The ids of those that it has met, but for the own one."""
        return [broker_id for broker_id in self._queues if broker_id != self.own_id]

    @property
    def _sender(self) -> requests.Sender:
        return requests.Sender(self.own_id, self._election.epoch, self._inter_broker_listener)

    # -- whom it talks to

    def meet(self, broker_ids: Iterable[int]) -> None:
        """Begin to talk to brokers: to a new life of those that it has met before."""
        for broker_id in broker_ids:
            self.part_from([broker_id])
            self._queues[broker_id] = BrokerQueue(
                broker_id, self._channel, self.timers, self._answered, self.set_aside, self.unsendable
            )

    def part_from(self, broker_ids: Iterable[int]) -> None:
        """Say nothing more to these brokers, also of what waits."""
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
        """Wait until the own broker has answered to everything said so far; at once where it is told nothing.

        Raises: as `BrokerQueue.answered`.
        """
        if self.own_id in self._queues:
            await self._queues[self.own_id].answered()

    async def finish(self) -> None:
        """Have the own broker obey what was said, if it can; to be called when nothing more is said."""
        if self.own_id in self._queues:
            await self._queues[self.own_id].finish()

    async def stop(self) -> None:
        """Part from all, and wait until nothing runs any more."""
        self.part_from(self.met)
        await asyncio.gather(*(queue.closed() for queue in self._closing))

    # -- what it says

    async def assign_roles(
        self,
        cluster: ClusterState,
        broker_id: int,
        partitions: Iterable[TopicPartition],
        new: Collection[TopicPartition] = (),
        request_type: int = requests.INCREMENTAL,
    ) -> None:
        """Have a broker lead and follow its share of the partitions."""
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
        """Let a broker know who is alive and how the partitions stand, and, where it is told of all, which topics are
        left out."""
        work = requests.update_metadata(self._sender, cluster, broker_id, partitions, request_type, left_out)
        self._post(broker_id, await all_in_turns(work))

    def delete_topics(self, cluster: ClusterState, broker_id: int, names: Collection[str]) -> None:
        """Have a broker delete its replicas of topics."""
        self._post(broker_id, requests.stop_replicas_for_deletion(self._sender, cluster, broker_id, names))

    def stop_replicas(
        self, cluster: ClusterState, broker_id: int, partitions: Iterable[TopicPartition], *, delete: bool = False
    ) -> None:
        """Have a broker host partitions no more; it keeps their logs, or has to `delete` them. Nothing is said to one
        that it has not met."""
        if broker_id in self._queues:
            self._post(broker_id, requests.stop_replicas(self._sender, cluster, broker_id, partitions, delete=delete))

    def when_answered(self, broker_ids: Collection[int], call: Callable[[], None]) -> None:
        """Call when these brokers have answered to everything said so far, but for those that it has parted from."""
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
