"""Spark as a reader."""

import functools
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.clients import create_topics
from benchmarks.java_tools import LARGE_BATCHES, produce
from benchmarks.model import Figure, Figures, Scale, Workload, at_least
from benchmarks.processes import CpuUse, resident
from benchmarks.system import Server, System

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 100
PARTITIONS = 4


@functools.cache
def _session() -> "SparkSession":
    from barnabas.spark_examples.session import spark_session

    return spark_session("benchmark")


def read(system: System, scale: Scale) -> Figures:
    """W15: a topic as a table, and as a stream that ends; where the rows go costs nothing."""
    records = scale.of(5_000_000, 200_000)
    with system.running() as server:
        create_topics(server, PARTITIONS, "warm-up", "measured")
        produce(server, "warm-up", records // 10, SIZE, LARGE_BATCHES)
        produce(server, "measured", records, SIZE, LARGE_BATCHES)
        ways: dict[str, Callable[[Server, str], int]] = {"batch": _read_batch, "stream": _read_stream}
        for name, way in ways.items():
            way(server, "warm-up")
            with CpuUse(server) as cpu:
                started_s = time.monotonic()
                found = way(server, "measured")
                elapsed_s = time.monotonic() - started_s
            if found != records:
                raise RuntimeError(f"Spark read {found:,} of {records:,} records")
            yield Figure(f"{name}: rate", records / elapsed_s, "records/s", (at_least(1.0),))
            yield cpu.per_gib(name, records * SIZE)
        yield resident(server)


def _options(server: Server, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}


def _read_batch(server: Server, topic: str) -> int:
    """Returns how many records were read."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    read = Observation()
    table = _session().read.format("kafka").options(**_options(server, topic)).load()
    table.observe(read, f.count(f.lit(1)).alias("records")).write.format("noop").mode("overwrite").save()
    return int(read.get["records"])


def _read_stream(server: Server, topic: str) -> int:
    """Returns how many records were read."""
    stream = _session().readStream.format("kafka").options(**_options(server, topic)).load()
    with tempfile.TemporaryDirectory(prefix="spark-checkpoint-") as folder:
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)


READ = Workload("W15", "Spark reads 5,000,000 records of 100 B from 4 partitions", read)
