"""What an operator may set about groups and their offsets."""

from dataclasses import dataclass, field


def _key(name: str, default: int) -> int:
    value: int = field(default=default, metadata={"key": name})
    return value


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's `group.*`, `offsets.*` and `offset.*` keys that the coordinator obeys, with Kafka's defaults, and one
    of its own; the key is in each field's metadata.
    """

    barnabas_group_newcomer_delay_ms: int = _key("barnabas.group.newcomer.delay.ms", 50)
    """How long a rebalance that a newcomer began waits for more of them, at most 1,000; 0 as in Kafka."""
    group_min_session_timeout_ms: int = _key("group.min.session.timeout.ms", 6_000)
    group_max_session_timeout_ms: int = _key("group.max.session.timeout.ms", 1_800_000)
    group_initial_rebalance_delay_ms: int = _key("group.initial.rebalance.delay.ms", 3_000)
    group_max_size: int = _key("group.max.size", 2_147_483_647)
    offset_metadata_max_bytes: int = _key("offset.metadata.max.bytes", 4_096)
    offsets_retention_minutes: int = _key("offsets.retention.minutes", 10_080)
    offsets_retention_check_interval_ms: int = _key("offsets.retention.check.interval.ms", 600_000)
    offsets_commit_timeout_ms: int = _key("offsets.commit.timeout.ms", 5_000)
    offsets_topic_compression_codec: int = _key("offsets.topic.compression.codec", 0)
    """A CompressionType."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
