"""A consumer with bounded retries: a failed record is tried again after a delay, and becomes a dead letter in the end.

    make spark NAME=retry_and_dead_letter
    python -m barnabas.spark_examples.retry_and_dead_letter --bootstrap-servers localhost:9092 \\
        --checkpoint /data/checks --handler my_module:handle --delays 10,60,600
    python -m barnabas.spark_examples.retry_and_dead_letter ... --reprocess

Every record of the input topic goes through a handler, a Python function of a Record that returns the value to write
to the output topic, or None for nothing. A record whose handler raises goes to TOPIC-retry-1, from there, after its
delay, to the handler again, then to TOPIC-retry-2 and so on, at last to TOPIC-dead. One whose handler raises Hopeless
goes there at once. Headers tell of a failed record where it came from, how often it was tried, and why it failed last.
A delay has a topic of its own, so that its records become due in their order and nothing waits behind longer delays.
These headers are the pipeline's own: it leaves out what the input brings under their names, and what lies in a retry
topic without them is a dead letter.

The input topic, the output topic, TOPIC-retry-1 to TOPIC-retry-N for N --delays, and TOPIC-dead have to exist. Two
pipelines on one input topic would share its retry topics: give each an input topic of its own. Results, retries and
dead letters keep the timestamp of their record, by which the broker's retention counts: a topic that deletes after
seven days deletes the retry of an older record before it is read, so let retention.ms of these topics be longer than
what comes is old.

--reprocess sends the dead letters that are there back to the input topic, as if they came for the first time, but with
a header that counts these returns.

Each source partition writes its results, retries and dead letters, and commits its offset, in one transaction (see
exactly_once.py): readers with isolation.level=read_committed see the outcome of each record once, whatever was killed.
The handler itself may run again. Progress is kept as offsets of the consumer groups --name-TOPIC-PARTITION, where
Kafka's tools show it. Driver and workers need confluent-kafka.
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

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.exactly_once import Headers, Outgoing, Unit, chunks, record_of, wait_until_readable
from barnabas.spark_examples.retry_handler import Handler, Hopeless, Record, handler_of
from barnabas.spark_examples.topics import Topics

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
    """The topic that a query reads, and the topics for records that fail there."""

    source: str
    sink: str
    dead: str
    next_retry: str | None
    next_delay_s: float
    delay_s: float | None
    """The delay of records in this topic; None for the input topic, in which other programs set the headers."""


def outcome(row: Row, handler: Handler, level: Level, now_ms: int) -> list[Outgoing]:
    """The records that a record leads to: a result, a retry or a dead letter; none if the handler returns none."""
    came = record_of(row, level.sink)
    given = [pair for pair in came.headers if pair[0] not in OWN_HEADERS]
    is_retry = level.delay_s is not None
    attempt = 0 if is_retry else 1
    origin = {name: str(at).encode() for name, at in zip(ORIGIN, (row.topic, row.partition, row.offset), strict=True)}
    try:
        if is_retry:
            attempt, origin = _history(dict(came.headers))
        value = handler(Record(came.key, came.value, given, came.timestamp, attempt))
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is this record's trouble
        return [_failed(came, given, origin, problem, attempt, level, now_ms)]
    return [] if value is None else [came._replace(value=value, headers=given)]


def _history(headers: Mapping[str, bytes | None]) -> tuple[int, dict[str, bytes]]:
    """The number of a retry's attempt, and its origin. Raises Hopeless if its headers lack them."""
    try:
        return int(headers[ATTEMPT] or b""), {name: headers[name] or b"" for name in ORIGIN}
    except (KeyError, ValueError) as problem:
        raise Hopeless(f"no retry: {problem!r}") from None


def _failed(
    came: Outgoing, given: Headers, origin: Mapping[str, bytes], problem: Exception, attempt: int, level: Level,
    now_ms: int,
) -> Outgoing:  # fmt: skip
    why = (type(problem).__qualname__, str(problem)[:MESSAGE_CHARACTERS])
    told = {**origin, **dict(zip(ERROR, (text.encode(errors="backslashreplace") for text in why), strict=True))}
    if level.next_retry is None or isinstance(problem, Hopeless):
        told[ATTEMPT] = str(attempt).encode()
        return came._replace(topic=level.dead, headers=[*given, *told.items()])
    told[ATTEMPT] = str(attempt + 1).encode()
    told[NOT_BEFORE] = str(now_ms + int(level.next_delay_s * 1000)).encode()
    return came._replace(topic=level.next_retry, headers=[*given, *told.items()])


def sent_back(row: Row, topic: str) -> Outgoing:
    """A dead letter as a new record of the input topic; a count of returns that is no number begins anew."""
    came = record_of(row, topic)
    try:
        times = int(dict(came.headers).get(REPROCESSED) or b"0") + 1
    except ValueError:
        times = 1
    given = [pair for pair in came.headers if pair[0] not in OWN_HEADERS | {REPROCESSED}]
    return came._replace(headers=[*given, (REPROCESSED, str(times).encode())])


# --- a micro-batch ------------------------------------------------------------------------------------------------


class BatchWriter:
    """Writes what becomes of a micro-batch's records; `make` is called once for each task.

    With `delay_s`, the batch waits until its records are due, and at most that long.
    """

    def __init__(self, options: argparse.Namespace, make: Make, delay_s: float | None) -> None:
        self._options = options
        self._make = make
        self._delay_s = delay_s

    def __call__(self, batch: DataFrame, _: int) -> None:
        """Handle a micro-batch (the function for `foreachBatch`).

        Spark reads a partition of a topic in one task, in its order.
        """
        if self._delay_s is None:
            self._write(batch)
            return
        batch.persist()  # it is looked at twice, and was to be read and counted once
        try:
            self._wait_until_due(batch, self._delay_s)
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

    def _wait_until_due(self, batch: DataFrame, delay_s: float) -> None:
        """Wait for the newest retry of the batch; the others were due a micro-batch earlier at most."""
        header = f.get(f.filter("headers", lambda each: each["key"] == NOT_BEFORE), 0)
        due = header["value"].cast("string").try_cast("bigint")
        [row] = batch.select(f.max(due).alias("due"), f.unix_millis(f.current_timestamp()).alias("now")).collect()
        deadline = time.monotonic() + min(delay_s, max(0, (row.due or 0) - (row.now or 0)) / 1000)
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
        Level(source, options.output_topic, dead, following, next_delay, delay)
        for source, following, next_delay, delay in zip(
            sources, [*retries, None], [*delays, 0.0], [None, *delays], strict=True
        )
    ]


def dead_topic(options: argparse.Namespace) -> str:
    """The topic of dead letters."""
    return f"{options.input_topic}-dead"


def start_level(spark: SparkSession, options: argparse.Namespace, level: Level) -> StreamingQuery:
    """Start the query of one level."""
    handler_name = options.handler

    def make() -> Callable[[Row], list[Outgoing]]:
        handler = handler_of(handler_name)
        return lambda row: outcome(row, handler, level, time.time_ns() // 1_000_000)

    return _start(spark, options, level.source, make, level.delay_s)


def _start(
    spark: SparkSession, options: argparse.Namespace, topic: str, make: Make, delay_s: float | None = None
) -> StreamingQuery:
    records = pipeline.read_stream(spark, options, topic, includeHeaders="true")
    writer = records.writeStream.foreachBatch(BatchWriter(options, make, delay_s))
    return pipeline.start_query(writer, options, topic)


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start a query for each level; with `--once` one after the other, as each feeds the next."""
    if options.reprocess:
        options.once = True
        target = options.input_topic
        dead = dead_topic(options)
        return [_start(spark, options, dead, lambda: lambda row: [sent_back(row, target)])]
    levels = levels_of(options)
    if not options.once:
        return [start_level(spark, options, level) for level in levels]
    for level in levels[:-1]:
        if not options.stop.is_set():
            options.totals |= pipeline.follow([start_level(spark, options, level)], options.stop)
            topic = level.next_retry or level.dead
            if not wait_until_readable(pipeline.client_options(options), topic):
                pipeline.console.print(f"A transaction is open in {topic}: records after it stay there.")
    return [start_level(spark, options, levels[-1])]


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("retry_and_dead_letter", __doc__)
    pipeline.add_stream_options(made)
    made.add_argument("--input-topic", default="flights", metavar="TOPIC", help="TOPIC above (default: %(default)s)")
    made.add_argument("--output-topic", default="checked-flights", metavar="TOPIC", help="default: %(default)s")
    made.add_argument(
        "--handler",
        default="barnabas.spark_examples.retry_handler:check_flight",
        metavar="MODULE:FUNCTION",
        help="what to do with a record; workers import it (default: %(default)s)",
    )
    made.add_argument("--delays", default="1,5", metavar="S,...", help="before each retry (default: %(default)s)")
    made.add_argument("--name", default="checks", help="of transactions and consumer groups (default: %(default)s)")
    made.add_argument("--reprocess", action="store_true", help="send the dead letters back to the input topic, and end")
    return made


def needs(options: argparse.Namespace) -> Topics:
    """Its topics, those for retries among them."""
    if options.reprocess:
        return Topics(reads=(dead_topic(options), options.input_topic))
    sources = (level.source for level in levels_of(options))
    return Topics(reads=(*sources,), writes=(options.output_topic, dead_topic(options)))


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights in a topic, and something that is none."""
    from barnabas.spark_examples import sample

    levels = levels_of(options)
    names = [*(level.source for level in levels), options.output_topic, dead_topic(options)]
    sample.create_topics(options.bootstrap_servers, *names)
    flights = sample.flight_samples(options.sample_flights)
    sample.produce(options.bootstrap_servers, options.input_topic, [*flights, sample.Sample("no flight", "XX")])


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print how many records each topic holds, and why letters are dead."""
    names = [*(level.source for level in levels_of(options)), options.output_topic, dead_topic(options)]
    pipeline.print_counts(spark, options, names)
    dead = spark.read.format("kafka").options(**pipeline.kafka_options(options)).option("includeHeaders", "true")
    headers = f.map_from_entries("headers")
    reasons = dead.option("subscribe", dead_topic(options)).load().select(headers.alias("headers"))
    columns = [f.col("headers")[name].cast("string").alias(name) for name in (ATTEMPT, *ERROR)]
    pipeline.print_rows(reasons.select(*columns).orderBy(f.desc(ATTEMPT)), "Dead letters", 5)


def main() -> int:
    """Run from the command line."""
    return pipeline.run_pipeline(parser(), start, prepare_sample, show, needs)


if __name__ == "__main__":
    sys.exit(main())
