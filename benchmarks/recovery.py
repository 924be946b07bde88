"""The time that a broker needs to recover after `kill -9`, beside Apache Kafka with the same segment file.

`python -m benchmarks.recovery`. A topic's partition gets a segment of 1 GiB (one idempotent producer, batches of
16 KiB), no index and a recovery point of 0, under a broker that was killed. Then the broker starts while a producer
waits for it. What is measured is the time from the process's start to the first acknowledgement, and the CPU time that
the process has taken by then: once after a clean stop, once so. The difference is the recovery. The file is in the page
cache, just written, as a crash leaves it.
"""

import argparse
import os
import statistics
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import crc32c
from confluent_kafka import Consumer, TopicPartition
from tqdm import tqdm

from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch
from benchmarks.clients import create_topics, seconds_to_first_ack
from benchmarks.model import GIB
from benchmarks.system import BARNABAS, KAFKA, Server, System
from benchmarks.systems import systems

TOPIC = "recovered"
RECORD_BYTES = 1024
RECORDS_PER_BATCH = 15  # the Java producer's batch.size of 16 KiB
CHUNK_BYTES = 16 << 20


def batches(size: int) -> Iterator[bytes]:
    """Batches of one idempotent producer, `size` bytes of them at most; records that no codec could shrink."""
    value = os.urandom(RECORD_BYTES)
    batch = build_batch(
        [Record(number, 1_700_000_000_000 + number, None, value) for number in range(RECORDS_PER_BATCH)],
        producer_id=4242,
        producer_epoch=0,
        base_sequence=0,
        partition_leader_epoch=0,
    )
    for number in range(size // len(batch)):
        offset = number * RECORDS_PER_BATCH
        struct.pack_into(">q", batch, 0, offset)
        struct.pack_into(">i", batch, 53, offset)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))
        yield bytes(batch)


def leave_unflushed(server: Server, segment: bytes) -> None:
    """Give the killed broker's partition this segment, as if nothing of it had ever been flushed."""
    directory = server.log_dir / f"{TOPIC}-0"
    for path in directory.glob("0*"):
        path.unlink()
    with (directory / f"{0:020}.log").open("wb") as file:
        for start in range(0, len(segment), CHUNK_BYTES):
            file.write(segment[start : start + CHUNK_BYTES])
    reset_recovery_point(server.log_dir / "recovery-point-offset-checkpoint")


def reset_recovery_point(checkpoint: Path) -> None:
    """Have the topic's recovery point at 0; the file has a version, a count, and a line for each partition."""
    version, count, *lines = checkpoint.read_text().splitlines()
    lines = [f"{TOPIC} 0 0" if line.startswith(f"{TOPIC} ") else line for line in lines]
    checkpoint.write_text("\n".join([version, count, *lines]) + "\n")


class Start(NamedTuple):
    """The time from a process's start to the first acknowledgement, in seconds."""

    wall: float
    cpu: float


def start(server: Server) -> Start:
    """Start a stopped broker under a waiting producer."""
    wall = seconds_to_first_ack(server, TOPIC)
    user, system = (
        int(ticks) for ticks in Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    )
    return Start(wall, (user + system) / os.sysconf("SC_CLK_TCK"))


def measure(system: System, segment: bytes) -> tuple[Start, Start]:
    """The start after a clean stop, and with the segment to recover."""
    with system.running() as server:
        create_topics(server, 1, TOPIC)
        server.stop()
        after_stop = start(server)
        server.kill()
        leave_unflushed(server, segment)
        after_kill = start(server)
        check_recovered(server, segment)
    return after_stop, after_kill


def check_recovered(server: Server, segment: bytes) -> None:
    """All records of the segment are there, and the one that was acknowledged behind them.

    Raises RuntimeError.
    """
    expected = 1 + sum(header.record_count for header in iter_headers(segment))
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": TOPIC})
    found = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=60)
    consumer.close()
    if found != (0, expected):
        raise RuntimeError(f"offsets (0, {expected}) should be there, found {found}")


def main() -> int:
    """Measure both in turn and print the medians; exit status 0 when ours are no longer than Kafka's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each system, in turn (default 3)")
    parser.add_argument("--mebibytes", type=int, default=GIB >> 20, help="size of the segment (default 1024)")
    options = parser.parse_args()
    segment = b"".join(batches((options.mebibytes << 20) - 1))
    both = [system for name, system in systems().items() if name in (BARNABAS, KAFKA)]
    runs: dict[str, list[tuple[float, ...]]] = {system.name: [] for system in both}
    with tqdm(total=options.runs * len(both), file=sys.stderr, disable=None) as bar:
        for _ in range(options.runs):
            for system in both:
                after_stop, after_kill = measure(system, segment)
                recovery = Start(after_kill.wall - after_stop.wall, after_kill.cpu - after_stop.cpu)
                runs[system.name].append((*after_stop, *after_kill, *recovery))
                bar.write(f"{system.title}: {after_kill.wall:.2f} s, CPU {after_kill.cpu:.2f} s", file=sys.stderr)
                bar.update()
    print(f"seconds, median of {options.runs:3}   after a stop   (CPU)   after kill -9   (CPU)   recovery   (CPU)")
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in runs.items()}
    ratios = [ours / theirs for ours, theirs in zip(medians[BARNABAS], medians[KAFKA], strict=True)]
    for title, row in (*((system.title, medians[system.name]) for system in both), ("Barnabas / Kafka", ratios)):
        print(f"{title:24}{row[0]:13.2f}{row[1]:8.2f}{row[2]:16.2f}{row[3]:8.2f}{row[4]:11.2f}{row[5]:8.2f}")
    return int(ratios[2] > 1)


if __name__ == "__main__":
    sys.exit(main())
