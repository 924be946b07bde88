"""The files and offsets of a log that was found or created: `log.PartitionLog` goes on from them.

Source: org.apache.kafka.storage.internals.log.LoadedLogOffsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.segment import Segment


@dataclass(slots=True)
class LoadedLog:
    """A log before its first use.

    Attributes:
        directory: the path of the log's directory.
        segments: at least one, oldest first.
        recovery_point: the offset up to which everything is on the disk.
        high_watermark: the checkpointed one, which may lie outside the log.
        clean_offset: the end of the last compaction pass; None if the log was never compacted. It may lie behind the
            log's end.
        snapshots: the offsets of the `.snapshot` files, ascending.
        leader_epochs: None to read them when they are first needed.
        producers: the state of the producers at the log end offset; None to build it when it is first needed.
    """

    directory: str
    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    high_watermark: int = 0
    clean_offset: int | None = None
    snapshots: list[int] = field(default_factory=list)
    leader_epochs: LeaderEpochs | None = None
    producers: ProducerState | None = None
