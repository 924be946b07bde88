"""The historical archive of a queue: topics, continuously and exactly once, to Parquet by topic and date.

    archive.py run      copy topics into the archive, from its checkpoint on
    archive.py compact  make few large files out of many small ones
    archive.py expire   take days older than a policy out of the archive
    archive.py clean    delete what compaction, expiry and crashes left behind
    archive.py audit    prove that every offset is there once, or say why not
    archive.py show     list what the archive holds; with --schema, the first records with their values' fields

    make spark NAME=archive
    python -m barnabas.spark_examples.archive run --archive /data/archive --bootstrap-servers localhost:9092 \\
        --topics flights
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 --py-files pipelines.zip \\
        spark_examples/archive.py run --archive hdfs:///data/archive --bootstrap-servers broker:9092 --topics a,b

A record's columns are topic, date (of its timestamp, UTC), partition, offset, timestamp, timestamp_type, key, value and
headers: key and value are the bytes that they were. archive_reader.py reads them, also with the fields of values that
are JSON; archive_log.py says how the archive is made and why each of these commands may run, and be killed, while any
other one runs.
"""

import argparse
import math
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.table import Table

from barnabas.spark_examples import pipeline
from barnabas.spark_examples.archive_audit import audit, offset_ranges, print_findings
from barnabas.spark_examples.archive_log import (
    EXPIRED,
    ArchiveError,
    ArchiveLog,
    Batch,
    Contents,
    Explained,
    Piece,
    State,
)
from barnabas.spark_examples.archive_reader import (
    COLUMNS,
    FITS,
    SCHEMA,
    SchemaError,
    existing_archive,
    missing_archive,
    open_archive,
    read_archive,
    read_pieces,
    value_schema,
)
from barnabas.spark_examples.topics import Topics, chosen

MAINTENANCE_BATCHES = 100


def now_ms(spark: SparkSession) -> int:
    """The time, ms since the epoch."""
    [row] = spark.sql("select unix_millis(current_timestamp()) as now").collect()
    return int(row.now)


# --- writing ------------------------------------------------------------------------------------------------------


def archived_columns(records: DataFrame) -> DataFrame:
    """Kafka's records in the archive's columns."""
    return records.select(
        "topic", f.to_date("timestamp").alias("date"), "partition", "offset", "timestamp",
        f.col("timestampType").alias("timestamp_type"), "key", "value", "headers",
    )  # fmt: skip


def write_pieces(
    spark: SparkSession, log: ArchiveLog, frame: DataFrame, kind: str, rows_per_file: int = 0
) -> tuple[Piece, ...]:
    """Write a frame as new pieces, which are not part of the archive yet, and read back what they hold.

    `rows_per_file` is the most that a file gets; 0: no limit.
    """
    job = f"commit={kind}-{secrets.token_hex(8)}"
    root = f"{log.data}/{job}"
    frame.write.partitionBy("topic", "date").option("maxRecordsPerFile", rows_per_file).parquet(root)
    if not log.files.usage(root).files:
        return ()
    groups = (
        spark.read.schema(SCHEMA)
        .parquet(root)
        .groupBy("topic", "date", "partition")
        .agg(f.count("*").alias("rows"), f.min("offset").alias("first"), f.max("offset").alias("last"))
        .collect()
    )
    contents: dict[tuple[str, str], list[Contents]] = {}
    for row in sorted(groups):
        held = Contents(row.partition, row.rows, row["first"], row["last"])
        contents.setdefault((row.topic, str(row.date)), []).append(held)
    pieces = []
    for (topic, date), held_by_partition in contents.items():
        path = f"{job}/topic={topic}/date={date}"
        usage = log.files.usage(f"{log.data}/{path}")
        pieces.append(Piece(path, topic, date, usage.files, usage.bytes, tuple(held_by_partition)))
    return tuple(pieces)


class BatchArchiver:
    """Adds micro-batches to the archive, and maintains the archive after every so many of them, if told how."""

    def __init__(self, spark: SparkSession, options: argparse.Namespace) -> None:
        self._spark = spark
        self._options = options
        self._log = open_archive(spark, options.archive)
        self._state: State | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Add a micro-batch (the function for `foreachBatch`)."""
        log = self._log
        state = self._state or log.state()  # nobody else adds batches
        ends = log.planned_ends(batch_id)
        if not state.has(batch_id, ends):
            pieces = write_pieces(self._spark, log, batch, f"batch-{batch_id:012d}")
            added = Batch(batch_id, pieces, log.planned_starts() if batch_id == 0 else {}, ends)
            log.commit_batch(added)
            state = replace(state, through=batch_id, ends={**state.ends, **ends})
        self._state = state
        if self._options.maintain_every and (batch_id + 1) % self._options.maintain_every == 0:
            maintain(self._spark, self._options)


def maintain(spark: SparkSession, options: argparse.Namespace) -> None:
    """Compact, expire, clean; leaves to the next time what another job does meanwhile."""
    try:
        for command in (compact, expire, clean):
            command(spark, options)
    except ArchiveError as problem:
        pipeline.console.print(f"Maintenance: {problem}")


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start archiving. Its checkpoint is part of the archive."""
    records = pipeline.read_topics(spark, options, includeHeaders="true")
    writer = archived_columns(records).writeStream.foreachBatch(BatchArchiver(spark, options))
    checkpoint = open_archive(spark, options.archive).checkpoint
    return [pipeline.start_query(writer, options, "archive", checkpoint=checkpoint)]


# --- looking after it ---------------------------------------------------------------------------------------------


def compact(spark: SparkSession, options: argparse.Namespace) -> int:
    """Rewrite the topics' days that lie in many small files, and the log's batches as a snapshot.

    Returns how many files of data that saved.
    Raises ArchiveError when what was written is not what was read, or when another job replaced that meanwhile.
    """
    log = existing_archive(spark, options.archive)
    state = log.state()
    chosen = _scattered(state, options.target_bytes, options.min_files)
    if not chosen:
        if state.through > state.snapshot_through:
            log.commit_snapshot(lambda now: now)
        return 0
    old = [piece for group in chosen.values() for piece in group]
    layouts = [_Layout(group, options.target_bytes) for group in chosen.values()]
    rows_per_file = max(layout.rows_per_file for layout in layouts)
    together = (
        _with_slots(spark, read_pieces(spark, log, old), layouts)
        .repartition(sum(layout.files for layout in layouts), "topic", "date", "slot")
        .sortWithinPartitions("topic", "date", "partition", "offset")
        .select(*COLUMNS)
    )
    # Several slots may fall to one task: what it writes of a day goes on in another file then.
    new = write_pieces(spark, log, together, "compact", math.ceil(rows_per_file * 1.1))
    if _held(old) != _held(new):
        raise ArchiveError(f"compaction read {_held(old)} and wrote {_held(new)}: the archive was left as it is")
    moment = now_ms(spark)
    log.commit_snapshot(lambda now: now.with_other_pieces(old, new, moment))
    return sum(piece.files for piece in old) - sum(piece.files for piece in new)


def _scattered(state: State, target_bytes: int, min_files: int) -> dict[tuple[str, str], list[Piece]]:
    """The pieces of topics' days that compaction makes fewer files of.

    Those with large files stay as they are, so that no record is written again with each batch that follows it.
    """
    days: dict[tuple[str, str], list[Piece]] = {}
    for piece in state.pieces:
        if piece.bytes / piece.files < target_bytes / 2:
            days.setdefault((piece.topic, piece.date), []).append(piece)
    return {day: group for day, group in days.items() if sum(piece.files for piece in group) >= max(2, min_files)}


class _Layout:
    """The place of a topic's records of one day in its new files: by partition, and in each by offset.

    A slot should become one file. The file has about `target_bytes` if offsets are spread evenly within a partition.
    """

    def __init__(self, pieces: Sequence[Piece], target_bytes: int) -> None:
        self.files = max(1, round(sum(piece.bytes for piece in pieces) / target_bytes))
        self.rows_per_file = sum(piece.rows for piece in pieces) / self.files
        self._held = _held(pieces)

    def rows(self) -> Iterator[tuple[str, str, int, int, float, float]]:
        """Topic, day, partition; its first offset, the slot of this offset, the slots that one offset takes."""
        before = 0
        for (topic, day, partition), (rows, first, last) in sorted(self._held.items()):
            slots = rows / self.rows_per_file
            yield topic, day, partition, first, before / self.rows_per_file, slots / (last + 1 - first)
            before += rows


def _with_slots(spark: SparkSession, records: DataFrame, layouts: Sequence[_Layout]) -> DataFrame:
    """Records with their slots."""
    places = spark.createDataFrame(
        [row for layout in layouts for row in layout.rows()],
        "topic string, day string, partition int, first bigint, first_slot double, step double",
    ).withColumn("date", f.to_date("day"))
    slot = f.floor(f.col("first_slot") + (f.col("offset") - f.col("first")) * f.col("step"))
    return records.join(f.broadcast(places), ["topic", "date", "partition"]).withColumn("slot", slot)


def _held(pieces: Sequence[Piece]) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """The number of records, the first and the last offset, by topic, date and partition."""
    held: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for piece in pieces:
        for each in piece.contents:
            rows, first, last = held.get((piece.topic, piece.date, each.partition), (0, each.first, each.last))
            summed = (rows + each.rows, min(first, each.first), max(last, each.last))
            held[piece.topic, piece.date, each.partition] = summed
    return held


def expire(spark: SparkSession, options: argparse.Namespace, now: int | None = None) -> int:
    """Take days older than the policy out of the archive; returns how many records went. `now`, in ms since the epoch,
    is the database's time where nobody says otherwise.

    Their offsets stay in the log as expired, so that an audit can tell them from lost ones.
    """
    policy: dict[str, int] = dict(options.keep_days_of)
    if options.keep_days is None and not policy:
        return 0
    log = existing_archive(spark, options.archive)
    state = log.state()
    now = now_ms(spark) if now is None else now
    [row] = spark.sql(f"select to_date(timestamp_millis({now})) as today").collect()

    def is_old(piece: Piece) -> bool:
        days = policy.get(piece.topic, options.keep_days)
        return days is not None and (row.today - type(row.today).fromisoformat(piece.date)).days > days

    old = [piece for piece in state.pieces if is_old(piece)]
    if not old:
        return 0
    ranges = offset_ranges(read_pieces(spark, log, old))
    expired = [
        Explained(topic, partition, start, end, EXPIRED)
        for (topic, partition), found in ranges.items()
        for start, end in found.ranges
    ]
    log.commit_snapshot(lambda at: at.with_other_pieces(old, [], now).with_explained(expired))
    return sum(piece.rows for piece in old)


def clean(spark: SparkSession, options: argparse.Namespace) -> int:
    """Delete what is no longer part of the archive; returns how many files and folders."""
    return existing_archive(spark, options.archive).clean(now_ms(spark), options.grace_hours * 3_600_000)


def show(spark: SparkSession, options: argparse.Namespace) -> None:
    """Print what the archive holds; with a schema, also the fields of values.

    Raises SchemaError before anything is read, ArchiveError when there is no archive, or no record to have fields.
    """
    fields = None if options.schema is None else value_schema(options.schema)
    state = existing_archive(spark, options.archive).state()
    table = Table(title=f"{options.archive}, batch {state.through}")
    for name in ("topic", "days", "first day", "last day", "records", "files", "MB"):
        table.add_column(name)
    for topic in sorted({piece.topic for piece in state.pieces}):
        pieces = [piece for piece in state.pieces if piece.topic == topic]
        days = sorted({piece.date for piece in pieces})
        files, size = sum(piece.files for piece in pieces), sum(piece.bytes for piece in pieces)
        records = sum(piece.rows for piece in pieces)
        table.add_row(topic, f"{len(days):,}", days[0], days[-1], f"{records:,}", f"{files:,}", f"{size / 1e6:,.1f}")
    pipeline.print_table(table)
    if fields is not None:
        _show_fields(spark, options, fields.names)


def _show_fields(spark: SparkSession, options: argparse.Namespace, fields: Sequence[str]) -> None:
    """Print the first records of the topics with the fields of their values, and how many of all values do not fit."""
    records = read_archive(spark, options.archive, chosen(options), schema=options.schema)
    does_not_fit = ~f.col(FITS)
    [counted] = records.agg(
        f.count("*").alias("records"), f.count(FITS).alias("values"), f.count_if(does_not_fit).alias("misfits")
    ).collect()
    if not counted.records:
        raise ArchiveError(f"the archive holds nothing of {', '.join(chosen(options))}")
    first = records.orderBy("topic", "partition", "offset").select(
        "topic", "partition", "offset", "timestamp", f.col("key").cast("string").alias("key"),
        *(f.col(f"`{name}`") for name in fields),
        f.when(does_not_fit, f.col("value").cast("string")).alias("value that does not fit"),
    )  # fmt: skip
    pipeline.print_rows(first, "The first records")
    pipeline.say(f"{counted.misfits:,} of {counted['values']:,} values do not fit the schema: fields are null there.")


# --- the command line ---------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """This pipeline's command line."""
    made = pipeline.pipeline_parser("archive", __doc__)
    pipeline.add_stream_options(made, checkpoint=False)  # it is part of the archive
    made.add_argument(
        "command",
        nargs="?",
        default="run",
        choices=["run", "compact", "expire", "clean", "audit", "show"],
        help="default: %(default)s",
    )
    made.add_argument("--archive", metavar="URI", help="where the archive is")
    pipeline.add_topics_options(made, "flights", "what to archive")
    made.add_argument(
        "--schema",
        metavar="DDL",
        help="`show` prints the first records of --topics with the fields of their values, which are JSON, and counts "
        "values that do not fit; in Spark's words, such as 'carrier STRING, delay INT'",
    )
    care = made.add_argument_group("compact, expire, clean")
    care.add_argument(
        "--maintain-every",
        type=int,
        default=MAINTENANCE_BATCHES,
        metavar="N",
        help="`run` compacts, expires and cleans after so many batches; 0: never (default: %(default)s)",
    )
    care.add_argument("--target-bytes", type=int, default=128 << 20, help="of a compacted file (default: %(default)s)")
    care.add_argument(
        "--min-files", type=int, default=8, metavar="N", help="compact a day from so many small files on (default: 8)"
    )
    care.add_argument("--keep-days", type=int, metavar="N", help="how long to keep a day (default: for ever)")
    care.add_argument(
        "--keep-days-of",
        metavar="TOPIC=N",
        action="append",
        default=[],
        type=topic_days,
        help="the same for one topic; may be repeated",
    )
    care.add_argument(
        "--grace-hours",
        type=int,
        default=24,
        metavar="N",
        help="how long readers can use files that are no longer part of the archive (default: %(default)s)",
    )
    return made


def topic_days(text: str) -> tuple[str, int]:
    """TOPIC=N."""
    topic, days = pipeline.pair(text)
    return topic, int(days)


def needs(options: argparse.Namespace) -> Topics:
    """The topics that are archived."""
    return Topics(reads=chosen(options), pattern=options.topics_pattern or "")


def _somebody(_: argparse.Namespace) -> Topics:
    """The topics that the audit needs: none here, because the archive names them later."""
    return Topics()


def prepare_sample(options: argparse.Namespace) -> None:
    """Flights in a topic."""
    from barnabas.spark_examples import sample

    options.archive = options.archive or f"{options.folder}/archive"
    sample.create_topics(options.bootstrap_servers, options.topics)
    sample.produce(options.bootstrap_servers, options.topics, sample.flight_samples(options.sample_flights))


def show_sample(spark: SparkSession, options: argparse.Namespace) -> None:
    """Compact what was archived, audit it and print it."""
    compact(spark, argparse.Namespace(**{**vars(options), "min_files": 2}))
    show(spark, options)
    print_findings(audit(spark, options))


def run_command(spark: SparkSession, options: argparse.Namespace, _: bool) -> int:
    """Run one of the commands that look after an archive; returns the exit status."""
    try:
        if options.command == "audit":
            findings = audit(spark, options)
            print_findings(findings)
            return 0 if all(finding.is_complete for finding in findings) else 1
        if options.command == "show":
            show(spark, options)
            return 0
        done = {"compact": compact, "expire": expire, "clean": clean}[options.command](spark, options)
    except SchemaError as problem:
        pipeline.say(str(problem))
        return 2
    except ArchiveError as problem:
        pipeline.console.print(problem, style="red", markup=False)
        return 1
    saved = {"compact": "files saved", "expire": "records expired", "clean": "files and folders deleted"}
    pipeline.console.print(f"{done:,} {saved[options.command]}.")
    return 0


def main() -> int:
    """Run from the command line."""
    made = parser()
    options = made.parse_args()
    if options.schema is not None and (options.command != "show" or options.topics_pattern):
        made.error("--schema is for `show`, with --topics")
    if options.command == "run":
        if options.bootstrap_servers is not None and options.archive is None:
            made.error("run needs --archive")
        return pipeline.run_pipeline(made, start, prepare_sample, show_sample, needs)
    if options.archive is None:
        made.error(f"{options.command} needs --archive")
    if (missing := missing_archive(options)) is not None:
        pipeline.say(missing)
        return 1
    asks_queue = options.command == "audit" and options.bootstrap_servers is not None
    return pipeline.run_program(made, options, None, run_command, needs=_somebody if asks_queue else None)


if __name__ == "__main__":
    sys.exit(main())
