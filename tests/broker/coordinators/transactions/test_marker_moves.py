"""Transactions that end while leaders move, brokers come and go, answers get lost and topics are deleted: each
partition that is left has the marker before its transaction is complete.
"""

import asyncio
import random
from collections import defaultdict

import pytest

from barnabas.broker.cluster.metadata import LEADER_DURING_DELETE, MetadataCache
from barnabas.broker.coordinators.transactions.events import AddPartitions, EndTransaction, InitProducerId
from barnabas.broker.coordinators.transactions.marker_sender import MarkerSender
from barnabas.broker.coordinators.transactions.requests import marker_errors
from barnabas.broker.coordinators.transactions.retries import RETRY_DELAY_MS
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.controller.requests import FULL, INCREMENTAL
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from tests.broker.coordinators.memory_log import MemoryLog

HERE = 1
BROKERS = (HERE, 2, 3)
TOPICS = ("a", "b", "c", "d", "e")
TRANSACTIONS = 3
SEEDS = range(150)


class World:
    """Three brokers, and topics of one partition. `leaders` is the truth; what each broker hosts, and what the
    coordinator was told, comes later. A partition's markers are in its log whoever leads it.
    """

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.leaders = {topic: self.draw.choice(BROKERS) for topic in TOPICS}
        self.hosted = {broker: {t for t, leader in self.leaders.items() if leader == broker} for broker in BROKERS}
        self.alive = set(BROKERS)
        self.markers = defaultdict(set)
        self.untold = []
        self.requests = []
        self.metadata = MetadataCache(HERE)

    # What the coordinator's broker, or another one, does with a marker

    def append(self, broker, topic, producer_id):
        """Errors: as a leader gives them."""
        if topic not in self.hosted[broker]:
            return self.draw.choice([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
        if self.draw.random() < 0.1:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        self.markers[topic].add(producer_id)
        return ErrorCode.NONE

    def write(self, topic, _partition, marker):
        error = self.append(HERE, topic, marker.producer_id)
        if error is not ErrorCode.NONE:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def send(self, broker, request, _version):
        answer = asyncio.get_running_loop().create_future()
        self.requests.append((broker, request, answer))
        return answer

    def serve(self, is_lost):
        """Another broker serves a request, unless it is dead; what it says may be lost."""
        broker, request, answer = self.requests.pop(self.draw.randrange(len(self.requests)))
        if broker not in self.alive:
            answer.set_exception(ConnectionRefusedError("dead"))
            return
        response = WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=0, error_code=self.append(broker, topic.name, marker.producer_id)
                                )
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )
        assert marker_errors(response)
        if is_lost:
            answer.set_exception(ConnectionResetError("lost"))
        else:
            answer.set_result(response)

    # What happens

    def move(self):
        topic = self.draw.choice(TOPICS)
        if topic in self.leaders:
            self.leaders[topic] = self.draw.choice([*self.alive, -1])
            self.untold += [(broker, topic) for broker in (*BROKERS, None)]

    def delete(self):
        if len(self.leaders) > 2 and self.draw.random() < 0.2:
            topic = self.draw.choice(list(self.leaders))
            del self.leaders[topic]
            self.untold += [(broker, topic) for broker in (*BROKERS, None)]

    def die(self):
        broker = self.draw.choice(BROKERS[1:])
        self.alive ^= {broker}

    async def tell(self):
        """A broker, or the coordinator's metadata (None), hears how a topic stands now."""
        who, topic = self.untold.pop(self.draw.randrange(len(self.untold)))
        leader = self.leaders.get(topic)
        if who is None:
            await self.update({topic: LEADER_DURING_DELETE if leader is None else leader})
        elif who == leader:
            self.hosted[who].add(topic)
        else:
            self.hosted[who].discard(topic)

    async def update(self, leaders, request_type=INCREMENTAL):
        states = [
            UpdateMetadataTopicState(
                topic_name=topic,
                topic_id=topic.encode().rjust(16),
                partition_states=[UpdateMetadataPartitionState(partition_index=0, leader=leader)],
            )
            for topic, leader in leaders.items()
        ]
        await self.metadata.update(UpdateMetadataRequest(type=request_type, topic_states=states))

    async def one_step(self):
        choices = [self.move, self.delete, self.die]
        if self.untold:
            choices += [self.tell] * 4
        if self.requests:
            choices += [lambda: self.serve(is_lost=self.draw.random() < 0.3)] * 4
        pending = self.draw.choice(choices)()
        if pending is not None:
            await pending


class Coordinator:
    """The transactions' coordinator in one of the brokers; what it completes is checked at once."""

    def __init__(self, world):
        self.world = world
        self.clock = ManualClock(now_ms=1_000_000)
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.sender = MarkerSender(HERE, world, world.metadata, world.send)
        self.service = TransactionService(
            MemoryLog(), self.sender, self.timers, self.clock, TransactionSettings(), 1, self.next_id
        )
        self.ids = iter(range(1000, 2000))
        self.producers = {}

    async def next_id(self):
        return next(self.ids)

    async def up(self):
        self.service.runtime.on_elected(0, 3)
        await self.service.start()
        while work := self.service.runtime.running():
            await asyncio.wait(work)

    async def end(self, name):
        producer = (await self.service.producer(InitProducerId(name, 0, 60_000)))[1:]
        self.producers[name] = producer[0]
        partitions = frozenset((topic, 0) for topic in self.world.leaders)
        await self.service.partitions(AddPartitions(name, 0, *producer, partitions, 0))
        await self.service.producer(EndTransaction(name, 0, *producer, True, 0))

    async def turn(self, passed_ms=RETRY_DELAY_MS):
        self.clock.advance(passed_ms)
        self.timers.fire_due()
        for _ in range(3):
            await asyncio.sleep(0)
        self.check()

    def is_complete(self, name):
        return self.service.describe(name).state is TransactionState.COMPLETE_COMMIT

    def check(self):
        for name, producer_id in self.producers.items():
            if self.is_complete(name):
                missing = [topic for topic in self.world.leaders if producer_id not in self.world.markers[topic]]
                assert not missing, f"{name} is complete, and {missing} have no marker"


async def explore(seed):
    world = World(seed)
    await world.update(world.leaders, FULL)
    coordinator = Coordinator(world)
    await coordinator.up()
    for number in range(TRANSACTIONS):
        await coordinator.end(f"t{number}")
        for _ in range(world.draw.randrange(25)):
            await world.one_step()
            await coordinator.turn(world.draw.choice([1, RETRY_DELAY_MS]))
    world.alive = set(BROKERS)
    world.leaders = {topic: world.draw.choice(BROKERS) for topic in world.leaders}
    world.untold += [(broker, topic) for topic in TOPICS for broker in (*BROKERS, None)]
    while world.untold:
        await world.tell()
    for _ in range(100):
        if all(map(coordinator.is_complete, coordinator.producers)):
            break
        while world.requests:
            world.serve(is_lost=False)
        await coordinator.turn()
    assert all(map(coordinator.is_complete, coordinator.producers)), "with everything in order they all end"
    await coordinator.service.stop()
    await coordinator.sender.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_partition_that_is_left_gets_its_marker(seed):
    asyncio.run(explore(seed))
