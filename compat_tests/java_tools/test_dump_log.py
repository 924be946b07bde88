"""Kafka's DumpLogSegments reads every file that the broker under test wrote.

Its exit status proves nothing: what counts is what it prints.
"""

import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import create_topic
from compat_tests.java_tools.kafka_tools import Tools
from tools.waiting import PATIENCE_S

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COMPLAINTS = re.compile(
    r"isvalid: false|invalid bytes|Mismatches|Non-consecutive.*\n.*|Exception|not monotonic|Corrupt", re.IGNORECASE
)
FALSE_ALARM = re.compile(r"Non-consecutive offsets in \S*/(\d{20})\.log\n  -1 is followed by (\d+)\n?(?! )")
"""4.3.0 compares the first offset of every file with -1, so it complains about each segment but the first."""
RECORDS_PER_CODEC = 300
DUMPED = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")


def fill(bootstrap_servers: str, topic: str) -> int:
    """Produce records in every codec, idempotently, so that several segments come to be; returns how many."""
    from confluent_kafka import Producer

    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "compression.type": codec,
                "enable.idempotence": True,
                "batch.num.messages": 20,
            }
        )
        for number in range(RECORDS_PER_CODEC):
            headers: list[tuple[str, str | bytes | None]] = [("codec", codec)] if number % 3 else []
            key = secrets.token_bytes(8) if number % 7 else None
            producer.produce(
                topic, secrets.token_hex(500), key=key, headers=headers, timestamp=1_700_000_000_000 + number
            )
        assert producer.flush(PATIENCE_S) == 0
    return RECORDS_PER_CODEC * len(CODECS)


def commit_offsets(bootstrap_servers: str, topic: str) -> None:
    """Let a group join, commit and leave, so that __consumer_offsets holds both kinds of records."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "dumped", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.consume(10, timeout=PATIENCE_S)
    consumer.commit(asynchronous=False)
    consumer.close()


def files_of(log_dir: Path, topic: str) -> list[Path]:
    return sorted(path for path in log_dir.glob(f"{topic}-*/*") if path.suffix in DUMPED and path.stat().st_size)


def dump(tools: Tools, files: list[Path], *options: str) -> str:
    """The output of kafka-dump-log."""
    done = tools.attempt("kafka-dump-log", *options, "--files", ",".join(map(str, files)))
    return done.out + done.err


def check_dump(tools: Tools, files: list[Path], expected_offsets: range, *options: str) -> str:
    """Dump the files; fail on any complaint and on any offset of `expected_offsets` that is not printed."""
    printed = dump(tools, files, *options)
    text = FALSE_ALARM.sub(lambda found: "" if int(found[1]) == int(found[2]) else found[0], printed)
    assert COMPLAINTS.findall(text) == []
    for path in files:
        assert f"Dumping {path}" in text, f"{path.name} was left out"
    assert "isvalid: true" in text
    offsets = {int(offset) for offset in re.findall(r"^\| offset: (\d+) ", text, re.MULTILINE)}
    assert offsets.issuperset(expected_offsets)
    return text


@pytest.mark.parametrize("ending", [pytest.param("stop", marks=pytest.mark.full), "kill"])
def test_every_file_of_the_log_directory_is_sound(
    start_cluster: Any, tools_for: Callable[[Any], Tools], ending: str
) -> None:
    own = start_cluster({"log.index.interval.bytes": "1024"})
    topic = f"dumped-{secrets.token_hex(4)}"
    small = {"segment.bytes": "1048576", "segment.ms": "100000", "index.interval.bytes": "1024"}
    create_topic(own.bootstrap_servers, topic, 1, small)
    count = fill(own.bootstrap_servers, topic)
    fill(own.bootstrap_servers, topic)
    commit_offsets(own.bootstrap_servers, topic)
    if ending == "kill":
        own.kill()
        own.start()
        count += fill(own.bootstrap_servers, topic)
    own.stop()

    files = files_of(own.log_dir, topic)
    assert len([path for path in files if path.suffix == ".log"]) >= 2
    tools = tools_for(own)
    text = check_dump(tools, files, range(count), "--deep-iteration")
    for codec in CODECS:
        assert f"compresscodec: {codec}" in text.lower()
    indexes = [path for path in files if path.suffix == ".index"]
    sanity = dump(tools, indexes, "--index-sanity-check")
    assert sanity.count("passed sanity check") == len(indexes), sanity

    offsets = files_of(own.log_dir, "__consumer_offsets")
    check_dump(tools, offsets, range(1), "--deep-iteration")
    decoded = dump(tools, [path for path in offsets if path.suffix == ".log"], "--offsets-decoder")
    assert COMPLAINTS.findall(decoded) == []
    assert topic in decoded
    assert "dumped" in decoded
