"""A Spark session with its Kafka connector, as the pipelines and their tests use it.

Below `spark-submit` it is the one that was submitted: master, packages and paths are the cluster's. Started as a plain
Python program it is a local Spark, or the driver of a job on the cluster that `master` names; the connector comes from
Maven Central into our cache folder, and from there, with our own modules, to the workers.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from barnabas.spark_examples.modules import write_modules

SPARK_VERSION = "4.0.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"
"""Pinned: the token-provider jar of later connectors is missing from some mirrors of Maven Central."""

PART_OF_SPARK = (
    *(("org.apache.hadoop", name) for name in ("hadoop-client-api", "hadoop-client-runtime")),
    *(("org.scala-lang", "scala-library"), ("org.scala-lang.modules", "scala-parallel-collections_2.13")),
    *(("org.lz4", "lz4-java"), ("org.xerial.snappy", "snappy-java"), ("org.slf4j", "slf4j-api")),
    *(("org.apache.spark", "spark-tags_2.13"), ("com.google.code.findbugs", "jsr305")),
)
"""Libraries that the connector needs and every Spark has: 60 of the 70 MB of its dependencies."""

ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's default hides the values of URLs alone; passwords and keys are options of Kafka's sources, too.
    "spark.sql.redaction.options.regex": "(?i)url|password|secret|jaas|keystore",
}
DRIVER = {
    "spark.driver.memory": "1g",
    # A query that fails may take its own thread with it (StackOverflowError within java.util.regex, seen with Java's
    # stack of 1 MiB) and then counts as active for ever.
    "spark.driver.extraJavaOptions": "-Xss8m",
    "spark.ui.showConsoleProgress": "false",
}
SMALL = {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
"""Settings that suit a Spark on one machine."""


def is_submitted() -> bool:
    """Whether spark-submit started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_session(
    name: str, settings: Mapping[str, str] | None = None, *, master: str | None = None, packages: str | None = None
) -> SparkSession:
    """Start Spark, by default on two threads of this machine, or join the one that spark-submit started.

    Raises JavaMissing.
    """
    if is_submitted():
        return _built({"spark.app.name": name, **ALWAYS, **(settings or {})})
    from barnabas.spark_examples.ivy import exclusive, ivy_home, ivy_settings
    from barnabas.spark_examples.java import find_java

    os.environ["JAVA_HOME"] = str(find_java().resolve().parent.parent)
    master = master or "local[2]"
    own = {"spark.master": master, "spark.app.name": name, **ALWAYS, **DRIVER}
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers import what this program can import
        own |= SMALL
    if packages is None:  # the jars by themselves: Spark would ask Ivy at every start, one process at a time
        jars = {"spark.jars": ",".join(str(jar) for jar in sorted(fetch_connector().glob("*.jar")))}
        spark = _built({**own, **jars, **(settings or {})})
    else:  # a half-filled ~/.m2 would make Ivy fail
        ivy = {
            "spark.jars.packages": packages,
            "spark.jars.ivy": str(ivy_home()),
            "spark.jars.ivySettings": str(ivy_settings()),
        }
        with exclusive(ivy_home() / ".lock"):
            spark = _built({**own, **ivy, **(settings or {})})
    if not is_local(master):
        _send_modules(spark)
    return spark


def is_local(master: str) -> bool:
    """Whether workers are children of this program."""
    return master == "local" or master.startswith("local[")


def _send_modules(spark: SparkSession) -> None:
    """Let workers import what our tasks use."""
    folder = tempfile.mkdtemp(prefix="spark-modules-")  # executors come and ask for it as long as the program lives
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "barnabas.zip")
    write_modules(path)
    spark.sparkContext.addPyFile(str(path))


def fetch_connector() -> Path:
    """The folder of the jars that the connector adds to Spark, downloaded where they are missing.

    Raises FetchFailed or JavaMissing.
    """
    from barnabas.spark_examples.ivy import Library, fetch
    from barnabas.spark_examples.java import cache_folder

    folder = cache_folder() / "spark-connector" / CONNECTOR.replace(":", "-")
    return fetch(folder, [Library(*CONNECTOR.split(":"))], excluded=PART_OF_SPARK, title="Spark's Kafka connector")


def _built(settings: Mapping[str, str]) -> SparkSession:
    if not is_submitted():
        _start_java(settings)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, unless it is there, in a process group of its own.

    Ctrl-C in a terminal, and a SIGTERM that is sent to a group, is for this program, which then ends Java in order. It
    ends with this program in any case: it reads a pipe that we hold.
    """
    if SparkContext._gateway is None:
        conf = SparkConf().setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"process_group": 0})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
