"""The effect on a producer when a cluster grows and shrinks: `python -m benchmarks.moves`.

Three brokers take a producer's records as in W16 (RF 3, `min.insync.replicas=2`, acks=all, idempotent, 1 KiB, large
batches), at a steady rate; beside its topic lies another one that nobody writes to. A fourth broker joins and takes its
share by `barnabas brokers rebalance`, the first one is drained and switched off. Told are the 99th percentile of
acknowledgements before and meanwhile, errors of the producer, and which records were lost or doubled.

As fast as it goes, some 10 GiB are written while all of that happens. Where a host has taken back memory that its guest
did not use, the first write to a page of it costs ten times as much, and the last step would pay for all: so each half
of the measurement begins with memory that was touched.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.clients import create_topics
from benchmarks.clusters import Cluster, barnabas_cluster
from benchmarks.model import GIB, MIB
from benchmarks.processes import touched_memory
from benchmarks.spread import percentile
from benchmarks.traffic import Traffic
from tools.processes.barnabas import BarnabasProcess

RECORD_BYTES = 1024
REPLICAS = 3
TOPIC_CONFIG = {"min.insync.replicas": "2"}
PRODUCER = {"batch.size": 131072, "linger.ms": 5, "queue.buffering.max.kbytes": 32 * 1024}
"""W16's, with as much room for what waits as a producer in Java has."""
RATIO_MAX = 3.0
AS_FAST_AS_IT_GOES = 10**9
MEMORY_SHARE = 0.45
"""The share of the free memory that is touched for the time before, and again for the moves."""


@dataclass(slots=True)
class Result:
    """Latencies in ms; `phases` are those of each step, with how long it took in seconds."""

    quiet_p50_ms: float = 0.0
    quiet_p99_ms: float = 0.0
    p99_ms: float = 0.0
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    acknowledged: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0

    @property
    def ratio(self) -> float:
        """The p99 meanwhile in relation to the quiet one."""
        return self.p99_ms / self.quiet_p99_ms

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost or refused, and the producer hardly noticed."""
        return not (self.errors or self.lost or self.doubled) and self.ratio <= RATIO_MAX


def measure(
    rate_mib: float,
    quiet_s: float,
    ballast_bytes: int,
    throttle: int,
    partitions: int = 3,
    memory_share: float = MEMORY_SHARE,
    at_once: int | None = None,
) -> Result:
    """Grow and shrink a cluster under load. `rate_mib` in MiB/s, 0 for as fast as it goes; `throttle` in bytes per
    second; of the free memory so large a share is touched beforehand, twice; `at_once` partitions move at a time, or
    all. Raises RuntimeError when a command fails.
    """
    records_per_second = int(rate_mib * MIB / RECORD_BYTES) or AS_FAST_AS_IT_GOES
    pace = ["--throttle", str(throttle)]
    if at_once is not None:
        pace += ["--at-once", str(at_once)]
    result = Result()
    with barnabas_cluster() as cluster:
        assert cluster.zookeeper is not None
        for topic in ("ballast", "load"):
            create_topics(cluster, partitions, topic, replicas=REPLICAS, config=TOPIC_CONFIG)
        _fill(cluster, ballast_bytes)
        for_moves = touched_memory(memory_share)
        touched_memory(memory_share / (1 - memory_share)).close()  # as much, of what is left
        joining = BarnabasProcess({"broker.id": "4", "zookeeper.connect": cluster.zookeeper.address})
        steps: dict[str, Callable[[], object]] = {
            "a broker joins": joining.start,
            "rebalance": lambda: _command(cluster, "rebalance", *pace),
            "drain": lambda: _command(cluster, "drain", "1", *pace),
            "switched off": cluster.brokers[0].stop,
            "afterwards": lambda: time.sleep(1),
        }
        traffic = Traffic(
            cluster.bootstrap_servers,
            "load",
            records_per_second=records_per_second,
            record_bytes=RECORD_BYTES,
            settings=PRODUCER,
            reads=False,
        )
        try:
            with traffic:
                time.sleep(quiet_s / 2)  # warm
                quiet_from_s = time.monotonic()
                time.sleep(quiet_s)
                quiet_to_s = time.monotonic()
                for_moves.close()
                begun_s = time.monotonic()
                ended_s = {name: _done(step) for name, step in steps.items()}
        finally:
            joining.close()
    at_s = begun_s
    for name, end_s in ended_s.items():
        found = traffic.latencies_ms(at_s, end_s)
        result.phases[name] = (percentile(found, 99) if found else 0.0, end_s - at_s)
        at_s = end_s
    quiet = traffic.latencies_ms(quiet_from_s, quiet_to_s)
    result.quiet_p50_ms, result.quiet_p99_ms = percentile(quiet, 50), percentile(quiet, 99)
    result.p99_ms, result.seconds = traffic.p99_ms(begun_s, at_s), at_s - begun_s
    result.acknowledged, result.errors = traffic.acknowledged, traffic.errors
    result.lost, result.doubled = traffic.lost or 0, traffic.doubled or 0
    return result


def _done(step: Callable[[], object]) -> float:
    """Take a step; the time of `time.monotonic` at its end."""
    step()
    return time.monotonic()


def _fill(cluster: Cluster, size: int) -> None:
    """Write so many bytes to the topic that nobody writes to afterwards."""
    rate = AS_FAST_AS_IT_GOES
    ballast = Traffic(
        cluster.bootstrap_servers, "ballast", records_per_second=rate, record_bytes=RECORD_BYTES,
        settings=PRODUCER, reads=False,
    )  # fmt: skip
    with ballast:
        ballast.wait_for(size // RECORD_BYTES)
    if ballast.errors or ballast.lost:
        raise RuntimeError(
            f"{len(ballast.errors)} records were refused ({ballast.errors[:1]}), {ballast.lost} are lost"
        )


def _command(cluster: Cluster, *arguments: str) -> None:
    """`barnabas brokers ...`, as it is typed."""
    done = subprocess.run(
        [sys.executable, "-m", "barnabas", "brokers", *arguments, "--yes"],
        env={**os.environ, "BARNABAS_BOOTSTRAP_SERVER": cluster.bootstrap_servers},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"barnabas brokers {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def main() -> int:
    """Measure and print; 1 when something was lost or refused, or the p99 grew too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rate",
        type=float,
        default=20,
        help="of the load, MiB/s; 0: as fast as it goes, which needs a throttle above that (default 20)",
    )
    parser.add_argument("--quiet", type=float, default=20, help="seconds of it before anything happens (default 20)")
    parser.add_argument("--ballast", type=float, default=1, help="GiB of the other topic (default 1)")
    parser.add_argument(
        "--throttle", type=int, default=50_000_000, help="of moves, bytes per second (default 50000000)"
    )
    parser.add_argument("--partitions", type=int, default=3, help="of each topic (default 3)")
    parser.add_argument(
        "--memory-share",
        type=float,
        default=MEMORY_SHARE,
        help="of the free memory, to be touched before each half; 0: none, less than 0.5 (default %(default)s)",
    )
    parser.add_argument("--at-once", type=int, help="so many partitions move at a time (default: all)")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    ballast_bytes = int(options.ballast * GIB)
    found = measure(
        options.rate,
        options.quiet,
        ballast_bytes,
        options.throttle,
        options.partitions,
        options.memory_share,
        options.at_once,
    )
    print(f"quiet: p50 {found.quiet_p50_ms:.1f} ms, p99 {found.quiet_p99_ms:.1f} ms")
    for name, (p99_ms, seconds) in found.phases.items():
        print(f"{name}: p99 {p99_ms:.1f} ms, {seconds:.1f} s")
    print(f"meanwhile: p99 {found.p99_ms:.1f} ms, {found.seconds:.0f} s")
    print(f"ratio: {found.ratio:.2f} x, where {RATIO_MAX:g} x is the goal")
    print(
        f"{found.acknowledged:,} acknowledged, {len(found.errors)} errors, {found.lost} lost, {found.doubled} doubled"
    )
    print(f"load of the machine before {load_before:.1f}, after {os.getloadavg()[0]:.1f}")
    return 0 if found.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
