"""Validation of CreateTopics and CreatePartitions, each entry separately, and the placement of replicas for valid ones.
Pure.

Error codes and their precedence are those of Kafka 4.3; replicas are placed as ZooKeeper-mode Kafka does (`placement`).

*Source*: kafka 4.3.0 `ReplicationControlManager.java` and `ControllerApis.scala`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from barnabas.controller.operations.placement import PlacementError, RandomIndex, assign_replicas
from barnabas.controller.state import ClusterState, ReplicaAssignment, TopicState
from barnabas.controller.topics import (
    CLUSTER_METADATA_TOPIC,
    PARTITIONS_MAX,
    PARTITIONS_PER_REQUEST_MAX,
    USE_DEFAULT,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    check_topic_name,
    collision_key,
)
from barnabas.wire.errors import ApiError, ErrorCode


class Creation(NamedTuple):
    """A topic that passed every check, with its replicas placed."""

    topic: TopicState
    configs: Mapping[str, str]


def check_creations(
    cluster: ClusterState,
    requested: Sequence[NewTopic],
    defaults: TopicDefaults,
    random_index: RandomIndex,
    new_topic_id: Callable[[], bytes],
    partitions_max: int = PARTITIONS_MAX,
) -> tuple[list[TopicOutcome], list[Creation]]:
    """Validate every entry and place the replicas of valid ones; `partitions_max` bounds all topics together.

    Outcomes are in the order of the request, except that a name given more than once has one outcome, at the end.
    """
    counts = Counter(topic.name for topic in requested)
    unique = [topic for topic in requested if counts[topic.name] == 1]
    outcomes: list[TopicOutcome] = []
    creations: list[Creation] = []
    asked_for = sum(_partitions_asked_for(topic, defaults) for topic in unique)
    refusal = _too_many(cluster, asked_for, partitions_max)
    existing_keys = {collision_key(name): name for name in cluster.topics if "." in name or "_" in name}
    for topic in unique:
        try:
            if refusal is not None and topic.name not in cluster.topics and not topic.is_needed:
                raise refusal
            creation = _check_creation(cluster, existing_keys, topic, defaults, random_index, new_topic_id)
        except ApiError as error:
            outcomes.append(TopicOutcome.failed(topic.name, error.error, error.message))
            continue
        creations.append(creation)
        assignments = creation.topic.assignments
        outcomes.append(
            TopicOutcome(
                name=topic.name,
                topic_id=creation.topic.topic_id,
                partition_count=len(assignments),
                replication_factor=len(assignments[0].replicas),
            )
        )
    outcomes += [
        TopicOutcome.failed(name, ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
        for name, count in counts.items()
        if count > 1
    ]
    return outcomes, creations


def check_expansion(
    cluster: ClusterState, requested: NewPartitions, random_index: RandomIndex, partitions_max: int = PARTITIONS_MAX
) -> dict[int, ReplicaAssignment]:
    """The assignments of the partitions to add.

    Raises: ApiError.
    """
    topic = cluster.topics.get(requested.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{requested.name}' does not exist.")
    if topic.name in cluster.deleting:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic.name}' is being deleted.")
    if any(assignment.is_being_reassigned for assignment in topic.assignments.values()):
        raise ApiError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Partitions of topic '{topic.name}' are being reassigned.")
    added = requested.count - len(topic.assignments)
    if added <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{topic.name}' has {len(topic.assignments)} partition(s); {requested.count} is not an increase.",
        )
    if (refusal := _too_many(cluster, added, partitions_max)) is not None:
        raise refusal
    if requested.assignments is not None:
        return _manual_expansion(cluster, topic, requested.assignments, added)
    return _placed_expansion(cluster, topic, added, random_index)


def duplicates(names: Iterable[str]) -> set[str]:
    """Names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def _too_many(cluster: ClusterState, added: int, partitions_max: int) -> ApiError | None:
    """The error of a request that adds too many partitions; None if it does not."""
    if added > PARTITIONS_PER_REQUEST_MAX:
        return ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"A request may ask for at most {PARTITIONS_PER_REQUEST_MAX} new partitions in total.",
        )
    if sum(len(topic.assignments) for topic in cluster.topics.values()) + added > partitions_max:
        return ApiError(ErrorCode.POLICY_VIOLATION, f"There may be at most {partitions_max} partitions in all.")
    return None


def _partitions_asked_for(topic: NewTopic, defaults: TopicDefaults) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return defaults.partition_count if topic.partition_count == USE_DEFAULT else max(0, topic.partition_count)


def _check_creation(
    cluster: ClusterState,
    existing_keys: Mapping[str, str],
    topic: NewTopic,
    defaults: TopicDefaults,
    random_index: RandomIndex,
    new_topic_id: Callable[[], bytes],
) -> Creation:
    _check_new_name(cluster, existing_keys, topic.name)
    configs = {name: value for name, value in topic.configs.items() if value is not None}
    if len(configs) < len(topic.configs):
        nulls = ", ".join(sorted(set(topic.configs) - set(configs)))
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Topic configs cannot be null: {nulls}.")
    if topic.config_error is not None:
        raise topic.config_error
    if topic.assignments:
        assignments = _manual_assignments(cluster, topic)
    else:
        assignments = _placed_assignments(cluster, topic, defaults, random_index)
    return Creation(TopicState(topic.name, new_topic_id(), assignments), configs)


def _check_new_name(cluster: ClusterState, existing_keys: Mapping[str, str], name: str) -> None:
    if name == CLUSTER_METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"The name {CLUSTER_METADATA_TOPIC} is reserved.")
    if name in cluster.deleting:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is still being deleted.")
    if name in cluster.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    colliding = existing_keys.get(collision_key(name)) if "." in name or "_" in name else None
    if colliding is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic '{colliding}': '.' and '_' count as the same character.",
        )


def _placed_assignments(
    cluster: ClusterState, topic: NewTopic, defaults: TopicDefaults, random_index: RandomIndex
) -> dict[int, ReplicaAssignment]:
    if topic.replication_factor != USE_DEFAULT and topic.replication_factor <= 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be positive, or -1 for the default, not {topic.replication_factor}.",
        )
    if topic.partition_count != USE_DEFAULT and topic.partition_count <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions must be positive, or -1 for the default, not {topic.partition_count}.",
        )
    count = defaults.partition_count if topic.partition_count == USE_DEFAULT else topic.partition_count
    factor = defaults.replication_factor if topic.replication_factor == USE_DEFAULT else topic.replication_factor
    return _place(cluster, count, factor, random_index)


def _place(
    cluster: ClusterState,
    count: int,
    factor: int,
    random_index: RandomIndex,
    first_partition: int = 0,
    start_index: int | None = None,
) -> dict[int, ReplicaAssignment]:
    racks = {broker.broker_id: broker.rack for broker in cluster.brokers.values()}
    try:
        placed = assign_replicas(
            racks, count, factor, random_index, first_partition=first_partition, start_index=start_index
        )
    except PlacementError as error:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"Unable to replicate the partition {factor} time(s): {error}"
        ) from error
    return {partition: ReplicaAssignment(replicas) for partition, replicas in placed.items()}


def _manual_assignments(cluster: ClusterState, topic: NewTopic) -> dict[int, ReplicaAssignment]:
    if topic.replication_factor != USE_DEFAULT:
        raise ApiError(ErrorCode.INVALID_REQUEST, "With a manual assignment the replication factor must be left at -1.")
    if topic.partition_count != USE_DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "With a manual assignment the number of partitions must be left at -1."
        )
    assignments: dict[int, ReplicaAssignment] = {}
    factor: int | None = None
    for partition, replicas in topic.assignments:
        if partition in assignments:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {partition} is assigned more than once.")
        _check_replicas(cluster, partition, replicas, factor)
        factor = len(replicas)
        assignments[partition] = ReplicaAssignment(tuple(replicas))
    if sorted(assignments) != list(range(len(assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The partitions of a manual assignment must be 0, 1, 2, ... without gaps.",
        )
    return assignments


def _check_replicas(cluster: ClusterState, partition: int, replicas: Sequence[int], factor: int | None) -> None:
    unknown = sorted(set(replicas) - set(cluster.brokers))
    if not replicas:
        problem = "has no broker"
    elif unknown:
        problem = f"names broker {unknown[0]}, which is not registered"
    elif len(set(replicas)) < len(replicas):
        problem = "names a broker more than once"
    elif factor is not None and len(replicas) != factor:
        problem = f"has {len(replicas)} replica(s) where the other partitions have {factor}"
    else:
        return
    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual assignment of partition {partition} {problem}.")


def _manual_expansion(
    cluster: ClusterState, topic: TopicState, assignments: Sequence[Sequence[int]], added: int
) -> dict[int, ReplicaAssignment]:
    if len(assignments) != added:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partition(s) are to be added, but {len(assignments)} assignment(s) were given.",
        )
    first = len(topic.assignments)
    factor = len(topic.assignments[0].replicas)
    for index, replicas in enumerate(assignments):
        _check_replicas(cluster, first + index, replicas, factor)
    return {first + index: ReplicaAssignment(tuple(replicas)) for index, replicas in enumerate(assignments)}


def _placed_expansion(
    cluster: ClusterState, topic: TopicState, added: int, random_index: RandomIndex
) -> dict[int, ReplicaAssignment]:
    """Continue where the topic's first partition began, as `AdminZkClient.createNewPartitionsAssignment`."""
    head, *others = topic.assignments[0].replicas
    start_index = next((i for i, broker in enumerate(sorted(cluster.brokers)) if broker >= head), 0)
    return _place(cluster, added, 1 + len(others), random_index, len(topic.assignments), start_index)
