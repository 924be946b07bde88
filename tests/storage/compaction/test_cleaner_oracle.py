"""The log of an Apache Kafka, compacted by its cleaner and by ours: the same batches stay, and DumpLogSegments of Kafka
accepts our files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic  # type: ignore[attr-defined]

from barnabas.storage.compaction.cleaner import CleanedSegment, run_pass
from barnabas.storage.compaction.cleaner_manager import SegmentSwap, log_to_clean, make_job
from barnabas.wire.record_batch import DELETE_HORIZON_MASK, iter_headers
from barnabas.wire.records import iter_records
from tests.storage.blocking import flush
from tools.foreign.kafka import KafkaServer, dump_log_segments
from tools.waiting import PATIENCE_S, wait_until

SETTINGS = {"log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": "8388608"}
TOPIC = "compacted"
COMPLAINTS = re.compile(r"isvalid: false|invalid bytes|[Mm]ismatch|[Nn]on-consecutive|[Ee]xception|[Cc]orrupt")


def write_everything(bootstrap_servers: str) -> None:
    """Plain, idempotent and transactional batches of 20 records with four codecs."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "1"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(PATIENCE_S)
    base = {"bootstrap.servers": bootstrap_servers, "linger.ms": 10_000}
    plain = [Producer({**base, "compression.type": codec, "enable.idempotence": codec == "lz4"})
             for codec in ("none", "gzip", "lz4", "snappy")]  # fmt: skip
    transactional = Producer({**base, "transactional.id": "writer"})
    transactional.init_transactions(PATIENCE_S)
    for number in range(228):
        producer = plain[number % 4]
        if number % 10 == 9:
            producer = transactional
            producer.begin_transaction()
        for record in range(20):
            key = (number * 7 + record * 13) % 300
            value = None if (number + record) % 17 == 0 else b"%d " % number + b"%d" % key * 400
            producer.produce(TOPIC, key=b"key%d" % key, value=value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if producer is transactional and number % 20 == 9:
            producer.abort_transaction(PATIENCE_S)
        elif producer is transactional:
            producer.commit_transaction(PATIENCE_S)


def ask_for_compaction(bootstrap_servers: str) -> None:
    """Have the whole log compacted now, in a single pass."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def wait_for_clean_log(directory: Path) -> None:
    def checkpoint() -> list[str]:
        path = directory / "cleaner-offset-checkpoint"
        return path.read_text().splitlines() if path.exists() else []

    def active_segment() -> int:
        return max(int(found.stem) for found in (directory / f"{TOPIC}-0").glob("*.log"))

    wait_until(
        lambda: (active := active_segment()) and f"{TOPIC} 0 {active}" in checkpoint(),
        lambda: f"a clean {directory}: {checkpoint()}, active segment {active_segment()}",
    )


def content(folder: Path) -> list[tuple[object, ...]]:
    """Every batch of a partition, without what depends on the broker and its clock."""
    found: list[tuple[object, ...]] = []
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        for header in iter_headers(data):
            records = [
                (record.offset, record.key) if header.is_control else (record.offset, record.timestamp, *record[2:4])
                for record in iter_records(data, header)
            ]
            found.append(
                (
                    path.name,
                    header.base_offset,
                    header.last_offset,
                    header.attributes,
                    header.base_sequence,
                    0 if header.is_control else header.max_timestamp,
                    records,
                )
            )
    return found


def take_over(logs, folder: Path):
    """A log of our own with the segments of Kafka's, batch for batch."""
    log = logs.log(TOPIC, cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 20, segment_ms=1 << 50)
    segments = sorted(folder.glob("*.log"))
    for path in segments:
        data = path.read_bytes()
        if data:
            log.append_as_follower(data, now_ms=logs.clock.now_ms())
        if path != segments[-1]:
            log.roll()
    log.update_high_watermark(log.log_end_offset)
    assert [segment.base_offset for segment in log.segments] == [int(path.stem) for path in segments]
    return log


def clean(log) -> None:
    flush(log)
    now_ms = log.context.clock.now_ms()
    job = make_job(log_to_clean(log, None, now_ms), now_ms, map_bytes=1 << 20, map_load_factor=0.9)
    for result in run_pass(log.context.cache.files, job, lambda _: None):
        if isinstance(result, CleanedSegment):
            swap = SegmentSwap(log, job, result)
            assert swap.begin()
            swap.sync()
            assert swap.finish()


@pytest.mark.java
@pytest.mark.full
def test_kafkas_own_cleaner_keeps_the_same_batches(logs, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with KafkaServer(overrides=SETTINGS) as kafka:
        write_everything(kafka.bootstrap_servers)
        shutil.copytree(kafka.log_dir / f"{TOPIC}-0", copy)
        ask_for_compaction(kafka.bootstrap_servers)
        wait_for_clean_log(kafka.log_dir)
        expected = content(kafka.log_dir / f"{TOPIC}-0")
    assert len(expected) > 20
    assert len(expected) < len(content(copy)), "nothing was cleaned"
    assert any(int(str(batch[3])) & DELETE_HORIZON_MASK for batch in expected), "no batch got a delete horizon"

    log = take_over(logs, copy)
    clean(log)
    folder = Path(log.directory)
    assert content(folder) == expected

    logs.stop(clean=True)
    files = sorted(path for suffix in ("log", "index", "timeindex", "txnindex", "snapshot")
                   for path in folder.glob(f"*.{suffix}"))  # fmt: skip
    result = dump_log_segments(files)
    logs.start()
    output = f"{result.stdout}{result.stderr}"
    assert not COMPLAINTS.findall(output), output
    assert "baseOffset" in output
