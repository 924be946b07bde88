"""Topic keys: name, type, default, validator, importance.

`segment.bytes` keeps 3.9's lower limit of 14 bytes; 4.x only narrowed it.
"""

from typing import Any, Final

from barnabas.broker.configuration.definitions import (
    BOOLEAN,
    DOUBLE,
    INT,
    INTERNAL,
    LIST,
    LONG,
    LONG_MAX,
    MEDIUM,
    STRING,
)

TOPIC_ROWS: Final[tuple[tuple[Any, ...], ...]] = (
    ("cleanup.policy", LIST, ("delete",), ("list_or_empty", "compact", "delete"), MEDIUM),
    ("compression.gzip.level", INT, -1, ("range_or", 1, 9, -1), MEDIUM),
    ("compression.lz4.level", INT, 9, ("range", 1, 17), MEDIUM),
    (
        "compression.type",
        STRING,
        "producer",
        ("in", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        MEDIUM,
    ),
    ("compression.zstd.level", INT, 3, ("range", -131_072, 22), MEDIUM),
    ("delete.retention.ms", LONG, 86_400_000, ("min", 0), MEDIUM),
    ("file.delete.delay.ms", LONG, 60000, ("min", 0), MEDIUM),
    ("flush.messages", LONG, LONG_MAX, ("min", 1), MEDIUM),
    ("flush.ms", LONG, LONG_MAX, ("min", 0), MEDIUM),
    ("follower.replication.throttled.replicas", LIST, (), ("throttled_replicas",), MEDIUM),
    ("index.interval.bytes", INT, 4096, ("min", 0), MEDIUM),
    ("internal.segment.bytes", INT, None, None, MEDIUM, INTERNAL),
    ("leader.replication.throttled.replicas", LIST, (), ("throttled_replicas",), MEDIUM),
    ("local.retention.bytes", LONG, -2, ("min", -2), MEDIUM),
    ("local.retention.ms", LONG, -2, ("min", -2), MEDIUM),
    ("max.compaction.lag.ms", LONG, LONG_MAX, ("min", 1), MEDIUM),
    ("max.message.bytes", INT, 1_048_588, ("min", 0), MEDIUM),
    ("message.timestamp.after.max.ms", LONG, 3_600_000, ("min", 0), MEDIUM),
    ("message.timestamp.before.max.ms", LONG, LONG_MAX, ("min", 0), MEDIUM),
    ("message.timestamp.type", STRING, "CreateTime", ("in", "CreateTime", "LogAppendTime"), MEDIUM),
    ("min.cleanable.dirty.ratio", DOUBLE, 0.5, ("range", 0, 1), MEDIUM),
    ("min.compaction.lag.ms", LONG, 0, ("min", 0), MEDIUM),
    ("min.insync.replicas", INT, 1, ("min", 1), MEDIUM),
    ("preallocate", BOOLEAN, False, None, MEDIUM),
    ("remote.log.copy.disable", BOOLEAN, False, None, MEDIUM),
    ("remote.log.delete.on.disable", BOOLEAN, False, None, MEDIUM),
    ("remote.storage.enable", BOOLEAN, False, None, MEDIUM),
    ("retention.bytes", LONG, -1, None, MEDIUM),
    ("retention.ms", LONG, 604_800_000, ("min", -1), MEDIUM),
    ("segment.bytes", INT, 1_073_741_824, ("min", 14), MEDIUM),
    ("segment.index.bytes", INT, 10_485_760, ("min", 4), MEDIUM),
    ("segment.jitter.ms", LONG, 0, ("min", 0), MEDIUM),
    ("segment.ms", LONG, 604_800_000, ("min", 1), MEDIUM),
    ("unclean.leader.election.enable", BOOLEAN, False, None, MEDIUM),
)
