"""Counts words: lines from one topic, the count of each word to another, keyed by word; the last of a key is valid.

    make spark NAME=stream_wordcount
    python -m barnabas.spark_examples.stream_wordcount --bootstrap-servers localhost:9092 --checkpoint /tmp/words
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 --py-files pipelines.zip \\
        spark_examples/stream_wordcount.py --bootstrap-servers broker:9092 --checkpoint hdfs:///data/words

Counts survive restarts in the checkpoint. A batch that a crash cut off is written again: same keys, same counts.
"""

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.topics import Topics


def word_counts(lines: DataFrame) -> DataFrame:
    """The number of times that each word (letters and digits, lower case) occurs in the records' values."""
    words = f.explode(f.split(f.lower(f.col("value").cast("string")), r"[^\p{L}\p{N}]+"))
    return lines.select(words.alias("word")).where("word != ''").groupBy("word").count()


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start counting."""
    counts = word_counts(pipeline.read_stream(spark, options, options.input_topic))
    records = counts.selectExpr("word as key", "cast(count as string) as value")
    writer = pipeline.to_topic(records, options, options.output_topic).outputMode("update")
    return [pipeline.start_query(writer, options, "word-counts")]


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("stream_wordcount", __doc__)
    pipeline.add_stream_options(made)
    made.add_argument("--input-topic", default="lines", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--output-topic", default="words", metavar="TOPIC", help="default: %(default)s")
    return made


def needs(options: argparse.Namespace) -> Topics:
    """Its topics."""
    return Topics(reads=(options.input_topic,), writes=(options.output_topic,))


def prepare_sample(options: argparse.Namespace) -> None:
    """The names of airports."""
    from barnabas.spark_examples import sample

    sample.create_topics(options.bootstrap_servers, options.input_topic, options.output_topic)
    sample.produce(options.bootstrap_servers, options.input_topic, sample.line_samples())


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print the most frequent words."""
    newest = pipeline.read_topic(spark, options, options.output_topic).groupBy("key").agg(f.max_by("value", "offset"))
    counts = newest.toDF("word", "count").selectExpr("cast(word as string)", "cast(cast(count as string) as bigint) n")
    pipeline.print_rows(counts.orderBy(f.desc("n"), "word"), "The most frequent words")


def main() -> int:
    """Run from the command line."""
    return pipeline.run_pipeline(parser(), start, prepare_sample, show, needs)


if __name__ == "__main__":
    sys.exit(main())
