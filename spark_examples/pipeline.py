"""The frame of all pipelines: options, the way to Kafka, progress at the terminal, a clean stop.

A pipeline is a file with `parser()`, its options; `start(spark, options)`, which starts its streaming queries; and
`main()`, which is one call of `run_pipeline`. Paths are URIs that Spark's file systems read (`hdfs://`, `s3a://`,
`file:/`, or a plain path on the cluster's default); nothing here opens a file by itself.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from barnabas.broker.client.errors import ClientError
from barnabas.spark_examples.connection import add_connection_options, connect
from barnabas.spark_examples.filesystem import FileSystem
from barnabas.spark_examples.offsets import Offsets, flat
from barnabas.spark_examples.session import is_submitted, spark_session
from barnabas.spark_examples.signals import INTERRUPTED, end_with, raise_interrupts, stop_signals
from barnabas.spark_examples.topics import Topics, what_is_missing, with_ports

POLL_S = 0.2
LOG_COLUMNS = 160

console = Console(stderr=True)


# --- options ------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The options, with what they say about the connection in place (`connection.py`)."""
        options = super().parse_args(args, namespace)
        try:
            connect(options)
        except ClientError as problem:
            self.error(str(problem))
        return options


def pipeline_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every pipeline has."""
    parser = Parser(prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    kafka = parser.add_argument_group("Kafka")
    kafka.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        type=with_ports,
        help="the cluster (default: start a Barnabas broker of its own with sample input, and show what comes out)",
    )
    kafka.add_argument(
        "--kafka",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=pair,
        help="a setting of Spark's Kafka clients, such as max.poll.records=500; may be repeated",
    )
    kafka.add_argument(
        "--client",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=pair,
        help="a setting of librdkafka, which writes transactions, measures latency and looks up partitions; may be "
        "repeated",
    )
    add_connection_options(parser.add_argument_group("secured clusters"))
    parser.set_defaults(totals={})
    spark = parser.add_argument_group("Spark")
    spark.add_argument("--master", help="Spark's master (default: spark-submit's, otherwise local[2])")
    spark.add_argument("--packages", help="Maven coordinates instead of those of the Kafka connector")
    spark.add_argument(
        "--conf", metavar="KEY=VALUE", action="append", default=[], type=pair, help="a Spark setting; may be repeated"
    )
    return parser


def add_stream_options(parser: argparse.ArgumentParser, *, checkpoint: bool = True) -> None:
    """Options of pipelines that are streaming queries."""
    stream = parser.add_argument_group("stream")
    if checkpoint:
        stream.add_argument("--checkpoint", metavar="URI", help="where the queries keep their progress")
    stream.add_argument("--once", action="store_true", help="process the records that are there, then stop")
    stream.add_argument(
        "--trigger",
        metavar="TIME",
        default="1 second",
        type=interval,
        help="time between micro-batches (default: %(default)s)",
    )
    stream.add_argument(
        "--starting-offsets",
        default="earliest",
        help="where to begin without a checkpoint: earliest, latest or JSON (default: %(default)s)",
    )
    stream.add_argument("--max-offsets-per-trigger", type=int, metavar="N", help="an upper limit for a micro-batch")
    stream.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="go on when records were deleted from a topic before they were read",
    )
    stream.add_argument(
        "--isolation-level",
        default="read_committed",
        choices=["read_committed", "read_uncommitted"],
        help="whether transactions that are open or aborted are read (default: %(default)s)",
    )
    stream.add_argument("--sample-flights", type=int, default=50_000, metavar="N", help=argparse.SUPPRESS)


def add_topics_options(parser: argparse.ArgumentParser, default: str, what: str) -> None:
    """Options of pipelines that read any number of topics: see `read_topics`."""
    parser.add_argument("--topics", default=default, metavar="TOPIC,...", help=f"{what} (default: %(default)s)")
    parser.add_argument("--topics-pattern", metavar="REGEX", help="all topics of this pattern instead, new ones, too")


def pair(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


INTERVAL = re.compile(
    r"(interval\s+)?((\d+\s*(microsecond|millisecond|minute|hour|day|week)s?|\d+(\.\d+)?\s*seconds?)\s*)+",
    re.IGNORECASE,
)
"""A length of time as Spark takes it for a trigger or a watermark, which months and years are not."""


def interval(text: str) -> str:
    """A length of time."""
    if not INTERVAL.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as '10 seconds' or '2 days'")
    return text


# --- the way to Kafka ---------------------------------------------------------------------------------------------


def kafka_options(options: argparse.Namespace) -> dict[str, str]:
    """The options with which Spark's sources and sinks reach the cluster."""
    return {
        "kafka.bootstrap.servers": options.bootstrap_servers,
        **{f"kafka.{key}": value for key, value in options.kafka},
    }


def client_options(options: argparse.Namespace) -> dict[str, str]:
    """The options with which librdkafka reaches the cluster."""
    return {"bootstrap.servers": options.bootstrap_servers, **dict(options.client)}


def read_topics(spark: SparkSession, options: argparse.Namespace, **more: str) -> DataFrame:
    """The records of the topics that --topics or --topics-pattern name, as a stream."""
    if options.topics_pattern:
        return _read_stream(spark, options, {"subscribePattern": options.topics_pattern, **more})
    return read_stream(spark, options, options.topics, **more)


def read_stream(spark: SparkSession, options: argparse.Namespace, topics: str, **more: str) -> DataFrame:
    """The records of some topics (comma-separated) as a stream; `more` are options as Spark spells them."""
    return _read_stream(spark, options, {"subscribe": topics, **more})


def _read_stream(spark: SparkSession, options: argparse.Namespace, more: Mapping[str, str]) -> DataFrame:
    wanted = {
        "startingOffsets": options.starting_offsets,
        "failOnDataLoss": str(not options.allow_data_loss).lower(),
        "kafka.isolation.level": options.isolation_level,
        **kafka_options(options),
        **more,
    }
    if options.max_offsets_per_trigger:
        wanted["maxOffsetsPerTrigger"] = str(options.max_offsets_per_trigger)
    return spark.readStream.format("kafka").options(**wanted).load()


def read_topic(spark: SparkSession, options: argparse.Namespace, topics: str) -> DataFrame:
    """The committed records of some topics, as a batch."""
    reader = spark.read.format("kafka").options(**kafka_options(options)).option("subscribe", topics)
    return reader.option("kafka.isolation.level", "read_committed").load()


def parsed(records: DataFrame, schema: str) -> DataFrame:
    """The JSON of records' values as columns."""
    return records.select(f.from_json(f.col("value").cast("string"), schema).alias("it")).select("it.*")


def checkpoint_of(options: argparse.Namespace, name: str) -> str:
    """The checkpoint of one of a pipeline's queries, below the pipeline's."""
    return f"{options.checkpoint.rstrip('/')}/{name}"


def query_id(files: FileSystem, options: argparse.Namespace, name: str) -> str:
    """Spark's id of a query, which stays the same as long as its checkpoint exists."""
    return str(json.loads(files.read_text(f"{checkpoint_of(options, name)}/metadata"))["id"])


def start_query(
    writer: Any, options: argparse.Namespace, name: str, *, checkpoint: str | None = None
) -> StreamingQuery:
    """Start one of a pipeline's queries, by default with a checkpoint below the pipeline's."""
    writer = writer.queryName(name).option("checkpointLocation", checkpoint or checkpoint_of(options, name))
    timing: dict[str, Any] = {"availableNow": True} if options.once else {"processingTime": options.trigger}
    started: StreamingQuery = writer.trigger(**timing).start()
    return started


def to_topic(frame: DataFrame, options: argparse.Namespace, topic: str) -> Any:
    """A writer of a stream with the columns key and value to a topic, by Spark's sink (at least once)."""
    return frame.writeStream.format("kafka").options(**kafka_options(options)).option("topic", topic)


# --- progress and stop --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """The work of a query since its start."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    """Time within micro-batches."""
    late: int = 0
    """Rows that stateful operators dropped because the watermark had passed them. The rows that one task has for one
    group of an aggregation count as one row, because Spark combines them first."""
    behind: int = 0
    """Records that were in the topics and not yet read, at the last batch."""
    topics: tuple[str, ...] = ()
    """The topics that were read up to the last batch."""
    observed: dict[str, Counter[str]] = field(default_factory=dict)
    """The sums of `DataFrame.observe`, by the name of the observation."""
    last_batch: int = field(default=-1, repr=False)

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add Spark's progress of one micro-batch; the same progress again changes nothing."""
        if progress["batchId"] <= self.last_batch or "addBatch" not in progress["durationMs"]:
            return
        self.last_batch = progress["batchId"]
        self.batches += 1
        self.rows += progress["numInputRows"]
        self.seconds += progress["durationMs"]["triggerExecution"] / 1000
        self.late += sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        self.behind = sum(_behind(source) for source in progress["sources"])
        for name, row in progress.get("observedMetrics", {}).items():
            self.observed.setdefault(name, Counter()).update(row.asDict())
        self.topics = tuple(
            sorted({name for source in progress["sources"] for name, _ in _offsets(source["endOffset"])})
        )


def _behind(source: Mapping[str, Any]) -> int:
    """The number of offsets that a Kafka source still has to read; 0 for other sources."""
    ends, latest = (_offsets(source[name]) for name in ("endOffset", "latestOffset"))
    return sum(max(0, offset - ends.get(partition, 0)) for partition, offset in latest.items())


def _offsets(described: Any) -> Offsets:
    try:
        return flat(json.loads(described) if isinstance(described, str) else described)
    except (ValueError, TypeError, AttributeError):
        return {}


class Stopped(Exception):
    """Raised by what a micro-batch waits in, to leave the batch undone because the pipeline is to stop."""


STOPPED = f"{Stopped.__module__}.{Stopped.__qualname__}"


def follow(queries: Sequence[StreamingQuery], stop: threading.Event | None = None) -> dict[str, Totals]:
    """Show what queries do until they end, or until `stop`: then each ends with the batch it is at.

    Raises pyspark's StreamingQueryException when one of them fails; the others are stopped, as if by `stop`.
    """
    stop = stop or threading.Event()
    totals = {query.name: Totals() for query in queries}
    columns = (
        TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    try:
        with Progress(*columns, console=console) as bars:
            tasks = [bars.add_task(name, total=None, rate="", note="") for name in totals]
            watched = list(zip(queries, totals, tasks, strict=True))
            is_over = False
            while not is_over:
                active = [query for query in queries if query.isActive]
                has_failed = len(active) < len(queries) and _has_failed(queries)
                is_over = not active or has_failed or _has_come(stop, active[0])
                if has_failed:
                    stop.set()  # for what waits within another's micro-batch
                elif is_over and stop.is_set():
                    console.print("Stopping after this micro-batch; a second signal cuts it off.")
                for query, name, task in watched:
                    if is_over:
                        end_query(query)
                    _show(bars, task, query, name, totals[name])
    except Exception:
        for query in queries:
            query.stop()
        raise
    for query in queries:
        problem = query.exception()
        if problem is not None and not (stop.is_set() and STOPPED in str(problem)):
            raise problem
    return totals


def _has_come(stop: threading.Event, query: StreamingQuery) -> bool:
    """Whether it is time to stop; asked for `POLL_S`, or until the query ends."""
    if not stop.is_set():
        with suppress(StreamingQueryException):  # `follow` finds it itself
            query.awaitTermination(POLL_S)  # type: ignore[arg-type]  # takes fractions, too
    return stop.is_set()


def _has_failed(queries: Sequence[StreamingQuery]) -> bool:
    return any(query.exception() is not None for query in queries)


def end_query(query: StreamingQuery) -> None:
    """Let a query's micro-batch come to its end, however long that takes, then stop it.

    Stopped within a batch, Spark's sink would write that batch's records once more after a restart.
    """
    last = query.lastProgress
    while query.isActive and query.status["isTriggerActive"]:
        now = query.lastProgress
        if (now and now["batchId"]) != (last and last["batchId"]):
            break
        time.sleep(POLL_S / 10)
    query.stop()


def _show(bars: Progress, task: Any, query: StreamingQuery, name: str, totals: Totals) -> None:
    last = query.lastProgress
    if last is None:
        bars.update(task, note=query.status["message"])
    if last is None or last["batchId"] <= totals.last_batch:
        return
    seen = totals.last_batch
    for progress in query.recentProgress:
        totals.add(progress)
    if totals.last_batch == seen:
        return
    rate = f"{totals.rows / totals.seconds:,.0f} rows/s" if totals.seconds else ""
    watermark = (last["eventTime"] or {}).get("watermark")
    notes = [f"batch {totals.last_batch}"]
    notes += [f"watermark {watermark}"] if watermark else []
    notes += [f"{totals.late:,} late"] if totals.late else []
    note = ", ".join(notes)
    bars.update(task, completed=totals.rows, total=totals.rows + totals.behind, rate=rate, note=note)
    if not console.is_terminal:
        console.print(f"{name}: {totals.rows:,} rows, {totals.behind:,} behind, {rate}, {note}", soft_wrap=True)


# --- the program --------------------------------------------------------------------------------------------------


Prepare = Callable[[argparse.Namespace], None]
"""Fills a fresh broker with sample input."""

Needs = Callable[[argparse.Namespace], Topics]
"""The topics that a program reads and writes with some options."""

Judge = Callable[[argparse.Namespace, Mapping[str, Totals]], int]
"""Checks the work of queries, says what is wrong with it, if anything is, and returns the exit status."""

Work = Callable[[SparkSession, argparse.Namespace, bool], int]
"""A program's work with a Spark session; the flag says whether its input is the sample. Returns the exit status."""


@contextmanager
def session(options: argparse.Namespace, name: str) -> Iterator[SparkSession]:
    """The Spark session that a command line asks for.

    After an exception Java ends when this program does: a signal may have cut off the talk with it.
    """
    if is_submitted() and (options.master or options.packages):
        console.print("--master and --packages are spark-submit's own options here: they go before the program's file.")
    with stop_signals() as stop:  # a Java that is left alone at its start would stay
        spark = spark_session(name, dict(options.conf), master=options.master, packages=options.packages)
    if stop.is_set():
        spark.stop()
        raise KeyboardInterrupt
    yield spark
    spark.stop()


@contextmanager
def cluster_for(options: argparse.Namespace, prepare: Prepare | None) -> Iterator[bool]:
    """The pipeline's cluster: that of the options, or (yields True) a broker of its own with sample input."""
    if options.bootstrap_servers is not None or prepare is None:
        yield False
        return
    from barnabas.testing import Broker

    folder = tempfile.mkdtemp(prefix="spark-pipeline-")
    options.folder = folder
    if getattr(options, "checkpoint", "") is None:
        options.checkpoint = os.path.join(folder, "checkpoint")
    options.once = True
    try:
        with Broker(num_partitions=4) as broker:
            options.bootstrap_servers = broker.bootstrap_servers
            console.print(f"A Barnabas broker of its own listens on {broker.bootstrap_servers}.")
            prepare(options)
            yield True
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_program(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    prepare: Prepare | None,
    work: Work,
    *,
    needs: Needs | None = None,
    interrupted: int = INTERRUPTED,
) -> int:
    """Run a program and end what it started; without `prepare` it gets no broker of its own.

    Where the cluster lacks what it `needs`, it says so in one line and Spark is not started; the status is 1 then.
    SIGINT and SIGTERM raise KeyboardInterrupt in it, unless `stop_signals` has them; then the status is `interrupted`.
    """
    raise_interrupts()
    try:
        with cluster_for(options, prepare) as is_sample:
            if needs is not None and not is_sample and (missing := what_is_missing(options, needs(options), say)):
                say(missing)
                return end_with(1)
            with session(options, parser.prog) as spark:
                status = work(spark, options, is_sample)
        return end_with(status)
    except (KeyboardInterrupt, Exception) as problem:
        if _is_missing_tool(problem):
            say(str(problem))
            return end_with(1)
        if not _is_interrupt(problem):
            raise
        console.print("Interrupted. Run the same command again to go on from here.")
        return end_with(interrupted)


def _is_interrupt(problem: BaseException | None) -> bool:
    """Whether an exception is KeyboardInterrupt, or came of one: cut off, PySpark's talk with Java may fail next."""
    while problem is not None and not isinstance(problem, KeyboardInterrupt):
        problem = problem.__context__
    return problem is not None


def _is_missing_tool(problem: BaseException) -> bool:
    """Whether Java, the Kafka connector or the sample cannot be had; the exception says what to do."""
    if is_submitted():
        return False
    from barnabas.spark_examples.ivy import FetchFailed
    from barnabas.spark_examples.java import JavaMissing

    return isinstance(problem, FetchFailed | JavaMissing)


def say(line: str) -> None:
    """Tell what has happened; a line stays one, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def say_totals(totals: Mapping[str, Totals], topics: Topics) -> None:
    """Sum up what all queries of a program did, and between which topics."""
    for name, total in totals.items():
        batches = "1 batch" if total.batches == 1 else f"{total.batches:,} batches"
        say(f"{name}: {total.rows:,} rows in {batches}, {total.late:,} too late.")
    if not topics.reads:  # a pattern finds them
        topics = replace(topics, reads=tuple(sorted({name for total in totals.values() for name in total.topics})))
    if str(topics):
        say(f"Records went {topics}.")


def run_pipeline(
    parser: argparse.ArgumentParser,
    start: Callable[[SparkSession, argparse.Namespace], Sequence[StreamingQuery]],
    prepare: Prepare,
    show: Callable[[SparkSession, argparse.Namespace], None],
    needs: Needs,
    judge: Judge = lambda _options, _totals: 0,
) -> int:
    """A streaming pipeline's command line: `show` prints what came of the sample input, `judge` decides the status.

    Queries that `start` has itself followed to their end are in `options.totals`.
    """

    def work(spark: SparkSession, options: argparse.Namespace, is_sample: bool) -> int:
        with stop_signals() as stop:
            options.stop = stop
            queries = start(spark, options)
            totals = {**options.totals, **follow(queries, stop)}
            say_totals(totals, needs(options))
            if is_sample and not stop.is_set():
                show(spark, options)
        return judge(options, totals)

    options = parser.parse_args()
    if options.bootstrap_servers is not None and getattr(options, "checkpoint", "") is None:
        parser.error("--bootstrap-servers needs --checkpoint URI, where the pipeline keeps how far it has come")
    # Stopped before its queries have begun, it leaves nothing undone.
    return run_program(parser, options, prepare, work, needs=needs, interrupted=0)


def print_table(table: Table) -> None:
    """Print a table at the terminal, or as wide as it wants to be into a log."""
    Console(width=None if sys.stdout.isatty() else LOG_COLUMNS).print(table)


def print_counts(spark: SparkSession, options: argparse.Namespace, topics: Sequence[str]) -> None:
    """Print how many records some topics hold, those without any, too."""
    records = read_topic(spark, options, ",".join(topics))
    counts = records.groupBy("topic").agg(f.count("*").alias("records"), f.count_distinct("key").alias("keys"))
    all_topics = spark.createDataFrame([(name,) for name in topics], "topic string")
    print_rows(all_topics.join(counts, "topic", "left").fillna(0).orderBy("topic"), "Records")


def print_rows(frame: DataFrame, title: str, count: int = 20) -> None:
    """Print the first rows of a frame as a table."""
    table = Table(title=title)
    for column in frame.columns:
        table.add_column(column)
    for row in frame.limit(count).collect():
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
    print_table(table)
