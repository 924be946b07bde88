"""Writes a range of an archive back to a topic: each partition in its order, with timestamps, headers, keys.

    make spark NAME=replay
    python -m barnabas.spark_examples.replay --archive /data/archive --topic flights --output-topic flights-again \\
        --bootstrap-servers localhost:9092 --from-time 2013-01-01T00:00:00 --to-time 2013-02-01T00:00:00

Records go to the partition they came from (the output topic needs as many), unless --repartition lets keys decide.
Spark's sink knows no timestamps, so tasks write through librdkafka, in transactions that also commit how far a
partition has come (see exactly_once.py): the same command after a crash, or an interruption, goes on where the first
one was, and readers with isolation.level=read_committed see each record once. Once it is complete, another --name
replays the same range again. Driver and workers need confluent-kafka. The output topic's retention goes by the
timestamps that records keep: for old ones it should be without limit (retention.ms=-1). Offsets are those of the
archived topic; a range goes from its first offset or time up to, not including, its second.
"""

import argparse
import hashlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import groupby

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.archive_log import ArchiveError, Piece
from barnabas.spark_examples.archive_reader import existing_archive, missing_archive, read_pieces
from barnabas.spark_examples.exactly_once import Unit, chunks, committed_progress, record_of
from barnabas.spark_examples.topics import Topics

POLL_S = 1.0
ADMIN_TIMEOUT_S = 30.0
DAY_MS = 86_400_000


def wanted_pieces(options: argparse.Namespace, pieces: tuple[Piece, ...]) -> list[Piece]:
    """The pieces that may hold records of the range."""

    def may_hold(piece: Piece) -> bool:
        days = (options.from_time or "")[:10] <= piece.date <= (options.to_time or "9999-12-31")[:10]
        offsets = any(
            each.last >= (options.from_offset or 0) and (options.to_offset is None or each.first < options.to_offset)
            for each in piece.contents
        )
        return piece.topic == options.topic and days and offsets

    return [piece for piece in pieces if may_hold(piece)]


def in_range(records: DataFrame, options: argparse.Namespace) -> DataFrame:
    """The records that are asked for."""
    if options.partitions:
        records = records.where(f.col("partition").isin([int(each) for each in options.partitions.split(",")]))
    if options.from_offset is not None:
        records = records.where(f.col("offset") >= options.from_offset)
    if options.to_offset is not None:
        records = records.where(f.col("offset") < options.to_offset)
    if options.from_time:
        records = records.where(f.col("timestamp") >= f.lit(options.from_time).cast("timestamp"))
    if options.to_time:
        records = records.where(f.col("timestamp") < f.lit(options.to_time).cast("timestamp"))
    return records


def range_name(options: argparse.Namespace) -> str:
    """A name that the same command has again, and no other."""
    told = (
        options.archive, options.topic, options.output_topic, options.partitions, options.from_offset,
        options.to_offset, options.from_time, options.to_time, options.keeps,
    )  # fmt: skip
    return f"replay-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}"


def replay(spark: SparkSession, options: argparse.Namespace) -> int:
    """Replay; returns how many records that wrote: those of the range that no earlier run has written.

    Raises ArchiveError when the range holds none, or there is no archive.
    """
    log = existing_archive(spark, options.archive)
    pieces = wanted_pieces(options, log.state().pieces)
    records = in_range(read_pieces(spark, log, pieces), options).withColumn("millis", f.unix_millis("timestamp"))
    age_ms = f.unix_millis(f.current_timestamp()) - f.min("millis")
    held = records.groupBy("partition").agg(f.min("offset"), f.max("offset") + 1, age_ms).collect()
    if not held:
        raise ArchiveError(f"the archive holds nothing of {options.topic} in this range")
    config, name = pipeline.client_options(options), options.name or range_name(options)
    sink, keeps = options.output_topic, options.keeps
    warn_of_retention(config, sink, max(age for *_, age in held))
    written = spark.sparkContext.accumulator(0)

    def write(rows: Iterator[Row]) -> None:
        for partition, of_partition in groupby(rows, key=lambda row: row.partition):
            with Unit(config, unit_name(name, partition), sink, 0) as unit:
                done = unit.progress
                for chunk in chunks(row for row in of_partition if row.offset >= done):
                    outgoing = [record_of(row, sink, partition if keeps else -1) for row in chunk]
                    unit.commit(outgoing, chunk[-1].offset + 1)
                    written.add(len(chunk))

    spans = {unit_name(name, partition): (first, end) for partition, first, end, _ in held}
    with shown_progress(config, spans, sink):
        (
            records.select("partition", "offset", "key", "value", "headers", "millis")
            .repartition(len(held), "partition")
            .sortWithinPartitions("partition", "offset")
            .foreachPartition(write)
        )
    return int(written.value)


def warn_of_retention(config: Mapping[str, str], topic: str, age_ms: int) -> None:
    """Tell when the topic's retention is shorter than records are old: it goes by the timestamps that they keep."""
    admin, resource = AdminClient({**config}), ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([resource])[resource].result(ADMIN_TIMEOUT_S)
    except KafkaException as problem:
        pipeline.console.print(f"{topic}'s retention is not known: {problem}", style="yellow", markup=False)
        return
    settings = {name: str(entry.value) for name, entry in found.items()}
    retention_ms = int(settings["retention.ms"])
    goes_by_age = "delete" in settings["cleanup.policy"] and settings["message.timestamp.type"] == "CreateTime"
    if goes_by_age and 0 <= retention_ms < age_ms:
        days = f"{retention_ms / DAY_MS:,.1f} days, and the range goes back {age_ms / DAY_MS:,.1f}"
        text = f"{topic} keeps {days}: it may delete records before they are read. Set its retention.ms to -1 first."
        pipeline.console.print(text, style="yellow", markup=False, soft_wrap=True)


def unit_name(name: str, partition: int) -> str:
    """The transactional id, and the consumer group, of a partition's replay."""
    return f"{name}-{partition}"


@contextmanager
def shown_progress(config: Mapping[str, str], spans: Mapping[str, tuple[int, int]], topic: str) -> Iterator[None]:
    """Show how far units have come within their first and last offsets, as they commit it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    total = sum(end - first for first, end in spans.values())
    done = threading.Event()
    with Progress(*columns, console=pipeline.console) as bars:
        task = bars.add_task("offsets replayed", total=total)

        def watch() -> None:
            at = {unit: first for unit, (first, _) in spans.items()}
            while not done.wait(POLL_S):
                for unit in [unit for unit, (_, end) in spans.items() if at[unit] < end]:
                    if not done.is_set():
                        with suppress(KafkaException):  # the broker is away: what replays will say so
                            at[unit] = max(at[unit], committed_progress(config, unit, topic, 0))
                completed = sum(min(at[unit], end) - first for unit, (first, end) in spans.items())
                bars.update(task, completed=completed)
                if not pipeline.console.is_terminal:
                    pipeline.console.print(f"{completed:,} of {total:,} offsets replayed")

        watcher = threading.Thread(target=watch, name="progress")
        watcher.start()
        try:
            yield
            bars.update(task, completed=total)
        finally:
            done.set()
            watcher.join()


def moment(text: str) -> str:
    """A time in ISO 8601 as UTC's; without a zone it is that."""
    given = datetime.fromisoformat(text)
    return (given.astimezone(UTC) if given.tzinfo else given).replace(tzinfo=None).isoformat()


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("replay", __doc__)
    made.add_argument("--archive", metavar="URI", help="where the archive is")
    made.add_argument("--topic", default="flights", help="what to replay (default: %(default)s)")
    made.add_argument("--output-topic", default="flights-again", metavar="TOPIC", help="default: %(default)s")
    made.add_argument("--name", help="under which progress is kept (default: one for each range and pair of topics)")
    made.add_argument("--partitions", metavar="N,...", help="only these partitions")
    made.add_argument("--from-offset", type=int, metavar="N", help="only from this offset on, in each partition")
    made.add_argument("--to-offset", type=int, metavar="N", help="only up to this offset")
    made.add_argument("--from-time", metavar="ISO", type=moment, help="only records of this time (UTC) or later")
    made.add_argument("--to-time", metavar="ISO", type=moment, help="only records before this time (UTC)")
    made.add_argument(
        "--repartition",
        dest="keeps",
        action="store_false",
        help="let keys choose partitions; the order of each former partition is kept among records of one key",
    )
    made.add_argument("--sample-flights", type=int, default=50_000, help=argparse.SUPPRESS)
    return made


def needs(options: argparse.Namespace) -> Topics:
    """The output topic, with its partitions and its retention: it is never made by itself."""
    return Topics(reads=(options.output_topic,))


def prepare_sample(options: argparse.Namespace) -> None:
    """An empty topic; the archive is made by `_sample_archive`, which needs Spark."""
    from barnabas.spark_examples import sample

    options.archive = options.archive or f"{options.folder}/archive"
    sample.create_topics(options.bootstrap_servers, options.topic, options.output_topic)
    sample.produce(options.bootstrap_servers, options.topic, sample.flight_samples(options.sample_flights))


def _sample_archive(spark: SparkSession, options: argparse.Namespace) -> None:
    from barnabas.spark_examples import archive

    arguments = ["run", "--once", "--archive", options.archive, "--topics", options.topic]
    settings = archive.parser().parse_args([*arguments, "--bootstrap-servers", options.bootstrap_servers])
    pipeline.follow(archive.start(spark, settings))


def run(spark: SparkSession, options: argparse.Namespace, is_sample: bool) -> int:
    """Replay, and tell."""
    if is_sample:
        _sample_archive(spark, options)
    try:
        count = replay(spark, options)
    except ArchiveError as problem:
        pipeline.console.print(problem, style="red", markup=False)
        return 1
    sink = options.output_topic
    pipeline.console.print(f"{count:,} records of {options.topic} written to {sink}, which has the range now.")
    return 0


def main() -> int:
    """Run from the command line."""
    made = parser()
    options = made.parse_args()
    if options.bootstrap_servers is not None and options.archive is None:
        made.error("--bootstrap-servers needs --archive")
    if options.bootstrap_servers is not None and (missing := missing_archive(options)):
        pipeline.say(missing)
        return 1
    return pipeline.run_program(made, options, prepare_sample, run, needs=needs)


if __name__ == "__main__":
    sys.exit(main())
