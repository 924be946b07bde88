"""The ways in which a broker ends in a soak: `kill -9`, with a torn write or without, at any time or at a swap of
compaction.
"""

import random
from pathlib import Path

from barnabas.wire.record_batch import CorruptBatch, RecordBatchHeader, iter_headers
from barnabas.wire.records import Record, build_batch
from tools.processes.barnabas import BarnabasProcess
from tools.soak.compactions import CLEANED, DELETED, SWAP, wait_for_compaction
from tools.soak.workload import TOPIC_PREFIX

TORN_PROBABILITY = 0.5
COMPACTION_PROBABILITY = 0.5
COMPACTION_PATIENCE_S = 1.5


def kill(process: BarnabasProcess, chance: random.Random) -> None:
    """`kill -9`. In half of the cases a write is torn: only a part of it reached the disk. In half of the cases the
    kill waits for some stage of the next compaction.
    """
    if chance.random() < COMPACTION_PROBABILITY:
        wait_for_compaction(process.log_dir, chance.choice((CLEANED, SWAP, SWAP, DELETED)), COMPACTION_PATIENCE_S)
    process.kill()
    if chance.random() < TORN_PROBABILITY:
        tear(chance.choice(sorted(process.log_dir.glob(f"{TOPIC_PREFIX}*[0-9]"))))


def tear(directory: Path) -> None:
    """Append a torn write after the last batch of a partition: a whole header and file size, but zeros instead of the
    second half of the records. It was not acknowledged.
    """
    segment = max(directory.glob("*.log"))
    last = _last_batch(segment.read_bytes())
    if last is None:
        return
    batch = build_batch(
        [Record(last.next_offset, last.max_timestamp, None, b"7" * 1000, (), -1)],
        base_offset=last.next_offset,
        partition_leader_epoch=last.partition_leader_epoch,
    )
    batch[-500:] = bytes(500)
    with segment.open("ab") as file:
        file.write(batch)


def _last_batch(data: bytes) -> RecordBatchHeader | None:
    """The last batch of a segment; None if there is none, or if the kill itself left a torn one."""
    try:
        headers = list(iter_headers(data))
    except CorruptBatch:
        return None
    return headers[-1] if headers else None
