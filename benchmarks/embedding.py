"""The time that a broker inside a test takes to be ready, and to stop.

Cold is the first broker of a process, with the import of everything that it needs; warm are the later ones. Ready means
that a connection is accepted; the last figure is a whole round trip of a stock client.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from confluent_kafka import Producer
from rich.console import Console

console = Console()

COLD = """
import time
started = time.perf_counter()
from barnabas.testing import Broker
broker = Broker()
imported = time.perf_counter()
broker.start()
ready = time.perf_counter()
broker.stop()
print((imported - started) * 1000, (ready - started) * 1000, (time.perf_counter() - ready) * 1000)
"""


def cold_ms() -> tuple[float, ...]:
    """Import, ready (from the same start) and stop of a new process's first broker, in ms."""
    output = subprocess.run([sys.executable, "-c", COLD], check=True, capture_output=True, text=True).stdout
    return tuple(map(float, output.split()))


def timed_ms(action: Callable[[], object]) -> float:
    """The duration of an action, in ms."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def show(what: str, figures: list[float]) -> None:
    """Print a line: median, smallest and largest."""
    console.print(f"{what:45} {statistics.median(figures):6.1f} ms ({min(figures):.1f} - {max(figures):.1f})")


def main() -> int:
    """Measure and print."""
    from barnabas.testing import Broker

    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()

    imports, ready, stops = zip(*[cold_ms() for _ in range(max(3, options.repetitions // 5))], strict=True)
    show("cold: import of barnabas.testing.Broker", list(imports))
    show("cold: import and start until ready", list(ready))
    show("cold: stop", list(stops))

    starts, stops_ms, durable, trips = [], [], [], []
    Broker().start().stop()
    for _ in range(options.repetitions):
        broker = Broker()
        starts.append(timed_ms(broker.start))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "log_level": 0})
        producer.produce("t", b"x")
        trips.append(timed_ms(producer.flush))
        stops_ms.append(timed_ms(broker.stop))
        with tempfile.TemporaryDirectory() as directory:
            kept = Broker(data_dir=directory)
            durable.append(timed_ms(kept.start))
            kept.stop()
    show("warm: start until ready", starts)
    show("warm: start with data_dir (synced)", durable)
    show("warm: stop", stops_ms)
    show("first record of a new librdkafka producer", trips)
    return 0


if __name__ == "__main__":
    sys.exit(main())
