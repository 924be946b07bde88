"""The speed of a log's compaction, and its effect on a live producer.

One broker process. A compacted topic is filled while nothing may be cleaned; then a producer sends a record at a time
to another topic (acks=all) and notes each latency, first alone, then during the compaction, which begins when the
topic's dirty ratio is lowered.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic  # type: ignore[attr-defined]

from tools.processes.barnabas import BarnabasProcess

P99_RATIO_MAX = 2.0
"""The largest factor by which compaction may raise the 99th percentile of a live producer's latency."""

SETTINGS = {"log.cleaner.backoff.ms": "200"}


def fill(bootstrap_servers: str, mebibytes: int, record_bytes: int, keys: int) -> None:
    """Write the topic to be compacted."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "batch.size": 500_000,
         "queue.buffering.max.kbytes": 200_000})  # fmt: skip
    value = b"v" * record_bytes
    for number in range((mebibytes << 20) // record_bytes):
        while True:
            try:
                producer.produce("compacted", key=b"key%d" % (number * 7919 % keys), value=value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(600) == 0


def latencies_ms(bootstrap_servers: str, is_over: Callable[[], bool]) -> list[float]:
    """Latency of each record of a producer that sends one after the other, 200 a second."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "acks": "all"})
    found: list[float] = []
    while not is_over():
        started_s = time.perf_counter()
        producer.produce("live", value=b"x" * 100)
        producer.flush(60)
        found.append((time.perf_counter() - started_s) * 1000)
        time.sleep(max(0.0, 0.005 - (time.perf_counter() - started_s)))
    return found


def clean_offset(directory: Path) -> int:
    """The offset up to which the topic is clean, from the checkpoint."""
    path = directory / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return max((int(line.split()[2]) for line in lines if line.startswith("compacted ")), default=0)


def describe(name: str, found: list[float]) -> float:
    """Print percentiles; returns the 99th."""
    percentiles = statistics.quantiles(found, n=100)
    print(f"{name}: {len(found)} records, p50 {percentiles[49]:.2f} ms, p99 {percentiles[98]:.2f} ms, "
          f"max {max(found):.1f} ms")  # fmt: skip
    return percentiles[98]


def main() -> int:
    """Run it once; exit status 0 when the producer's 99th percentile grew to no more than `P99_RATIO_MAX` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--segment-bytes", type=int, default=64 << 20)
    options = parser.parse_args()
    with BarnabasProcess(SETTINGS) as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1",
                  "segment.bytes": str(options.segment_bytes)}  # fmt: skip
        for future in admin.create_topics(
            [NewTopic("compacted", 1, 1, config=config), NewTopic("live", 1, 1)]
        ).values():
            future.result(60)
        fill(servers, options.mebibytes, options.record_bytes, options.keys)
        bases = sorted(int(path.stem) for path in (broker.log_dir / "compacted-0").glob("*.log"))
        sizes = [path.stat().st_size for path in (broker.log_dir / "compacted-0").glob("*.log")]
        latencies_ms(servers, _after(3))
        alone = describe("alone", latencies_ms(servers, _after(20)))
        entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "compacted", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)
        started_s = time.monotonic()
        during = latencies_ms(servers, lambda: clean_offset(broker.log_dir) >= bases[-1])
        elapsed_s = time.monotonic() - started_s
        ratio = describe("during compaction", during) / alone
        print(f"p99 ratio {ratio:.2f}; {sum(sizes) / 1e6:.0f} MB in {elapsed_s:.1f} s: "
              f"{sum(sizes) / 1e6 / elapsed_s:.1f} MB/s")  # fmt: skip
    return int(ratio > P99_RATIO_MAX)


def _after(seconds: float) -> Callable[[], bool]:
    deadline = threading.Event()
    timer = threading.Timer(seconds, deadline.set)
    timer.daemon = True
    timer.start()
    return deadline.is_set


if __name__ == "__main__":
    sys.exit(main())
