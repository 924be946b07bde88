"""What is done to the clients: each case is a fault that comes once, while the client does one thing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from barnabas.testing import ApiError, Broker, Fault
from compat_tests.client_behaviour.drivers.driver import GROUP, LAST, TOPIC, TRANSACTIONAL_ID

AWAY_S = 1.0
WAIT_S = 8.0

Inject = Callable[[Any], Any]
"""A fault, of a broker."""


@dataclass(frozen=True)
class Case:
    """A fault: `inject` puts it in place before the client starts, `meanwhile` goes on beside the client."""

    area: str
    title: str
    workload: str
    api: str
    inject: Inject
    meanwhile: Callable[[Any, Any], None] = field(default=lambda broker, fault: None)
    fails: bool = True
    """Whether a request fails, so that it is asked again."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Of the topic."""
    is_real: bool = False
    """Whether Apache Kafka can be brought to it: by what is done to it, or to its clients' connections."""

    @property
    def name(self) -> str:
        """How it is named on the page, and by `-k`."""
        return f"{self.area}: {self.title}"


def cases() -> list[Case]:
    """All of them, in the order of the page."""
    return [*_produce(), *_idempotent(), *_fetch(), *_group(), *_commit(), *_transactions(), *_moves(), *_natural()]


def _fails(area: str, workload: str, api: str, errors: str, **where: Any) -> Iterator[Case]:
    for error in errors.split():
        yield Case(area, f"{api}: `{error}`", workload, api, _fail(api, error, **where))


def _fail(api: str, error: str, **where: Any) -> Inject:
    return lambda broker: broker.faults.fail(api, error, times=1, **where)


def _lost(area: str, workload: str, api: str) -> Iterator[Case]:
    """The connection breaks before the work, and after it."""
    yield Case(
        area, f"{api}: the request is lost", workload, api, lambda broker: broker.faults.disconnect(api, times=1),
        is_real=True,
    )  # fmt: skip
    yield Case(
        area, f"{api}: the answer is lost", workload, api,
        lambda broker: broker.faults.disconnect(api, times=1, after_work=True), is_real=True,
    )  # fmt: skip


def _gone(area: str, workload: str, api: str) -> Iterator[Case]:
    """The group has gone on without the member."""
    for error in ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"):
        yield Case(area, f"{api}: `{error}`", workload, api, _fail(api, error), _forget_the_member)


def _slow(area: str, workload: str, api: str) -> Case:
    return Case(
        area,
        f"{api}: the answer takes 1 s",
        workload,
        api,
        lambda broker: broker.faults.delay(api, 1000, times=1),
        fails=False,
        is_real=True,
    )


def _produce() -> Iterator[Case]:
    area = "Produce without idempotence"
    yield from _fails(
        area, "produce", "Produce",
        "NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION NOT_ENOUGH_REPLICAS KAFKA_STORAGE_ERROR CORRUPT_MESSAGE"
        " MESSAGE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP TOPIC_AUTHORIZATION_FAILED"
        " INVALID_REQUIRED_ACKS UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from _fails(area, "produce", "Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND REQUEST_TIMED_OUT", after_work=True)
    yield from _lost(area, "produce", "Produce")
    yield _slow(area, "produce", "Produce")
    yield Case(
        area, "Produce: throttled for 1 s", "produce", "Produce",
        lambda broker: broker.faults.throttle("Produce", 1000, times=1), fails=False,
    )  # fmt: skip
    yield Case(
        area, "Produce: no answer comes", "produce", "Produce", lambda broker: broker.faults.drop("Produce", times=1)
    )
    yield from _fails(area, "produce", "Metadata", "LEADER_NOT_AVAILABLE TOPIC_AUTHORIZATION_FAILED", topic=TOPIC)


def _idempotent() -> Iterator[Case]:
    area = "Produce with idempotence"
    yield from _fails(
        area, "idempotent", "Produce",
        "NOT_LEADER_OR_FOLLOWER OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH",
    )  # fmt: skip
    yield from _fails(area, "idempotent", "Produce", "DUPLICATE_SEQUENCE_NUMBER REQUEST_TIMED_OUT", after_work=True)
    yield from _lost(area, "idempotent", "Produce")
    yield from _fails(area, "idempotent", "InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS CLUSTER_AUTHORIZATION_FAILED")


def _fetch() -> Iterator[Case]:
    area = "Fetch"
    yield from _fails(
        area, "consume", "Fetch",
        "NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH"
        " OFFSET_OUT_OF_RANGE OFFSET_NOT_AVAILABLE REPLICA_NOT_AVAILABLE KAFKA_STORAGE_ERROR CORRUPT_MESSAGE"
        " TOPIC_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
        topic=TOPIC,
    )  # fmt: skip
    yield from _lost(area, "consume", "Fetch")
    yield _slow(area, "consume", "Fetch")
    yield Case(
        area, "Fetch: a batch with a wrong checksum", "consume", "Fetch",
        lambda broker: broker.faults.garble("Fetch", "records", times=1),
    )  # fmt: skip
    yield from _fails(
        area, "consume", "ListOffsets", "NOT_LEADER_OR_FOLLOWER LEADER_NOT_AVAILABLE TOPIC_AUTHORIZATION_FAILED"
    )


def _group() -> Iterator[Case]:
    area = "Groups"
    yield from _fails(area, "consume", "FindCoordinator", "COORDINATOR_NOT_AVAILABLE GROUP_AUTHORIZATION_FAILED")
    yield from _fails(
        area, "consume", "JoinGroup",
        "COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS GROUP_MAX_SIZE_REACHED"
        " INCONSISTENT_GROUP_PROTOCOL GROUP_AUTHORIZATION_FAILED",
    )  # fmt: skip
    yield from _fails(area, "consume", "SyncGroup", "REBALANCE_IN_PROGRESS NOT_COORDINATOR")
    yield from _gone(area, "consume", "SyncGroup")
    yield from _lost(area, "consume", "JoinGroup")
    yield from _fails(
        area, "consume", "OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR GROUP_AUTHORIZATION_FAILED"
    )
    for error in ("REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"):
        yield Case(area, f"Heartbeat: `{error}`", "stay", "Heartbeat", _fail("Heartbeat", error), _write_last)
    for case in _gone(area, "stay", "Heartbeat"):
        yield replace(case, meanwhile=_one_after_the_other(case.meanwhile, _write_last))


def _commit() -> Iterator[Case]:
    area = "Commits"
    yield from _fails(
        area, "commit", "OffsetCommit",
        "REBALANCE_IN_PROGRESS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE"
        " COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT UNKNOWN_TOPIC_OR_PARTITION OFFSET_METADATA_TOO_LARGE"
        " GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from _gone(area, "commit", "OffsetCommit")
    yield from _lost(area, "commit", "OffsetCommit")
    yield _slow(area, "commit", "OffsetCommit")


def _transactions() -> Iterator[Case]:
    area = "Transactions"
    yield from _fails(
        area, "transaction", "InitProducerId",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        " INVALID_TRANSACTION_TIMEOUT",
    )  # fmt: skip
    yield from _fails(
        area, "transaction", "AddPartitionsToTxn",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR INVALID_PRODUCER_EPOCH INVALID_TXN_STATE"
        " INVALID_PRODUCER_ID_MAPPING TOPIC_AUTHORIZATION_FAILED",
    )  # fmt: skip
    yield from _fails(
        area, "transaction", "Produce",
        "NOT_LEADER_OR_FOLLOWER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE OUT_OF_ORDER_SEQUENCE_NUMBER",
    )  # fmt: skip
    yield from _fails(
        area, "transaction", "EndTxn",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE INVALID_PRODUCER_EPOCH PRODUCER_FENCED"
        " INVALID_TXN_STATE UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from _lost(area, "transaction", "EndTxn")
    yield Case(
        area, "fenced before it commits", "transaction", "EndTxn",
        lambda broker: broker.faults.hold("EndTxn", times=1), _then(_fence), is_real=True,
    )  # fmt: skip


def _moves() -> Iterator[Case]:
    area = "Brokers that move"
    yield Case(
        area, "the leader is away for 1 s, producing", "produce", "Metadata",
        lambda broker: broker.faults.leader_away(TOPIC), _come_back,
    )  # fmt: skip
    yield Case(
        area, "the leader is away for 1 s, consuming", "consume", "Metadata",
        lambda broker: broker.faults.leader_away(TOPIC), _come_back,
    )  # fmt: skip
    yield Case(
        area, "the coordinator is away for 1 s", "commit", "FindCoordinator",
        lambda broker: broker.faults.coordinator_away(group=GROUP), _come_back,
    )  # fmt: skip
    yield Case(
        area, "new connections are refused for 1 s", "produce", "Produce",
        lambda broker: broker.faults.refuse(), _come_back,
    )  # fmt: skip
    yield Case(
        area, "a restart with a Produce on its way", "idempotent", "Produce",
        lambda broker: broker.faults.hold("Produce", times=1), _then(lambda broker: broker.restart()),
        is_real=True,
    )  # fmt: skip
    yield Case(
        area, "a restart with a commit on its way", "commit", "OffsetCommit",
        lambda broker: broker.faults.hold("OffsetCommit", times=1), _then(lambda broker: broker.restart()),
        is_real=True,
    )  # fmt: skip
    yield Case(
        area, "the member's session ends while it commits", "commit", "OffsetCommit",
        lambda broker: broker.faults.hold("OffsetCommit", times=1), _then(_expire),
    )  # fmt: skip


def _natural() -> Iterator[Case]:
    """What a broker does by itself, in answer to what it is asked."""
    area = "Without a fault of the broker's"
    yield Case(
        area, "a batch is larger than `max.message.bytes`", "produce", "Produce", _nothing,
        configs={"max.message.bytes": 10}, is_real=True,
    )  # fmt: skip
    yield Case(
        area, "a record without a key for a compacted topic", "produce", "Produce", _nothing,
        configs={"cleanup.policy": "compact"}, is_real=True,
    )  # fmt: skip
    yield Case(
        area, "the topic is deleted with a Produce on its way", "produce", "Produce",
        lambda broker: broker.faults.hold("Produce", times=1), _then(lambda broker: broker.delete_topic(TOPIC)),
        is_real=True,
    )  # fmt: skip
    yield Case(area, "the committed offset is beyond the end", "commit", "Fetch", _commit_beyond_the_end, is_real=True)


# --- beside the client ----------------------------------------------------------------------------


class NoFault:
    """Nothing is done to the client."""

    hits = 1


def _nothing(broker: Any) -> NoFault:
    return NoFault()


def _commit_beyond_the_end(broker: Any) -> NoFault:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1000)], asynchronous=False)
    consumer.close()
    return NoFault()


def _wait_for_hit(fault: Fault) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not fault.hits and time.monotonic() < deadline:
        time.sleep(0.001)
    return bool(fault.hits)


def _write_last(broker: Broker, fault: Fault) -> None:
    _wait_for_hit(fault)
    time.sleep(AWAY_S)  # for what the client does now
    broker.topic(TOPIC).produce(LAST)


def _forget_the_member(broker: Broker, fault: Fault) -> None:
    """The client is told that it is not in the group any more: now that is so."""
    if _wait_for_hit(fault):
        for member in broker.group(GROUP).members[:1]:
            with suppress(ApiError):  # it has left by itself
                broker.faults.expire_member(GROUP, member.member_id)


def _one_after_the_other(*steps: Callable[[Broker, Fault], None]) -> Callable[[Broker, Fault], None]:
    def meanwhile(broker: Broker, fault: Fault) -> None:
        for step in steps:
            step(broker, fault)

    return meanwhile


def _come_back(broker: Broker, fault: Fault) -> None:
    _wait_for_hit(fault)
    time.sleep(AWAY_S)
    fault.remove()


def _then(act: Callable[[Broker], object]) -> Callable[[Broker, Any], None]:
    """Do something while the request is held."""

    def meanwhile(broker: Broker, hold: Any) -> None:
        try:
            hold.wait_held(timeout=WAIT_S)
        except TimeoutError:
            return  # the client never asks: that is told
        act(broker)
        hold.release()

    return meanwhile


def _fence(broker: Broker) -> None:
    broker.faults.fence_producer(TRANSACTIONAL_ID)


def _expire(broker: Broker) -> None:
    broker.faults.expire_member(GROUP)
