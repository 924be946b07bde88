"""Kafka's own DumpLogSegments reads what the log writes: batches, indexes, transaction indexes and producer snapshots.

Its exit status proves nothing, so its output is looked through for what it says when it finds something wrong.
"""

from __future__ import annotations

import re

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from tests.support.required import tool_missing
from tools.foreign.kafka import dump_log_segments

COMPLAINTS = re.compile(
    r"isvalid: false|invalid bytes|[Mm]ismatch|[Nn]on-consecutive|[Ee]xception|[Cc]orrupt|Indexed offset", re.ASCII
)


def write_a_log_of_everything(logs):
    log = logs.log(segment_bytes=3000, index_interval_bytes=200)
    start = logs.clock.now_ms()
    for number in range(60):
        logs.append(log, b"k" * 30, b"v" * number, timestamp=start + number, epoch=number // 20,
                    producer_id=number % 2, producer_epoch=0, base_sequence=number // 2 * 2)  # fmt: skip
    logs.append(
        log, b"in a transaction", producer_id=77, producer_epoch=3, base_sequence=0, transactional=True, epoch=3
    )
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.ABORT, 1), producer_id=77, producer_epoch=3, timestamp_ms=start
    )
    log.append_as_leader(marker, leader_epoch=3, now_ms=start, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    log.roll()
    logs.append(log, b"after it", timestamp=start, epoch=3)
    return log.log_end_offset


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
@pytest.mark.parametrize("clean", [True, False])
def test_every_file_is_accepted(logs, version, clean):
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    end_offset = write_a_log_of_everything(logs)
    logs.restart(clean=clean)
    logs.stop(clean=True)
    directory = logs.path / "topic-0"
    files = sorted(path for suffix in ("log", "index", "timeindex", "txnindex", "snapshot")
                   for path in directory.glob(f"*.{suffix}"))  # fmt: skip
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    result = dump_log_segments(files, version=version)
    output = result.stdout + result.stderr
    logs.start()
    assert not COMPLAINTS.findall(output), output
    last_offsets = [int(found) for found in re.findall(r"baseOffset: \d+ lastOffset: (\d+)", output)]
    assert max(last_offsets) == end_offset - 1
    assert "producerId: 77 firstOffset: 120" in output
