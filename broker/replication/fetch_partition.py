"""A fetcher's request for one partition, which its fetch session (`fetch_sessions.py`) keeps and updates. Pure."""

from typing import TYPE_CHECKING

from barnabas.controller.topics import TOPIC_NAME_LENGTH_MAX
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import PartitionData
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from barnabas.broker.replication.partition import Partition

PartitionKey = tuple[TopicId | str, int]
"""Topic id (or name, before version 13) and partition index."""


class FetchPartition:
    """A fetcher's request for one partition, and the offsets that its session sent last."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "is_named",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "place",
        "rests_at",
        "told_high_watermark",
        "told_log_start_offset",
        "topic",
        "topic_id",
    )

    # The following attributes exist only in a session: most fetches that name partitions have none.

    is_named: bool
    """Whether a request has named the partition since a pass last found nothing in it."""
    place: int
    """Its place in the session's order: partitions with lower numbers are served first."""
    rests_at: "Partition | None"
    """Set while the partition rests, see `Attention`."""

    def __init__(
        self,
        topic: str | None,
        topic_id: TopicId,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes if max_bytes >= 0 else 0
        self.current_leader_epoch = current_leader_epoch if current_leader_epoch >= 0 else -1
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.told_high_watermark = -1
        self.told_log_start_offset = -1
        self.key: PartitionKey = (topic or "" if topic_id == ZERO_TOPIC_ID else topic_id, partition)

    @property
    def may_be_kept(self) -> bool:
        """Whether the topic name may be valid. A session does not keep other names, which may have 32,767 characters
        each; only a misbehaving client sends them."""
        return self.topic is None or (len(self.topic) <= TOPIC_NAME_LENGTH_MAX and self.topic.isascii())

    def ask_again(self, request: "FetchPartition") -> None:
        self.fetch_offset = request.fetch_offset
        self.max_bytes = request.max_bytes
        self.current_leader_epoch = request.current_leader_epoch
        self.last_fetched_epoch = request.last_fetched_epoch
        self.log_start_offset = request.log_start_offset
        self.is_named = True

    def was_told(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether an incremental response without records of this partition would contain nothing new."""
        return self.told_high_watermark == high_watermark and self.told_log_start_offset == log_start_offset

    def must_tell(self, data: PartitionData) -> bool:
        """Whether an incremental response has to carry `data`; remembers the offsets that are sent."""
        has_error = data.error_code != ErrorCode.NONE
        must_tell = (
            bool(data.records)
            or data.high_watermark != self.told_high_watermark
            or data.log_start_offset != self.told_log_start_offset
            or data.preferred_read_replica != -1
            or has_error
            or data.diverging_epoch.epoch >= 0
        )
        # An error resets the high watermark, so that the partition is sent again once the error has passed.
        self.told_high_watermark = -1 if has_error else data.high_watermark
        self.told_log_start_offset = data.log_start_offset
        return must_tell
