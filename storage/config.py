"""The settings of one log: the topic configs that storage uses.

Names are Kafka's topic configs with underscores; defaults are those of Kafka 4.3
(org.apache.kafka.storage.internals.log.LogConfig). Values are validated where configs are altered, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from barnabas.wire.record_batch import CompressionType

NO_LIMIT: Final = (1 << 63) - 1
"""Kafka's Long.MAX_VALUE: a count or duration that is never reached."""

WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one topic. Many partitions share one object, so it is immutable and gets replaced.

    Sizes are bytes, durations milliseconds; -1 for `retention_bytes` and `retention_ms` means unlimited.
    `compression_type` None is Kafka's `producer`: batches keep their codec. `message_timestamp_type` is spelled as in
    Kafka: "CreateTime" or "LogAppendTime". `validate_records` is `barnabas.validate.records`: decode and check every
    record, instead of trusting a batch with a valid header and CRC.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = WEEK_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    flush_messages: int = NO_LIMIT
    flush_ms: int = NO_LIMIT
    retention_bytes: int = -1
    retention_ms: int = WEEK_MS
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = NO_LIMIT
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: CompressionType | None = None
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    min_insync_replicas: int = 1
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False
    unclean_leader_election_enable: bool = False
    delete_retention_ms: int = 24 * 60 * 60 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT
    min_cleanable_dirty_ratio: float = 0.5
    validate_records: bool = False

    # Derived from the settings, for every append.
    is_compacted: bool = field(init=False, repr=False, compare=False)
    """Whether `cleanup.policy` includes compaction (records then need keys)."""
    segment_age_max_ms: int = field(init=False, repr=False, compare=False)
    """The age at which a segment is sealed: before max.compaction.lag.ms has passed, since the active segment is never
    cleaned.
    """
    uses_log_append_time: bool = field(init=False, repr=False, compare=False)
    """Whether the broker sets the timestamps of records to the time of their append."""

    def __post_init__(self) -> None:
        is_compacted = "compact" in self.cleanup_policy
        age_max_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        object.__setattr__(self, "is_compacted", is_compacted)
        object.__setattr__(self, "segment_age_max_ms", age_max_ms)
        object.__setattr__(self, "uses_log_append_time", self.message_timestamp_type == "LogAppendTime")

    @property
    def deletes_by_retention(self) -> bool:
        """Whether `cleanup.policy` lets retention delete whole segments."""
        return "delete" in self.cleanup_policy
