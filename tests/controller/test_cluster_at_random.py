"""Three brokers through random deaths, silences and decisions: no broker ever leads in another's epoch, and in the end
all brokers know the controller's decisions."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.state import NO_LEADER
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ApiError
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tests.controller.cluster import Cluster, ClusterMember

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("stores", ["memory"], indirect=True)]

IDS = (1, 2, 3)
STEPS = 60


class History:
    """The events of a seed. `said` has the leaders in requests to brokers, per partition and leader epoch."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.former: list[ClusterMember] = []
        self.waiting: set[asyncio.Task[Any]] = set()
        self.names = 0

    @property
    def live(self) -> list[int]:
        return [n for n, member in self.cluster.members.items() if not member.is_dead]

    @property
    def active(self) -> list[ClusterMember]:
        return [self.cluster.members[n] for n in self.live if self.cluster.members[n].controller.is_active]

    async def begin(self) -> None:
        await self.cluster.start(*IDS)
        for _ in range(3):
            self.create()
        await asyncio.gather(*self.waiting)

    async def step(self) -> None:
        action = self.random.choices(
            [self.die, self.come, self.bounce, self.expire, self.silence, self.speak, self.create, self.delete,
             self.alter, self.stop_cleanly, self.retry, self.balance],
            [3, 6, 2, 1, 2, 4, 3, 2, 10, 2, 4, 2],
        )[0]  # fmt: skip
        await action() if asyncio.iscoroutinefunction(action) else action()
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(0)

    async def die(self) -> None:
        if len(self.live) > 1:
            broker_id = self.random.choice(self.live)
            self.cluster.broker(broker_id).speak_again()
            self.former.append(self.cluster.members[broker_id])
            await self.cluster.stop(broker_id)

    async def come(self) -> None:
        dead = [n for n in IDS if n not in self.live]
        if dead:
            await self.cluster.start(self.random.choice(dead))

    async def bounce(self) -> None:
        """A broker dies and restarts before any controller notices."""
        broker_id = self.random.choice(self.live)
        if self.cluster.members[broker_id] in self.active:
            return
        holds = [self.cluster.hold(n) for n in self.live if n != broker_id]
        self.cluster.broker(broker_id).speak_again()
        self.former.append(self.cluster.members[broker_id])
        await self.cluster.stop(broker_id)
        await self.cluster.start(broker_id)
        for released in holds:
            released.set()

    async def expire(self) -> None:
        broker_id = self.random.choice(self.live)
        await self.cluster.expire(broker_id)
        for _ in range(self.random.randrange(50)):
            await asyncio.sleep(0)
        await self.cluster.rejoin(broker_id)

    def silence(self) -> None:
        if self.active:
            others = [n for n in self.live if self.cluster.members[n] is not self.active[0]]
            for broker_id in self.random.sample(others, min(1, len(others))):
                self.cluster.broker(broker_id).is_silent = True

    def speak(self) -> None:
        for broker_id in self.live:
            self.cluster.broker(broker_id).speak_again()

    def retry(self) -> None:
        self.cluster.fire_retries()

    def balance(self) -> None:
        for member in self.active:
            member.timers.fire(300_000)

    def create(self) -> None:
        self.names += 1
        replicas = self.random.sample(IDS, self.random.randint(1, 3))
        self.ask("create_topics", [NewTopic(f"t{self.names}", assignments=[(0, replicas), (1, replicas[::-1])])])

    def delete(self) -> None:
        if self.names:
            self.ask("delete_topics", [f"t{self.random.randint(1, self.names)}"])

    def alter(self) -> None:
        """A leader sends AlterPartition with another ISR, by the state that it received, which may be out of date."""
        broker_id = self.random.choice(self.live)
        member = self.cluster.members[broker_id]
        led = [(p, role) for p, role in member.broker.roles.items() if role.leader == broker_id]
        if not led or not self.active:
            return
        (name, index), role = self.random.choice(led)
        isr = [broker_id, *self.random.sample([r for r in role.replicas if r != broker_id], len(role.replicas) // 2)]
        self.random.shuffle(isr)
        known = self.active[0].controller.cluster
        wanted = RequestPartitionData(
            partition_index=index,
            leader_epoch=role.leader_epoch,
            partition_epoch=role.partition_epoch,
            new_isr_with_epochs=[
                BrokerState(broker_id=n, broker_epoch=known.brokers[n].epoch if n in known.brokers else 5) for n in isr
            ],
        )
        topic_id = known.topics[name].topic_id if name in known.topics else bytes(16)
        topic = RequestTopicData(topic_id=topic_id, partitions=[wanted])
        request = AlterPartitionRequest(
            broker_id=broker_id, broker_epoch=member.controller.broker_epoch, topics=[topic]
        )
        self.ask("alter_partition", request)

    def stop_cleanly(self) -> None:
        broker_id = self.random.choice(self.live)
        epoch = self.cluster.members[broker_id].controller.broker_epoch
        self.ask("controlled_shutdown", ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch))

    def ask(self, method: str, *arguments: Any) -> None:
        """Send a request to the active controller without waiting for a response."""

        async def asking() -> None:
            with suppress(ApiError):
                await getattr(controller, method)(*arguments)

        for member in self.active[:1]:
            controller = member.controller
            task = asyncio.create_task(asking())
            self.waiting.add(task)
            task.add_done_callback(self.waiting.discard)

    async def end(self) -> None:
        """All brokers live, in lives that have no controlled shutdown, and receive requests."""
        self.speak()
        for broker_id in IDS:
            if broker_id not in self.live:
                await self.cluster.start(broker_id)
        await self.cluster.until(lambda: self.active and self.is_known_to_all())
        for task in list(self.waiting):
            task.cancel()
        await self.cluster.settled()
        await self.cluster.until(self.is_known_to_all)  # what was asked last, too

    def is_known_to_all(self) -> bool:
        cluster = self.cluster.controller.cluster
        if set(cluster.brokers) != set(IDS) or cluster.deleting or any(cluster.offline_replicas.values()):
            return False
        states = {(topic.name, p): state for topic in cluster.topics.values() for p, state in topic.partitions.items()}
        for broker_id in IDS:
            broker = self.cluster.broker(broker_id)
            if broker.live != set(IDS) or broker.leaders != {p: state.leader for p, state in states.items()}:
                return False
            for partition, state in states.items():
                replicas = cluster.topics[partition[0]].assignments[partition[1]].replicas
                role = broker.roles.get(partition)
                is_up_to_date = role is not None and (role.leader, role.leader_epoch) == (
                    state.leader,
                    state.leader_epoch,
                )
                stopped = role is None and broker_id in cluster.shutting_down
                if broker_id in replicas and not is_up_to_date and not stopped:
                    return False
        return True


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_happens(stores: Any, clock: ManualClock, seed: int) -> None:
    async with Cluster(stores, clock) as cluster:
        history = History(cluster, seed)
        await history.begin()
        for _ in range(STEPS):
            await history.step()
        await history.end()
        leaders: dict[tuple[bytes, int, int], set[int]] = {}
        lives: dict[tuple[bytes, int, int], set[int]] = {}
        for number, life in enumerate([*history.former, *cluster.members.values()]):
            for command in life.broker.log:
                for topic in command.topic_states if isinstance(command, LeaderAndIsrRequest) else ():
                    for told in topic.partition_states:
                        key = (bytes(topic.topic_id), told.partition_index, told.leader_epoch)
                        leaders.setdefault(key, set()).add(told.leader)
                        if told.leader == life.broker.broker_id:
                            lives.setdefault(key, set()).add(number)
                        assert told.leader == NO_LEADER or told.leader in told.isr
                        assert told.isr
                        assert set(told.isr) <= set(told.replicas)
        assert leaders
        for key, named in leaders.items():
            assert len(named) == 1, f"{key}: {named} led in one leader epoch"
        for key, led in lives.items():
            assert len(led) == 1, f"{key}: led in two lives of a broker"
        session = cluster.controller._context.store
        for topic in cluster.controller.cluster.topics.values():
            for partition, state in topic.partitions.items():
                payload, stat = await session.get(znodes.partition_state_path(topic.name, partition))
                assert znodes.decode_partition_state(topic.name, partition, payload, stat.version) == state
                assert state.leader != NO_LEADER or not set(state.isr) - cluster.controller.cluster.shutting_down
