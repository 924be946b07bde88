"""Delay statistics per carrier and day: flights as JSON from one topic, statistics to another and to Parquet.

    make spark NAME=flight_delays
    python -m barnabas.spark_examples.flight_delays
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 --py-files pipelines.zip \\
        spark_examples/flight_delays.py --bootstrap-servers broker:9092 --checkpoint hdfs:///data/delays \\
        --output-path hdfs:///data/delays-final

Days are windows of event time (a flight's scheduled departure). The topic gets a line for each carrier and day that a
micro-batch touched, keyed CARRIER|DATE: early figures, corrected by flights that come late; the last line of a key is
valid. Parquet gets each carrier and day once, when its window is over: when the watermark, the newest event less
--lateness, has passed the end of the day. Flights that come later still change nothing; the number of late ones that is
shown counts those of one carrier, day and partition in a micro-batch as one, since Spark sums them up before it drops
them. --recompute writes the lines of all days anew from all that the topic holds, without a watermark, and so repairs
them. A value that is no JSON object with a scheduled time is left out.

Figures are sums and counts, so that they can be compared exactly.
"""

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.topics import Topics

FLIGHT = (
    "carrier string, number int, origin string, destination string, scheduled timestamp, "
    "departure_delay int, arrival_delay int"
)
LATE_MINUTES = 15
"""An arrival is late from this many minutes on, as the US Department of Transportation counts."""

COLUMNS = (
    "carrier", "date", "flights", "departed", "arrived", "late", "departure_delay", "arrival_delay", "worst"
)  # fmt: skip


def delay_statistics(flights: DataFrame) -> DataFrame:
    """Per carrier and day: flights, those that departed, arrived, were late, the minutes of delay, the worst one."""
    day = f.window("scheduled", "1 day").alias("day")
    return (
        flights.groupBy("carrier", day)
        .agg(
            f.count("*").alias("flights"),
            f.count("departure_delay").alias("departed"),
            f.count("arrival_delay").alias("arrived"),
            f.sum(f.when(f.col("arrival_delay") >= LATE_MINUTES, 1).otherwise(0)).alias("late"),
            f.sum("departure_delay").alias("departure_delay"),
            f.sum("arrival_delay").alias("arrival_delay"),
            f.max("arrival_delay").alias("worst"),
        )
        .withColumn("date", f.date_format("day.start", "yyyy-MM-dd"))
    )


def as_records(statistics: DataFrame) -> DataFrame:
    """Statistics as records: key CARRIER|DATE, value JSON with every field."""
    return statistics.select(
        f.concat_ws("|", "carrier", "date").alias("key"),
        f.to_json(f.struct(*COLUMNS), {"ignoreNullFields": "false"}).alias("value"),
    )


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start the queries: early figures to the topic, final ones to Parquet if a path is given."""
    flights = pipeline.parsed(pipeline.read_stream(spark, options, options.input_topic), FLIGHT)
    statistics = delay_statistics(flights.withWatermark("scheduled", options.lateness))
    early = pipeline.to_topic(as_records(statistics), options, options.output_topic).outputMode("update")
    queries = [pipeline.start_query(early, options, "early-figures")]
    if options.output_path:
        final = statistics.select(*COLUMNS).writeStream.format("parquet").option("path", options.output_path)
        queries.append(pipeline.start_query(final.outputMode("append"), options, "final-figures"))
    return queries


def recompute(spark: SparkSession, options: argparse.Namespace, _: bool = False) -> int:
    """Write the lines of all days that the topic holds anew."""
    flights = pipeline.parsed(pipeline.read_topic(spark, options, options.input_topic), FLIGHT)
    writer = as_records(delay_statistics(flights)).write.format("kafka").options(**pipeline.kafka_options(options))
    writer.option("topic", options.output_topic).save()
    pipeline.say_totals({}, needs(options))
    return 0


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("flight_delays", __doc__)
    pipeline.add_stream_options(made)
    made.add_argument("--input-topic", default="flights", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--output-topic", default="flight-delays", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--output-path", metavar="URI", help="where final figures go as Parquet (default: nowhere)")
    made.add_argument(
        "--lateness",
        metavar="TIME",
        default="2 days",
        type=pipeline.interval,
        help="how late a flight may come (default: %(default)s)",
    )
    made.add_argument("--recompute", action="store_true", help="write all lines anew from the topic, and end")
    return made


def needs(options: argparse.Namespace) -> Topics:
    """Its topics."""
    return Topics(reads=(options.input_topic,), writes=(options.output_topic,))


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights in a topic."""
    from barnabas.spark_examples import sample

    sample.create_topics(options.bootstrap_servers, options.input_topic, options.output_topic)
    sample.produce(options.bootstrap_servers, options.input_topic, sample.flight_samples(options.sample_flights))
    options.output_path = options.output_path or f"{options.folder}/final"


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print the days with the worst delays."""
    pipeline.print_rows(
        spark.read.parquet(options.output_path).orderBy(f.desc("worst")), "The worst days of carriers, final figures"
    )


def main() -> int:
    """Run from the command line."""
    made = parser()
    options = made.parse_args()
    if not options.recompute:
        return pipeline.run_pipeline(made, start, prepare_sample, show, needs)
    if options.bootstrap_servers is None:
        made.error("--recompute needs --bootstrap-servers")
    return pipeline.run_program(made, options, None, recompute, needs=needs)


if __name__ == "__main__":
    sys.exit(main())
