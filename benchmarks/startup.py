"""How long a waiting client waits for a broker that starts, and how much memory an idle broker holds.

The client is there first, with a record to send; the clock runs from the start of the broker's process to the record's
acknowledgement. The first start has an empty data directory and creates the topic, the others find both.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import free_ports

TIMEOUT_S = 30
SETTLING_S = 3.0
IMPATIENT = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 5,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 5,
    "topic.metadata.refresh.fast.interval.ms": 5,
}
"""What a client waits between attempts. With its defaults the pauses grow to a second while there is no broker
(KIP-580), and the figure would be the client's."""
console = Console()


def seconds_to_first_ack(broker: BarnabasProcess, address: str) -> float:
    """Start a broker under a client that waits for it; returns how long the client's record took."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **IMPATIENT})
    acknowledged: list[float] = []
    producer.produce("first", b"x", on_delivery=lambda error, _: acknowledged.append(time.monotonic()))
    producer.poll(0.2)
    started = time.monotonic()
    broker.start()
    while not acknowledged and time.monotonic() < started + TIMEOUT_S:
        producer.poll(0.005)
    if not acknowledged:
        raise RuntimeError(f"no acknowledgement within {TIMEOUT_S} s:\n{broker.log_text()}")
    return acknowledged[0] - started


def resident_mib(pid: int) -> float:
    """The memory a process has resident now."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    broker = BarnabasProcess(listen=address)
    try:
        times = []
        for _ in range(options.repetitions):
            times.append(seconds_to_first_ack(broker, address))
            time.sleep(SETTLING_S)
            memory = resident_mib(broker.pid)
            broker.stop()
    finally:
        broker.close()
    first, *later = times
    console.print(f"Process start to first acknowledgement, empty directory: {first * 1000:.0f} ms")
    if later:
        median = statistics.median(later) * 1000
        console.print(f"  existing topic: {median:.0f} ms ({min(later) * 1000:.0f} - {max(later) * 1000:.0f})")
    console.print(f"Idle resident memory: {memory:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
