"""Rows a second of each Spark pipeline, on Barnabas and on Apache Kafka in turn, on this machine.

    python -m benchmarks.spark_pipelines --rows 100000 400000 --partitions 1 4 --repeats 3

One Spark session (local[2], as the pipelines' own) serves all runs, both brokers run all the time, and each is at work
alone. A run starts a pipeline with a fresh checkpoint on fresh topics that hold so many rows and measures the time from
its start until it has worked them off. Before the measured runs each pipeline runs once on each broker, on few rows,
for Java's compiler. Ratios compare neighbouring runs, and every other pair begins with Kafka.
"""

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from spark_examples import (
    archive,
    capacity_report,
    dedupe,
    enrich_join,
    flight_delays,
    pipeline,
    replay,
    retry_and_dead_letter,
    sample,
    stream_wordcount,
)
from spark_examples.session import spark_session
from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import DEFAULT_BROKER_JVM, ORACLE_VERSION, KafkaServer

BARNABAS, KAFKA = "Barnabas", f"Apache Kafka {ORACLE_VERSION}"
WARM_UP_ROWS = 2_000
console = Console(width=max(110, Console().width))


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run."""

    pipeline: str
    broker: str
    rows: int
    partitions: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Input rows."""
        return self.rows / self.seconds


class Bench:
    """What all runs share."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark = spark
        self.folder = folder
        self._numbers = itertools.count()
        flights = sample.flight_samples(min(rows, 336_776))
        self._flights = [
            each._replace(value=json.dumps({**json.loads(each.value), "id": number}))
            for number, each in enumerate(flights)
        ]
        self.airports = sample.write_table("airports", str(folder))
        self.planes = sample.write_table("planes", str(folder))

    def flights(self, rows: int) -> Iterator[sample.Sample]:
        """So many flights, from the first one again where the year is over."""
        return itertools.islice(itertools.cycle(self._flights), rows)

    def run(self, name: str, broker: str, servers: str, rows: int, partitions: int) -> Run:
        """One run of one pipeline; its topics and files go afterwards."""
        number = next(self._numbers)
        here = self.folder / str(number)
        topics = [f"bench-{number}-{suffix}" for suffix in ("in", "out", "weather")]
        dead = [f"{topics[0]}-retry-1", f"{topics[0]}-dead"]
        sample.create_topics(servers, *topics, *dead, partitions=partitions)
        sample.produce(servers, topics[0], self.flights(rows))
        work = JOBS[name](self, servers, topics, here)
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
        admin = AdminClient({"bootstrap.servers": servers})
        for deleted in admin.delete_topics([*topics, *dead]).values():
            deleted.result(30)
        shutil.rmtree(here, ignore_errors=True)
        return Run(name, broker, rows, partitions, seconds)

    def streaming(self, module: Any, servers: str, *arguments: str) -> Callable[[], None]:
        """A streaming pipeline over what is there."""
        options = module.parser().parse_args([f"--bootstrap-servers={servers}", "--once", *arguments])
        options.stop = threading.Event()
        return lambda: _discard(pipeline.follow(module.start(self.spark, options), options.stop))


def _discard(_: object) -> None:
    return None


def _in_out(topics: list[str], here: Path) -> list[str]:
    return [f"--input-topic={topics[0]}", f"--output-topic={topics[1]}", f"--checkpoint={here}/checkpoint"]


def _wordcount(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    return bench.streaming(stream_wordcount, servers, *_in_out(topics, here))


def _delays(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    return bench.streaming(flight_delays, servers, *_in_out(topics, here), f"--output-path={here}/final")


def _archive(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    return bench.streaming(archive, servers, f"--topics={topics[0]}", f"--archive={here}")


def _replay(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    _archive(bench, servers, topics, here)()
    arguments = [f"--archive={here}", f"--topic={topics[0]}", f"--output-topic={topics[1]}"]
    options = replay.parser().parse_args([f"--bootstrap-servers={servers}", *arguments])
    return lambda: _discard(replay.replay(bench.spark, options))


def _capacity(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    options = capacity_report.parser().parse_args(
        [f"--bootstrap-servers={servers}", "--once", f"--topics={topics[0]}", f"--output={here}"]
    )

    def work() -> None:
        pipeline.follow(capacity_report.start(bench.spark, options))
        with console.capture():
            capacity_report.summaries(bench.spark, options.output)["topics"].collect()

    return work


def _retry(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    return bench.streaming(retry_and_dead_letter, servers, *_in_out(topics, here), "--delays=0", f"--name={topics[0]}")


def _dedupe(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    return bench.streaming(dedupe, servers, *_in_out(topics, here), "--id-field=id", "--window=400 days")


def _join(bench: Bench, servers: str, topics: list[str], here: Path) -> Callable[[], None]:
    sample.produce(servers, topics[2], sample.weather_samples("2014"))
    return bench.streaming(
        enrich_join, servers, f"--flights-topic={topics[0]}", f"--weather-topic={topics[2]}",
        f"--output-topic={topics[1]}", f"--checkpoint={here}/checkpoint", f"--airports={bench.airports}",
        f"--planes={bench.planes}",
    )  # fmt: skip


JOBS: dict[str, Callable[[Bench, str, list[str], Path], Callable[[], None]]] = {
    "stream_wordcount": _wordcount,
    "flight_delays": _delays,
    "archive": _archive,
    "replay": _replay,
    "capacity_report": _capacity,
    "retry_and_dead_letter": _retry,
    "dedupe": _dedupe,
    "enrich_join": _join,
}


def show(runs: list[Run]) -> None:
    """Print medians, and the ratio of neighbouring runs."""
    table = Table(title="Rows a second, medians")
    for name in ("pipeline", "rows", "partitions", BARNABAS, KAFKA, "ratio"):
        table.add_column(name, justify="left" if name == "pipeline" else "right")
    sizes = sorted({(run.rows, run.partitions) for run in runs})
    for name, (rows, partitions) in itertools.product(JOBS, sizes):
        at_size = [run for run in runs if (run.pipeline, run.rows, run.partitions) == (name, rows, partitions)]
        rates = {
            broker: [run.rows_per_second for run in at_size if run.broker == broker] for broker in (BARNABAS, KAFKA)
        }
        if not all(rates.values()):
            continue
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates[BARNABAS], rates[KAFKA], strict=True))
        medians = (f"{statistics.median(rates[broker]):,.0f}" for broker in (BARNABAS, KAFKA))
        table.add_row(name, f"{rows:,}", str(partitions), *medians, f"{ratio:.2f} x")
    console.print(table)


def main() -> int:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_pipelines", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pipelines", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to a file, too")
    options = parser.parse_args()
    pipeline.console.quiet = True
    runs: list[Run] = []
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="spark-pipelines-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        servers = {
            BARNABAS: stack.enter_context(BarnabasProcess()).bootstrap_servers,
            KAFKA: stack.enter_context(KafkaServer(jvm_options=DEFAULT_BROKER_JVM)).bootstrap_servers,
        }
        spark = spark_session("benchmark")
        stack.callback(spark.stop)
        bench = Bench(spark, folder, max(options.rows))
        for name in options.pipelines:
            for broker in (BARNABAS, KAFKA):
                bench.run(name, broker, servers[broker], WARM_UP_ROWS, max(options.partitions))
            sizes = itertools.product(options.rows, options.partitions, range(options.repeats))
            for turn, (rows, partitions, _) in enumerate(sizes):
                for broker in (BARNABAS, KAFKA) if turn % 2 == 0 else (KAFKA, BARNABAS):
                    run = bench.run(name, broker, servers[broker], rows, partitions)
                    runs.append(run)
                    console.print(
                        f"{name}, {broker}, {rows:,} rows, {partitions} partitions: {run.seconds:.1f} s, "
                        f"{run.rows_per_second:,.0f} rows/s"
                    )
                    if options.json:
                        options.json.write_text(json.dumps([asdict(each) for each in runs], indent=1))
    show(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
