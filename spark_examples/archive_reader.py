"""Reads an archive of archive.py: `read_archive(spark, "s3a://bucket/archive")`."""

import argparse
from collections import Counter
from collections.abc import Sequence

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from barnabas.spark_examples.archive_log import LOG_FOLDER, ArchiveError, ArchiveLog, Piece
from barnabas.spark_examples.filesystem import FileSystem, local_path

SCHEMA = (
    "partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, topic string, date date"
)
COLUMNS = ("topic", "date", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")

FITS = "value_fits"
"""The column that comes with a schema's fields: whether the value is JSON of that schema; null where there is none."""


class SchemaError(ValueError):
    """A schema for values that Spark cannot read, or whose fields have names of other columns; in one line."""


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
    """A line that says that --archive names no archive; None if it names one, or if only Spark can tell."""
    folder = local_path(options.archive, options.conf)
    return _no_archive(options.archive) if folder is not None and not (folder / LOG_FOLDER).is_dir() else None


def _no_archive(archive: str) -> str:
    return f"There is no archive at {archive}: `archive.py run` makes one with the first records it reads."


def read_archive(
    spark: SparkSession, archive: str, topics: Sequence[str] = (), *, schema: str | None = None
) -> DataFrame:
    """All records of the archive as it is now, or those of some topics; with a `schema` in Spark's DDL, such as
    `carrier STRING, delay INT`, they have the fields of values that are JSON as further columns, and FITS.

    Raises SchemaError, or ArchiveError when there is no archive.
    """
    fields = None if schema is None else value_schema(schema)
    log = existing_archive(spark, archive)
    records = read_pieces(spark, log, [each for each in log.state().pieces if not topics or each.topic in topics])
    return records if fields is None else _with_fields(records, fields)


def value_schema(ddl: str) -> StructType:
    """The fields that a schema names; it is read by the Spark that runs. Raises SchemaError."""
    try:
        schema = StructType.fromDDL(ddl)
    except ParseException as problem:
        raise SchemaError(f"{ddl!r} is no schema: {str(problem).strip().splitlines()[0]}") from None
    if not isinstance(schema, StructType) or not schema.names:  # of `INT`, Spark makes a type
        raise SchemaError(f"{ddl!r} is no schema: it names no fields.")
    columns = Counter(name.lower() for name in (*COLUMNS, FITS, *schema.names))
    if twice := [name for name, count in columns.items() if count > 1]:
        raise SchemaError(f"{ddl!r} is no schema for an archive: there would be two columns {', '.join(twice)}.")
    return schema


def _with_fields(records: DataFrame, schema: StructType) -> DataFrame:
    """A field that does not fit is null, and so are all of a value that is no JSON object; the value stays."""
    asked = StructType([*schema.fields, StructField(FITS, StringType())])
    # Spark puts the text of a value that does not fit into the field that this option names, but for blank ones.
    parsed = f.from_json(f.col("value").cast("string"), asked, {"columnNameOfCorruptRecord": FITS})
    fits = f.col("parsed").isNotNull() & f.col("parsed").getField(FITS).isNull()
    return records.withColumn("parsed", parsed).select(
        *COLUMNS,
        *(f.col("parsed").getField(name).alias(name) for name in schema.names),
        f.when(f.col("value").isNotNull(), fits).alias(FITS),
    )


def read_pieces(spark: SparkSession, log: ArchiveLog, pieces: Sequence[Piece]) -> DataFrame:
    """The records of some pieces."""
    if not pieces:
        return spark.createDataFrame([], SCHEMA).select(*COLUMNS)
    reader = spark.read.schema(SCHEMA).option("basePath", log.data)
    return reader.parquet(*[f"{log.data}/{piece.path}" for piece in pieces]).select(*COLUMNS)
