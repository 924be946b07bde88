"""A consumer with bounded retries: what fails is tried again after a delay, and in the end is a dead letter.

    make spark NAME=retry_and_dead_letter
    make spark NAME=retry_and_dead_letter ARGS="--bootstrap-servers localhost:9092 --checkpoint /data/checks
        --handler my_module:handle --delays 10,60,600"
    make spark NAME=retry_and_dead_letter ARGS="... --reprocess"

Every record of the input topic goes through a handler, a Python function of a Record that returns the value to write
to the output topic, or None for nothing. A record whose handler raises goes to TOPIC-retry-1, from there, after its
delay, to the handler again, then to TOPIC-retry-2 and so on, at last to TOPIC-dead. One whose handler raises Hopeless
goes there at once. Headers tell of a failed record where it came from, how often it was tried, and why it failed last.
A delay has a topic of its own, so that its records become due in their order and nothing waits behind longer delays.

--reprocess sends the dead letters that are there back to the input topic, as if they came for the first time, but with
a header that counts these returns.

Each source partition writes its results, retries and dead letters, and commits its offset, in one transaction (see
exactly_once.py): readers with isolation.level=read_committed see the outcome of each record once, whatever was killed.
The handler itself may run again. Progress is kept as offsets of the consumer groups --name-TOPIC-PARTITION, where
Kafka's tools show it. Workers need confluent-kafka.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from spark_examples import pipeline
from spark_examples.exactly_once import Headers, Outgoing, Unit, chunks, record_of, wait_until_readable
from spark_examples.retry_handler import Handler, Hopeless, Record, handler_of

ATTEMPT, NOT_BEFORE, REPROCESSED = "retry-attempt", "retry-not-before", "reprocessed"
ORIGIN = ("origin-topic", "origin-partition", "origin-offset")
ERROR = ("error-class", "error-message")
OWN_HEADERS = frozenset({ATTEMPT, NOT_BEFORE, *ORIGIN, *ERROR})
MESSAGE_CHARACTERS = 500
WAIT_S = 0.5


Make = Callable[[], Callable[[Row], list[Outgoing]]]
"""Makes, on a worker, what turns a record into what is to be written."""


# --- one record ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Level:
    """Where a query reads, and where what fails there goes."""

    source: str
    sink: str
    dead: str
    next_retry: str | None
    next_delay_s: float


def outcome(row: Row, handler: Handler, level: Level, now_ms: int) -> list[Outgoing]:
    """What becomes of a record: a result, a retry or a dead letter; or nothing, if the handler wants nothing."""
    came = record_of(row, level.sink)
    headers = dict(came.headers)
    attempt = int(headers.get(ATTEMPT) or b"1")
    given = [pair for pair in came.headers if pair[0] not in OWN_HEADERS]
    try:
        value = handler(Record(came.key, came.value, given, came.timestamp, attempt))
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is this record's trouble
        origin = {name: headers.get(name) for name in ORIGIN if name in headers} or {
            name: str(at).encode() for name, at in zip(ORIGIN, (row.topic, row.partition, row.offset), strict=True)
        }
        return [_failed(came, given, origin, problem, attempt, level, now_ms)]
    return [] if value is None else [came._replace(value=value, headers=given)]


def _failed(
    came: Outgoing, given: Headers, origin: Mapping[str, bytes | None], problem: Exception, attempt: int, level: Level,
    now_ms: int,
) -> Outgoing:  # fmt: skip
    why = (type(problem).__qualname__, str(problem)[:MESSAGE_CHARACTERS])
    told = {**origin, **dict(zip(ERROR, (text.encode() for text in why), strict=True))}
    if level.next_retry is None or isinstance(problem, Hopeless):
        told[ATTEMPT] = str(attempt).encode()
        return came._replace(topic=level.dead, headers=[*given, *told.items()])
    told[ATTEMPT] = str(attempt + 1).encode()
    told[NOT_BEFORE] = str(now_ms + int(level.next_delay_s * 1000)).encode()
    return came._replace(topic=level.next_retry, headers=[*given, *told.items()])


def sent_back(row: Row, topic: str) -> Outgoing:
    """A dead letter as a new record of the input topic."""
    came = record_of(row, topic)
    times = int(dict(came.headers).get(REPROCESSED) or b"0") + 1
    given = [pair for pair in came.headers if pair[0] not in OWN_HEADERS | {REPROCESSED}]
    return came._replace(headers=[*given, (REPROCESSED, str(times).encode())])


# --- a micro-batch ------------------------------------------------------------------------------------------------


class BatchWriter:
    """Writes what becomes of a micro-batch's records; `make` is called once for each task."""

    def __init__(self, options: argparse.Namespace, make: Make, *, is_delayed: bool) -> None:
        self._options = options
        self._make = make
        self._is_delayed = is_delayed

    def __call__(self, batch: DataFrame, _: int) -> None:
        """For `foreachBatch`. Spark reads a partition of a topic in one task, in its order."""
        if not self._is_delayed:
            self._write(batch)
            return
        batch.persist()  # it is looked at twice, and was to be read and counted once
        try:
            self._wait_until_due(batch)
            self._write(batch)
        finally:
            batch.unpersist()

    def _write(self, batch: DataFrame) -> None:
        config, name, make = pipeline.client_options(self._options), self._options.name, self._make

        def write(rows: Iterator[Row]) -> None:
            become = make()
            for (topic, partition), of_partition in groupby(rows, key=lambda row: (row.topic, row.partition)):
                with Unit(config, f"{name}-{topic}-{partition}", topic, partition) as unit:
                    done = unit.progress
                    for chunk in chunks(row for row in of_partition if row.offset >= done):
                        unit.commit([each for row in chunk for each in become(row)], chunk[-1].offset + 1)

        columns = ("topic", "partition", "offset", "key", "value", "headers")
        batch.select(*columns, f.unix_millis("timestamp").alias("millis")).foreachPartition(write)

    def _wait_until_due(self, batch: DataFrame) -> None:
        """Wait for the newest retry of the batch; the others were due a micro-batch earlier at most."""
        header = f.get(f.filter("headers", lambda each: each["key"] == NOT_BEFORE), 0)
        [row] = batch.select(
            f.max(header["value"].cast("string").cast("bigint")).alias("due"),
            f.unix_millis(f.current_timestamp()).alias("now"),
        ).collect()
        deadline = time.monotonic() + max(0, (row.due or 0) - (row.now or 0)) / 1000
        stop: threading.Event = self._options.stop
        while (left := deadline - time.monotonic()) > 0:
            if stop.wait(min(left, WAIT_S)):
                raise pipeline.Stopped("before the batch was due")


# --- the queries --------------------------------------------------------------------------------------------------


def levels_of(options: argparse.Namespace) -> list[Level]:
    """The input topic and each retry topic."""
    delays = [float(each) for each in options.delays.split(",") if each]
    retries = [f"{options.input_topic}-retry-{number}" for number in range(1, len(delays) + 1)]
    sources = [options.input_topic, *retries]
    dead = dead_topic(options)
    return [
        Level(source, options.output_topic, dead, following, delay)
        for source, following, delay in zip(sources, [*retries, None], [*delays, 0.0], strict=True)
    ]


def dead_topic(options: argparse.Namespace) -> str:
    """Where dead letters go."""
    return f"{options.input_topic}-dead"


def start_level(spark: SparkSession, options: argparse.Namespace, level: Level) -> StreamingQuery:
    """Start the query of one level."""
    handler_name = options.handler

    def make() -> Callable[[Row], list[Outgoing]]:
        handler = handler_of(handler_name)
        return lambda row: outcome(row, handler, level, time.time_ns() // 1_000_000)

    return _start(spark, options, level.source, make, is_delayed=level.source != options.input_topic)


def _start(
    spark: SparkSession, options: argparse.Namespace, topic: str, make: Make, *, is_delayed: bool
) -> StreamingQuery:
    records = pipeline.read_stream(spark, options, topic, includeHeaders="true")
    writer = records.writeStream.foreachBatch(BatchWriter(options, make, is_delayed=is_delayed))
    return pipeline.start_query(writer, options, topic)


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start a query for each level; with `--once` one after the other, as each feeds the next."""
    if options.reprocess:
        options.once = True
        target = options.input_topic
        dead = dead_topic(options)
        return [_start(spark, options, dead, lambda: lambda row: [sent_back(row, target)], is_delayed=False)]
    levels = levels_of(options)
    if not options.once:
        return [start_level(spark, options, level) for level in levels]
    for level in levels[:-1]:
        if not options.stop.is_set():
            pipeline.follow([start_level(spark, options, level)], options.stop)
            wait_until_readable(pipeline.client_options(options), level.next_retry or level.dead)
    return [start_level(spark, options, levels[-1])]


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("retry_and_dead_letter", __doc__)
    pipeline.add_stream_options(made)
    made.add_argument("--input-topic", default="flights", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--output-topic", default="checked-flights", metavar="TOPIC", help="default: %(default)s")
    made.add_argument(
        "--handler",
        default="spark_examples.retry_handler:check_flight",
        metavar="MODULE:FUNCTION",
        help="what to do with a record; workers import it (default: %(default)s)",
    )
    made.add_argument("--delays", default="1,5", metavar="S,...", help="before each retry (default: %(default)s)")
    made.add_argument("--name", default="checks", help="of transactions and consumer groups (default: %(default)s)")
    made.add_argument("--reprocess", action="store_true", help="send the dead letters back to the input topic, and end")
    return made


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights in a topic, and something that is none."""
    from spark_examples import sample

    levels = levels_of(options)
    names = [*(level.source for level in levels), options.output_topic, dead_topic(options)]
    sample.create_topics(options.bootstrap_servers, *names)
    flights = sample.flight_samples(options.sample_flights)
    sample.produce(options.bootstrap_servers, options.input_topic, [*flights, sample.Sample("no flight", "XX")])


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print how many records each topic holds, and why letters are dead."""
    names = [*(level.source for level in levels_of(options)), options.output_topic, dead_topic(options)]
    counts = pipeline.read_topic(spark, options, ",".join(names)).groupBy("topic").count()
    pipeline.print_rows(counts.orderBy("topic"), "Records")
    dead = spark.read.format("kafka").options(**pipeline.kafka_options(options)).option("includeHeaders", "true")
    headers = f.map_from_entries("headers")
    reasons = dead.option("subscribe", dead_topic(options)).load().select(headers.alias("headers"))
    columns = [f.col("headers")[name].cast("string").alias(name) for name in (ATTEMPT, *ERROR)]
    pipeline.print_rows(reasons.select(*columns).orderBy(f.desc(ATTEMPT)), "Dead letters", 5)


def main() -> int:
    """Run from the command line."""
    return pipeline.run_pipeline(parser(), start, prepare_sample, show)


if __name__ == "__main__":
    sys.exit(main())
