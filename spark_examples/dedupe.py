"""Removes repeated events: each event of one topic goes once to another topic.

    make spark NAME=dedupe
    python -m barnabas.spark_examples.dedupe --bootstrap-servers localhost:9092 --checkpoint /data/dedupe --id-field id

Events are JSON objects; what has the same --id-field (or the same record key, without that option) is the same event,
if it comes within --window of the first one, by the records' timestamps: so long its id is kept in Spark's state. An
event older than the watermark (the newest timestamp less --window) is dropped and counted as late, since nothing would
tell it from a repetition. A record without an id is an event of its own; how many there were is said at the end, and
the status is 1 where no record had one (a misspelt --id-field).

Spark's own sink would write a batch twice after a crash. Here each state partition of a batch goes out in one
transaction that also commits the batch's number (see exactly_once.py): readers with isolation.level=read_committed see
every event once, whatever was killed. A worker holds such a part in memory, which --max-offsets-per-trigger bounds
(default: 400,000). Driver and workers need confluent-kafka.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.exactly_once import Unit, record_of
from barnabas.spark_examples.filesystem import FileSystem
from barnabas.spark_examples.topics import Topics

QUERY = "unique-events"
IDS = "ids"
"""The observation of how many records have an id."""
SAMPLE_REPETITIONS = 3
MOST_RECORDS = 400_000


def unique_events(records: DataFrame, id_field: str | None, window: str) -> DataFrame:
    """The first record of each id."""
    event_id = f.get_json_object(f.col("value").cast("string"), f"$.{id_field}") if id_field else f.col("key")
    # Without an id nothing can be said to be repeated: such a record is itself.
    itself = f.concat_ws("-", "topic", "partition", "offset")
    counted = records.observe(IDS, f.count("*").alias("records"), f.count(event_id).alias("with_id"))
    named = counted.withColumn("id", f.coalesce(event_id.cast("string"), itself))
    return named.withWatermark("timestamp", window).dropDuplicatesWithinWatermark(["id"])


class BatchWriter:
    """Writes a micro-batch of unique records, one transaction for each state partition."""

    def __init__(self, spark: SparkSession, options: argparse.Namespace) -> None:
        self._files = FileSystem(spark)
        self._options = options
        self._config = pipeline.client_options(options)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch (the function for `foreachBatch`).

        The frame's partitions are the state's: each has the same ids when a batch is repeated.
        """
        config, source, sink = self._config, self._options.input_topic, self._options.output_topic
        # Numbers of batches mean something within one checkpoint only.
        name = f"dedupe-{pipeline.query_id(self._files, self._options, QUERY)}"

        def write(rows: Iterator[Row]) -> None:
            records = [record_of(row, sink) for row in rows]
            task = TaskContext.get()
            assert task is not None
            if records:
                with Unit(config, f"{name}-{task.partitionId()}", source, 0) as unit:
                    if unit.progress <= batch_id:
                        unit.commit(records, batch_id + 1)

        batch.select("key", "value", "headers", f.unix_millis("timestamp").alias("millis")).foreachPartition(write)


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start the query."""
    records = pipeline.read_stream(spark, options, options.input_topic, includeHeaders="true")
    unique = unique_events(records, options.id_field, options.window)
    writer = unique.writeStream.foreachBatch(BatchWriter(spark, options))
    return [pipeline.start_query(writer, options, QUERY)]


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("dedupe", __doc__)
    pipeline.add_stream_options(made)
    made.set_defaults(max_offsets_per_trigger=MOST_RECORDS)
    made.add_argument("--input-topic", default="events", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--output-topic", default="unique-events", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--id-field", metavar="NAME", help="the JSON field that names an event (default: the key)")
    made.add_argument(
        "--window",
        metavar="TIME",
        default="1 day",
        type=pipeline.interval,
        help="how far apart repetitions may be (default: %(default)s)",
    )
    return made


def needs(options: argparse.Namespace) -> Topics:
    """Its topics."""
    return Topics(reads=(options.input_topic,), writes=(options.output_topic,))


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights, each several times."""
    from barnabas.spark_examples import sample

    flights = sample.flight_samples(options.sample_flights // SAMPLE_REPETITIONS)
    events = [each._replace(key=f"{number}") for number, each in enumerate(flights)]
    sample.create_topics(options.bootstrap_servers, options.input_topic, options.output_topic)
    repeated = [each for at in range(0, len(events), 500) for each in events[at : at + 500] * SAMPLE_REPETITIONS]
    sample.produce(options.bootstrap_servers, options.input_topic, repeated)


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print how many events came and went; each has its key."""
    pipeline.print_counts(spark, options, (options.input_topic, options.output_topic))


def judge(options: argparse.Namespace, totals: Mapping[str, pipeline.Totals]) -> int:
    """Tell how many records had no id; that none had one is a mistake."""
    seen = totals[QUERY].observed.get(IDS, Counter())
    lacking = seen["records"] - seen["with_id"]
    if not lacking:
        return 0
    what = f"field {options.id_field}" if options.id_field else "key"
    pipeline.say(f"{lacking:,} of {seen['records']:,} records have no {what}: each was taken for an event of its own.")
    return 0 if seen["with_id"] else 1


def main() -> int:
    """Run from the command line."""
    return pipeline.run_pipeline(parser(), start, prepare_sample, show, needs, judge)


if __name__ == "__main__":
    sys.exit(main())
