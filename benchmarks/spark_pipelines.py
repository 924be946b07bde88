"""The speed of each Spark pipeline, in rows a second, on Barnabas and on Apache Kafka in turn, on this machine.

    python -m benchmarks.spark_pipelines --rows 100000 400000 --partitions 1 4 --repeats 5 --into DOCUMENT

One Spark session (local[2], as the pipelines' own, but with 4 GiB) serves all runs, both brokers run all the time, and
each is at work alone. The input lies in topics that are made once, before anything is measured: so many flights, of
which `CHEAP` pipelines get four times as many, and for enrich_join also the weather (26,128 records), which is not
counted. A run starts a pipeline with a fresh checkpoint and fresh output topics and measures the time from its start
until it has worked the input off. Before that, each pipeline runs once on each broker with its smallest input
unmeasured, for Java's compiler. Ratios compare neighbouring runs, and every other pair begins with Kafka. Numbers of
partitions are compared with the fewest rows, numbers of rows with the most partitions.
"""

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from barnabas.spark_examples import (
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
from barnabas.spark_examples.flights import FLIGHTS
from barnabas.spark_examples.session import spark_session
from benchmarks.environment import environment
from benchmarks.report import with_results
from benchmarks.spread import Spread
from tools.foreign.kafka import DEFAULT_BROKER_JVM, ORACLE_VERSION, KafkaServer
from tools.processes.barnabas import BarnabasProcess

BARNABAS, KAFKA = "Barnabas", f"Apache Kafka {ORACLE_VERSION}"
CHEAP = ("stream_wordcount", "archive", "capacity_report")
"""Pipelines in which the start of a query would take most of the time."""
CHEAP_FACTOR = 4
SETTINGS = {"spark.driver.memory": "4g"}
"""Memory with which hours of queries in one driver, joins among them, do not measure Java's collector."""
QUICK = {"rows": [10_000], "partitions": [1, 4], "repeats": 1}
COLUMNS = ("pipeline", "rows", "partitions", BARNABAS, KAFKA, "ratio, median (least - most)")
console = Console(width=max(120, Console().width))


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

    @property
    def kind(self) -> tuple[str, str, int, int]:
        """The key that repeats of a run have in common."""
        return self.pipeline, self.broker, self.rows, self.partitions


class Input(NamedTuple):
    """Flights on a broker: in topics, and archived."""

    servers: str
    rows: int
    partitions: int
    flights: str
    weather: str
    archive: str


class Bench:
    """The inputs and the session that all runs share."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark = spark
        self.folder = folder
        self._numbers = itertools.count()
        flights = sample.flight_samples(min(rows, FLIGHTS))
        self._flights = [
            each._replace(
                value=json.dumps({**json.loads(each.value), "id": number}), timestamp=None
            )  # as they come, now
            for number, each in enumerate(flights)
        ]
        self._weather = sample.weather_samples("2014")
        self.airports = sample.write_table("airports", str(folder))
        self.planes = sample.write_table("planes", str(folder))

    def flights(self, rows: int) -> Iterator[sample.Sample]:
        """`rows` flights, from the first one again at the end of the year."""
        return itertools.islice(itertools.cycle(self._flights), rows)

    def prepare(self, servers: str, rows: int, partitions: int) -> Input:
        """Make an input."""
        name = f"input-{next(self._numbers)}"
        made = Input(servers, rows, partitions, f"{name}-flights", f"{name}-weather", f"{self.folder}/{name}")
        sample.create_topics(servers, made.flights, made.weather, partitions=partitions)
        sample.produce(servers, made.flights, self.flights(rows))
        sample.produce(servers, made.weather, self._weather)
        self.streaming(archive, made, f"--topics={made.flights}", f"--archive={made.archive}")()
        return made

    def seconds(self, name: str, given: Input) -> float:
        """The seconds that a pipeline takes for an input; its output is removed afterwards."""
        run = f"run-{next(self._numbers)}"
        here = self.folder / run
        topics = [run, f"{given.flights}-retry-1", f"{given.flights}-dead"]
        sample.create_topics(given.servers, *topics, partitions=given.partitions)
        work = JOBS[name](self, given, run, here)
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
        admin = AdminClient({"bootstrap.servers": given.servers, "log_level": 4})  # warnings
        for deleted in admin.delete_topics(topics).values():
            deleted.result(30)
        shutil.rmtree(here, ignore_errors=True)
        return seconds

    def streaming(self, module: Any, given: Input, *arguments: str) -> Callable[[], object]:
        """A streaming pipeline over what is there."""
        options = module.parser().parse_args([f"--bootstrap-servers={given.servers}", "--once", *arguments])
        options.stop = threading.Event()
        return lambda: pipeline.follow(module.start(self.spark, options), options.stop)


Job = Callable[[Bench, Input, str, Path], Callable[[], object]]
"""Takes an input, the name of an output topic (and of the run) and a folder; returns what is measured."""


def _in_out(given: Input, run: str, here: Path) -> list[str]:
    return [f"--input-topic={given.flights}", f"--output-topic={run}", f"--checkpoint={here}/checkpoint"]


def _wordcount(bench: Bench, given: Input, run: str, here: Path) -> Callable[[], object]:
    return bench.streaming(stream_wordcount, given, *_in_out(given, run, here))


def _delays(bench: Bench, given: Input, run: str, here: Path) -> Callable[[], object]:
    return bench.streaming(flight_delays, given, *_in_out(given, run, here), f"--output-path={here}/final")


def _archive(bench: Bench, given: Input, _: str, here: Path) -> Callable[[], object]:
    return bench.streaming(archive, given, f"--topics={given.flights}", f"--archive={here}")


def _replay(bench: Bench, given: Input, run: str, _: Path) -> Callable[[], object]:
    arguments = [f"--archive={given.archive}", f"--topic={given.flights}", f"--output-topic={run}"]
    options = replay.parser().parse_args([f"--bootstrap-servers={given.servers}", *arguments])
    return lambda: replay.replay(bench.spark, options)


def _capacity(bench: Bench, given: Input, _: str, here: Path) -> Callable[[], object]:
    options = capacity_report.parser().parse_args(
        [f"--bootstrap-servers={given.servers}", "--once", f"--topics={given.flights}", f"--output={here}"]
    )

    def work() -> None:
        pipeline.follow(capacity_report.start(bench.spark, options))
        capacity_report.summaries(bench.spark, options)["topics"].collect()

    return work


def _retry(bench: Bench, given: Input, run: str, here: Path) -> Callable[[], object]:
    return bench.streaming(retry_and_dead_letter, given, *_in_out(given, run, here), "--delays=0", f"--name={run}")


def _dedupe(bench: Bench, given: Input, run: str, here: Path) -> Callable[[], object]:
    return bench.streaming(dedupe, given, *_in_out(given, run, here), "--id-field=id", "--window=400 days")


def _join(bench: Bench, given: Input, run: str, here: Path) -> Callable[[], object]:
    return bench.streaming(
        enrich_join, given, f"--flights-topic={given.flights}", f"--weather-topic={given.weather}",
        f"--output-topic={run}", f"--checkpoint={here}/checkpoint", f"--airports={bench.airports}",
        f"--planes={bench.planes}",
    )  # fmt: skip


JOBS: dict[str, Job] = {
    "stream_wordcount": _wordcount,
    "flight_delays": _delays,
    "archive": _archive,
    "replay": _replay,
    "capacity_report": _capacity,
    "retry_and_dead_letter": _retry,
    "dedupe": _dedupe,
    "enrich_join": _join,
}


# --- the table ----------------------------------------------------------------------------------------------------


def lines(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """The table's lines, for `COLUMNS`: each pipeline at each size, then all its pairs together."""
    sizes = sorted({(run.rows, run.partitions) for run in runs})
    for name in JOBS:
        of_all: list[float] = []
        for rows, partitions in sizes:
            at_size = [run for run in runs if (run.pipeline, run.rows, run.partitions) == (name, rows, partitions)]
            ours, theirs = (
                [run.rows_per_second for run in at_size if run.broker == broker] for broker in (BARNABAS, KAFKA)
            )
            if pairs := [one / other for one, other in zip(ours, theirs, strict=False)]:
                of_all += pairs
                medians = (f"{Spread.of(rates).median:,.0f}" for rates in (ours, theirs))
                yield name, f"{rows:,}", str(partitions), *medians, _told(pairs)
        if of_all:
            lost = sum(ratio < 1 for ratio in of_all)
            yield name, "all", "all", "", "", f"{_told(of_all)}, {lost} of {len(of_all)} below 1"


def _told(ratios: Sequence[float]) -> str:
    ratio = Spread.of(ratios)
    return f"{ratio.median:.2f} ({ratio.low:.2f} - {ratio.high:.2f})"


def outliers(runs: Sequence[Run]) -> str:
    """Runs that took more than twice the median of their kind: a ratio's median hides them."""
    kinds: dict[tuple[str, str, int, int], list[float]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run.seconds)
    medians = {kind: Spread.of(seconds).median for kind, seconds in kinds.items()}
    found = [
        f"{run.pipeline}, {run.broker}, {run.rows:,} rows, {run.partitions} partitions: {run.seconds:.1f} s"
        for run in runs
        if run.seconds > 2 * medians[run.kind]
    ]
    return f"Runs of more than twice the median of their kind: {'; '.join(found) or 'none'}."


def show(runs: Sequence[Run]) -> None:
    """Print the table."""
    table = Table(title="Input rows a second, medians")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "pipeline" else "right")
    for line in lines(runs):
        table.add_row(*line)
    console.print(table)
    console.print(outliers(runs))


def markdown(runs: Sequence[Run], told: dict[str, str]) -> str:
    """The table for docs/internals/spark-measurements.md, and its environment; input rows a second, medians."""
    text = [f"- {name}: {value}" for name, value in told.items()]
    text += ["", f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    return "\n".join([*text, *(f"| {' | '.join(line)} |" for line in lines(runs)), "", outliers(runs)])


def together(files: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    """The runs that `--json` wrote to several files, and what they were made on."""
    runs: list[Run] = []
    told: dict[str, list[str]] = {}
    for file in files:
        found = json.loads(file.read_text())
        runs += [Run(**run) for run in found["runs"]]
        for name, value in found["environment"].items():
            if value not in told.setdefault(name, []):
                told[name].append(value)
    return runs, {name: "; then ".join(values) for name, values in told.items()}


# --- the command line ---------------------------------------------------------------------------------------------


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_pipelines", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pipelines", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--quick", action="store_true", help="few rows, one pair: shows that everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to a file, too")
    parser.add_argument("--into", type=Path, metavar="DOCUMENT", help="replace the results there")
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", metavar="FILE", help="put these files' runs together, unmeasured"
    )
    options = parser.parse_args()
    if options.into and (options.quick or options.pipelines != list(JOBS)):
        parser.error("--into takes the table of all pipelines at full size")
    if options.quick:
        vars(options).update(QUICK)
    return options


def sizes_of(rows: Sequence[int], partitions: Sequence[int], name: str) -> list[tuple[int, int]]:
    """Rows and partitions for a pipeline: the fewest rows with every number of partitions, more rows with the most."""
    factor = CHEAP_FACTOR if name in CHEAP else 1
    fewest, *more = (each * factor for each in sorted(rows))
    return [*((fewest, each) for each in sorted(partitions)), *((each, max(partitions)) for each in more)]


def measure(options: argparse.Namespace, told: dict[str, str]) -> list[Run]:
    """Run everything; each run goes into `options.json` at once."""
    runs: list[Run] = []
    sizes = {name: sizes_of(options.rows, options.partitions, name) for name in options.pipelines}
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="spark-pipelines-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        servers = {
            BARNABAS: stack.enter_context(BarnabasProcess()).bootstrap_servers,
            KAFKA: stack.enter_context(KafkaServer(jvm_options=DEFAULT_BROKER_JVM)).bootstrap_servers,
        }
        spark = spark_session("benchmark", SETTINGS)
        stack.callback(spark.stop)
        bench = Bench(spark, folder, max(options.rows))
        count = sum(map(len, sizes.values())) * options.repeats * 2
        console.print(f"{count} runs; the input is being made")
        inputs = {
            (broker, *size): bench.prepare(servers[broker], *size)
            for size in sorted({each for some in sizes.values() for each in some})
            for broker in servers
        }
        for name, some in sizes.items():
            for broker in servers:
                bench.seconds(name, inputs[broker, *some[0]])
            for turn, ((rows, partitions), _) in enumerate(itertools.product(some, range(options.repeats))):
                for broker in (BARNABAS, KAFKA) if turn % 2 == 0 else (KAFKA, BARNABAS):
                    seconds = bench.seconds(name, inputs[broker, rows, partitions])
                    run = Run(name, broker, rows, partitions, seconds)
                    runs.append(run)
                    console.print(
                        f"{len(runs)} of {count}: {name}, {broker}, {run.rows:,} rows, {run.partitions} partitions: "
                        f"{run.seconds:.1f} s, {run.rows_per_second:,.0f} rows/s"
                    )
                    if options.json:
                        found = {"environment": told, "runs": [asdict(each) for each in runs]}
                        options.json.write_text(json.dumps(found, indent=1))
    return runs


def main() -> int:
    """Command line of the benchmark."""
    options = _options()
    pipeline.console.quiet = True
    rows, partitions = (" ".join(map(str, each)) for each in (options.rows, options.partitions))
    command = (
        f"python -m benchmarks.spark_pipelines --rows {rows} --partitions {partitions} --repeats {options.repeats}"
    )
    if options.pipelines != list(JOBS):
        command += f" --pipelines {' '.join(options.pipelines)}"
    if options.files:
        runs, told = together(options.files)
    else:
        told = {**environment(""), "command": f"`{command}`"}
        runs = measure(options, told)
    show(runs)
    if options.into:
        options.into.write_text(with_results(options.into.read_text(), markdown(runs, told)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
