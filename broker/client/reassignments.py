"""Reassignments of partitions: listing, starting, cancelling, throttling and waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.broker.client.client import ClientError, KafkaClient, check
from barnabas.broker.client.configs import BROKER, TOPIC, alter_configs, describe_configs
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.patience import patiently
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

PREFERRED: Final = 0
UNCLEAN: Final = 1

POLL_S: Final = 0.25
TROUBLE_S_MAX: Final = 60.0
"""The time for which the cluster may be without a controller, or unreachable, during a wait."""

_TIMEOUT_MS: Final = 30_000
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_CONFIG_LENGTH_MAX: Final = 32_767
"""A config's value is a string of the protocol, whose length is an int16 in older versions."""

_ADVICE: Final = {
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: ": start the broker of its first replica, or wait until that is in sync"
    " (barnabas topics list --under-replicated)",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: ": start a broker that has a replica of it",
}

_SET_AT_RUN_TIME: Final = {TOPIC: 1, BROKER: 2}
"""The source of a config that was set for this topic or broker."""

Targets = Mapping[TopicPartition, Sequence[int]]
"""The target replicas of partitions; the first one is preferred."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress: all present replicas, the adding and the removing ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas of the partition after the reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing)


def partition_text(partition: TopicPartition) -> str:
    """A partition's name for users: `flights-3`."""
    return f"{partition[0]}-{partition[1]}"


async def reassignments(client: KafkaClient) -> dict[TopicPartition, Reassignment]:
    """All reassignments in progress. Errors: ClientError."""
    response = await client.send_to_controller(ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS))
    check(response.error_code, "cannot list the reassignments", response.error_message)
    return {
        (topic.name, part.partition_index): Reassignment(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in response.topics
        for part in topic.partitions
    }


async def reassign(
    client: KafkaClient, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, str | None]:
    """Start reassignments, or cancel them (None); returns the error of each, or None. Errors: ClientError."""
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in targets.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        wanted = None if replicas is None else list(replicas)
        topic.partitions.append(ReassignablePartition(partition_index=index, replicas=wanted))
    request = AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=list(topics.values()))
    response = await client.send_to_controller(request, wait_s=_TIMEOUT_MS / 1000)
    check(response.error_code, "cannot reassign partitions", response.error_message)
    return {
        (each.name, part.partition_index): _words(part.error_code, part.error_message)
        for each in response.responses
        for part in each.partitions
    }


async def elect(
    client: KafkaClient,
    partitions: Collection[TopicPartition] | None,
    election_type: int = PREFERRED,
    *,
    wait_s: float = 0.0,
) -> dict[TopicPartition, str | None]:
    """Elect the preferred replicas of partitions (None: all) as leaders, or any that is left (UNCLEAN). Returns the
    error of each, or None, without those that need no election. For `wait_s` the election is repeated if the preferred
    replica is not in sync: it may have lagged for a moment. Errors: ClientError."""
    loop = asyncio.get_running_loop()
    found = answers = await _elect(client, partitions, election_type)
    until_s = loop.time() + wait_s
    while True:
        partitions = [each for each, (code, _) in answers.items() if code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
        if not partitions or loop.time() >= until_s:
            break
        await asyncio.sleep(POLL_S)
        answers = await _elect(client, partitions, election_type)
        found = {**found, **answers}
    return {each: _words(*answer) for each, answer in found.items() if answer[0] != ErrorCode.ELECTION_NOT_NEEDED}


async def _elect(
    client: KafkaClient, partitions: Iterable[TopicPartition] | None, election_type: int
) -> dict[TopicPartition, tuple[int, str | None]]:
    """The error codes, and messages, of one request."""
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=None, timeout_ms=_TIMEOUT_MS)
    if partitions is not None:
        topics: dict[str, TopicPartitions] = {}
        for name, index in partitions:
            topics.setdefault(name, TopicPartitions(topic=name)).partitions.append(index)
        request.topic_partitions = list(topics.values())
    response = await client.send_to_controller(request, wait_s=_TIMEOUT_MS / 1000)
    check(response.error_code, "cannot elect leaders")
    return {
        (each.topic, part.partition_id): (part.error_code, part.error_message)
        for each in response.replica_election_results
        for part in each.partition_result
    }


def _words(code: int, message: str | None) -> str | None:
    error = ErrorCode.of(code)
    return f"{message or error.message} ({error.name}){_ADVICE.get(error, '')}" if error else None


# --- waiting -------------------------------------------------------------------------------------

Tell = Callable[[int, int, int], None]
"""Called with the copied bytes, the bytes to copy, and the number of partitions in progress."""


async def wait_for(
    client: KafkaClient,
    partitions: Collection[TopicPartition],
    tell: Tell,
    tell_away: Callable[[int, list[TopicPartition]], None],
) -> None:
    """Wait until none of the partitions is being reassigned. `tell_away` is called once for each broker that is to get
    partitions and is down. Errors: ClientError when the cluster is unavailable for too long.
    """
    loop = asyncio.get_running_loop()
    sizes: dict[TopicPartition, int] = {}
    told: set[int] = set()
    last_s = loop.time()
    while True:
        try:
            await client.metadata([])  # looks up the controller
            found = await reassignments(client)
            left = {each: found[each] for each in partitions if each in found}
            if not left:
                break
            for broker in sorted({each for one in left.values() for each in one.target} - told - {*client.node_ids()}):
                told.add(broker)
                tell_away(broker, [each for each, one in left.items() if broker in one.target])
            copied = await _copied(client, left, sizes)
            last_s = loop.time()
        except ClientError:
            if loop.time() - last_s > TROUBLE_S_MAX:
                raise
        else:
            total = sum(sizes.values())
            tell(copied + sum(size for each, size in sizes.items() if each not in left), total, len(left))
        await asyncio.sleep(POLL_S)
    tell(sum(sizes.values()), sum(sizes.values()), 0)


async def _copied(
    client: KafkaClient, left: Mapping[TopicPartition, Reassignment], sizes: dict[TopicPartition, int]
) -> int:
    """The number of bytes that the new replicas have; `sizes` is updated with the bytes that each partition has to
    copy."""
    topics: dict[str, DescribableLogDirTopic] = {}
    for name, index in left:
        topics.setdefault(name, DescribableLogDirTopic(topic=name)).partitions.append(index)
    found: dict[tuple[TopicPartition, int], int] = {}
    for broker in sorted({each for one in left.values() for each in one.replicas}.intersection(client.node_ids())):
        response = await client.send(DescribeLogDirsRequest(topics=list(topics.values())), broker)
        for directory in response.results:
            for topic in directory.topics:
                for part in topic.partitions:
                    found[(topic.name, part.partition_index), broker] = part.partition_size
    copied = 0
    for partition, one in left.items():
        largest = max(found.get((partition, broker), 0) for broker in one.replicas)
        sizes[partition] = max(sizes.get(partition, 0), largest * len(one.adding))
        copied += sum(min(largest, found.get((partition, broker), 0)) for broker in one.adding)
    return copied


# --- throttles -----------------------------------------------------------------------------------


async def throttle(client: KafkaClient, rate: int, moves: Mapping[TopicPartition, Reassignment]) -> None:
    """Limit the bytes per second at which each broker's moving replicas are fetched (KIP-73).

    If this is interrupted, at least one broker has a rate: by that `unthrottle` finds the throttle. Brokers that have
    just died are retried until the cluster knows it. Errors: ClientError.
    """
    await patiently(lambda: _throttle(client, rate, moves), TROUBLE_S_MAX)


async def _throttle(client: KafkaClient, rate: int, moves: Mapping[TopicPartition, Reassignment]) -> None:
    await client.metadata([])
    brokers = {each for one in moves.values() for each in (*one.replicas, *one.adding)}
    for broker in sorted(brokers.intersection(client.node_ids())):
        await alter_configs(client, BROKER, str(broker), set_to=dict.fromkeys(_RATES, str(rate)))
    for name, (leaders, followers) in throttled_replicas(moves).items():
        values = dict(zip(_REPLICAS, (leaders, followers), strict=True))
        await alter_configs(client, TOPIC, name, set_to=values)


def throttled_replicas(moves: Mapping[TopicPartition, Reassignment]) -> dict[str, tuple[str, str]]:
    """The lists of throttled replicas of each topic, of leaders and of followers, as kafka-reassign-partitions writes
    them; but all of the topic's (`*`) if a list would exceed the length of a config, with some 1,700 partitions of
    three replicas. Then other lagging replicas of the topic are throttled, too.
    """
    lists: dict[str, tuple[list[str], list[str]]] = {}
    for (name, index), one in moves.items():
        leaders, followers = lists.setdefault(name, ([], []))
        leaders += [f"{index}:{broker}" for broker in one.replicas if broker not in one.adding]
        followers += [f"{index}:{broker}" for broker in one.adding]
    return {
        name: (_throttled_list(leaders), _throttled_list(followers)) for name, (leaders, followers) in lists.items()
    }


def _throttled_list(replicas: Sequence[str]) -> str:
    text = ",".join(replicas)
    return text if len(text) <= _CONFIG_LENGTH_MAX else "*"


async def throttled_rate(client: KafkaClient, brokers: Collection[int]) -> int | None:
    """The lowest rate of one of the brokers, whichever tool has set it; None without any. Errors: ClientError."""
    return await patiently(lambda: _throttled_rate(client, brokers), TROUBLE_S_MAX)


async def _throttled_rate(client: KafkaClient, brokers: Collection[int]) -> int | None:
    await client.metadata([])
    there = sorted({*brokers} & {*client.node_ids()})
    described = await describe_configs(client, [(BROKER, str(broker)) for broker in there], _RATES)
    own = (each for configs in described.values() for each in configs if each.config_source == _SET_AT_RUN_TIME[BROKER])
    return min((int(each.value or 0) for each in own), default=None)


async def unthrottle(client: KafkaClient) -> bool:
    """Remove the throttles of all live brokers and of all topics; returns whether there were any.

    kafka-reassign-partitions --verify does the same. Brokers that have just died are retried until the cluster knows
    it. Errors: ClientError.
    """
    return await patiently(lambda: _unthrottle(client), TROUBLE_S_MAX)


async def _unthrottle(client: KafkaClient) -> bool:
    topics = [topic.name or "" for topic in (await client.metadata(None)).topics]
    brokers = [(BROKER, str(broker)) for broker in client.node_ids()]
    rated = _with_own(await describe_configs(client, brokers, _RATES))
    if not rated:
        return False
    listed = _with_own(await describe_configs(client, [(TOPIC, name) for name in topics], _REPLICAS))
    for (kind, name), keys in [*listed.items(), *rated.items()]:
        await alter_configs(client, kind, name, set_to={}, delete=keys)
    return True


def _with_own(described: Mapping[tuple[int, str], Sequence[Any]]) -> dict[Any, list[str]]:
    """The resources with those of the requested keys that were set."""
    own = {
        (kind, name): [config.name for config in configs if config.config_source == _SET_AT_RUN_TIME[kind]]
        for (kind, name), configs in described.items()
    }
    return {resource: found for resource, found in own.items() if found}
