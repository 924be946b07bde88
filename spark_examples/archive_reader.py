"""Reading an archive that archive.py made: `read_archive(spark, "s3a://bucket/archive")`."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_examples.archive_log import ArchiveLog, Piece
from spark_examples.filesystem import FileSystem

SCHEMA = (
    "partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, topic string, date date"
)
COLUMNS = ("topic", "date", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


def open_archive(spark: SparkSession, archive: str) -> ArchiveLog:
    """The archive at a URI."""
    return ArchiveLog(FileSystem(spark), archive)


def read_archive(spark: SparkSession, archive: str, topics: Sequence[str] = ()) -> DataFrame:
    """All records of the archive as it is now, or those of some topics."""
    log = open_archive(spark, archive)
    return read_pieces(spark, log, [each for each in log.state().pieces if not topics or each.topic in topics])


def read_pieces(spark: SparkSession, log: ArchiveLog, pieces: Sequence[Piece]) -> DataFrame:
    """The records of some pieces."""
    if not pieces:
        return spark.createDataFrame([], SCHEMA).select(*COLUMNS)
    reader = spark.read.schema(SCHEMA).option("basePath", log.data)
    return reader.parquet(*[f"{log.data}/{piece.path}" for piece in pieces]).select(*COLUMNS)
