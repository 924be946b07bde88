"""Checks of topic administration, each row an error of Kafka 4.3's controller."""

import itertools
from typing import Any

import pytest

from barnabas.controller.operations.topic_checks import check_creations, check_expansion
from barnabas.controller.state import BrokerRegistration, ClusterState, EndPoint, ReplicaAssignment, TopicState
from barnabas.controller.topics import NewPartitions, NewTopic, TopicDefaults, TopicOutcome, check_topic_name
from barnabas.wire.errors import ApiError, ErrorCode

ENDPOINTS = (EndPoint("PLAINTEXT", "localhost", 9092),)


def assignments(*replicas: tuple[int, ...]) -> dict[int, ReplicaAssignment]:
    return {partition: ReplicaAssignment(brokers) for partition, brokers in enumerate(replicas)}


CLUSTER = ClusterState(
    brokers={broker: BrokerRegistration(broker, ENDPOINTS) for broker in (1, 2, 3)},
    topics={
        "existing": TopicState("existing", b"1" * 16, assignments((2, 3), (3, 1))),
        "a.b": TopicState("a.b", b"2" * 16, assignments((1,))),
        "going": TopicState("going", b"3" * 16, assignments((1,))),
        "moving": TopicState("moving", b"4" * 16, {0: ReplicaAssignment((1, 2), (2,), (1,))}),
    },
    deleting=frozenset({"going"}),
)


def create(*topics: NewTopic, cluster: ClusterState = CLUSTER, defaults: TopicDefaults | None = None) -> Any:
    ids = itertools.count()
    outcomes, creations = check_creations(
        cluster, topics, defaults or TopicDefaults(), lambda _bound: 0, lambda: next(ids).to_bytes(16, "big")
    )
    succeeded = [outcome.name for outcome in outcomes if outcome.error is ErrorCode.NONE]
    assert succeeded == [creation.topic.name for creation in creations]
    return outcomes, creations


def refusal(topic: NewTopic) -> TopicOutcome:
    outcomes, creations = create(topic)
    assert creations == []
    (outcome,) = outcomes
    assert outcome.message
    assert (outcome.topic_id, outcome.partition_count, outcome.replication_factor) == (bytes(16), -1, -1)
    result: TopicOutcome = outcome
    return result


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        (NewTopic(""), "INVALID_TOPIC_EXCEPTION", "empty"),
        (NewTopic("."), "INVALID_TOPIC_EXCEPTION", "'.'"),
        (NewTopic(".."), "INVALID_TOPIC_EXCEPTION", "'..'"),
        (NewTopic("x" * 250), "INVALID_TOPIC_EXCEPTION", "249"),
        (NewTopic("a b"), "INVALID_TOPIC_EXCEPTION", "characters"),
        (NewTopic("ä"), "INVALID_TOPIC_EXCEPTION", "characters"),
        (NewTopic("a\n"), "INVALID_TOPIC_EXCEPTION", "characters"),
        (NewTopic("a/../b"), "INVALID_TOPIC_EXCEPTION", "characters"),
        (NewTopic("a_b"), "INVALID_TOPIC_EXCEPTION", "collides with existing topic 'a.b'"),
        (NewTopic("existing"), "TOPIC_ALREADY_EXISTS", "already exists"),
        (NewTopic("existing", -5), "TOPIC_ALREADY_EXISTS", "already exists"),
        (NewTopic("a.b"), "TOPIC_ALREADY_EXISTS", "already exists"),
        (NewTopic("going"), "TOPIC_ALREADY_EXISTS", "being deleted"),
        (NewTopic("__cluster_metadata"), "INVALID_REQUEST", "reserved"),
        (NewTopic("t", 0), "INVALID_PARTITIONS", "not 0"),
        (NewTopic("t", -2), "INVALID_PARTITIONS", "not -2"),
        (NewTopic("t", 1, 0), "INVALID_REPLICATION_FACTOR", "not 0"),
        (NewTopic("t", 0, 0), "INVALID_REPLICATION_FACTOR", "not 0"),
        (
            NewTopic("t", 1, 4),
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be reached because"
            " only 3 broker(s) are registered.",
        ),
        (NewTopic("t", 10_001), "POLICY_VIOLATION", "10000"),
        (NewTopic("t", 2**31 - 1), "POLICY_VIOLATION", "10000"),
        (NewTopic("t", configs={"retention.ms": None, "x": "1"}), "INVALID_CONFIG", "retention.ms"),
        (NewTopic("t", config_error=ApiError(ErrorCode.INVALID_CONFIG, "no!")), "INVALID_CONFIG", "no!"),
        (NewTopic("t", -7, config_error=ApiError(ErrorCode.INVALID_CONFIG, "no!")), "INVALID_CONFIG", "no!"),
        (NewTopic("t", 1, -1, [(0, [1])]), "INVALID_REQUEST", "number of partitions"),
        (NewTopic("t", -1, 1, [(0, [1])]), "INVALID_REQUEST", "replication factor"),
        (NewTopic("t", assignments=[(0, [1]), (0, [2])]), "INVALID_REPLICA_ASSIGNMENT", "more than once"),
        (NewTopic("t", assignments=[(0, [1]), (2, [2])]), "INVALID_REPLICA_ASSIGNMENT", "without gaps"),
        (NewTopic("t", assignments=[(1, [1])]), "INVALID_REPLICA_ASSIGNMENT", "without gaps"),
        (NewTopic("t", assignments=[(-1, [1]), (0, [1])]), "INVALID_REPLICA_ASSIGNMENT", "without gaps"),
        (NewTopic("t", assignments=[(0, [])]), "INVALID_REPLICA_ASSIGNMENT", "no broker"),
        (NewTopic("t", assignments=[(0, [1, 9])]), "INVALID_REPLICA_ASSIGNMENT", "broker 9"),
        (NewTopic("t", assignments=[(0, [1, 1])]), "INVALID_REPLICA_ASSIGNMENT", "more than once"),
        (NewTopic("t", assignments=[(0, [1, 2]), (1, [1])]), "INVALID_REPLICA_ASSIGNMENT", "1 replica"),
    ],
)
def test_refusals(topic: NewTopic, error: str, message: str) -> None:
    outcome = refusal(topic)
    assert outcome.error.name == error
    assert outcome.message is not None
    assert message in outcome.message


@pytest.mark.parametrize("name", ["a", "x" * 249, "...", "A-Z_0.9", "__consumer_offsets", "-"])
def test_legal_names(name: str) -> None:
    check_topic_name(name)
    outcomes, _ = create(NewTopic(name))
    assert outcomes[0].error is ErrorCode.NONE


def test_counts_and_placement() -> None:
    outcomes, creations = create(
        NewTopic("explicit", 3, 2),
        NewTopic("defaults"),
        defaults=TopicDefaults(partition_count=4, replication_factor=3),
    )
    assert [(o.partition_count, o.replication_factor) for o in outcomes] == [(3, 2), (4, 3)]
    assert [a.replicas for a in creations[0].topic.assignments.values()] == [(1, 2), (2, 3), (3, 1)]
    assert outcomes[0].topic_id == creations[0].topic.topic_id != creations[1].topic.topic_id


def test_manual_assignment() -> None:
    (outcome,), (creation,) = create(NewTopic("t", assignments=[(1, [3, 1]), (0, [1, 2])], configs={"k": "v"}))
    assert (outcome.partition_count, outcome.replication_factor) == (2, 2)
    assert creation.topic.assignments == {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((3, 1))}
    assert creation.configs == {"k": "v"}


def test_each_topic_is_answered_by_itself() -> None:
    outcomes, _ = create(
        NewTopic("dup"), NewTopic("good"), NewTopic("existing"), NewTopic("dup", 3), NewTopic(""), NewTopic("good2")
    )
    assert [(o.name, o.error.name) for o in outcomes] == [
        ("good", "NONE"),
        ("existing", "TOPIC_ALREADY_EXISTS"),
        ("", "INVALID_TOPIC_EXCEPTION"),
        ("good2", "NONE"),
        ("dup", "INVALID_REQUEST"),
    ]


def test_the_partition_limit_is_per_request() -> None:
    outcomes, _ = create(NewTopic("a", 6_000), NewTopic("b", 4_000), NewTopic("dup", 9), NewTopic("dup", 9))
    assert [o.error.name for o in outcomes] == ["NONE", "NONE", "INVALID_REQUEST"]
    outcomes, _ = create(NewTopic("a", 6_000), NewTopic("b", 4_000), NewTopic("c"))
    assert {o.error.name for o in outcomes} == {"POLICY_VIOLATION"}
    outcomes, _ = create(NewTopic("a", 10_000), NewTopic("b", -3))
    assert [o.error.name for o in outcomes] == ["NONE", "INVALID_PARTITIONS"]


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (NewPartitions("unknown", 3), "UNKNOWN_TOPIC_OR_PARTITION", "does not exist"),
        (NewPartitions("going", 3), "UNKNOWN_TOPIC_OR_PARTITION", "deleted"),
        (NewPartitions("moving", 3), "REASSIGNMENT_IN_PROGRESS", "reassigned"),
        (NewPartitions("existing", 2), "INVALID_PARTITIONS", "has 2 partition"),
        (NewPartitions("existing", 1), "INVALID_PARTITIONS", "has 2 partition"),
        (NewPartitions("existing", -1), "INVALID_PARTITIONS", "has 2 partition"),
        (NewPartitions("existing", 2**31 - 1), "POLICY_VIOLATION", "10000"),
        (NewPartitions("existing", 4, [[1, 2]]), "INVALID_REPLICA_ASSIGNMENT", "1 assignment"),
        (NewPartitions("existing", 3, []), "INVALID_REPLICA_ASSIGNMENT", "0 assignment"),
        (NewPartitions("existing", 3, [[1]]), "INVALID_REPLICA_ASSIGNMENT", "1 replica"),
        (NewPartitions("existing", 3, [[1, 8]]), "INVALID_REPLICA_ASSIGNMENT", "broker 8"),
        (NewPartitions("existing", 3, [[]]), "INVALID_REPLICA_ASSIGNMENT", "no broker"),
    ],
)
def test_refused_expansions(request_: NewPartitions, error: str, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_expansion(CLUSTER, request_, lambda _bound: 0)
    assert refused.value.error.name == error
    assert message in refused.value.message


def test_expansions() -> None:
    manual = check_expansion(CLUSTER, NewPartitions("existing", 4, [[1, 2], [2, 1]]), lambda _bound: 0)
    assert manual == {2: ReplicaAssignment((1, 2)), 3: ReplicaAssignment((2, 1))}
    placed = check_expansion(CLUSTER, NewPartitions("existing", 4), lambda _bound: 0)
    assert {partition: a.replicas for partition, a in placed.items()} == {2: (1, 3), 3: (2, 3)}


def test_an_expansion_needs_as_many_brokers_as_replicas() -> None:
    alone = ClusterState(brokers={1: BrokerRegistration(1, ENDPOINTS)}, topics=CLUSTER.topics)
    with pytest.raises(ApiError) as refused:
        check_expansion(alone, NewPartitions("existing", 3), lambda _bound: 0)
    assert refused.value.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "because only 1 broker(s) are registered" in refused.value.message


def test_all_topics_together_have_a_bound() -> None:
    count = sum(len(topic.assignments) for topic in CLUSTER.topics.values())

    def answers(*topics: NewTopic) -> list[str]:
        outcomes, _ = check_creations(
            CLUSTER, topics, TopicDefaults(), lambda _bound: 0, lambda: bytes(16), partitions_max=count + 3
        )
        return [outcome.error.name for outcome in outcomes]

    assert answers(NewTopic("new", 3, 1)) == ["NONE"]
    assert answers(NewTopic("new", 4, 1)) == ["POLICY_VIOLATION"]
    needed = NewTopic("__consumer_offsets", 4, 1, is_needed=True)
    assert answers(needed, NewTopic("__transaction_state", 1, 1)) == ["NONE", "POLICY_VIOLATION"]
    assert answers(NewTopic("existing", 9, 1)) == ["TOPIC_ALREADY_EXISTS"]
    with pytest.raises(ApiError, match=f"at most {count + 3} partitions"):
        check_expansion(CLUSTER, NewPartitions("existing", count + 4), lambda _bound: 0, partitions_max=count + 3)
