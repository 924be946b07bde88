"""Spark as a reader."""

import functools
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.clients import create_topics
from benchmarks.java_tools import FILLING, produce
from benchmarks.model import Figure, Figures, Scale, Workload, at_least
from benchmarks.processes import CpuUse, resident
from benchmarks.systems import Server, System

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 100
PARTITIONS = 4


@functools.cache
def _session() -> "SparkSession":
    from spark_examples.session import spark_session

    return spark_session("benchmark")


def read(system: System, scale: Scale) -> Figures:
    """W15: a topic as a table, and as a stream that ends; where the rows go costs nothing."""
    records = scale.of(5_000_000, 200_000)
    with system.running() as server:
        create_topics(server, PARTITIONS, "warm-up", "measured")
        produce(server, "warm-up", records // 10, SIZE, FILLING)
        produce(server, "measured", records, SIZE, FILLING)
        ways: dict[str, Callable[[Server, str], None]] = {"batch": _read_batch, "stream": _read_stream}
        for name, way in ways.items():
            way(server, "warm-up")
            with CpuUse(server) as cpu:
                started_s = time.monotonic()
                way(server, "measured")
                elapsed_s = time.monotonic() - started_s
            yield Figure(f"{name}: rate", records / elapsed_s, "records/s", (at_least(1.0),))
            yield cpu.per_gib(name, records * SIZE)
        yield resident(server)


def _options(server: Server, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}


def _read_batch(server: Server, topic: str) -> None:
    table = _session().read.format("kafka").options(**_options(server, topic)).load()
    table.write.format("noop").mode("overwrite").save()


def _read_stream(server: Server, topic: str) -> None:
    stream = _session().readStream.format("kafka").options(**_options(server, topic)).load()
    with tempfile.TemporaryDirectory(prefix="spark-checkpoint-") as folder:
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()


READ = Workload("W15", "Spark reads 5,000,000 records of 100 B from 4 partitions", read)
