"""The differences that are known and explained: each points to an item of docs/deviations."""

from compat_tests.differential.findings import Finding, KnownDifference

UNFORESEEN = "Where Kafka answers UNKNOWN_SERVER_ERROR"
_FETCHED = "responses/fetch_limits-t/partitions/?/"
_LISTED = "topics/list_offsets-t/partitions/?/"
_DESCRIBED = "describe_topic_partitions-a"
_NO_TOPIC_ID = '*"topic_id": "(none)"*'
UNFORESEEN_FIELDS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("CreatePartitions", "create_partitions", '*"count": 20000*', ("results/create_partitions-t/error_*",)),
    (
        "DescribeTopicPartitions",
        "describe_topic_partitions",
        '*"cursor": null*"name": ""*',
        (
            *(f"topics/{name}{field}" for name in ("/", f"{_DESCRIBED}/") for field in ("error_code", "topic_auth*")),
            f"topics/{_DESCRIBED}/topic_id",
            f"topics/{_DESCRIBED}/partitions/0",
        ),
    ),
    ("Fetch", "fetch_limits", "*", ("error_code", f"{_FETCHED}aborted_transactions")),
    (
        "Fetch",
        "fetch_limits",
        "*",
        tuple(
            _FETCHED + name
            for name in ("error_code", "high_watermark", "last_stable_offset", "log_start_offset", "records")
        ),
    ),
    ("Fetch", "fetch_versions", _NO_TOPIC_ID, ("error_code", "responses/(none)")),
    (
        "IncrementalAlterConfigs",
        "alter_topic_configs",
        '*"config_operation": 4*',
        ("responses/2:alter_topic_configs-t/error_*",),
    ),
    (
        "ListOffsets",
        "list_offsets",
        "*",
        tuple(_LISTED + name for name in ("error_code", "leader_epoch", "offset", "timestamp")),
    ),
    ("Metadata", "metadata_*", _NO_TOPIC_ID, ("brokers/1", "cluster_id", "controller_id", "error_code")),
    ("Metadata", "metadata_*", _NO_TOPIC_ID, ("topics//error_code",)),
    (
        "Metadata",
        "metadata_named",
        _NO_TOPIC_ID,
        tuple("topics/metadata_named-a/" + name for name in ("error_code", "partitions/?", "topic_id")),
    ),
    (
        "Produce",
        "produce_bad_batches",
        "*",
        tuple(
            "responses/produce_bad_batches-t/partition_responses/0/" + name
            for name in ("error_code", "log_start_offset")
        ),
    ),
    (
        "WriteTxnMarkers",
        "transaction_markers",
        '*": -1*',
        ("markers/*/topics/transaction_markers-t/partitions/0/error_code",),
    ),
)
"""API, scenario, request and what differs. A Metadata answer of Kafka that fails so names no broker and no topic."""
_REFUSED_TOPIC = ("configs/*", "error_*", "num_partitions", "replication_factor", "topic_id")
REPLICAS = "there are no eligible leader replicas"
ALTER = "*AlterConfigs"
NOT_SERVED = "APIs and versions that are not served"
KRAFT = "The features of KRaft"
KRAFT_FEATURES = ("eligible.leader.replicas", "group", "metadata", "share", "streams")
KNOWN: tuple[KnownDifference, ...] = (
    *(
        KnownDifference(NOT_SERVED, "ApiVersions", f"api_keys/{key}")
        for key in (
            *(34, 55, 57, 64, 68, 69),
            *range(76, 82),
            *range(83, 93),
        )
    ),
    *(
        KnownDifference(KRAFT, "ApiVersions", f"{kind}_features/{name}.version")
        for kind, names in (("supported", (*KRAFT_FEATURES, "kraft")), ("finalized", KRAFT_FEATURES))
        for name in names
    ),
    KnownDifference(KRAFT, "ApiVersions", "finalized_features_epoch"),
    KnownDifference(
        "share group has no coordinator", "FindCoordinator", "coordinators/*", request='*"g:AAA*:0"*"key_type": 2*'
    ),
    KnownDifference(REPLICAS, "CreateTopics", "topics/*/configs/min.insync.replicas/config_source"),
    KnownDifference(REPLICAS, "DescribeConfigs", "results/*/configs/min.insync.replicas*"),
    KnownDifference(REPLICAS, ALTER, "responses/4:1/error_*", request="*min.insync.replicas*"),
    *(
        KnownDifference(UNFORESEEN, api, path, scenario=scenario, request=request, kafka_fails=True)
        for api, scenario, request, paths in UNFORESEEN_FIELDS
        for path in paths
    ),
    *(
        KnownDifference("A cursor of DescribeTopicPartitions", "DescribeTopicPartitions", path, request="*2147481648*")
        for path in ("next_cursor", "topics/*")
    ),
    KnownDifference("a name twice", "ListTransactions", "error_code", request="*(?P<x>a)(?P<x>b)*"),
    KnownDifference("null instead of records", "Produce", "", request='*"records": null*'),
    KnownDifference("names a resource twice", "AlterConfigs", "", scenario="alter_resources"),
    *(
        KnownDifference(
            "while deleted records are still on disk",
            "ListOffsets",
            f"topics/delete_records-t/partitions/0/{name}",
            scenario="delete_records",
        )
        for name in ("leader_epoch", "offset", "timestamp")
    ),
    KnownDifference("not UTF-8", "ApiVersions", "", scenario="broken_frames"),
    *(
        KnownDifference(
            "`min.cleanable.dirty.ratio=NaN`", "CreateTopics", f"topics/create_topics_configs-t/{name}", request="*NaN*"
        )
        for name in _REFUSED_TOPIC
    ),
    KnownDifference(
        "`min.cleanable.dirty.ratio=NaN`", ALTER, "responses/2:alter_topic_configs-t/error_*", request="*NaN*"
    ),
    KnownDifference("A timeout of zero or less", "CreateTopics", "*/error_*", scenario="create_topics_precedence"),
    KnownDifference("Thread counts", ALTER, "*/error_*", request='*num.io.threads*"100000"*'),
    *(
        KnownDifference(row, "DescribeConfigs", f"results/4:1/configs/{name}*", scenario="describe_broker")
        for row, names in {
            "Configs that place a broker in its cluster": (
                "advertised.listeners",
                "broker.id/",
                "controller.listener.names",
                "controller.quorum.voters",
                "listener.security.protocol.map",
                "listeners",
                "node.id/",
                "process.roles",
            ),
            "`group.initial.rebalance.delay.ms` is 0": (
                "group.initial.rebalance.delay.ms",
                "offsets.topic.replication.factor/synonyms",
                "transaction.state.log.replication.factor/synonyms",
                "transaction.state.log.min.isr/synonyms",
            ),
            "Keys of Barnabas alone": ("barnabas.",),
            "`log.dir` is in the user's data folder": (
                "log.dir/",
                "metric.reporters",
                "group.coordinator.rebalance.protocols",
            ),
        }.items()
        for name in names
    ),
    KnownDifference("Thread counts", ALTER, "*/error_*", request='*log.cleaner.threads*"0"*'),
    KnownDifference("A join without usable protocols", "DescribeGroups", "groups/*", scenario="join_refusals"),
    KnownDifference(
        "`zookeeper.*` keys that the broker knows cannot", ALTER, "*/error_*", request="*zookeeper.connect*"
    ),
)


def explain(finding: Finding) -> KnownDifference | None:
    """The known difference that covers a finding."""
    return next((known for known in KNOWN if known.covers(finding)), None)
