"""The proof that an archive is complete: each offset that was read is there once, or has a known reason to be absent.

What has been read is known from the log: each batch names the offsets that Spark planned, so that no hole between
batches goes unnoticed. What is there is counted in the data itself. Offsets without a record are normal in a queue:
each transaction ends with a marker in each of its partitions, aborted records are not read, and compaction removes
records where a topic's cleanup.policy has it (elsewhere, a hole is a loss).
The audit does not take that on trust: it fetches those places from the queue and looks (queue_gaps.py). What it finds
goes into the archive's log, since the queue will not hold them for ever: audit more often than topics expire.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from rich.table import Table

from barnabas.broker.client.security import PLAINTEXT
from barnabas.spark_examples.archive_log import EXPIRED, Explained
from barnabas.spark_examples.archive_reader import existing_archive, read_pieces
from barnabas.spark_examples.offsets import Partition, Range
from barnabas.spark_examples.pipeline import print_table

BUCKET = 1_000_000
"""The number of a partition's offsets that one task checks."""


@dataclass(slots=True)
class Held:
    """The part of a partition that is in the data."""

    rows: int = 0
    duplicates: int = 0
    ranges: list[Range] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finding:
    """The audit's result for one partition."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    duplicates: int
    explained: Counter[str]
    """Offsets without a record, by reason."""
    missing: tuple[Explained, ...]
    """Offsets without a record and without a good reason."""
    strays: tuple[Range, ...]
    """Records at offsets that nobody has read."""

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.strays or self.duplicates)


def offset_ranges(records: DataFrame) -> dict[Partition, Held]:
    """The ranges of consecutive offsets in some records, by topic and partition."""
    window = Window.partitionBy("topic", "partition", "bucket").orderBy("offset")
    places = records.select("topic", "partition", "offset", f.floor(f.col("offset") / BUCKET).alias("bucket"))
    # Within consecutive offsets the difference to their rank does not change; repeated ones have the same rank.
    islands = (
        places.withColumn("island", f.col("offset") - f.dense_rank().over(window))
        .groupBy("topic", "partition", "bucket", "island")
        .agg(f.min("offset").alias("first"), f.max("offset").alias("last"), f.count("*").alias("rows"))
        .collect()
    )
    found: dict[Partition, Held] = {}
    for row in sorted(islands, key=lambda row: (row.topic, row.partition, row["first"])):
        held = found.setdefault((row.topic, row.partition), Held())
        start, end = row["first"], row["last"] + 1
        held.rows += row.rows
        held.duplicates += row.rows - (end - start)
        if held.ranges and held.ranges[-1][1] == start:
            held.ranges[-1] = (held.ranges[-1][0], end)
        else:
            held.ranges.append((start, end))
    return found


def without(wanted: Sequence[Range], taken: Iterable[Range]) -> list[Range]:
    """The rest of some ranges after the removal of others; the ranges need not be sorted."""
    cuts = sorted(taken)
    left = []
    at = 0
    for start, end in sorted(wanted):
        while at < len(cuts) and cuts[at][1] <= start:
            at += 1
        position, index = start, at
        while index < len(cuts) and cuts[index][0] < end:
            if cuts[index][0] > position:
                left.append((position, cuts[index][0]))
            position = max(position, cuts[index][1])
            index += 1
        if position < end:
            left.append((position, end))
    return left


def audit(spark: SparkSession, options: argparse.Namespace) -> list[Finding]:
    """Look at the whole archive, and with `--bootstrap-servers` into the queue where something is not there."""
    log = existing_archive(spark, options.archive)
    state = log.state()
    held = offset_ranges(read_pieces(spark, log, state.pieces))
    known: dict[Partition, list[Explained]] = {}
    for each in state.explained:
        known.setdefault((each.topic, each.partition), []).append(each)
    gaps: dict[Partition, list[Range]] = {}
    for partition, end in state.ends.items():
        there = held.get(partition, Held()).ranges
        taken = [*there, *((each.start, each.end) for each in known.get(partition, ()))]
        if missing := without([(state.starts[partition], end)], taken):
            gaps[partition] = missing
    looked_up = _look_up(gaps, options)
    good = [each for each in looked_up if each.reason in GOOD_REASONS]
    if good:
        for each in good:
            known.setdefault((each.topic, each.partition), []).append(each)
        log.commit_snapshot(lambda now: now.with_explained(good))
    bad = [each for each in looked_up if each.reason not in GOOD_REASONS]
    findings = []
    for partition in sorted(state.ends.keys() | held.keys()):
        topic, number = partition
        has = held.get(partition, Held())
        start, end = state.starts.get(partition, 0), state.ends.get(partition, 0)
        reasons: Counter[str] = Counter()
        for each in known.get(partition, ()):
            reasons[each.reason] += each.end - each.start
        missing_here = tuple(each for each in bad if (each.topic, each.partition) == partition)
        strays = tuple(without(has.ranges, [(start, end)]))
        findings.append(Finding(topic, number, start, end, has.rows, has.duplicates, reasons, missing_here, strays))
    return findings


GOOD_REASONS = frozenset({EXPIRED, "transaction marker", "aborted", "compacted"})


def _look_up(gaps: dict[Partition, list[Range]], options: argparse.Namespace) -> list[Explained]:
    if not gaps:
        return []
    why_not = _cannot_look_up(options)
    if why_not is None:
        from barnabas.broker.client.client import ClientError
        from barnabas.spark_examples.queue_gaps import explain_gaps

        try:
            return explain_gaps(options.bootstrap_servers, gaps, options.security)
        except ClientError as problem:
            why_not = str(problem)
    return [
        Explained(topic, partition, start, end, f"not looked up: {why_not}")
        for (topic, partition), ranges in gaps.items()
        for start, end in ranges
    ]


def _cannot_look_up(options: argparse.Namespace) -> str | None:
    """Why the queue cannot be asked, if it cannot."""
    if options.bootstrap_servers is None:
        return "no --bootstrap-servers"
    for key, value in (*options.kafka, *options.client):
        if key == "security.protocol" and value.upper() != "PLAINTEXT" and options.security == PLAINTEXT:
            return f"the audit's own client needs {key}={value} in --command-config"
    return None


def print_findings(findings: Sequence[Finding]) -> None:
    """Print the verdict for each partition."""
    table = Table(title="Audit of the archive")
    for name in ("topic", "partition", "offsets", "records", "without a record", "duplicates", "verdict"):
        table.add_column(name)
    for finding in findings:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(finding.explained.items()))
        problems = [f"{each.start}..{each.end - 1} {each.reason}" for each in finding.missing[:3]]
        problems += [f"{start}..{end - 1} not planned" for start, end in finding.strays[:3]]
        problems += ["duplicates"] if finding.duplicates else []
        table.add_row(
            finding.topic,
            str(finding.partition),
            f"{finding.start:,} to {finding.end:,}",
            f"{finding.rows:,}",
            reasons,
            f"{finding.duplicates:,}",
            "[green]complete" if finding.is_complete else f"[red]{'; '.join(problems)}",
        )
    print_table(table)
