"""Topic keys, a row each: name, type, default, validator, importance, the broker key that sets the default (None if no
key does), documentation, and a mark: INTERNAL if Kafka does not list it, DELETES if records are removed according to
it. A key with DELETES has a value in `controller.configs.KEPT_WHERE_BROKEN` with which no records are removed, unless
another key's value there ensures that.

A row is all that a new key needs to be accepted, stored, checked and described; a field of its name in `LogConfig`
(`storage/config.py`), with underscores, passes its value to the logs.

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

DELETES: Final = "deletes"

# fmt: off
TOPIC_ROWS: Final[tuple[tuple[Any, ...], ...]] = (
    ("cleanup.policy", LIST, ("delete",), ("list_or_empty", "compact", "delete"), MEDIUM, "log.cleanup.policy",
     "What happens to old data: delete drops whole segments by age and size, compact keeps the last value of each "
     "key; both may be given, and an empty list keeps everything.", DELETES),
    ("compression.gzip.level", INT, -1, ("range_or", 1, 9, -1), MEDIUM, "compression.gzip.level",
     "Level used where the broker compresses with gzip: 1 to 9, or -1 for the default."),
    ("compression.lz4.level", INT, 9, ("range", 1, 17), MEDIUM, "compression.lz4.level",
     "Level used where the broker compresses with lz4: 1 to 17."),
    ("compression.type", STRING, "producer",
     ("in", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), MEDIUM, "compression.type",
     "How batches are stored: producer keeps them as they came; any other value recompresses them."),
    ("compression.zstd.level", INT, 3, ("range", -131_072, 22), MEDIUM, "compression.zstd.level",
     "Level used where the broker compresses with zstd: -131072 to 22."),
    ("delete.retention.ms", LONG, 86_400_000, ("min", 0), MEDIUM, "log.cleaner.delete.retention.ms",
     "How long the tombstones of a compacted topic stay readable.", DELETES),
    ("file.delete.delay.ms", LONG, 60_000, ("min", 0), MEDIUM, "log.segment.delete.delay.ms",
     "How long a deleted file stays on disk under a .deleted name."),
    ("flush.messages", LONG, LONG_MAX, ("min", 1), MEDIUM, "log.flush.interval.messages",
     "Force written records to disk after this many."),
    ("flush.ms", LONG, LONG_MAX, ("min", 0), MEDIUM, "log.flush.interval.ms",
     "Force written records to disk after this time."),
    ("follower.replication.throttled.replicas", LIST, (), ("throttled_replicas",), MEDIUM, None,
     "Replicas whose fetching is throttled: PARTITION:BROKER,... or *."),
    ("index.interval.bytes", INT, 4096, ("min", 0), MEDIUM, "log.index.interval.bytes",
     "Bytes of records between two entries of the offset index."),
    ("internal.segment.bytes", INT, None, None, MEDIUM, None, "", INTERNAL),
    ("leader.replication.throttled.replicas", LIST, (), ("throttled_replicas",), MEDIUM, None,
     "Replicas whose serving is throttled: PARTITION:BROKER,... or *."),
    ("local.retention.bytes", LONG, -2, ("min", -2), MEDIUM, "log.local.retention.bytes",
     "Tiered storage: bytes kept on the broker (-2: as retention.bytes). Without effect here."),
    ("local.retention.ms", LONG, -2, ("min", -2), MEDIUM, "log.local.retention.ms",
     "Tiered storage: time kept on the broker (-2: as retention.ms). Without effect here."),
    ("max.compaction.lag.ms", LONG, LONG_MAX, ("min", 1), MEDIUM, "log.cleaner.max.compaction.lag.ms",
     "The longest time a record may wait before it can be compacted."),
    ("max.message.bytes", INT, 1_048_588, ("min", 0), MEDIUM, "message.max.bytes",
     "The largest record batch that is accepted, as compressed by the producer."),
    ("message.timestamp.after.max.ms", LONG, 3_600_000, ("min", 0), MEDIUM, "log.message.timestamp.after.max.ms",
     "How far a record's create time may lie after the broker's clock."),
    ("message.timestamp.before.max.ms", LONG, LONG_MAX, ("min", 0), MEDIUM, "log.message.timestamp.before.max.ms",
     "How far a record's create time may lie before the broker's clock."),
    ("message.timestamp.type", STRING, "CreateTime",
     ("in", "CreateTime", "LogAppendTime"), MEDIUM, "log.message.timestamp.type",
     "Which time records carry: CreateTime (the producer's) or LogAppendTime (the broker's)."),
    ("min.cleanable.dirty.ratio", DOUBLE, 0.5, ("range", 0, 1), MEDIUM, "log.cleaner.min.cleanable.ratio",
     "Share of uncompacted bytes from which a log is worth compacting."),
    ("min.compaction.lag.ms", LONG, 0, ("min", 0), MEDIUM, "log.cleaner.min.compaction.lag.ms",
     "The shortest time a record stays uncompacted.", DELETES),
    ("min.insync.replicas", INT, 1, ("min", 1), MEDIUM, "min.insync.replicas",
     "How many replicas must have a write before acks=all is acknowledged."),
    ("preallocate", BOOLEAN, False, None, MEDIUM, "log.preallocate",
     "Accepted as in Kafka, without effect in this version: segments grow as they are written."),
    ("remote.log.copy.disable", BOOLEAN, False, None, MEDIUM, None,
     "Tiered storage: stop copying segments. Without effect here."),
    ("remote.log.delete.on.disable", BOOLEAN, False, None, MEDIUM, None,
     "Tiered storage: delete remote data when it is switched off. Without effect here."),
    ("remote.storage.enable", BOOLEAN, False, None, MEDIUM, None,
     "Tiered storage for this topic; not available, true is refused."),
    ("retention.bytes", LONG, -1, None, MEDIUM, "log.retention.bytes",
     "Size per partition above which the oldest segments are deleted; -1 for no limit.", DELETES),
    ("retention.ms", LONG, 604_800_000, ("min", -1), MEDIUM, "log.retention.ms",
     "Age after which segments are deleted; -1 for no limit.", DELETES),
    ("segment.bytes", INT, 1_073_741_824, ("min", 14), MEDIUM, "log.segment.bytes",
     "Size at which a new segment is started."),
    ("segment.index.bytes", INT, 10_485_760, ("min", 4), MEDIUM, "log.index.size.max.bytes",
     "Largest size of the index of one segment."),
    ("segment.jitter.ms", LONG, 0, ("min", 0), MEDIUM, "log.roll.jitter.ms",
     "Random time taken off segment.ms, so that segments do not all roll at once."),
    ("segment.ms", LONG, 604_800_000, ("min", 1), MEDIUM, "log.roll.ms",
     "Age at which a new segment is started, even if it is not full."),
    ("unclean.leader.election.enable", BOOLEAN, False, None, MEDIUM, "unclean.leader.election.enable",
     "Elect a replica that is not in sync when no other is alive: may lose data."),
)
# fmt: on
