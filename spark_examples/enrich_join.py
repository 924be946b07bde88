"""Flights with the weather at their start, and with names: a join of two streams, and of a stream with tables.

    make spark NAME=enrich_join
    python -m barnabas.spark_examples.enrich_join
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 --py-files pipelines.zip \\
        spark_examples/enrich_join.py --bootstrap-servers broker:9092 --checkpoint hdfs:///data/enriched \\
        --airports hdfs:///data/airports.csv --planes hdfs:///data/planes.parquet

Flights and weather are JSON in two topics; a flight is joined with the observation at its airport and hour, whichever
comes first. A flight without one is written, too, without weather, when none can come any more: when the watermark,
the older one of both streams' newest event less --lateness, has passed its hour. What comes later still is counted as
late and left out, and so is a value that is no JSON object with an hour. Airports and planes are tables (CSV with a
header if the path ends in .csv, else Parquet). Which files they have is settled when the query starts: restart it when
they change.
"""

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.topics import Topics

FLIGHT = (
    "carrier string, number int, plane string, origin string, destination string, scheduled string, hour timestamp, "
    "departure_delay int, arrival_delay int"
)
WEATHER = "origin string, hour timestamp, temp double, wind_speed double, precip double, visib double"
COLUMNS = (
    "carrier", "number", "scheduled", "origin", "origin_name", "destination", "destination_name", "departure_delay",
    "arrival_delay", "temp", "wind_speed", "precip", "visib", "manufacturer", "model", "seats",
)  # fmt: skip


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """A table of files."""
    if path.endswith(".csv"):
        return spark.read.option("header", "true").csv(path)
    return spark.read.parquet(path)


def enriched(flights: DataFrame, weather: DataFrame, airports: DataFrame, planes: DataFrame) -> DataFrame:
    """Flights with weather, names of airports, and what the plane is; what is unknown is null."""
    origin, destination = airports.toDF("origin", "origin_name"), airports.toDF("destination", "destination_name")
    return (
        flights.join(weather, ["origin", "hour"], "left")
        .join(f.broadcast(origin), "origin", "left")
        .join(f.broadcast(destination), "destination", "left")
        .join(f.broadcast(planes.toDF("plane", "manufacturer", "model", "seats")), "plane", "left")
        .select(*COLUMNS)
    )


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start joining."""
    flights = pipeline.parsed(pipeline.read_stream(spark, options, options.flights_topic), FLIGHT)
    weather = pipeline.parsed(pipeline.read_stream(spark, options, options.weather_topic), WEATHER)
    has_hour = "hour is not null"  # no watermark passes null: without it a row would stay in the state for ever
    joined = enriched(
        flights.withWatermark("hour", options.lateness).where(has_hour),
        weather.withWatermark("hour", options.lateness).where(has_hour),
        read_table(spark, options.airports).select("faa", "name"),
        read_table(spark, options.planes).selectExpr("tailnum", "manufacturer", "model", "cast(seats as int)"),
    )
    records = joined.select(
        f.concat_ws("|", "carrier", "number", "scheduled").alias("key"), f.to_json(f.struct(*COLUMNS)).alias("value")
    )
    writer = pipeline.to_topic(records, options, options.output_topic).outputMode("append")
    return [pipeline.start_query(writer, options, "enriched-flights")]


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("enrich_join", __doc__)
    pipeline.add_stream_options(made)
    made.add_argument("--flights-topic", default="flights", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--weather-topic", default="weather", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--output-topic", default="enriched-flights", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--airports", metavar="URI", help="the table of airports: faa, name")
    made.add_argument("--planes", metavar="URI", help="the table of planes: tailnum, manufacturer, model, seats")
    made.add_argument(
        "--lateness",
        metavar="TIME",
        default="6 hours",
        type=pipeline.interval,
        help="how far a stream may be behind itself (default: %(default)s)",
    )
    return made


def needs(options: argparse.Namespace) -> Topics:
    """Its topics."""
    return Topics(reads=(options.flights_topic, options.weather_topic), writes=(options.output_topic,))


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights and weather in topics, airports and planes in files."""
    from barnabas.spark_examples import sample

    options.airports = options.airports or sample.write_table("airports", options.folder)
    options.planes = options.planes or sample.write_table("planes", options.folder)
    topics = (options.flights_topic, options.weather_topic, options.output_topic)
    sample.create_topics(options.bootstrap_servers, *topics)
    flights = sample.flight_samples(options.sample_flights)
    sample.produce(options.bootstrap_servers, options.flights_topic, flights)
    sample.produce(options.bootstrap_servers, options.weather_topic, sample.weather_samples(sample.last_hour(flights)))


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print some of the flights, and of how many weather and plane are known."""
    schema = ", ".join(f"{name} string" for name in COLUMNS)
    flights = pipeline.parsed(pipeline.read_topic(spark, options, options.output_topic), schema)
    columns = ("carrier", "number", "scheduled", "origin_name", "destination_name", "wind_speed", "model")
    pipeline.print_rows(flights.select(*columns), "Enriched flights")
    known = [f.count(column).alias(f"with {column}") for column in ("wind_speed", "model")]
    by_origin = flights.groupBy("origin_name").agg(f.count("*").alias("flights"), *known)
    pipeline.print_rows(by_origin.orderBy("origin_name"), "Enriched flights by origin")


def main() -> int:
    """Run from the command line."""
    made = parser()
    options = made.parse_args()
    if options.bootstrap_servers is not None and not (options.airports and options.planes):
        made.error("--bootstrap-servers needs --airports and --planes")
    return pipeline.run_pipeline(made, start, prepare_sample, show, needs)


if __name__ == "__main__":
    sys.exit(main())
