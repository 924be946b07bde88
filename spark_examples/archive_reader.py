"""Reading an archive that archive.py made: `read_archive(spark, "s3a://bucket/archive")`."""

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from barnabas.spark_examples.archive_log import LOG_FOLDER, ArchiveError, ArchiveLog, Piece
from barnabas.spark_examples.filesystem import FileSystem, local_path

SCHEMA = (
    "partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, topic string, date date"
)
COLUMNS = ("topic", "date", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


def open_archive(spark: SparkSession, archive: str) -> ArchiveLog:
    """The archive at a URI."""
    return ArchiveLog(FileSystem(spark), archive)


def existing_archive(spark: SparkSession, archive: str) -> ArchiveLog:
    """The archive at a URI. Raises ArchiveError when nothing has been archived there."""
    log = open_archive(spark, archive)
    if not log.files.exists(log.folder):
        raise ArchiveError(_no_archive(archive))
    return log


def missing_archive(options: argparse.Namespace) -> str | None:
    """In one line that --archive names no archive, as far as that can be seen before Spark is there."""
    folder = local_path(options.archive, options.conf)
    return _no_archive(options.archive) if folder is not None and not (folder / LOG_FOLDER).is_dir() else None


def _no_archive(archive: str) -> str:
    return f"There is no archive at {archive}: `archive.py run` makes one with the first records it reads."


def read_archive(spark: SparkSession, archive: str, topics: Sequence[str] = ()) -> DataFrame:
    """All records of the archive as it is now, or those of some topics. Raises ArchiveError when there is none."""
    log = existing_archive(spark, archive)
    return read_pieces(spark, log, [each for each in log.state().pieces if not topics or each.topic in topics])


def read_pieces(spark: SparkSession, log: ArchiveLog, pieces: Sequence[Piece]) -> DataFrame:
    """The records of some pieces."""
    if not pieces:
        return spark.createDataFrame([], SCHEMA).select(*COLUMNS)
    reader = spark.read.schema(SCHEMA).option("basePath", log.data)
    return reader.parquet(*[f"{log.data}/{piece.path}" for piece in pieces]).select(*COLUMNS)
