"""Kafka's own load generators, and what they print."""

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.system import Reachable, Secured, Server
from tools.foreign.kafka import kafka_runtime

CLIENT_JVM = ("-Xmx512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""The options that bin/kafka-run-class.sh and bin/kafka-producer-perf-test.sh give the tools."""
TIMEOUT_S = 1800
SILENCE_MS = 60_000
"""The time without a record after which a consumer's tool gives up."""
LARGE_BATCHES = {"batch.size": "131072", "linger.ms": "5", "acks": "1", "enable.idempotence": "false"}
"""The settings of a fast producer: W1's, and that of every workload that only prepares its records."""

_PRODUCED = re.compile(
    r"(?P<records>\d+) records sent, (?P<records_per_second>[\d.]+) records/sec \((?P<mib_per_second>[\d.]+) MB/sec\), "
    r"(?P<average_ms>[\d.]+) ms avg latency, (?P<max_ms>[\d.]+) ms max latency, (?P<p50_ms>\d+) ms 50th, "
    r"(?P<p95_ms>\d+) ms 95th, (?P<p99_ms>\d+) ms 99th, (?P<p999_ms>\d+) ms 99.9th"
)
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
_CONSUMED = re.compile(
    rf"^(?P<start>{_TIME}), (?P<end>{_TIME}), (?P<mib>[\d.]+), [\d.]+, (?P<records>\d+), [\d.]+, (?P<join_ms>\d+), ",
    re.M,
)
_AVERAGE = re.compile(r"^Avg latency: (?P<average_ms>[\d.]+) ms", re.M)


@dataclass(frozen=True, slots=True)
class Produced:
    """The last line of kafka-producer-perf-test; latencies in ms."""

    records: int
    records_per_second: float
    mib_per_second: float
    average_ms: float
    max_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


@dataclass(frozen=True, slots=True)
class Consumed:
    """The result of kafka-consumer-perf-test, by the system's clock; `start_s` is after joining the group."""

    records: int
    mib: float
    start_s: float
    end_s: float

    @property
    def mib_per_second(self) -> float:
        return self.mib / (self.end_s - self.start_s)


def parse_produced(output: str) -> Produced:
    """Read the summary of kafka-producer-perf-test. Raises ValueError when there is none."""
    found = list(_PRODUCED.finditer(output))
    if not found:
        raise ValueError(f"no summary of kafka-producer-perf-test in:\n{output[-2000:]}")
    fields = found[-1].groupdict()
    return Produced(int(fields.pop("records")), **{name: float(text) for name, text in fields.items()})


def parse_consumed(output: str) -> Consumed:
    """Read the summary of kafka-consumer-perf-test. Raises ValueError when there is none."""
    found = _CONSUMED.search(output)
    if found is None:
        raise ValueError(f"no summary of kafka-consumer-perf-test in:\n{output[-2000:]}")
    start_s = _seconds(found["start"]) + int(found["join_ms"]) / 1000
    return Consumed(int(found["records"]), float(found["mib"]), start_s, _seconds(found["end"]))


def _seconds(text: str) -> float:
    """The tools tell local time."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S:%f").astimezone().timestamp()


def produce(
    server: Reachable,
    topic: str,
    records: int,
    size: int,
    properties: Mapping[str, str],
    *,
    arguments: Sequence[str] = (),
) -> Produced:
    """Send records of `size` random letters as fast as they go.

    Raises RuntimeError when not every record was acknowledged.
    """
    command = _command("org.apache.kafka.tools.ProducerPerformance", server, topic, records)
    command += ["--record-size", str(size), "--throughput", "-1", *arguments]
    told = {"client.id": "benchmark", **_security(server), **properties}
    command += ["--command-property", *(f"{key}={value}" for key, value in told.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    try:
        produced = parse_produced(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"{error}{done.stderr[-2000:]}") from error
    if produced.records != records:
        raise RuntimeError(f"{produced.records} of {records} records were sent:\n{done.stderr[-2000:]}")
    return produced


def fill(server: Server, topic: str, size: int, record_bytes: int = 1024) -> int:
    """Write so many bytes of record values to a topic; returns the number of records."""
    records = size // record_bytes
    produce(server, topic, records, record_bytes, LARGE_BATCHES)
    return records


def consume(server: Reachable, topic: str, records: int, properties: Mapping[str, str] | None = None) -> float:
    """Read a topic from its start with one consumer; MiB/s, without the time to join the group."""
    return consume_together(server, topic, records, 1, properties).mib_per_second


def consume_together(
    server: Reachable, topic: str, records: int, consumers: int, properties: Mapping[str, str] | None = None
) -> Consumed:
    """Read a topic from its start with several consumers, each on its own; what all of them read, from the first one's
    start to the last one's end.

    Raises RuntimeError when not every record was read.
    """
    command = _command("org.apache.kafka.tools.ConsumerPerformance", server, topic, records)
    command += ["--timeout", str(SILENCE_MS)]
    for key, value in {**_security(server), **(properties or {})}.items():
        command += ["--command-property", f"{key}={value}"]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(consumers)]
        processes = []
        for output in outputs:
            with output.open("wb") as file:
                processes.append(subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL))
        try:
            for process in processes:
                process.wait(TIMEOUT_S)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        results = [_consumed(output.read_text(errors="replace"), records) for output in outputs]
    return Consumed(
        sum(result.records for result in results),
        sum(result.mib for result in results),
        min(result.start_s for result in results),
        max(result.end_s for result in results),
    )


def _consumed(output: str, records: int) -> Consumed:
    try:
        consumed = parse_consumed(output)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    if consumed.records < records:
        raise RuntimeError(f"{consumed.records} of {records} records were read:\n{output[-2000:]}")
    return consumed


def end_to_end_average_ms(server: Server, topic: str, records: int, size: int) -> float:
    """The mean latency from one record's send to its receipt, one record after the other.

    kafka-e2e-latency prints percentiles, too, but in whole milliseconds. Raises RuntimeError when it fails.
    """
    command = _command("org.apache.kafka.tools.EndToEndLatency", server, topic, records)
    command += ["--producer-acks", "1", "--record-size", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    found = _AVERAGE.search(done.stdout)
    if found is None:
        raise RuntimeError(f"kafka-e2e-latency failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return float(found["average_ms"])


def _security(server: Reachable) -> Mapping[str, str]:
    """The properties with which a client may connect."""
    return server.java if isinstance(server, Secured) else {}


def _command(main_class: str, server: Reachable, topic: str, records: int) -> list[str]:
    command = kafka_runtime().java_command(main_class, jvm_options=CLIENT_JVM)
    return [*command, "--bootstrap-server", server.bootstrap_servers, "--topic", topic, "--num-records", str(records)]
