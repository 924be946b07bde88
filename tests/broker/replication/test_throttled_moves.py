"""The effects of the leader's throttle alone, and of the follower's throttle alone (KIP-73). One broker leads all
topics, the other one follows. Both lists of throttled replicas have all listed replicas, so that the rate alone limits
one side."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

import pytest

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.configs import BROKER, alter_configs
from barnabas.broker.client.reassignments import reassign, reassignments
from barnabas.broker.replication.throttles import Throttle
from barnabas.testing import Cluster
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tools.waiting import until_answer

pytestmark = pytest.mark.slow

T = TypeVar("T")

LEADER: Final = 0
FOLLOWER: Final = 1
BROKERS: Final = {"leader": LEADER, "follower": FOLLOWER}
LISTED: Final = {f"{side}.replication.throttled.replicas": "*" for side in BROKERS}
RECORDS: Final = 5
VALUE: Final = b"v" * 1000
LARGE: Final = 30_000
SLOW: Final = 1
"""Bytes per second: what one record has used up flows in again in a quarter of an hour."""
FAST: Final = 1_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        2,
        auto_leader_rebalance_enable=False,
        min_insync_replicas=1,
        replica_fetch_wait_max_ms=50,
        replica_fetch_max_bytes=LARGE * 3,
    ) as running:
        yield running


class Side:
    """The two brokers, of which one has a rate: `name` is leader or follower."""

    names = itertools.count()

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self._rate = f"{name}.replication.throttled.rate"
        self.topic([LEADER, FOLLOWER])  # with which there is somebody who leads others, and somebody who follows

    def limit(self, rate: int) -> None:
        """Have this side's rate hold."""
        self._ask(lambda client: alter_configs(client, BROKER, self._broker, set_to={self._rate: str(rate)}))
        self._until(lambda: self._throttle().is_limited, "the rate does not hold")

    def unlimit(self) -> None:
        """Have no rate hold any more."""
        self._ask(lambda client: alter_configs(client, BROKER, self._broker, set_to={}, delete=[self._rate]))
        self._until(lambda: not self._throttle().is_limited, "the rate does not end")

    def topic(self, replicas: Sequence[int], *, is_listed: bool = False, records: int = 0) -> str:
        """A topic with one partition on these brokers, and records; of those that the rate is for, if it is listed."""
        name = f"{self.name}-{next(self.names)}"
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
            configs=[
                CreatableTopicConfig(name="min.insync.replicas", value=str(len(replicas))),
                *(CreatableTopicConfig(name=key, value=value) for key, value in LISTED.items() if is_listed),
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        answer = self._ask(lambda client: client.send_to_controller(request))
        assert [each.error_code for each in answer.topics] == [0]
        # A broker that has a replica knows the topic's configs: they are read before a log is made.
        self._until(lambda: set(replicas) <= self._that_have(name), f"{name} is nowhere")
        self.produce(name, records)
        return name

    def produce(self, topic: str, records: int) -> None:
        """Append as many records, which every replica acknowledges that the topic was created with."""
        for _ in range(records):
            self.cluster.topic(topic).produce(VALUE)

    def move(self, topic: str) -> None:
        """Reassign a replica to the broker that follows, and wait until the broker knows its role."""
        refusals = self._ask(lambda client: reassign(client, {(topic, 0): [LEADER, FOLLOWER]}))
        assert refusals == {(topic, 0): None}
        self._until(lambda: FOLLOWER in self._that_have(topic), f"nobody copies {topic}")

    def wait_moved(self, topic: str) -> None:
        """Return when the new replica is in sync, and nothing is under way any more."""

        async def is_over(client: KafkaClient) -> bool:
            return (topic, 0) not in await reassignments(client)

        async def wait(client: KafkaClient) -> None:
            await until_answer(lambda: is_over(client))

        self._ask(wait)
        assert self.copied(topic) == RECORDS

    def is_moving(self, topic: str) -> bool:
        """Whether the new replica is still waited for."""
        return (topic, 0) in self._ask(reassignments)

    def copied(self, topic: str) -> int:
        """How many records the broker that follows has."""

        async def look() -> int:
            return self._copied(topic)

        return self.cluster.call(look())

    def when_copied(self, topics: Sequence[str], records: int, which: Callable[[Sequence[bool]], bool]) -> list[int]:
        """How many records of each topic the broker that follows has, as soon as `any` or `all` have so many."""

        def look() -> list[int] | None:
            found = [self._copied(each) for each in topics]
            return found if which([each >= records for each in found]) else None

        return self.cluster.call(self.cluster._eventually(look, f"no {records} records are copied"))

    def _copied(self, topic: str) -> int:
        """On the loop of the cluster."""
        partition = self.cluster.brokers[FOLLOWER].server.replicas.partition(topic, 0)
        return 0 if partition is None else partition.log.log_end_offset

    @property
    def _broker(self) -> str:
        return str(BROKERS[self.name])

    def _throttle(self) -> Throttle:
        """On the loop of the cluster."""
        replicas = self.cluster.brokers[BROKERS[self.name]].server.replicas
        fetchers = replicas.fetchers
        parts = replicas.leaderships if self.name == "leader" else fetchers and fetchers.context
        assert parts is not None
        assert parts.throttle is not None
        return parts.throttle

    def _that_have(self, topic: str) -> set[int]:
        return {each.node_id for each in self.cluster.live_servers() if each.replicas.partition(topic, 0) is not None}

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        self.cluster.call(self.cluster._eventually(lambda: is_so() or None, what))

    def _ask(self, ask: Callable[[KafkaClient], Awaitable[T]]) -> T:
        async def work() -> T:
            async with KafkaClient(self.cluster.bootstrap_servers) as client:
                return await ask(client)

        return asyncio.run(work())


@pytest.fixture(params=BROKERS)
def side(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Side]:
    found = Side(cluster, request.param)
    yield found
    found.unlimit()


def test_a_throttled_new_replica_gets_all_when_its_turn_comes(side: Side) -> None:
    """A replica that is not listed was added later, and in the same way."""
    side.limit(0)
    listed = side.topic([LEADER], is_listed=True, records=RECORDS)
    other = side.topic([LEADER], records=RECORDS)
    side.move(listed)
    side.move(other)
    side.wait_moved(other)
    assert side.is_moving(listed)
    assert side.copied(listed) == 0
    side.limit(FAST)
    side.wait_moved(listed)


def test_a_replica_in_sync_is_not_held_up(side: Side) -> None:
    """Nor after an election of its leader, when its offset is unknown: acknowledgements wait for it."""
    side.limit(0)
    listed = side.topic([LEADER, FOLLOWER], is_listed=True, records=RECORDS)
    assert side.copied(listed) == RECORDS
    side.cluster.faults.raise_leader_epoch(listed)
    side.produce(listed, 1)
    assert side.copied(listed) == RECORDS + 1


def test_bytes_of_replicas_in_sync_count(side: Side) -> None:
    """At a rate at which the first bytes of a new replica may pass, these have to wait for the bytes of replicas in
    sync."""
    side.limit(SLOW)
    side.topic([LEADER, FOLLOWER], is_listed=True, records=1)
    listed = side.topic([LEADER], is_listed=True, records=RECORDS)
    other = side.topic([LEADER], records=RECORDS)
    side.move(listed)
    side.move(other)
    side.wait_moved(other)
    assert side.copied(listed) == 0
    side.limit(FAST)
    side.wait_moved(listed)


def test_the_first_bytes_of_a_new_replica_pass_the_throttle(side: Side) -> None:
    """So that other replicas delay it in the test above."""
    side.limit(SLOW)
    listed = side.topic([LEADER], is_listed=True, records=RECORDS)
    side.move(listed)
    side.wait_moved(listed)


def test_all_have_their_turns(side: Side) -> None:
    """While the first replicas have much to copy, other ones that would soon be in sync do not wait for their end."""
    side.limit(0)
    listed = [side.topic([LEADER], is_listed=True) for _ in range(3)]
    for each in listed:
        for _ in range(20):
            side.cluster.topic(each).produce(b"v" * LARGE)
        side.move(each)
    side.limit(20 * LARGE)
    found = side.when_copied(listed, 20, any)
    assert min(found) >= 10, found
    side.limit(FAST)
    side.when_copied(listed, 20, all)
