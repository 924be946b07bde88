"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, reassignments."""

from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from compat_tests.differential.run import Run, Side, versions_of
from compat_tests.differential.scenarios.cluster import BAD_NAMES
from compat_tests.differential.values import UNKNOWN_TOPIC_ID

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, ELECT_LEADERS = 19, 20, 37, 43

TOPIC_CONFIGS: dict[str, tuple[str | None, ...]] = {
    "cleanup.policy": ("delete", "compact", "compact,delete", "delete,compact", "", "x", "delete,delete", None),
    "compression.type": ("gzip", "snappy", "lz4", "zstd", "producer", "uncompressed", "none", "GZIP", ""),
    "compression.gzip.level": ("1", "9", "0", "-1", "10", "x"),
    "compression.lz4.level": ("1", "17", "0", "18", "x"),
    "compression.zstd.level": ("-131072", "22", "0", "23", "-131073", "x"),
    "delete.retention.ms": ("0", "1", "-1", "x", "9223372036854775807", "9223372036854775808"),
    "file.delete.delay.ms": ("0", "1", "-1", "x"),
    "flush.messages": ("1", "0", "-1", "9223372036854775807"),
    "flush.ms": ("0", "1", "-1", "9223372036854775807"),
    "follower.replication.throttled.replicas": ("", "*", "0:1", "0:1,1:1", "x", "0:", "a:b"),
    "leader.replication.throttled.replicas": ("", "*", "0:1", "0:x"),
    "index.interval.bytes": ("0", "1", "-1", "2147483647", "2147483648"),
    "max.compaction.lag.ms": ("1", "0", "-1", "9223372036854775807"),
    "max.message.bytes": ("0", "1", "-1", "2147483647", "2147483648", " 5 ", "1.5", "x", ""),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime", "x", ""),
    "message.timestamp.before.max.ms": ("0", "1", "-1", "9223372036854775807", "x"),
    "message.timestamp.after.max.ms": ("0", "1", "-1", "9223372036854775807", "x"),
    "message.timestamp.difference.max.ms": ("1",),
    "message.format.version": ("3.0-IV1", "x"),
    "message.downconversion.enable": ("true", "false", "x"),
    "min.cleanable.dirty.ratio": ("0", "1", "0.5", "-0.1", "1.1", "NaN", "x", "1e-3"),
    "min.compaction.lag.ms": ("0", "1", "-1"),
    "min.insync.replicas": ("1", "2", "0", "-1", "x"),
    "preallocate": ("true", "false", "TRUE", "yes", ""),
    "remote.storage.enable": ("false", "x"),
    "local.retention.ms": ("-2", "-1", "0", "-3"),
    "local.retention.bytes": ("-2", "-1", "0", "-3"),
    "retention.ms": ("-1", "0", "1", "-2", "9223372036854775807", "x", "", None, "1e3"),
    "retention.bytes": ("-1", "0", "1", "-2", "x", "9223372036854775808"),
    "segment.bytes": ("1048576", "2147483647", "2147483648", "0", "-1", "x"),
    "segment.index.bytes": ("4", "0", "3", "-1", "2147483647"),
    "segment.jitter.ms": ("0", "1", "-1"),
    "segment.ms": ("1", "0", "-1", "9223372036854775807"),
    "unclean.leader.election.enable": ("true", "false", "1"),
    "errors.deadletterqueue.group.enable": ("true", "false"),
    "no.such.config": ("1", "", None),
    "": ("1",),
}
"""Values of every topic config, right, wrong and at the border."""


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    """One topic to be created."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assignments or {}).items()
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def creating(*topics: CreatableTopic, validate_only: bool = False, timeout_ms: int = 10_000) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), validate_only=validate_only, timeout_ms=timeout_ms)


def create_topics(run: Run) -> None:
    """Create a topic with the fields of each version, then again: it exists."""
    for version in versions_of(CREATE_TOPICS):
        name = run.fresh(f"v{version}")
        run.ask(creating(topic(name, 3), validate_only=True), version)
        run.ask(creating(topic(name, 3)), version)
        run.wait_served(name, 3)
        run.ask(creating(topic(name, 3)), version)
        run.ask(creating(topic(name, 1), validate_only=True), version)
        run.ask(creating(topic(run.fresh(f"d{version}"), -1, -1)), version)
        run.ask(creating(topic(run.fresh(f"m{version}"), -1, -1, {0: [1], 1: [1]})), version)
        run.ask(
            creating(
                topic(run.fresh(f"one{version}")),
                topic(run.fresh(f"two{version}"), 2, configs={"retention.ms": "1000", "cleanup.policy": "compact"}),
                topic("a b"),
                topic(name),
                topic(run.fresh("three"), 0),
            ),
            version,
        )
    run.sweep(creating())


def create_topics_counts(run: Run) -> None:
    for partitions in (0, -1, -2, 1, 10_001, 2**31 - 1):
        for replicas in (1, -1, 0, -2, 2, 32767):
            run.sweep(creating(topic(run.fresh(), partitions, replicas), validate_only=True), versions=(2, 4, 7))
    by_hand: tuple[dict[int, list[int]], ...] = (
            {0: [1]}, {1: [1]}, {0: [1], 2: [1]}, {0: []}, {0: [1, 1]}, {0: [2]}, {0: [1, 2]}, {-1: [1]}, {0: [-1]},
            {0: [1], 1: [1, 2]}, {0: [1], 1: []},
    )  # fmt: skip
    for number, assignments in enumerate(by_hand):
        name = run.fresh(f"a{number}")
        for partitions, replicas in ((-1, -1), (1, -1), (-1, 1), (1, 1)):
            request = creating(topic(name, partitions, replicas, assignments), validate_only=True)
            run.sweep(request, versions=(2, 5, 7))
    doubled = topic(run.fresh("doubled"), -1, -1, {0: [1]})
    doubled.assignments = doubled.assignments * 2
    run.sweep(creating(doubled, validate_only=True), versions=(2, 7))


def create_topics_names(run: Run) -> None:
    for name in (*BAD_NAMES, "__consumer_offsets", "__cluster_metadata", "__transaction_state"):
        run.sweep(creating(topic(name), validate_only=True), versions=(2, 5, 7))
    twice = run.fresh("twice")
    for topics in (
        (topic(twice), topic(twice)),
        (topic(twice), topic(twice, 5), topic(run.fresh("once"))),
        (topic("a b"), topic("a b")),
        (topic(run.fresh("x.y")), topic(run.fresh("x_y"))),
    ):
        run.sweep(creating(*topics, validate_only=True), versions=(2, 5, 7))
    dotted = run.create_topic("p.q")
    run.sweep(creating(topic(dotted.replace(".", "_"))), creating(topic(dotted)), versions=(2, 7))
    run.sweep(creating(topic("__cluster_metadata"), topic(run.fresh("beside")), validate_only=True), versions=(2, 7))


def create_topics_configs(run: Run) -> None:
    """Every config with every kind of value."""
    for name, values in TOPIC_CONFIGS.items():
        for value in values:
            run.ask(creating(topic(run.fresh(), configs={name: value}), validate_only=True), 7)
    for configs in (
        {"retention.ms": "1", "no.such": "2"},
        {"cleanup.policy": "compact", "min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
        {"segment.bytes": "1048576", "max.message.bytes": "99999999"},
        {"retention.ms": "5", "local.retention.ms": "10"},
        {"retention.bytes": "5", "local.retention.bytes": "10"},
        {"remote.storage.enable": "true"},
        {"retention.ms": "x" * 40_000},
    ):
        run.sweep(creating(topic(run.fresh(), configs=configs), validate_only=True), versions=(2, 5, 7))  # type: ignore[arg-type]
    doubled = topic(run.fresh(), configs={"retention.ms": "1"})
    doubled.configs.append(CreatableTopicConfig(name="retention.ms", value="2"))
    run.sweep(creating(doubled, validate_only=True), versions=(2, 7))


def create_topics_precedence(run: Run) -> None:
    """Several things wrong with one topic."""
    existing = run.create_topic()
    for wrong in (
        topic(existing, 0),
        topic(existing, 1, 5),
        topic(existing, configs={"no.such": "1"}),
        topic("a b", 0, 0, configs={"no.such": "1"}),
        topic(run.fresh("n"), 0, 0),
        topic(run.fresh("n"), 0, 5, configs={"no.such": "1"}),
        topic(run.fresh("n"), 5, 1, {0: [1]}, configs={"no.such": "1"}),
        topic(run.fresh("n"), -1, -1, {0: [9]}, configs={"retention.ms": "x"}),
    ):
        for validate_only in (True, False):
            run.sweep(creating(wrong, validate_only=validate_only), versions=(2, 4, 7))
    for timeout_ms in (0, -1):
        run.ask(creating(topic(existing), timeout_ms=timeout_ms), 7)


def delete_topics(run: Run) -> None:
    for version in versions_of(DELETE_TOPICS):
        one, two = run.create_topic(f"one{version}"), run.create_topic(f"two{version}", partitions=2)

        def deleting(*names: str, version: int = version, timeout_ms: int = 10_000) -> DeleteTopicsRequest:
            if version < 6:
                return DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)
            return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=timeout_ms)

        run.ask(deleting("no-such"), version)
        run.ask(deleting("no-such", "no-such"), version)
        run.ask(deleting(one, one), version)
        run.ask(deleting("a b"), version)
        run.ask(deleting(""), version)
        run.ask(deleting(), version)
        run.ask(deleting("no-such", one, "a b"), version)
        run.wait_gone(one)
        run.ask(deleting(one, two), version)
        run.wait_gone(two)
        run.ask(MetadataRequest(topics=[MetadataRequestTopic(name=one)], allow_auto_topic_creation=False), 9)


def delete_topics_by_id(run: Run) -> None:
    one, two = run.create_topic("one"), run.create_topic("two")

    def state(side: Side, name: str | None = None, topic_id: str | bytes = bytes(16)) -> DeleteTopicState:
        return DeleteTopicState(name=name, topic_id=side.topic_id(topic_id) if isinstance(topic_id, str) else topic_id)

    for given in (
        ((None, UNKNOWN_TOPIC_ID),),
        ((None, bytes(16)),),
        ((one, one),),
        ((one, two),),
        ((one, UNKNOWN_TOPIC_ID),),
        ((None, UNKNOWN_TOPIC_ID), (None, UNKNOWN_TOPIC_ID)),
        ((None, one), (None, one)),
        ((None, one), (one, bytes(16))),
        ((None, bytes(16)), ("no-such", bytes(16))),
        ((None, one), ("no-such", bytes(16))),
    ):
        run.ask(
            lambda side, g=given: DeleteTopicsRequest(  # type: ignore[misc]
                topics=[state(side, name, topic_id) for name, topic_id in g], timeout_ms=10_000
            ),
            6,
        )
    run.wait_gone(one)
    run.ask(lambda side: DeleteTopicsRequest(topics=[state(side, None, one)], timeout_ms=10_000), 6)
    run.ask(lambda side: DeleteTopicsRequest(topics=[state(side, None, two)], timeout_ms=10_000), 6)
    run.wait_gone(two)


def create_partitions(run: Run) -> None:
    existing = run.create_topic(partitions=2)

    def growing(
        *topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False
    ) -> CreatePartitionsRequest:
        return CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name,
                    count=count,
                    assignments=None
                    if assignments is None
                    else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
                )
                for name, count, assignments in topics
            ],
            timeout_ms=10_000,
            validate_only=validate_only,
        )

    run.ask(growing((existing, 20_000, None), validate_only=True), 3)
    by_hand: tuple[list[list[int]], ...] = ([], [[1], [1]], [[2]], [[]], [[1, 1]], [[1, 2]], [[-1]], [[1]])
    for assignments in by_hand:
        run.sweep(growing((existing, 3, assignments), validate_only=True), versions=(0, 2, 3))
    for validate_only in (True, False):
        for count in (2, 1, 0, -1, -2):
            run.sweep(growing((existing, count, None), validate_only=validate_only))
        run.sweep(
            growing(("no-such", 3, None), validate_only=validate_only),
            growing(("a b", 3, None), validate_only=validate_only),
            growing(("", 3, None), validate_only=validate_only),
            growing((existing, 3, None), (existing, 3, None), validate_only=validate_only),
            growing((existing, 3, None), (existing, 4, None), ("no-such", 1, None), validate_only=validate_only),
            growing(validate_only=validate_only),
        )
    run.sweep(growing((existing, 3, [[1]]), ("no-such", 3, None), validate_only=True))
    for version in versions_of(CREATE_PARTITIONS):
        run.ask(growing((existing, 3 + version, None), ("no-such", 3, None)), version)
        run.wait_served(existing, 3 + version)
    run.ask(growing((existing, 7, [[1]])), 3)
    run.wait_served(existing, 7)
    run.ask(MetadataRequest(topics=[MetadataRequestTopic(name=existing)], allow_auto_topic_creation=False), 9)


def elect_leaders(run: Run) -> None:
    existing = run.create_topic(partitions=2)

    def electing(*topics: tuple[str, list[int]], election_type: int = 0) -> ElectLeadersRequest:
        asked = [TopicPartitions(topic=name, partitions=partitions) for name, partitions in topics]
        return ElectLeadersRequest(election_type=election_type, topic_partitions=asked, timeout_ms=10_000)

    for election_type in (0, 1, 2, -1, 127):
        versions = versions_of(ELECT_LEADERS) if election_type == 0 else (1, 2)
        run.sweep(
            electing((existing, [0]), election_type=election_type),
            electing((existing, [1, 0]), ("no-such", [0]), election_type=election_type),
            electing((existing, [2, -1]), election_type=election_type),
            electing((existing, [0]), (existing, [1]), election_type=election_type),
            electing((existing, []), election_type=election_type),
            electing(("a b", [0]), ("", [0]), election_type=election_type),
            electing(election_type=election_type),
            versions=versions,
        )


def reassignments(run: Run) -> None:
    existing = run.create_topic(partitions=2)

    def moving(*topics: tuple[str, int, list[int] | None], may_grow: bool = True) -> AlterPartitionReassignmentsRequest:
        asked = [
            ReassignableTopic(
                name=name, partitions=[ReassignablePartition(partition_index=partition, replicas=replicas)]
            )
            for name, partition, replicas in topics
        ]
        return AlterPartitionReassignmentsRequest(
            topics=asked, timeout_ms=10_000, allow_replication_factor_change=may_grow
        )

    for replicas in ([1], None, [], [1, 1], [2], [1, 2], [-1], [-2, 1]):
        run.sweep(
            moving((existing, 0, replicas)),
            moving((existing, 2, replicas)),
            moving((existing, -1, replicas)),
            moving(("no-such", 0, replicas), (existing, 1, replicas)),
            moving(("a b", 0, replicas), ("", 0, replicas)),
        )
        run.sweep(moving((existing, 0, replicas), may_grow=False), versions=(1,))
    run.sweep(moving())
    for topics in (None, [], [(existing, [0, 1, 2, -1])], [("no-such", [0])], [(existing, [])]):
        asked = None
        if topics is not None:
            asked = [ListPartitionReassignmentsTopics(name=name, partition_indexes=each) for name, each in topics]
        run.sweep(ListPartitionReassignmentsRequest(topics=asked, timeout_ms=10_000))


SCENARIOS = (
    create_topics,
    create_topics_counts,
    create_topics_names,
    create_topics_configs,
    create_topics_precedence,
    delete_topics,
    delete_topics_by_id,
    create_partitions,
    elect_leaders,
    reassignments,
)
