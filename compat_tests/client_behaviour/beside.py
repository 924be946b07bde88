"""The work that goes on beside a client that has met a fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from barnabas.testing import ApiError, Broker, Fault
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from compat_tests.client_behaviour.case import WAIT_S
from compat_tests.client_behaviour.drivers.driver import GROUP, INSTANCE_ID, LAST, TOPIC, TRANSACTIONAL_ID
from compat_tests.semantics.client import Connection
from tools.waiting import wait_until

AWAY_S = 1.0
SESSION_MS = 6000
"""Of members that come beside the client: the shortest that Apache Kafka has, which waits for them."""
STRATEGIES = ("range,roundrobin", "cooperative-sticky")
"""One of them is one of each client's."""
REASSIGNMENTS_VERSION = 0
LIST_OFFSETS_VERSION = 4
LATEST = -1
CLIENT, DEBUGGER = -1, -2
"""The replica ids with which offsets are requested: a client's, and that for debugging."""


class NoFault:
    """Nothing is done to the client."""

    hits = 1


def nothing(broker: Any) -> NoFault:
    """No fault."""
    return NoFault()


def commit_beyond_the_end(broker: Any) -> NoFault:
    """Have the group go on where there is no record yet."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})

    def is_committed() -> bool:
        with suppress(KafkaException):  # Apache Kafka's first coordinator takes a while
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1000)], asynchronous=False)
            return True
        return False

    wait_until(is_committed)
    consumer.close()
    return NoFault()


def _wait_for_hit(fault: Fault) -> bool:
    """Whether the client asks in the time that it has."""
    deadline = time.monotonic() + WAIT_S
    while not fault.hits and time.monotonic() < deadline:
        time.sleep(0.001)  # Real time: of the client, which has so much of it, and may never ask
    return bool(fault.hits)


def write_last(broker: Broker, fault: Fault) -> None:
    """Have a client come to its end that has had time to behave."""
    _wait_for_hit(fault)
    time.sleep(AWAY_S)  # Real time: what the client does by itself meanwhile is the subject
    broker.topic(TOPIC).produce(LAST)


def forget_the_member(broker: Broker, fault: Fault) -> None:
    """The client is told that it is not in the group any more: now that is so."""
    if _wait_for_hit(fault):
        for member in broker.group(GROUP).members[:1]:
            with suppress(ApiError):  # it has left by itself
                broker.faults.expire_member(GROUP, member.member_id)


def one_after_the_other(*steps: Callable[[Broker, Fault], None]) -> Callable[[Broker, Fault], None]:
    """Several of these."""

    def meanwhile(broker: Broker, fault: Fault) -> None:
        for step in steps:
            step(broker, fault)

    return meanwhile


def come_back(broker: Broker, fault: Fault) -> None:
    """End what keeps a client off, after a while."""
    _wait_for_hit(fault)
    time.sleep(AWAY_S)  # Real time: what the client does by itself meanwhile is the subject
    fault.remove()


def then(act: Callable[[Any], object]) -> Callable[[Any, Any], None]:
    """Do something while the request is held."""

    def meanwhile(broker: Broker, hold: Any) -> None:
        try:
            hold.wait_held(timeout=WAIT_S)
        except TimeoutError:
            return  # the client never asks: that is told
        act(broker)
        hold.release()

    return meanwhile


def fence(broker: Broker) -> None:
    """Another producer takes the transactional id."""
    broker.faults.fence_producer(TRANSACTIONAL_ID)


def expire(broker: Broker) -> None:
    """The members' sessions end."""
    broker.faults.expire_member(GROUP)


def reassign(cluster: Any, topic: str, replicas: list[int]) -> None:
    """Have a topic's one partition move to other brokers, which goes on afterwards."""
    moved = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[moved])])
    with Connection(cluster.brokers[cluster.controller()].bootstrap_servers) as controller:
        answer = controller.ask(request, REASSIGNMENTS_VERSION)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)


def is_replicated(leader: Any, topic: str) -> bool:
    """Whether a broker that leads a topic knows all that this holds to be at the followers."""
    with Connection(leader.bootstrap_servers) as connection:
        committed, written = (_end(connection, topic, replica_id) for replica_id in (CLIENT, DEBUGGER))
    return committed is not None and committed == written


def _end(connection: Connection, topic: str, replica_id: int) -> int | None:
    """The end offset that a client or a debugger of replicas gets; None where the broker does not lead."""
    latest = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name=topic, partitions=[latest])])
    [answer] = connection.ask(request, LIST_OFFSETS_VERSION).topics[0].partitions
    return None if answer.error_code else int(answer.offset)


def take_the_place(broker: Any) -> None:
    """Another static member comes with the client's instance id."""
    if not any(_joins(broker.bootstrap_servers, strategy) for strategy in STRATEGIES):
        raise TimeoutError("no other member could take the client's place")


def _joins(servers: str, strategy: str) -> bool:
    settings = {"bootstrap.servers": servers, "group.id": GROUP, "group.instance.id": INSTANCE_ID}
    quiet = {"enable.auto.commit": False, "log_level": 0}
    member = Consumer(settings | quiet | {"session.timeout.ms": SESSION_MS, "partition.assignment.strategy": strategy})
    member.subscribe([TOPIC])

    def is_answered() -> bool:
        message = member.poll(0.05)  # INCONSISTENT_GROUP_PROTOCOL
        return bool(member.assignment()) or (message is not None and message.error() is not None)

    wait_until(is_answered)
    has_joined = bool(member.assignment())
    member.close()
    return has_joined
