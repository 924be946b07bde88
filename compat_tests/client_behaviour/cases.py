"""The faults of the clients: each case is a fault that comes once, while the client does one thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compat_tests.client_behaviour.beside import (
    come_back,
    commit_beyond_the_end,
    expire,
    fence,
    forget_the_member,
    nothing,
    one_after_the_other,
    take_the_place,
    then,
    write_last,
)
from compat_tests.client_behaviour.case import Case, errors, fail, lost, slow
from compat_tests.client_behaviour.drivers.driver import GROUP, TOPIC, TRANSACTIONAL_ID
from compat_tests.client_behaviour.three_brokers import three_brokers

DELETED_WAIT_S = 60.0
"""Some clients look for a topic that long before they say that it is gone."""

SESSION_WAIT_S = 40.0
"""A client that forgets who it was is let in when its former session has ended: kafkajs's after half a minute."""


def cases() -> list[Case]:
    """All of them, in the order of the page."""
    of_groups = [*_group(), *_static(), *_commit()]
    of_transactions = [*_transactions(), *_offsets_in_transactions()]
    of_brokers = [*_moves(), *three_brokers(), *_natural()]
    return [*_produce(), *_idempotent(), *_fetch(), *of_groups, *of_transactions, *of_brokers]


def _produce() -> Iterator[Case]:
    area = "Produce without idempotence"
    yield from errors(
        area, "produce", "Produce",
        "NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION NOT_ENOUGH_REPLICAS KAFKA_STORAGE_ERROR CORRUPT_MESSAGE"
        " MESSAGE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP TOPIC_AUTHORIZATION_FAILED"
        " INVALID_REQUIRED_ACKS INVALID_TOPIC_EXCEPTION UNKNOWN_TOPIC_ID UNSUPPORTED_COMPRESSION_TYPE"
        " UNSUPPORTED_FOR_MESSAGE_FORMAT UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from errors(area, "produce", "Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND REQUEST_TIMED_OUT", after_work=True)
    yield from lost(area, "produce", "Produce")
    yield slow(area, "produce", "Produce")
    yield Case(
        area, "Produce: throttled for 1 s", "produce", "Produce",
        lambda broker: broker.faults.throttle("Produce", 1000, times=1), fails=False,
    )  # fmt: skip
    yield Case(
        area, "Produce: no answer comes", "produce", "Produce", lambda broker: broker.faults.drop("Produce", times=1)
    )
    yield from errors(area, "produce", "Metadata", "LEADER_NOT_AVAILABLE TOPIC_AUTHORIZATION_FAILED", topic=TOPIC)


def _idempotent() -> Iterator[Case]:
    area = "Produce with idempotence"
    yield from errors(
        area, "idempotent", "Produce",
        "NOT_LEADER_OR_FOLLOWER OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH"
        " CLUSTER_AUTHORIZATION_FAILED",
    )  # fmt: skip
    yield from errors(
        area, "idempotent", "Produce", "DUPLICATE_SEQUENCE_NUMBER NOT_ENOUGH_REPLICAS_AFTER_APPEND REQUEST_TIMED_OUT",
        after_work=True,
    )  # fmt: skip
    yield from lost(area, "idempotent", "Produce")
    yield from errors(
        area, "idempotent", "InitProducerId",
        "COORDINATOR_LOAD_IN_PROGRESS CLUSTER_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "idempotent", "InitProducerId")


def _fetch() -> Iterator[Case]:
    area = "Fetch"
    yield from errors(
        area, "consume", "Fetch",
        "NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH"
        " OFFSET_OUT_OF_RANGE OFFSET_NOT_AVAILABLE REPLICA_NOT_AVAILABLE KAFKA_STORAGE_ERROR CORRUPT_MESSAGE"
        " UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID TOPIC_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
        topic=TOPIC,
    )  # fmt: skip
    for case in errors(
        area, "stay", "Fetch",
        "FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH FETCH_SESSION_TOPIC_ID_ERROR",
        predicate=lambda request: request.message.session_id,
    ):  # fmt: skip
        yield replace(case, meanwhile=write_last)
    yield from lost(area, "consume", "Fetch")
    yield slow(area, "consume", "Fetch")
    yield Case(
        area, "Fetch: a batch with a wrong checksum", "consume", "Fetch",
        lambda broker: broker.faults.garble("Fetch", "records", times=1),
    )  # fmt: skip
    yield from errors(
        area, "consume", "ListOffsets",
        "NOT_LEADER_OR_FOLLOWER LEADER_NOT_AVAILABLE UNKNOWN_TOPIC_OR_PARTITION FENCED_LEADER_EPOCH"
        " UNKNOWN_LEADER_EPOCH OFFSET_NOT_AVAILABLE REPLICA_NOT_AVAILABLE KAFKA_STORAGE_ERROR"
        " UNSUPPORTED_FOR_MESSAGE_FORMAT TOPIC_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "consume", "ListOffsets")


def _group() -> Iterator[Case]:
    area = "Groups"
    yield from errors(
        area, "consume", "FindCoordinator",
        "COORDINATOR_NOT_AVAILABLE GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "consume", "FindCoordinator")
    yield from errors(
        area, "consume", "JoinGroup",
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS"
        " GROUP_MAX_SIZE_REACHED INCONSISTENT_GROUP_PROTOCOL INVALID_SESSION_TIMEOUT INVALID_GROUP_ID"
        " GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "consume", "JoinGroup")
    yield slow(area, "consume", "JoinGroup")
    yield from errors(
        area, "consume", "SyncGroup",
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR REBALANCE_IN_PROGRESS"
        " INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from _gone(area, "consume", "SyncGroup")
    for case in lost(area, "consume", "SyncGroup"):
        yield replace(case, wait_s=SESSION_WAIT_S)
    yield from errors(
        area, "consume", "OffsetFetch",
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_GROUP_ID"
        " GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from errors(
        area, "consume", "OffsetFetch",
        "UNSTABLE_OFFSET_COMMIT UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID TOPIC_AUTHORIZATION_FAILED",
        topic=TOPIC,
    )  # fmt: skip
    yield from lost(area, "consume", "OffsetFetch")
    yield from _heartbeats(area)
    yield from errors(
        area, "consume", "LeaveGroup",
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_GROUP_ID"
        " GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from errors(area, "consume", "LeaveGroup", "UNKNOWN_MEMBER_ID", whole=False)
    yield from lost(area, "consume", "LeaveGroup")


def _heartbeats(area: str) -> Iterator[Case]:
    for case in [
        *errors(
            area, "stay", "Heartbeat",
            "REBALANCE_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_GROUP_ID"
            " GROUP_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
        ),
        *lost(area, "stay", "Heartbeat"),
    ]:  # fmt: skip
        yield replace(case, meanwhile=write_last)
    for case in _gone(area, "stay", "Heartbeat"):
        yield replace(case, meanwhile=one_after_the_other(case.meanwhile, write_last))


def _static() -> Iterator[Case]:
    """Another member takes the instance id."""
    area = "Static members"
    for api in ("JoinGroup", "SyncGroup", "OffsetCommit"):
        yield from errors(area, "static_commit", api, "FENCED_INSTANCE_ID")
    for case in errors(area, "static_stay", "Heartbeat", "FENCED_INSTANCE_ID"):
        yield replace(case, meanwhile=write_last)
    for case in _gone(area, "static_stay", "Heartbeat"):
        yield replace(case, meanwhile=one_after_the_other(case.meanwhile, write_last))
    yield Case(
        area, "another takes the place before a commit", "static_commit", "OffsetCommit",
        lambda broker: broker.faults.hold("OffsetCommit", times=1), then(take_the_place), is_real=True,
    )  # fmt: skip


def _commit() -> Iterator[Case]:
    area = "Commits"
    yield from errors(
        area, "commit", "OffsetCommit",
        "REBALANCE_IN_PROGRESS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE"
        " COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID"
        " OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE INVALID_GROUP_ID GROUP_AUTHORIZATION_FAILED"
        " TOPIC_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from _gone(area, "commit", "OffsetCommit")
    for case in errors(area, "commit", "OffsetCommit", "GROUP_ID_NOT_FOUND"):
        yield replace(case, meanwhile=forget_the_member)
    yield from lost(area, "commit", "OffsetCommit")
    yield slow(area, "commit", "OffsetCommit")


def _transactions() -> Iterator[Case]:
    area = "Transactions"
    yield from errors(
        area, "transaction", "FindCoordinator",
        "COORDINATOR_NOT_AVAILABLE TRANSACTION_ABORTABLE TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        transactional_id=TRANSACTIONAL_ID,
    )  # fmt: skip
    yield from lost(area, "transaction", "FindCoordinator")
    yield from errors(
        area, "transaction", "InitProducerId",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS"
        " INVALID_PRODUCER_EPOCH PRODUCER_FENCED TRANSACTION_ABORTABLE TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        " INVALID_TRANSACTION_TIMEOUT UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "transaction", "InitProducerId")
    yield from errors(
        area, "transaction", "AddPartitionsToTxn",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS"
        " INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING"
        " UNKNOWN_TOPIC_OR_PARTITION TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        " UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "transaction", "AddPartitionsToTxn")
    yield from errors(
        area, "transaction", "Produce",
        "NOT_LEADER_OR_FOLLOWER NOT_ENOUGH_REPLICAS CONCURRENT_TRANSACTIONS INVALID_PRODUCER_EPOCH INVALID_TXN_STATE"
        " INVALID_PRODUCER_ID_MAPPING OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE"
        " TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    )  # fmt: skip
    yield from lost(area, "transaction", "Produce")
    yield from errors(
        area, "transaction", "EndTxn",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS"
        " INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE"
        " TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "transaction", "EndTxn")
    yield slow(area, "transaction", "EndTxn")
    yield Case(
        area, "fenced before it commits", "transaction", "EndTxn",
        lambda broker: broker.faults.hold("EndTxn", times=1), then(fence), is_real=True,
    )  # fmt: skip


def _offsets_in_transactions() -> Iterator[Case]:
    """A transaction commits what a member has read."""
    area = "Offsets in transactions"
    yield from errors(
        area, "process", "AddOffsetsToTxn",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS"
        " INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING"
        " GROUP_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from lost(area, "process", "AddOffsetsToTxn")
    yield from errors(
        area, "process", "TxnOffsetCommit",
        "CONCURRENT_TRANSACTIONS NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS"
        " REQUEST_TIMED_OUT UNKNOWN_TOPIC_OR_PARTITION OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE"
        " UNSUPPORTED_FOR_MESSAGE_FORMAT FENCED_INSTANCE_ID INVALID_GROUP_ID INVALID_PRODUCER_EPOCH"
        " INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE TOPIC_AUTHORIZATION_FAILED"
        " GROUP_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNKNOWN_SERVER_ERROR",
    )  # fmt: skip
    yield from _gone(area, "process", "TxnOffsetCommit")
    yield from lost(area, "process", "TxnOffsetCommit")
    yield slow(area, "process", "TxnOffsetCommit")
    yield from lost(area, "process", "EndTxn")
    yield Case(
        area, "fenced before it commits offsets", "process", "TxnOffsetCommit",
        lambda broker: broker.faults.hold("TxnOffsetCommit", times=1), then(fence), is_real=True,
    )  # fmt: skip
    yield Case(
        area, "the member's session ends before the transaction does", "process", "TxnOffsetCommit",
        lambda broker: broker.faults.hold("TxnOffsetCommit", times=1), then(expire),
    )  # fmt: skip


def _moves() -> Iterator[Case]:
    area = "Brokers that move"
    yield Case(
        area, "the leader is away for 1 s, producing", "produce", "Metadata",
        lambda broker: broker.faults.leader_away(TOPIC), come_back,
    )  # fmt: skip
    yield Case(
        area, "the leader is away for 1 s, consuming", "consume", "Metadata",
        lambda broker: broker.faults.leader_away(TOPIC), come_back,
    )  # fmt: skip
    yield Case(
        area, "the coordinator is away for 1 s", "commit", "FindCoordinator",
        lambda broker: broker.faults.coordinator_away(group=GROUP), come_back,
    )  # fmt: skip
    yield Case(
        area, "new connections are refused for 1 s", "produce", "Produce",
        lambda broker: broker.faults.refuse(), come_back,
    )  # fmt: skip
    yield Case(
        area, "a restart with a Produce on its way", "idempotent", "Produce",
        lambda broker: broker.faults.hold("Produce", times=1), then(lambda broker: broker.restart()),
        is_real=True,
    )  # fmt: skip
    yield Case(
        area, "a restart with a commit on its way", "commit", "OffsetCommit",
        lambda broker: broker.faults.hold("OffsetCommit", times=1), then(lambda broker: broker.restart()),
        is_real=True,
    )  # fmt: skip
    yield Case(
        area, "the member's session ends while it commits", "commit", "OffsetCommit",
        lambda broker: broker.faults.hold("OffsetCommit", times=1), then(expire),
    )  # fmt: skip


def _natural() -> Iterator[Case]:
    """Errors that a broker returns without a fault, because of the request."""
    area = "Without a fault of the broker's"
    yield Case(
        area, "a batch is larger than `max.message.bytes`", "produce", "Produce", nothing,
        configs={"max.message.bytes": 10}, is_real=True,
    )  # fmt: skip
    yield Case(
        area, "a record without a key for a compacted topic", "produce", "Produce", nothing,
        configs={"cleanup.policy": "compact"}, is_real=True,
    )  # fmt: skip
    yield Case(
        area, "the topic is deleted with a Produce on its way", "produce", "Produce",
        lambda broker: broker.faults.hold("Produce", times=1), then(lambda broker: broker.delete_topic(TOPIC)),
        wait_s=DELETED_WAIT_S, is_real=True,
    )  # fmt: skip
    yield Case(area, "the committed offset is beyond the end", "commit", "Fetch", commit_beyond_the_end, is_real=True)


def _gone(area: str, workload: str, api: str) -> Iterator[Case]:
    """The group has gone on without the member."""
    for error in ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"):
        yield Case(area, f"{api}: `{error}`", workload, api, fail(api, error), forget_the_member)
