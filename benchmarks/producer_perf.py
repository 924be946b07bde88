"""kafka-producer-perf-test against Barnabas and Apache Kafka in turn, on this machine.

Each run starts a broker with an empty data directory, sends some records to warm it (and its Java machine) up, then
measures: throughput and latency as Kafka's tool tells them, the broker's CPU seconds and its peak resident memory from
/proc. Ratios compare neighbouring runs, so that a slow minute of the machine strikes both sides.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table

from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import DEFAULT_BROKER_JVM, ORACLE_VERSION, KafkaServer, kafka_runtime

BARNABAS, KAFKA = "Barnabas", f"Apache Kafka {ORACLE_VERSION}"
CLIENT_JVM = ("-Xmx512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
RESULT = re.compile(
    r"(?P<records>\d+) records sent, (?P<per_second>[\d.]+) records/sec \((?P<mb_per_second>[\d.]+) MB/sec\), "
    r"(?P<average_ms>[\d.]+) ms avg latency, (?P<max_ms>[\d.]+) ms max latency, (?P<p50_ms>\d+) ms 50th, "
    r"(?P<p95_ms>\d+) ms 95th, (?P<p99_ms>\d+) ms 99th"
)
console = Console(width=max(110, Console().width))


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run; times in milliseconds unless their name says otherwise."""

    broker: str
    idempotence: bool
    records_per_second: float
    mb_per_second: float
    average_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    broker_cpu_s: float
    broker_peak_rss_mib: float


@contextmanager
def running(broker: str) -> Iterator[Any]:
    """A fresh broker of either kind, each with its defaults."""
    server = BarnabasProcess() if broker == BARNABAS else KafkaServer(jvm_options=DEFAULT_BROKER_JVM)
    with server:
        yield server


def cpu_seconds(pid: int) -> float:
    """User and system time that a process used so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_rss_mib(pid: int) -> float:
    """The most memory that a process ever had resident."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def perf_test(address: str, topic: str, records: int, size: int, properties: dict[str, str]) -> re.Match[str]:
    """Run Kafka's tool and read its last line.

    Raises RuntimeError when it did not send every record.
    """
    command = kafka_runtime().java_command("org.apache.kafka.tools.ProducerPerformance", jvm_options=CLIENT_JVM)
    command += ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    command += ["--bootstrap-server", address]
    command += ["--command-property", *(f"{key}={value}" for key, value in properties.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    results = list(RESULT.finditer(done.stdout))
    if not results or int(results[-1]["records"]) != records:
        raise RuntimeError(f"the perf test did not send everything:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return results[-1]


def create_topics(bootstrap_servers: str, partitions: int) -> None:
    """Create the two topics of a run."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [NewTopic(name, num_partitions=partitions) for name in ("warm-up", "measured")]
    for created in admin.create_topics(topics).values():
        created.result(30)


def measure(broker: str, idempotence: bool, options: argparse.Namespace) -> Run:
    """One run against a fresh broker."""
    properties = {
        "acks": options.acks,
        "batch.size": str(options.batch_size),
        "linger.ms": str(options.linger_ms),
        "compression.type": options.compression,
        "enable.idempotence": str(idempotence).lower(),
    }
    if idempotence:
        properties["acks"] = "all"  # an idempotent producer accepts nothing else; with one replica it is the same work
    os.sync()  # what the run before wrote is not paid for by this one
    with running(broker) as server:
        create_topics(server.bootstrap_servers, options.partitions)
        if options.warmup_records:
            perf_test(server.bootstrap_servers, "warm-up", options.warmup_records, options.record_size, properties)
        before = cpu_seconds(server.pid)
        result = perf_test(server.bootstrap_servers, "measured", options.records, options.record_size, properties)
        return Run(
            broker=broker,
            idempotence=idempotence,
            records_per_second=float(result["per_second"]),
            mb_per_second=float(result["mb_per_second"]),
            average_ms=float(result["average_ms"]),
            p50_ms=float(result["p50_ms"]),
            p99_ms=float(result["p99_ms"]),
            max_ms=float(result["max_ms"]),
            broker_cpu_s=cpu_seconds(server.pid) - before,
            broker_peak_rss_mib=peak_rss_mib(server.pid),
        )


def show_runs(runs: Sequence[Run]) -> None:
    """Print every run."""
    table = Table(title="Runs")
    for name in (
        "broker",
        "idempotence",
        "records/s",
        "MB/s",
        "avg ms",
        "p50 ms",
        "p99 ms",
        "max ms",
        "CPU s",
        "RSS MiB",
    ):
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(
            run.broker, "on" if run.idempotence else "off", f"{run.records_per_second:,.0f}",
            f"{run.mb_per_second:.1f}", f"{run.average_ms:.1f}", f"{run.p50_ms:.0f}", f"{run.p99_ms:.0f}",
            f"{run.max_ms:.0f}", f"{run.broker_cpu_s:.2f}", f"{run.broker_peak_rss_mib:.0f}",
        )  # fmt: skip
    console.print(table)


def show_ratios(runs: Sequence[Run]) -> None:
    """Print Barnabas / Apache Kafka of neighbouring runs: median, and the smallest and largest."""
    table = Table(title=f"{BARNABAS} / {KAFKA}: median (min - max)")
    for name in ("idempotence", "throughput", "avg latency", "p50", "p99", "broker CPU", "peak memory"):
        table.add_column(name, justify="right")
    for idempotence in (False, True):
        ours, theirs = (
            [run for run in runs if run.broker == broker and run.idempotence == idempotence]
            for broker in (BARNABAS, KAFKA)
        )
        if not ours:
            continue
        cells = []
        for field in ("records_per_second", "average_ms", "p50_ms", "p99_ms", "broker_cpu_s", "broker_peak_rss_mib"):
            ratios = [getattr(a, field) / max(getattr(b, field), 1e-9) for a, b in zip(ours, theirs, strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})")
        table.add_row("on" if idempotence else "off", *cells)
    console.print(table)


def parsed_options() -> argparse.Namespace:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.producer_perf", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--record-size", type=int, default=1024, metavar="BYTES")
    parser.add_argument("--warmup-records", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--acks", default="1", help="for runs without idempotence")
    parser.add_argument("--batch-size", type=int, default=131_072, metavar="BYTES")
    parser.add_argument("--linger-ms", type=int, default=5)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--idempotence", choices=["on", "off", "both"], default="both")
    parser.add_argument("--only", choices=["barnabas", "kafka"], help="leave the other broker out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the runs there")
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    options = parsed_options()
    brokers = [broker for broker in (BARNABAS, KAFKA) if options.only is None or options.only in broker.lower()]
    settings = {"on": [True], "off": [False], "both": [False, True]}[options.idempotence]
    runs: list[Run] = []
    for idempotence in settings:
        for repetition in range(options.repetitions):
            for broker in brokers:
                console.print(f"{broker}, idempotence {'on' if idempotence else 'off'}, {repetition + 1} ...")
                runs.append(measure(broker, idempotence, options))
    show_runs(runs)
    if len(brokers) == 2:
        show_ratios(runs)
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
