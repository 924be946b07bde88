"""Requests that wait for a silent broker are merged, and have the same effect as one after the other."""

import asyncio
import random
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.broker_queue import ENTRIES_MAX, BrokerQueue, entries
from barnabas.controller.channel import Command
from barnabas.controller.command_merging import merged
from barnabas.controller.requests import FULL, INCREMENTAL
from barnabas.controller.state import EPOCH_DURING_DELETE, LEADER_DURING_DELETE
from barnabas.set_aside import SetAside
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.support.manual_timers import ManualTimers


class Replica:
    """The state of a broker after requests."""

    def __init__(self) -> None:
        self.metadata: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        self.live: list[int] = []
        self.roles: dict[tuple[str, int], tuple[bytes, int, int]] = {}
        self.logs: dict[tuple[str, int], bytes] = {}
        self.set_aside = 0
        self.knows_all = False

    def obey(self, command: Command) -> None:
        for topic in command.topic_states:
            for state in topic.partition_states:
                if isinstance(command, LeaderAndIsrRequest):
                    self._host(topic.topic_name, bytes(topic.topic_id), state)
                elif isinstance(command, StopReplicaRequest):
                    self.roles.pop((topic.topic_name, state.partition_index), None)
                    if state.delete_partition:
                        self.logs.pop((topic.topic_name, state.partition_index), None)
        if isinstance(command, UpdateMetadataRequest):
            self._learn(command)
        elif isinstance(command, LeaderAndIsrRequest):
            self.knows_all |= command.type == FULL

    def _host(self, name: str, topic_id: bytes, state: Any) -> None:
        key = (name, state.partition_index)
        assert state.leader in self.live, "who lives is told before roles"
        if self.logs.get(key, topic_id) != topic_id:
            assert state.is_new, "the log of an earlier topic"
            self.set_aside += 1
        self.logs[key] = topic_id
        self.roles[key] = topic_id, state.leader, state.leader_epoch

    def _learn(self, command: UpdateMetadataRequest) -> None:
        self.live = [broker.id for broker in command.live_brokers]
        if command.type == FULL:
            self.metadata.clear()
        for topic in command.topic_states:
            for state in topic.partition_states:
                key = (topic.topic_name, bytes(topic.topic_id), state.partition_index)
                if state.leader == LEADER_DURING_DELETE:
                    self.metadata.pop(key, None)
                else:
                    self.metadata[key] = state.leader, state.leader_epoch

    @property
    def outcome(self) -> tuple[Any, ...]:
        """All but the logs of what is hosted no more: those of partitions that were stopped at once are not made."""
        logs = {key: self.logs[key] for key in self.roles}
        return self.metadata, self.live, self.roles, logs, self.set_aside, self.knows_all


class Controller:
    """Makes random decisions that a controller may make."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.topics: dict[str, bytes] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.count = 0

    def live(self) -> list[UpdateMetadataBroker]:
        return [UpdateMetadataBroker(id=broker) for broker in (1, 2, 3)]

    def everything(self) -> list[Command]:
        partitions = [(name, index) for name in self.topics for index in (0, 1)]
        return [self.metadata(partitions, FULL), self.roles(partitions, (), FULL), self.metadata(partitions)]

    def roles(self, partitions: Any, new: Any = (), kind: int = INCREMENTAL) -> LeaderAndIsrRequest:
        topics = [
            LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=self.topics[name],
                partition_states=[
                    LeaderAndIsrPartitionState(
                        partition_index=index,
                        leader=1 + self.epochs[name, index] % 3,
                        leader_epoch=self.epochs[name, index],
                        is_new=(name, index) in new,
                    )
                ],
            )
            for name, index in partitions
        ]
        return LeaderAndIsrRequest(type=kind, topic_states=topics)

    def metadata(self, partitions: Any, kind: int = INCREMENTAL, leader: int | None = None) -> UpdateMetadataRequest:
        topics = [
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=self.topics[name],
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=index,
                        leader=1 + self.epochs[name, index] % 3 if leader is None else leader,
                        leader_epoch=self.epochs[name, index],
                    )
                ],
            )
            for name, index in partitions
        ]
        return UpdateMetadataRequest(type=kind, topic_states=topics, live_brokers=self.live())

    @staticmethod
    def stop(partitions: Any, *, delete: bool) -> StopReplicaRequest:
        states = [
            StopReplicaTopicState(
                topic_name=name,
                partition_states=[
                    StopReplicaPartitionState(
                        partition_index=index,
                        leader_epoch=EPOCH_DURING_DELETE if delete else 0,
                        delete_partition=delete,
                    )
                ],
            )
            for name, index in partitions
        ]
        return StopReplicaRequest(topic_states=states)

    def decide(self) -> list[Command]:
        name = self.chance.choice(["a", "b", "c"])
        partitions = [(name, 0), (name, 1)]
        if name not in self.topics:
            self.count += 1
            self.topics[name] = self.count.to_bytes(16, "big")
            self.epochs |= dict.fromkeys(partitions, 0)
            return [self.roles(partitions, partitions), self.metadata(partitions)]
        if self.chance.random() < 0.2:
            gone = self.metadata(partitions, leader=LEADER_DURING_DELETE)
            del self.topics[name]
            return [gone, self.stop(partitions, delete=True)]
        partition = self.chance.choice(partitions)
        if self.chance.random() < 0.1:
            return [self.stop([partition], delete=False)]
        self.epochs[partition] += 1
        return [self.roles([partition]), self.metadata([partition])]


@pytest.mark.parametrize("seed", range(200))
def test_a_broker_is_as_it_would_be_otherwise(seed: int) -> None:
    chance = random.Random(seed)
    controller, one_by_one, at_once = Controller(chance), Replica(), Replica()
    told = [command for _ in range(chance.randrange(6)) for command in controller.decide()]
    begin = [controller.metadata(()), *told]
    for command in begin:
        one_by_one.obey(command)
        at_once.obey(command)
    waiting = controller.everything() if chance.random() < 0.5 else []
    waiting += [command for _ in range(chance.randrange(1, 20)) for command in controller.decide()]
    if chance.random() < 0.3:  # what was put together is put together again
        middle = chance.randrange(len(waiting))
        few = merged([*merged(waiting[:middle]), *waiting[middle:]])
    else:
        few = merged(waiting)
    assert len(few) <= 4
    for command in waiting:
        one_by_one.obey(command)
    for command in few:
        at_once.obey(command)
    assert at_once.outcome == one_by_one.outcome
    assert at_once.logs.items() <= one_by_one.logs.items()


def test_topics_that_could_not_be_read_are_still_named() -> None:
    """By the last full request, unless they were read, or deleted, since."""

    def command(kind: int, **partitions: int | None) -> UpdateMetadataRequest:
        topics = [
            UpdateMetadataTopicState(
                topic_name=name,
                partition_states=[] if leader is None else [UpdateMetadataPartitionState(leader=leader)],
            )
            for name, leader in partitions.items()
        ]
        return UpdateMetadataRequest(type=kind, topic_states=topics)

    commands = [
        command(FULL, earlier=None),
        command(FULL, t=1, unread=None, read=None, deleted=None),
        command(INCREMENTAL, read=2, deleted=LEADER_DURING_DELETE),
    ]
    (told,) = merged(commands)
    assert isinstance(told, UpdateMetadataRequest)
    assert told.type == FULL
    partitions = {topic.topic_name: len(topic.partition_states) for topic in told.topic_states}
    assert partitions == {"t": 1, "read": 1, "deleted": 1, "unread": 0}


def test_a_replica_that_is_stopped_and_kept_is_still_claimed() -> None:
    """The broker has just registered, and stops before the full request: it sets aside the logs that the first full
    request omits, and its replicas must stay."""
    controller = Controller(random.Random(1))
    controller.topics["a"] = b"1" * 16
    controller.epochs |= {("a", 0): 3, ("a", 1): 3}
    partitions = [("a", 0), ("a", 1)]
    waiting = [*controller.everything(), controller.stop(partitions, delete=False)]
    for few in (merged(waiting), merged([*merged(waiting[:-1]), waiting[-1]]), merged(merged(waiting))):
        (full,) = [command for command in few if isinstance(command, LeaderAndIsrRequest) and command.type == FULL]
        named = sorted((t.topic_name, s.partition_index) for t in full.topic_states for s in t.partition_states)
        assert named == partitions
        assert isinstance(few[-1], StopReplicaRequest)


class Silent:
    """A broker that responds when the test allows it."""

    def __init__(self) -> None:
        self.may_answer, self.obeyed = asyncio.Event(), list[Command]()

    def reaches(self, _broker_id: int) -> bool:
        return True

    async def send(self, _broker_id: int, command: Command) -> None:
        await self.may_answer.wait()
        self.obeyed.append(command)


async def owe_much() -> None:
    controller, silent, answers, calls = Controller(random.Random(1)), Silent(), [], list[int]()
    queue = BrokerQueue(
        2, silent, ManualTimers(), answers.append,
        SetAside[int]("telling brokers", ManualClock()), SetAside[tuple[int, str]]("telling", ManualClock()),
    )  # fmt: skip
    one_by_one, at_once = Replica(), Replica()
    commands = [controller.metadata(()), *(command for _ in range(5_000) for command in controller.decide())]
    most = 0
    for number, command in enumerate(commands):
        one_by_one.obey(command)
        queue.post(command)
        if number == 100:
            queue.when_answered(lambda: calls.append(len(answers)))
        most = max(most, sum(entries(found) for found in queue._waiting if not callable(found)))
        if number == 0:
            await asyncio.sleep(0)
    assert most < 4 * ENTRIES_MAX
    silent.may_answer.set()
    all_done = asyncio.Event()
    queue.when_answered(all_done.set)
    await all_done.wait()
    for command in silent.obeyed:
        at_once.obey(command)
    assert at_once.outcome == one_by_one.outcome
    assert len(calls) == 1
    queue.close()
    await queue.closed()


@pytest.mark.slow
def test_requests_kept_for_a_silent_broker_are_bounded() -> None:
    asyncio.run(owe_much())
