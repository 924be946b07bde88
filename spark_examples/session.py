"""A local Spark with its Kafka connector, as the examples and their tests use it."""

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from tools.jvm.ivy import exclusive, ivy_home, ivy_settings
from tools.jvm.java import find_java

SPARK_VERSION = "4.0.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"
"""Pinned: the token-provider jar of later connectors is missing from some mirrors of Maven Central."""


def spark_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark on two threads of this machine; the connector comes from Maven Central into our cache folder.

    Raises tools.jvm.java.JavaMissing.
    """
    os.environ["JAVA_HOME"] = str(find_java().resolve().parent.parent)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.jars.packages", CONNECTOR)
        .config("spark.jars.ivy", str(ivy_home()))
        .config("spark.jars.ivySettings", str(ivy_settings()))  # a half-filled ~/.m2 would make Ivy fail
        .config("spark.driver.memory", "1g")
        # A query that fails may take its own thread with it (StackOverflowError within java.util.regex, seen with
        # Java's stack of 1 MiB) and then counts as active for ever.
        .config("spark.driver.extraJavaOptions", "-Xss8m")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
    )
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    with exclusive(ivy_home() / ".lock"):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
